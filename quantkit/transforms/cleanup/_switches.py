"""Remove constant Switch and Merge nodes, the control flow of TensorFlow 1.

``Switch(data, predicate)`` forwards the data to output 1 if the predicate is true, else to output 0;
the other output is dead. A node with a dead input or control dependency is dead, too, and does not
run. A ``Merge`` forwards its live input, and is dead only if all its inputs are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import SWITCHES, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip, free_name
from quantkit.ir.tensor import DType

# Ops that forward their first input: a constant input makes their output constant.
FORWARDING_OPS = frozenset(
    {"Identity", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault", "Enter"}
)
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})


def remove_constant_switches(graph: Graph) -> Outcome:
    """Remove switches with a constant predicate, and the nodes that are always dead."""
    switches = [node for node in graph.nodes.values() if node.op in SWITCHES]
    predicates = _Predicates(graph)
    removable = predicates.find_removable(switches)
    skips = _skips(graph, [node for node in switches if node.name not in removable])
    if not removable:
        return Outcome(graph, (), skips)
    dead = _DeadNodes(graph)
    dead.propagate(Edge(name, int(not truth)) for name, truth in removable.items())
    obstacle = dead.find_obstacle()
    if obstacle is not None:
        return Outcome(graph, (), (*skips, obstacle))
    live = {name: truth for name, truth in removable.items() if name not in dead.nodes}
    after, changes = _remove(graph, live, dead, predicates)
    return Outcome(after, changes, tuple(skip for skip in skips if skip.node in after))


def _skips(graph: Graph, switches: Iterable[Node]) -> tuple[Skip, ...]:
    """Return one skip per predicate that is not constant."""
    counts = Counter(node.inputs[1].node for node in switches)
    return tuple(
        Skip(
            f"the predicate is a loop condition (Switch nodes: {number})"
            if graph[name].op == "LoopCond"
            else f"the predicate is not constant (Switch nodes: {number})",
            name,
        )
        for name, number in counts.items()
    )


@dataclass
class _Predicates:
    """Values of predicates, evaluated through pass-through nodes.

    Attributes:
        graph: graph of the switches.
        truths: value of each visited edge; None if it is not constant.
        with_switches: edges that depend on a switch.
        with_controls: edges that depend on a node with control dependencies.
        removes_all: all switches are removed.
    """

    graph: Graph
    truths: dict[Edge, bool | None] = field(default_factory=dict)
    with_switches: set[Edge] = field(default_factory=set)
    with_controls: set[Edge] = field(default_factory=set)
    removes_all: bool = True

    def find_removable(self, switches: Sequence[Node]) -> dict[str, bool]:
        """Return the switches with a constant predicate, and the predicate's value."""
        constant_switches = {
            node.name: truth
            for node in switches
            if node.op == "Switch" and node.name not in self.graph.input_names
            if (truth := self._evaluate(node.inputs[1])) is not None
        }
        self.removes_all = len(constant_switches) == len(switches)
        removable = self._without_unordered(constant_switches)
        if len(removable) < len(constant_switches):
            self.removes_all = False
            removable = self._without_unordered(constant_switches)
        return removable

    def _without_unordered(self, switches: Mapping[str, bool]) -> dict[str, bool]:
        """Drop switches that need a control dependency on one output of another switch.

        A control dependency names a node, not an output.
        """
        return {
            name: truth
            for name, truth in switches.items()
            if not (self.graph[self.graph[name].inputs[1].node].op == "Switch" and self.needs_control(name))
        }

    def needs_control(self, switch: str) -> bool:
        """Return True if a switch must keep a control dependency on its predicate.

        The predicate may be dead, or have control dependencies.
        """
        edge = self.graph[switch].inputs[1]
        return edge in self.with_controls or (edge in self.with_switches and not self.removes_all)

    def _evaluate(self, edge: Edge) -> bool | None:
        path: dict[Edge, Node] = {}
        while edge not in self.truths and edge not in path:
            node = self.graph[edge.node]
            if node.name in self.graph.input_names or not _is_pass_through(node):
                self.truths[edge] = _constant_truth(self.graph, edge)
                if node.controls:
                    self.with_controls.add(edge)
                break
            path[edge] = node
            edge = node.inputs[0]
        truth = self.truths.get(edge)
        for visited, node in reversed(path.items()):
            truth = not truth if node.op == "LogicalNot" and truth is not None else truth
            self.truths[visited] = truth
            if node.controls or node.inputs[0] in self.with_controls:
                self.with_controls.add(visited)
            if node.op == "Switch" or node.inputs[0] in self.with_switches:
                self.with_switches.add(visited)
        return truth


