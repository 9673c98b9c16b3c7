"""Fold constant factors into the layers before them, and batch norms that consist of such factors.

(x * W) s          ==  x * (W s)
(x * W + b) s + o  ==  x * (W s) + (b s + o)
"""

import numpy as np

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import any_, commutative, const, op
from quantkit.ir.rewrite import Outcome, Skip, apply_rules, rule
from quantkit.ir.tensor import Array
from quantkit.transforms.folding._channels import (
    BIAS_OPS,
    Affine,
    Foldable,
    bias_slot,
    bias_values,
    describe_constant,
    explain_not_constant,
    find_foldable,
    is_computed_from_constants,
)
from quantkit.transforms.onnx import _batch_norms as onnx_batch_norms
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def fold_batch_norms(graph: Graph) -> Outcome:
    """Fold constant per-channel factors into the weights of the layer before them.

    A batch norm decomposed into Mul and Add reads and writes the tensor twice. Folding removes the
    Mul. A factor after a bias also scales the bias, and an Add after that is folded into the bias.

    Before:  conv(x, weights) -> Mul(scale) -> Add(offset)
    After:   conv(x, weights * scale) -> Add(offset)

    Options: none. Run fold_constants first, which computes one factor and one offset from the
    statistics.

    Folds after Conv2D, DepthwiseConv2dNative, Conv2DBackpropInput and MatMul, with BiasAdd, Add or
    Sub between, also through concat, BatchToSpaceND, Identity, and a Reshape that keeps the last
    dimension. The layer takes the name of the Mul.

    In ONNX graphs, folds BatchNormalization, factors and offsets into Conv, ConvTranspose, Gemm and
    MatMul; an offset becomes the bias of the layer.

    Skips if the layer, its bias or its weights have other consumers or are graph inputs or outputs,
    if the weights are not constant, or if the factor is not one finite number per channel.

    Example:
        fold_batch_norms
        inputs: x
        outputs: y
        x = Placeholder[1x5x5x3]()
        w = Const[3x3x3x4]()
        scale = Const([0.5, 2.0, -1.0, 3.0])
        offset = Const([1.0, 2.0, 3.0, 4.0])
        conv = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
        scaled = Mul(conv, scale)
        y = Add(scaled, offset)

    Example:
        fold_batch_norms
        inputs: x
        outputs: c, e
        x = Placeholder[1x5x5x3]()
        w = Const[3x3x3x4]()
        mean = Const([1.0, 2.0, 3.0, 4.0])
        deviation = Const([1.0, 2.0, 4.0, 8.0])
        beta = Const([1.0, -1.0, 0.5, 0.0])
        conv = Conv2D(x, w)
        a = BiasAdd(conv, mean)
        b = RealDiv(a, deviation)
        c = AddV2(b, beta)
        scale = Rsqrt(deviation)
        v = Const[3x3x3x4]()
        conv2 = Conv2D(x, v)
        d = Mul(conv2, scale)
        e = AddV2(d, beta)

    Example:
        fold_batch_norms
        dialect: onnx
        inputs: x
        outputs: y, z
        x = Placeholder[1x3x5x5]()
        w = Constant[4x3x3x3]()
        gamma = Constant([0.5, 2.0, -1.0, 3.0])
        beta = Constant([1.0, 2.0, 3.0, 4.0])
        mean = Constant([0.5, -0.5, 0.25, 0.0])
        variance = Constant([1.0, 4.0, 0.25, 2.0])
        conv = Conv(x, w, pads=[1, 1, 1, 1])
        y = BatchNormalization(conv, gamma, beta, mean, variance, epsilon=0.001)
        v = Constant[2x3x1x1]()
        factor = Constant([[[2.0]], [[0.5]]])
        offset = Constant(1.5)
        other = Conv(x, v)
        scaled = Mul(other, factor)
        z = Add(scaled, offset)
    """
    if graph.dialect == onnx.DIALECT:
        return onnx_batch_norms.fold_batch_norms(graph)
    return apply_rules(graph, _fold_factor, _fold_divisor, _join_sums, _explain_factor)


@rule(commutative("Mul")(any_(), const("factor")))
def _fold_factor(graph: Graph, root: Node, factor: Node) -> list[Node] | Skip | None:
    """Fold ``s`` of ``y s`` into the layer that produces ``y``."""
    slot = 0 if root.inputs[1].node == factor.name else 1
    return _fold_scale(graph, root, root.inputs[slot], factor, is_divisor=False)


@rule(op("RealDiv|Div")(any_(), const("divisor")))
def _fold_divisor(graph: Graph, root: Node, divisor: Node) -> list[Node] | Skip | None:
    """Fold ``1 / d`` of ``y / d`` into the layer that produces ``y``."""
    return _fold_scale(graph, root, root.inputs[0], divisor, is_divisor=True)


def _fold_scale(graph: Graph, root: Node, source: Edge, factor: Node, *, is_divisor: bool) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    target = find_foldable(graph, source, root)
    if not isinstance(target, Foldable):
        return target
    values = target.per_channel(factor.value)
    if values is None:
        return Skip(f"{describe_constant(factor)} is not one factor per channel of {target.name}")
    scale = _reciprocal(values) if is_divisor else values
    if not np.isfinite(scale).all():
        return Skip(f"{factor.name} gives factors that are not finite")
    return target.fold(Affine(scale), root.name)


def _reciprocal(values: Array) -> Array:
    with np.errstate(divide="ignore", over="ignore"):
        return np.reciprocal(values)


@rule(op("|".join(BIAS_OPS)))
def _join_sums(graph: Graph, root: Node) -> list[Node] | None:
    """Replace ``(y + b) + o`` by ``y + (b + o)``."""
    slot = bias_slot(graph, root)
    if slot is None or root.name in graph.input_names:
        return None
    source = root.inputs[1 - slot]
    if source.node not in graph or graph[source.node].op not in BIAS_OPS:
        return None
    target = find_foldable(graph, source, root)
    if not isinstance(target, Foldable):
        return None
    values = bias_values(target, root, graph[root.inputs[slot].node])
    if values is None:
        return None
    return target.fold(Affine(offset=-values if root.op == "Sub" else values), root.name)


@rule(op("Mul|RealDiv|Div"))
def _explain_factor(graph: Graph, root: Node) -> Skip | None:
    """Skip a factor that fold_constants would make constant."""
    if len(root.inputs) != 2:
        return None
    for layer, factor in (root.inputs, root.inputs[::-1])[: 2 if root.op == "Mul" else 1]:
        if is_computed_from_constants(graph, factor.node) and find_foldable(graph, layer, root):
            return Skip(explain_not_constant(graph, factor.node, "the factor"))
    return None
