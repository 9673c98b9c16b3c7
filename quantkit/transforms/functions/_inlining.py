"""Put the nodes of a function where it is called.

What a call promises is kept: its nodes wait for what the call waits for, and whoever reads a result or waits for the
call waits for the nodes of the function that must run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quantkit.errors import GraphError, InputError
from quantkit.formats.graphdef.function_library import nodes_in
from quantkit.formats.graphdef.generic_functions import call_attrs
from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.transforms._names import rename_nodes

ARGUMENT = "_Arg"
# A function that calls another twice, which calls another twice ...: twenty-odd of them fill the memory.
MOST_NODES = 1_000_000
# A loop is known by its name: two loops that were one must get two.
FRAME_OPS = ("Enter", "RefEnter")

Callee = Callable[[Graph, Node], str | None]


def inline_calls(graph: Graph, callee: Callee) -> Outcome:
    """The graph with the nodes of functions in the place of calls, and of those they call in turn.

    Args:
        graph: where the calls are; its library stays.
        callee: the name of the function that a node calls, or None where it calls none that is to be opened.

    Raises:
        GraphError: a call names no function of the library, or gives it too many or too few tensors; functions that
            call each other would become more nodes than memory holds.
    """
    inliner = _Inliner(graph, callee)
    for node in graph.nodes.values():
        if callee(graph, node) is not None:
            nodes = inliner.expand(node)
            if nodes is not None:
                inliner.draft.replace(node.name, *nodes)
    if not inliner.changes:
        return Outcome(graph, (), tuple(inliner.skips))
    return Outcome(inliner.draft.graph(), tuple(inliner.changes), tuple(inliner.skips))


class _Inliner:
    """One call of `inline_calls`: the names that are taken, and what was done.

    Attributes:
        draft: what readers of the calls read instead.
        changes: what was done, a line each.
        skips: calls that stay.
    """

    def __init__(self, graph: Graph, callee: Callee) -> None:
        self.draft = Draft(graph)
        self.changes: list[str] = []
        self.skips: list[Skip] = []
        self._graph = graph
        self._callee = callee
        self._names = set(graph.nodes)
        self._endless = _Endless(graph, callee)
        # Behind a Switch, a call does nothing where its inputs are not computed; nor may its constants.
        self._may_be_dead = any(op.endswith("Switch") for op in graph.op_counts)

    def expand(self, call: Node) -> list[Node] | None:
        """The nodes that take the place of a call, and of the calls among these; None: it stays."""
        nodes: list[Node] = []
        stack = [(call, True)]
        while stack:
            node, may_be_call = stack.pop()
            name = self._callee(self._graph, node) if may_be_call else None
            made = None if name is None else self._written_out(node, name)
            if made is None:
                nodes.append(node)
            else:
                stack.extend([(one, False) for one in reversed(made[1])])
                stack.extend([(one, True) for one in reversed(made[0])])
        return None if nodes == [call] else nodes

    def _written_out(self, call: Node, name: str) -> tuple[Sequence[Node], Sequence[Node]] | None:
        """The nodes of the function that a call names, and those that pass its results on; None: it stays."""
        if name not in self._graph.library:
            raise GraphError(f"function {name} Not found", hint=f"{call.name} calls it; the graph's library lacks it")
        function, reason = _opened(self._graph, call, name)
        if self._endless.holds(name):
            reason = f"function {name!r} calls itself"
        if call.name in self._graph.input_names:
            reason = "it is an input of the graph"
        if function is None or reason:
            self.skips.append(Skip(reason, call.name))
            return None
        if len(call.inputs) != len(function.graph.inputs):
            raise GraphError(
                f"Called function  {name} has invalid input signature.",
                hint=f"{call.name} gives it {len(call.inputs)} tensors, and it takes {len(function.graph.inputs)}",
            )
        self.changes.append(f"{call.name} ({call.op}) -> {len(function.graph) - len(call.inputs)} nodes of {name}")
        body = _Body.of(function, call, self._free_names(call, function), self._may_be_dead)
        if call.name in self._graph.endpoint_names:
            return body.nodes, [body.named_like(call)]
        return body.nodes, self._redirect(call, body)

    def _free_names(self, call: Node, function: Function[Graph]) -> dict[str, str]:
        """Names for the function's nodes, which no other node has."""
        made: dict[str, str] = {}
        for node in function.graph.nodes.values():
            if node.op != ARGUMENT:
                made[node.name] = self._free(f"{call.name}/{node.name}")
        if len(self._names) > MOST_NODES:
            raise GraphError(
                f"inlining {function.name!r} makes more than {MOST_NODES} nodes", hint="leave these calls as they are"
            )
        return made

    def _free(self, wanted: str) -> str:
        name, number = wanted, 0
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def _redirect(self, call: Node, body: "_Body") -> list[Node]:
        """Let readers of the call read its results; nodes that pass those on whose readers have to wait."""
        passed: list[Node] = []
        for port, (edge, waits) in enumerate(zip(body.results, body.waits, strict=True)):
            if waits:
                name = self._free(f"{call.name}/{body.names[port]}")
                passed.append(Node(name, "Identity", (edge,), waits, body.passing_attrs(port), call.device))
            self.draft.redirect(Edge(call.name, port), Edge(name) if waits else edge)
        self.draft.redirect_controls(call.name, *body.all_done)
        return passed


