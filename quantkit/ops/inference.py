"""Static shapes, and the multiply-adds that follow from them.

A rule says what shapes an op gives for the shapes it is given; where a size can not be known it is None, and
where an op has no rule its outputs have unknown rank. Nothing here raises on a graph that is merely unusual.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape, Tensor
from quantkit.ops import onnx
from quantkit.ops.shape_rules import SCALAR, ShapeRules, dims_of
from quantkit.ops.shape_rules import UNKNOWN as UNKNOWN

_RULES = ShapeRules()


def infer_shapes(graph: Graph, known: Mapping[Edge, Shape] | None = None) -> Mapping[Edge, Shape]:
    """The shape of every edge that something is known of.

    Args:
        graph: of TensorFlow's or of ONNX's ops.
        known: what the file says of edges whose ops have no rule, or do not tell.

    Raises:
        GraphError: the nodes form a cycle.
    """
    shapes: dict[Edge, Shape] = dict(known or {})
    rules = onnx.RULES if graph.dialect == "onnx" else _RULES
    for name in graph.order:
        node = graph[name]
        rule = rules.get(node.op)
        if rule is None:
            continue
        given = [shapes.get(edge, UNKNOWN) for edge in node.inputs]
        constants = {
            slot: value for slot, edge in enumerate(node.inputs) if (value := graph.constant_of(edge)) is not None
        }
        try:
            made = rule(node, given, constants)
        except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError):
            continue  # the graph does not fit the op: whoever runs it will say so better
        for port, shape in enumerate(made):
            if shape.dims is not None or Edge(name, port) not in shapes:
                shapes[Edge(name, port)] = shape
    return shapes


def multiply_adds(node: Node, shapes: Mapping[Edge, Shape]) -> int | None:
    """Multiplications followed by an addition that a convolution or matrix product does; 0 for other ops.

    Returns:
        The count, or None where a shape is unknown, or the op runs other graphs (loops, branches, calls).
    """
    if node.op.endswith(("While", "If", "Case", "PartitionedCall")):
        return None
    kind = node.op.removeprefix("Quantized")
    if not kind.startswith(("Conv2D", "DepthwiseConv2dNative", "DepthwiseConv2D", "MatMul", "BatchMatMul")):
        return 0
    out, weights = shapes.get(Edge(node.name), UNKNOWN), shapes.get(node.inputs[1], UNKNOWN)
    if not out.is_known or not weights.is_known:
        return None
    kernel = weights.known
    if kind.startswith("Conv2DBackpropInput"):
        given = shapes.get(node.inputs[2], UNKNOWN)
        return math.prod(given.known) * math.prod(kernel[:3]) if given.is_known else None
    if kind.startswith("Conv2D"):
        return math.prod(out.known) * math.prod(kernel[:3])
    if kind.startswith("Depthwise"):
        return math.prod(out.known) * math.prod(kernel[:2])
    depth = kernel[-1] if node.attrs.get("transpose_b") or node.attrs.get("adj_y") else kernel[-2]
    return math.prod(out.known) * depth


@_RULES.rule(
    "Identity CheckNumerics StopGradient Relu Relu6 Elu Selu LeakyRelu Sigmoid Tanh Softmax LogSoftmax Softplus Abs "
    "Neg Exp Log Sqrt Rsqrt Square Floor Ceil Round Cast BiasAdd LRN ZerosLike OnesLike FakeQuantWithMinMaxVars "
    "FakeQuantWithMinMaxArgs Erf Sign LogicalNot PlaceholderWithDefault Dequantize"
)
def _same(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return given[:1]


@_RULES.rule(
    "QuantizeV2 Requantize QuantizedRelu QuantizedRelu6 QuantizedBiasAdd QuantizedReshape FusedBatchNorm "
    "FusedBatchNormV2 FusedBatchNormV3 BatchNormWithGlobalNormalization"
)
def _same_and_scalars(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    if node.op == "QuantizedReshape":
        return [*_reshape(node, given, constants), SCALAR, SCALAR]
    return given[:1] if "BatchNorm" in node.op else [given[0], SCALAR, SCALAR]


@_RULES.rule("IdentityN")
def _same_each(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return given


@_RULES.rule("Placeholder")
def _placeholder(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    shape = node.attrs.get("shape")
    return [shape if isinstance(shape, Shape) else UNKNOWN]


@_RULES.rule("EnsureShape")
def _ensured(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    stated = node.attrs["shape"]
    if not isinstance(stated, Shape) or stated.dims is None or given[0].dims is None:
        return [stated if isinstance(stated, Shape) and stated.dims is not None else given[0]]
    pairs = zip(stated.dims, given[0].dims, strict=True)
    return [Shape(tuple(found if size is None else size for size, found in pairs))]


@_RULES.rule("Const")
def _const(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [Shape(node.value.shape)]


@_RULES.rule(
    "Add AddV2 Sub Mul Div RealDiv Maximum Minimum Pow SquaredDifference FloorDiv FloorMod Greater GreaterEqual Less "
    "LessEqual Equal NotEqual LogicalAnd LogicalOr QuantizedAdd QuantizedMul"
)
def _broadcast(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second = dims_of(given[0]), dims_of(given[1])
    rank = max(len(first), len(second))
    pairs = zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True)
    dims = [b if a == 1 else a if b in (1, a) else a if b is None and a is not None else b for a, b in pairs]
    return [Shape(tuple(dims))] + ([SCALAR, SCALAR] if node.op.startswith("Quantized") else [])


def _window(size: int | None, kernel: int, stride: int, padding: Any, dilation: int = 1) -> int | None:
    """Positions of a window along one axis."""
    if size is None:
        return None
    if padding == b"SAME":
        return -(-size // stride)
    reach = (kernel - 1) * dilation + 1
    before_after = padding if isinstance(padding, int) else 0
    return (size + before_after - reach) // stride + 1


def _spatial(node: Node) -> tuple[int, int, int]:
    """(height, width, channel) axes."""
    return (2, 3, 1) if node.attrs.get("data_format", b"NHWC") == b"NCHW" else (1, 2, 3)


def _windowed(node: Node, given: Shape, kernel: Sequence[int], channels: int | None) -> Shape:
    height, width, channel = _spatial(node)
    dims = list(dims_of(given))
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


@_RULES.rule("Conv2D QuantizedConv2D DepthwiseConv2dNative QuantizedDepthwiseConv2D")
def _conv(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    kernel = given[1].known
    channels = kernel[2] * kernel[3] if "Depthwise" in node.op else kernel[3]
    made = _windowed(node, given[0], kernel[:2], channels)
    return [made, SCALAR, SCALAR] if node.op.startswith("Quantized") else [made]


@_RULES.rule("FusedPadConv2D FusedResizeAndPadConv2D")
def _fused_conv(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    batch, height, width, channels = dims_of(given[0])
    if node.op == "FusedResizeAndPadConv2D":
        height, width = (int(size) for size in constants[1].array)
    paddings = constants[len(given) - 2].array.sum(1)
    height, width = (
        None if size is None else size + int(w) for size, w in zip((height, width), paddings[1:3], strict=True)
    )
    kernel = given[-1].known
    return [_windowed(node, Shape((batch, height, width, channels)), kernel[:2], kernel[3])]


@_RULES.rule("MaxPool AvgPool QuantizedMaxPool QuantizedAvgPool")
def _pool(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    size: Any = node.attrs["ksize"]
    height, width, _ = _spatial(node)
    made = _windowed(node, given[0], (size[height], size[width]), None)
    return [made, SCALAR, SCALAR] if node.op.startswith("Quantized") else [made]


@_RULES.rule("MatMul QuantizedMatMul")
def _matmul(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second = dims_of(given[0]), dims_of(given[1])
    rows = first[1] if node.attrs.get("transpose_a") else first[0]
    columns = second[0] if node.attrs.get("transpose_b") else second[1]
    made = Shape((rows, columns))
    return [made, SCALAR, SCALAR] if node.op.startswith("Quantized") else [made]


@_RULES.rule("Concat ConcatV2 QuantizedConcat")
def _concat(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    slot = len(given) - 1 if node.op == "ConcatV2" else 0
    count: Any = node.attrs.get("N", len(given) - 1)
    joined = [dims_of(shape) for shape in (given[:slot] if slot else given[1 : 1 + count])]
    axis = int(constants[slot].array) % len(joined[0])
    dims = list(joined[0])
    sizes = [dims_[axis] for dims_ in joined]
    dims[axis] = None if None in sizes else sum(size for size in sizes if size is not None)
    return [Shape(tuple(dims)), SCALAR, SCALAR][: 3 if node.op.startswith("Quantized") else 1]


@_RULES.rule("Reshape")
def _reshape(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    wanted = [int(size) for size in constants[1].array.reshape(-1)]
    if -1 in wanted and given[0].is_known:
        rest = math.prod(size for size in wanted if size != -1)
        wanted[wanted.index(-1)] = math.prod(given[0].known) // rest
    return [Shape(tuple(None if size < 0 else size for size in wanted))]


@_RULES.rule("Squeeze")
def _squeeze(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(given[0])
    listed: Any = node.attrs.get("squeeze_dims") or ()
    axes = {axis % len(dims) for axis in listed} or {axis for axis, size in enumerate(dims) if size == 1}
    return [Shape(tuple(size for axis, size in enumerate(dims) if axis not in axes))]


@_RULES.rule("ExpandDims")
def _expand_dims(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(given[0])
    axis = int(constants[1].array) % (len(dims) + 1)
    return [Shape((*dims[:axis], 1, *dims[axis:]))]


@_RULES.rule("Tile")
def _tile(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    times = constants[1].array.tolist()
    pairs = zip(given[0].dims or (), times, strict=True)
    return [Shape([None if size is None else size * count for size, count in pairs])] if given[0].dims else [UNKNOWN]


@_RULES.rule("Pad PadV2 MirrorPad")
def _pad(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    widths = constants[1].array.sum(1)
    return [
        Shape(tuple(None if size is None else size + int(w) for size, w in zip(dims_of(given[0]), widths, strict=True)))
    ]


@_RULES.rule("Mean Sum Max Min Prod All Any")
def _reduction(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(given[0])
    axes = {int(axis) % len(dims) for axis in constants[1].array.reshape(-1)}
    if node.attrs.get("keep_dims"):
        return [Shape(tuple(1 if axis in axes else size for axis, size in enumerate(dims)))]
    return [Shape(tuple(size for axis, size in enumerate(dims) if axis not in axes))]


@_RULES.rule("Transpose")
def _transpose(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(given[0])
    return [Shape(tuple(dims[int(axis)] for axis in constants[1].array))]


@_RULES.rule("ResizeBilinear ResizeNearestNeighbor ResizeBicubic QuantizedResizeBilinear")
def _resize(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    batch, _, _, channels = dims_of(given[0])
    height, width = (int(size) for size in constants[1].array)
    return [Shape((batch, height, width, channels)), SCALAR, SCALAR][: 3 if node.op.startswith("Quantized") else 1]


@_RULES.rule("Pack")
def _pack(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(given[0])
    axis: Any = node.attrs.get("axis", 0)
    axis %= len(dims) + 1
    return [Shape((*dims[:axis], len(given), *dims[axis:]))]


@_RULES.rule("Split")
def _split(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = list(dims_of(given[1]))
    count: Any = node.attrs["num_split"]
    axis = int(constants[0].array) % len(dims)
    size = dims[axis]
    dims[axis] = None if size is None else size // count
    return [Shape(tuple(dims))] * count


@_RULES.rule("SplitV")
def _split_by_sizes(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(given[0])
    axis = int(constants[2].array) % len(dims)
    sizes = [int(size) for size in constants[1].array.reshape(-1)]
    whole = dims[axis]
    if -1 in sizes and whole is not None:
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size != -1)
    return [Shape((*dims[:axis], None if size < 0 else size, *dims[axis + 1 :])) for size in sizes]


@_RULES.rule("Shape")
def _shape(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return [Shape((len(dims_of(given[0])),))]


@_RULES.rule("DecodeJpeg DecodePng")
def _decoded(node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    channels: Any = node.attrs.get("channels") or None
    return [Shape((None, None, channels))]
