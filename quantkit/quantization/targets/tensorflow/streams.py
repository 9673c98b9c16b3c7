"""Two threads for one graph: what is independent runs side by side, in an order that is written into the graph.

Small 8-bit layers gain nothing from several threads each, and TensorFlow starts what is ready in no good order: the
longest branch of a block is often begun last. Here each node gets a stream and a place in it, and waits for the node
before it through a control input. Where there is nothing to run side by side, rows and channels are: the upper and the
lower half of the picture go through the first layers separately, and a large layer that one thread would wait for
becomes two of half its channels.

No number changes. One thread runs the same nodes one after the other.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.quantization.targets.tensorflow.halves import CONVOLUTION, JOIN, in_halves
from quantkit.quantization.targets.tensorflow.scheduling import Work, schedule, search

STREAMS = 2
# Microseconds that two halves of a layer must save to be worth another node.
LEAST_GAIN = 20.0
# Channels that a kernel works on at once.
LANES = 16
# Multiply-adds, or numbers read, in a microsecond on one core; and microseconds that starting a node takes. Only
# their proportions matter, and they differ little between processors.
_SPEEDS = {"Conv2D": 450e3, "MatMul": 30e3, "DepthwiseConv2D": 20e3, "Pool": 60e3, "Concat": 40e3, "QuantizeV2": 5e3}
_START = 5.0


def side_by_side(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """The graph for two threads: halves of rows first, then halves of channels, then streams.

    Args:
        graph: of fused 8-bit ops.
        shapes: of the nodes' first outputs, as far as they are known.
    """
    halved, known = in_halves(graph, shapes)
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
        readers = {use.node.name for use in graph.node_uses.get(name, ())}
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
    weights = graph.constant_of(node.inputs[1]) if node.op == CONVOLUTION else None
    return weights is not None and weights.shape[-1] % (2 * LANES) == 0


def _joins(graph: Graph, name: str) -> bool:
    """Whether nothing but a concat of channels reads a node."""
    uses = graph.node_uses.get(name, ())
    if len(uses) != 1 or name in graph.endpoint_names or uses[0].node.op != "ConcatV2":
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
                half = half.with_input(slot, source.name)
        nodes[half.name] = half
        halves.append(half.name)
    if _joins(graph, name):
        join = nodes[graph.node_uses[name][0].node.name]
        at = join.inputs.index(Edge(name))
        inputs = (*join.inputs[:at], *map(Edge, halves), *join.inputs[at + 1 :])
        nodes[join.name] = join.with_(inputs=inputs).with_attrs(N=len(inputs) - 1)
        del nodes[name]
    else:
        axis = constant(free_name(graph, f"{name}/axis"), np.int32(3))
        nodes[axis.name] = axis
        nodes[name] = Node(name, "ConcatV2", (*map(Edge, halves), Edge(axis.name)), node.controls, JOIN)
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
            size *= int(np.prod(attribute(node, "ksize")))
        yield node.name, _START + size / _SPEEDS[kind]


def _numbers_in(shapes: Mapping[str, Shape], name: str) -> int:
    """How many numbers a node makes; 0: not known."""
    return int(np.prod([size or 1 for size in shapes.get(name, UNKNOWN).dims or (0,)]))
