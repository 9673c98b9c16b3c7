"""Layers in the subgraphs of ONNX's If, Loop and Scan: they stay float, and their MACs are those of one run.

If      MACs of the larger branch
Loop    MACs of the body * maximum trip count
Scan    MACs of the body * length of the sequence
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, Opaque
from quantkit.ir.tensor import Shape
from quantkit.ops.macs import count_macs
from quantkit.ops.onnx import shapes as onnx_ops
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import CONTROL_FLOW_OPS, RECURRENT_OPS
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes

# Inputs of the body of a Loop before the loop variables: iteration number and condition.
LOOP_SCALARS = 2
SUBGRAPHS = ("then_branch", "else_branch", "body")
# Number of layers that a reason names.
NUM_NAMES = 3
# Trip count from which a loop has no limit: exporters write the largest integer if only a condition ends the loop.
UNLIMITED = 2**31 - 1
# Errors of invalid subgraphs, which the runtime reports with more detail.
_FAULTS = (QuantkitError, LookupError, ValueError, TypeError)


@dataclass(frozen=True)
class BodyLayers:
    """Layers in the subgraphs of one node.

    Attributes:
        names: names of the layers with their op types, those of inner subgraphs included.
        macs: MACs of one run of the node; None if a shape or the number of iterations is unknown.
    """

    names: tuple[str, ...]
    macs: int | None

    @property
    def reason(self) -> str:
        """Reason of the float fallback; empty without layers."""
        more = [f"{len(self.names) - NUM_NAMES} more"] if len(self.names) > NUM_NAMES else []
        text = ", ".join([*self.names[:NUM_NAMES], *more])
        return f"the layers of its subgraphs stay float: {text}" if text else ""


def has_bodies(graph: Graph, node: Node) -> bool:
    """Return True for an If, Loop or Scan of an ONNX graph."""
    return graph.dialect == onnx.DIALECT and node.op in CONTROL_FLOW_OPS


def count_macs_of_run(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> int | None:
    """Return the MACs of one run of a node of either dialect, those of its subgraphs included.

    Returns:
        None if a shape or the number of iterations is unknown, or the op calls functions of TensorFlow.
    """
    if has_bodies(graph, node):
        return find_body_layers(graph, node, shapes).macs
    return (onnx_ops.count_macs if graph.dialect == onnx.DIALECT else count_macs)(node, shapes)


def find_body_layers(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> BodyLayers:
    """Return the layers in the subgraphs of an If, Loop or Scan.

    Args:
        graph: graph of dialect ``onnx``.
        node: node of ``graph``.
        shapes: shapes of the edges of ``graph``.
    """
    bodies: list[BodyLayers] = []
    iterations: int | None = None
    try:
        for name in SUBGRAPHS:
            subgraph = node.attrs.get(name)
            if isinstance(subgraph, Opaque):
                bodies.append(_find_layers(*_read_body(graph, node, subgraph, shapes)))
        iterations = _count_iterations(graph, node, shapes)
    except _FAULTS:
        bodies.append(BodyLayers((), None))
    names = tuple(name for body in bodies for name in body.names)
    counts = [body.macs for body in bodies if body.macs is not None]
    if len(counts) < len(bodies):
        return BodyLayers(names, None)
    macs = max(counts, default=0)
    return BodyLayers(names, macs and (None if iterations is None else macs * iterations))


def _read_body(
    graph: Graph, node: Node, subgraph: Opaque, shapes: Mapping[Edge, Shape]
) -> tuple[Graph, Mapping[Edge, Shape]]:
    """Return a subgraph with a node for each outer value that it uses, and the shapes of its edges."""
    body = onnx.decode_subgraph(subgraph, graph)
    outer = {edge.node for inner in body.nodes.values() for edge in inner.inputs}
    outer |= {name for inner in body.nodes.values() for name in inner.controls}
    outer |= {edge.node for edge in body.outputs}
    sources = [_source(graph[name], shapes) for name in sorted(outer - body.nodes.keys()) if name in graph]
    stated = _argument_shapes(node, len(body.inputs), shapes)
    arguments = dict(zip((edge.node for edge in body.inputs), stated, strict=False))
    nodes = [
        inner.with_attrs(shape=shape) if (shape := arguments.get(inner.name, UNKNOWN)).dims is not None else inner
        for inner in body.nodes.values()
    ]
    whole = body.with_nodes([*sources, *nodes])
    captured = {edge: shape for edge, shape in shapes.items() if edge.node not in body.nodes}
    return whole, infer_shapes(whole, captured)


def _source(node: Node, shapes: Mapping[Edge, Shape]) -> Node:
    """Return an outer constant, or an input with the shape of another outer value."""
    if node.is_constant or node.name == onnx.ABSENT.name:
        return node
    return Node(node.name, "Placeholder", attrs={"shape": shapes.get(Edge(node.name), UNKNOWN)})


def _argument_shapes(node: Node, num_inputs: int, shapes: Mapping[Edge, Shape]) -> Iterator[Shape]:
    """Yield the shapes of the inputs of a body: those of the first iteration."""
    arguments = [shapes.get(edge, UNKNOWN) for edge in node.inputs]
    if node.op == "Loop":
        yield from (Shape(()), Shape(()), *arguments[LOOP_SCALARS:])
    elif node.op == "Scan" and len(arguments) == num_inputs:
        first = num_inputs - _num_sequences(node)
        yield from arguments[:first]
        for shape, axis in zip(arguments[first:], _sequence_axes(node), strict=True):
            dims = None if shape.dims is None else list(shape.dims)
            if dims:
                del dims[axis]
            yield Shape(dims)


def _count_iterations(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> int | None:
    """Return the number of runs of a body in one run of its node; None if it is unknown."""
    if node.op == "If":
        return 1
    if node.op == "Loop":
        limit = graph.constant_of(node.inputs[0]) if node.inputs else None
        count = None if limit is None or limit.num_elements != 1 else int(limit.array.reshape(()))
        return None if count is None or count >= UNLIMITED else max(count, 0)
    sequence, axis = node.inputs[len(node.inputs) - _num_sequences(node)], _sequence_axes(node)[0]
    dims = shapes.get(sequence, UNKNOWN).dims
    return dims[axis] if dims else None


def _num_sequences(node: Node) -> int:
    count: Any = node.attrs["num_scan_inputs"]
    return int(count)


def _sequence_axes(node: Node) -> tuple[int, ...]:
    axes: Any = node.attrs.get("scan_input_axes") or (0,) * _num_sequences(node)
    return tuple(axes)


def _find_layers(body: Graph, shapes: Mapping[Edge, Shape]) -> BodyLayers:
    """Return the layers of a subgraph and of the subgraphs of its nodes."""
    layer_ops = find_roles(body).layer_ops | RECURRENT_OPS
    names: list[str] = []
    total: int | None = 0
    for name in body.order:
        node = body[name]
        inner = find_body_layers(body, node, shapes) if has_bodies(body, node) else None
        macs = onnx_ops.count_macs(node, shapes) if inner is None else inner.macs
        names += [f"{name} ({node.op})"] if node.op in layer_ops else inner.names if inner else ()
        total = None if total is None or macs is None else total + macs
    return BodyLayers(tuple(names), total)
