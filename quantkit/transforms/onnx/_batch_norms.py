"""Rules that fold factors and offsets per channel into the layers of ONNX graphs before them.

BatchNormalization:  (x W + b - mean) / sqrt(variance + epsilon) gamma + beta
=  x (W s) + (b - mean) s + beta        s = gamma / sqrt(variance + epsilon)
"""

from functools import partial
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules
from quantkit.ir.tensor import Array
from quantkit.transforms.onnx._facts import GraphFacts, new_constant, num_outputs
from quantkit.transforms.onnx._layers import LinearLayer, find_layer

Rewritten = list[Node] | Skip | None


def fold_batch_norms(graph: Graph) -> Outcome:
    """Fold BatchNormalization, factors and offsets per channel into the layers before them."""
    facts = GraphFacts.of(graph)
    return apply_rules(
        graph,
        Rule(op("BatchNormalization"), _fold_norm, ("root",)),
        Rule(op("Mul|Div"), partial(_fold_factor, facts), ("root",), "fold_factor"),
        Rule(op("Add|Sub"), partial(fold_offset, facts), ("root",), "fold_offset"),
    )


def fold_biases(graph: Graph) -> Outcome:
    """Fold offsets per channel into the bias of the layers before them."""
    facts = GraphFacts.of(graph)
    return apply_rules(graph, Rule(op("Add|Sub"), partial(fold_offset, facts), ("root",), "fold_offset"))


def _fold_norm(graph: Graph, root: Node) -> Rewritten:
    if root.name in graph.input_names or len(root.inputs) != 5:
        return None
    if root.attrs.get("training_mode") or num_outputs(root) > 1:
        return Skip("the node normalizes with batch statistics, or returns them")
    if root.attrs.get("spatial", 1) != 1:
        return Skip("the statistics are not per channel")
    layer = find_layer(graph, root.inputs[0], root, scales=True)
    if not isinstance(layer, LinearLayer):
        return layer
    tensors = [graph.constant_of(edge) for edge in root.inputs[1:]]
    if any(edge.node in graph.input_names for edge in root.inputs[1:]):
        return Skip("a parameter is a graph input")
    values = [tensor.array.astype(np.float64).reshape(-1) for tensor in tensors if tensor is not None]
    if len(values) != 4 or any(value.size != layer.num_channels for value in values):
        return Skip("a parameter is not constant, or not one value per channel")
    if layer.node.op == "MatMul":
        return Skip(f"{layer.node.name} (MatMul) has no bias")
    gamma, beta, mean, variance = values
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + root.attrs.get("epsilon", 1e-5))
    return _fold(layer, scale, beta - mean * scale)


def _fold_factor(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    pair = _find_constant(facts, graph, root, "Mul", "factor")
    if not isinstance(pair, tuple):
        return pair
    layer, values = pair
    with np.errstate(all="ignore"):
        scale = 1 / values.astype(np.float64) if root.op == "Div" else values
    return _fold(layer, scale, None)


def fold_offset(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Fold a constant that is added to a layer, or subtracted from it, into the bias of the layer."""
    pair = _find_constant(facts, graph, root, "Add", "value")
    if not isinstance(pair, tuple):
        return pair
    layer, values = pair
    signed = -values if root.op == "Sub" else values
    if layer.has_bias_input:
        return _fold(layer, None, signed)
    return _as_gemm(graph, layer, root, signed) if _rank(facts, layer) == 2 else None


def _find_constant(
    facts: GraphFacts, graph: Graph, root: Node, commutative: str, noun: str
) -> tuple[LinearLayer, Array] | Skip | None:
    """Return the layer before an op with a constant, and the constant by channel.

    Args:
        facts: facts about the graph.
        graph: current graph.
        root: the op.
        commutative: op type whose first input may be the constant.
        noun: term for an element of the constant, for the reason.
    """
    if root.name in graph.input_names or len(root.inputs) != 2:
        return None
    for slot in (1, 0) if root.op == commutative else (1,):
        constant = graph.constant_of(root.inputs[slot])
        if constant is None or root.inputs[slot].node in graph.input_names:
            continue
        layer = find_layer(graph, root.inputs[1 - slot], root, scales=commutative == "Mul")
        if not isinstance(layer, LinearLayer):
            return layer
        values = layer.channel_values(constant, _rank(facts, layer))
        if values is None:
            return Skip(f"{root.inputs[slot]} is not one {noun} per channel of {layer.node.name}")
        return layer, values
    return None


def _as_gemm(graph: Graph, layer: LinearLayer, root: Node, bias: Array) -> Rewritten:
    """Return the Gemm that computes a product of two matrices and the sum after it."""
    constant = new_constant(graph, f"{root.name}/bias", np.ascontiguousarray(bias))
    return [constant, layer.node.with_(op="Gemm", inputs=(*layer.node.inputs, Edge(constant.name)))]


def _rank(facts: GraphFacts, layer: LinearLayer) -> int | None:
    """Return the rank of the output of a layer."""
    rank = layer.rank()
    if rank is not None:
        return rank
    dims = facts.dims(layer.node.inputs[0])
    return None if dims is None else len(dims)


def _fold(layer: LinearLayer, scale: Any, offset: Any) -> Rewritten:
    if scale is not None and not np.isfinite(scale).all():
        return Skip("a factor is not finite")
    return layer.fold(scale, offset)