def _is_pass_through(node: Node) -> bool:
    return bool(node.inputs) and (node.op in FORWARDING_OPS or node.op in ("Switch", "LogicalNot"))


def _constant_truth(graph: Graph, edge: Edge) -> bool | None:
    value = graph.constant_of(edge) if edge.node not in graph.input_names else None
    return bool(value.array) if value is not None and value.shape == () and value.dtype is DType.BOOL else None


@dataclass
class _DeadNodes:
    """Nodes and edges that are always dead.

    Attributes:
        graph: graph of the nodes.
        nodes: names of dead nodes.
        edges: dead outputs of live switches.
        merge_inputs: indexes of the dead inputs of each Merge.
    """

    graph: Graph
    nodes: set[str] = field(default_factory=set)
    edges: set[Edge] = field(default_factory=set)
    merge_inputs: dict[str, set[int]] = field(default_factory=dict)

    def propagate(self, edges: Iterable[Edge]) -> None:
        """Mark these edges as dead, and all nodes that depend on them."""
        self.edges.update(edges)
        stack = [(use.node, use.slot) for edge in self.edges for use in self.graph.uses.get(edge, ())]
        while stack:
            node, index = stack.pop()
            if node.name in self.nodes or node.name in self.graph.input_names or not self._dies(node, index):
                continue
            self.nodes.add(node.name)
            stack.extend((use.node, use.slot) for use in self.graph.node_uses.get(node.name, ()))

    def _dies(self, node: Node, index: int) -> bool:
        if node.op not in ("Merge", "RefMerge"):
            return True
        dead = self.merge_inputs.setdefault(node.name, set())
        if index >= 0:
            dead.add(index)
        # The NextIteration input of a loop is live only if the Enter input is.
        return all(
            number in dead or self.graph[edge.node].op in NEXT_ITERATIONS for number, edge in enumerate(node.inputs)
        ) and bool(dead)

    def find_obstacle(self) -> Skip | None:
        """Return a skip for a dead graph output, or for a Merge whose value index is used."""
        for edge in self.graph.outputs:
            if edge.node in self.nodes or edge in self.edges:
                return Skip("graph output is dead because of a constant predicate", str(edge))
        for name, dead in self.merge_inputs.items():
            value_index = Edge(name, 1)
            is_used = value_index in self.graph.uses or value_index in self.graph.outputs
            if name not in self.nodes and is_used and len(self.graph[name].inputs) - len(dead) > 1:
                return Skip("value index of the Merge is used, and several inputs may be live", name)
        return None


