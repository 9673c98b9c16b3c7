"""Tests of add_default_attributes."""

import pytest

from quantkit.errors import GraphError
from quantkit.ir.functions import Function, Library
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.transforms.plugins import find_transform

add_default_attributes = find_transform("add_default_attributes")


def test_defaults_are_added_and_existing_values_stay() -> None:
    conv = Node("y", "Conv2D", (Edge("x"), Edge("w")), attrs={"data_format": b"NCHW", "T": DType.HALF})
    after = add_default_attributes(Graph.of([conv, Node("x", "Placeholder"), Node("w", "Placeholder")]))["y"]
    assert after.attrs["data_format"] == b"NCHW"
    assert after.attrs["T"] is DType.HALF
    assert after.attrs["dilations"] == (1, 1, 1, 1)
    assert "strides" not in after.attrs, "strides has no default"


def test_transform_is_idempotent_and_keeps_node_order() -> None:
    graph = Graph.of([Node("b", "Relu", (Edge("a"),)), Node("a", "Placeholder")])
    once = add_default_attributes(graph)
    assert list(once.nodes) == ["b", "a"]
    assert add_default_attributes(once) == once


def test_function_calls_stay_unchanged() -> None:
    library = Library({"my_function": Function("my_function", Graph.of([]), {})})
    graph = Graph.of([Node("y", "my_function")], library=library)
    assert add_default_attributes(graph) == graph


def test_unknown_op_is_rejected_with_suggestion() -> None:
    with pytest.raises(GraphError, match=r"Op type not registered 'Conv2d' in binary \(node 'y'\)") as caught:
        add_default_attributes(Graph.of([Node("y", "Conv2d")]))
    assert "'Conv2D'" in caught.value.hint
