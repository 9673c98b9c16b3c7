"""Conversion of shape ops, reductions and resizes; axes are converted to the layout of the value."""

import numpy as np

from quantkit.convert.layouts import TO_NCHW
from quantkit.convert.tensorflow_to_onnx.translator import (
    NCHW,
    PLAIN,
    Translator,
    common_layout,
    conversion_error,
    converts,
)
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.tensorflow.signatures import output_dtypes

REDUCTIONS = {"Mean": "ReduceMean", "Max": "ReduceMax", "Min": "ReduceMin", "Prod": "ReduceProd"}


def _axis(translator: Translator, node: Node, edge: Edge, axis: int, layout: str) -> int:
    """Return the index of an axis in a layout."""
    rank = translator.rank(edge)
    if axis < 0:
        if rank is None:
            raise conversion_error(node, "the rank of its input is unknown")
        axis += rank
    return TO_NCHW.index(axis) if layout == NCHW else axis


@converts("Concat ConcatV2")
def _concat(translator: Translator, node: Node) -> None:
    slot = len(node.inputs) - 1 if node.op == "ConcatV2" else 0
    edges = node.inputs[:slot] if slot else node.inputs[1:]
    layout = common_layout(translator, edges)
    axis = _axis(translator, node, edges[0], translator.constant(node, slot).item(), layout)
    translator.emit(node, "Concat", [translator.in_layout(edge, layout) for edge in edges], layout, axis=axis)


@converts("Split SplitV")
def _split(translator: Translator, node: Node) -> None:
    axis_slot, source = (2, node.inputs[0]) if node.op == "SplitV" else (0, node.inputs[1])
    count = len(output_dtypes(node))
    layout = common_layout(translator, [source])
    axis = _axis(translator, node, source, translator.constant(node, axis_slot).item(), layout)
    inputs = [translator.in_layout(source, layout)]
    if node.op == "SplitV":
        inputs.append(translator.add_integers(f"{node.name}/sizes", map(int, translator.constant(node, 1))))
    edges = [Edge(node.name, port) for port in range(count)]
    has_output = layout == NCHW and any(edge in translator.graph.outputs for edge in edges)
    name = f"{node.name}/nchw" if has_output else node.name
    names = tuple(str(Edge(name, port)).encode() for port in range(count))
    split = translator.add_node(name, "Split", inputs, axis=axis, **{onnx.OUTPUTS: names})
    for edge in edges:
        translator.values[edge, layout] = Edge(split.node, edge.port)


