"""Shape rules of TensorFlow ops."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.kernels import evaluate
from quantkit.ops.shape_rules import SCALAR, UNKNOWN, Dims, PartialShapeRule, Rules, ShapeRule, Sizes, as_shape, dims_of
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import attribute, op_names, output_dtypes

RULES: Rules[ShapeRule] = Rules()
# Shapes of ops whose sizes are inputs; these inputs may have unknown elements.
PARTIAL_SHAPES: Rules[PartialShapeRule] = Rules()
# Sizes in the place of an unknown one: a slice of one element for both does not depend on it.
UNKNOWN_SIZES = (1, 997)


@RULES.rule(
    "Softmax LogSoftmax BiasAdd LRN FakeQuantWithMinMaxVars FakeQuantWithMinMaxArgs PlaceholderWithDefault Dequantize "
    "Cumsum ClipByValue ReverseV2 ReverseSequence TensorScatterUpdate TensorScatterAdd TensorScatterSub AddN BiasAddV1 "
    "Roll InvertPermutation MatrixBandPart MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3",
    *find_ops(Fact.UNARY, "tensorflow"),
)
def _same(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return shapes[:1]


@RULES.rule(
    "QuantizeV2 Requantize QuantizedRelu QuantizedRelu6 QuantizedBiasAdd QuantizedReshape FusedBatchNorm "
    "FusedBatchNormV2 FusedBatchNormV3 BatchNormWithGlobalNormalization"
)
def _same_and_scalars(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    if node.op == "QuantizedReshape":
        return [*_reshape(node, shapes, constants), SCALAR, SCALAR]
    return shapes[:1] if "BatchNorm" in node.op else [shapes[0], SCALAR, SCALAR]


@RULES.rule("IdentityN")
def _same_each(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return shapes


@RULES.rule("Placeholder")
def _placeholder(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    shape = node.attrs.get("shape")
    return [shape if isinstance(shape, Shape) else UNKNOWN]


@RULES.rule("EnsureShape")
def _ensure_shape(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    stated = node.attrs["shape"]
    if not isinstance(stated, Shape) or stated.dims is None or shapes[0].dims is None:
        return [stated if isinstance(stated, Shape) and stated.dims is not None else shapes[0]]
    pairs = zip(stated.dims, shapes[0].dims, strict=True)
    return [Shape(tuple(inferred if size is None else size for size, inferred in pairs))]


@RULES.rule("Const")
def _const(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [Shape(node.value.shape)]


@RULES.rule("QuantizedAdd QuantizedMul", *find_ops(Fact.BINARY, "tensorflow"))
def _broadcast(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second = dims_of(shapes[0]), dims_of(shapes[1])
    rank = max(len(first), len(second))
    pairs = zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True)
    dims = [b if a == 1 else a if b in (1, a) else a if b is None and a is not None else b for a, b in pairs]
    return [Shape(tuple(dims))] + ([SCALAR, SCALAR] if node.op.startswith("Quantized") else [])


def _window(size: int | None, kernel: int, stride: int, padding: Any, dilation: int = 1) -> int | None:
    """Return the number of windows along one axis; an integer as padding is the sum of both sides."""
    if size is None:
        return None
    if padding == b"SAME":
        return -(-size // stride)
    span = (kernel - 1) * dilation + 1
    total_padding = padding if isinstance(padding, int) else 0
    return (size + total_padding - span) // stride + 1


def _spatial(node: Node) -> tuple[int, int, int]:
    """Return the (height, width, channel) axes."""
    return (2, 3, 1) if node.attrs.get("data_format", b"NHWC") == b"NCHW" else (1, 2, 3)


def _slide_window(node: Node, shape: Shape, kernel: Sequence[int], channels: int | None) -> Shape:
    height, width, channel = _spatial(node)
    dims = list(dims_of(shape))
    strides: Any = node.attrs.get("strides", (1, 1, 1, 1))
    dilations: Any = node.attrs.get("dilations") or (1, 1, 1, 1)
    explicit: Any = node.attrs.get("explicit_paddings") or ()
    for axis, size in ((height, kernel[0]), (width, kernel[1])):
        padding: Any = node.attrs.get("padding", b"VALID")
        if padding == b"EXPLICIT":
            padding = explicit[2 * axis] + explicit[2 * axis + 1]
        dims[axis] = _window(dims[axis], size, strides[axis], padding, dilations[axis])
    dims[channel] = channels if channels is not None else dims[channel]
    return Shape(tuple(dims))


def _quantized_ops(layer: str) -> str:
    """Return the 8-bit op types of a layer, separated by spaces."""
    return " ".join(name for name in op_names() if re.match(f"_?(Fused)?Quantized(Depthwise)?{layer}", name))


@RULES.rule(f"Conv2D DepthwiseConv2dNative _FusedConv2D _FusedDepthwiseConv2dNative {_quantized_ops('Conv2D')}")
def _conv(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    kernel = shapes[1].sizes
    channels = kernel[2] * kernel[3] if "Depthwise" in node.op else kernel[3]
    paddings: Any = node.attrs.get("padding_list")
    padded = Shape(_pad_dims(dims_of(shapes[0]), paddings)) if paddings else shapes[0]
    output = _slide_window(node, padded, kernel[:2], channels)
    return [output, SCALAR, SCALAR] if node.op in ("QuantizedConv2D", "QuantizedDepthwiseConv2D") else [output]


def _pad_dims(dims: Dims, widths: Sequence[int]) -> Dims:
    """Add the padding before and after each dimension to its size."""
    sums = [low + high for low, high in zip(widths[::2], widths[1::2], strict=True)]
    return tuple(None if size is None else size + width for size, width in zip(dims, sums, strict=True))


@RULES.rule("Conv3D")
def _conv3d(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims, kernel = list(dims_of(shapes[0])), shapes[1].sizes
    strides, dilations, padding = (attribute(node, name) for name in ("strides", "dilations", "padding"))
    first = 2 if attribute(node, "data_format") == b"NCDHW" else 1
    for axis, size in enumerate(kernel[:3], first):
        dims[axis] = _window(dims[axis], size, strides[axis], padding, dilations[axis])
    dims[1 if first == 2 else 4] = kernel[4]
    return [Shape(tuple(dims))]


@RULES.rule(
    "BroadcastTo Conv2DBackpropInput Conv3DBackpropInputV2 Fill RandomStandardNormal RandomUniform TruncatedNormal"
)
def _shape_from_input(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    slot = 1 if node.op == "BroadcastTo" else 0
    if slot in constants:
        return [Shape(tuple(int(size) for size in constants[slot].array))]
    (rank,) = dims_of(shapes[slot])
    return [UNKNOWN if rank is None else Shape((None,) * rank)]


@PARTIAL_SHAPES.rule("Reshape BroadcastTo Fill Conv2DBackpropInput")
def _partial_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    stated = sizes[1 if node.op in ("Reshape", "BroadcastTo") else 0].tolist()
    return [as_shape(stated)] if None in stated else ()  # known sizes are constants for the other rules


@RULES.rule("BroadcastArgs")
def _broadcast_args(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    ranks = [rank for shape in shapes for rank in dims_of(shape)]
    return [Shape((None if None in ranks else max(rank or 0 for rank in ranks),))]


@RULES.rule("Range")
def _number_sequence(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [Shape((None,))]


def _slice_by_computed_limits(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Shape:
    """Return the shape of a slice whose limits are not all constant; axes without limits keep their sizes."""
    begin_mask: Any = node.attrs.get("begin_mask", 0)
    end_mask: Any = node.attrs.get("end_mask", 0)
    if any(node.attrs.get(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis")):
        return UNKNOWN
    dims = list(dims_of(shapes[0]))
    (count,) = dims_of(shapes[1])
    steps = constants[3].array.tolist() if 3 in constants else []
    for axis in range(len(dims) if count is None else count):
        is_whole = (begin_mask & end_mask) >> axis & 1 and steps[axis : axis + 1] == [1]
        dims[axis] = dims[axis] if is_whole else None
    return Shape(dims)


@RULES.rule("Slice StridedSlice")
def _slice(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    if not constants.keys() >= set(range(1, len(shapes))):
        return [_slice_by_computed_limits(node, shapes, constants)]
    arguments = [constants[slot].array for slot in range(1, len(shapes))]
    outputs = []
    for unknown in UNKNOWN_SIZES if None in dims_of(shapes[0]) else (0,):
        # A broadcast view of one element: the kernel computes the shape of the slice without allocating the tensor.
        dims = [unknown if size is None else size for size in dims_of(shapes[0])]
        (output,) = evaluate(node.with_attrs(T=DType.INT8), [np.broadcast_to(np.int8(0), dims), *arguments])
        outputs.append(output.shape)
    if len(outputs) == 1:
        return [Shape(outputs[0])]
    return [Shape([size if size and size == other else None for size, other in zip(*outputs, strict=True)])]


@RULES.rule("RequantizationRange")
def _range(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [SCALAR, SCALAR]


@RULES.rule("Bitcast")
def _bitcast(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    source, target = (attribute(node, name).numpy.itemsize for name in ("T", "type"))
    return [shapes[0] if source == target else UNKNOWN]


@RULES.rule("Unpack")
def _unpack(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axis = attribute(node, "axis") % len(dims)
    return [Shape((*dims[:axis], *dims[axis + 1 :]))] * len(output_dtypes(node))


@RULES.rule("Gather GatherV2")
def _gather(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims, indices = dims_of(shapes[0]), dims_of(shapes[1])
    axis = constants[2].array.item() % len(dims) if node.op == "GatherV2" else 0
    batch_dims: Any = node.attrs.get("batch_dims", 0)
    return [Shape((*dims[:axis], *indices[batch_dims:], *dims[axis + 1 :]))]


@RULES.rule("Einsum")
def _einsum(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    operands, _, result = attribute(node, "equation").decode().replace(" ", "").partition("->")
    sizes: dict[str, int | None] = {}
    for letters, shape in zip(operands.split(","), shapes, strict=True):
        sizes |= dict(zip(letters, dims_of(shape), strict=True))  # an ellipsis raises ValueError: unknown shape
    return [Shape(tuple(sizes[letter] for letter in result))]


@RULES.rule("FusedPadConv2D FusedResizeAndPadConv2D")
def _fused_conv(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    batch, height, width, channels = dims_of(shapes[0])
    if node.op == "FusedResizeAndPadConv2D":
        height, width = (int(size) for size in constants[1].array)
    paddings = constants[len(shapes) - 2].array.sum(1)
    height, width = (
        None if size is None else size + int(w) for size, w in zip((height, width), paddings[1:3], strict=True)
    )
    kernel = shapes[-1].sizes
    return [_slide_window(node, Shape((batch, height, width, channels)), kernel[:2], kernel[3])]


@RULES.rule("MaxPool AvgPool QuantizedMaxPool QuantizedAvgPool")
def _pool(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    size: Any = node.attrs["ksize"]
    height, width, _ = _spatial(node)
    output = _slide_window(node, shapes[0], (size[height], size[width]), None)
    return [output, SCALAR, SCALAR] if node.op.startswith("Quantized") else [output]


@RULES.rule(f"MatMul _FusedMatMul {_quantized_ops('MatMul')}")
def _matmul(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second = dims_of(shapes[0]), dims_of(shapes[1])
    rows = first[1] if node.attrs.get("transpose_a") else first[0]
    columns = second[0] if node.attrs.get("transpose_b") else second[1]
    output = Shape((rows, columns))
    return [output, SCALAR, SCALAR] if node.op.startswith("Quantized") else [output]


@RULES.rule("BatchMatMul BatchMatMulV2 BatchMatMulV3")
def _batch_matmul(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    (*batch, rows, depth), (*other, inner, columns) = (dims_of(shape) for shape in shapes)
    (batch_shape,) = _broadcast(node, [Shape(batch), Shape(other)], constants)
    row = depth if node.attrs.get("adj_x") else rows
    return [Shape((*dims_of(batch_shape), row, inner if node.attrs.get("adj_y") else columns))]


@RULES.rule("Concat ConcatV2 QuantizedConcat")
def _concat(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    slot = len(shapes) - 1 if node.op == "ConcatV2" else 0
    count: Any = node.attrs.get("N", len(shapes) - 1)
    inputs = [dims_of(shape) for shape in (shapes[:slot] if slot else shapes[1 : 1 + count])]
    axis = constants[slot].array.item() % len(inputs[0])
    dims = list(inputs[0])
    sizes = [dims_[axis] for dims_ in inputs]
    dims[axis] = None if None in sizes else sum(size for size in sizes if size is not None)
    return [Shape(tuple(dims)), SCALAR, SCALAR][: 3 if node.op.startswith("Quantized") else 1]


@RULES.rule("Reshape")
def _reshape(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    sizes = [int(size) for size in constants[1].array.reshape(-1)]
    if -1 in sizes and shapes[0].is_known:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shapes[0].sizes) // rest
    return [Shape(tuple(None if size < 0 else size for size in sizes))]


@RULES.rule("Squeeze")
def _squeeze(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    squeezed: Any = node.attrs.get("squeeze_dims") or ()
    axes = {axis % len(dims) for axis in squeezed} or {axis for axis, size in enumerate(dims) if size == 1}
    return [Shape(tuple(size for axis, size in enumerate(dims) if axis not in axes))]


@RULES.rule("ExpandDims")
def _expand_dims(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axis = constants[1].array.item() % (len(dims) + 1)
    return [Shape((*dims[:axis], 1, *dims[axis:]))]


@RULES.rule("Tile")
def _tile(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [Shape((None,) * len(dims_of(shapes[0])))]


@PARTIAL_SHAPES.rule("Tile")
def _multiply(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    pairs = zip(dims_of(shapes[0]), sizes[1].tolist(), strict=True)
    return [Shape([None if size is None or factor is None else size * factor for size, factor in pairs])]


@RULES.rule("Pad PadV2 MirrorPad")
def _pad(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    widths = constants[1].array.sum(1)
    return [
        Shape(
            tuple(None if size is None else size + int(w) for size, w in zip(dims_of(shapes[0]), widths, strict=True))
        )
    ]


@RULES.rule(*find_ops(Fact.REDUCTION, "tensorflow"))
def _reduction(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axes = {int(axis) % len(dims) for axis in constants[1].array.reshape(-1)}
    if node.attrs.get("keep_dims"):
        return [Shape(tuple(1 if axis in axes else size for axis, size in enumerate(dims)))]
    return [Shape(tuple(size for axis, size in enumerate(dims) if axis not in axes))]


@RULES.rule("ArgMax ArgMin")
def _arg_extreme(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axis = constants[1].array.item() % len(dims)
    return [Shape((*dims[:axis], *dims[axis + 1 :]))]


@RULES.rule("TopKV2")
def _top_k(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    count = constants[1].array.item() if 1 in constants else None
    return [Shape((*dims_of(shapes[0])[:-1], count))] * 2


@RULES.rule("OneHot")
def _one_hot(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axis = attribute(node, "axis") % (len(dims) + 1)
    return [Shape((*dims[:axis], constants[1].array.item() if 1 in constants else None, *dims[axis:]))]


@RULES.rule("GatherNd")
def _gather_nd(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims, (*outer, depth) = dims_of(shapes[0]), dims_of(shapes[1])
    return [UNKNOWN if depth is None else Shape((*outer, *dims[depth:]))]


@RULES.rule("DepthToSpace SpaceToDepth")
def _depth(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    size = attribute(node, "block_size")
    is_first = attribute(node, "data_format") == b"NCHW"
    dims = list(dims_of(shapes[0]))
    for axis in range(1, 4):
        is_channel = axis == (1 if is_first else 3)
        factor = size**2 if is_channel else size
        grows = is_channel == (node.op == "SpaceToDepth")
        whole = dims[axis]
        dims[axis] = None if whole is None else whole * factor if grows else whole // factor
    return [Shape(dims)]


@RULES.rule("Transpose")
def _transpose(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    return [Shape(tuple(dims[int(axis)] for axis in constants[1].array))]


@RULES.rule("ResizeBilinear ResizeNearestNeighbor ResizeBicubic QuantizedResizeBilinear")
def _resize(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    batch, _, _, channels = dims_of(shapes[0])
    height, width = (int(size) for size in constants[1].array)
    return [Shape((batch, height, width, channels)), SCALAR, SCALAR][: 3 if node.op.startswith("Quantized") else 1]


@RULES.rule("Pack")
def _pack(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axis: Any = node.attrs.get("axis", 0)
    axis %= len(dims) + 1
    return [Shape((*dims[:axis], len(shapes), *dims[axis:]))]


@RULES.rule("Split")
def _split(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = list(dims_of(shapes[1]))
    count = len(output_dtypes(node))
    axis = constants[0].array.item() % len(dims)
    size = dims[axis]
    dims[axis] = None if size is None else size // count
    return [Shape(tuple(dims))] * count


@RULES.rule("SplitV")
def _split_by_sizes(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axis = constants[2].array.item() % len(dims)
    sizes = [int(size) for size in constants[1].array.reshape(-1)]
    whole = dims[axis]
    if -1 in sizes and whole is not None:
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size != -1)
    return [Shape((*dims[:axis], None if size < 0 else size, *dims[axis + 1 :])) for size in sizes]


@RULES.rule("Shape")
def _shape(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [Shape((len(dims_of(shapes[0])),))]


@RULES.rule("While StatelessWhile If StatelessIf")
def _stated_outputs(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    stated: Any = node.attrs.get("output_shapes", ())
    return stated if all(isinstance(shape, Shape) for shape in stated) else ()


@RULES.rule("TensorListStack")
def _stack_list(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    count = attribute(node, "num_elements")
    sizes = constants[1].array.tolist()
    return [Shape(tuple(None if size < 0 else size for size in (count, *sizes)))]


@RULES.rule("DecodeJpeg DecodePng")
def _decode_image(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    channels: Any = node.attrs.get("channels") or None
    return [Shape((None, None, channels))]


@RULES.rule("SpaceToBatchND BatchToSpaceND")
def _space_batch(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    blocks, widths = constants[1].array.tolist(), constants[2].array.sum(1).tolist()
    batch, *sizes = dims_of(shapes[0])
    times = math.prod(blocks)
    is_inverse = node.op == "BatchToSpaceND"
    for axis, (block, width) in enumerate(zip(blocks, widths, strict=True)):
        size = sizes[axis]
        if size is not None:
            sizes[axis] = size * block - width if is_inverse else (size + width) // block
    if batch is not None:
        batch = batch // times if is_inverse else batch * times
    return [Shape((batch, *sizes))]


@RULES.rule("Select SelectV2")
def _select(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [shapes[1]] if node.op == "Select" else _broadcast(node, shapes[1:], constants)
