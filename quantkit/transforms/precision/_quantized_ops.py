"""Replacement of float ops by TensorFlow's quantized ops: step 4 of `quantize_nodes`.

A quantized tensor is a triple: the quantized values, and the real values of the lowest and of the
highest quantized value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip, rewrite_nodes
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import attribute, find_op, input_dtypes, output_dtypes

FLATTEN = Tensor.of([-1])
FIRST_AXIS = Tensor.of([0])
EXTREME_ATTRS: dict[str, Attr] = {"T": DType.FLOAT, "keep_dims": False}
LAYOUT_ATTRS = ("data_format", "padding", "dilations", "strides", "ksize")


@dataclass(frozen=True)
class QuantizedOp:
    """Quantized form of a float op.

    Attributes:
        name: op type.
        type_attrs: attributes of the quantized input types.
        wide_attr: attribute of the 32-bit output type; empty if outputs are 8-bit.
        copied: attributes copied from the float op.
        raw: indexes of inputs that are not quantized (shapes, axes).
        groups_ranges: True if all minima precede all maxima, False if they come in pairs.
    """

    name: str
    type_attrs: tuple[str, ...]
    wide_attr: str = ""
    copied: tuple[str, ...] = ()
    raw: tuple[int, ...] = ()
    groups_ranges: bool = False


QUANTIZED_OPS = {
    "Add": QuantizedOp("QuantizedAdd", ("T1", "T2"), "Toutput"),
    "AvgPool": QuantizedOp("QuantizedAvgPool", ("T",), copied=("ksize", "strides", "padding")),
    "BiasAdd": QuantizedOp("QuantizedBiasAdd", ("T1", "T2"), "out_type"),
    "Concat": QuantizedOp("QuantizedConcat", ("T",), copied=("N",), raw=(0,), groups_ranges=True),
    "Conv2D": QuantizedOp("QuantizedConv2D", ("Tinput", "Tfilter"), "out_type", copied=("strides", "padding")),
    "MatMul": QuantizedOp("QuantizedMatMul", ("T1", "T2"), "Toutput", copied=("transpose_a", "transpose_b")),
    "MaxPool": QuantizedOp("QuantizedMaxPool", ("T",), copied=("ksize", "strides", "padding")),
    "Mul": QuantizedOp("QuantizedMul", ("T1", "T2"), "Toutput"),
    "Relu": QuantizedOp("QuantizedRelu", ("Tinput",)),
    "Relu6": QuantizedOp("QuantizedRelu6", ("Tinput",)),
    "ResizeBilinear": QuantizedOp("QuantizedResizeBilinear", ("T",), copied=("align_corners",), raw=(1,)),
    "Reshape": QuantizedOp("QuantizedReshape", ("T",), raw=(1,)),
}
UNSUPPORTED_OPS = {"DepthwiseConv2dNative": "QuantizedDepthwiseConv2D requires signed weights"}
# Older equivalents of newer op types.
SYNONYMS = {"AddV2": "Add", "ConcatV2": "Concat"}
# Attributes that are copied only if they differ from the default of the quantized op.
RARE_ATTRS: dict[str, Attr] = {"half_pixel_centers": False, "Tshape": DType.INT32}


def quantize_ops(graph: Graph, *, fallback: tuple[float, float] | None, ignored: tuple[str, ...]) -> Outcome:
    """Replace each float op by QuantizeV2 of its inputs, a quantized op, and Dequantize.

    Args:
        graph: float graph.
        fallback: range of 32-bit results; None to compute the range at run time.
        ignored: op types that stay float.
    """
    shapes = infer_shapes(graph)

    def rewrite(node: Node) -> list[Node] | Skip | None:
        *constants, classic = classic_form(graph, node, shapes)
        if node.op in ignored or (classic.op not in QUANTIZED_OPS and node.op not in UNSUPPORTED_OPS):
            return None
        if reason := explain_float(graph, node, shapes):
            return Skip(reason)
        return [*constants, *_quantize_op(graph, classic, QUANTIZED_OPS[classic.op], fallback)]

    def describe(node: Node) -> str:
        return f"{node.name} ({node.op}) -> {QUANTIZED_OPS[SYNONYMS.get(node.op, node.op)].name}"

    return rewrite_nodes(graph, rewrite, describe)


def has_classic_form(op: str) -> bool:
    """Return True if `quantize_ops` has a quantized form of an op type."""
    return SYNONYMS.get(op, op) in QUANTIZED_OPS


def explain_float(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
    """Return the reason why `quantize_ops` keeps a node in float; empty if it quantizes the node.

    Args:
        graph: float graph.
        node: node of the graph.
        shapes: known shapes of the graph.
    """
    classic = classic_form(graph, node, shapes)[-1]
    quantized_op = QUANTIZED_OPS.get(classic.op)
    if quantized_op is None:
        return UNSUPPORTED_OPS.get(node.op, f"{node.op} has no classic quantized form")
    return _reason_to_stay(graph, classic, quantized_op, shapes)


def dequantize(name: str, quantized: Sequence[Edge]) -> Node:
    """Return a Dequantize of (quantized values, minimum, maximum)."""
    return Node(name, "Dequantize", tuple(quantized), attrs={"T": DType.QUINT8, "mode": b"MIN_FIRST"})


def quantize(name: str, inputs: Sequence[Edge], dtype: DType) -> Node:
    """Return a QuantizeV2 of (float tensor, minimum, maximum)."""
    return Node(name, "QuantizeV2", tuple(inputs), attrs={"T": dtype, "mode": b"MIN_FIRST"})


def requantize(name: str, wide: str, bounds: Sequence[Edge]) -> Node:
    """Return a Requantize of the 32-bit outputs of the node ``wide`` to 8 bits with a range."""
    return Node(name, "Requantize", (*ports(wide), *bounds), attrs={"Tinput": DType.QINT32, "out_type": DType.QUINT8})


def ports(name: str) -> tuple[Edge, Edge, Edge]:
    """Return the three outputs of a quantized op: quantized values, minimum, maximum."""
    return Edge(name, 0), Edge(name, 1), Edge(name, 2)


def classic_form(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> list[Node]:
    """Return the node as the op type with a quantized form, after its new axis constant, if any.

    Args:
        graph: float graph.
        node: node of the graph.
        shapes: known shapes of the graph.
    """
    if node.op == "AddV2":
        return [node.with_(op="Add")]
    if node.op == "ConcatV2" and node.inputs:
        node = node.with_(op="Concat", inputs=(node.inputs[-1], *node.inputs[:-1]))
    if node.op != "Concat" or not node.inputs:
        return [node]
    axis = graph.constant_of(node.inputs[0])
    if axis is None or axis.num_elements != 1:
        return [node]
    ranks = [shape.rank for edge in node.inputs[1:] if (shape := shapes.get(edge)) and shape.rank is not None]
    index = axis.array.item()
    positive_index = index + ranks[0] if index < 0 and ranks else index
    if positive_index < 0 or (positive_index == index and axis.dtype is DType.INT32):
        return [node]
    new_axis = constant(f"{node.name}_eightbit/axis", positive_index)
    return [new_axis, node.with_input(0, new_axis.name).with_attrs(Tidx=DType.INT32)]


def _quantize_op(
    graph: Graph, node: Node, quantized_op: QuantizedOp, fallback: tuple[float, float] | None
) -> list[Node]:
    """Return the nodes that replace a float op; the last node has its name."""
    name = f"{node.name}/eightbit"
    nodes: list[Node] = []
    quantized: dict[Edge, tuple[Edge, Edge, Edge]] = {}
    for slot, edge in enumerate(node.inputs):
        if slot not in quantized_op.raw and edge not in quantized:
            nodes.extend(_quantize_input(graph, node.name, edge))
            quantized[edge] = ports(nodes[-1].name)
    inputs = _inputs(node, quantized_op, quantized)
    nodes.append(Node(name, quantized_op.name, inputs, node.controls, _attrs(node, quantized_op)))
    if quantized_op.wide_attr:
        nodes.extend(_narrow(name, fallback))
    return [*nodes, dequantize(node.name, ports(nodes[-1].name))]


def _quantize_input(graph: Graph, consumer: str, edge: Edge) -> list[Node]:
    """Return the nodes that compute the range of a float tensor, and its QuantizeV2."""
    base = f"{consumer}_eightbit/{str(edge).replace(':', '__port__')}"
    # The control dependency keeps the constants in the loop frame of the tensor. A dependency on a
    # graph input that has inputs itself would run the node.
    is_cut = edge.node in graph.input_names and bool(graph[edge.node].sources)
    controls = () if is_cut else (edge.node,)
    shape = constant(f"{base}/reshape_dims", FLATTEN).with_(controls=controls)
    axes = constant(f"{base}/reduction_dims", FIRST_AXIS).with_(controls=controls)
    flat = Node(f"{base}/reshape", "Reshape", (edge, Edge(shape.name)), attrs={"T": DType.FLOAT})
    operands = (Edge(flat.name), Edge(axes.name))
    extremes = [Node(f"{base}/{op.lower()}", op, operands, attrs=EXTREME_ATTRS) for op in ("Min", "Max")]
    inputs = (edge, *(Edge(extreme.name) for extreme in extremes))
    return [shape, axes, flat, *extremes, quantize(f"{base}/quantize", inputs, DType.QUINT8)]


def _inputs(
    node: Node, quantized_op: QuantizedOp, quantized: Mapping[Edge, tuple[Edge, Edge, Edge]]
) -> tuple[Edge, ...]:
    """Return the quantized values and raw inputs in the old order, followed by the ranges."""
    tensors = [edge if slot in quantized_op.raw else quantized[edge][0] for slot, edge in enumerate(node.inputs)]
    ranges = [quantized[edge][1:] for slot, edge in enumerate(node.inputs) if slot not in quantized_op.raw]
    if quantized_op.groups_ranges:
        ranges = list(zip(*ranges, strict=True))
    return (*tensors, *(edge for pair in ranges for edge in pair))


def _attrs(node: Node, quantized_op: QuantizedOp) -> dict[str, Attr]:
    attrs: dict[str, Attr] = {name: attribute(node, name) for name in quantized_op.copied}
    for name, default in RARE_ATTRS.items():
        if node.attrs.get(name, default) != default:
            attrs[name] = node.attrs[name]
    attrs.update(dict.fromkeys(quantized_op.type_attrs, DType.QUINT8))
    return {**attrs, quantized_op.wide_attr: DType.QINT32} if quantized_op.wide_attr else attrs


def _narrow(wide: str, fallback: tuple[float, float] | None) -> list[Node]:
    """Return the nodes that requantize 32-bit values to 8 bits."""
    if fallback is None:
        bounds = [Node(f"{wide}/requant_range", "RequantizationRange", ports(wide), attrs={"Tinput": DType.QINT32})]
        edges = ports(bounds[0].name)[:2]
    else:
        bounds = [
            constant(f"{wide}/fallback_{end}", value) for end, value in zip(("min", "max"), fallback, strict=True)
        ]
        edges = (Edge(bounds[0].name), Edge(bounds[1].name))
    return [*bounds, requantize(f"{wide}/requantize", wide, edges)]


def _reason_to_stay(graph: Graph, node: Node, quantized_op: QuantizedOp, shapes: Mapping[Edge, Shape]) -> str:
    """Return the reason why a node cannot be quantized; empty if it can."""
    types = input_dtypes(node)
    if len(types) != len(node.inputs):
        return f"the node has {len(node.inputs)} inputs, but {node.op} requires {len(types)}"
    value_types = {dtype for slot, dtype in enumerate(types) if slot not in quantized_op.raw} | set(output_dtypes(node))
    if value_types != {DType.FLOAT}:
        names = sorted(dtype.value if dtype else "unknown" for dtype in value_types)
        return f"the element type is {', '.join(names)}, not float"
    edges = [edge for slot, edge in enumerate(node.inputs) if slot not in quantized_op.raw]
    if not_finite := [edge for edge in edges if _is_not_finite(graph, edge)]:
        return f"{not_finite[0]} contains infinite or NaN values"
    if empty := [edge for edge in edges if 0 in (shapes.get(edge, Shape(None)).dims or ())]:
        return f"{empty[0]} has no elements, and thus no range"
    if node.op == "Concat":
        return _explain_axis(graph, node)
    if node.op in ("Add", "Mul"):
        return _explain_broadcast(*(shapes.get(edge, Shape(None)) for edge in node.inputs))
    return _explain_layout(node) or (_explain_groups(node, shapes) if node.op == "Conv2D" else "")


def _is_not_finite(graph: Graph, edge: Edge) -> bool:
    """Return True if an edge is a constant with infinite or NaN values."""
    value = graph.constant_of(edge)
    return value is not None and not np.isfinite(value.array).all()


def _explain_layout(node: Node) -> str:
    """Return the reason why the quantized op does not support a node's attributes, or empty."""
    op, quantized_name = find_op(node.op), QUANTIZED_OPS[node.op].name
    attrs = {name: attribute(node, name) for name in LAYOUT_ATTRS if op and name in op.attrs}
    if attrs.get("data_format", b"NHWC") != b"NHWC":
        return f"data_format is {attrs['data_format'].decode()}, but {quantized_name} supports NHWC only"
    if attrs.get("padding", b"SAME") not in (b"SAME", b"VALID"):
        return f"padding is {attrs['padding'].decode()}, but {quantized_name} supports SAME and VALID only"
    if set(attrs.get("dilations", ())) - {1}:
        return f"dilations are {attrs['dilations']}, but {quantized_name} supports no dilations"
    if any(attrs[name][0] != 1 or attrs[name][3] != 1 for name in ("ksize", "strides") if name in attrs):
        return "ksize or strides include batch or channels"
    if node.op == "Conv2D" and attrs["strides"][1] != attrs["strides"][2]:
        return f"strides are {attrs['strides']}, but {quantized_name} supports equal strides only"
    return ""


