"""Shape rules of TensorFlow ops."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.kernels import evaluate
from quantkit.ops.shape_rules import (
    SCALAR,
    UNKNOWN,
    PartialShapeRule,
    Rules,
    ShapeRule,
    Sizes,
    as_shape,
    broadcast_shapes,
    concat_shapes,
    dims_of,
    insert_axis,
    reduce_axes,
    replace_axis,
    stated_shape,
    tiled_shape,
    unknown_sizes,
)
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import attribute, op_names, output_dtypes

RULES: Rules[ShapeRule] = Rules()
# Shapes of ops whose sizes are inputs; these inputs may have unknown elements.
PARTIAL_SHAPES: Rules[PartialShapeRule] = Rules()
# Sizes in the place of an unknown one: a slice of one element for both does not depend on it.
UNKNOWN_SIZES = (1, 997)


RULES.rule(
    "Softmax LogSoftmax BiasAdd LRN FakeQuantWithMinMaxVars FakeQuantWithMinMaxArgs PlaceholderWithDefault Dequantize "
    "Cumsum ClipByValue ReverseV2 ReverseSequence TensorScatterUpdate TensorScatterAdd TensorScatterSub AddN BiasAddV1 "
    "Roll InvertPermutation MatrixBandPart MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 FusedBatchNorm "
    "FusedBatchNormV2 FusedBatchNormV3 BatchNormWithGlobalNormalization",
    *find_ops(Fact.UNARY, "tensorflow"),
)(lambda node, shapes, constants: shapes[:1])
RULES.rule("QuantizeV2 Requantize QuantizedRelu QuantizedRelu6 QuantizedBiasAdd")(
    lambda node, shapes, constants: [shapes[0], SCALAR, SCALAR]
)
RULES.rule("RequantizationRange")(lambda node, shapes, constants: [SCALAR, SCALAR])
RULES.rule("IdentityN")(lambda node, shapes, constants: shapes)
RULES.rule("Placeholder")(stated_shape)
RULES.rule("Const")(lambda node, shapes, constants: [Shape(node.value.shape)])
RULES.rule("Select")(lambda node, shapes, constants: [shapes[1]])
RULES.rule("SelectV2")(lambda node, shapes, constants: [broadcast_shapes(shapes[1:])])
RULES.rule(*find_ops(Fact.BINARY, "tensorflow"))(lambda node, shapes, constants: [broadcast_shapes(shapes[:2])])
RULES.rule("QuantizedAdd QuantizedMul")(lambda node, shapes, constants: [broadcast_shapes(shapes[:2]), SCALAR, SCALAR])
RULES.rule("Range")(lambda node, shapes, constants: [Shape((None,))])
RULES.rule("Shape")(lambda node, shapes, constants: [Shape((len(dims_of(shapes[0])),))])
RULES.rule("Tile")(lambda node, shapes, constants: [Shape((None,) * len(dims_of(shapes[0])))])
PARTIAL_SHAPES.rule("Tile")(tiled_shape)
RULES.rule("Pad PadV2 MirrorPad")(
    lambda node, shapes, constants: [_pad_shape(shapes[0], constants[1].array.reshape(-1).tolist())]
)
RULES.rule("Transpose")(
    lambda node, shapes, constants: [Shape([dims_of(shapes[0])[axis] for axis in constants[1].array.tolist()])]
)
RULES.rule("ExpandDims")(lambda node, shapes, constants: [insert_axis(shapes[0], constants[1].array.item(), 1)])
RULES.rule("Pack")(lambda node, shapes, constants: [insert_axis(shapes[0], attribute(node, "axis"), len(shapes))])
RULES.rule("Unpack")(
    lambda node, shapes, constants: [replace_axis(shapes[0], attribute(node, "axis"))] * len(output_dtypes(node))
)
RULES.rule("OneHot")(
    lambda node, shapes, constants: [insert_axis(shapes[0], attribute(node, "axis"), _count(constants))]
)
RULES.rule("TopKV2")(lambda node, shapes, constants: [replace_axis(shapes[0], -1, _count(constants))] * 2)
RULES.rule("ArgMax ArgMin")(lambda node, shapes, constants: [replace_axis(shapes[0], constants[1].array.item())])
RULES.rule(*find_ops(Fact.REDUCTION, "tensorflow"))(
    lambda node, shapes, constants: [
        reduce_axes(shapes[0], constants[1].array.reshape(-1).tolist(), node.attrs.get("keep_dims"))
    ]
)


def _count(constants: Mapping[int, Tensor]) -> int | None:
    """Return the integer of input 1; None if it is computed."""
    return int(constants[1].array.item()) if 1 in constants else None


@RULES.rule("EnsureShape")
def _ensure_shape(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    stated = node.attrs["shape"]
    if not isinstance(stated, Shape) or stated.dims is None or shapes[0].dims is None:
        return [stated if isinstance(stated, Shape) and stated.dims is not None else shapes[0]]
    pairs = zip(stated.dims, shapes[0].dims, strict=True)
    return [Shape(tuple(inferred if size is None else size for size, inferred in pairs))]


def _window(size: int | None, kernel: int, stride: int, padding: Any, dilation: int = 1) -> int | None:
    """Return the number of windows along one axis; an integer as padding is the sum of both sides."""
    if size is None:
        return None
    if padding == b"SAME":
        return -(-size // stride)
    span = (kernel - 1) * dilation + 1
    total_padding = padding if isinstance(padding, int) else 0
    return (size + total_padding - span) // stride + 1


def _slide_window(node: Node, shape: Shape, kernel: Sequence[int], channels: int | None) -> Shape:
    """Return the output shape of a layer or pool.

    Args:
        node: layer or pool.
        shape: shape of its input.
        kernel: sizes of the window along the spatial axes, two for images and three for volumes.
        channels: output channels; None for the channels of the input.
    """
    dims = list(dims_of(shape))
    is_channels_first = node.attrs.get("data_format") in (b"NCHW", b"NCDHW")
    strides = node.attrs.get("strides", (1,) * len(dims))
    dilations = node.attrs.get("dilations") or (1,) * len(dims)
    explicit = node.attrs.get("explicit_paddings") or ()
    for axis, size in enumerate(kernel, 2 if is_channels_first else 1):
        padding = node.attrs.get("padding", b"VALID")
        if padding == b"EXPLICIT":
            padding = explicit[2 * axis] + explicit[2 * axis + 1]
        dims[axis] = _window(dims[axis], size, strides[axis], padding, dilations[axis])
    if channels is not None:
        dims[1 if is_channels_first else -1] = channels
    return Shape(tuple(dims))


def _quantized_ops(layer: str) -> str:
    """Return the 8-bit op types of a layer, separated by spaces."""
    return " ".join(name for name in op_names() if re.match(f"_?(Fused)?Quantized(Depthwise)?{layer}", name))


@RULES.rule(f"Conv2D Conv3D DepthwiseConv2dNative _FusedConv2D _FusedDepthwiseConv2dNative {_quantized_ops('Conv2D')}")
def _conv(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    kernel = shapes[1].sizes
    channels = kernel[2] * kernel[3] if "Depthwise" in node.op else kernel[-1]
    paddings = node.attrs.get("padding_list")
    padded = _pad_shape(shapes[0], paddings) if paddings else shapes[0]
    output = _slide_window(node, padded, kernel[:-2], channels)
    return [output, SCALAR, SCALAR] if node.op in ("QuantizedConv2D", "QuantizedDepthwiseConv2D") else [output]


def _pad_shape(shape: Shape, widths: Sequence[int]) -> Shape:
    """Add the padding before and after each dimension to its size."""
    sums = [low + high for low, high in zip(widths[::2], widths[1::2], strict=True)]
    return Shape([None if size is None else size + width for size, width in zip(dims_of(shape), sums, strict=True)])


@RULES.rule(
    "BroadcastTo Conv2DBackpropInput Conv3DBackpropInputV2 Fill RandomStandardNormal RandomUniform TruncatedNormal"
)
def _shape_from_input(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    slot = 1 if node.op == "BroadcastTo" else 0
    if slot in constants:
        return [Shape(tuple(int(size) for size in constants[slot].array))]
    return [unknown_sizes(shapes[slot])]


@PARTIAL_SHAPES.rule("Reshape BroadcastTo Fill Conv2DBackpropInput")
def _partial_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    stated = sizes[1 if node.op in ("Reshape", "BroadcastTo") else 0].tolist()
    return [as_shape(stated)] if None in stated else ()  # known sizes are constants for the other rules


@RULES.rule("BroadcastArgs")
def _broadcast_args(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    ranks = [rank for shape in shapes for rank in dims_of(shape)]
    return [Shape((None if None in ranks else max(rank or 0 for rank in ranks),))]


def _slice_by_computed_limits(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Shape:
    """Return the shape of a slice whose limits are not all constant; axes without limits keep their sizes."""
    begin_mask, end_mask = (node.attrs.get(f"{name}_mask", 0) for name in ("begin", "end"))
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


@RULES.rule("Bitcast")
def _bitcast(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    source, target = (attribute(node, name).numpy.itemsize for name in ("T", "type"))
    return [shapes[0] if source == target else UNKNOWN]


@RULES.rule("Gather GatherV2")
def _gather(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    axis = constants[2].array.item() if node.op == "GatherV2" else 0
    return [replace_axis(shapes[0], axis, *dims_of(shapes[1])[node.attrs.get("batch_dims", 0) :])]


@RULES.rule("Einsum")
def _einsum(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    operands, _, result = attribute(node, "equation").decode().replace(" ", "").partition("->")
    sizes: dict[str, int | None] = {}
    for letters, shape in zip(operands.split(","), shapes, strict=True):
        sizes |= dict(zip(letters, dims_of(shape), strict=True))  # an ellipsis raises ValueError: unknown shape
    return [Shape(tuple(sizes[letter] for letter in result))]


@RULES.rule("FusedPadConv2D FusedResizeAndPadConv2D")
def _fused_conv(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    batch, *sizes, channels = dims_of(shapes[0])
    if node.op == "FusedResizeAndPadConv2D":
        sizes = constants[1].array.tolist()
    (_, *paddings, _), kernel = constants[len(shapes) - 2].array.tolist(), shapes[-1].sizes
    padded = _pad_shape(Shape((batch, *sizes, channels)), (0, 0, *chain.from_iterable(paddings), 0, 0))
    return [_slide_window(node, padded, kernel[:2], kernel[3])]


@RULES.rule("MaxPool AvgPool MaxPool3D AvgPool3D QuantizedMaxPool QuantizedAvgPool")
def _pool(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    size = node.attrs["ksize"]
    kernel = size[2:] if node.attrs.get("data_format") in (b"NCHW", b"NCDHW") else size[1:-1]
    output = _slide_window(node, shapes[0], kernel, None)
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
    batch_shape = broadcast_shapes([Shape(batch), Shape(other)])
    row = depth if node.attrs.get("adj_x") else rows
    return [Shape((*dims_of(batch_shape), row, inner if node.attrs.get("adj_y") else columns))]


@RULES.rule("Concat ConcatV2 QuantizedConcat")
def _concat(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    slot = len(shapes) - 1 if node.op == "ConcatV2" else 0
    count = node.attrs.get("N", len(shapes) - 1)
    output = concat_shapes(shapes[:slot] if slot else shapes[1 : 1 + count], constants[slot].array.item())
    return [output, SCALAR, SCALAR][: 3 if node.op.startswith("Quantized") else 1]


@RULES.rule("Reshape")
def _reshape(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    sizes = [int(size) for size in constants[1].array.reshape(-1)]
    if -1 in sizes and shapes[0].is_known:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shapes[0].sizes) // rest
    return [Shape(tuple(None if size < 0 else size for size in sizes))]


RULES.rule("QuantizedReshape")(lambda node, shapes, constants: [*_reshape(node, shapes, constants), SCALAR, SCALAR])


@RULES.rule("Squeeze")
def _squeeze(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    squeezed = node.attrs.get("squeeze_dims") or [i for i, size in enumerate(dims_of(shapes[0])) if size == 1]
    return [reduce_axes(shapes[0], squeezed, keeps_axes=False)]


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


@RULES.rule("ResizeBilinear ResizeNearestNeighbor ResizeBicubic QuantizedResizeBilinear")
def _resize(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    batch, _, _, channels = dims_of(shapes[0])
    height, width = (int(size) for size in constants[1].array)
    return [Shape((batch, height, width, channels)), SCALAR, SCALAR][: 3 if node.op.startswith("Quantized") else 1]


@RULES.rule("Split")
def _split(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    count, axis = len(output_dtypes(node)), constants[0].array.item()
    size = dims_of(shapes[1])[axis]
    return [replace_axis(shapes[1], axis, None if size is None else size // count)] * count


@RULES.rule("SplitV")
def _split_by_sizes(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    axis, sizes = constants[2].array.item(), constants[1].array.reshape(-1).tolist()
    whole = dims_of(shapes[0])[axis]
    if -1 in sizes and whole is not None:
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size != -1)
    return [replace_axis(shapes[0], axis, None if size < 0 else size) for size in sizes]


@RULES.rule("While StatelessWhile If StatelessIf")
def _stated_outputs(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    stated = node.attrs.get("output_shapes", ())
    return stated if all(isinstance(shape, Shape) for shape in stated) else ()


@RULES.rule("TensorListStack")
def _stack_list(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    count = attribute(node, "num_elements")
    sizes = constants[1].array.tolist()
    return [Shape(tuple(None if size < 0 else size for size in (count, *sizes)))]


@RULES.rule("DecodeJpeg DecodePng")
def _decode_image(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [Shape((None, None, (node.attrs.get("channels") or None)))]


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