def _opened(graph: Graph, call: Node, name: str) -> tuple[Function[Graph] | None, str]:
    """The function that a call makes of a name, or why it can not be opened."""
    named = next((one for one in call.attrs.values() if isinstance(one, FunctionName) and one.name == name), None)
    attrs = call.attrs if call.op == name else call_attrs(named) if named and named.extra else {}
    try:
        return graph.library.bound(name, attrs), ""
    except GraphError as error:
        return None, error.message
    except InputError as error:
        raise GraphError(f"function {name!r} is broken: {error.message}") from None


class _Endless:
    """Functions that call themselves, in whatever roundabout way; however deep calls nest, Python does not recurse."""

    def __init__(self, graph: Graph, callee: Callee) -> None:
        self._graph = graph
        self._callee = callee
        self._decided: dict[str, bool] = {}

    def holds(self, name: str) -> bool:
        """Whether a function is one of them."""
        if name not in self._decided:
            self._decide(name)
        return self._decided[name]

    def _decide(self, first: str) -> None:
        """Decide for a function and all that it leads to: Tarjan's strongly connected components."""
        numbers = {first: 0}  # in what order they were met
        lowest = {first: 0}  # the number of the earliest one that each leads back to
        open_ones = [first]
        loops: set[str] = set()
        path = [(first, self._called(first))]
        while path:
            name, rest = path[-1]
            callee = next((one for one in rest if one not in self._decided), None)
            if callee is None:
                path.pop()
                if path:
                    caller = path[-1][0]
                    lowest[caller] = min(lowest[caller], lowest[name])
                if lowest[name] == numbers[name]:
                    is_loop = open_ones[-1] != name or name in loops
                    while name not in self._decided:
                        self._decided[open_ones.pop()] = is_loop
            elif callee in numbers:
                lowest[name] = min(lowest[name], numbers[callee])
                loops.update({name} & {callee})
            else:
                numbers[callee] = lowest[callee] = len(numbers)
                open_ones.append(callee)
                path.append((callee, self._called(callee)))

    def _called(self, name: str) -> Iterator[str]:
        """What a function calls, each once."""
        nodes = nodes_in(self._graph.library, name) if name in self._graph.library else []
        return iter({callee: None for node in nodes if (callee := self._callee(self._graph, node)) is not None})


