"""Replace calls by the nodes of the called functions.

The execution order stays: the nodes of a function run after the control dependencies of the call, and
the consumers of the call run after the function's nodes with side effects.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quantkit.errors import GraphError, InputError
from quantkit.formats.graphdef.function_library import nodes_in
from quantkit.formats.graphdef.generic_functions import call_attrs
from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.names import unused_name
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.limits import check_num_nodes
from quantkit.transforms._names import rename_nodes

ARGUMENT = "_Arg"
# Ops with a frame name, which must be unique for each loop.
FRAME_OPS = ("Enter", "RefEnter")

Callee = Callable[[Graph, Node], str | None]


def inline_calls(graph: Graph, callee: Callee) -> Outcome:
    """Replace calls by the nodes of the called functions, at any depth.

    Args:
        graph: graph that contains the calls; its library stays unchanged.
        callee: returns the name of the function that a node calls, None if the node stays.

    Raises:
        GraphError: a called function is missing or damaged, a call has the wrong number of arguments,
            or the graph has more than ``max_nodes`` nodes (see `quantkit.limits`) after inlining.
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
    """State of one call of `inline_calls`.

    Attributes:
        draft: replacements of the calls and their outputs.
        changes: one line per inlined call.
        skips: calls that stay.
    """

    def __init__(self, graph: Graph, callee: Callee) -> None:
        self.draft = Draft(graph)
        self.changes: list[str] = []
        self.skips: list[Skip] = []
        self._graph = graph
        self._callee = callee
        self._names = set(graph.nodes)
        self._recursion = _Recursion(graph, callee)
        # A call downstream of a Switch may be dead; then the constants of its function must be dead too.
        self._may_be_dead = any(op.endswith("Switch") for op in graph.op_counts)

    def expand(self, call: Node) -> list[Node] | None:
        """Return the nodes that replace a call, with nested calls replaced too; None if the call stays."""
        nodes: list[Node] = []
        stack = [(call, True)]
        while stack:
            node, may_be_call = stack.pop()
            name = self._callee(self._graph, node) if may_be_call else None
            inlined = None if name is None else self._inline(node, name)
            if inlined is None:
                nodes.append(node)
            else:
                body, identities = inlined
                stack.extend([(identity, False) for identity in reversed(identities)])
                stack.extend([(inner, True) for inner in reversed(body)])
        return None if nodes == [call] else nodes

    def _inline(self, call: Node, name: str) -> tuple[Sequence[Node], Sequence[Node]] | None:
        """Return the function's nodes and the Identity nodes of its results; None if the call stays."""
        if name not in self._graph.library:
            raise GraphError(
                f"function {name} Not found", hint=f"export the model with all functions: {call.name} calls {name!r}"
            )
        function, reason = _load(self._graph, call, name)
        if self._recursion.contains(name):
            reason = f"function {name!r} is recursive"
        if call.name in self._graph.input_names:
            reason = "the call is a graph input"
        if function is None or reason:
            self.skips.append(Skip(reason, call.name))
            return None
        if len(call.inputs) != len(function.graph.inputs):
            raise GraphError(
                f"Called function  {name} has invalid input signature.",
                hint=f"export the model again: {call.name} has {len(call.inputs)} arguments, and {name!r} expects "
                f"{len(function.graph.inputs)}",
            )
        self.changes.append(f"{call.name} ({call.op}) -> {len(function.graph) - len(call.inputs)} nodes of {name}")
        body = _Body.of(function, call, self._free_names(call, function), self._may_be_dead)
        if call.name in self._graph.endpoint_names:
            return body.nodes, [body.make_identity(call)]
        return body.nodes, self._redirect(call, body)

    def _free_names(self, call: Node, function: Function[Graph]) -> dict[str, str]:
        """Return an unused name for each node of a function."""
        check_num_nodes(len(self._names) + len(function.graph))
        return {
            node.name: self._free(f"{call.name}/{node.name}")
            for node in function.graph.nodes.values()
            if node.op != ARGUMENT
        }

    def _free(self, base: str) -> str:
        name = unused_name(self._names, base)
        self._names.add(name)
        return name

    def _redirect(self, call: Node, body: "_Body") -> list[Node]:
        """Connect the consumers of a call to its results.

        Returns:
            Identity nodes of the results whose consumers need control dependencies.
        """
        identities: list[Node] = []
        for port, (edge, controls) in enumerate(zip(body.results, body.result_controls, strict=True)):
            if controls:
                name = self._free(f"{call.name}/{body.names[port]}")
                identities.append(Node(name, "Identity", (edge,), controls, body.identity_attrs(port), call.device))
            self.draft.redirect(Edge(call.name, port), Edge(name) if controls else edge)
        self.draft.redirect_controls(call.name, *body.final_nodes)
        return identities


