"""Conversion of reductions, concatenation, splits, padding and reshapes; axes follow the layout of the value."""

from collections.abc import Iterable, Sequence

import numpy as np

from quantkit.convert.layouts import TO_NCHW, TO_NHWC
from quantkit.convert.onnx_to_tensorflow.arrays import num_outputs, shape_of
from quantkit.convert.onnx_to_tensorflow.translator import NHWC, PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType, Tensor

REDUCTIONS = {
    "ReduceL2": "Sum",
    "ReduceMax": "Max",
    "ReduceMean": "Mean",
    "ReduceMin": "Min",
    "ReduceProd": "Prod",
    "ReduceSum": "Sum",
    "ReduceSumSquare": "Sum",
}


@converts("GlobalAveragePool GlobalMaxPool")
def _global_pool(translator: OnnxTranslator, node: Node) -> None:
    op, edge = "Mean" if node.op == "GlobalAveragePool" else "Max", node.inputs[0]
    rank = translator.rank(edge)
    dims = translator.shape(edge).dims
    if op == "Mean" and dims is not None and len(dims) == 4 and None not in dims[2:]:
        attrs: dict[str, Attr] = {"ksize": (1, *dims[2:], 1), "strides": (1, 1, 1, 1), "padding": b"VALID"}
        translator.emit_typed(node, "AvgPool", [translator.nhwc(edge)], NHWC, **attrs, data_format=b"NHWC")
    elif rank in (4, None):
        _emit_reduction(translator, node, op, translator.nhwc(edge), (1, 2), NHWC, keep_dims=True)
    else:
        _emit_reduction(translator, node, op, translator.plain(edge), range(2, rank), PLAIN, keep_dims=True)


@converts(" ".join(REDUCTIONS))
def _reduction(translator: OnnxTranslator, node: Node) -> None:
    edge = node.inputs[0]
    rank = translator.rank(edge)
    if rank is None:
        raise conversion_error(node, "the rank of the input is unknown")
    attr_axes = translator.integers(node, "axes", 1)
    axes = sorted(axis % rank for axis in (range(rank) if attr_axes is None else attr_axes))
    keeps_dims = bool(node.attrs.get("keepdims", 1))
    if translator.is_nhwc(edge) and axes == [2, 3]:
        layout = NHWC if keeps_dims else PLAIN
        _emit_reduction(
            translator, node, REDUCTIONS[node.op], translator.nhwc(edge), (1, 2), layout, keep_dims=keeps_dims
        )
    else:
        _emit_reduction(
            translator, node, REDUCTIONS[node.op], translator.plain(edge), axes, PLAIN, keep_dims=keeps_dims
        )


def _emit_reduction(
    translator: OnnxTranslator, node: Node, op: str, source: Edge, axes: Iterable[int], layout: str, *, keep_dims: bool
) -> None:
    axes_edge = translator.add_integers(f"{translator.name(node.name)}/axes", axes)
    if node.op in ("ReduceL2", "ReduceSumSquare"):
        source = translator.add_intermediate(node, "squares", "Square", [source])
    if node.op == "ReduceL2":
        total = translator.add_intermediate(node, "sum", op, [source, axes_edge], Tidx=DType.INT32, keep_dims=keep_dims)
        translator.emit_typed(node, "Sqrt", [total], layout)
    else:
        translator.emit_typed(node, op, [source, axes_edge], layout, Tidx=DType.INT32, keep_dims=keep_dims)


@converts("Concat")
def _concat(translator: OnnxTranslator, node: Node) -> None:
    rank = translator.rank(node.inputs[0])
    axis = node.attrs["axis"]
    layout = NHWC if rank == 4 and any(map(translator.is_nhwc, node.inputs)) else PLAIN
    if layout == NHWC:
        axis = TO_NHWC.index(axis % 4)
    inputs = [translator.in_layout(edge, layout) for edge in node.inputs]
    if len(inputs) == 1:
        translator.emit_typed(node, "Identity", inputs, layout)
        return
    axis_edge = translator.add_constant(f"{translator.name(node.name)}/axis", Tensor.of(np.int32(axis)))
    translator.emit_typed(node, "ConcatV2", [*inputs, axis_edge], layout, N=len(inputs), Tidx=DType.INT32)


