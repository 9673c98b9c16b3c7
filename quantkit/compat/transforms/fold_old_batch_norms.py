"""The original's folding of batch normalizations that are one node.

scale = gamma / sqrt(variance + epsilon)        offset = beta - mean * scale
"""

from collections.abc import Callable, Sequence

import numpy as np

from quantkit.compat.transforms.fold_batch_norms import num_columns, require_float, scaled_columns, shape_text
from quantkit.compat.transforms.matching import ANY, CONST, Match, Pattern, pattern, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import Context, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.tensor import Array, Tensor

NORM = "BatchNormWithGlobalNormalization|FusedBatchNorm"
CONV = pattern("Conv2D|DepthwiseConv2dNative", ANY, CONST)
STATISTICS = (CONST, CONST, CONST, CONST)
# Where the joined channels are those of the convolutions, so that each gets its own part of the vectors.
CHANNEL_AXIS = 3

Folder = Callable[[Match], list[NodeDef]]


@classic_transform
def fold_old_batch_norms(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """A normalization goes into the convolution before it, which nobody asks for other readers.

    Raises:
        GraphError: statistics do not fit, or the original would never have ended: a constant of a match is read
            elsewhere, so that the match is put back and found again for ever.
    """
    result = list(nodes)
    for wanted, fold in (
        (pattern(NORM, CONV, *STATISTICS), _after_conv),
        (pattern(NORM, pattern("BatchToSpaceND", CONV, CONST, CONST), *STATISTICS), _after_batch_to_space),
        (pattern(NORM, pattern("ConcatV2|Concat", CONV, CONV, CONST), *STATISTICS), _after_concat),
    ):
        result = _repeated(result, wanted, fold)
    return result


def _repeated(nodes: list[NodeDef], wanted: Pattern, fold: Folder) -> list[NodeDef]:
    """Fold until nothing matches."""
    seen: set[tuple[str, ...]] = set()
    matched: list[str] = []

    def make(match: Match, outside: frozenset[str]) -> list[NodeDef]:
        matched.append(match.node.name)
        return fold(match)

    while True:
        matched.clear()
        nodes = replace_matches(nodes, wanted, make)
        if not matched:
            return nodes
        # Every fold takes a normalization away, so the same nodes in the same order come back only if none was done.
        state = tuple(f"{node.op} {node.name}" for node in nodes)
        if state in seen:
            raise GraphError(
                f"the original never ends here: what {matched[0]} folds is read elsewhere, too",
                hint="run fold_old_batch_norms before merge_duplicate_nodes, or without --classic",
            )
        seen.add(state)


def _after_conv(match: Match) -> list[NodeDef]:
    return _folded(*_scale_and_offset(match), match.inputs[0], match.node.name)


def _after_batch_to_space(match: Match) -> list[NodeDef]:
    to_space = match.inputs[0]
    conv = to_space.inputs[0]
    name = f"{conv.node.name}/biasadd"
    made = _folded(*_scale_and_offset(match), conv, name)
    renamed = to_space.node.with_(name=match.node.name, inputs=(name, *to_space.node.inputs[1:]))
    return [*made, to_space.inputs[1].node, to_space.inputs[2].node, renamed]


def _after_concat(match: Match) -> list[NodeDef]:
    scale, offset = _scale_and_offset(match)
    joined = match.inputs[0]
    axis = int(joined.inputs[2].node.value.array.reshape(-1)[0])
    first = second = slice(None)
    if axis == CHANNEL_AXIS:
        count = joined.inputs[0].inputs[1].node.value.shape[CHANNEL_AXIS]
        first, second = slice(count), slice(count, None)
    names = [f"{joined.node.name}_bn_in{number}" for number in (0, 1)]
    made: list[NodeDef] = []
    for conv, name, part in zip(joined.inputs, names, (first, second), strict=False):
        made += _folded(scale[part], offset[part], conv, name)
    renamed = joined.node.with_(name=match.node.name, inputs=(*names, *joined.node.inputs[2:]))
    return [*made, joined.inputs[2].node, renamed]


def _scale_and_offset(match: Match) -> tuple[Array, Array]:
    node = match.node
    is_fused = node.op == "FusedBatchNorm"
    order = (3, 4, 2, 1) if is_fused else (1, 2, 3, 4)
    mean, variance, beta, gamma = (match.inputs[slot].node.value for slot in order)
    epsilon = _attribute(node, "epsilon" if is_fused else "variance_epsilon")
    if not mean.shape:
        raise GraphError("the original crashes here: the mean of a batch norm is a scalar")
    for tensor, role in ((variance, "Variance"), (beta, "Beta"), (gamma, "gamma")):
        if tensor.shape != mean.shape[:1]:
            raise GraphError(f"{role} input to batch norm has bad shape: {shape_text(tensor.shape)}")
    for tensor in (mean, variance, beta, gamma):
        require_float(tensor, node.name)
    with np.errstate(all="ignore"):
        scale = np.float32(1) / np.sqrt(variance.array + np.float32(epsilon))
        if is_fused or _attribute(node, "scale_after_normalization"):
            scale = scale * gamma.array
        return scale, -mean.array.reshape(-1)[: len(scale)] * scale + beta.array


def _attribute(node: NodeDef, name: str) -> float:
    value = node.attribute(name)
    return value if isinstance(value, int | float) else 0.0


def _folded(scale: Array, offset: Array, conv: Match, name: str) -> list[NodeDef]:
    """The scaled convolution, and a node of some name that adds the offset to it."""
    source, weights = (inner.node for inner in conv.inputs)
    scaled = _scaled(weights.value, scale, conv.node)
    bias = constant(f"{conv.node.name}_bn_offset", np.asarray(offset, np.float32))
    attrs = {key: conv.node.attrs[key] for key in ("data_format", "T") if key in conv.node.attrs}
    if "T" not in attrs:
        raise GraphError(f"the original crashes here: {conv.node.name} lacks the attribute 'T'")
    added = NodeDef(name, "BiasAdd", (conv.node.name, bias.name), attrs)
    return [constant(weights.name, scaled), source, conv.node, bias, added]


def _scaled(weights: Tensor, scale: Array, conv: NodeDef) -> Array:
    require_float(weights, conv.name)
    if num_columns(conv, weights) != len(scale):
        raise GraphError(
            f"the original crashes here: {conv.name} has weights of shape {shape_text(weights.shape)}, "
            f"and {len(scale)} factors are folded into them",
            hint="without --classic it is folded or left alone",
        )
    return scaled_columns(weights, scale)
