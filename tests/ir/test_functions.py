"""Libraries: functions that are decoded when they are decoded_names for."""

import pytest

from quantkit.ir.functions import Function, FunctionName, Library, StoredFunction, function_names
from quantkit.ir.graph import Graph, Node

BODY = Graph.of([Node("a", "_Arg")], ["a"], ["a"])
SAME = Function("same", BODY, {"a": None})


def test_function_is_decoded_once_on_first_access() -> None:
    decoded_names: list[str] = []

    def load(name: str, library: Library[Graph], attrs: object) -> Function[Graph]:
        decoded_names.append(name)
        assert "same" in library
        return SAME

    library = Library({"same": StoredFunction(b"..", load)})
    assert (list(library), decoded_names) == (["same"], [])
    assert library["same"] is library["same"] is SAME
    assert decoded_names == ["same"]
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


def test_function_names_of_attributes() -> None:
    attrs = {"f": FunctionName("one"), "branches": (FunctionName("two"), FunctionName("three")), "N": 1}
    assert function_names(attrs) == ("one", "two", "three")
