"""Conversion of If nodes to the ONNX op If.

TensorFlow   If(predicate, arguments), with a function of the arguments for each branch
ONNX         If(predicate), with branches that refer to the arguments by name
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quantkit.convert.tensorflow_to_onnx.subgraphs import as_results, instantiate, source_of
from quantkit.convert.tensorflow_to_onnx.translator import (
    PLAIN,
    LoweredGraph,
    Translator,
    converts,
    dtype_of,
    translate_all,
)
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.shape_inference import UNKNOWN

BRANCHES = "_Branches"
ROLES = ("then", "else")


@dataclass(frozen=True)
class Branch:
    """Branch of a condition.

    Attributes:
        lowered: branch; its inputs are the arguments that it uses.
        arguments: edge of the calling graph by input.
    """

    lowered: LoweredGraph
    arguments: Mapping[Edge, Edge]


def read_branch(graph: Graph, node: Node, role: str, shapes: Mapping[Edge, Shape]) -> tuple[Graph, dict[Edge, Edge]]:
    """Return the branch of an If node with its results as outputs, and the edge of each of its inputs.

    Raises:
        UnavailableError: the graph has no such function.
    """
    edges = [source_of(graph, edge) for edge in node.inputs[1:]]
    branch = instantiate(graph, node, f"{role}_branch", f"{node.name}/{role}", edges)
    arguments = dict(zip(branch.inputs, edges, strict=True))
    results = as_results(branch, f"{node.name}/{role}", branch.outputs)
    nodes = dict(branch.nodes)
    for inner, edge in arguments.items():
        nodes[inner.node] = nodes[inner.node].with_attrs(shape=shapes.get(edge, UNKNOWN))
    outputs = tuple(Edge(result.name) for result in results)
    branch = branch.with_nodes([*nodes.values(), *results]).with_(outputs=outputs, inputs=())
    needed = branch.reachable()
    used = {inner: edge for inner, edge in arguments.items() if inner.node in needed}
    return branch.with_(inputs=tuple(used)).without_unused_nodes(), used


def lower_branches(graph: Graph, node: Node, branch: Graph) -> Graph:
    """Return the calling graph with a condition as one node, given a branch."""
    dtypes = tuple(dtype_of(branch, edge) for edge in branch.outputs)
    lowered = node.with_(op=BRANCHES, controls=(), attrs={"T": dtypes})
    return graph.with_nodes(lowered if other is node else other for other in graph.nodes.values())


@converts(BRANCHES)
def _branches(translator: Translator, node: Node) -> None:
    branches = translator.regions[node.name]
    assert isinstance(branches, tuple)
    predicate = translator.plain(node.inputs[0])
    if translator.dtype(node.inputs[0]) is not DType.BOOL:
        predicate = translator.add_intermediate(node, "predicate", "Cast", [predicate], to=NUMBERS[DType.BOOL])
    attrs: dict[str, Attr] = {}
    captured: list[str] = []
    graphs = translate_all(branch.lowered for branch in branches)
    for role, branch, graph in zip(ROLES, branches, graphs, strict=True):
        for inner, edge in branch.arguments.items():
            captured.append(translator.add_node(inner.node, "Identity", [translator.plain(edge)]).node)
        attrs[f"{role}_branch"] = onnx.encode_subgraph(f"{role}_branch", graph, f"{node.name}/{role}")
    outputs = [Edge(node.name, port) for port in range(len(branches[0].lowered.graph.outputs))]
    attrs[onnx.OUTPUTS] = tuple(str(edge).encode() for edge in outputs)
    translator.nodes[node.name] = Node(node.name, "If", (predicate,), tuple(captured), attrs)
    translator.values |= {(edge, PLAIN): edge for edge in outputs}
