"""Inlining of the branches of ONNX graphs that a constant condition selects."""

from collections.abc import Iterator

from quantkit.errors import QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, Opaque
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms._names import FreeNames, names_in_subgraphs, rename_nodes
from quantkit.transforms.onnx._constants import fold
from quantkit.transforms.onnx._facts import constant_value, num_outputs, replace_edges

# Maximum size in bytes of a constant that is computed to find a condition.
MAX_BYTES = 1 << 20


def inline_branches(graph: Graph) -> Outcome:
    """Replace each If with a constant condition by the nodes of its branch, until no such If is left."""
    changes: list[str] = []
    while True:
        conditionals = [node for node in graph.nodes.values() if node.op == "If"]
        folded = fold(graph, frozenset(), frozenset(), MAX_BYTES).graph if conditionals else graph
        results = [_inline(folded, folded[node.name]) for node in conditionals if node.name in folded]
        inlined = next((result for result in results if isinstance(result, Outcome)), None)
        if inlined is None:
            return Outcome(graph, tuple(changes), tuple(result for result in results if isinstance(result, Skip)))
        changes += inlined.changes
        graph = inlined.graph


def _inline(graph: Graph, node: Node) -> Outcome | Skip:
    """Return the graph with the nodes of the selected branch in the place of an If, or the reason why not."""
    if not node.inputs:
        return Skip("the node has no condition", node.name)
    condition = constant_value(graph, node, 0)
    if condition is None or condition.size != 1:
        return Skip(f"condition {node.inputs[0]} is not constant", node.name)
    name = "then_branch" if condition.reshape(()) else "else_branch"
    attribute = node.attrs.get(name)
    if not isinstance(attribute, Opaque) or node.name in names_in_subgraphs(graph):
        return Skip("the branch is missing, or a loop or branch refers to the node by name", node.name)
    try:
        branch = _with_free_names(graph, onnx.decode_subgraph(attribute, graph))
    except QuantkitError as error:
        return Skip(error.message, node.name)
    if branch is None or len(branch.outputs) != num_outputs(node):
        return Skip(f"names of {name} are used in the graph, too", node.name)
    nodes = [each for old in graph.nodes.values() for each in (*(_new(graph, branch) if old is node else ()), old)]
    replacements = {Edge(node.name, port): edge for port, edge in enumerate(branch.outputs)}
    after = replace_edges(graph.with_nodes(nodes), replacements)
    return Outcome(after, (f"{node.name} (If) always runs {name}",))


def _new(graph: Graph, branch: Graph) -> Iterator[Node]:
    """Yield the nodes of a branch; an omitted input has one node in the whole graph."""
    yield from (node for node in branch.nodes.values() if node.name or node.name not in graph)


def _with_free_names(graph: Graph, branch: Graph) -> Graph | None:
    """Return a branch whose values have names that the graph does not use.

    Returns:
        None if a subgraph of the branch refers by name to a value that would be renamed.
    """
    used = onnx.edges_by_name(graph).keys()
    own = onnx.edges_by_name(branch)
    names = FreeNames(graph.with_(nodes={**branch.nodes, **graph.nodes}))
    renamed = {own[name].node for name in own.keys() & used}
    if renamed & names_in_subgraphs(branch):
        return None
    return rename_nodes(branch, {name: names.free(f"{name}/inlined") for name in sorted(renamed)})
