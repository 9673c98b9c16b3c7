"""Conversion of gather and scatter.

The indices of an axis are positions in the flat tensor of sizes n, and so are the coordinates of ScatterND:

    position(i) = sum_d i_d stride_d,   stride_d = n_(d+1) n_(d+2) ...

TensorFlow has no scatter op that multiplies: the updates of each position are a segment, and their product is a factor.
"""

import numpy as np

from quantkit.convert.layouts import TO_NHWC
from quantkit.convert.onnx_to_tensorflow.arrays import shape_of
from quantkit.convert.onnx_to_tensorflow.translator import NHWC, PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, DType

INT32, INT64 = DType.INT32, DType.INT64
_GATHER: dict[str, Attr] = {"Tindices": INT64, "Taxis": INT32, "batch_dims": 0}
_GATHER_AXES: dict[str, Attr] = {**_GATHER, "Tindices": INT32}
_SCATTERS = {b"none": "Update", b"add": "Add", b"max": "Max", b"min": "Min"}


@converts("Gather")
def _gather(translator: OnnxTranslator, node: Node) -> None:
    source = node.inputs[0]
    axis = _axis(translator, node)
    indices_rank = translator.shape(node.inputs[1]).rank
    layout = NHWC if translator.is_nhwc(source) and indices_rank == 1 else PLAIN
    indices = _positive_indices(translator, node, axis)
    position = TO_NHWC.index(axis) if layout == NHWC else axis
    inputs = [translator.in_layout(source, layout), indices, translator.add_array(node, "axis", position, INT32)]
    translator.emit(node, "GatherV2", inputs, layout, Tparams=translator.types[inputs[0]], **_GATHER)


@converts("GatherElements")
def _gather_elements(translator: OnnxTranslator, node: Node) -> None:
    positions = _positions(translator, node)
    flat = translator.reshape(node, "flat", translator.plain(node.inputs[0]), [-1])
    inputs = [flat, positions, translator.add_array(node, "axis", 0, INT32)]
    translator.emit(node, "GatherV2", inputs, PLAIN, Tparams=translator.types[flat], **_GATHER)


@converts("GatherND")
def _gather_nd(translator: OnnxTranslator, node: Node) -> None:
    num_batch = node.attrs.get("batch_dims", 0)
    indices = _coordinates(translator, node, num_batch)
    if num_batch:
        rank = translator.rank(node.inputs[1]) or 0
        rows, mask = ([0] * rank, [0] * (rank - 1) + [1], [1] * rank), 2 ** (rank - 1) - 1
        limits = [translator.add_array(node, "limit", row) for row in rows]
        attrs: dict[str, Attr] = {"Index": INT64, "begin_mask": mask, "end_mask": mask}
        first = translator.add_intermediate(node, "first", "StridedSlice", [indices, *limits], **attrs)
        zeros = translator.add_intermediate(node, "zeros", "ZerosLike", [first])
        offsets = [_offsets(translator, node, node.inputs[0], axis, rank - axis) for axis in range(num_batch)]
        columns = [translator.add_intermediate(node, "batch", "AddV2", [zeros, offset]) for offset in offsets]
        last = translator.add_array(node, "axis", -1, INT32)
        attrs = {"N": num_batch + 1, "Tidx": INT32}
        indices = translator.add_intermediate(node, "coordinates", "ConcatV2", [*columns, indices, last], **attrs)
    source = translator.plain(node.inputs[0])
    translator.emit(node, "GatherNd", [source, indices], PLAIN, Tparams=translator.types[source], Tindices=INT64)


@converts("ScatterElements")
def _scatter_elements(translator: OnnxTranslator, node: Node) -> None:
    positions = _positions(translator, node)
    flat, updates = (
        translator.reshape(node, name, translator.plain(edge), [-1])
        for name, edge in (("flat", node.inputs[0]), ("updates", node.inputs[2]))
    )
    axes = range(translator.rank(node.inputs[0]) or 0)
    if node.attrs.get("reduction") == b"mul":
        ids = translator.reshape(node, "ids", positions, [-1])
        factors = _multiply(translator, node, updates, ids, _product(translator, node, axes))
        result = translator.add_intermediate(node, "scattered", "Mul", [flat, factors])
    else:
        column = translator.reshape(node, "column", positions, [-1, 1])
        op, inputs = _scatter_op(node), [flat, column, updates]
        result = translator.add_intermediate(node, "scattered", op, inputs, Tindices=INT64)
    shape = _size(translator, node, node.inputs[0], axes)
    translator.emit_typed(node, "Reshape", [result, shape], PLAIN, Tshape=INT64)


@converts("ScatterND")
def _scatter_nd(translator: OnnxTranslator, node: Node) -> None:
    indices = _coordinates(translator, node)
    source, updates = (translator.plain(node.inputs[slot]) for slot in (0, 2))
    if node.attrs.get("reduction") != b"mul":
        translator.emit_typed(node, _scatter_op(node), [source, indices, updates], PLAIN, Tindices=INT64)
        return
    depth = (translator.shape(node.inputs[1]).dims or [None])[-1]
    if depth is None:
        raise conversion_error(node, "the number of its coordinates is unknown")
    strides = [_product(translator, node, range(axis, depth)) for axis in range(depth + 1)]
    stride = translator.add_intermediate(node, "stride", "Pack", strides[1:], N=depth, axis=0)
    parts = translator.add_intermediate(node, "parts", "Mul", [indices, stride])
    last = translator.add_array(node, "axis", -1, INT32)
    ids = translator.add_intermediate(node, "ids", "Sum", [parts, last], Tidx=INT32, keep_dims=False)
    factors = _multiply(translator, node, updates, ids, strides[0])
    shape = _size(translator, node, node.inputs[0], range(translator.rank(node.inputs[0]) or 0))
    factors = translator.add_intermediate(node, "factors", "Reshape", [factors, shape], Tshape=INT64)
    translator.emit_typed(node, "Mul", [source, factors], PLAIN)


