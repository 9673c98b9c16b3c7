"""Conversion of ops that gather, scatter, sort and select elements.

ScatterND adds the rows of a segment:   UnsortedSegmentSum(rows, ids, n) = ScatterND(zeros, ids, rows), reduction add
"""

from collections.abc import Sequence

import numpy as np

from quantkit.convert.tensorflow_to_onnx.slices import SLICE_LIMIT
from quantkit.convert.tensorflow_to_onnx.translator import PLAIN, Translator, conversion_error, converts
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import attribute

INT64 = DType.INT64


@converts("ArgMax ArgMin")
def _arg_extreme(translator: Translator, node: Node) -> None:
    axis = int(translator.constant(node, 1).item()) if len(node.inputs) > 1 else 0
    index = translator.add_intermediate(
        node, "index", node.op, [translator.plain(node.inputs[0])], axis=axis, keepdims=0
    )
    translator.emit_as(node, 0, index, attribute(node, "output_type"))


@converts("TopKV2")
def _top_k(translator: Translator, node: Node) -> None:
    k = _as_vector(translator, node, "k", translator.int64_input(node, 1))
    names = (f"{node.name}/values", f"{node.name}/indices")
    top = _add_outputs(translator, node, "top", "TopK", [translator.plain(node.inputs[0]), k], names, axis=-1)
    translator.values[Edge(node.name), PLAIN] = translator.add_node(node.name, "Identity", [top[0]])
    translator.emit_as(node, 1, top[1], node.attrs.get("index_type") or DType.INT32)


def _add_outputs(
    translator: Translator,
    node: Node,
    suffix: str,
    op: str,
    inputs: Sequence[Edge],
    names: Sequence[str],
    **attrs: Attr,
) -> list[Edge]:
    """Add a node with several outputs."""
    outputs = tuple(name.encode() for name in names)
    edge = translator.add_intermediate(node, suffix, op, inputs, **{onnx.OUTPUTS: outputs}, **attrs)
    return [Edge(edge.node, port) for port in range(len(names))]


def _as_vector(translator: Translator, node: Node, suffix: str, edge: Edge) -> Edge:
    """Return a value of one element as a vector."""
    return translator.add_intermediate(node, suffix, "Reshape", [edge, translator.add_array(node, f"{suffix}/1", [1])])


@converts("OneHot")
def _one_hot(translator: Translator, node: Node) -> None:
    """Compute in float32 or int64: the runtimes have kernels for these types."""
    indices, depth = translator.int64_input(node, 0), translator.int64_input(node, 1)
    on, off = (translator.plain(edge) for edge in node.inputs[2:])
    axis = attribute(node, "axis")
    dtype = translator.dtype(node.inputs[2])
    kind = DType.FLOAT if dtype.is_float else INT64
    pair = [_as_vector(translator, node, name, edge) for name, edge in (("off", off), ("on", on))]
    values = translator.add_intermediate(node, "values", "Concat", pair, axis=0)
    if dtype is kind:
        indices = _without_negative(translator, node, indices, depth)
        translator.emit(node, "OneHot", [indices, depth, values], PLAIN, axis=axis)
        return
    values = translator.add_cast(node, "values/wide", values, kind)
    indices = _without_negative(translator, node, indices, depth)
    wide = translator.add_intermediate(node, "wide", "OneHot", [indices, depth, values], axis=axis)
    translator.emit_as(node, 0, wide, dtype)


def _without_negative(translator: Translator, node: Node, indices: Edge, limit: Edge) -> Edge:
    """Replace negative indices, which count from the end in ONNX, by ``limit``."""
    zero = translator.add_array(node, "first", 0)
    is_negative = translator.add_intermediate(node, "is_negative", "Less", [indices, zero])
    return translator.add_intermediate(node, "from_zero", "Where", [is_negative, limit, indices])


@converts("Where")
def _where(translator: Translator, node: Node) -> None:
    dtype = translator.dtype(node.inputs[0])
    source = translator.plain(node.inputs[0])
    if dtype is not DType.BOOL:
        source = translator.add_cast(node, "bool", source, DType.BOOL)
    coordinates = translator.add_intermediate(node, "coordinates", "NonZero", [source])
    translator.emit(node, "Transpose", [coordinates], PLAIN, perm=(1, 0))


@converts("InvertPermutation")
def _invert_permutation(translator: Translator, node: Node) -> None:
    source = translator.plain(node.inputs[0])
    count = translator.add_intermediate(node, "count", "Shape", [source])
    names = (f"{node.name}/sorted", f"{node.name}/order")
    top = _add_outputs(translator, node, "top", "TopK", [source, count], names, largest=0)
    translator.emit_as(node, 0, top[1], translator.dtype(node.inputs[0]))