@converts("Slice")
def _slice(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    if any(translator.constant_of(edge) is None for edge in node.inputs[1:]):
        _slice_computed(translator, node)
        return
    begins, sizes = ([int(value) for value in translator.constant(node, slot)] for slot in (1, 2))
    layout = common_layout(translator, [source])
    axes = [_axis(translator, node, source, axis, layout) for axis in range(len(begins))]
    ends = [begin + size if size >= 0 else np.iinfo(np.int64).max for begin, size in zip(begins, sizes, strict=True)]
    lists = (("starts", begins), ("ends", ends), ("axes", axes))
    inputs = [translator.add_integers(f"{node.name}/{name}", values) for name, values in lists]
    translator.emit(node, "Slice", [translator.in_layout(source, layout), *inputs], layout)


def _slice_computed(translator: Translator, node: Node) -> None:
    """Convert a slice with computed limits; size -1 stands for all elements up to the end."""
    begin, size = (translator.int64_input(node, slot) for slot in (1, 2))
    end = translator.add_intermediate(node, "end", "Add", [begin, size])
    is_open = translator.add_intermediate(node, "is_open", "Less", [size, translator.add_array(node, "zero", 0)])
    limit = translator.add_array(node, "limit", np.iinfo(np.int64).max)
    end = translator.add_intermediate(node, "ends", "Where", [is_open, limit, end])
    translator.emit(node, "Slice", [translator.plain(node.inputs[0]), begin, end], PLAIN)


@converts("Pad PadV2 MirrorPad")
def _pad(translator: Translator, node: Node) -> None:
    if node.op == "MirrorPad" and node.attrs["mode"] != b"REFLECT":
        raise conversion_error(node, "ONNX only supports the mode REFLECT")
    constant = translator.constant_of(node.inputs[1])
    layout = PLAIN if constant is None else common_layout(translator, node.inputs[:1])
    if constant is None:
        columns = translator.add_intermediate(node, "columns", "Transpose", [translator.int64_input(node, 1)])
        pads = translator.add_intermediate(node, "pads", "Reshape", [columns, translator.add_array(node, "flat", [-1])])
    else:
        widths = constant.array[list(TO_NCHW)] if layout == NCHW else constant.array
        pads = translator.add_integers(f"{node.name}/pads", map(int, (*widths[:, 0], *widths[:, 1])))
    inputs = [translator.in_layout(node.inputs[0], layout), pads]
    if node.op == "PadV2":
        inputs.append(translator.plain(node.inputs[2]))
    translator.emit(node, "Pad", inputs, layout, mode=b"reflect" if node.op == "MirrorPad" else b"constant")


def _row_major(translator: Translator, edge: Edge) -> Edge:
    """Return the value with its elements in TensorFlow's order; both layouts of a 1x1 image have the same order."""
    dims = translator.shape(edge).dims
    if translator.is_nchw(edge) and (edge, PLAIN) not in translator.values and dims and dims[1:3] == (1, 1):
        return translator.nchw(edge)
    return translator.plain(edge)


@converts("Reshape")
def _reshape(translator: Translator, node: Node) -> None:
    constant = translator.constant_of(node.inputs[1])
    if constant is None and translator.dtype(node.inputs[1]) in (DType.INT32, DType.INT64):
        shape = translator.add_cast(node, "shape", translator.plain(node.inputs[1]), DType.INT64)
    else:
        sizes = [int(size) for size in translator.constant(node, 1).reshape(-1)]
        if 0 in sizes:
            raise conversion_error(node, "the output is empty")
        shape = translator.add_integers(f"{node.name}/shape", sizes)
    translator.emit(node, "Reshape", [_row_major(translator, node.inputs[0]), shape], PLAIN)


@converts("Squeeze")
def _squeeze(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    attr_axes = node.attrs.get("squeeze_dims") or ()
    dims = translator.shape(source).dims
    if dims is None or (not attr_axes and None in dims):
        raise conversion_error(node, "the shape of its input is unknown")
    axes = sorted(axis % len(dims) for axis in attr_axes) or [axis for axis, size in enumerate(dims) if size == 1]
    edge = _row_major(translator, source)
    if translator.values.get((source, NCHW)) == edge:
        if 3 in axes or not {1, 2} <= set(axes):
            edge = translator.plain(source)
        else:
            axes = sorted(TO_NCHW.index(axis) for axis in axes)
    translator.emit(node, "Squeeze", [edge, translator.add_integers(f"{node.name}/axes", axes)], PLAIN)


@converts("ExpandDims")
def _expand_dims(translator: Translator, node: Node) -> None:
    axes = translator.add_integers(f"{node.name}/axes", [translator.constant(node, 1).item()])
    translator.emit(node, "Unsqueeze", [translator.plain(node.inputs[0]), axes], PLAIN)


@converts("Transpose")
def _transpose(translator: Translator, node: Node) -> None:
    permutation = tuple(int(axis) for axis in translator.constant(node, 1))
    translator.emit(node, "Transpose", [translator.plain(node.inputs[0])], PLAIN, perm=permutation)


@converts("Sum " + " ".join(REDUCTIONS))
def _reduction(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    rank = translator.rank(source)
    if rank is None:
        raise conversion_error(node, "the rank of its input is unknown")
    axes = sorted(int(axis) % rank for axis in translator.constant(node, 1).reshape(-1))
    keeps_dims = bool(node.attrs.get("keep_dims"))
    layout = common_layout(translator, [source])
    if layout == NCHW and not keeps_dims and axes != [1, 2]:
        layout = PLAIN  # the remaining axes would have another order
    if layout == NCHW and axes == [1, 2] and keeps_dims and node.op == "Mean":
        translator.emit(node, "GlobalAveragePool", [translator.nchw(source)], NCHW)
        return
    output_layout = layout if keeps_dims else PLAIN
    onnx_axes = tuple(sorted(TO_NCHW.index(axis) for axis in axes)) if layout == NCHW else tuple(axes)
    edges = [translator.in_layout(source, layout)]
    if node.op == "Sum":
        edges.append(translator.add_integers(f"{node.name}/axes", onnx_axes))
        translator.emit(node, "ReduceSum", edges, output_layout, keepdims=int(keeps_dims))
    else:
        translator.emit(node, REDUCTIONS[node.op], edges, output_layout, axes=onnx_axes, keepdims=int(keeps_dims))


@converts("All Any")
def _logical_reduction(translator: Translator, node: Node) -> None:
    rank = translator.rank(node.inputs[0])
    if rank is None:
        raise conversion_error(node, "the rank of its input is unknown")
    axes = tuple(sorted(int(axis) % rank for axis in translator.constant(node, 1).reshape(-1)))
    attrs: dict[str, Attr] = {"axes": axes, "keepdims": int(bool(node.attrs.get("keep_dims")))}
    number = translator.add_intermediate(
        node, "number", "Cast", [translator.plain(node.inputs[0])], to=NUMBERS[DType.INT32]
    )
    op = "ReduceMin" if node.op == "All" else "ReduceMax"
    reduced = translator.add_intermediate(node, "reduced", op, [number], **attrs)
    translator.emit(node, "Cast", [reduced], PLAIN, to=NUMBERS[DType.BOOL])


@converts("ResizeBilinear ResizeNearestNeighbor")
def _resize(translator: Translator, node: Node) -> None:
    is_linear = node.op == "ResizeBilinear"
    dtype = translator.dtype(node.inputs[0])
    image = translator.nchw(node.inputs[0])
    if dtype is not DType.FLOAT:
        if not is_linear:
            raise conversion_error(node, "the input must be float32")
        image = translator.add_cast(node, "float", image, DType.FLOAT)
    centers, corners = bool(node.attrs.get("half_pixel_centers")), bool(node.attrs.get("align_corners"))
    if corners and not is_linear:
        raise conversion_error(node, "ONNX rounds positions differently with align_corners")
    mode = b"half_pixel" if centers else b"align_corners" if corners else b"asymmetric"
    attrs: dict[str, Attr] = {"coordinate_transformation_mode": mode, "mode": b"linear" if is_linear else b"nearest"}
    if not is_linear:
        attrs["nearest_mode"] = b"round_prefer_ceil" if centers else b"floor"
    translator.emit(node, "Resize", [image, Edge(""), Edge(""), _resized_shape(translator, node, image)], NCHW, **attrs)


def _resized_shape(translator: Translator, node: Node, image: Edge) -> Edge:
    """Return the shape of a resized image in layout NCHW."""
    dims, sizes = translator.shape(node.inputs[0]).dims, translator.constant_of(node.inputs[1])
    if dims is not None and dims[0] is not None and dims[3] is not None and sizes is not None:
        return translator.add_integers(f"{node.name}/sizes", (dims[0], dims[3], *map(int, sizes.array)))
    shape = translator.add_intermediate(node, "shape", "Shape", [image], start=0, end=2)
    return translator.add_intermediate(node, "sizes", "Concat", [shape, translator.int64_input(node, 1)], axis=0)
