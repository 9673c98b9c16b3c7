"""What moves, joins, cuts and sums along axes, in ONNX: axes are counted as the layout has them."""

from typing import Any

import numpy as np

from quantkit.convert.tensorflow_to_onnx.translator import NCHW, PLAIN, TO_NCHW, Translator, converts, refusal, together
from quantkit.formats import onnx
from quantkit.formats.onnx.schema import NUMBERS
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType

REDUCTIONS = {"Mean": "ReduceMean", "Max": "ReduceMax", "Min": "ReduceMin", "Prod": "ReduceProd"}


def _axis(translator: Translator, node: Node, edge: Edge, axis: int, layout: str) -> int:
    """An axis as the layout counts it."""
    rank = translator.rank(edge)
    if axis < 0:
        if rank is None:
            raise refusal(node, "the number of dimensions that it counts from is not known")
        axis += rank
    return TO_NCHW.index(axis) if layout == NCHW else axis


@converts("Concat ConcatV2")
def _concat(translator: Translator, node: Node) -> None:
    slot = len(node.inputs) - 1 if node.op == "ConcatV2" else 0
    edges = node.inputs[:slot] if slot else node.inputs[1:]
    layout = together(translator, edges)
    axis = _axis(translator, node, edges[0], translator.constant(node, slot).item(), layout)
    translator.emit(node, "Concat", [translator.read(edge, layout) for edge in edges], layout, axis=axis)


@converts("Split SplitV")
def _split(translator: Translator, node: Node) -> None:
    axis_slot, source = (2, node.inputs[0]) if node.op == "SplitV" else (0, node.inputs[1])
    count: Any = node.attrs["num_split"]
    layout = together(translator, [source])
    axis = _axis(translator, node, source, translator.constant(node, axis_slot).item(), layout)
    inputs = [translator.read(source, layout)]
    if node.op == "SplitV":
        inputs.append(translator.numbers(f"{node.name}/sizes", map(int, translator.constant(node, 1))))
    edges = [Edge(node.name, port) for port in range(count)]
    is_asked = layout == NCHW and any(edge in translator.graph.outputs for edge in edges)
    name = f"{node.name}/nchw" if is_asked else node.name
    names = tuple(str(Edge(name, port)).encode() for port in range(count))
    made = translator.add(name, "Split", inputs, axis=axis, **{onnx.OUTPUTS: names})
    for edge in edges:
        translator.values[edge, layout] = Edge(made.node, edge.port)


