"""Problems of plugins in the output of commands."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from plugin_distribution import forget_plugins, write_distribution

from quantkit import runtimes
from quantkit.quantization import observers, targets
from quantkit.quantization.targets.diagnosis import find_plugin_problems
from quantkit.recipes.named import RECIPE_REGISTRY

main = import_module("quantkit.cli").main

REGISTRIES = (targets.REGISTRY, runtimes.REGISTRY, observers.REGISTRY, RECIPE_REGISTRY)
GROUPS = (*(registry.group for registry in REGISTRIES), "quantkit.transforms")


@pytest.fixture(autouse=True)
def broken_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution with a broken plugin of each group."""
    write_distribution(tmp_path, "broken", "", {group: {"onnx_s8": "broken:MISSING"} for group in GROUPS})
    monkeypatch.syspath_prepend(tmp_path)
    forget_plugins(*REGISTRIES)
    yield
    monkeypatch.undo()
    sys.modules.pop("broken", None)
    forget_plugins(*REGISTRIES)


@pytest.mark.parametrize("name", ["onnx_s8", "onnx_s9"])
def test_error_of_an_unknown_target_names_the_problem(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["quantize", "digits", "-o", "digits.onnx", "--weights-only", "--target", name]
    assert main(command) != 0
    assert "target plugin broken:MISSING of broken cannot be loaded" in capsys.readouterr().err


def test_doctor_finds_a_problem_of_each_group() -> None:
    problems = find_plugin_problems()
    assert len(problems) == len(GROUPS)
    for noun in ("target", "runtime", "observer", "recipe"):
        assert any(
            problem.startswith(f"{noun} plugin broken:MISSING of broken cannot be loaded") for problem in problems
        )
    assert any(problem.startswith("plugin 'onnx_s8' of broken cannot be loaded") for problem in problems)
