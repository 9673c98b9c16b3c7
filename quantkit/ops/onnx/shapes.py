"""Shape rules and MACs of ONNX ops, and the stateful op types; `partial_shapes` has sizes that are inputs.

Images have the layout (n, c, h, w), weights of a convolution (c_out, c_in / groups, h, w).
"""

import math
import re
from collections.abc import Mapping, Sequence

from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import Shape, Tensor
from quantkit.ops.macs import count_einsum_macs
from quantkit.ops.onnx.inputs import WEIGHTS_INDEXES
from quantkit.ops.shape_rules import (
    SCALAR,
    UNKNOWN,
    Dims,
    Rules,
    ShapeRule,
    broadcast_shapes,
    concat_shapes,
    dims_of,
    insert_axis,
    reduce_axes,
    replace_axis,
    stated_shape,
    unknown_sizes,
)
from quantkit.ops.table import CONTROL_FLOW, Fact, find_ops

RULES: Rules[ShapeRule] = Rules()

_RANDOM = re.compile(r"Random(Normal|Uniform)(Like)?|Multinomial|Bernoulli|Dropout|If|Loop|Scan")


def is_stateful(op: str) -> bool | None:
    """Return True if two equal nodes can have different outputs; None for an op of another domain.

    >>> is_stateful("Relu"), is_stateful("RandomNormal"), is_stateful("com.example.Relu")
    (False, True, None)
    """
    return None if "." in op else _RANDOM.fullmatch(op) is not None


def count_macs(node: Node, shapes: Mapping[Edge, Shape]) -> int | None:
    """Return the MACs of a node; None if a shape is unknown or impossible, or the op runs subgraphs."""
    if node.op in find_ops(CONTROL_FLOW, "onnx"):
        return None
    if node.op in find_ops(Fact.RECURRENT, "onnx"):
        return _count_recurrent_macs(node, shapes)
    if node.op == "Einsum":
        equation = node.attrs["equation"]
        return count_einsum_macs(equation.decode(), [shapes.get(edge, UNKNOWN) for edge in node.inputs])
    slot = WEIGHTS_INDEXES.get(node.op)
    if slot is None:
        return 0
    out, weights = shapes.get(Edge(node.name), UNKNOWN), shapes.get(node.inputs[slot], UNKNOWN)
    if node.op == "Attention":  # products of queries and keys, and of scores and values
        query = shapes.get(node.inputs[0], UNKNOWN)
        is_known = query.is_known and weights.is_known and out.is_known
        return weights.sizes[-2] * (math.prod(query.sizes) + math.prod(out.sizes)) if is_known else None
    if not out.is_known or not weights.is_known or min(out.sizes, default=1) < 0:
        return None
    kernel = weights.sizes
    if node.op == "ConvTranspose":
        x = shapes.get(node.inputs[0], UNKNOWN)
        return math.prod(x.sizes) * math.prod(kernel[1:]) if x.is_known else None
    if "Conv" in node.op:
        return math.prod(out.sizes) * math.prod(kernel[1:])
    depth = kernel[-1] if node.attrs.get("transB") or len(kernel) == 1 else kernel[-2]
    return math.prod(out.sizes) * depth


def _count_recurrent_macs(node: Node, shapes: Mapping[Edge, Shape]) -> int | None:
    """Return the MACs of the matrix products of a recurrent node; None if a shape is unknown.

    Each step of each sample multiplies the input by W and the hidden state by R, with all gates in one matrix
    (equations of the operators LSTM, GRU and RNN, https://onnx.ai/onnx/operators/onnx__LSTM.html):

        steps * batch * (size of W + size of R)      W: (directions, gates * hidden, input), R: the same with hidden
    """
    sequence, weights, recurrent = (shapes.get(edge, UNKNOWN) for edge in node.inputs[:3])
    if not (sequence.is_known and weights.is_known and recurrent.is_known):
        return None
    return math.prod(sequence.sizes[:2]) * (math.prod(weights.sizes) + math.prod(recurrent.sizes))


