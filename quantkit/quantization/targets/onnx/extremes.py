"""Maxima and minima over axes before a quantization in ONNX models."""

from math import inf

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Tensor
from quantkit.ops.table import LAYER, Fact, find_ops

EXTREMES = frozenset({"ReduceMax", "ReduceMin"})
# Ops that OpenVINO does not fuse with the op before them. Values before a Cast or a Gather may be integers.
SEPARATE_OPS = find_ops(LAYER | Fact.RECURRENT, "onnx")
SEPARATE_OPS |= {"DequantizeLinear", "QuantizeLinear", "Max", "Cast", "Gather"}


def separate_extremes(graph: Graph) -> Graph:
    """Insert a Max with -inf, which returns its input, after a maximum or minimum over axes that is quantized.

        before:  ReduceMax -> QuantizeLinear
        after:   ReduceMax -> Max(-inf) -> QuantizeLinear

    OpenVINO 2026.4 fuses the quantization with the reduction, whose kernel then stores float values as integers before
    it scales them. Relu, views and factors between both are fused or moved, a Max is not.
    """
    draft = Draft(graph)
    quantized = (node.inputs[0] for node in graph.nodes.values() if node.op == "QuantizeLinear")
    for name in dict.fromkeys(_find_extreme(graph, edge) for edge in quantized):
        if name:
            copy = free_name(graph, f"{name}/reduced")
            limit = Node(f"{copy}/limit", "Constant", attrs={"value": Tensor.of(np.array(-inf, np.float32))})
            maximum = Node(name, "Max", (Edge(copy), Edge(limit.name)))
            draft.replace(name, graph[name].with_(name=copy), limit, maximum)
    return draft.graph()


def _find_extreme(graph: Graph, edge: Edge) -> str:
    """Return the reduction with which OpenVINO fuses the quantization of an edge; empty without a reduction."""
    node = graph[edge.node]
    while node.op not in EXTREMES:
        operands = [source for source in node.inputs if source.node and graph.constant_of(source) is None]
        if node.op in SEPARATE_OPS or len(operands) != 1:
            return ""
        node = graph[operands[0].node]
    return node.name
