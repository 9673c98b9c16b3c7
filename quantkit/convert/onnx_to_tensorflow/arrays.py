"""Conversion of shape arithmetic, slices and searches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from quantkit.convert.layouts import TO_NHWC
from quantkit.convert.onnx_to_tensorflow.translator import NHWC, PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType
from quantkit.ops.onnx.types import DTYPES

INT64 = DType.INT64
# Exporters write this end, or a greater one, for slices without a limit: no axis is longer.
NO_LIMIT = 1_000_000_000


@converts("Cast CastLike")
def _cast(translator: OnnxTranslator, node: Node) -> None:
    source = node.inputs[0]
    dtype = translator.dtype(node.inputs[1]) if node.op == "CastLike" else DTYPES[node.attrs["to"]]
    layout = NHWC if translator.is_nhwc(source) else PLAIN
    value = translator.in_layout(source, layout)
    edge = translator.emit(node, "Cast", [value], layout, SrcT=translator.types[value], DstT=dtype)
    translator.types[edge] = dtype


@converts("Shape")
def _shape(translator: OnnxTranslator, node: Node) -> None:
    source = translator.plain(node.inputs[0])
    begin = node.attrs.get("start", 0)
    end = node.attrs.get("end")
    if begin == 0 and end is None:
        edge = translator.emit(node, "Shape", [source], PLAIN, T=translator.types[source], out_type=INT64)
        translator.types[edge] = INT64
        return
    shape = shape_of(translator, node, source)
    limits = [translator.add_array(node, name, [value or 0]) for name, value in (("begin", begin), ("end", end))]
    step = translator.add_array(node, "step", [1])
    translator.emit_typed(node, "StridedSlice", [shape, *limits, step], PLAIN, Index=INT64, end_mask=int(end is None))


def shape_of(translator: OnnxTranslator, node: Node, source: Edge, suffix: str = "shape") -> Edge:
    """Return the shape of a value as int64."""
    edge = translator.add_intermediate(node, suffix, "Shape", [source], out_type=INT64)
    translator.types[edge] = INT64
    return edge


@converts("Size")
def _size(translator: OnnxTranslator, node: Node) -> None:
    source = translator.plain(node.inputs[0])
    edge = translator.emit(node, "Size", [source], PLAIN, T=translator.types[source], out_type=INT64)
    translator.types[edge] = INT64


@converts("ConstantOfShape")
def _constant_of_shape(translator: OnnxTranslator, node: Node) -> None:
    value = node.attrs.get("value")
    array = np.zeros(1, np.float32) if value is None else value.array
    dtype = DType.FLOAT if value is None else value.dtype
    fill = translator.add_array(node, "value", array.reshape(()), dtype)
    edge = translator.emit(node, "Fill", [translator.plain(node.inputs[0]), fill], PLAIN, T=dtype, index_type=INT64)
    translator.types[edge] = dtype


@converts("Expand")
def _expand(translator: OnnxTranslator, node: Node) -> None:
    source, dims = translator.plain(node.inputs[0]), translator.shape(Edge(node.name)).dims
    source_sizes, rank = (translator.shape(edge).dims for edge in node.inputs)
    if dims is not None and None not in dims:
        shape = translator.add_array(node, "shape", dims)  # type: ignore[arg-type]
    elif (
        source_sizes is not None
        and {*source_sizes} <= {1}
        and rank
        and rank[0] is not None
        and len(source_sizes) <= rank[0]
    ):
        shape = translator.plain(node.inputs[1])
    else:
        sizes = [shape_of(translator, node, source), translator.plain(node.inputs[1])]
        shape = translator.add_intermediate(node, "sizes", "BroadcastArgs", sizes)
    translator.emit_typed(node, "BroadcastTo", [source, shape], PLAIN, Tidx=INT64)


# TensorFlow op and its attributes, given those of the ONNX node and the types of the inputs, for ops that take all
# inputs in ONNX's layout. The output has the type T, else that of the first input.
PLAIN_OPS: Mapping[str, Callable[[Mapping[str, Any], Sequence[DType]], tuple[str, dict[str, Attr]]]] = {
    "CumSum": lambda attrs, types: (
        "Cumsum",
        {"T": types[0], "Tidx": types[1], **{name: bool(attrs.get(name)) for name in ("exclusive", "reverse")}},
    ),
    "Einsum": lambda attrs, types: ("Einsum", {"T": types[0], "N": len(types), "equation": attrs["equation"]}),
    "Mod": lambda attrs, types: ("Mod" if attrs.get("fmod") else "FloorMod", {"T": types[0]}),
    "Range": lambda attrs, types: ("Range", {"Tidx": types[0]}),
    "Tile": lambda attrs, types: ("Tile", {"T": types[0], "Tmultiples": types[1]}),
    "Where": lambda attrs, types: ("SelectV2", {"T": types[1]}),
}


@converts(" ".join(PLAIN_OPS))
def _plain(translator: OnnxTranslator, node: Node) -> None:
    inputs = [translator.plain(edge) for edge in node.inputs]
    types = [translator.types[edge] for edge in inputs]
    op, attrs = PLAIN_OPS[node.op](node.attrs, types)
    edge = translator.emit(node, op, inputs, PLAIN, **attrs)
    if isinstance(dtype := attrs.get("T"), DType):
        translator.types[edge] = dtype


@converts("Slice")
def _slice(translator: OnnxTranslator, node: Node) -> None:
    source = node.inputs[0]
    rank = translator.rank(source)
    if rank is None:
        raise conversion_error(node, "the rank of the input is unknown")
    bounds = [_bounds(translator, node, name, slot) for slot, name in ((1, "starts"), (2, "ends"))]
    axes = translator.integers(node, "axes", 3) or list(range(len(bounds[0])))
    steps = translator.integers(node, "steps", 4) or [1] * len(axes)
    layout = NHWC if rank == 4 and translator.is_nhwc(source) else PLAIN
    columns: list[list[int | Edge]] = [[0] * rank, [0] * rank, [1] * rank]
    masks = [2**rank - 1] * 2
    for begin, end, axis, step in zip(*bounds, axes, steps, strict=True):
        position = TO_NHWC.index(axis % rank) if layout == NHWC else axis % rank
        for column, value in zip(columns, (begin, end, step), strict=True):
            column[position] = value
        is_open = (
            not isinstance(begin, Edge) and (begin <= -NO_LIMIT if step > 0 else begin >= NO_LIMIT),
            not isinstance(end, Edge) and (end >= NO_LIMIT if step > 0 else end <= -NO_LIMIT),
        )
        masks = [mask if open_ else mask & ~(1 << position) for mask, open_ in zip(masks, is_open, strict=True)]
    names = ("begin", "end", "steps")
    edges = [_vector(translator, node, name, column) for name, column in zip(names, columns, strict=True)]
    inputs = [translator.in_layout(source, layout), *edges]
    translator.emit_typed(node, "StridedSlice", inputs, layout, Index=INT64, begin_mask=masks[0], end_mask=masks[1])


def _bounds(translator: OnnxTranslator, node: Node, name: str, slot: int) -> list[int | Edge]:
    """Return the limits of the slices: integers, and vectors of one element for computed ones."""
    values = node.attrs.get(name)
    if values is not None:
        return list(values)
    edge = node.inputs[slot]
    sizes = translator.sizes(edge)
    if sizes is None:
        dims = translator.shape(edge).dims
        if not dims or dims[0] is None:
            raise conversion_error(node, f"the number of its {name} is unknown")
        sizes = [None] * dims[0]
    return [
        _element(translator, node, f"{name}_{number}", edge, number) if size is None else size
        for number, size in enumerate(sizes)
    ]


def _element(translator: OnnxTranslator, node: Node, suffix: str, edge: Edge, number: int) -> Edge:
    """Return an element of a vector as a vector of int64."""
    limits = [translator.add_array(node, f"{suffix}/limit", [limit]) for limit in (number, 1)]
    element = translator.add_intermediate(node, suffix, "Slice", [translator.plain(edge), *limits], Index=INT64)
    return translator.add_cast(node, f"{suffix}/long", element, INT64)


def _vector(translator: OnnxTranslator, node: Node, name: str, values: Sequence[int | Edge]) -> Edge:
    """Return integers and computed integers as one vector."""
    if not any(isinstance(value, Edge) for value in values):
        return translator.add_array(node, name, values)
    parts = [
        value if isinstance(value, Edge) else translator.add_array(node, f"{name}_{number}", [value])
        for number, value in enumerate(values)
    ]
    axis = translator.add_array(node, f"{name}/axis", 0, DType.INT32)
    return translator.add_intermediate(node, name, "ConcatV2", [*parts, axis], N=len(parts), Tidx=DType.INT32)


@converts("ArgMax ArgMin")
def _arg_extreme(translator: OnnxTranslator, node: Node) -> None:
    if node.attrs.get("select_last_index"):
        raise conversion_error(node, "select_last_index is not supported")
    source = translator.plain(node.inputs[0])
    axis = node.attrs.get("axis", 0)
    attrs: dict[str, Attr] = {"T": translator.types[source], "Tidx": DType.INT32, "output_type": INT64}
    inputs = [source, translator.add_array(node, "axis", axis, DType.INT32)]
    if not node.attrs.get("keepdims", 1):
        translator.types[translator.emit(node, node.op, inputs, PLAIN, **attrs)] = INT64
        return
    index = translator.add_node(f"{translator.name(node.name)}/index", node.op, inputs, **attrs)
    translator.types[index] = INT64
    translator.emit_typed(node, "ExpandDims", [index, inputs[1]], PLAIN, Tdim=DType.INT32)


@converts("TopK")
def _top_k(translator: OnnxTranslator, node: Node) -> None:
    rank = translator.rank(node.inputs[0])
    if rank is None or node.attrs.get("axis", -1) not in (-1, rank - 1) or not node.attrs.get("largest", 1):
        raise conversion_error(node, "only the largest elements along the last axis are supported")
    source = translator.plain(node.inputs[0])
    count = translator.add_array(node, "k", int(translator.constant(node, 1).item()), DType.INT32)
    top = translator.emit_typed(node, "TopKV2", [source, count], PLAIN, sorted=True)
    indices = Edge(top.node, 1)
    translator.types[indices] = DType.INT32
    translator.values[Edge(node.name, 1), PLAIN] = translator.add_cast(node, "indices", indices, INT64)


@converts("Trilu")
def _trilu(translator: OnnxTranslator, node: Node) -> None:
    source = translator.plain(node.inputs[0])
    diagonal = int(translator.constant(node, 1).item()) if translator.has_input(node, 1) else 0
    is_upper = bool(node.attrs.get("upper", 1))
    if diagonal and (diagonal > 0) == is_upper:
        raise conversion_error(node, "a band without the main diagonal is not supported")
    limits = (abs(diagonal), -1) if is_upper else (-1, abs(diagonal))
    edges = [translator.add_array(node, name, limit) for name, limit in zip(("lower", "upper"), limits, strict=True)]
    translator.emit_typed(node, "MatrixBandPart", [source, *edges], PLAIN, Tindex=INT64)


def num_outputs(node: Node) -> int:
    """Return the number of outputs of a node."""
    names = node.attrs.get(onnx.OUTPUTS)
    return len(names) if isinstance(names, tuple) else 1
