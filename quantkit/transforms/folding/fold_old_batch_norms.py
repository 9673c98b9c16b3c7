"""Fold batch norm ops into the layers before them.

scale  = gamma / sqrt(variance + epsilon)
offset = beta - mean scale
norm(x * W) == x * (W scale) + offset
"""

import numpy as np

from quantkit.ir.graph import Graph, Node
from quantkit.ir.pattern import any_, const, op
from quantkit.ir.rewrite import Outcome, Skip, apply_rules, rule
from quantkit.ir.tensor import Array
from quantkit.ops.layers import channel_axis
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.folding._channels import (
    Affine,
    describe_constant,
    explain_not_constant,
    find_foldable,
    is_constant,
)
from quantkit.transforms.registry import transform

GLOBAL = "BatchNormWithGlobalNormalization"
FUSED = "FusedBatchNorm|FusedBatchNormV2|FusedBatchNormV3"


@transform
def fold_old_batch_norms(graph: Graph) -> Outcome:
    """Replace batch norm ops by scaled weights and a bias.

    At inference, a batch norm is a scale and an offset per channel: the scale is folded into the
    weights of the layer before it, and a BiasAdd adds the offset.

    Before:  conv(x, weights) -> FusedBatchNorm(gamma, beta, mean, variance)
    After:   conv(x, weights * scale) -> BiasAdd(offset)

    Options: none. Run fold_constants first if the statistics are computed.

    Folds BatchNormWithGlobalNormalization and FusedBatchNorm, V2 and V3, after Conv2D,
    DepthwiseConv2dNative, Conv2DBackpropInput and MatMul, with BiasAdd, Add or Sub between, also
    through concat, BatchToSpaceND, Identity, and a Reshape that keeps the last dimension. The
    BiasAdd takes the name of the norm.

    Skips if the norm is in training mode, if its other outputs have consumers, if its statistics or
    the weights are not constant, or if the layer, its bias or its weights have other consumers or
    are graph inputs or outputs.

    Example:
        fold_old_batch_norms
        inputs: x
        outputs: y
        x = Placeholder[1x5x5x3]()
        w = Const[3x3x3x4]()
        mean = Const([0.5, 0.25, -0.5, 1.0])
        variance = Const([1.0, 0.5, 2.0, 0.25])
        beta = Const([1.0, -1.0, 0.0, 0.5])
        gamma = Const([1.0, 2.0, 0.5, -1.0])
        conv = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
        y = FusedBatchNorm(conv, gamma, beta, mean, variance, epsilon=0.001, is_training=false)

    Example:
        fold_old_batch_norms
        inputs: x
        outputs: y, z
        x = Placeholder[1x5x5x3]()
        w = Const[3x3x3x4]()
        m = Const([0.1, 0.2, -0.3, 0.4])
        v = Const([1.0, 0.5, 2.0, 0.25])
        beta = Const([1.0, -1.0, 0.0, 0.5])
        gamma = Const([1.0, 2.0, 0.5, -1.0])
        a = Conv2D(x, w)
        y = BatchNormWithGlobalNormalization(a, m, v, beta, gamma, scale_after_normalization=true, variance_epsilon=0.1)
        w2 = Const[3x3x3x4]()
        b = Conv2D(x, w2)
        deviation = Sqrt(v)
        z = FusedBatchNorm(b, gamma, beta, m, deviation, epsilon=0.001, is_training=false)
    """
    return apply_rules(graph, _fold_global, _fold_fused, _explain_norm)


@rule(op(GLOBAL)(any_(), const("mean"), const("variance"), const("beta"), const("gamma")))
def _fold_global(
    graph: Graph, root: Node, mean: Node, variance: Node, beta: Node, gamma: Node
) -> list[Node] | Skip | None:
    scale = gamma if attribute(root, "scale_after_normalization") else None
    return _fold_norm(graph, root, mean, variance, beta, scale, attribute(root, "variance_epsilon"))


@rule(op(FUSED)(any_(), const("gamma"), const("beta"), const("mean"), const("variance")))
def _fold_fused(
    graph: Graph, root: Node, gamma: Node, beta: Node, mean: Node, variance: Node
) -> list[Node] | Skip | None:
    if attribute(root, "is_training"):
        return Skip("BatchNorm is in training mode: it normalizes with batch statistics")
    if any(use.slot >= 0 and use.node.inputs[use.slot].port for use in graph.node_uses.get(root.name, ())) or any(
        edge.node == root.name and edge.port for edge in graph.outputs
    ):
        return Skip("the other outputs, the batch statistics, have consumers")
    return _fold_norm(graph, root, mean, variance, beta, gamma, attribute(root, "epsilon"))


@rule(op(f"{GLOBAL}|{FUSED}"))
def _explain_norm(graph: Graph, root: Node) -> Skip | None:
    """Skip a norm whose statistics are not constant."""
    if root.name in graph.input_names:
        return None
    roles = ("mean", "variance", "beta", "gamma") if root.op == GLOBAL else ("gamma", "beta", "mean", "variance")
    for edge, role in zip(root.inputs[1:], roles, strict=False):
        if not is_constant(graph, edge):
            return Skip(explain_not_constant(graph, edge.node, f"the {role}"))
    return None


def _fold_norm(
    graph: Graph, root: Node, mean: Node, variance: Node, beta: Node, gamma: Node | None, epsilon: float
) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    source = root.inputs[0]
    target = find_foldable(graph, source, root)
    if target is None:
        producer = graph[source.node]
        return Skip(f"the input is {producer.name} ({producer.op}), which has no weights to scale")
    if isinstance(target, Skip):
        return target
    if channel_axis(root, target.rank) != target.axis:
        return Skip(f"data_format differs from that of {target.name}")
    statistics = [node for node in (mean, variance, beta, gamma) if node is not None]
    for node in statistics:
        if node.value.shape != (target.num_channels,):
            return Skip(f"{describe_constant(node)} is not one value for each of the {target.num_channels} channels")
    affine = _compute_affine(*(node.value.array for node in statistics), epsilon=epsilon)
    if affine is None:
        return Skip("the statistics give factors that are not finite")
    return target.fold(affine, root.name)


def _compute_affine(
    mean: Array, variance: Array, beta: Array, gamma: Array | None = None, *, epsilon: float
) -> Affine | None:
    """Return scale and offset of a norm in the type of its statistics; None if not finite.

    Args:
        mean, variance, beta, gamma: (c,).
        epsilon: summand of the variance.
    """
    with np.errstate(all="ignore"):
        scale = variance.dtype.type(1) / np.sqrt(variance + variance.dtype.type(epsilon))
        if gamma is not None:
            scale = scale * gamma
        offset = (-mean * scale) + beta
    return Affine(scale, offset) if np.isfinite(scale).all() and np.isfinite(offset).all() else None
