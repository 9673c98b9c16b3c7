"""Float ops and what computes the same on 8-bit codes: the third step of `quantize_nodes`.

A quantized tensor travels as three: codes, and the real numbers the lowest and the highest code stand for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import attribute, find_op, input_dtypes, output_dtypes

FLATTEN = Tensor.of([-1])
FIRST_AXIS = Tensor.of([0])
EXTREME_ATTRS: dict[str, Attr] = {"T": DType.FLOAT, "keep_dims": False}
LAYOUT_ATTRS = ("data_format", "padding", "dilations", "strides", "ksize")


@dataclass(frozen=True)
class QuantizedOp:
    """The 8-bit form of a float op.

    Attributes:
        name: op type.
        type_attrs: attributes that say the codes' type.
        wide_attr: the attribute that says that the results are 32-bit; without one they are 8-bit.
        copied: attributes taken over from the float op.
        raw: slots of inputs that stay as they are (shapes, axes).
        groups_ranges: whether all minima come before all maxima, rather than in pairs.
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
UNSUITED_OPS = {"DepthwiseConv2dNative": "QuantizedDepthwiseConv2D wants signed codes as weights"}
# Ops that are taken for another one.
SYNONYMS = {"AddV2": "Add", "ConcatV2": "Concat"}
# Copied only where they differ from these, the default of the quantized op.
RARE_ATTRS: dict[str, Attr] = {"half_pixel_centers": False, "Tshape": DType.INT32}


def quantize_ops(graph: Graph, *, fallback: tuple[float, float] | None, ignored: tuple[str, ...]) -> Outcome:
    """Put a quantized op, between quantizing its inputs and decoding its result, in the place of each float op.

    Args:
        graph: what to change.
        fallback: range of 32-bit results; None: each result's own, found when the graph runs.
        ignored: op types that stay float.
    """
    shapes = infer_shapes(graph)
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        *constants, classic = classic_form(graph, node, shapes)
        into = QUANTIZED_OPS.get(classic.op)
        if node.op in ignored or (into is None and node.op not in UNSUITED_OPS):
            continue
        if reason := why_float(graph, node, shapes):
            skips.append(Skip(reason, node.name))
        elif into is not None:
            draft.replace(node.name, *constants, *_quantized(graph, classic, into, fallback))
            changes.append(f"{node.name} ({node.op}) -> {into.name}")
    return Outcome(draft.graph(), tuple(changes), tuple(skips))


def has_classic_form(op: str) -> bool:
    """Whether `quantize_ops` knows an 8-bit op that computes what an op does."""
    return SYNONYMS.get(op, op) in QUANTIZED_OPS


