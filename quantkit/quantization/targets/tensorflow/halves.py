"""The first layers in two halves of rows, for two threads: nothing else can run beside them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute

CONVOLUTION = "QuantizedConv2DWithBiasAndReluAndRequantize"
JOIN: Mapping[str, Attr] = {"N": 2, "T": DType.QUINT8, "Tidx": DType.INT32}
# Rows that both halves compute, over all rows: more than this is not worth a second thread.
MOST_OVERLAP = 0.15
FEWEST_ROWS = 8
_POOLS = frozenset({"QuantizedMaxPool", "QuantizedAvgPool"})


@dataclass(frozen=True)
class _Link:
    """One layer of the first ones, along rows.

    Attributes:
        node: the convolution or pool.
        rows: of what it reads.
        kernel, stride: along rows.
        pads: rows and columns before and after.
    """

    node: Node
    rows: int
    kernel: int
    stride: int
    pads: tuple[tuple[int, int], tuple[int, int]]

    def read_rows(self, first: int, last: int) -> tuple[int, int, int, int]:
        """Rows from, rows to, padding before, padding after, for the output's rows ``first`` to ``last``."""
        start = first * self.stride - self.pads[0][0]
        end = (last - 1) * self.stride - self.pads[0][0] + self.kernel
        return max(start, 0), min(end, self.rows), max(-start, 0), max(end - self.rows, 0)


def in_halves(graph: Graph, shapes: Mapping[str, Shape]) -> tuple[Graph, Mapping[str, Shape]]:
    """The graph with its first layers in two halves of rows, where that pays; and all shapes."""
    chain = _chain(graph, shapes)
    size = _rows_and_columns(shapes, chain[-1].node.name) if chain else None
    if size is None or size[0] < FEWEST_ROWS:
        return graph, shapes
    middle = (size[0] + 1) // 2
    halves = [_ways(chain, 0, middle), _ways(chain, middle, size[0])]
    twice = sum(way[1] - way[0] for half in halves for way in half) / sum(link.rows for link in chain) - 1
    if twice > MOST_OVERLAP:
        return graph, shapes
    known = dict(shapes)
    made: list[Node] = []
    ends = [_half(graph, chain, ways, number, made, known) for number, ways in enumerate(halves)]
    last = chain[-1].node
    axis = constant(free_name(graph, f"{last.name}/rows"), np.int32(1))
    inputs = (*map(Edge, ends), Edge(axis.name))
    join = Node(last.name, "ConcatV2", inputs, last.controls, JOIN)
    gone = {link.node.name for link in chain}
    if (quantizing := _quantizing(graph, chain)) is not None:
        gone.add(quantizing.name)
    rest = [node for node in graph.nodes.values() if node.name not in gone]
    return graph.with_nodes([*rest, *made, axis, join]), known


def _chain(graph: Graph, shapes: Mapping[str, Shape]) -> list[_Link]:
    """The first layers, as long as each is read by one other only; empty: fewer than two convolutions."""
    first = next((graph[name] for name in graph.order if graph[name].op == CONVOLUTION), None)
    chain: list[_Link] = []
    node = first
    while node is not None and (link := _link(graph, node, shapes)) is not None and not node.controls:
        chain.append(link)
        uses = graph.node_uses.get(node.name, ())
        alone = len(uses) == 1 and uses[0].slot == 0 and node.name not in graph.endpoint_names
        node = uses[0].node if alone else None
    return chain if sum(link.node.op == CONVOLUTION for link in chain) > 1 else []


def _quantizing(graph: Graph, chain: list[_Link]) -> Node | None:
    """What makes codes for the first layer only: each half then makes its own, side by side."""
    source = graph[chain[0].node.inputs[0].node]
    alone = len(graph.node_uses.get(source.name, ())) == 1 and source.name not in graph.endpoint_names
    return source if source.op == "QuantizeV2" and alone and not source.controls else None