@converts("Roll")
def _roll(translator: Translator, node: Node) -> None:
    shifts, axes = (translator.constant(node, slot).reshape(-1).tolist() for slot in (1, 2))
    value = translator.plain(node.inputs[0])
    dims = translator.shape(node.inputs[0]).dims or ()
    for number, (shift, axis) in enumerate(zip(shifts, axes, strict=True)):
        size = dims[axis] if dims else None
        if size is None:
            raise conversion_error(node, "the size of the axis is unknown")
        split = size - shift % size
        ends = [
            translator.add_intermediate(
                node,
                f"part_{number}_{begin}",
                "Slice",
                [value, *(translator.add_array(node, f"{number}/{begin}/{i}", [x]) for i, x in enumerate(limits))],
            )
            for begin, limits in (("last", (split, SLICE_LIMIT, axis)), ("first", (0, split, axis)))
        ]
        value = translator.add_intermediate(node, f"rolled_{number}", "Concat", ends, axis=axis)
    translator.emit(node, "Identity", [value], PLAIN)


@converts("GatherNd")
def _gather_nd(translator: Translator, node: Node) -> None:
    translator.emit(node, "GatherND", [translator.plain(node.inputs[0]), translator.int64_input(node, 1)], PLAIN)


@converts("TensorScatterAdd TensorScatterSub")
def _scatter_add(translator: Translator, node: Node) -> None:
    rows, updates = (translator.plain(node.inputs[slot]) for slot in (0, 2))
    if node.op == "TensorScatterSub":
        updates = translator.add_intermediate(node, "negative", "Neg", [updates])
    translator.emit(node, "ScatterND", [rows, translator.int64_input(node, 1), updates], PLAIN, reduction=b"add")


@converts("ScatterNd")
def _scatter_nd(translator: Translator, node: Node) -> None:
    zero = translator.add_array(node, "zero", 0, translator.dtype(node.inputs[1]))
    zeros = translator.add_intermediate(node, "zeros", "Expand", [zero, translator.int64_input(node, 2)])
    inputs = [zeros, translator.int64_input(node, 0), translator.plain(node.inputs[1])]
    translator.emit(node, "ScatterND", inputs, PLAIN, reduction=b"add")


@converts("SegmentSum SegmentProd SegmentMean UnsortedSegmentSum UnsortedSegmentProd")
def _segment(translator: Translator, node: Node) -> None:
    """Add or multiply the rows of each segment; rows with a negative id go to an additional segment, which is cut."""
    if (translator.rank(node.inputs[1]) or 1) != 1:
        raise conversion_error(node, "the segment ids must be a vector")
    dtype = translator.dtype(node.inputs[0])
    rows, ids = translator.plain(node.inputs[0]), translator.int64_input(node, 1)
    increment = translator.add_array(node, "one", [1])
    if node.op.startswith("Unsorted"):
        count = _as_vector(translator, node, "count", translator.int64_input(node, 2))
    else:
        last = translator.add_intermediate(node, "last", "ReduceMax", [ids], axes=(0,), keepdims=1)
        count = translator.add_intermediate(node, "count", "Add", [last, increment])
    total = translator.add_intermediate(node, "total", "Add", [count, increment])
    ids = _without_negative(translator, node, ids, count)
    last_axis = translator.add_array(node, "last_axis", [-1])
    positions = translator.add_intermediate(node, "places", "Unsqueeze", [ids, last_axis])

    def combine(suffix: str, updates: Edge, start: int, reduction: bytes) -> Edge:
        shape = translator.add_intermediate(node, f"{suffix}/shape", "Shape", [updates], start=1)
        sizes = translator.add_intermediate(node, f"{suffix}/sizes", "Concat", [total, shape], axis=0)
        initial = translator.add_array(node, f"{suffix}/initial", start, dtype)
        full = translator.add_intermediate(node, f"{suffix}/full", "Expand", [initial, sizes])
        inputs = [full, positions, updates]
        sums = translator.add_intermediate(node, f"{suffix}/all", "ScatterND", inputs, reduction=reduction)
        begin = translator.add_array(node, f"{suffix}/begin", [0])
        return translator.add_intermediate(node, suffix, "Slice", [sums, begin, count])

    result = combine("segments", rows, *((1, b"mul") if "Prod" in node.op else (0, b"add")))
    if node.op == "SegmentMean":
        number = translator.add_array(node, "ones/value", 1, dtype)
        shape = translator.add_intermediate(node, "ones/shape", "Shape", [rows])
        row_counts = translator.add_intermediate(node, "ones", "Expand", [number, shape])
        counts = translator.add_intermediate(node, "counts", "Max", [combine("lengths", row_counts, 0, b"add"), number])
        translator.emit(node, "Div", [result, counts], PLAIN)
    else:
        translator.emit(node, "Identity", [result], PLAIN)


