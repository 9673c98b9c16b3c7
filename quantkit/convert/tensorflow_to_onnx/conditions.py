"""Conditions of TensorFlow 1 as If nodes with functions.

    TensorFlow 1   Switch(value, predicate) -> branches -> Merge(result if false, result if true)
    TensorFlow 2   If(predicate, values), with a function for each branch

Each Merge becomes a node: branches with several results are computed once for each result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quantkit.convert.tensorflow_to_onnx.translator import conversion_error, dtype_of
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import LOOP_MERGES, SWITCHES, Attr, Edge, Graph, Node
from quantkit.ops.tensorflow.frames import ENTERS, EXITS, NEXT_ITERATIONS

LOOP_OPS = frozenset({*LOOP_MERGES, *ENTERS, *EXITS})


@dataclass
class _SwitchBranch:
    """Branch of a condition.

    Attributes:
        result: result of the branch.
        nodes: nodes of the branch by name.
        switches: Switch nodes at its beginning by name.
        ports: ports of the Switch nodes that it uses: 1 if it belongs to a true predicate.
        has_loop: a loop is in the branch.
    """

    result: Edge
    nodes: dict[str, Node] = field(default_factory=dict)
    switches: dict[str, Node] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)
    has_loop: bool = False


def with_if_nodes(graph: Graph) -> Graph:
    """Return the graph with an If node in the place of each condition whose branches have no loops.

    Raises:
        UnavailableError: a condition does not have the structure of tf.cond.
    """
    if LOOP_MERGES.isdisjoint(graph.op_counts):
        return graph
    needed = graph.reachable()
    for name in graph.order:
        node = graph[name]
        is_loop = any(graph[edge.node].op in NEXT_ITERATIONS for edge in node.inputs)
        if name in needed and node.op in LOOP_MERGES and not is_loop:
            try:
                graph = _replace(graph, node)
            except (KeyError, IndexError, ValueError) as error:
                raise conversion_error(node, f"the condition is invalid ({error})") from error
    return graph


def _replace(graph: Graph, merge: Node) -> Graph:
    branches = [_read_branch(graph, edge) for edge in merge.inputs]
    if any(branch.has_loop for branch in branches):
        return graph
    switches = {name: switch for branch in branches for name, switch in branch.switches.items()}
    predicates = {switch.inputs[1] for switch in switches.values()}
    if len(predicates) != 1 or len(branches) != 2 or graph.uses.get(Edge(merge.name, 1)):
        raise conversion_error(merge, "the condition does not have the structure of tf.cond")
    is_reversed = 1 in branches[0].ports or 0 in branches[1].ports
    values = list(dict.fromkeys(switch.inputs[0] for switch in switches.values()))
    arguments = [
        Node(f"{merge.name}/argument_{index}", "_Arg", attrs={"T": dtype_of(graph, edge), "index": index})
        for index, edge in enumerate(values)
    ]
    edges = {name: Edge(arguments[values.index(switch.inputs[0])].name) for name, switch in switches.items()}
    then, otherwise = branches if is_reversed else reversed(branches)
    functions = [
        _function(f"{merge.name}/{role}", branch, arguments, edges)
        for role, branch in (("then", then), ("else", otherwise))
    ]
    attrs: dict[str, Attr] = {
        "Tout": (dtype_of(graph, Edge(merge.name)),),
        "then_branch": FunctionName(functions[0].name),
        "else_branch": FunctionName(functions[1].name),
    }
    conditional = Node(merge.name, "StatelessIf", (*predicates, *values), attrs=attrs)
    graph = graph.with_(library=graph.library.with_(*functions))
    return graph.with_nodes(conditional if node is merge else node for node in graph.nodes.values())


def _function(
    name: str, branch: _SwitchBranch, arguments: Sequence[Node], edges: Mapping[str, Edge]
) -> Function[Graph]:
    """Return the function of a branch, given the edge in the place of each Switch."""

    def inside(edge: Edge) -> Edge:
        return edges.get(edge.node, edge)

    nodes = [node.with_(inputs=tuple(map(inside, node.inputs)), controls=()) for node in branch.nodes.values()]
    inputs = [node.name for node in arguments]
    return Function(name, Graph.of([*arguments, *nodes], inputs, [inside(branch.result)]), {"result": None})


def _read_branch(graph: Graph, result: Edge) -> _SwitchBranch:
    branch = _SwitchBranch(result)
    stack = [result]
    while stack:
        edge = stack.pop()
        node = graph[edge.node]
        if node.op in SWITCHES:
            branch.switches[node.name] = node
            branch.ports.add(edge.port)
        elif node.name not in branch.nodes:
            branch.has_loop |= node.op in LOOP_OPS
            branch.nodes[node.name] = node
            branch.ports |= {edge.port for name in node.controls for edge in _switch_outputs(graph, name)}
            stack.extend(node.inputs)
    return branch


def _switch_outputs(graph: Graph, name: str) -> list[Edge]:
    """Return the outputs of Switch nodes that a control dependency of a constant stands for."""
    return [edge for edge in graph[name].inputs if graph[edge.node].op in SWITCHES]
