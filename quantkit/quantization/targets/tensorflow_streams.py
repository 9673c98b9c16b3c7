"""Two threads for one graph: what is independent runs side by side, in an order that is written into the graph.

Small 8-bit layers gain nothing from several threads each, and TensorFlow starts what is ready in no good order: the
longest branch of a block is often begun last. Here each node gets a stream and a place in it, and waits for the node
before it through a control input. Where there is nothing to run side by side, rows and channels are: the upper and the
lower half of the picture go through the first layers separately, and a large layer that one thread would wait for
becomes two of half its channels.

No number changes. One thread runs the same nodes one after the other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.inference import UNKNOWN
from quantkit.quantization.targets.scheduling import Work, schedule, search

STREAMS = 2
# Rows that both halves compute, over all rows: more than this is not worth a second thread.
MOST_OVERLAP = 0.15
FEWEST_ROWS = 8
# Microseconds that two halves of a layer must save to be worth another node.
LEAST_GAIN = 20.0
# Channels that a kernel works on at once.
LANES = 16
_CONVOLUTION = "QuantizedConv2DWithBiasAndReluAndRequantize"
_POOLS = frozenset({"QuantizedMaxPool", "QuantizedAvgPool"})
# Multiply-adds, or numbers read, in a microsecond on one core; and microseconds that starting a node takes. Only
# their proportions matter, and they differ little between processors.
_SPEEDS = {"Conv2D": 450e3, "MatMul": 30e3, "DepthwiseConv2D": 20e3, "Pool": 60e3, "Concat": 40e3, "QuantizeV2": 5e3}
_START = 5.0
_JOIN: Mapping[str, Attr] = {"N": 2, "T": DType.QUINT8, "Tidx": DType.INT32}


def side_by_side(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """The graph for two threads: halves of rows first, then halves of channels, then streams.

    Args:
        graph: of fused 8-bit ops.
        shapes: of the nodes' first outputs, as far as they are known.
    """
    halved, known = _halved(graph, shapes)
    return in_streams(*_split(halved, known))


def in_streams(graph: Graph, costs: Mapping[str, float], *, count: int = STREAMS) -> Graph:
    """The graph with control inputs that make it run in streams.

    Args:
        graph: what runs; constants and fed nodes stay out of the streams.
        costs: of each node that takes time, in any unit; the others are free and wait for nobody.
        count: how many nodes run side by side.
    """
    waits = schedule(_work(graph, costs), count).waits
    return graph.with_nodes(
        node.with_(controls=(*node.controls, waits[node.name])) if node.name in waits else node
        for node in graph.nodes.values()
    )


def _work(graph: Graph, costs: Mapping[str, float]) -> Work:
    """What takes time, with what reads it directly or through free nodes."""
    found: dict[str, frozenset[str]] = {}
    for name in reversed(graph.order):
        readers = {use.node.name for use in graph.readers.get(name, ())}
        found[name] = frozenset(one for one in readers if one in costs).union(
            *(found[one] for one in readers if one not in costs)
        )
    names = [name for name in graph.order if name in costs]
    return Work({name: costs[name] for name in names}, {name: found[name] for name in names})


def _split(graph: Graph, shapes: Mapping[str, Shape]) -> tuple[Graph, dict[str, float]]:
    """The graph with layers as two, half the channels each, where a thread would wait for a large one; all costs."""
    costs = dict(_costs(graph, shapes))
    chosen: dict[str, float] = {}
    for part in _work(graph, costs).parts():
        end = search(part, STREAMS).end
        for name in sorted(part.costs, key=costs.__getitem__, reverse=True):
            if costs[name] < 2 * LEAST_GAIN or not _may_split(graph, graph[name]):
                continue
            join = 0.0 if _joins(graph, name) else _START + _numbers_in(shapes, name) / _SPEEDS["Concat"]
            tried = part.halved(name, join, _START)
            found = search(tried, STREAMS).end
            if end - found > LEAST_GAIN:
                part, end = tried, found
                chosen[name] = join
    nodes = dict(graph.nodes)
    for name, join in chosen.items():
        costs |= dict.fromkeys(_in_two(graph, name, nodes), (costs[name] + _START) / 2)
        costs[name] = join
    made = graph.with_nodes(nodes.values())
    needed = made.reachable() | made.input_names
    made = made.with_nodes(node for node in nodes.values() if node.name in needed)
    return made, {name: cost for name, cost in costs.items() if name in made}


def _may_split(graph: Graph, node: Node) -> bool:
    weights = graph.constant_of(node.inputs[1]) if node.op == _CONVOLUTION else None
    return weights is not None and weights.shape[-1] % (2 * LANES) == 0


def _joins(graph: Graph, name: str) -> bool:
    """Whether nothing but a concat of channels reads a node."""
    uses = graph.readers.get(name, ())
    if len(uses) != 1 or name in graph.ends or uses[0].node.op != "ConcatV2":
        return False
    axis = graph.constant_of(uses[0].node.inputs[-1])
    return axis is not None and int(axis.array) in (-1, 3)


def _in_two(graph: Graph, name: str, nodes: dict[str, Node]) -> list[str]:
    """Put two convolutions that make half of the channels each in place of one; their names."""
    node = graph[name]
    weights = graph.constant_of(node.inputs[1])
    assert weights is not None
    width = weights.shape[-1]
    halves = []
    for part, channels in (("low", slice(width // 2)), ("high", slice(width // 2, width))):
        half = node.with_(name=free_name(graph, f"{name}/{part}"))
        for slot, edge in enumerate(node.inputs):
            values = graph.constant_of(edge)
            if values is not None and values.shape[-1:] == (width,):
                source = constant(free_name(graph, f"{half.name}/{slot}"), values.array[..., channels], values.dtype)
                nodes[source.name] = source
                half = half.reading(slot, source.name)
        nodes[half.name] = half
        halves.append(half.name)
    if _joins(graph, name):
        join = nodes[graph.readers[name][0].node.name]
        at = join.inputs.index(Edge(name))
        inputs = (*join.inputs[:at], *map(Edge, halves), *join.inputs[at + 1 :])
        nodes[join.name] = join.with_(inputs=inputs).with_attrs(N=len(inputs) - 1)
        del nodes[name]
    else:
        axis = constant(free_name(graph, f"{name}/axis"), np.int32(3))
        nodes[axis.name] = axis
        nodes[name] = Node(name, "ConcatV2", (*map(Edge, halves), Edge(axis.name)), node.controls, _JOIN)
    return halves


def _costs(graph: Graph, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, float]]:
    """Microseconds, roughly, of each node that computes; nodes of unknown size cost what starting them takes."""
    for node in graph.nodes.values():
        kind = next((kind for kind in _SPEEDS if kind in node.op), None)
        if kind is None:
            continue
        size = _numbers_in(shapes, node.name)
        if kind in ("Conv2D", "MatMul", "DepthwiseConv2D"):
            weights = graph.constant_of(node.inputs[1])
            kernel = weights.shape if weights is not None else ()
            size *= int(np.prod(kernel[:2] if "Depthwise" in node.op else kernel[:-1]))
            kind = "DepthwiseConv2D" if "Depthwise" in node.op else kind
        elif kind == "Pool":
            size *= int(np.prod(_numbers(node, "ksize")))
        yield node.name, _START + size / _SPEEDS[kind]


def _numbers_in(shapes: Mapping[str, Shape], name: str) -> int:
    """How many numbers a node makes; 0: not known."""
    return int(np.prod([size or 1 for size in shapes.get(name, UNKNOWN).dims or (0,)]))


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


def _halved(graph: Graph, shapes: Mapping[str, Shape]) -> tuple[Graph, Mapping[str, Shape]]:
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
    join = Node(last.name, "ConcatV2", inputs, last.controls, _JOIN)
    gone = {link.node.name for link in chain}
    if (quantizing := _quantizing(graph, chain)) is not None:
        gone.add(quantizing.name)
    rest = [node for node in graph.nodes.values() if node.name not in gone]
    return graph.with_nodes([*rest, *made, axis, join]), known


def _chain(graph: Graph, shapes: Mapping[str, Shape]) -> list[_Link]:
    """The first layers, as long as each is read by one other only; empty: fewer than two convolutions."""
    first = next((graph[name] for name in graph.order if graph[name].op == _CONVOLUTION), None)
    chain: list[_Link] = []
    node = first
    while node is not None and (link := _link(graph, node, shapes)) is not None and not node.controls:
        chain.append(link)
        uses = graph.readers.get(node.name, ())
        alone = len(uses) == 1 and uses[0].slot == 0 and node.name not in graph.ends
        node = uses[0].node if alone else None
    return chain if sum(link.node.op == _CONVOLUTION for link in chain) > 1 else []


def _quantizing(graph: Graph, chain: list[_Link]) -> Node | None:
    """What makes codes for the first layer only: each half then makes its own, side by side."""
    source = graph[chain[0].node.inputs[0].node]
    alone = len(graph.readers.get(source.name, ())) == 1 and source.name not in graph.ends
    return source if source.op == "QuantizeV2" and alone and not source.controls else None


def _link(graph: Graph, node: Node, shapes: Mapping[str, Shape]) -> _Link | None:
    if node.op not in {_CONVOLUTION, *_POOLS}:
        return None
    read, made = _rows_and_columns(shapes, node.inputs[0].node), _rows_and_columns(shapes, node.name)
    weights = graph.constant_of(node.inputs[1])
    if read is None or made is None or any(size != 1 for size in _numbers(node, "dilations")):
        return None
    kernel = _numbers(node, "ksize")[1:3] if weights is None or node.op in _POOLS else weights.shape[:2]
    strides = _numbers(node, "strides")[1:3]
    if node.attrs["padding"] == b"VALID":
        listed = _numbers(node, "padding_list") or (0,) * 8
        pads = ((listed[2], listed[3]), (listed[4], listed[5]))
    elif node.op == _CONVOLUTION:
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


def _numbers(node: Node, name: str) -> tuple[int, ...]:
    value = node.attrs.get(name)
    return value if isinstance(value, tuple) else ()


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
        node = link.node.with_(name=f"{prefix}/{link.node.name}").reading(0, name)
        if node.op == _CONVOLUTION:
            listed = (0, 0, *way[2:], *link.pads[1], 0, 0)
            node = node.with_attrs(padding=b"VALID", padding_list=listed if any(listed) else ())
        made.append(node)
        name = node.name
        dims = shapes[link.node.name].dims or ()
        rows = (way[1] - way[0] + sum(way[2:]) - link.kernel) // link.stride + 1
        shapes[name] = Shape((dims[0], rows, *dims[2:]))
    return name
