"""``quantkit completion``: the scripts complete commands, flags and values."""

import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from command_line import main

APP = import_module("quantkit.cli._app")


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    path = tmp_path_factory.mktemp("completion") / "quantkit.bash"
    path.write_text(script_of("bash"))
    return path


def script_of(shell: str) -> str:
    command = [sys.executable, "-m", "quantkit", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def complete(script: Path, *arguments: str) -> list[str]:
    """Return the completions of the last argument."""
    line = " ".join(f"'{argument}'" for argument in arguments)
    command = (
        f"compopt() {{ :; }}; source {script}; COMP_WORDS=({line}); COMP_CWORD={len(arguments) - 1}; "
        "_shtab_quantkit; echo ${COMPREPLY[@]}"
    )
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert not result.stderr
    return result.stdout.split()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("quantkit", "qua"), ["quantize"]),
        (("quantkit", "help", "comp"), ["compare", "completion", "compare_graphs"]),
        (("quantkit", "models", ""), ["list", "show", "fetch", "path"]),
        (("quantkit", "models", "fetch", "--off"), ["--offline"]),
        (("quantkit", "quantize", "graph.pb", "--tar"), ["--target"]),
        (
            ("quantkit", "quantize", "graph.pb", "--target", ""),
            ["onnx", "tensorflow", "eightbit", "litert", "tensorrt"],
        ),
        (("quantkit", "quantize", "graph.pb", "--target", "li"), ["litert"]),
        (("quantkit", "transform", "graph.pb", "--recipe", "inf"), ["inference"]),
        (("quantkit", "completion", "z"), ["zsh"]),
        (("quantkit", "transform", "graph"), []),
    ],
)
def test_arguments_are_completed_in_bash(bash_script: Path, arguments: tuple[str, ...], expected: list[str]) -> None:
    assert complete(bash_script, *arguments) == expected


def test_every_flag_is_completed_in_bash(bash_script: Path) -> None:
    count = 0
    for name in APP.ALL:
        parser = APP.make_parser(name, import_module(f"quantkit.cli.{name}"))
        subcommands = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
        leaves = [((name, sub), leaf) for sub, leaf in subcommands[0].items()] if subcommands else [((name,), parser)]
        for arguments, leaf in leaves:
            flags = {flag for action in leaf._actions for flag in action.option_strings}
            assert set(complete(bash_script, "quantkit", *arguments, "-")) == flags
            count += len(flags)
    assert count > 300


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_script_of_another_shell_is_valid(shell: str) -> None:
    script = script_of(shell)
    for name in ("quantize", "eightbit", "litert", "inference", "--max-drop", "fetch"):
        assert name in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_help_explains_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "models", "fetch"]) == 0
    assert capsys.readouterr().out.startswith("usage: quantkit models fetch")
