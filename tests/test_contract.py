"""What every transform promises: a file, a list entry, documentation, goldens and a test of its own name."""

import re
from pathlib import Path

import pytest

import quantkit.transforms
from quantkit.recipe import parse
from quantkit.transforms.registry import REGISTRY, find

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "quantkit" / "transforms"
OURS = sorted(name for name, one in REGISTRY.items() if one.function.__module__.startswith("quantkit.transforms."))


def test_the_list_is_complete() -> None:
    files = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_")} - {"plugins", "registry"}
    assert files == set(OURS) == set(quantkit.transforms.__all__)


@pytest.mark.parametrize("name", OURS)
def test_one_name_in_five_places(name: str) -> None:
    assert find(name).function.__module__ == f"quantkit.transforms.{name}"
    assert (ROOT / "tests" / "transforms" / f"test_{name}.py").exists()
    assert list((ROOT / "tests" / "golden" / name).glob("*.txt"))
    assert parse(f"{name}{example_options(name)}").steps[0].name == name


@pytest.mark.parametrize("name", OURS)
def test_the_docstring_has_its_sections(name: str) -> None:
    transform = find(name)
    doc = transform.doc
    assert re.search(r"^Before:", doc, re.MULTILINE), "a picture of before"
    assert re.search(r"^After:", doc, re.MULTILINE), "and of after"
    assert re.search(r"^Declines when ", doc, re.MULTILINE), "when it declines"
    documented = set(re.findall(r"^    (\w+): ", doc.partition("Options:")[2].partition("\n\n")[0], re.MULTILINE))
    assert documented == set(transform.options)


def example_options(name: str) -> str:
    """Required options with some value."""
    words = [f"{key}=a" for key, option in find(name).options.items() if option.is_required]
    return f"({', '.join(words)})" if words else ""
