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
from quantkit.transforms.folding._channels import Affine, described, find_foldable, is_constant, not_constant
from quantkit.transforms.registry import transform

GLOBAL = "BatchNormWithGlobalNormalization"
FUSED = "FusedBatchNorm|FusedBatchNormV2|FusedBatchNormV3"


@transform
def fold_old_batch_norms(graph: Graph) -> Outcome:
    """Replace batch norm ops by scaled weights and a bias.

    At inference a batch norm is a factor and a summand per channel: the layer before it takes the factor into its
    weights, and a BiasAdd is left.

    Before:  conv(x, weights) -> FusedBatchNorm(gamma, beta, mean, variance)
    After:   conv(x, weights * scale) -> BiasAdd(offset)

    Options: none. Run fold_constants first where the statistics are computed.

    Folds BatchNormWithGlobalNormalization and FusedBatchNorm, V2 and V3, behind Conv2D, DepthwiseConv2dNative,
    Conv2DBackpropInput and MatMul, with BiasAdd, Add or Sub between, also through concat, BatchToSpaceND, Identity,
    and a Reshape that keeps the last dimension. The BiasAdd takes the name of the norm.

    Skips when the norm is in training mode, its other outputs are read, its statistics or the weights are not
    constant, or layer, bias sum or weights are read elsewhere or are ends of the graph.

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
    return _folded(graph, root, mean, variance, beta, scale, attribute(root, "variance_epsilon"))


@rule(op(FUSED)(any_(), const("gamma"), const("beta"), const("mean"), const("variance")))
def _fold_fused(
    graph: Graph, root: Node, gamma: Node, beta: Node, mean: Node, variance: Node
) -> list[Node] | Skip | None:
    if attribute(root, "is_training"):
        return Skip("it is in training mode: its statistics are those of each batch")
    if any(use.slot >= 0 and use.node.inputs[use.slot].port for use in graph.node_uses.get(root.name, ())) or any(
        edge.node == root.name and edge.port for edge in graph.outputs
    ):
        return Skip("its other outputs, the batch statistics, are read")
    return _folded(graph, root, mean, variance, beta, gamma, attribute(root, "epsilon"))


@rule(op(f"{GLOBAL}|{FUSED}"))
def _explain_norm(graph: Graph, root: Node) -> Skip | None:
    """A norm that has no constant statistics."""
    if root.name in graph.input_names:
        return None
    roles = ("mean", "variance", "beta", "gamma") if root.op == GLOBAL else ("gamma", "beta", "mean", "variance")
    for edge, role in zip(root.inputs[1:], roles, strict=False):
        if not is_constant(graph, edge):
            return Skip(not_constant(graph, edge.node, f"its {role}"))
    return None


def _folded(
    graph: Graph, root: Node, mean: Node, variance: Node, beta: Node, gamma: Node | None, epsilon: float
) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    source = root.inputs[0]
    found = find_foldable(graph, source, root)
    if found is None:
        before = graph[source.node]
        return Skip(f"it follows {before.name} ({before.op}), which has no weights that could take the scale")
    if isinstance(found, Skip):
        return found
    if channel_axis(root, found.rank) != found.axis:
        return Skip(f"its data_format is not that of {found.name}")
    statistics = [node for node in (mean, variance, beta, gamma) if node is not None]
    for node in statistics:
        if node.value.shape != (found.num_channels,):
            return Skip(f"{described(node)} is not one value for each of the {found.num_channels} channels")
    affine = _affine(*(node.value.array for node in statistics), epsilon=epsilon)
    if affine is None:
        return Skip("its statistics do not make finite factors")
    return found.fold(affine, root.name)


def _affine(mean: Array, variance: Array, beta: Array, gamma: Array | None = None, *, epsilon: float) -> Affine | None:
    """The factor and summand of a norm, in the arithmetic of its statistics; None where they are not finite.

    Args:
        mean, variance, beta, gamma: (c,).
        epsilon: added to the variance.
    """
    one = variance.dtype.type(1)
    with np.errstate(all="ignore"):
        scale = one / np.sqrt(variance + variance.dtype.type(epsilon))
        if gamma is not None:
            scale = scale * gamma
        offset = (-mean * scale) + beta
    return Affine(scale, offset) if np.isfinite(scale).all() and np.isfinite(offset).all() else None
