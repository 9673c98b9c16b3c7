"""Contract of the built-in transforms: a file, a list entry, documentation, goldens, a test, and all promises."""

from pathlib import Path

import pytest

from quantkit.recipes import parse
from quantkit.recipes.contract import Status, check_transform
from quantkit.transforms.plugins import find_transform
from quantkit.transforms.registry import REGISTRY

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "quantkit" / "transforms"
BUILT_IN = sorted(
    name for name, transform in REGISTRY.items() if transform.function.__module__.startswith("quantkit.transforms.")
)

OUTPUTS = "keeps the model outputs up to rounding"
# Promises that no example can exercise, with the reason. Tests of the transforms run such graphs in TensorFlow.
NOT_EXERCISED = {
    ("backport_tensor_array_v3", OUTPUTS): "the reference runtime has no tensor arrays",
    ("clean_functions", OUTPUTS): "the reference runtime has no StatelessWhile",
    ("extract_subgraph", "keeps most of the signal of the model outputs"): "its purpose is to change the outputs",
    ("remove_dead_branches", OUTPUTS): "the reference runtime has no Switch and Merge",
}


def test_the_list_is_complete() -> None:
    files = {path.stem for path in FOLDER.glob("*/*.py") if not path.stem.startswith("_")}
    assert files == set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_file_test_and_golden_have_the_name(name: str) -> None:
    group, _, module = find_transform(name).function.__module__.removeprefix("quantkit.transforms.").partition(".")
    assert module == name
    assert (ROOT / "tests" / "transforms" / group / f"test_{name}.py").exists()
    assert list((ROOT / "tests" / "golden" / name).glob("*.txt"))
    assert parse(f"{name}{example_options(name)}").steps[0].name == name


@pytest.mark.parametrize("name", BUILT_IN)
def test_all_promises_are_exercised(name: str) -> None:
    failures = (Status.BROKEN, Status.NOT_EXERCISED)
    checks = [check for check in check_transform(find_transform(name)) if check.status in failures]
    expected = {key: reason for key, reason in NOT_EXERCISED.items() if key[0] == name}
    assert {(name, check.promise) for check in checks} == set(expected), checks
    assert all(check.status is Status.NOT_EXERCISED for check in checks), checks


def example_options(name: str) -> str:
    """Return the required options with a value each."""
    options = find_transform(name).options.values()
    texts = [f"{option.name}={next(iter(option.choices), 'a')}" for option in options if option.is_required]
    return f"({', '.join(texts)})" if texts else ""