def _remove(
    graph: Graph, removable: Mapping[str, bool], dead: _DeadNodes, predicates: _Predicates
) -> tuple[Graph, tuple[str, ...]]:
    draft = Draft(graph)
    draft.remove(*dead.nodes)
    for name in dead.nodes:
        draft.redirect_controls(name)  # a Merge runs even if a control dependency is dead
    changes = [f"{name} (Switch) forwards to output {int(truth)} only" for name, truth in removable.items()]
    for name, truth in removable.items():
        switch = graph[name]
        controls = (switch.inputs[1].node,) if predicates.needs_control(name) else ()
        _forward(draft, graph, switch.with_(controls=(*switch.controls, *controls)), switch.inputs[0], int(truth))
    for name, dead_inputs in dead.merge_inputs.items():
        if name in dead.nodes:
            continue
        merge = graph[name]
        live = [index for index in range(len(merge.inputs)) if index not in dead_inputs]
        changes.append(f"{name} ({merge.op}) forwards input {', '.join(map(str, live))} only")
        if len(live) == 1:
            _replace_merge(draft, graph, merge, live[0])
        else:
            inputs = tuple(merge.inputs[index] for index in live)
            draft.replace(name, merge.with_(inputs=inputs).with_attrs(N=len(inputs)))
    changes.extend([f"{len(dead.nodes)} dead nodes"] if dead.nodes else [])
    after = draft.graph()
    return after if _has_loops(graph) else _drop_pivots(graph, after, removable), tuple(changes)


def _forward(draft: Draft, graph: Graph, node: Node, source: Edge, port: int) -> None:
    """Connect the consumers of an output to the source.

    A node with control dependencies or control consumers, or a graph endpoint, becomes an Identity
    instead.
    """
    has_control_consumers = any(use.slot < 0 for use in graph.node_uses.get(node.name, ()))
    if not node.controls and not has_control_consumers and node.name not in graph.endpoint_names:
        draft.remove(node.name)
        draft.redirect(Edge(node.name, port), source)
    else:
        draft.replace(node.name, _identity(node, [source] * (port + 1), (_dtype(node),) * (port + 1)))


def _replace_merge(draft: Draft, graph: Graph, merge: Node, live: int) -> None:
    """Replace a Merge by its only live input, and its value index by a constant."""
    value_index = Edge(merge.name, 1)
    if value_index not in graph.uses and value_index not in graph.outputs:
        _forward(draft, graph, merge, merge.inputs[live], 0)
        return
    # In a loop, the control dependency assigns the constant to the right frame.
    controls = (merge.inputs[live].node,) if _has_loops(graph) else ()
    index = constant(free_name(graph, f"{merge.name}/value_index"), np.int32(live)).with_(controls=controls)
    dtypes = (_dtype(merge), DType.INT32)
    draft.replace(merge.name, index, _identity(merge, [merge.inputs[live], Edge(index.name)], dtypes))


def _identity(node: Node, sources: list[Edge], dtypes: tuple[DType, ...]) -> Node:
    """Return an Identity or IdentityN of the sources with the name of a node."""
    private = {key: value for key, value in node.attrs.items() if key.startswith("_") and key != "_output_shapes"}
    is_single = len(sources) == 1
    attrs = {**private, "T": dtypes[0] if is_single else dtypes}
    return node.with_(op="Identity" if is_single else "IdentityN", inputs=tuple(sources), attrs=attrs)


def _dtype(node: Node) -> DType:
    dtype = node.attrs.get("T")
    return dtype if isinstance(dtype, DType) else DType.FLOAT


def _has_loops(graph: Graph) -> bool:
    return any(op in graph.op_counts for op in ("Enter", "RefEnter"))


def _drop_pivots(before: Graph, graph: Graph, removed: Mapping[str, bool]) -> Graph:
    """Drop control dependencies on the pivots of removed switches.

    A pivot is an Identity of a switch that only keeps the nodes of a branch from running; without
    the switch it forwards a constant.
    """
    free: set[str] = set()
    pivots: set[str] = set()
    for name in graph.order:
        node = graph[name]
        if node.controls or name in graph.input_names:
            continue
        if node.is_constant or (node.op in FORWARDING_OPS and node.inputs[0].node in free):
            free.add(name)
            old = before.nodes.get(name)
            if old is not None and old.op == "Identity" and old.inputs[0].node in removed:
                pivots.add(name)
    return graph.with_nodes(
        node.with_(controls=tuple(name for name in node.controls if name not in pivots))
        if not pivots.isdisjoint(node.controls)
        else node
        for node in graph.nodes.values()
    )
