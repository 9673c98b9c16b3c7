"""Branches of Switch and Merge, the control flow of TensorFlow 1.

``Switch(data, predicate)`` hands the data to its output 1 where the predicate is true, else to output 0; the other
output is dead. What reads or waits for something dead is dead, too, and never runs; a ``Merge`` is dead only where all
that it reads is, and hands on what is alive.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip, free_name
from quantkit.ir.tensor import DType

# They hand their first input on, so a constant in front of them is one behind them.
PASSING = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault", "Enter"})
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
NEXT = frozenset({"NextIteration", "RefNextIteration"})


def take_constant_branches(graph: Graph) -> Outcome:
    """Splice out the switches whose predicate is constant, and remove what never runs."""
    switches = [node for node in graph.nodes.values() if node.op in SWITCHES]
    chains = _Chains(graph)
    taken = chains.taken(switches)
    skips = _skips(graph, [node for node in switches if node.name not in taken])
    if not taken:
        return Outcome(graph, (), skips)
    dead = _Dead(graph)
    dead.spread(Edge(name, int(not truth)) for name, truth in taken.items())
    reason = dead.reason_to_stop()
    if reason is not None:
        return Outcome(graph, (), (*skips, reason))
    live = {name: truth for name, truth in taken.items() if name not in dead.nodes}
    made, changes = _spliced(graph, live, dead, chains)
    return Outcome(made, changes, tuple(skip for skip in skips if skip.node in made))


def _skips(graph: Graph, switches: Iterable[Node]) -> tuple[Skip, ...]:
    """One for each predicate that nothing is known of."""
    counts = Counter(node.inputs[1].node for node in switches)
    return tuple(
        Skip(
            f"it ends a loop: the {number} switches that it decides stay"
            if graph[name].op == "LoopCond"
            else f"it decides {number} switches and is not constant",
            name,
        )
        for name, number in counts.items()
    )


@dataclass
class _Chains:
    """Where predicates come from, through nodes that hand them on.

    Attributes:
        truths: of each edge that was looked at; None: not constant.
        with_switches: edges whose chain holds a switch.
        with_waits: edges whose chain holds a node that waits for another.
        are_all_taken: whether no switch stays.
    """

    graph: Graph
    truths: dict[Edge, bool | None] = field(default_factory=dict)
    with_switches: set[Edge] = field(default_factory=set)
    with_waits: set[Edge] = field(default_factory=set)
    are_all_taken: bool = True

    def taken(self, switches: Sequence[Node]) -> dict[str, bool]:
        """The switches that always hand on the same output, and which."""
        found = {
            node.name: truth
            for node in switches
            if node.op == "Switch" and node.name not in self.graph.input_names
            if (truth := self._truth(node.inputs[1])) is not None
        }
        for self.are_all_taken in (len(found) == len(switches), False):
            # Nobody can wait for one output of a switch, where that would be needed.
            certain = {
                name: truth
                for name, truth in found.items()
                if not (self.graph[self.graph[name].inputs[1].node].op == "Switch" and self.must_be_waited_for(name))
            }
            if len(certain) == len(found):
                break
        return certain

    def must_be_waited_for(self, switch: str) -> bool:
        """Whether a switch may be dead because its predicate is, or something must run before its predicate."""
        edge = self.graph[switch].inputs[1]
        return edge in self.with_waits or (edge in self.with_switches and not self.are_all_taken)

    def _truth(self, edge: Edge) -> bool | None:
        path: dict[Edge, Node] = {}
        while edge not in self.truths and edge not in path:
            node = self.graph[edge.node]
            if node.name in self.graph.input_names or not _is_passing(node):
                self.truths[edge] = _constant_truth(self.graph, edge)
                if node.controls:
                    self.with_waits.add(edge)
                break
            path[edge] = node
            edge = node.inputs[0]
        found = self.truths.get(edge)
        for one, node in reversed(path.items()):
            found = not found if node.op == "LogicalNot" and found is not None else found
            self.truths[one] = found
            if node.controls or node.inputs[0] in self.with_waits:
                self.with_waits.add(one)
            if node.op == "Switch" or node.inputs[0] in self.with_switches:
                self.with_switches.add(one)
        return found


def _is_passing(node: Node) -> bool:
    return bool(node.inputs) and (node.op in PASSING or node.op in ("Switch", "LogicalNot"))


def _constant_truth(graph: Graph, edge: Edge) -> bool | None:
    value = graph.constant_of(edge) if edge.node not in graph.input_names else None
    return bool(value.array) if value is not None and value.shape == () and value.dtype is DType.BOOL else None


@dataclass
class _Dead:
    """What never runs.

    Attributes:
        nodes: names.
        edges: outputs of switches that run.
        slots: of each merge, which inputs are dead.
    """

    graph: Graph
    nodes: set[str] = field(default_factory=set)
    edges: set[Edge] = field(default_factory=set)
    slots: dict[str, set[int]] = field(default_factory=dict)

    def spread(self, edges: Iterable[Edge]) -> None:
        """Mark these edges, and all that depends on them."""
        self.edges.update(edges)
        stack = [(use.node, use.slot) for edge in self.edges for use in self.graph.uses.get(edge, ())]
        while stack:
            node, slot = stack.pop()
            if node.name in self.nodes or node.name in self.graph.input_names or not self._dies(node, slot):
                continue
            self.nodes.add(node.name)
            stack.extend((use.node, use.slot) for use in self.graph.node_uses.get(node.name, ()))

    def _dies(self, node: Node, slot: int) -> bool:
        if node.op not in ("Merge", "RefMerge"):
            return True
        slots = self.slots.setdefault(node.name, set())
        if slot >= 0:
            slots.add(slot)
        # What comes back in a loop is alive only if the loop is entered.
        return all(
            place in slots or self.graph[edge.node].op in NEXT for place, edge in enumerate(node.inputs)
        ) and bool(slots)

    def reason_to_stop(self) -> Skip | None:
        """What the graph asks for and never gets, or a merge that can not be written with fewer inputs."""
        for edge in self.graph.outputs:
            if edge.node in self.nodes or edge in self.edges:
                return Skip("it is an output of the graph that a constant predicate turns off", str(edge))
        for name, slots in self.slots.items():
            index = Edge(name, 1)
            is_read = index in self.graph.uses or index in self.graph.outputs
            if name not in self.nodes and is_read and len(self.graph[name].inputs) - len(slots) > 1:
                return Skip("which of its inputs is alive is asked for, and several may be", name)
        return None


def _spliced(graph: Graph, taken: Mapping[str, bool], dead: _Dead, chains: _Chains) -> tuple[Graph, tuple[str, ...]]:
    draft = Draft(graph)
    draft.remove(*dead.nodes)
    for name in dead.nodes:
        draft.redirect_controls(name)  # a merge runs even where it waits for something dead
    changes = [f"{name} (Switch) hands on output {int(truth)} only" for name, truth in taken.items()]
    for name, truth in taken.items():
        switch = graph[name]
        waits = (switch.inputs[1].node,) if chains.must_be_waited_for(name) else ()
        _hand_on(draft, graph, switch.with_(controls=(*switch.controls, *waits)), switch.inputs[0], int(truth))
    for name, slots in dead.slots.items():
        if name in dead.nodes:
            continue
        merge = graph[name]
        kept = [place for place in range(len(merge.inputs)) if place not in slots]
        changes.append(f"{name} ({merge.op}) hands on input {', '.join(map(str, kept))} only")
        if len(kept) == 1:
            _hand_on_one(draft, graph, merge, kept[0])
        else:
            inputs = tuple(merge.inputs[place] for place in kept)
            draft.replace(name, merge.with_(inputs=inputs).with_attrs(N=len(inputs)))
    changes.extend([f"{len(dead.nodes)} nodes that never run"] if dead.nodes else [])
    made = draft.graph()
    return made if _has_loops(graph) else _without_pivots(graph, made, taken), tuple(changes)


def _hand_on(draft: Draft, graph: Graph, node: Node, source: Edge, port: int) -> None:
    """Let readers of an output read the source; a node that orders others, or is asked for, passes it on instead."""
    is_waited_for = any(use.slot < 0 for use in graph.node_uses.get(node.name, ()))
    if not node.controls and not is_waited_for and node.name not in graph.endpoint_names:
        draft.remove(node.name)
        draft.redirect(Edge(node.name, port), source)
    else:
        draft.replace(node.name, _passing(node, [source] * (port + 1), (_dtype(node),) * (port + 1)))


def _hand_on_one(draft: Draft, graph: Graph, merge: Node, place: int) -> None:
    """A merge with one live input is that input, and the number of its place is known."""
    index = Edge(merge.name, 1)
    if index not in graph.uses and index not in graph.outputs:
        _hand_on(draft, graph, merge, merge.inputs[place], 0)
        return
    # In a loop, a constant belongs to where what it waits for does.
    waits = (merge.inputs[place].node,) if _has_loops(graph) else ()
    number = constant(free_name(graph, f"{merge.name}/value_index"), np.int32(place)).with_(controls=waits)
    dtypes = (_dtype(merge), DType.INT32)
    draft.replace(merge.name, number, _passing(merge, [merge.inputs[place], Edge(number.name)], dtypes))


def _passing(node: Node, sources: list[Edge], dtypes: tuple[DType, ...]) -> Node:
    """An Identity of a tensor for each source."""
    kept = {key: value for key, value in node.attrs.items() if key.startswith("_") and key != "_output_shapes"}
    is_one = len(sources) == 1
    attrs = {**kept, "T": dtypes[0] if is_one else dtypes}
    return node.with_(op="Identity" if is_one else "IdentityN", inputs=tuple(sources), attrs=attrs)


def _dtype(node: Node) -> DType:
    found = node.attrs.get("T")
    return found if isinstance(found, DType) else DType.FLOAT


def _has_loops(graph: Graph) -> bool:
    return any(op in graph.op_counts for op in ("Enter", "RefEnter"))


def _without_pivots(before: Graph, graph: Graph, taken: Mapping[str, bool]) -> Graph:
    """Let nobody wait for the nodes that only held the nodes of a branch back: they pass a constant on."""
    free: set[str] = set()
    pivots: set[str] = set()
    for name in graph.order:
        node = graph[name]
        if node.controls or name in graph.input_names:
            continue
        if node.is_constant or (node.op in PASSING and node.inputs[0].node in free):
            free.add(name)
            old = before.nodes.get(name)
            if old is not None and old.op == "Identity" and old.inputs[0].node in taken:
                pivots.add(name)
    return graph.with_nodes(
        node.with_(controls=tuple(name for name in node.controls if name not in pivots))
        if not pivots.isdisjoint(node.controls)
        else node
        for node in graph.nodes.values()
    )
