"""Shape rules and MACs of ONNX ops, and the stateful op types.

Images have the layout (n, c, h, w), weights of a convolution (c_out, c_in / groups, h, w).
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import Shape, Tensor
from quantkit.ops.shape_rules import SCALAR, UNKNOWN, Dims, Rules, ShapeRule, dims_of

RULES: Rules[ShapeRule] = Rules()

_RANDOM = re.compile(r"Random(Normal|Uniform)(Like)?|Multinomial|Bernoulli|Dropout|If|Loop|Scan")


def is_stateful(op: str) -> bool | None:
    """Return whether two equal nodes can have different outputs; None for an op of another domain.

    >>> is_stateful("Relu"), is_stateful("RandomNormal"), is_stateful("com.example.Relu")
    (False, True, None)
    """
    return None if "." in op else _RANDOM.fullmatch(op) is not None


def count_macs(node: Node, shapes: Mapping[Edge, Shape]) -> int | None:
    """Return the MACs of a node; None if a shape is unknown or the op runs subgraphs."""
    if node.op in ("If", "Loop", "Scan"):
        return None
    slot = _WEIGHTS.get(node.op)
    if slot is None:
        return 0
    out, weights = shapes.get(Edge(node.name), UNKNOWN), shapes.get(node.inputs[slot], UNKNOWN)
    if not out.is_known or not weights.is_known:
        return None
    kernel = weights.sizes
    if node.op == "ConvTranspose":
        x = shapes.get(node.inputs[0], UNKNOWN)
        return math.prod(x.sizes) * math.prod(kernel[1:]) if x.is_known else None
    if "Conv" in node.op:
        return math.prod(out.sizes) * math.prod(kernel[1:])
    depth = kernel[-1] if node.attrs.get("transB") or len(kernel) == 1 else kernel[-2]
    return math.prod(out.sizes) * depth


# Input index of the weights.
_WEIGHTS = {
    "Conv": 1,
    "ConvInteger": 1,
    "ConvTranspose": 1,
    "Gemm": 1,
    "MatMul": 1,
    "MatMulInteger": 1,
    "QLinearConv": 3,
    "QLinearMatMul": 3,
}


def _integers(node: Node, name: str, constants: Mapping[int, Tensor], slot: int) -> list[int] | None:
    """Return the integers of an attribute, or of the constant input that replaces it in later opsets.

    Returns:
        The integers; None if the node has neither.
    """
    attr: Any = node.attrs.get(name)
    if attr is not None:
        return list(attr)
    return [int(value) for value in constants[slot].array.reshape(-1)] if slot in constants else None


@RULES.rule(
    "Identity Relu LeakyRelu PRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Tanh Softmax LogSoftmax Softplus "
    "Softsign Gelu Mish Abs Neg Exp Log Sqrt Reciprocal Floor Ceil Round Cast Clip Erf Sign Not LRN BatchNormalization "
    "InstanceNormalization LayerNormalization GroupNormalization Dropout QuantizeLinear DequantizeLinear Sin Cos "
    "CumSum IsNaN IsInf LpNormalization"
)
def _same(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    return shapes[:1]


@RULES.rule("Placeholder")
def _placeholder(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    shape = node.attrs.get("shape")
    return [shape if isinstance(shape, Shape) else UNKNOWN]


@RULES.rule("Constant")
def _constant(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    if isinstance(node.attrs.get("value"), Tensor):
        return [Shape(node.value.shape)]
    for key in ("value_floats", "value_ints", "value_strings"):
        values: Any = node.attrs.get(key)
        if values is not None:
            return [Shape((len(values),))]
    return [SCALAR if {"value_float", "value_int", "value_string"} & node.attrs.keys() else UNKNOWN]


@RULES.rule("Add Sub Mul Div Pow Max Min Mean Sum Mod And Or Xor Greater GreaterOrEqual Less LessOrEqual Equal Where")
def _broadcast(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims: Dims = ()
    for shape in shapes:
        other = dims_of(shape)
        rank = max(len(dims), len(other))
        pairs = zip((1,) * (rank - len(dims)) + dims, (1,) * (rank - len(other)) + other, strict=True)
        dims = tuple(b if a == 1 else a if b in (1, a) or b is None else b for a, b in pairs)
    return [Shape(dims)]


def _windows(node: Node, dims: Dims, kernel: Sequence[int]) -> list[int | None]:
    """Return the number of windows along each spatial axis."""
    count = len(kernel)
    attrs: Mapping[str, Any] = node.attrs
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
            last = padded - span
            counts.append((-(-last // strides[axis]) if attrs.get("ceil_mode") else last // strides[axis]) + 1)
    return counts


@RULES.rule("Conv ConvInteger QLinearConv")
def _conv(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    weights, dims = shapes[3 if node.op == "QLinearConv" else 1].sizes, dims_of(shapes[0])
    return [Shape((dims[0], weights[0], *_windows(node, dims, weights[2:])))]


@RULES.rule("ConvTranspose")
def _conv_transpose(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    weights, dims = shapes[1].sizes, dims_of(shapes[0])
    attrs: Mapping[str, Any] = node.attrs
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


@RULES.rule("MaxPool AveragePool LpPool")
def _pool(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    kernel: Any = node.attrs["kernel_shape"]
    dims = dims_of(shapes[0])
    return [Shape((*dims[:2], *_windows(node, dims, kernel)))]


@RULES.rule("GlobalAveragePool GlobalMaxPool GlobalLpPool")
def _global_pool(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    return [Shape((*dims[:2], *(1,) * (len(dims) - 2)))]


@RULES.rule("Gemm")
def _gemm(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second = dims_of(shapes[0]), dims_of(shapes[1])
    return [Shape((first[1 if node.attrs.get("transA") else 0], second[0 if node.attrs.get("transB") else 1]))]


@RULES.rule("MatMul MatMulInteger QLinearMatMul")
def _matmul(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    first, second = dims_of(shapes[0]), dims_of(shapes[3 if node.op == "QLinearMatMul" else 1])
    if len(first) < 2 or len(second) < 2:
        return [UNKNOWN]
    (batch_shape,) = _broadcast(node, [Shape(first[:-2]), Shape(second[:-2])], {})
    return [Shape((*dims_of(batch_shape), first[-2], second[-1]))]


@RULES.rule("Concat")
def _concat(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    inputs = [dims_of(shape) for shape in shapes]
    axis: Any = node.attrs["axis"]
    sizes = [dims[axis] for dims in inputs]
    dims = list(inputs[0])
    dims[axis] = None if None in sizes else sum(size for size in sizes if size is not None)
    return [Shape(tuple(dims))]


@RULES.rule("Reshape")
def _reshape(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    values = [int(size) for size in constants[1].array.reshape(-1)]
    copied = [] if node.attrs.get("allowzero") else [axis for axis, size in enumerate(values) if size == 0]
    dims = dims_of(shapes[0]) if copied or shapes[0].dims is not None else ()
    sizes: list[int | None] = [dims[axis] if axis in copied else size for axis, size in enumerate(values)]
    if -1 in sizes:
        # Copied axes occur in both shapes: the size of axis -1 follows from the other axes.
        before = [size for axis, size in enumerate(dims) if axis not in copied]
        after = math.prod(size for axis, size in enumerate(values) if size != -1 and axis not in copied)
        is_known = shapes[0].dims is not None and None not in before
        sizes[sizes.index(-1)] = math.prod(size for size in before if size is not None) // after if is_known else None
    return [Shape(tuple(sizes))]


@RULES.rule("Flatten")
def _flatten(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    axis: Any = node.attrs.get("axis", 1)
    halves = dims[:axis], dims[axis:]
    return [
        Shape(tuple(None if None in half else math.prod(size for size in half if size is not None) for half in halves))
    ]


@RULES.rule("Transpose")
def _transpose(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    order: Any = node.attrs.get("perm") or range(len(dims))[::-1]
    return [Shape(tuple(dims[axis] for axis in order))]


@RULES.rule("Squeeze")
def _squeeze(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    values = _integers(node, "axes", constants, 1)
    if values is None:
        values = [axis for axis, size in enumerate(dims) if size == 1]
    axes = {axis % len(dims) for axis in values}
    return [Shape(tuple(size for axis, size in enumerate(dims) if axis not in axes))]


@RULES.rule("Unsqueeze")
def _unsqueeze(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    values = _integers(node, "axes", constants, 1) or []
    rank = len(dims_of(shapes[0])) + len(values)
    axes, rest = {axis % rank for axis in values}, iter(dims_of(shapes[0]))
    return [Shape(tuple(1 if axis in axes else next(rest) for axis in range(rank)))]


@RULES.rule("ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp")
def _reduction(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    values = _integers(node, "axes", constants, 1)
    axes = {axis % len(dims) for axis in (range(len(dims)) if values is None else values)}
    if node.attrs.get("keepdims", 1):
        return [Shape(tuple(1 if axis in axes else size for axis, size in enumerate(dims)))]
    return [Shape(tuple(size for axis, size in enumerate(dims) if axis not in axes))]


@RULES.rule("Pad")
def _pad(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    pads = _integers(node, "pads", constants, 1)
    if pads is None or len(shapes) > 3 or len(pads) != 2 * len(dims):
        return [Shape((None,) * len(dims))]
    sides = zip(dims, pads[: len(dims)], pads[len(dims) :], strict=True)
    return [Shape(tuple(None if size is None else size + before + after for size, before, after in sides))]


@RULES.rule("Split")
def _split(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = list(dims_of(shapes[0]))
    axis: Any = node.attrs.get("axis", 0)
    parts = _integers(node, "split", constants, 1)
    names: Any = node.attrs.get("_outputs", (b"",))
    if parts is None:
        size = dims[axis]
        parts_or_none: list[int | None] = [None if size is None else -(-size // len(names))] * len(names)
        if size is not None and size % len(names):
            parts_or_none = [None] * len(names)
        return [Shape((*dims[:axis], part, *dims[axis % len(dims) + 1 :])) for part in parts_or_none]
    return [Shape((*dims[:axis], part, *dims[axis % len(dims) + 1 :])) for part in parts]


@RULES.rule("Gather")
def _gather(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims, indices = dims_of(shapes[0]), dims_of(shapes[1])
    axis: Any = node.attrs.get("axis", 0)
    axis %= len(dims)
    return [Shape((*dims[:axis], *indices, *dims[axis + 1 :]))]


@RULES.rule("Shape")
def _shape(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    attrs: Mapping[str, Any] = node.attrs
    return [Shape((len(dims_of(shapes[0])[attrs.get("start", 0) : attrs.get("end")]),))]


@RULES.rule("Resize Upsample")
def _resize(node: Node, shapes: Sequence[Shape], constants: Mapping[int, Tensor]) -> Sequence[Shape]:
    dims = dims_of(shapes[0])
    if 3 in constants and constants[3].num_elements == len(dims):
        return [Shape(tuple(int(size) for size in constants[3].array))]
    scales = constants[1 if node.op == "Upsample" else 2].array
    pairs = zip(dims, scales, strict=True)
    return [Shape(tuple(None if size is None else math.floor(size * float(scale)) for size, scale in pairs))]