@dataclass(frozen=True)
class _Body:
    """The nodes of a function, for one call of it.

    Attributes:
        nodes: what is put into the graph.
        names: of the results.
        dtypes: attributes ``T`` of nodes that pass the results on.
        results: what makes them.
        waits: for each result, nodes that its readers must wait for, because it does not.
        all_done: nodes that have run when the call has.
    """

    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    dtypes: tuple[DType | None, ...]
    results: tuple[Edge, ...]
    waits: tuple[tuple[str, ...], ...]
    all_done: tuple[str, ...]

    @classmethod
    def of(cls, function: Function[Graph], call: Node, names: Mapping[str, str], may_be_dead: bool) -> "_Body":
        """Bind the arguments, and let what begins the function wait for what the call waits for."""
        given = {edge.node: given for edge, given in zip(function.graph.inputs, call.inputs, strict=True)}
        named = rename_nodes(function.graph, names)
        constants = {node.name for node in named.nodes.values() if node.is_constant and not node.controls}
        early = {*given, *constants}
        nodes: dict[str, Node] = {}
        for node in named.nodes.values():
            if node.op != ARGUMENT:
                begins = node.name not in constants and early.issuperset(node.sources)
                nodes[node.name] = _placed(node, call, given, begins=begins, may_be_dead=may_be_dead)
        results = tuple(given.get(edge.node, edge) for edge in named.outputs)
        must_run = [names[node] for node in function.controls.values() if node in names]
        before = _what_ran_before(nodes, (*must_run, *call.controls))
        waits = []
        for edge in results:
            ran = before.get(edge.node, frozenset())
            waits.append(tuple(name for name in (*must_run, *call.controls) if name not in ran and name != edge.node))
        late = (name for names in waits for name in names) if results else iter(call.controls)
        done = tuple(dict.fromkeys((*(edge.node for edge in results), *must_run, *late)))
        return cls(
            tuple(nodes.values()),
            tuple(function.results),
            tuple(function.results.values()),
            results,
            tuple(waits),
            done or call.sources,
        )

    def passing_attrs(self, port: int) -> dict[str, Attr]:
        """Attributes of an Identity that passes a result on."""
        dtype = self.dtypes[port]
        return {} if dtype is None else {"T": dtype}

    def named_like(self, call: Node) -> Node:
        """A node of the call's name that passes all results on, for those who ask the graph for them."""
        if not self.results:
            return Node(call.name, "NoOp", (), self.all_done, {}, call.device)
        read = {edge.node for edge in self.results}
        waits = tuple(name for name in self.all_done if name not in read)
        if len(self.results) == 1:
            return Node(call.name, "Identity", self.results, waits, self.passing_attrs(0), call.device)
        return Node(call.name, "IdentityN", self.results, waits, {"T": self.dtypes}, call.device)


def _placed(node: Node, call: Node, given: Mapping[str, Edge], *, begins: bool, may_be_dead: bool) -> Node:
    """A node of a function, reading what the call gives it; one that ``begins`` waits for what the call waits for."""
    inputs = tuple(given.get(edge.node, edge) for edge in node.inputs)
    controls = [given[name].node if name in given else name for name in node.controls]
    if begins:
        controls.extend(call.controls)
    if may_be_dead and not node.sources:
        controls.extend(call.sources)
    attrs = dict(node.attrs)
    if node.op in FRAME_OPS and isinstance(frame := attrs.get("frame_name"), bytes):
        attrs["frame_name"] = call.name.encode() + b"/" + frame
    read = {edge.node for edge in inputs}
    kept = tuple(name for name in dict.fromkeys(controls) if name not in read)
    return replace(node, inputs=inputs, controls=kept, attrs=attrs, device=node.device or call.device)


def _what_ran_before(nodes: Mapping[str, Node], wanted: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """For each node, those of the wanted ones that have run before it, as far as the nodes themselves see to it."""
    bits = {name: 1 << place for place, name in enumerate(dict.fromkeys(wanted))}
    if not bits:
        return {}
    masks: dict[str, int] = {}
    for name in Graph({key: _inside(node, nodes) for key, node in nodes.items()}).order:
        node = nodes[name]
        mask = bits.get(name, 0)
        for source in node.sources:
            mask |= masks.get(source, bits.get(source, 0))
        masks[name] = mask
    sets: dict[int, frozenset[str]] = {}
    for mask in masks.values():
        if mask not in sets:
            sets[mask] = frozenset(name for name, bit in bits.items() if mask & bit)
    return {name: sets[mask] for name, mask in masks.items()}


def _inside(node: Node, nodes: Mapping[str, Node]) -> Node:
    """A node without what it reads from outside."""
    inputs = tuple(edge for edge in node.inputs if edge.node in nodes)
    return replace(node, inputs=inputs, controls=tuple(name for name in node.controls if name in nodes))
