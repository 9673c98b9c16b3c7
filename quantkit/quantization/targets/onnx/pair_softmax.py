"""Softmax over two classes in ONNX models."""

from math import prod

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Tensor
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes

# Fewest values for which one fast op is worth two further ones.
LEAST_VALUES = 512


def replace_pair_softmax(graph: Graph) -> Graph:
    """Replace each Softmax over two classes by the Sigmoid of the difference.

    softmax(a, b) == sigmoid(a - b, b - a)

        before:  x -> Softmax
        after:   x -> Gather([1, 0]) -> Sub(x, _) -> Sigmoid

    OpenVINO 2026.4 computes a Softmax row by row, and a row of two classes takes as long as one of sixteen.
    """
    nodes = [node for node in graph.nodes.values() if node.op == "Softmax"]
    shapes, draft = infer_shapes(graph) if nodes else {}, Draft(graph)
    for node in nodes:
        dims = shapes[node.inputs[0]].dims if node.inputs[0] in shapes else None
        axis = node.attrs.get("axis", -1)
        assert isinstance(axis, int)
        if dims is None or not dims or dims[axis] != 2 or prod(size or 0 for size in dims) < LEAST_VALUES:
            continue
        name = free_name(graph, f"{node.name}/other")
        order = Node(f"{name}/order", "Constant", attrs={"value": Tensor.of(np.array([1, 0], np.int64))})
        other = Node(name, "Gather", (node.inputs[0], Edge(order.name)), attrs={"axis": axis})
        difference = Node(f"{name}/difference", "Sub", (node.inputs[0], Edge(name)))
        sigmoid = node.with_(op="Sigmoid", inputs=(Edge(difference.name),), attrs={})
        draft.replace(node.name, order, other, difference, sigmoid)
    return draft.graph()
