"""Rules of op types for batches: the same function of every row, with one more axis at the beginning.

A rule receives a node with at least one batched input and adds nodes whose first output is the batched result. Tensors
without a batched input are the same for every row; they keep their shape and are broadcast where an op needs it.
"""

from collections.abc import Callable, Iterable

import numpy as np

from quantkit.ir.graph import Edge, Node, constant
from quantkit.ir.names import unused_name
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import attribute

_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


class NotVectorizableError(Exception):
    """Reason why a function has no batched form."""


class BatchedBody:
    """Nodes of a function for batches, added one by one.

    Args:
        shapes: shape of each tensor in the function for one row.
        values: value of each constant.
    """

    def __init__(self, shapes: dict[Edge, Shape], values: dict[Edge, Array]) -> None:
        self.nodes: list[Node] = []
        self.batched: set[Edge] = set()
        self.first_batched: Edge | None = None
        self._shapes = shapes
        self._values = values
        self._names: set[str] = set()
        self._batch_size: Edge | None = None

    def add(self, node: Node, num_outputs: int = 1, *, batched: bool = True) -> Edge:
        """Add a node; its outputs are batched tensors unless stated otherwise."""
        self.nodes.append(node)
        self._names.add(node.name)
        if batched:
            self.batched |= {Edge(node.name, port) for port in range(num_outputs)}
        return Edge(node.name)

    def new(self, base: str, op: str, inputs: Iterable[Edge], *, batched: bool = True, **attrs: object) -> Edge:
        """Add a node with a new name."""
        name = unused_name(self._names, f"{base}/{op.lower()}")
        return self.add(Node(name, op, tuple(inputs), attrs=attrs), batched=batched)  # type: ignore[arg-type]

    def constant(self, base: str, values: object, dtype: DType = DType.INT32) -> Edge:
        """Add a constant."""
        name = unused_name(self._names, f"{base}/batched")
        return self.add(constant(name, np.asarray(values, dtype.numpy), dtype), batched=False)

    def rank(self, edge: Edge) -> int:
        """Return the rank of a tensor for one row.

        Raises:
            NotVectorizableError: the rank is not known.
        """
        shape = self._shapes.get(edge)
        if shape is None or shape.rank is None:
            raise NotVectorizableError(f"the rank of {edge} is not known")
        return shape.rank

    def sizes(self, edge: Edge) -> tuple[int, ...]:
        """Return the shape of a tensor for one row.

        Raises:
            NotVectorizableError: a size is not known.
        """
        shape = self._shapes.get(edge)
        if shape is None or not shape.is_known:
            raise NotVectorizableError(f"the shape of {edge} is not known")
        return shape.sizes

    def value(self, edge: Edge) -> Array:
        """Return the value of a constant.

        Raises:
            NotVectorizableError: the node is not a constant.
        """
        if edge not in self._values:
            raise NotVectorizableError(f"{edge} is not a constant")
        return self._values[edge]

    def batch_size(self) -> Edge:
        """Return the number of rows, int32 with shape (1,)."""
        if self._batch_size is None:
            assert self.first_batched is not None
            base = "batch_size"
            shape = self.new(base, "Shape", [self.first_batched], batched=False, T=self._type, out_type=DType.INT32)
            ends = [self.constant(base, [value]) for value in (0, 1, 1)]
            masks = dict.fromkeys(_MASKS, 0)
            self._batch_size = self.new(
                base, "StridedSlice", [shape, *ends], batched=False, T=DType.INT32, Index=DType.INT32, **masks
            )
        return self._batch_size

    def set_first_batched(self, edge: Edge, dtype: DType) -> None:
        """Set the argument whose first size is the number of rows."""
        if self.first_batched is None:
            self.first_batched, self._type = edge, dtype

    def with_batch_size(self, base: str, sizes: Edge, dtype: DType = DType.INT32) -> Edge:
        """Return the sizes (r,) with the number of rows before them."""
        count = self.batch_size()
        if dtype is not DType.INT32:
            count = self.new(base, "Cast", [count], batched=False, SrcT=DType.INT32, DstT=dtype, Truncate=False)
        axis = self.constant(base, 0)
        return self.new(base, "ConcatV2", [count, sizes, axis], batched=False, N=2, T=dtype, Tidx=DType.INT32)

    def broadcast(self, edge: Edge, dtype: object, base: str) -> Edge:
        """Return a tensor with the number of rows as its first size."""
        if edge in self.batched:
            return edge
        expanded = self.new(
            base, "ExpandDims", [edge, self.constant(base, 0)], batched=False, T=dtype, Tdim=DType.INT32
        )
        multiples = self.with_batch_size(base, self.constant(base, np.ones(self.rank(edge))))
        return self.new(base, "Tile", [expanded, multiples], T=dtype, Tmultiples=DType.INT32)

    def with_rank(self, edge: Edge, rank: int, dtype: object, base: str) -> Edge:
        """Return a batched tensor with axes of size 1 after the first one, until a row has the rank."""
        for _ in range(rank - self.rank(edge)):
            edge_rank = self.rank(edge)
            expanded = self.new(base, "ExpandDims", [edge, self.constant(base, 1)], T=dtype, Tdim=DType.INT32)
            self._shapes[expanded] = Shape((1,) * (edge_rank + 1))
            edge = expanded
        return edge