@converts("Split")
def _split(translator: OnnxTranslator, node: Node) -> None:
    edge = node.inputs[0]
    rank, axis = translator.rank(edge), node.attrs.get("axis", 0)
    layout = NHWC if rank == 4 and translator.is_nhwc(edge) else PLAIN
    if rank is None or not isinstance(axis, int):
        raise conversion_error(node, "the rank of the input is unknown")
    shapes = [translator.shape(Edge(node.name, port)).dims for port in range(num_outputs(node))]
    sizes = [None if dims is None else dims[axis] for dims in shapes]
    if None in sizes:
        raise conversion_error(node, "the sizes of the outputs are unknown")
    name = translator.name(node.name)
    layout_axis = TO_NHWC.index(axis % 4) if layout == NHWC else axis % rank
    parts = translator.add_integers(f"{name}/sizes", (size for size in sizes if size is not None))
    axis_edge = translator.add_constant(f"{name}/axis", Tensor.of(np.asarray(layout_axis, np.int32)))
    inputs = [translator.in_layout(edge, layout), parts, axis_edge]
    split = translator.emit_typed(node, "SplitV", inputs, layout, Tlen=DType.INT32, num_split=len(sizes))
    for port in range(1, len(sizes)):
        translator.values[Edge(node.name, port), layout] = Edge(split.node, port)
        translator.types[Edge(split.node, port)] = translator.types[split]


@converts("Pad")
def _pad(translator: OnnxTranslator, node: Node) -> None:
    edge = node.inputs[0]
    mode = node.attrs.get("mode", b"constant")
    if translator.has_input(node, 1) and translator.fold(node.inputs[1]) is None:
        if mode != b"constant" or translator.has_input(node, 3):
            raise conversion_error(node, "computed padding is supported in the mode constant and for all axes only")
        _pad_by_computed_widths(translator, node)
        return
    rank, pads = translator.rank(edge), translator.integers(node, "pads", 1)
    if rank is None or pads is None or len(pads) != 2 * rank or min(pads) < 0 or translator.has_input(node, 3):
        raise conversion_error(node, "negative padding, a subset of axes and an unknown rank are not supported")
    layout = NHWC if rank == 4 and translator.is_nhwc(edge) else PLAIN
    widths = np.array(pads, np.int32).reshape(2, rank).T[list(TO_NHWC) if layout == NHWC else slice(None)]
    if mode == b"edge":
        _repeat_edges(translator, node, translator.in_layout(edge, layout), widths.tolist(), layout)
        return
    inputs = [
        translator.in_layout(edge, layout),
        translator.add_constant(f"{translator.name(node.name)}/widths", Tensor.of(widths)),
    ]
    if mode == b"reflect":
        translator.emit_typed(node, "MirrorPad", inputs, layout, Tpaddings=DType.INT32, mode=b"REFLECT")
        return
    if mode != b"constant":
        raise conversion_error(node, f"the mode {mode!r} is not supported")
    value = translator.constant(node, 2) if translator.has_input(node, 2) else node.attrs.get("value", 0.0)
    if value == 0:
        translator.emit_typed(node, "Pad", inputs, layout, Tpaddings=DType.INT32)
        return
    fill = translator.add_constant(f"{translator.name(node.name)}/value", Tensor.of(np.float32(value)))
    translator.emit_typed(node, "PadV2", [*inputs, fill], layout, Tpaddings=DType.INT32)


def _repeat_edges(
    translator: OnnxTranslator, node: Node, source: Edge, widths: Sequence[tuple[int, int]], layout: str
) -> None:
    """Pad with the first and the last slice of each axis."""
    for axis, (before, after) in enumerate(widths):
        if before or after:
            first, last = (_edge_slice(translator, node, source, axis, at) for at in (0, -1))
            parts = [*[first] * before, source, *[last] * after]
            axis_edge = translator.add_array(node, "axis", axis, DType.INT32)
            attrs: dict[str, Attr] = {"N": len(parts), "Tidx": DType.INT32}
            source = translator.add_intermediate(node, "padded", "ConcatV2", [*parts, axis_edge], **attrs)
    translator.emit_typed(node, "Identity", [source], layout)


def _edge_slice(translator: OnnxTranslator, node: Node, source: Edge, axis: int, at: int) -> Edge:
    """Return the first slice of an axis (0), or the last one (-1)."""
    rows = ([0] * axis + [at], [0] * axis + [1], [1] * (axis + 1))
    limits = [translator.add_array(node, "edge/limit", row, DType.INT32) for row in rows]
    rest = (1 << axis) - 1
    end_mask = rest if at == 0 else rest | 1 << axis
    attrs: dict[str, Attr] = {"Index": DType.INT32, "begin_mask": rest, "end_mask": end_mask}
    return translator.add_intermediate(node, "edge", "StridedSlice", [source, *limits], **attrs)


def _pad_by_computed_widths(translator: OnnxTranslator, node: Node) -> None:
    """Pad by a constant: ONNX has the widths before all axes, then after them; TensorFlow has a row for each axis."""
    rows = translator.reshape(node, "pads", translator.plain(node.inputs[1]), [2, -1])
    widths = translator.transpose(f"{translator.name(node.name)}/widths", rows, (1, 0))
    inputs, op = [translator.plain(node.inputs[0]), widths], "Pad"
    if translator.has_input(node, 2):
        inputs.append(translator.reshape(node, "value", translator.plain(node.inputs[2]), []))
        op = "PadV2"
    translator.emit_typed(node, op, inputs, PLAIN, Tpaddings=translator.types[widths])


