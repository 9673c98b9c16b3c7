"""The original's folding of batch normalization ops into convolutions.

scale = gamma / sqrt(variance + epsilon)        offset = beta - mean * scale
"""

from collections.abc import Callable, Sequence

import numpy as np

from quantkit.compat.transforms.fold_batch_norms import (
    num_columns,
    require_float,
    scale_columns,
    shape_text,
)
from quantkit.compat.transforms.matching import (
    ANY,
    CONST,
    ClassicMatch,
    ClassicPattern,
    pattern,
    replace_matches,
)
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.tensor import Array, Tensor

NORM = "BatchNormWithGlobalNormalization|FusedBatchNorm"
CONV = pattern("Conv2D|DepthwiseConv2dNative", ANY, CONST)
STATISTICS = (CONST, CONST, CONST, CONST)
# Concat axis on which each convolution gets its own part of the statistics.
CHANNEL_AXIS = 3

Fold = Callable[[ClassicMatch], list[NodeDef]]


@classic_transform()
def fold_old_batch_norms(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Fold a batch norm into the convolution before it, without a check for other consumers.

    Raises:
        GraphError: the statistics have a wrong shape, or the original would never end: a constant
            of a match has other consumers, so the match is restored and matched again without end.
    """
    result = list(nodes)
    after_batch_to_space = pattern("BatchToSpaceND", CONV, CONST, CONST)
    after_concat = pattern("ConcatV2|Concat", CONV, CONV, CONST)
    for norm, fold in (
        (pattern(NORM, CONV, *STATISTICS), _fold_after_conv),
        (pattern(NORM, after_batch_to_space, *STATISTICS), _fold_after_batch_to_space),
        (pattern(NORM, after_concat, *STATISTICS), _fold_after_concat),
    ):
        result = _fold_until_stable(result, norm, fold)
    return result


def _fold_until_stable(nodes: list[NodeDef], norm: ClassicPattern, fold: Fold) -> list[NodeDef]:
    """Fold until the pattern no longer matches."""
    states: set[tuple[str, ...]] = set()
    matched_names: list[str] = []

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        matched_names.append(match.node.name)
        return fold(match)

    while True:
        matched_names.clear()
        nodes = replace_matches(nodes, norm, replace)
        if not matched_names:
            return nodes
        # Every fold removes a batch norm, so a repeated state means that no match was folded.
        state = tuple(f"{node.op} {node.name}" for node in nodes)
        if state in states:
            raise GraphError(
                f"the original never ends here: a constant folded for {matched_names[0]} has other consumers",
                hint="run fold_old_batch_norms before merge_duplicate_nodes, or without --classic",
            )
        states.add(state)


def _fold_after_conv(match: ClassicMatch) -> list[NodeDef]:
    return _fold_conv(*_scale_and_offset(match), match.inputs[0], match.node.name)


def _fold_after_batch_to_space(match: ClassicMatch) -> list[NodeDef]:
    to_space = match.inputs[0]
    conv = to_space.inputs[0]
    name = f"{conv.node.name}/biasadd"
    folded = _fold_conv(*_scale_and_offset(match), conv, name)
    renamed = to_space.node.with_(name=match.node.name, inputs=(name, *to_space.node.inputs[1:]))
    return [*folded, to_space.inputs[1].node, to_space.inputs[2].node, renamed]


def _fold_after_concat(match: ClassicMatch) -> list[NodeDef]:
    scale, offset = _scale_and_offset(match)
    concat = match.inputs[0]
    axis = int(concat.inputs[2].node.value.array.reshape(-1)[0])
    first = second = slice(None)
    if axis == CHANNEL_AXIS:
        count = concat.inputs[0].inputs[1].node.value.shape[CHANNEL_AXIS]
        first, second = slice(count), slice(count, None)
    names = [f"{concat.node.name}_bn_in{number}" for number in (0, 1)]
    folded: list[NodeDef] = []
    for conv, name, channels in zip(concat.inputs, names, (first, second), strict=False):
        folded += _fold_conv(scale[channels], offset[channels], conv, name)
    renamed = concat.node.with_(name=match.node.name, inputs=(*names, *concat.node.inputs[2:]))
    return [*folded, concat.inputs[2].node, renamed]


def _scale_and_offset(match: ClassicMatch) -> tuple[Array, Array]:
    node = match.node
    is_fused = node.op == "FusedBatchNorm"
    order = (3, 4, 2, 1) if is_fused else (1, 2, 3, 4)
    mean, variance, beta, gamma = (match.inputs[index].node.value for index in order)
    epsilon = _number_attribute(node, "epsilon" if is_fused else "variance_epsilon")
    if not mean.shape:
        raise GraphError("the original crashes here: the mean of a batch norm is a scalar")
    for tensor, role in ((variance, "Variance"), (beta, "Beta"), (gamma, "gamma")):
        if tensor.shape != mean.shape[:1]:
            raise GraphError(f"{role} input to batch norm has bad shape: {shape_text(tensor.shape)}")
    for tensor in (mean, variance, beta, gamma):
        require_float(tensor, node.name)
    with np.errstate(all="ignore"):
        scale = np.float32(1) / np.sqrt(variance.array + np.float32(epsilon))
        if is_fused or _number_attribute(node, "scale_after_normalization"):
            scale = scale * gamma.array
        return scale, -mean.array.reshape(-1)[: len(scale)] * scale + beta.array


def _number_attribute(node: NodeDef, name: str) -> float:
    value = node.attribute(name)
    return value if isinstance(value, int | float) else 0.0


def _fold_conv(scale: Array, offset: Array, conv: ClassicMatch, name: str) -> list[NodeDef]:
    """Return the scaled convolution, and a BiasAdd with this name that adds the offset."""
    source, weights = (inner.node for inner in conv.inputs)
    scaled = _scale_weights(weights.value, scale, conv.node)
    bias = constant(f"{conv.node.name}_bn_offset", np.asarray(offset, np.float32))
    attrs = {key: conv.node.attrs[key] for key in ("data_format", "T") if key in conv.node.attrs}
    if "T" not in attrs:
        raise GraphError(f"the original crashes here: {conv.node.name} lacks the attribute 'T'")
    bias_add = NodeDef(name, "BiasAdd", (conv.node.name, bias.name), attrs)
    return [constant(weights.name, scaled), source, conv.node, bias, bias_add]


def _scale_weights(weights: Tensor, scale: Array, conv: NodeDef) -> Array:
    require_float(weights, conv.name)
    if num_columns(conv, weights) != len(scale):
        raise GraphError(
            f"the original crashes here: {conv.name} has weights of shape "
            f"{shape_text(weights.shape)}, but there are {len(scale)} factors",
            hint="run without --classic, which folds or skips the layer",
        )
    return scale_columns(weights, scale)