@converts("Unique UniqueWithCounts")
def _unique(translator: Translator, node: Node) -> None:
    """Compare integers as int64, for which the runtimes have a kernel."""
    names = [f"{node.name}/{name}" for name in ("values", "first", "inverse", "counts")]
    dtype = translator.dtype(node.inputs[0])
    source = translator.plain(node.inputs[0]) if dtype.is_float else translator.int64_input(node, 0)
    values, _, *indices = _add_outputs(translator, node, "unique", "Unique", [source], names, sorted=0)
    for port, edge in enumerate((values, *indices)):
        translator.emit_as(node, port, edge, attribute(node, "out_idx") if port else dtype)


@converts("DynamicStitch ParallelDynamicStitch")
def _dynamic_stitch(translator: Translator, node: Node) -> None:
    half = len(node.inputs) // 2
    ranks = [translator.rank(edge) for edge in node.inputs[:half]]
    if not set(ranks) <= {0, 1}:
        raise conversion_error(node, "the indices must be scalars or vectors")
    first = translator.add_array(node, "first", [0])
    parts: list[list[Edge]] = [[], []]
    for slot, rank in enumerate(ranks):
        pair = (translator.int64_input(node, slot), translator.plain(node.inputs[half + slot]))
        for edges, edge in zip(parts, pair, strict=True):
            name = f"part_{slot}_{len(edges)}_{edges is parts[0]}"
            edges.append(edge if rank else translator.add_intermediate(node, name, "Unsqueeze", [edge, first]))
    indices, rows = (
        translator.add_intermediate(node, name, "Concat", edges, axis=0)
        for name, edges in zip(("indices", "rows"), parts, strict=True)
    )
    last = translator.add_intermediate(node, "last", "ReduceMax", [indices], axes=(0,), keepdims=1)
    count = translator.add_intermediate(node, "count", "Add", [last, translator.add_array(node, "one", [1])])
    shape = translator.add_intermediate(node, "shape", "Shape", [rows], start=1)
    sizes = translator.add_intermediate(node, "sizes", "Concat", [count, shape], axis=0)
    zero = translator.add_array(node, "zero", 0, translator.dtype(node.inputs[half]))
    zeros = translator.add_intermediate(node, "zeros", "Expand", [zero, sizes])
    positions = translator.add_intermediate(
        node, "places", "Unsqueeze", [indices, translator.add_array(node, "last_axis", [-1])]
    )
    translator.emit(node, "ScatterND", [zeros, positions, rows], PLAIN)


@converts("DynamicPartition")
def _dynamic_partition(translator: Translator, node: Node) -> None:
    if translator.rank(node.inputs[1]) != 1:
        raise conversion_error(node, "the partitions must be a vector")
    rows, partitions = (translator.plain(edge) for edge in node.inputs)
    for port in range(attribute(node, "num_partitions")):
        number = translator.add_array(node, f"{port}/number", port, DType.INT32)
        selected = translator.add_intermediate(node, f"{port}/selected", "Equal", [partitions, number])
        edge = Edge(node.name, port)
        translator.values[edge, PLAIN] = translator.add_node(str(edge), "Compress", [rows, selected], axis=0)


@converts("Bincount DenseBincount")
def _bincount(translator: Translator, node: Node) -> None:
    """Count by comparison with each number; values that exceed the size are ignored, as in TensorFlow."""
    weights = translator.shape(node.inputs[2]).dims
    if translator.rank(node.inputs[0]) != 1 or weights is None or 0 not in weights:
        raise conversion_error(node, "only counts of a vector without weights are supported")
    size = int(translator.constant(node, 1).item())
    values = translator.int64_input(node, 0)
    numbers = translator.add_array(node, "numbers", np.arange(size)[:, None])
    equal = translator.add_intermediate(node, "equal", "Equal", [values, numbers])
    row_counts = translator.add_cast(node, "ones", equal, DType.INT32)
    axes = translator.add_array(node, "axes", [1])
    counts = translator.add_intermediate(node, "counts", "ReduceSum", [row_counts, axes], keepdims=0)
    if node.op == "DenseBincount" and node.attrs.get("binary_output"):
        counts = translator.add_intermediate(
            node, "any", "Min", [counts, translator.add_array(node, "one", 1, DType.INT32)]
        )
    translator.emit_as(node, 0, counts, translator.dtype(Edge(node.name)))