Rule = Callable[[BatchedBody, Node], None]

# Ops on strings and pixels, which do not look at other elements either.
_UNARY = find_ops(Fact.UNARY, "tensorflow") | {
    *("AsString", "Bitcast", "DecodeBase64", "DecodeRaw", "EncodeBase64", "HSVToRGB", "RGBToHSV", "RegexFullMatch"),
    *("StaticRegexFullMatch", "StaticRegexReplace", "StringLength", "StringLower", "StringStrip", "StringUpper"),
    *("StringToHashBucket", "StringToHashBucketFast", "StringToHashBucketStrong", "StringToNumber"),
}
# Elementwise, with the broadcasting of NumPy.
_BROADCASTING = find_ops(Fact.BINARY, "tensorflow") | {"SelectV2"}
_REDUCTIONS = find_ops(Fact.REDUCTION, "tensorflow")


def _same(body: BatchedBody, node: Node) -> None:
    body.add(node)


def _broadcasting(body: BatchedBody, node: Node) -> None:
    rank = max(body.rank(edge) for edge in node.inputs)
    types = {"SelectV2": (DType.BOOL, node.attrs.get("T"), node.attrs.get("T"))}.get(node.op)
    inputs = []
    for index, edge in enumerate(node.inputs):
        dtype = types[index] if types else DType.BOOL if node.op.startswith("Logical") else node.attrs.get("T")
        # A tensor that is the same for every row is aligned with the last axes, as for one row.
        inputs.append(body.with_rank(edge, rank, dtype, node.name) if edge in body.batched else edge)
    body.add(node.with_(inputs=tuple(inputs)))


def _same_rank(body: BatchedBody, node: Node) -> None:
    """Apply ops whose inputs have one shape."""
    body.add(node.with_(inputs=tuple(body.broadcast(edge, node.attrs.get("T"), node.name) for edge in node.inputs)))


def _after_first(body: BatchedBody, node: Node) -> None:
    """Apply ops with one data input and parameters that are the same for every row."""
    _require_unbatched(body, node.inputs[1:], node)
    body.add(node)


def _require_unbatched(body: BatchedBody, edges: Iterable[Edge], node: Node) -> None:
    for edge in edges:
        if edge in body.batched:
            raise NotVectorizableError(f"{node.name} ({node.op}) has a parameter that differs from row to row")


def _axis(value: int) -> int:
    """Return an axis of a row as an axis of the batch."""
    return value + 1 if value >= 0 else value