@converts("Transpose")
def _transpose(translator: OnnxTranslator, node: Node) -> None:
    edge, output = node.inputs[0], Edge(node.name)
    rank = translator.rank(edge)
    order = tuple(node.attrs.get("perm") or range(rank or 0)[::-1])
    if order == TO_NCHW:  # the input is the NHWC form of the output
        translator.values[output, NHWC] = translator.plain(edge)
    elif order == TO_NHWC:
        translator.values[output, PLAIN] = translator.nhwc(edge)
    elif order:
        name = translator.name(node.name)
        translator.values[output, PLAIN] = translator.transpose(name, translator.plain(edge), order)
    else:
        raise conversion_error(node, "the rank of the input is unknown")


@converts("Reshape Flatten Squeeze Unsqueeze")
def _reshape(translator: OnnxTranslator, node: Node) -> None:
    edge, output_dims = node.inputs[0], translator.shape(Edge(node.name)).dims
    if (
        output_dims is None
        and node.op == "Reshape"
        and (requested := translator.sizes(node.inputs[1])) is not None
        and 0 not in requested
    ):
        output_dims = tuple(None if size is None or size < 0 else size for size in requested)
    if output_dims is None or output_dims.count(None) > 1:
        _reshape_dynamic(translator, node)
        return
    dims = translator.shape(edge).dims
    is_pixel = translator.is_nhwc(edge) and dims is not None and dims[2:] == (1, 1)  # both layouts are equal
    source = translator.nhwc(edge) if is_pixel else translator.plain(edge)
    sizes = translator.add_integers(
        f"{translator.name(node.name)}/shape", (-1 if size is None else size for size in output_dims)
    )
    translator.emit_typed(node, "Reshape", [source, sizes], PLAIN, Tshape=DType.INT32)


def _reshape_dynamic(translator: OnnxTranslator, node: Node) -> None:
    """Convert a change of the shape with several unknown sizes."""
    source = translator.plain(node.inputs[0])
    if node.op == "Reshape":
        translator.emit_typed(
            node, "Reshape", [source, _requested_shape(translator, node, source)], PLAIN, Tshape=DType.INT64
        )
        return
    if node.op == "Squeeze" and not (translator.has_input(node, 1) or node.attrs.get("axes")):
        translator.emit_typed(node, "Squeeze", [source], PLAIN)
        return
    rank = translator.rank(node.inputs[0])
    axes = translator.integers(node, "axes", 1)
    if rank is None or axes is None:
        raise conversion_error(node, "the rank of the input or the axes are unknown")
    if node.op == "Squeeze":
        attrs = {"squeeze_dims": tuple(sorted(axis % rank for axis in axes))}
        translator.emit_typed(node, "Squeeze", [source], PLAIN, **attrs)
        return
    if node.op == "Flatten":
        raise conversion_error(node, "the shape of the output is unknown")
    positions = sorted(axis % (rank + len(axes)) for axis in axes)
    edges = [translator.add_array(node, f"axis_{position}", position, DType.INT32) for position in positions]
    for number, edge in enumerate(edges[:-1]):
        source = translator.add_intermediate(node, f"wide_{number}", "ExpandDims", [source, edge], Tdim=DType.INT32)
    translator.emit_typed(node, "ExpandDims", [source, edges[-1]], PLAIN, Tdim=DType.INT32)


def _requested_shape(translator: OnnxTranslator, node: Node, source: Edge) -> Edge:
    """Return the shape of a Reshape; size 0 stands for the size of the input."""
    requested, sizes = translator.plain(node.inputs[1]), translator.sizes(node.inputs[1])
    if sizes is None or 0 not in sizes or node.attrs.get("allowzero"):
        return requested
    limits = [translator.add_array(node, name, [value]) for name, value in (("begin", 0), ("size", len(sizes)))]
    shape = shape_of(translator, node, source)
    rank = translator.rank(node.inputs[0])
    if rank is None or rank < len(sizes):
        padding = translator.add_array(node, "more", [1] * len(sizes))
        axis = translator.add_array(node, "more/axis", 0, DType.INT32)
        shape = translator.add_intermediate(
            node, "shape/long", "ConcatV2", [shape, padding, axis], N=2, Tidx=DType.INT32
        )
    copied = translator.add_intermediate(node, "copied", "Slice", [shape, *limits], Index=DType.INT64)
    zero = translator.add_array(node, "zero", 0)
    is_zero = translator.add_node(f"{translator.name(node.name)}/is_zero", "Equal", [requested, zero], T=DType.INT64)
    name = f"{translator.name(node.name)}/sizes"
    sizes_edge = translator.add_node(name, "SelectV2", [is_zero, copied, requested], T=DType.INT64)
    translator.types[sizes_edge] = DType.INT64
    return sizes_edge
