"""Libraries: functions that are decoded when they are asked for."""

import pytest

from quantkit.ir.functions import Function, FunctionName, Library, Stored, called
from quantkit.ir.graph import Graph, Node

BODY = Graph.of([Node("a", "_Arg")], ["a"], ["a"])
SAME = Function("same", BODY, {"a": None})


def test_a_function_is_decoded_once_and_when_it_is_asked_for() -> None:
    asked: list[str] = []

    def load(name: str, library: Library, attrs: object) -> Function:
        asked.append(name)
        assert "same" in library
        return SAME

    library = Library({"same": Stored(b"..", load)})
    assert (list(library), asked) == (["same"], [])
    assert library["same"] is library["same"] is SAME
    assert asked == ["same"]
    with pytest.raises(KeyError):
        library["other"]


def test_libraries_are_equal_where_their_functions_are() -> None:
    assert Library({"same": SAME}) == Library({"same": Function("same", BODY, {"a": None})})
    assert Library({"same": SAME}) != Library({"same": Function("same", BODY, {"b": None})})
    assert Library(gradients={"a": "b"}) != Library()


def test_functions_are_added_and_removed() -> None:
    library = Library({"same": SAME}, {"same": "gradient"}, b"extra")
    more = library.with_(Function("other", BODY, {"a": None}))
    assert (list(more), more.gradients, more.extra) == (["same", "other"], {"same": "gradient"}, b"extra")
    less = more.without(["same"])
    assert (list(less), less.gradients, less.extra) == (["other"], {}, b"extra")
    assert list(library) == ["same"]


def test_what_a_node_calls() -> None:
    attrs = {"f": FunctionName("one"), "branches": (FunctionName("two"), FunctionName("three")), "N": 1}
    assert called(attrs) == ("one", "two", "three")
