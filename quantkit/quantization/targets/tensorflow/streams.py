"""Order of nodes for two threads: independent nodes run side by side, by control dependencies.

Small int8 layers gain little from several threads each, and TensorFlow starts ready nodes in an
arbitrary order: the longest branch of a block is often started last. Here each node gets a stream,
and a control dependency on the node before it in the stream. Where no nodes are independent, a large
layer is split into two halves of its channels.

The outputs do not change, and a single thread runs the same nodes one after the other.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.size_inference import INTEGERS
from quantkit.ops.tensorflow.frames import find_loop_nodes, without_back_edges
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.quantization.targets.tensorflow.scheduling import TaskGraph, schedule, schedule_part

CONVOLUTION = "QuantizedConv2DWithBiasAndReluAndRequantize"
CONCAT_ATTRS: Mapping[str, Attr] = {"N": 2, "T": DType.QUINT8, "Tidx": DType.INT32}
NUM_STREAMS = 2
# Microseconds that two halves of a layer must save.
MIN_GAIN = 20.0
# Channels that a kernel computes together.
NUM_LANES = 16
# MACs or elements per microsecond on one core, and microseconds to start a node. Only their ratios
# matter, and they differ little between processors.
_SPEEDS = {"Conv2D": 450e3, "MatMul": 30e3, "DepthwiseConv2D": 20e3, "Pool": 60e3, "Concat": 40e3, "QuantizeV2": 5e3}
_START = 5.0


def schedule_for_two_threads(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """Return the graph with split channels and streams.

    Args:
        graph: graph of oneDNN ops.
        shapes: shapes of the nodes' first outputs; some may be unknown.
    """
    return add_streams(*_split_channels(graph, shapes))


def add_streams(graph: Graph, costs: Mapping[str, float], *, count: int = NUM_STREAMS) -> Graph:
    """Return the graph with control dependencies that make it run in streams.

    Args:
        graph: graph to order; constants and graph inputs are in no stream.
        costs: cost of each node of a stream, in one time unit; other nodes are free.
        count: number of streams.
    """
    dependencies = schedule(_task_graph(graph, costs), count).dependencies
    # A file has no names of outputs: an output keeps that role only without consumers.
    sinks = {name for name in graph.output_names if not graph.node_uses.get(name)}

    def add_dependency(node: Node) -> Node:
        name = dependencies.get(node.name)
        while name in sinks:
            name = dependencies.get(name)
        return node if name is None else node.with_(controls=(*node.controls, name))

    return graph.with_nodes(add_dependency(node) for node in graph.nodes.values())


def _task_graph(graph: Graph, costs: Mapping[str, float]) -> TaskGraph:
    """Return the nodes with costs; dependencies through free nodes count as direct ones."""
    graph = without_back_edges(graph)
    successors: dict[str, frozenset[str]] = {}
    for name in reversed(graph.order):
        consumers = {use.node.name for use in graph.node_uses.get(name, ())}
        successors[name] = frozenset(consumer for consumer in consumers if consumer in costs).union(
            *(successors[consumer] for consumer in consumers if consumer not in costs)
        )
    names = [name for name in graph.order if name in costs]
    return TaskGraph({name: costs[name] for name in names}, {name: successors[name] for name in names})


def _split_channels(graph: Graph, shapes: Mapping[str, Shape]) -> tuple[Graph, dict[str, float]]:
    """Return the graph with large layers split where that shortens the schedule, and all costs."""
    costs = dict(_costs(graph, shapes))
    join_costs: dict[str, float] = {}
    for part in _task_graph(graph, costs).split():
        end = schedule_part(part, NUM_STREAMS).end
        for name in sorted(part.costs, key=costs.__getitem__, reverse=True):
            if costs[name] < 2 * MIN_GAIN or not _may_split(graph, graph[name]):
                continue
            join_cost = 0.0
            if not _feeds_concat(graph, name):
                join_cost = _START + _num_elements(shapes, name) / _SPEEDS["Concat"]
            candidate = part.halve(name, join_cost, _START)
            candidate_end = schedule_part(candidate, NUM_STREAMS).end
            if end - candidate_end > MIN_GAIN:
                part, end = candidate, candidate_end
                join_costs[name] = join_cost
    nodes = dict(graph.nodes)
    for name, join_cost in join_costs.items():
        costs |= dict.fromkeys(_replace_by_halves(graph, name, nodes), (costs[name] + _START) / 2)
        costs[name] = join_cost
    split = graph.with_nodes(nodes.values()).without_unused_nodes()
    return split, {name: cost for name, cost in costs.items() if name in split}


def _may_split(graph: Graph, node: Node) -> bool:
    weights = graph.constant_of(node.inputs[1]) if node.op == CONVOLUTION else None
    return weights is not None and weights.shape[-1] % (2 * NUM_LANES) == 0


def _feeds_concat(graph: Graph, name: str) -> bool:
    """Return True if the only consumer is a concatenation of channels."""
    uses = graph.node_uses.get(name, ())
    if len(uses) != 1 or name in graph.endpoint_names or uses[0].node.op != "ConcatV2":
        return False
    axis = graph.constant_of(uses[0].node.inputs[-1])
    return axis is not None and int(axis.array) in (-1, 3)


def _replace_by_halves(graph: Graph, name: str, nodes: dict[str, Node]) -> list[str]:
    """Replace a convolution by two with half of the channels each; return their names."""
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
    if _feeds_concat(graph, name):
        join = nodes[graph.node_uses[name][0].node.name]
        slot = join.inputs.index(Edge(name))
        inputs = (*join.inputs[:slot], *map(Edge, halves), *join.inputs[slot + 1 :])
        nodes[join.name] = join.with_(inputs=inputs).with_attrs(N=len(inputs) - 1)
        del nodes[name]
    else:
        axis = constant(free_name(graph, f"{name}/axis"), np.int32(3))
        nodes[axis.name] = axis
        nodes[name] = Node(name, "ConcatV2", (*map(Edge, halves), Edge(axis.name)), node.controls, CONCAT_ATTRS)
    return halves


def _costs(graph: Graph, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, float]]:
    """Yield the estimated microseconds of each node; nodes of unknown size cost only their start.

    Nodes of while loops have no cost: a control dependency must not connect a loop with the nodes outside. Shape
    arithmetic has no cost: TensorFlow's constant folding breaks a Concat of sizes that has a control dependency.
    """
    loop_nodes = find_loop_nodes(graph)
    for node in graph.nodes.values():
        kind = next((kind for kind in _SPEEDS if kind in node.op), None)
        if kind is None or node.name in loop_nodes or node.attrs.get("T") in INTEGERS:
            continue
        size = _num_elements(shapes, node.name)
        if kind in ("Conv2D", "MatMul", "DepthwiseConv2D"):
            weights = graph.constant_of(node.inputs[1])
            kernel = weights.shape if weights is not None else ()
            size *= int(np.prod(kernel[:2] if "Depthwise" in node.op else kernel[:-1]))
            kind = "DepthwiseConv2D" if "Depthwise" in node.op else kind
        elif kind == "Pool":
            size *= int(np.prod(attribute(node, "ksize")))
        yield node.name, _START + size / _SPEEDS[kind]


def _num_elements(shapes: Mapping[str, Shape], name: str) -> int:
    """Return the number of elements of a node's output, or 0 if the shape is unknown."""
    return int(np.prod([size or 1 for size in shapes.get(name, UNKNOWN).dims or (0,)]))
