"""Defaults that a node does not mention."""

import pytest

from quantkit.errors import GraphError
from quantkit.ir.functions import Function, Library
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.transforms.registry import find_transform

add_default_attributes = find_transform("add_default_attributes")


def test_defaults_are_added_and_nothing_is_overwritten() -> None:
    conv = Node("y", "Conv2D", (Edge("x"), Edge("w")), attrs={"data_format": b"NCHW", "T": DType.HALF})
    made = add_default_attributes(Graph.of([conv, Node("x", "Placeholder"), Node("w", "Placeholder")]))["y"]
    assert made.attrs["data_format"] == b"NCHW"
    assert made.attrs["T"] is DType.HALF
    assert made.attrs["dilations"] == (1, 1, 1, 1)
    assert "strides" not in made.attrs, "there is no default for strides"


def test_it_is_idempotent_and_keeps_the_order() -> None:
    graph = Graph.of([Node("b", "Relu", (Edge("a"),)), Node("a", "Placeholder")])
    once = add_default_attributes(graph)
    assert list(once.nodes) == ["b", "a"]
    assert add_default_attributes(once) == once


def test_functions_of_the_library_are_ops() -> None:
    library = Library({"my_function": Function("my_function", Graph.of([]), {})})
    graph = Graph.of([Node("y", "my_function")], library=library)
    assert add_default_attributes(graph) == graph


def test_an_unknown_op_is_named_with_near_ones() -> None:
    with pytest.raises(GraphError, match=r"Op type not registered 'Conv2d' in binary \(node 'y'\)") as caught:
        add_default_attributes(Graph.of([Node("y", "Conv2d")]))
    assert "'Conv2D'" in caught.value.hint