def _load(graph: Graph, call: Node, name: str) -> tuple[Function[Graph] | None, str]:
    """Return the function that a call names, or the reason that it cannot be loaded."""
    reference = next(
        (value for value in call.attrs.values() if isinstance(value, FunctionName) and value.name == name), None
    )
    attrs = call.attrs if call.op == name else call_attrs(reference) if reference and reference.extra else {}
    try:
        return graph.library.bound(name, attrs), ""
    except GraphError as error:
        return None, error.message
    except InputError as error:
        raise GraphError(f"function {name!r} is broken: {error.message}") from None


class _Recursion:
    """Recursive functions: functions that call themselves directly or indirectly.

    The search is iterative, so that deep call chains do not exceed Python's recursion limit.
    """

    def __init__(self, graph: Graph, callee: Callee) -> None:
        self._graph = graph
        self._callee = callee
        self._is_recursive: dict[str, bool] = {}

    def contains(self, name: str) -> bool:
        """Return True if a function is recursive."""
        if name not in self._is_recursive:
            self._search(name)
        return self._is_recursive[name]

    def _search(self, first: str) -> None:
        """Classify a function and its callees with Tarjan's strongly connected components."""
        numbers = {first: 0}  # order of discovery
        lowest = {first: 0}  # smallest number that is reachable from a function
        component_stack = [first]
        self_calls: set[str] = set()
        path = [(first, self._iterate_callees(first))]
        while path:
            name, callees = path[-1]
            callee = next((callee for callee in callees if callee not in self._is_recursive), None)
            if callee is None:
                path.pop()
                if path:
                    caller = path[-1][0]
                    lowest[caller] = min(lowest[caller], lowest[name])
                if lowest[name] == numbers[name]:
                    is_recursive = component_stack[-1] != name or name in self_calls
                    while name not in self._is_recursive:
                        self._is_recursive[component_stack.pop()] = is_recursive
            elif callee in numbers:
                lowest[name] = min(lowest[name], numbers[callee])
                if callee == name:
                    self_calls.add(name)
            else:
                numbers[callee] = lowest[callee] = len(numbers)
                component_stack.append(callee)
                path.append((callee, self._iterate_callees(callee)))

    def _iterate_callees(self, name: str) -> Iterator[str]:
        """Iterate over the distinct callees of a function."""
        nodes = nodes_in(self._graph.library, name) if name in self._graph.library else []
        return iter({callee: None for node in nodes if (callee := self._callee(self._graph, node)) is not None})