def _with_axes(slot: int) -> Rule:
    """Return the rule of an op whose input ``slot`` has the axes."""

    def rule(body: BatchedBody, node: Node) -> None:
        axes = np.vectorize(_axis, otypes=[np.int64])(body.value(node.inputs[slot]))
        dtype = node.attrs.get("Tidx", node.attrs.get("Tdim", node.attrs.get("Taxis", DType.INT32)))
        edge = body.constant(node.name, axes, dtype if isinstance(dtype, DType) else DType.INT32)
        inputs = [edge if index == slot else each for index, each in enumerate(node.inputs)]
        count = node.attrs.get("num_split", 1)
        body.add(node.with_(inputs=tuple(inputs)), count if isinstance(count, int) else 1)

    return rule


def _reduction(body: BatchedBody, node: Node) -> None:
    axes = body.value(node.inputs[1]).reshape(-1)
    rank = body.rank(node.inputs[0])
    edge = body.constant(node.name, [int(axis) % rank + 1 for axis in axes])
    body.add(node.with_(inputs=(node.inputs[0], edge)).with_attrs(Tidx=DType.INT32))


def _reshape(body: BatchedBody, node: Node) -> None:
    data, sizes = node.inputs
    if sizes in body.batched:
        raise NotVectorizableError(f"{node.name} (Reshape) has a shape that differs from row to row")
    body.add(node.with_(inputs=(data, body.with_batch_size(node.name, sizes, attribute(node, "Tshape")))))


def _squeeze(body: BatchedBody, node: Node) -> None:
    dims: tuple[int, ...] = attribute(node, "squeeze_dims")
    axes = dims or tuple(axis for axis, size in enumerate(body.sizes(node.inputs[0])) if size == 1)
    rank = body.rank(node.inputs[0])
    body.add(node.with_attrs(squeeze_dims=tuple(axis % rank + 1 for axis in axes)))


def _transpose(body: BatchedBody, node: Node) -> None:
    permutation = body.value(node.inputs[1]).reshape(-1)
    edge = body.constant(node.name, [0, *(int(axis) + 1 for axis in permutation)])
    body.add(node.with_(inputs=(node.inputs[0], edge)).with_attrs(Tperm=DType.INT32))


def _slice(body: BatchedBody, node: Node) -> None:
    begin, size = (body.value(edge).reshape(-1) for edge in node.inputs[1:])
    edges = [body.constant(node.name, [first, *values]) for first, values in ((0, begin), (-1, size))]
    body.add(node.with_(inputs=(node.inputs[0], *edges)).with_attrs(Index=DType.INT32))


def _strided_slice(body: BatchedBody, node: Node) -> None:
    values = [body.value(edge).reshape(-1) for edge in node.inputs[1:]]
    edges = [body.constant(node.name, [first, *each]) for first, each in zip((0, 0, 1), values, strict=True)]
    masks = {name: attribute(node, name) << 1 | (name in ("begin_mask", "end_mask")) for name in _MASKS}
    body.add(node.with_(inputs=(node.inputs[0], *edges)).with_attrs(Index=DType.INT32, **masks))


def _pack(body: BatchedBody, node: Node) -> None:
    inputs = tuple(body.broadcast(edge, node.attrs.get("T"), node.name) for edge in node.inputs)
    body.add(node.with_(inputs=inputs).with_attrs(axis=_axis(attribute(node, "axis"))))


def _concat(body: BatchedBody, node: Node) -> None:
    *parts, axis_edge = node.inputs
    axis = body.constant(node.name, _axis(int(body.value(axis_edge))))
    inputs = (*(body.broadcast(edge, node.attrs.get("T"), node.name) for edge in parts), axis)
    body.add(node.with_(inputs=inputs).with_attrs(Tidx=DType.INT32))


def _unpack(body: BatchedBody, node: Node) -> None:
    body.add(node.with_attrs(axis=_axis(attribute(node, "axis"))), attribute(node, "num"))


