import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from plugin_distribution import write_distribution

from quantkit.errors import UnavailableError, UsageError
from quantkit.registry import Registry, check_fields


@dataclass(frozen=True)
class Shape:
    name: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    modules = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def registry() -> Registry[Shape]:
    return Registry("shape", Shape, [Shape("square"), Shape("circle")])


def add(folder: Path, name: str, source: str, value: str = "SHAPE", entry: str | None = None) -> None:
    source = f"from types import SimpleNamespace\nfrom {__name__} import Shape\n{source}"
    write_distribution(folder, name, source, {"quantkit.shapes": {entry or name: f"{name}:{value}"}})


def test_built_in_objects_keep_their_order(registry: Registry[Shape]) -> None:
    assert list(registry.objects()) == ["square", "circle"]
    assert registry.find("circle") == Shape("circle")
    assert registry.problems() == ()


def test_references_are_imported_on_first_use(folder: Path) -> None:
    (folder / "lazy_shapes.py").write_text(
        f"from {__name__} import Shape\nSQUARE, CIRCLE = Shape('square'), Shape('circle')"
    )
    references = {"square": "lazy_shapes:SQUARE", "circle": "lazy_shapes:CIRCLE"}
    registry: Registry[Shape] = Registry("shape", f"{__name__}:Shape", references)
    add(folder, "plugin_star", "SHAPE = Shape('star')")
    assert "lazy_shapes" not in sys.modules
    assert registry.find("circle") == Shape("circle")
    assert list(registry.objects()) == ["square", "circle", "star"]


def test_plugin_is_found_by_the_name_of_its_object(folder: Path, registry: Registry[Shape]) -> None:
    add(folder, "plugin_star", "SHAPE = Shape('star')")
    assert registry.find("star") == Shape("star")
    assert list(registry.objects()) == ["square", "circle", "star"]


def test_built_in_name_needs_no_search(registry: Registry[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_load_plugins", lambda: pytest.fail("the entry points were searched"))
    assert registry.find("square").name == "square"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", r"plugin_broken\.py, line 3: ZeroDivisionError: division by zero"),
        ("SHAPE =", r"plugin_broken\.py, line 3: SyntaxError"),
        ("import no_such_module", r"plugin_broken\.py, line 3: ModuleNotFoundError"),
        ("SHAPE = SimpleNamespace(name='star')", "the value is of type SimpleNamespace, not Shape"),
        ("raise SystemExit(3)", r"plugin_broken\.py, line 3: SystemExit: 3"),
        ("", "AttributeError"),
        ("SHAPE = Shape(3)", "the field 'name' has the value 3; the allowed value is a name"),
    ],
)
def test_broken_plugin_is_skipped_with_its_reason(
    folder: Path, registry: Registry[Shape], source: str, reason: str
) -> None:
    add(folder, "plugin_broken", source, entry="broken")
    add(folder, "plugin_star", "SHAPE = Shape('star')")
    assert list(registry.objects()) == ["square", "circle", "star"]
    (problem,) = registry.problems()
    assert problem.startswith("shape plugin plugin_broken:SHAPE of plugin_broken cannot be loaded: ")
    with pytest.raises(UnavailableError, match=reason):
        registry.find("broken")


@pytest.mark.parametrize(("name", "origin"), [("square", "quantkit"), ("star", "plugin_first:SHAPE of plugin_first")])
def test_second_object_of_a_name_is_skipped_and_both_origins_are_named(
    folder: Path, registry: Registry[Shape], name: str, origin: str
) -> None:
    add(folder, "plugin_first", "SHAPE = Shape('star')")
    add(folder, "plugin_second", f"SHAPE = Shape({name!r})")
    assert list(registry.objects()) == ["square", "circle", "star"]
    assert registry.problems() == (
        "shape plugin plugin_second:SHAPE of plugin_second cannot be loaded: "
        f"the name {name!r} is registered by {origin}",
    )


def test_unknown_name_has_a_suggestion_or_the_list(registry: Registry[Shape]) -> None:
    with pytest.raises(UsageError, match="'circel' is not a shape") as caught:
        registry.find("circel")
    assert caught.value.hint == "did you mean 'circle'?"
    with pytest.raises(UsageError) as caught:
        registry.find("xyz")
    assert caught.value.hint == "use one of square, circle"


def test_error_of_an_unknown_name_includes_the_problems_of_plugins(folder: Path, registry: Registry[Shape]) -> None:
    add(folder, "plugin_broken", "1 / 0", entry="stars")
    with pytest.raises(UsageError, match="'star' is not a shape") as caught:
        registry.find("star")
    assert "plugin_broken:SHAPE of plugin_broken cannot be loaded" in caught.value.hint
    assert "ZeroDivisionError" in caught.value.hint
    assert list(registry.plugin_problems()) == ["stars"]


def test_object_that_fails_the_check_of_the_registry_is_skipped(folder: Path) -> None:
    def check(shape: Shape) -> None:
        check_fields(shape, {"name": ("a lower-case text", str.islower)})

    registry = Registry("shape", Shape, [Shape("square")], check)
    add(folder, "plugin_star", "SHAPE = Shape('Star')")
    assert list(registry.objects()) == ["square"]
    (problem,) = registry.problems()
    assert problem.endswith("the field 'name' has the value 'Star'; the allowed value is a lower-case text")
