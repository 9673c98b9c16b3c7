"""The installation without extras: its size, its commands, and the hints of the commands that need an extra."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from command_process import CommandProcess
from packaging.requirements import Requirement

from quantkit.distribution import NAME

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "assets" / "guides" / "installation.md").read_text()
CONSOLE = "".join(re.findall(r"^```console\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
# (arguments of quantkit, error output)
COMMANDS = re.findall(r"^\$ quantkit (.*)\n((?:[^$].*\n)*)", CONSOLE, re.MULTILINE)
MOST_BYTES = 100e6
# Top-level modules of the packages that the extras install.
MODULES = (
    "ai_edge_litert",
    "h5py",
    "keras",
    "onnx",
    "onnxruntime",
    "openvino",
    "psutil",
    "pynvml",
    "ray",
    "tensorflow",
    "tensorflow_model_optimization",
    "tf2onnx",
    "tf_keras",
)
# Python runs it at its start, in the worker processes of benchmark too. None in sys.modules makes Python treat a
# module as not installed.
SITECUSTOMIZE = f"import sys; sys.modules.update(dict.fromkeys({MODULES}))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the commands of the guide run in order; later commands use files of earlier ones."""
    path = tmp_path_factory.mktemp("light")
    (path / "assets").symlink_to(ROOT / "assets")
    (path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (path / "model.keras").write_bytes(b"PK\x03\x04")
    return path


@pytest.fixture(scope="module")
def commands(folder: Path) -> Iterator[CommandProcess]:
    with CommandProcess.start({**os.environ, "PYTHONPATH": str(folder)}) as process:
        yield process


@pytest.mark.parametrize(("arguments", "error"), COMMANDS, ids=[arguments for arguments, _ in COMMANDS])
def test_command_of_the_guide(arguments: str, error: str, folder: Path, commands: CommandProcess) -> None:
    result = commands.run(shlex.split(arguments), folder)
    if not error:
        assert result.returncode == 0, result.stderr
        assert result.stdout
        return
    assert result.returncode == 4
    assert result.stderr.endswith(error)
    assert "calibrat" not in result.stderr  # the error comes before long work
    assert re.search(r"hint: pip install '[a-z-]+>=", error)


def test_the_guide_shows_commands_of_both_kinds() -> None:
    assert len(COMMANDS) == GUIDE.count("\n$ quantkit ") >= 30
    assert len([error for _, error in COMMANDS if error]) >= 6


def test_import_loads_no_extra() -> None:
    program = f"import sys, quantkit; print(sorted(set(sys.modules) & {set(MODULES)}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_the_guide_lists_every_extra() -> None:
    extras = set(distribution(NAME).metadata.get_all("Provides-Extra") or ())
    assert len(extras) == 10
    assert set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE)) == extras


def test_base_installation_is_below_100_mb() -> None:
    names = base_distributions(NAME)
    assert {"numpy", "pillow", "protobuf", NAME, "rich"} <= names
    assert 20e6 < sum(installed_bytes(name) for name in names) < MOST_BYTES


def test_a_wheel_installs_only_the_package() -> None:
    files = distribution(NAME).files or []
    source = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    if source.get("dir_info") != {}:
        pytest.skip("needs an installation from a folder that is not editable")
    folders = {file.parts[0] for file in files if file.parts[0] != ".."}
    assert folders == {"quantkit", f"{NAME.replace('-', '_')}-{distribution(NAME).version}.dist-info"}
    assert len(files) > 200


def base_distributions(name: str) -> set[str]:
    """Return a distribution and those that it requires, without extras."""
    names = {name}
    for requirement in distribution(name).requires or ():
        required = Requirement(requirement)
        if required.marker is None or required.marker.evaluate({"extra": ""}):
            names |= base_distributions(required.name.lower())
    return names


def installed_bytes(name: str) -> int:
    """Return the size of the files of a distribution, without Python's bytecode cache."""
    paths = [Path(str(file.locate())) for file in distribution(name).files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())
