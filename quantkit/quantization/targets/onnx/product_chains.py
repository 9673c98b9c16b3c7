"""Chains of int8 matrix products in ONNX models."""

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.table import Fact, find_ops
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes

PRODUCTS = find_ops(Fact.PRODUCT, "onnx")
# Ops that OpenVINO computes in integers, or folds into the quantization, between a product and a QuantizeLinear.
FOLDED_OPS = ("Relu", "Clip", "Add", "Sub", "Mul", "Div", "Identity")


def separate_products(graph: Graph) -> Graph:
    """Insert a LeakyRelu with alpha = 1, which returns its input, between a product and its QuantizeLinear.

        before:  MatMul -> QuantizeLinear -> DequantizeLinear -> MatMul
        after:   MatMul -> LeakyRelu -> QuantizeLinear -> DequantizeLinear -> MatMul

    OpenVINO 2026.4 fuses a chain of small matrix products into one kernel. If the bias of a product is missing or has
    equal values, the kernel quantizes the int32 sums as if they were floats. OpenVINO does not fuse a LeakyRelu
    into such a kernel, but into the product. Only products of two matrices are fused.
    """
    products = {name for name, node in graph.nodes.items() if node.op in PRODUCTS and _is_quantized(graph, node)}
    if len(products) < 2:
        return graph
    shapes = infer_shapes(graph)
    matrices = {name for name in products if shapes.get(Edge(name), UNKNOWN).rank in (None, 2)}
    if len(matrices) < 2:
        return graph
    draft = Draft(graph)
    for node in graph.nodes.values():
        if node.op == "QuantizeLinear" and _find_product(graph, node.inputs[0]) in matrices:
            identity = Node(free_name(graph, f"{node.name}/float"), "LeakyRelu", node.inputs[:1], attrs={"alpha": 1.0})
            draft.replace(node.name, identity, node.with_input(0, Edge(identity.name)))
    return draft.graph()


def _is_quantized(graph: Graph, product: Node) -> bool:
    return all(graph[edge.node].op == "DequantizeLinear" for edge in product.inputs[:2])


def _find_product(graph: Graph, edge: Edge) -> str:
    """Return the product whose int32 sums reach an edge in OpenVINO; empty without a product."""
    node = graph[edge.node]
    while node.op not in PRODUCTS:
        operands = [edge for edge in node.inputs if not _is_uniform(graph, edge)]
        if node.op not in FOLDED_OPS or len(operands) != 1:
            return ""
        node = graph[operands[0].node]
    biases = node.inputs[2:]
    return node.name if all(_is_uniform(graph, edge) for edge in biases) else ""


def _is_uniform(graph: Graph, edge: Edge) -> bool:
    """Return True for a constant, or a dequantized constant, of equal values."""
    values = _constant_values(graph, edge)
    return values is not None and values.size > 0 and np.allclose(values, values.flat[0])


def _constant_values(graph: Graph, edge: Edge) -> Array | None:
    if (constant := graph.constant_of(edge)) is not None:
        return constant.array
    node = graph[edge.node]
    inputs = [graph.constant_of(edge) for edge in node.inputs] if node.op == "DequantizeLinear" else []
    arrays = [constant.array for constant in inputs if constant is not None]
    is_vector = len(arrays) == len(inputs) == 3 and arrays[0].ndim <= 1
    return (arrays[0].astype(np.float32) - arrays[2]) * arrays[1] if is_vector else None