@converts("Slice")
def _slice(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    begins, sizes = ([int(one) for one in translator.constant(node, slot)] for slot in (1, 2))
    layout = together(translator, [source])
    axes = [_axis(translator, node, source, axis, layout) for axis in range(len(begins))]
    ends = [begin + size if size >= 0 else np.iinfo(np.int64).max for begin, size in zip(begins, sizes, strict=True)]
    lists = (("starts", begins), ("ends", ends), ("axes", axes))
    inputs = [translator.numbers(f"{node.name}/{word}", values) for word, values in lists]
    translator.emit(node, "Slice", [translator.read(source, layout), *inputs], layout)


@converts("Pad PadV2 MirrorPad")
def _pad(translator: Translator, node: Node) -> None:
    widths = translator.constant(node, 1)
    layout = together(translator, node.inputs[:1])
    if layout == NCHW:
        widths = widths[list(TO_NCHW)]
    if node.op == "MirrorPad" and node.attrs["mode"] != b"REFLECT":
        raise refusal(node, "ONNX mirrors without the border only")
    pads = translator.numbers(f"{node.name}/pads", map(int, (*widths[:, 0], *widths[:, 1])))
    inputs = [translator.read(node.inputs[0], layout), pads]
    if node.op == "PadV2":
        inputs.append(translator.plain(node.inputs[2]))
    translator.emit(node, "Pad", inputs, layout, mode=b"reflect" if node.op == "MirrorPad" else b"constant")


def _unrolled(translator: Translator, edge: Edge) -> Edge:
    """A value whose elements are in TensorFlow's order, whatever its shape is: a 1x1 image needs no transposing."""
    dims = translator.shape(edge).dims
    if translator.is_nchw(edge) and (edge, PLAIN) not in translator.values and dims and dims[1:3] == (1, 1):
        return translator.nchw(edge)
    return translator.plain(edge)


@converts("Reshape")
def _reshape(translator: Translator, node: Node) -> None:
    found = translator.graph.constant_of(node.inputs[1])
    if found is None and translator.dtype(node.inputs[1]) in (DType.INT32, DType.INT64):
        shape = translator.add(
            f"{node.name}/shape", "Cast", [translator.plain(node.inputs[1])], to=NUMBERS[DType.INT64]
        )
    else:
        wanted = [int(size) for size in translator.constant(node, 1).reshape(-1)]
        if 0 in wanted:
            raise refusal(node, "its result is empty")
        shape = translator.numbers(f"{node.name}/shape", wanted)
    translator.emit(node, "Reshape", [_unrolled(translator, node.inputs[0]), shape], PLAIN)


@converts("Squeeze")
def _squeeze(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    listed: Any = node.attrs.get("squeeze_dims") or ()
    dims = translator.shape(source).dims
    if dims is None or (not listed and None in dims):
        raise refusal(node, "the shape that it squeezes is not known")
    axes = sorted(axis % len(dims) for axis in listed) or [axis for axis, size in enumerate(dims) if size == 1]
    edge = _unrolled(translator, source)
    if translator.values.get((source, NCHW)) == edge:
        if 3 in axes or not {1, 2} <= set(axes):
            edge = translator.plain(source)
        else:
            axes = sorted(TO_NCHW.index(axis) for axis in axes)
    translator.emit(node, "Squeeze", [edge, translator.numbers(f"{node.name}/axes", axes)], PLAIN)


@converts("ExpandDims")
def _expand_dims(translator: Translator, node: Node) -> None:
    axes = translator.numbers(f"{node.name}/axes", [translator.constant(node, 1).item()])
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
        raise refusal(node, "the number of dimensions of what it reduces is not known")
    axes = sorted(int(axis) % rank for axis in translator.constant(node, 1).reshape(-1))
    keeps = bool(node.attrs.get("keep_dims"))
    layout = together(translator, [source])
    if layout == NCHW and not keeps and axes != [1, 2]:
        layout = PLAIN  # what is left would be in another order
    if layout == NCHW and axes == [1, 2] and keeps and node.op == "Mean":
        translator.emit(node, "GlobalAveragePool", [translator.nchw(source)], NCHW)
        return
    made = layout if keeps else PLAIN
    counted = tuple(sorted(TO_NCHW.index(axis) for axis in axes)) if layout == NCHW else tuple(axes)
    edges = [translator.read(source, layout)]
    if node.op == "Sum":
        edges.append(translator.numbers(f"{node.name}/axes", counted))
        translator.emit(node, "ReduceSum", edges, made, keepdims=int(keeps))
    else:
        translator.emit(node, REDUCTIONS[node.op], edges, made, axes=counted, keepdims=int(keeps))


@converts("ResizeBilinear ResizeNearestNeighbor")
def _resize(translator: Translator, node: Node) -> None:
    shape = translator.shape(node.inputs[0])
    if translator.dtype(node.inputs[0]) is not DType.FLOAT or not shape.is_known:
        raise refusal(node, "it resizes whole numbers, or images of unknown shape")
    n, _, _, c = shape.sizes
    height, width = (int(size) for size in translator.constant(node, 1))
    centers, corners = bool(node.attrs.get("half_pixel_centers")), bool(node.attrs.get("align_corners"))
    is_linear = node.op == "ResizeBilinear"
    if corners and not is_linear:
        raise refusal(node, "ONNX rounds corners of the nearest pixel otherwise")
    mode = b"half_pixel" if centers else b"align_corners" if corners else b"asymmetric"
    attrs: dict[str, Attr] = {"coordinate_transformation_mode": mode, "mode": b"linear" if is_linear else b"nearest"}
    if not is_linear:
        attrs["nearest_mode"] = b"round_prefer_ceil" if centers else b"floor"
    sizes = translator.numbers(f"{node.name}/sizes", (n, c, height, width))
    inputs = [translator.nchw(node.inputs[0]), Edge(""), Edge(""), sizes]
    translator.emit(node, "Resize", inputs, NCHW, **attrs)