def _link(graph: Graph, node: Node, shapes: Mapping[str, Shape]) -> _Link | None:
    read, made = _rows_and_columns(shapes, node.inputs[0].node), _rows_and_columns(shapes, node.name)
    if node.op not in {CONVOLUTION, *_POOLS} or read is None or made is None:
        return None
    listed: tuple[int, ...] = ()
    if node.op in _POOLS:
        kernel = attribute(node, "ksize")[1:3]
    else:
        weights = graph.constant_of(node.inputs[1])
        if weights is None or set(attribute(node, "dilations")) != {1}:
            return None
        kernel, listed = weights.shape[:2], attribute(node, "padding_list")
    strides = attribute(node, "strides")[1:3]
    if node.attrs["padding"] == b"VALID":
        listed = listed or (0,) * 8
        pads = ((listed[2], listed[3]), (listed[4], listed[5]))
    elif node.op == CONVOLUTION:
        rows, columns = (max((made[at] - 1) * strides[at] + kernel[at] - read[at], 0) for at in (0, 1))
        pads = ((rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    else:
        return None
    return _Link(node, read[0], kernel[0], strides[0], pads)


def _rows_and_columns(shapes: Mapping[str, Shape], name: str) -> tuple[int, int] | None:
    dims = shapes.get(name, UNKNOWN).dims
    if dims is None or len(dims) != 4 or dims[1] is None or dims[2] is None:
        return None
    return dims[1], dims[2]


def _ways(chain: list[_Link], first: int, last: int) -> list[tuple[int, int, int, int]]:
    """What each link reads, for some rows of what the last one makes."""
    ways = []
    for link in reversed(chain):
        ways.append(link.read_rows(first, last))
        first, last = ways[-1][:2]
    return ways[::-1]


def _half(
    graph: Graph,
    chain: list[_Link],
    ways: list[tuple[int, int, int, int]],
    number: int,
    made: list[Node],
    shapes: dict[str, Shape],
) -> str:
    """Add the chain for one half; the name of its last node."""
    prefix = free_name(graph, f"half_{number}")
    first, last = ways[0][:2]
    begin = constant(f"{prefix}/begin", np.array([0, first, 0, 0], np.int32))
    size = constant(f"{prefix}/size", np.array([-1, last - first, -1, -1], np.int32))
    made += [begin, size]

    def rows_of(source: Edge, dtype: DType) -> Edge:
        inputs = (source, Edge(begin.name), Edge(size.name))
        made.append(Node(f"{prefix}/rows", "Slice", inputs, attrs={"T": dtype, "Index": DType.INT32}))
        return Edge(made[-1].name)

    name = f"{prefix}/codes"
    source = chain[0].node.inputs[0]
    if (quantizing := _quantizing(graph, chain)) is not None:
        part = rows_of(quantizing.inputs[0], DType.FLOAT)
        made.append(quantizing.with_(name=name, inputs=(part, *quantizing.inputs[1:])))
        dims = shapes.get(source.node, UNKNOWN).dims or ()
        shapes[name] = Shape((*dims[:1], last - first, *dims[2:]))
    else:
        made.append(Node(f"{prefix}/bytes", "Bitcast", (source,), attrs={"T": DType.QUINT8, "type": DType.UINT8}))
        part = rows_of(Edge(made[-1].name), DType.UINT8)
        made.append(Node(name, "Bitcast", (part,), attrs={"T": DType.UINT8, "type": DType.QUINT8}))
    for link, way in zip(chain, ways, strict=True):
        node = link.node.with_(name=f"{prefix}/{link.node.name}").with_input(0, name)
        if node.op == CONVOLUTION:
            listed = (0, 0, *way[2:], *link.pads[1], 0, 0)
            node = node.with_attrs(padding=b"VALID", padding_list=listed if any(listed) else ())
        made.append(node)
        name = node.name
        dims = shapes[link.node.name].dims or ()
        rows = (way[1] - way[0] + sum(way[2:]) - link.kernel) // link.stride + 1
        shapes[name] = Shape((dims[0], rows, *dims[2:]))
    return name