def _integers(node: Node, name: str, constants: Mapping[int, Tensor], slot: int) -> list[int] | None:
    """Return the integers of an attribute, or of the constant input that replaces it in later opsets.

    Returns:
        The integers; None if the node has neither.
    """
    attr = node.attrs.get(name)
    if attr is not None:
        return list(attr)
    return [int(value) for value in constants[slot].array.reshape(-1)] if slot in constants else None


def _has_unknown(node: Node, constants: Mapping[int, Tensor], slot: int) -> bool:
    """Return True if an input is present and not constant."""
    return slot < len(node.inputs) and bool(node.inputs[slot].node) and slot not in constants


RULES.rule(
    "Softmax LogSoftmax Hardmax CastLike MeanVarianceNormalization QuantizeLinear DequantizeLinear CumSum CumProd "
    "BitCast Trilu EyeLike TensorScatter Scatter ScatterElements ScatterND ReverseSequence RandomNormalLike "
    "RandomUniformLike Bernoulli RotaryEmbedding com.microsoft.BiasGelu com.microsoft.SkipLayerNormalization "
    "com.microsoft.QuantizeLinear com.microsoft.DequantizeLinear",
    *find_ops(Fact.UNARY | Fact.BATCH_NORM | Fact.NORMALIZATION, "onnx"),
)(lambda node, shapes, constants: shapes[:1])
RULES.rule("Dropout")(lambda node, shapes, constants: [shapes[0], shapes[0]])
RULES.rule("Placeholder")(stated_shape)
RULES.rule("Where", *find_ops(Fact.BINARY, "onnx"))(lambda node, shapes, constants: [broadcast_shapes(shapes)])
RULES.rule("GatherElements")(lambda node, shapes, constants: [shapes[1]])
RULES.rule("Size")(lambda node, shapes, constants: [SCALAR])
RULES.rule("DynamicQuantizeLinear")(lambda node, shapes, constants: [shapes[0], SCALAR, SCALAR])
RULES.rule("NonZero")(lambda node, shapes, constants: [Shape((len(dims_of(shapes[0])), None))])
RULES.rule("NonMaxSuppression")(lambda node, shapes, constants: [Shape((None, 3))])
RULES.rule("Shape")(
    lambda node, shapes, constants: [
        Shape((len(dims_of(shapes[0])[node.attrs.get("start", 0) : node.attrs.get("end")]),))
    ]
)
RULES.rule("Transpose")(
    lambda node, shapes, constants: [
        Shape([dims_of(shapes[0])[axis] for axis in node.attrs.get("perm") or range(len(dims_of(shapes[0])))[::-1]])
    ]
)
RULES.rule("Pad Tile")(lambda node, shapes, constants: [Shape((None,) * len(dims_of(shapes[0])))])
RULES.rule("RandomNormal RandomUniform")(lambda node, shapes, constants: [Shape(node.attrs["shape"])])
RULES.rule("GridSample")(lambda node, shapes, constants: [Shape((*dims_of(shapes[0])[:2], *dims_of(shapes[1])[1:-1]))])
RULES.rule("Concat")(lambda node, shapes, constants: [concat_shapes(shapes, node.attrs["axis"])])
RULES.rule("Gather")(
    lambda node, shapes, constants: [replace_axis(shapes[0], node.attrs.get("axis", 0), *dims_of(shapes[1]))]
)
RULES.rule("ArgMax ArgMin")(
    lambda node, shapes, constants: [reduce_axes(shapes[0], [node.attrs.get("axis", 0)], node.attrs.get("keepdims", 1))]
)
RULES.rule("TopK")(
    lambda node, shapes, constants: (
        [replace_axis(shapes[0], node.attrs.get("axis", -1), _count(constants, node.attrs.get("k")))] * 2
    )
)
RULES.rule("OneHot")(
    lambda node, shapes, constants: [insert_axis(shapes[0], node.attrs.get("axis", -1), _count(constants))]
)