def why_float(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
    """Why `quantize_ops` would leave a node in float; empty: it would not.

    Args:
        graph: in float.
        node: of it.
        shapes: of its edges, as far as they are known.
    """
    classic = classic_form(graph, node, shapes)[-1]
    into = QUANTIZED_OPS.get(classic.op)
    if into is None:
        return UNSUITED_OPS.get(node.op, f"there is no classic 8-bit form of {node.op}")
    return _reason_to_stay(graph, classic, into, shapes)


def dequantize(name: str, codes: Sequence[Edge]) -> Node:
    """The node that decodes 8-bit codes (the code tensor, its minimum and its maximum)."""
    return Node(name, "Dequantize", tuple(codes), attrs={"T": DType.QUINT8, "mode": b"MIN_FIRST"})


def quantize(name: str, inputs: Sequence[Edge], dtype: DType) -> Node:
    """The node that makes codes of a float tensor, given its minimum and its maximum."""
    return Node(name, "QuantizeV2", tuple(inputs), attrs={"T": dtype, "mode": b"MIN_FIRST"})


def requantize(name: str, wide: str, bounds: Sequence[Edge]) -> Node:
    """The node that makes 8-bit codes, of a range, of the 32-bit ones of the node ``wide``."""
    attrs: dict[str, Attr] = {"Tinput": DType.QINT32, "out_type": DType.QUINT8}
    return Node(name, "Requantize", (*ports(wide), *bounds), attrs=attrs)


def ports(name: str) -> tuple[Edge, Edge, Edge]:
    """The three outputs of a quantized op: codes, minimum, maximum."""
    return Edge(name, 0), Edge(name, 1), Edge(name, 2)


def classic_form(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> list[Node]:
    """The node as the op that has an 8-bit form, and before it a constant that this one reads, if it is a new one.

    Args:
        graph: in float.
        node: of it.
        shapes: of its edges, as far as they are known.
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
    place = axis.array.item()
    from_first = place + ranks[0] if place < 0 and ranks else place
    if from_first < 0 or (from_first == place and axis.dtype is DType.INT32):
        return [node]
    counted = constant(f"{node.name}_eightbit/axis", from_first)
    return [counted, node.with_input(0, counted.name).with_attrs(Tidx=DType.INT32)]


def _quantized(graph: Graph, node: Node, into: QuantizedOp, fallback: tuple[float, float] | None) -> list[Node]:
    """The nodes that take a float op's place; the last one bears its name."""
    name = f"{node.name}/eightbit"
    made: list[Node] = []
    codes: dict[Edge, tuple[Edge, Edge, Edge]] = {}
    for slot, edge in enumerate(node.inputs):
        if slot not in into.raw and edge not in codes:
            made.extend(_quantized_input(graph, node.name, edge))
            codes[edge] = ports(made[-1].name)
    made.append(Node(name, into.name, _inputs(node, into, codes), node.controls, _attrs(node, into)))
    if into.wide_attr:
        made.extend(_narrowed(name, fallback))
    return [*made, dequantize(node.name, ports(made[-1].name))]


def _quantized_input(graph: Graph, reader: str, edge: Edge) -> list[Node]:
    """The nodes that measure a float tensor and make codes of it, the last one holds the codes."""
    base = f"{reader}_eightbit/{str(edge).replace(':', '__port__')}"
    # Waiting keeps the constants in the loop of the tensor; who waits for a fed node that computes lets it compute.
    is_cut = edge.node in graph.input_names and bool(graph[edge.node].sources)
    waits = () if is_cut else (edge.node,)
    shape = constant(f"{base}/reshape_dims", FLATTEN).with_(controls=waits)
    axes = constant(f"{base}/reduction_dims", FIRST_AXIS).with_(controls=waits)
    flat = Node(f"{base}/reshape", "Reshape", (edge, Edge(shape.name)), attrs={"T": DType.FLOAT})
    measured = (Edge(flat.name), Edge(axes.name))
    extremes = [Node(f"{base}/{op.lower()}", op, measured, attrs=EXTREME_ATTRS) for op in ("Min", "Max")]
    inputs = (edge, *(Edge(one.name) for one in extremes))
    return [shape, axes, flat, *extremes, quantize(f"{base}/quantize", inputs, DType.QUINT8)]


def _inputs(node: Node, into: QuantizedOp, codes: Mapping[Edge, tuple[Edge, Edge, Edge]]) -> tuple[Edge, ...]:
    """Codes and raw inputs in the old places, then the ranges."""
    tensors = [edge if slot in into.raw else codes[edge][0] for slot, edge in enumerate(node.inputs)]
    ranges = [codes[edge][1:] for slot, edge in enumerate(node.inputs) if slot not in into.raw]
    if into.groups_ranges:
        ranges = list(zip(*ranges, strict=True))
    return (*tensors, *(edge for pair in ranges for edge in pair))


def _attrs(node: Node, into: QuantizedOp) -> dict[str, Attr]:
    attrs: dict[str, Attr] = {name: attribute(node, name) for name in into.copied}
    for name, usual in RARE_ATTRS.items():
        if node.attrs.get(name, usual) != usual:
            attrs[name] = node.attrs[name]
    attrs.update(dict.fromkeys(into.type_attrs, DType.QUINT8))
    return {**attrs, into.wide_attr: DType.QINT32} if into.wide_attr else attrs


def _narrowed(wide: str, fallback: tuple[float, float] | None) -> list[Node]:
    """The nodes that make 8-bit codes of 32-bit ones."""
    if fallback is None:
        bounds = [Node(f"{wide}/requant_range", "RequantizationRange", ports(wide), attrs={"Tinput": DType.QINT32})]
        edges = ports(bounds[0].name)[:2]
    else:
        bounds = [
            constant(f"{wide}/fallback_{end}", value) for end, value in zip(("min", "max"), fallback, strict=True)
        ]
        edges = (Edge(bounds[0].name), Edge(bounds[1].name))
    return [*bounds, requantize(f"{wide}/requantize", wide, edges)]


def _reason_to_stay(graph: Graph, node: Node, into: QuantizedOp, shapes: Mapping[Edge, Shape]) -> str:
    """Why a node can not be quantized, or nothing."""
    types = input_dtypes(node)
    if len(types) != len(node.inputs):
        return f"it reads {len(node.inputs)} tensors where {node.op} takes {len(types)}"
    computing = {dtype for slot, dtype in enumerate(types) if slot not in into.raw} | set(output_dtypes(node))
    if computing != {DType.FLOAT}:
        return f"it computes in {', '.join(sorted(one.value if one else 'an unknown type' for one in computing))}"
    computed = [edge for slot, edge in enumerate(node.inputs) if slot not in into.raw]
    if endless := [edge for edge in computed if _is_endless(graph, edge)]:
        return f"{endless[0]} holds a value that is infinite or not a number"
    if empty := [edge for edge in computed if 0 in (shapes.get(edge, Shape(None)).dims or ())]:
        return f"{empty[0]} holds no numbers, so that it has no range"
    if node.op == "Concat":
        return _unsupported_axis(graph, node)
    if node.op in ("Add", "Mul"):
        return _unsupported_repetition(*(shapes.get(edge, Shape(None)) for edge in node.inputs))
    return _unsupported_layout(node) or (_unsupported_groups(node, shapes) if node.op == "Conv2D" else "")


def _is_endless(graph: Graph, edge: Edge) -> bool:
    """Whether a constant has no range of numbers."""
    value = graph.constant_of(edge)
    return value is not None and not np.isfinite(value.array).all()


def _unsupported_layout(node: Node) -> str:
    """How a convolution or pool walks its picture, where its quantized form can not."""
    known = find_op(node.op)
    attrs = {name: attribute(node, name) for name in LAYOUT_ATTRS if known and name in known.attrs}
    if attrs.get("data_format", b"NHWC") != b"NHWC":
        return f"its data_format is {attrs['data_format'].decode()}, {QUANTIZED_OPS[node.op].name} knows NHWC only"
    if attrs.get("padding", b"SAME") not in (b"SAME", b"VALID"):
        return f"its padding is {attrs['padding'].decode()}, {QUANTIZED_OPS[node.op].name} knows SAME and VALID"
    if set(attrs.get("dilations", ())) - {1}:
        return f"its dilations are {attrs['dilations']}, {QUANTIZED_OPS[node.op].name} knows none"
    if any(attrs[name][0] != 1 or attrs[name][3] != 1 for name in ("ksize", "strides") if name in attrs):
        return "it pools or strides over batch or channels"
    if node.op == "Conv2D" and attrs["strides"][1] != attrs["strides"][2]:
        return f"its strides {attrs['strides']} differ, {QUANTIZED_OPS[node.op].name} knows equal ones only"
    return ""


def _unsupported_groups(node: Node, shapes: Mapping[Edge, Shape]) -> str:
    """A convolution that sees a part of the channels at a time."""
    picture, weights = (shapes.get(edge, Shape(None)).dims or () for edge in node.inputs)
    if len(picture) != 4 or len(weights) != 4 or picture[3] in (None, weights[2]):
        return ""
    return f"its weights see {weights[2]} of {picture[3]} channels, QuantizedConv2D sees all"


def _unsupported_axis(graph: Graph, node: Node) -> str:
    """Where tensors are joined, if QuantizedConcat can not know it."""
    axis = graph.constant_of(node.inputs[0])
    if axis is not None and axis.num_elements == 1 and axis.array.item() < 0:
        return f"its axis is {axis.array.item()}, QuantizedConcat counts from the first, and the rank is not known"
    return "its axis is a computed int64" if node.attrs.get("Tidx") is DType.INT64 else ""


def _unsupported_repetition(first: Shape, second: Shape) -> str:
    """Operands of which one would be repeated in another way than as a whole, which is all that the 8-bit ops do."""
    if _repeats_whole(first, second) or _repeats_whole(second, first):
        return ""
    return f"operands of shape {first} and {second} repeat along an inner dimension"


def _repeats_whole(small: Shape, large: Shape) -> bool:
    """Whether, as far as sizes are known, the larger tensor is so many copies of the smaller one."""
    if small.dims is None or large.dims is None:
        return 1 not in _without_leading_ones(small) + _without_leading_ones(large)
    sizes = _without_leading_ones(small)
    ends = large.dims[max(len(large.dims) - len(sizes), 0) :]
    return len(ends) == len(sizes) and all(_may_be_equal(a, b) for a, b in zip(sizes, ends, strict=True))


def _without_leading_ones(shape: Shape) -> list[int | None]:
    return list(dropwhile(lambda size: size == 1, shape.dims or ()))


def _may_be_equal(size: int | None, other: int | None) -> bool:
    return size == other or (None in (size, other) and 1 not in (size, other))