@dataclass(frozen=True)
class _Body:
    """Nodes of a function, bound to one call.

    Attributes:
        nodes: nodes to insert into the graph.
        names: name of each result.
        dtypes: element type of each result, if known.
        results: edge of each result.
        result_controls: control dependencies that the consumers of each result need: nodes that must run
            with the call and are not upstream of the result.
        final_nodes: nodes that replace a control dependency on the call.
    """

    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    dtypes: tuple[DType | None, ...]
    results: tuple[Edge, ...]
    result_controls: tuple[tuple[str, ...], ...]
    final_nodes: tuple[str, ...]

    @classmethod
    def of(cls, function: Function[Graph], call: Node, names: Mapping[str, str], may_be_dead: bool) -> "_Body":
        """Replace the arguments by the inputs of a call, and move the control dependencies of the call."""
        arguments = {edge.node: argument for edge, argument in zip(function.graph.inputs, call.inputs, strict=True)}
        renamed = rename_nodes(function.graph, names)
        constants = {node.name for node in renamed.nodes.values() if node.is_constant and not node.controls}
        available = {*arguments, *constants}
        nodes: dict[str, Node] = {}
        for node in renamed.nodes.values():
            if node.op != ARGUMENT:
                is_first = node.name not in constants and available.issuperset(node.sources)
                nodes[node.name] = _bind(node, call, arguments, is_first=is_first, may_be_dead=may_be_dead)
        results = tuple(arguments.get(edge.node, edge) for edge in renamed.outputs)
        must_run = [names[node] for node in function.controls.values() if node in names]
        required = (*must_run, *call.controls)
        upstream = _find_upstream(nodes, required)
        result_controls = []
        for edge in results:
            ordered = upstream.get(edge.node, frozenset())
            result_controls.append(tuple(name for name in required if name not in ordered and name != edge.node))
        last_controls = (name for controls in result_controls for name in controls) if results else iter(call.controls)
        final_nodes = tuple(dict.fromkeys((*(edge.node for edge in results), *must_run, *last_controls)))
        return cls(
            tuple(nodes.values()),
            tuple(function.results),
            tuple(function.results.values()),
            results,
            tuple(result_controls),
            final_nodes or call.sources,
        )

    def identity_attrs(self, port: int) -> dict[str, Attr]:
        """Return the attributes of an Identity of a result."""
        dtype = self.dtypes[port]
        return {} if dtype is None else {"T": dtype}

    def make_identity(self, call: Node) -> Node:
        """Return an Identity of all results with the name of the call, which is a graph output."""
        if not self.results:
            return Node(call.name, "NoOp", (), self.final_nodes, {}, call.device)
        producers = {edge.node for edge in self.results}
        controls = tuple(name for name in self.final_nodes if name not in producers)
        if len(self.results) == 1:
            return Node(call.name, "Identity", self.results, controls, self.identity_attrs(0), call.device)
        return Node(call.name, "IdentityN", self.results, controls, {"T": self.dtypes}, call.device)


def _bind(node: Node, call: Node, arguments: Mapping[str, Edge], *, is_first: bool, may_be_dead: bool) -> Node:
    """Replace the arguments in a node of a function; a first node gets the control dependencies of the call."""
    inputs = tuple(arguments.get(edge.node, edge) for edge in node.inputs)
    controls = [arguments[name].node if name in arguments else name for name in node.controls]
    if is_first:
        controls.extend(call.controls)
    if may_be_dead and not node.sources:
        controls.extend(call.sources)
    attrs = dict(node.attrs)
    if node.op in FRAME_OPS and isinstance(frame := attrs.get("frame_name"), bytes):
        attrs["frame_name"] = call.name.encode() + b"/" + frame
    producers = {edge.node for edge in inputs}
    needed = tuple(name for name in dict.fromkeys(controls) if name not in producers)
    return replace(node, inputs=inputs, controls=needed, attrs=attrs, device=node.device or call.device)


def _find_upstream(nodes: Mapping[str, Node], names: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """Return for each node which of the named nodes are upstream of it; sets are computed as bit masks."""
    bits = {name: 1 << number for number, name in enumerate(dict.fromkeys(names))}
    if not bits:
        return {}
    masks: dict[str, int] = {}
    for name in Graph({key: _without_outer_sources(node, nodes) for key, node in nodes.items()}).order:
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


def _without_outer_sources(node: Node, nodes: Mapping[str, Node]) -> Node:
    """Remove the inputs and control dependencies from outside a function."""
    inputs = tuple(edge for edge in node.inputs if edge.node in nodes)
    return replace(node, inputs=inputs, controls=tuple(name for name in node.controls if name in nodes))