def _count(constants: Mapping[int, Tensor], default: int | None = None) -> int | None:
    """Return the integer of input 1; the default if it is absent or computed."""
    return int(constants[1].array.reshape(())) if 1 in constants else default


@RULES.rule("Constant")
def _constant(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    if isinstance(node.attrs.get("value"), Tensor):
        return [Shape(node.value.shape)]
    for key in ("value_floats", "value_ints", "value_strings"):
        values = node.attrs.get(key)
        if values is not None:
            return [Shape((len(values),))]
    return [SCALAR if {"value_float", "value_int", "value_string"} & node.attrs.keys() else UNKNOWN]


def _windows(node: Node, dims: Dims, kernel: Sequence[int]) -> list[int | None]:
    """Return the number of windows along each spatial axis."""
    attrs, count = node.attrs, len(kernel)
    strides = attrs.get("strides") or (1,) * count
    dilations = attrs.get("dilations") or (1,) * count
    pads = attrs.get("pads") or (0,) * 2 * count
    automatic = attrs.get("auto_pad", b"NOTSET")
    counts: list[int | None] = []
    for axis, size in enumerate(dims[2:]):
        span = (kernel[axis] - 1) * dilations[axis] + 1
        if size is None:
            counts.append(None)
        elif automatic.startswith(b"SAME"):
            counts.append(-(-size // strides[axis]))
        else:
            padded = size if automatic == b"VALID" else size + pads[axis] + pads[axis + count]
            count_of_axis = (padded - span) // strides[axis] + 1
            if attrs.get("ceil_mode") and (padded - span) % strides[axis]:
                # A window that begins in the padding at the end does not count.
                begin = 0 if automatic == b"VALID" else pads[axis]
                count_of_axis += count_of_axis * strides[axis] < size + begin
            counts.append(count_of_axis)
    return counts


@RULES.rule("Conv ConvInteger QLinearConv DeformConv")
def _conv(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    weights, dims = shapes[3 if node.op == "QLinearConv" else 1].sizes, dims_of(shapes[0])
    return [Shape((dims[0], weights[0], *_windows(node, dims, weights[2:])))]


@RULES.rule("ConvTranspose")
def _conv_transpose(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    weights, dims, attrs = shapes[1].sizes, dims_of(shapes[0]), node.attrs
    count = len(dims) - 2
    if "output_shape" in attrs or attrs.get("auto_pad", b"NOTSET") != b"NOTSET":
        return [Shape((dims[0], weights[1] * attrs.get("group", 1), *(None,) * count))]
    strides, dilations = (attrs.get(name) or (1,) * count for name in ("strides", "dilations"))
    pads, extra = attrs.get("pads") or (0,) * 2 * count, attrs.get("output_padding") or (0,) * count
    sizes = [
        None
        if size is None
        else strides[axis] * (size - 1)
        + extra[axis]
        + (weights[axis + 2] - 1) * dilations[axis]
        + 1
        - pads[axis]
        - pads[axis + count]
        for axis, size in enumerate(dims[2:])
    ]
    return [Shape((dims[0], weights[1] * attrs.get("group", 1), *sizes))]


RULES.rule("MaxPool AveragePool LpPool")(
    lambda node, shapes, constants: (
        [Shape((*dims_of(shapes[0])[:2], *_windows(node, dims_of(shapes[0]), node.attrs["kernel_shape"])))] * 2
    )
)
RULES.rule("GlobalAveragePool GlobalMaxPool GlobalLpPool")(
    lambda node, shapes, constants: [reduce_axes(shapes[0], range(2, len(dims_of(shapes[0]))), keeps_axes=True)]
)


@RULES.rule("Gemm")
def _gemm(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second = dims_of(shapes[0]), dims_of(shapes[1])
    return [Shape((first[1 if node.attrs.get("transA") else 0], second[0 if node.attrs.get("transB") else 1]))]


@RULES.rule("MatMul MatMulInteger QLinearMatMul com.microsoft.FusedMatMul")
def _matmul(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second = dims_of(shapes[0]), dims_of(shapes[3 if node.op == "QLinearMatMul" else 1])
    if node.attrs.get("transA"):
        first = (*first[:-2], *first[:-3:-1])
    if node.attrs.get("transB"):
        second = (*second[:-2], *second[:-3:-1])
    rows, columns = first[-2:-1], second[-1:] if len(second) > 1 else ()
    batch_shape = broadcast_shapes([Shape(first[:-2]), Shape(second[:-2])])
    return [Shape((*dims_of(batch_shape), *rows, *columns))]


RULES.rule("Reshape")(lambda node, shapes, constants: [unknown_sizes(shapes[1])])
RULES.rule("ConstantOfShape")(lambda node, shapes, constants: [unknown_sizes(shapes[0])])
RULES.rule("Expand")(lambda node, shapes, constants: [broadcast_shapes([shapes[0], unknown_sizes(shapes[1])])])


@RULES.rule("Flatten")
def _flatten(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axis = node.attrs.get("axis", 1)
    halves = dims[:axis], dims[axis:]
    return [
        Shape(tuple(None if None in half else math.prod(size for size in half if size is not None) for half in halves))
    ]


@RULES.rule("Squeeze")
def _squeeze(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    if _has_unknown(node, constants, 1):
        return [UNKNOWN]
    values = _integers(node, "axes", constants, 1)
    if values is None and None in dims:
        return [UNKNOWN]
    if values is None:
        values = [axis for axis, size in enumerate(dims) if size == 1]
    return [reduce_axes(shapes[0], values, keeps_axes=False)]


@RULES.rule("Unsqueeze")
def _unsqueeze(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    if _has_unknown(node, constants, 1):
        return [UNKNOWN]
    values = _integers(node, "axes", constants, 1) or []
    rank = len(dims_of(shapes[0])) + len(values)
    axes, rest = {axis % rank for axis in values}, iter(dims_of(shapes[0]))
    return [Shape(tuple(1 if axis in axes else next(rest) for axis in range(rank)))]


@RULES.rule(*find_ops(Fact.REDUCTION, "onnx"))
def _reduction(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    values = _integers(node, "axes", constants, 1)
    if _has_unknown(node, constants, 1):
        return [Shape((None,) * len(dims)) if node.attrs.get("keepdims", 1) else UNKNOWN]
    if not values and node.attrs.get("noop_with_empty_axes"):
        return shapes[:1]
    return [reduce_axes(shapes[0], values or range(len(dims)), node.attrs.get("keepdims", 1))]


@RULES.rule("Split")
def _split(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    axis = node.attrs.get("axis", 0)
    parts = _integers(node, "split", constants, 1)
    count = node.attrs.get("num_outputs", len(node.attrs.get("_outputs", (b"",))))
    size = dims_of(shapes[0])[axis]
    if _has_unknown(node, constants, 1) or (parts is None and size is None):
        sizes: list[int | None] = [None] * count
    elif parts is None:
        width = -(-(size or 0) // count)  # the last part can be smaller
        sizes = [min(width, (size or 0) - width * index) for index in range(count)]
    else:
        sizes = list(parts)
    return [replace_axis(shapes[0], axis, part) for part in sizes]


@RULES.rule("Resize Upsample")
def _resize(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    values = node.attrs.get("scales")
    if values is None:
        slot = 1 if len(node.inputs) == 2 else 2
        values = constants[slot].array if slot in constants else ()
    axes = node.attrs.get("axes") or range(len(dims))
    if len(values) != len(axes):
        return [Shape((None,) * len(dims))]
    sizes = list(dims)
    for axis, scale in zip(axes, values, strict=True):
        size = dims[axis]
        sizes[axis] = None if size is None else math.floor(size * float(scale))
    return [Shape(tuple(sizes))]


@RULES.rule("Slice")
def _slice(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axes = _integers(node, "axes", constants, 3)
    changed = range(len(dims)) if axes is None else [axis % len(dims) for axis in axes]
    return [Shape(tuple(None if axis in changed else size for axis, size in enumerate(dims)))]


@RULES.rule("Range")
def _range(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    if len(constants) < 3:
        return [Shape((None,))]
    start, limit, step = (float(constants[slot].array.reshape(())) for slot in range(3))
    return [Shape((max(math.ceil((limit - start) / step), 0),))]


@RULES.rule("SpaceToDepth DepthToSpace")
def _space_to_depth(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    n, c, *sides = dims_of(shapes[0])
    block = node.attrs["blocksize"]
    if node.op == "SpaceToDepth":
        sizes = (None if c is None else c * block**2, *(None if size is None else size // block for size in sides))
    else:
        sizes = (None if c is None else c // block**2, *(None if size is None else size * block for size in sides))
    return [Shape((n, *sizes))]


@RULES.rule("LSTM GRU RNN")
def _recurrent(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second, _ = dims_of(shapes[0])
    size = node.attrs.get("hidden_size", dims_of(shapes[2])[2])
    directions = 2 if node.attrs.get("direction") == b"bidirectional" else 1
    if node.attrs.get("layout"):
        return [Shape((first, second, directions, size)), *[Shape((first, directions, size))] * 2]
    return [Shape((first, directions, second, size)), *[Shape((directions, second, size))] * 2]


@RULES.rule("GatherND")
def _gather_nd(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims, indices = dims_of(shapes[0]), dims_of(shapes[1])
    depth = indices[-1]
    return [UNKNOWN if depth is None else Shape((*indices[:-1], *dims[node.attrs.get("batch_dims", 0) + depth :]))]


@RULES.rule("STFT")
def _short_time_transform(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    batch, length, _ = dims_of(shapes[0])
    window = dims_of(shapes[2])[0] if len(shapes) > 2 and shapes[2].dims else None
    frame = int(constants[3].array) if 3 in constants else window
    frames = (length - frame) // int(constants[1].array) + 1 if None not in (length, frame) else None  # type: ignore[operator]
    bins = frame // 2 + 1 if frame is not None and node.attrs.get("onesided", 1) else frame
    return [Shape((batch, frames, bins, 2))]


@RULES.rule("RoiAlign")
def _roi_align(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    sizes = (node.attrs.get(f"output_{side}", 1) for side in ("height", "width"))
    return [Shape((dims_of(shapes[1])[0], dims_of(shapes[0])[1], *sizes))]


@RULES.rule("Attention")
def _attention(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    query, value = dims_of(shapes[0]), dims_of(shapes[2])
    if len(query) == 4:
        return [Shape((*query[:3], value[3]))]
    heads, value_heads = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
    return [Shape((*query[:2], None if value[2] is None else value[2] // value_heads * heads))]


@RULES.rule("Einsum")
def _einsum(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    inputs, arrow, output = node.attrs["equation"].decode().replace(" ", "").partition("->")
    terms = inputs.split(",")
    ranks = [len(dims_of(shape)) - len(term.replace("...", "")) for term, shape in zip(terms, shapes, strict=True)]
    # The axes of an ellipsis are aligned at their end; digits stand for them.
    terms = [term.replace("...", "0123456789"[-rank:] if rank else "") for term, rank in zip(terms, ranks, strict=True)]
    dots = "0123456789"[-max(ranks) :] if max(ranks) else ""
    if not arrow:
        letters = inputs.replace(",", "").replace(".", "")
        output = dots + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    sizes: dict[str, int | None] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, dims_of(shape), strict=True):
            sizes[letter] = size if sizes.get(letter, 1) in (None, 1) else sizes[letter]
    return [Shape(tuple(sizes[letter] for letter in output.replace("...", dots)))]
