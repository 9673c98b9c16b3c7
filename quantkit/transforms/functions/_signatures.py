"""What functions take and give, where one node alone calls them.

A constant that is always given may move inside, where it can fold; what nobody needs is neither taken nor given any
more. The arguments of a loop are what it hands from turn to turn, its variables: one that it hands on as it is may be a
constant, two that are always equal may be one, and whether one is needed, the others tell that are.

TensorFlow's own loops begin with the number of turns and their limit, and converters to other formats take the first
two variables for these, and look at the others for what decides: they stay.
"""

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from quantkit.ir.functions import Function
from quantkit.ir.graph import LOOP_MERGES, SWITCHES, Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import Tensor
from quantkit.transforms._names import FreeNames
from quantkit.transforms._placement import restore_placement
from quantkit.transforms.functions._bodies import Opened
from quantkit.transforms.functions._call_sites import Site, listed, needed_functions, num_callers, sites
from quantkit.transforms.functions._effects import Effects
from quantkit.transforms.functions._loop_variables import equal_variables, reading

# Copies of constants up to this size (bytes) cost nothing that counts.
SMALL = 1024


@dataclass
class Signatures:
    """What functions take and give, settled by `settle`.

    Attributes:
        stay: by id, constants that are not moved.
        moved: names of functions, and constants that were moved there.
    """

    stay: Container[int] = ()
    moved: list[tuple[str, Tensor]] = field(default_factory=list)

    def settle(self, graph: Graph, effects: Effects) -> Outcome:
        """The graph whose functions take no constants, and take and give nothing that nobody needs."""
        program = _Program(graph, self, effects)
        holders = ["", *program.functions]
        for holder in holders:  # from the outside in, as constants go
            program.merge_variables(holder)
            program.take_constants(holder)
        for holder in reversed(holders):  # and back: what a function needs tells what its caller needs
            program.drop_unneeded(holder)
        return Outcome(program.graph(), tuple(program.changes), tuple(program.skips))


