"""Conditions and loops of TensorFlow 1 as If and While nodes with functions.

    TensorFlow 1   Enter -> Merge -> condition -> LoopCond -> Switch -> body -> NextIteration -> Merge; Switch -> Exit
    TensorFlow 2   While(initial values, captured values), with a function for the condition and one for the body

    TensorFlow 1   Switch(value, predicate) -> branches -> Merge(result if false, result if true)
    TensorFlow 2   If(predicate, values), with a function for each branch

Inner loops are replaced before outer ones. Each Merge of a condition becomes a node: branches with several results are
computed once for each result.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quantkit.convert.tensorflow_to_onnx.translator import conversion_error, dtype_of
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import LOOP_MERGES, SWITCHES, Attr, Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ops.tensorflow.frames import ENTERS, EXITS, NEXT_ITERATIONS, find_frames

LOOP_OPS = frozenset({*LOOP_MERGES, *ENTERS, *EXITS})
# Last part of the frame names of tf.while_loop.
CONTEXT = "/while_context"
CONTROL_FLOW = frozenset({*LOOP_MERGES, *ENTERS, *EXITS, *NEXT_ITERATIONS, "LoopCond"})


def with_while_nodes(graph: Graph) -> Graph:
    """Return the graph with a While node in the place of each loop; each Exit is an Identity of one of its outputs.

    Raises:
        UnavailableError: a loop does not have the structure of tf.while_loop.
    """
    if ENTERS.isdisjoint(graph.op_counts):
        return graph
    graph = _with_needed_nodes(graph)
    while not ENTERS.isdisjoint(graph.op_counts):
        frames = find_frames(graph)
        inner = max(frames.values(), key=lambda frame: frame.depth)
        frame_name = inner.name.decode() if isinstance(inner.name, bytes) else ""
        name = free_name(graph, frame_name.removesuffix(CONTEXT) or "while")
        members = {member: graph[member] for member, frame in frames.items() if frame is inner}
        try:
            graph = _Loop(graph, name, members).replace()
        except (KeyError, IndexError, ValueError) as error:
            raise conversion_error(next(iter(members.values())), f"the loop is invalid ({error})") from error
    return graph


def _with_needed_nodes(graph: Graph) -> Graph:
    """Return the graph without nodes before its inputs and without nodes that no output needs."""
    return graph.with_nodes(
        node.with_(inputs=(), controls=()) if node.name in graph.input_names else node
        for node in graph.without_unused_nodes().nodes.values()
    )


class _Loop:
    """One loop of TensorFlow 1.

    Attributes:
        name: name of the While node.
        members: nodes of the loop by name.
        initial: initial value of each variable by the name of its Merge.
        updated: value of each variable after an iteration by the name of its Merge.
        captured: argument of the functions by captured value.
    """

    def __init__(self, graph: Graph, name: str, members: Mapping[str, Node]) -> None:
        self.graph = graph
        self.name = name
        self.members = members
        self.initial: dict[str, Edge] = {}
        self.updated: dict[str, Edge] = {}
        self.captured: dict[Edge, str] = {}
        for node in members.values():
            if node.op in LOOP_MERGES:
                sources = {graph[edge.node].op: graph[edge.node] for edge in node.inputs}
                enter = next((sources[op] for op in ENTERS if op in sources), None)
                back = next((sources[op] for op in NEXT_ITERATIONS if op in sources), None)
                if enter is None or back is None:
                    raise conversion_error(node, "a condition is inside a loop")
                self.initial[node.name], self.updated[node.name] = enter.inputs[0], back.inputs[0]

    def replace(self) -> Graph:
        """Return the graph with a While node in the place of the loop."""
        conditions = [node for node in self.members.values() if node.op == "LoopCond"]
        if len(conditions) != 1:
            first = next(iter(self.members.values()))
            raise conversion_error(first, "the loop does not have the structure of tf.while_loop")
        results = {"cond": [conditions[0].inputs[0]], "body": list(self.updated.values())}
        nodes = {role: self._producers(edges) for role, edges in results.items()}
        inputs = (*self.initial.values(), *self.captured)
        dtypes = tuple(dtype_of(self.graph, edge) for edge in inputs)
        names = {role: FunctionName(f"{self.name}/{role}") for role in results}
        arguments = [
            Node(name, "_Arg", attrs={"T": dtype, "index": index})
            for index, (name, dtype) in enumerate(zip((*self.initial, *self.captured.values()), dtypes, strict=True))
        ]
        functions = []
        for role, edges in results.items():
            outputs = [self._inside(edge) for edge in (*edges, *(self.captured if role == "body" else ()))]
            body = Graph.of([*arguments, *nodes[role]], [node.name for node in arguments], outputs)
            functions.append(
                Function(names[role].name, body, {f"result_{index}": None for index in range(len(outputs))})
            )
        library = self.graph.library.with_(*functions)
        loop = Node(self.name, "StatelessWhile", inputs, attrs={"T": dtypes, **names})
        return self.graph.with_(library=library).with_nodes([*self._outer_nodes(), loop])

    def _producers(self, edges: Iterable[Edge]) -> list[Node]:
        """Return the nodes of a function that compute some edges; add the values that they capture."""
        nodes: dict[str, Node] = {}
        stack = [self._inside(edge).node for edge in edges]
        while stack:
            node = self.members.get(stack.pop())
            if node is not None and node.name not in self.initial and node.name not in nodes:
                if node.op in CONTROL_FLOW:
                    raise conversion_error(node, "the loop does not have the structure of tf.while_loop")
                nodes[node.name] = node.with_(inputs=tuple(map(self._inside, node.inputs)), controls=())
                stack.extend(edge.node for edge in nodes[node.name].inputs)
        return list(nodes.values())

    def _inside(self, edge: Edge) -> Edge:
        """Return the edge of the functions for an edge of the graph."""
        node = self.members.get(edge.node)
        if node is not None and node.op == "Switch" and node.inputs[0].node in self.initial:
            return Edge(node.inputs[0].node)
        if node is not None and node.op not in ENTERS:
            return edge
        source = edge if node is None else node.inputs[0]
        if source not in self.captured:
            self.captured[source] = free_name(self.graph, f"{self.name}/{source}".replace(":", "/"))
        return Edge(self.captured[source])

    def _outer_nodes(self) -> Iterator[Node]:
        """Yield the nodes outside of the loop; an Exit becomes an Identity of an output of the While node."""
        ports = {merge: port for port, merge in enumerate(self.initial)}
        for node in self.graph.nodes.values():
            if node.op in EXITS and (switch := self.members.get(node.inputs[0].node)) is not None:
                yield node.with_(op="Identity", inputs=(Edge(self.name, ports[switch.inputs[0].node]),), controls=())
            elif node.name not in self.members:
                yield node


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