def _explain_groups(node: Node, shapes: Mapping[Edge, Shape]) -> str:
    """Return the reason why a convolution in groups cannot be quantized; empty for others."""
    image, weights = (shapes.get(edge, Shape(None)).dims or () for edge in node.inputs)
    if len(image) != 4 or len(weights) != 4 or image[3] in (None, weights[2]):
        return ""
    return f"weights have {weights[2]} of {image[3]} input channels, but QuantizedConv2D supports no groups"


def _explain_axis(graph: Graph, node: Node) -> str:
    """Return the reason why QuantizedConcat does not support the axis of a Concat, or empty."""
    axis = graph.constant_of(node.inputs[0])
    if axis is not None and axis.num_elements == 1 and axis.array.item() < 0:
        return f"axis is {axis.array.item()} and the rank is unknown, but QuantizedConcat supports no negative axis"
    return "the axis is a computed int64" if node.attrs.get("Tidx") is DType.INT64 else ""


def _explain_broadcast(first: Shape, second: Shape) -> str:
    """Return the reason why quantized ops cannot broadcast two shapes; empty if they can.

    They only repeat a whole operand along leading dimensions.
    """
    if _repeats_whole(first, second) or _repeats_whole(second, first):
        return ""
    return f"operands of shape {first} and {second} broadcast along an inner dimension"


def _repeats_whole(small: Shape, large: Shape) -> bool:
    """Return True if the larger tensor may repeat the smaller one along leading dimensions."""
    if small.dims is None or large.dims is None:
        return 1 not in _strip_leading_ones(small) + _strip_leading_ones(large)
    sizes = _strip_leading_ones(small)
    last_sizes = large.dims[max(len(large.dims) - len(sizes), 0) :]
    if len(last_sizes) != len(sizes):
        return False
    return all(_may_be_equal(a, b) for a, b in zip(sizes, last_sizes, strict=True))


def _strip_leading_ones(shape: Shape) -> list[int | None]:
    return list(dropwhile(lambda size: size == 1, shape.dims or ()))


def _may_be_equal(size: int | None, other: int | None) -> bool:
    return size == other or (None in (size, other) and 1 not in (size, other))