def _scatter_op(node: Node) -> str:
    reduction = node.attrs.get("reduction", b"none")
    if reduction not in _SCATTERS:
        raise conversion_error(node, f"the reduction {reduction!r} is not supported")
    return f"TensorScatter{_SCATTERS[reduction]}"


def _multiply(translator: OnnxTranslator, node: Node, updates: Edge, ids: Edge, count: Edge) -> Edge:
    """Return the product of the updates of each position, 1 without updates."""
    attrs: dict[str, Attr] = {"Tindices": INT64, "Tnumsegments": INT64}
    return translator.add_intermediate(node, "products", "UnsortedSegmentProd", [updates, ids, count], **attrs)


def _axis(translator: OnnxTranslator, node: Node) -> int:
    rank = translator.rank(node.inputs[0])
    if rank is None:
        raise conversion_error(node, "the rank of the input is unknown")
    return int(node.attrs.get("axis", 0) % rank)


def _coordinates(translator: OnnxTranslator, node: Node, first: int = 0) -> Edge:
    """Return the positive coordinates along the axes from ``first`` on."""
    dims = translator.shape(node.inputs[1]).dims
    if dims is None or dims[-1] is None or translator.rank(node.inputs[0]) is None:
        raise conversion_error(node, "the rank of the input or the number of coordinates is unknown")
    return _positive_indices(translator, node, range(first, first + dims[-1]))


def _positive_indices(translator: OnnxTranslator, node: Node, axes: int | range) -> Edge:
    """Return the indices as int64; negative ones, which count from the end of their axis, become positive.

    Args:
        translator: state of the conversion.
        node: node with a source and its indices as inputs.
        axes: axis of the indices, or the axes of the coordinates in their last axis.
    """
    source, edge = node.inputs[:2]
    constant, sizes = translator.constant_of(edge), _known_sizes(translator, source, axes)
    if constant is not None and (sizes is not None or (constant.array >= 0).all()):
        indices = constant.array.astype(np.int64)
        return translator.add_array(node, "indices", indices if sizes is None else np.mod(indices, sizes))
    indices_edge = translator.add_cast(node, "indices", translator.plain(edge), INT64)
    limits = _size(translator, node, source, axes)
    return translator.add_intermediate(node, "positive", "FloorMod", [indices_edge, limits])


def _known_sizes(translator: OnnxTranslator, source: Edge, axes: int | range) -> Array | None:
    """Return the size of an axis, or a vector of the sizes of axes; None if a size is unknown."""
    dims = translator.shape(source).dims
    sizes = None if dims is None else [dims[axis] for axis in np.atleast_1d(axes)]
    return None if sizes is None or None in sizes else np.array(sizes, np.int64).reshape(np.shape(axes))


def _size(translator: OnnxTranslator, node: Node, source: Edge, axes: int | range) -> Edge:
    """Return the size of an axis, or a vector of the sizes of axes, as int64."""
    sizes = _known_sizes(translator, source, axes)
    if sizes is not None:
        return translator.add_array(node, "size", sizes)
    shape = shape_of(translator, node, translator.plain(source), "source/shape")
    positions = [translator.add_array(node, "position", values, INT32) for values in (axes, 0)]
    return translator.add_intermediate(node, "size", "GatherV2", [shape, *positions], Tparams=INT64, **_GATHER_AXES)


def _product(translator: OnnxTranslator, node: Node, axes: range) -> Edge:
    """Return the product of the sizes of axes of the first input, as int64."""
    sizes = _known_sizes(translator, node.inputs[0], axes)
    if sizes is not None:
        return translator.add_array(node, "stride", sizes.prod())
    inputs = [_size(translator, node, node.inputs[0], axes), translator.add_array(node, "all", [0], INT32)]
    return translator.add_intermediate(node, "stride", "Prod", inputs, Tidx=INT32, keep_dims=False)


def _offsets(translator: OnnxTranslator, node: Node, source: Edge, axis: int, rank: int) -> Edge:
    """Return the indices along an axis, followed by axes of size 1, such that the rank is ``rank``."""
    size = _known_sizes(translator, source, axis)
    shape = [-1, *[1] * (rank - 1)]
    if size is not None:
        return translator.add_array(node, "offsets", np.arange(int(size)).reshape(shape))
    limits = [translator.add_array(node, name, value) for name, value in (("start", 0), ("step", 1))]
    inputs = [limits[0], _size(translator, node, source, axis), limits[1]]
    numbers = translator.add_intermediate(node, "numbers", "Range", inputs, Tidx=INT64)
    return translator.reshape(node, "offsets", numbers, shape)


def _positions(translator: OnnxTranslator, node: Node) -> Edge:
    """Return the positions in the flat first input of the elements that the indices of an axis select."""
    source, indices = node.inputs[:2]
    axis, rank = _axis(translator, node), translator.rank(source) or 0
    total = _positive_indices(translator, node, axis)
    for number in (axis, *(other for other in range(rank) if other != axis)):
        if number != axis and _known_sizes(translator, indices, number) == 1:
            continue
        part = total if number == axis else _offsets(translator, node, indices, number, rank - number)
        if number < rank - 1:
            stride = _product(translator, node, range(number + 1, rank))
            part = translator.add_intermediate(node, "part", "Mul", [part, stride])
        total = part if number == axis else translator.add_intermediate(node, "positions", "AddV2", [total, part])
    return total