class _Program:
    """A graph and the functions it needs, while arguments come and go.

    Attributes:
        functions: by name, each behind one that calls it; the graph itself goes by no name.
        changes, skips: what was done, and what was not.
    """

    def __init__(self, graph: Graph, signatures: Signatures, effects: Effects) -> None:
        self._graph = graph
        self._signatures = signatures
        self._effects = effects
        self._num_callers = num_callers(graph)
        self.functions = needed_functions(graph)
        self.changes: list[str] = []
        self.skips: list[Skip] = []

    def graph(self) -> Graph:
        """The graph as it is now."""
        library = self._graph.library
        changed = [one for name, one in self.functions.items() if one is not library[name]]
        return self._graph.with_(library=library.with_(*changed)) if changed else self._graph

    def _held(self, holder: str) -> Graph:
        return self.functions[holder].graph if holder else self._graph

    def _sites(self, holder: str) -> list[Site]:
        """The calls in a graph or function that may change; who asks a graph for its results knows their places."""
        graph = self._held(holder)
        fixed = frozenset() if holder else graph.endpoint_names
        return [site for site in sites(graph, self.functions, self._num_callers) if site.node.name not in fixed]

    def take_constants(self, holder: str) -> None:
        """Move the constants that calls give into what they call."""
        graph = self._held(holder)
        for site in self._sites(holder):
            moved: dict[int, Node] = {}
            for place, edge in enumerate(site.arguments):
                node = graph[edge.node]
                if node.op != "Const" or node.controls or node.name in graph.input_names:
                    continue
                reason = self._reason_to_stay(graph, site, place, node)
                if reason:
                    self.skips.append(Skip(reason, node.name))
                elif reason is not None:
                    moved[place] = node
            if moved:
                names = ", ".join(dict.fromkeys(node.name for node in moved.values()))
                self.changes.append(f"{names} move into what {site.node.name} ({site.node.op}) calls")
            for callee in site.callees if moved else ():
                function = callee.function
                self._signatures.moved.extend((function.name, node.value) for node in moved.values())
                self.functions[function.name] = _with_constants(function, moved, callee.is_tied)

    def _reason_to_stay(self, graph: Graph, site: Site, place: int, node: Node) -> str | None:
        """Why a constant is not moved into what is called; None: that is not worth a word."""
        readers = [one for one in site.callees if one.reads(place)]
        if not readers or not all(one.hands_on(place) for one in site.callees):
            return None
        if site.kind.is_loop and _is_read(graph, Edge(site.node.name, place)):
            return f"it is a constant of the loop {site.node.name}, and read behind it"
        if id(node.value) in self._signatures.stay:
            return f"nothing would fold with it in what {site.node.name} calls"
        if len(readers) + graph.is_shared(node) > 1 and node.value.num_bytes > SMALL:
            return f"{site.node.name} is not the only one that needs it, and it is large"
        return ""

    def merge_variables(self, holder: str) -> None:
        """Let readers of a loop's variables that are always equal read the first of them."""
        graph = self._held(holder)
        moved: dict[Edge, Edge] = {}
        for site in self._sites(holder):
            if not site.kind.is_loop:
                continue
            first = [_first_value(graph, edge) for edge in site.arguments]
            body = Opened.of(site.callees[-1].function, graph.library, self._effects)
            name = site.node.name
            leaders = {
                place: leader
                for place, leader in equal_variables(first, body, 2 * site.counts_turns).items()
                if _is_read(graph, Edge(name, place)) or any(one.reads(place) for one in site.callees)
            }
            moved.update({Edge(name, place): Edge(name, leader) for place, leader in leaders.items()})
            for one in site.callees if leaders else ():
                function = one.function
                self.functions[function.name] = replace(function, graph=reading(function.graph, leaders))
            self.changes.extend(
                f"{name} ({site.node.op}): variable {place} equals {leader}" for place, leader in leaders.items()
            )
        if moved:
            self._hold(holder, _rewired(graph, {}, moved))

    def drop_unneeded(self, holder: str) -> None:
        """Let calls take and give what is needed only."""
        graph = self._held(holder)
        made: dict[str, Node] = {}
        moved: dict[Edge, Edge] = {}
        is_free = _Free(graph, self._effects)
        for site in self._sites(holder):
            taken, given = self._needed(graph, site, is_free)
            if len(taken) == len(site.arguments) and len(given) == len(listed(site.node.attrs[site.kind.given])):
                continue
            made[site.node.name] = _narrowed_call(site, taken, given)
            name = site.node.name
            moved.update({Edge(name, place): Edge(name, number) for number, place in enumerate(given)})
            self.changes.append(f"{name} ({site.node.op}) takes {len(taken)} and gives {len(given)} tensors")
            for one in site.callees:
                results = given if one.gives else range(len(one.function.results))
                self.functions[one.function.name] = _narrowed(one.function, taken, results, self._effects)
        if made:
            self._hold(holder, _rewired(graph, made, moved))

    def _hold(self, holder: str, graph: Graph) -> None:
        if holder:
            self.functions[holder] = replace(self.functions[holder], graph=graph)
        else:
            self._graph = graph

    def _needed(self, graph: Graph, site: Site, is_free: "_Free") -> tuple[list[int], list[int]]:
        """The places of the arguments and of the results that a call needs."""
        needs = [_Needs.of(one.function, self._effects) for one in site.callees]
        given = [
            place
            for place in range(len(listed(site.node.attrs[site.kind.given])))
            if _is_read(graph, Edge(site.node.name, place))
        ]
        mask = sum(1 << place for place, edge in enumerate(site.arguments) if not is_free(edge))
        for one, callee in zip(needs, site.callees, strict=True):
            mask |= one.always
            for place in range(len(one.results)) if not callee.gives else () if callee.is_tied else given:
                mask |= one.results[place]
        if site.counts_turns:
            mask |= 0b11
        if site.kind.is_loop:
            mask = _handed_on(mask | sum(1 << place for place in given) or 1, needs[-1].results)
        taken = [place for place in range(len(site.arguments)) if mask >> place & 1]
        return taken, taken if site.kind.is_loop else given


def _first_value(graph: Graph, edge: Edge) -> Hashable:
    """Equal for what is equal whenever the graph runs."""
    value = graph.constant_of(edge) if edge.node not in graph.input_names else None
    return edge if value is None or not value.num_bytes else (value.dtype, value.shape, value.digest)


def _is_read(graph: Graph, edge: Edge) -> bool:
    return edge in graph.uses or edge in graph.outputs


def _handed_on(mask: int, results: Sequence[int]) -> int:
    """The arguments of a loop that some of them need: for each of these, those that its next value is made of."""
    done = 0
    while rest := mask & ~done:
        lowest = rest & -rest
        done |= lowest
        mask |= results[lowest.bit_length() - 1]
    return mask


class _Free:
    """Whether a tensor may be given to nobody: nothing that runs for it is seen by others.

    Args:
        graph: where it is made.
        effects: of the functions.
    """

    def __init__(self, graph: Graph, effects: Effects) -> None:
        self._graph = graph
        self._effects = effects

    def __call__(self, edge: Edge) -> bool:
        return (
            self._graph[edge.node].is_constant and not self._graph[edge.node].controls
        ) or edge.node not in self._kept

    @cached_property
    def _kept(self) -> Container[str]:
        # What a Switch sends nowhere keeps its reader from running.
        if not SWITCHES.isdisjoint(self._graph.op_counts):
            return self._graph.nodes
        return self._effects.acting(self._graph)


@dataclass(frozen=True)
class _Needs:
    """Which arguments a function needs, a bit for each.

    Attributes:
        results: for each result.
        always: for what runs with every call.
    """

    results: tuple[int, ...]
    always: int

    @classmethod
    def of(cls, function: Function[Graph], effects: Effects) -> "_Needs":
        graph = function.graph
        masks = {edge.node: 1 << place for place, edge in enumerate(graph.inputs)}
        if not LOOP_MERGES.isdisjoint(graph.op_counts):  # what comes back in a loop may be made of anything
            masks = dict.fromkeys(graph.nodes, (1 << len(graph.inputs)) - 1)
        for name in graph.order:
            if name not in masks:
                masks[name] = 0
                for source in graph[name].sources:
                    masks[name] |= masks[source]
        always = 0
        for name in _run_with_every_call(function, effects):
            always |= masks[name]
        return cls(tuple(masks[edge.node] for edge in graph.outputs), always)


