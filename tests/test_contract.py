"""What every transform promises: a file, a list entry, documentation, goldens and a test of its own name."""

from pathlib import Path

import pytest

import quantkit.transforms
from quantkit.recipes import parse
from quantkit.recipes.contract import broken_promises
from quantkit.transforms.registry import REGISTRY, find_transform

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "quantkit" / "transforms"
OURS = sorted(name for name, one in REGISTRY.items() if one.function.__module__.startswith("quantkit.transforms."))


def test_the_list_is_complete() -> None:
    files = {path.stem for path in FOLDER.glob("*/*.py") if not path.stem.startswith("_")}
    assert files == set(OURS) == set(quantkit.transforms.__all__)


@pytest.mark.parametrize("name", OURS)
def test_one_name_in_five_places(name: str) -> None:
    group, _, module = find_transform(name).function.__module__.removeprefix("quantkit.transforms.").partition(".")
    assert module == name
    assert (ROOT / "tests" / "transforms" / group / f"test_{name}.py").exists()
    assert list((ROOT / "tests" / "golden" / name).glob("*.txt"))
    assert parse(f"{name}{example_options(name)}").steps[0].name == name


@pytest.mark.parametrize("name", OURS)
def test_it_keeps_what_every_transform_promises(name: str) -> None:
    assert not broken_promises(find_transform(name))


def example_options(name: str) -> str:
    """Required options with some value."""
    options = find_transform(name).options.values()
    words = [f"{option.name}={next(iter(option.choices), 'a')}" for option in options if option.is_required]
    return f"({', '.join(words)})" if words else ""