def _gather(body: BatchedBody, node: Node) -> None:
    params, indices, axis_edge = node.inputs
    axis, batch_dims = int(body.value(axis_edge)), attribute(node, "batch_dims")
    if params in body.batched:
        is_batched = indices in body.batched
        edge = body.constant(node.name, axis % body.rank(params) + 1)
        new = node.with_(inputs=(params, indices, edge)).with_attrs(Taxis=DType.INT32)
        body.add(new.with_attrs(batch_dims=batch_dims + 1) if is_batched else new)
        if not is_batched and batch_dims:
            raise NotVectorizableError(f"{node.name} (GatherV2) has batch dimensions")
    elif axis == 0 and batch_dims == 0:
        body.add(node)
    else:
        raise NotVectorizableError(f"{node.name} (GatherV2) gathers along axis {axis} of a tensor without rows")


def _one_hot(body: BatchedBody, node: Node) -> None:
    _require_unbatched(body, node.inputs[1:], node)
    body.add(node.with_attrs(axis=_axis(attribute(node, "axis"))))


def _shape(body: BatchedBody, node: Node) -> None:
    """Return the shape of one row, which is the same for every row."""
    dtype = DType.INT32 if node.op == "Rank" else attribute(node, "out_type")
    value = {"Shape": body.sizes, "Size": lambda edge: int(np.prod(body.sizes(edge))), "Rank": body.rank}[node.op]
    edge = body.constant(node.name, value(node.inputs[0]), dtype)
    body.add(Node(node.name, "Identity", (edge,), attrs={"T": dtype}), batched=False)


def _pad(body: BatchedBody, node: Node) -> None:
    _require_unbatched(body, node.inputs[2:], node)
    paddings = body.value(node.inputs[1])
    edge = body.constant(node.name, [[0, 0], *paddings.tolist()])
    body.add(node.with_(inputs=(node.inputs[0], edge, *node.inputs[2:])).with_attrs(Tpaddings=DType.INT32))


def _tile(body: BatchedBody, node: Node) -> None:
    edge = body.constant(node.name, [1, *body.value(node.inputs[1]).reshape(-1)])
    body.add(node.with_(inputs=(node.inputs[0], edge)).with_attrs(Tmultiples=DType.INT32))


def _ensure_shape(body: BatchedBody, node: Node) -> None:
    shape: Shape = attribute(node, "shape")
    body.add(node.with_attrs(shape=shape if shape.dims is None else Shape((None, *shape.dims))))


def _bias_add(body: BatchedBody, node: Node) -> None:
    _require_unbatched(body, node.inputs[1:], node)
    if node.attrs.get("data_format", b"NHWC") != b"NHWC":
        raise NotVectorizableError(f"{node.name} (BiasAdd) has channels first")
    body.add(node)


def _parse_example(body: BatchedBody, node: Node) -> None:
    """Parse all rows at once: ``parse_single_example`` is ``parse_example`` of a scalar."""
    _require_unbatched(body, node.inputs[1:], node)
    if node.attrs.get("num_sparse") or node.attrs.get("ragged_value_types"):
        raise NotVectorizableError(f"{node.name} ({node.op}) has sparse or ragged features")
    shapes: tuple[Shape, ...] = attribute(node, "dense_shapes")
    if not all(shape.is_known for shape in shapes):
        raise NotVectorizableError(f"{node.name} ({node.op}) has a feature of variable length")
    body.add(node, len(shapes))


RULES: dict[str, Rule] = {
    **dict.fromkeys(_UNARY, _same),
    **dict.fromkeys(_BROADCASTING, _broadcasting),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("ArgMax", "ArgMin", "Cumsum", "Cumprod", "ReverseV2", "ExpandDims"), _with_axes(1)),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pad),
    **dict.fromkeys(("Shape", "Size", "Rank"), _shape),
    **dict.fromkeys(("Substr", "RegexReplace", "ClipByValue", "DecodePaddedRaw"), _after_first),
    **dict.fromkeys(("AddN", "Select"), _same_rank),
    "BiasAdd": _bias_add,
    "ConcatV2": _concat,
    "EnsureShape": _ensure_shape,
    "GatherV2": _gather,
    "OneHot": _one_hot,
    "Pack": _pack,
    "ParseExampleV2": _parse_example,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _with_axes(0),
    "SplitV": _with_axes(2),
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unpack": _unpack,
}