def _run_with_every_call(function: Function[Graph], effects: Effects) -> list[str]:
    acting = [name for name, node in function.graph.nodes.items() if effects.must_run(node)]
    return [*function.controls.values(), *acting]


def _with_constants(function: Function[Graph], moved: Mapping[int, Node], is_tied: bool) -> Function[Graph]:
    """A function that reads constants of its own in the place of arguments; a loop still hands these on."""
    graph = function.graph
    names = FreeNames(graph)
    made: list[Node] = []
    instead: dict[str, Node] = {}
    for place, node in moved.items():
        argument = graph.inputs[place].node
        instead[argument] = constant(names.free(node.name), node.value).with_(device=node.device)
        made.append(instead[argument])

    def source(old: Edge) -> Edge:
        return Edge(instead[old.node].name) if old.node in instead else old

    def reader(old: Node) -> Node:
        if not any(name in instead for name in old.sources):
            return old
        controls = tuple(name for name in old.controls if name not in instead)
        return old.with_(inputs=tuple(map(source, old.inputs)), controls=controls)

    outputs = tuple(old if is_tied and place in moved else source(old) for place, old in enumerate(graph.outputs))
    nodes = [*map(reader, graph.nodes.values()), *made]
    needed = {one.node for two in nodes for one in two.inputs} | {one.node for one in outputs}
    unread = {one.name for one in made} - needed
    body = graph.with_nodes(one for one in nodes if one.name not in unread).with_(outputs=outputs)
    return replace(function, graph=restore_placement(graph, body))


def _narrowed(
    function: Function[Graph], taken: Sequence[int], given: Sequence[int], effects: Effects
) -> Function[Graph]:
    """A function that takes and gives less, and holds no more than it needs for that."""
    graph = function.graph
    results = list(function.results.items())
    inputs = tuple(graph.inputs[place] for place in taken)
    body = graph.with_(inputs=inputs, outputs=tuple(graph.outputs[place] for place in given))
    run = (Edge(name) for name in _run_with_every_call(function, effects))
    needed = body.with_(outputs=(*body.outputs, *run, *inputs)).reachable(stop_at_inputs=False)
    places = {edge.node: number for number, edge in enumerate(inputs)}
    nodes = (
        node.with_attrs(index=places[name]) if name in places else node
        for name, node in body.nodes.items()
        if name in needed
    )
    attrs = dict(function.attrs)
    shapes = attrs.get("_input_shapes")
    if isinstance(shapes, tuple) and len(shapes) == len(graph.inputs):
        attrs["_input_shapes"] = tuple(shapes[place] for place in taken)
    return replace(
        function,
        graph=restore_placement(graph, body.with_nodes(nodes)),
        results=dict(results[place] for place in given),
        attrs=attrs,
    )


def _narrowed_call(site: Site, taken: Sequence[int], given: Sequence[int]) -> Node:
    """The call with the arguments and results that are needed."""
    node, kind = site.node, site.kind
    inputs = [*range(kind.first), *(kind.first + place for place in taken)]
    attrs: dict[str, Attr] = dict(node.attrs)
    num_given = len(listed(attrs[kind.given]))
    attrs[kind.taken] = tuple(listed(attrs[kind.taken])[place] for place in taken)
    if kind.given != kind.taken:
        attrs[kind.given] = tuple(listed(attrs[kind.given])[place] for place in given)
    for key in ("output_shapes", "_output_shapes"):
        shapes = listed(attrs.get(key))
        if shapes and len(shapes) == num_given:
            attrs[key] = tuple(shapes[place] for place in given)
    if attrs.get("_num_original_outputs") == num_given:
        attrs["_num_original_outputs"] = len(given)
    if "_read_only_resource_inputs" in attrs:
        read_only = listed(attrs["_read_only_resource_inputs"])
        attrs["_read_only_resource_inputs"] = tuple(inputs.index(place) for place in read_only if place in inputs)
    return node.with_(inputs=tuple(node.inputs[place] for place in inputs), attrs=attrs)


def _rewired(graph: Graph, made: Mapping[str, Node], moved: Mapping[Edge, Edge]) -> Graph:
    """The graph with other calls, whose results are read where they are now."""

    def node(old: Node) -> Node:
        new = made.get(old.name, old)
        if not any(edge in moved for edge in new.inputs):
            return new
        return new.with_(inputs=tuple(moved.get(edge, edge) for edge in new.inputs))

    outputs = tuple(moved.get(edge, edge) for edge in graph.outputs)
    return graph.with_nodes(map(node, graph.nodes.values())).with_(outputs=outputs)
