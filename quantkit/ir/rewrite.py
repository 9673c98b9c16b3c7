"""Rewrite rules and the driver that applies them.

A rule is a pattern and a function of the nodes that the pattern binds. The function returns the nodes that replace
the matched root (the last one takes over its name and its consumers), or a `Skip` with the reason why this match
stays unchanged.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

from quantkit.arguments import public
from quantkit.errors import GraphError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.draft import Draft
from quantkit.ir.graph import LOOP_MERGES, SWITCHES, Attr, Edge, Graph, Node, Use, constant
from quantkit.ir.names import unused_name
from quantkit.ir.pattern import Match, Pattern, match
from quantkit.ir.tensor import Tensor

# A rule may match again where it has rewritten; a rule that matches without end is an error in the rule.
MAX_ITERATIONS = 1000
# Number of upstream tensors of a root that are checked for belonging to one branch only.
MAX_UPSTREAM_TENSORS = 256
# Matches of each rule while `count_matches` is active.
_MATCHES: ContextVar[dict[str, int] | None] = ContextVar("_MATCHES", default=None)


@dataclass(frozen=True)
class Skip:
    """Near-match that a rule did not rewrite, with the reason.

    Attributes:
        reason: one clause that names the node that prevents the rewrite.
        node: the node that would have changed; set by the driver if empty.
    """

    reason: str
    node: str = ""

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}" if self.node else self.reason


class Outcome(NamedTuple):
    """Result of a transform.

    Attributes:
        graph: the new graph.
        changes: one line for each rewrite.
        skips: near-matches that were not rewritten.
    """

    graph: Graph
    changes: tuple[str, ...] = ()
    skips: tuple[Skip, ...] = ()


Rewrite = Callable[..., Sequence[Node] | Skip | None]


@dataclass(frozen=True)
class Rule:
    """Pattern and the function that rewrites its matches.

    Attributes:
        pattern: pattern to match; its outermost part has the op types of the roots.
        rewrite: function of ``graph`` and of nodes that the pattern binds, by parameter name (`root` is the matched
            root). Nodes that it returns replace the nodes of the same names in place; other nodes are inserted
            before the root. It returns None if the match does not qualify and needs no skip.
        parameters: names of the bound nodes that ``rewrite`` takes.
        name: name in reports; empty for that of ``rewrite``.

    Raises:
        RecipeError: the pattern does not bind a parameter.
    """

    pattern: Pattern
    rewrite: Rewrite
    parameters: tuple[str, ...] = field(default=())
    name: str = ""

    def __post_init__(self) -> None:
        bound = {*self.pattern.names, "root"}
        unbound = [name for name in self.parameters if name not in bound]
        if unbound:
            raise RecipeError(
                f"{self.location}: the pattern does not bind parameter {unbound[0]!r} of rule {self._name!r}",
                hint=f"the parameters are graph, {', '.join(sorted(bound))}",
            )

    def __str__(self) -> str:
        """Return the name and the pattern."""
        return f"{self._name}: {self.pattern}"

    @property
    def location(self) -> str:
        """File and line of the function, for messages."""
        code = self._function.__code__
        return f"{code.co_filename}, line {code.co_firstlineno}"

    @property
    def _name(self) -> str:
        return self.name or self._function.__name__

    @property
    def _function(self) -> Any:
        return self.rewrite.func if isinstance(self.rewrite, partial) else self.rewrite

    def __call__(self, graph: Graph, match: Match) -> Sequence[Node] | Skip | None:
        return self.rewrite(graph, **{name: match.names[name] for name in self.parameters})


@public
def rule(pattern: Pattern) -> Callable[[Rewrite], Rule]:
    """Create a `Rule` from a function; its parameters after ``graph`` are names that the pattern binds."""

    def decorate(rewrite: Rewrite) -> Rule:
        parameters = tuple(name for name in inspect.signature(rewrite).parameters if name != "graph")
        return Rule(pattern, rewrite, parameters)

    return decorate


@contextmanager
def count_matches() -> Iterator[Mapping[str, int]]:
    """Count the matches that each rule rewrites or skips, by the text of the rule, within the context."""
    matches: dict[str, int] = {}
    token = _MATCHES.set(matches)
    try:
        yield matches
    finally:
        _MATCHES.reset(token)


@public
def apply_rules(graph: Graph, *rules: Rule) -> Outcome:
    """Apply rules in topological order until none matches.

    Each root is tried with the rules in order, until one returns nodes or a `Skip`. A rule gets the graph with all
    earlier rewrites. Nodes that a rewrite leaves without consumers are removed, except graph inputs and outputs: the
    new root takes over their control dependencies, and nodes with a control dependency on a removed node depend on
    the inputs of that node instead.

    Args:
        graph: graph to rewrite; it does not change.
        rules: rules whose patterns name the op types of the roots.

    Returns:
        The graph, one line for each rewrite, and the skips of the final graph.

    Raises:
        GraphError: a name in the graph does not resolve; a rule matches in a graph with a cycle; a rule matches its
            own result without end.
        RecipeError: a rule returns a value that is not a list of nodes with edges as inputs.
    """
    rules_of_op: dict[str, list[Rule]] = {}
    for rule_ in rules:
        for name in rule_.pattern.ops:
            rules_of_op.setdefault(name, []).append(rule_)
    if (matches := _MATCHES.get()) is not None:
        matches.update({str(rule_): matches.get(str(rule_), 0) for rule_ in rules})
    verify(graph)
    skips = _skips_if_unchanged(graph, rules_of_op)
    if skips is not None:
        return Outcome(graph, (), skips)
    editor = _GraphEditor(graph)
    changes: list[str] = []
    order: Sequence[str] = graph.order
    for _ in range(MAX_ITERATIONS):
        new_changes, root_skips = _sweep(editor, order, rules_of_op)
        if not new_changes:
            final = editor.graph()
            return Outcome(final, tuple(changes), tuple(root_skips[name] for name in final.nodes if name in root_skips))
        changes.extend(new_changes)
        order = editor.update_order()
    raise _endless_rule_error(changes[-1])


def _skips_if_unchanged(graph: Graph, rules_of_op: Mapping[str, list[Rule]]) -> tuple[Skip, ...] | None:
    """Return the skips if no rule rewrites a node, else None. Most calls end here, without sorting the graph."""
    skips: list[Skip] = []
    for name, root in graph.nodes.items():
        result = _apply_first(graph, root, rules_of_op[root.op]) if root.op in rules_of_op else None
        if isinstance(result, Skip):
            skips.append(Skip(result.reason, result.node or name))
        elif result is not None:
            return None
    return tuple(skips)


def _sweep(
    editor: "_GraphEditor", order: Sequence[str], rules_of_op: Mapping[str, list[Rule]]
) -> tuple[list[str], dict[str, Skip]]:
    """Try the rules on each node, repeatedly on rewritten ones; return the changes and the skips by root."""
    view = editor.view
    changes: list[str] = []
    skips: dict[str, Skip] = {}
    for name in order:
        for iteration in count():
            root = view.nodes.get(name)
            result = None if root is None else _apply_first(view, root, rules_of_op.get(root.op, ()))
            if root is None or result is None:
                break
            if isinstance(result, Skip):
                skips[name] = Skip(result.reason, result.node or name)
                break
            editor.rewrite(root, result)
            changes.append(describe(root, result))
            if iteration == MAX_ITERATIONS:
                raise _endless_rule_error(changes[-1])
    return changes, skips


def _endless_rule_error(change: str) -> GraphError:
    return GraphError(f"a rule never stops rewriting: {change}", hint="a rule must not match its own result")


def _apply_first(graph: Graph, root: Node, rules: Sequence[Rule]) -> Sequence[Node] | Skip | None:
    """Return the result of the first rule that rewrites or skips ``root``."""
    for rule_ in rules:
        root_match = match(rule_.pattern, graph, root)
        result = rule_(graph, root_match) if root_match else None
        if result:
            if (matches := _MATCHES.get()) is not None:
                matches[str(rule_)] += 1
            if not isinstance(result, Skip):
                _check_result(rule_, root, result)
            return result if isinstance(result, Skip) else _keep_branch(graph, root, result)
    return None


def _check_result(rule_: Rule, root: Node, result: Any) -> None:
    """Check that a rule returned a list of nodes whose inputs are edges.

    Raises:
        RecipeError: the message names the rule, its file and line, and the value.
    """
    problem = ""
    if not isinstance(result, Sequence) or isinstance(result, str):
        problem = f"returns {type(result).__name__}"
    for node in result if not problem else ():
        if not isinstance(node, Node):
            problem = f"returns {type(node).__name__} among the nodes"
            break
        wrong = [edge for edge in node.inputs if not isinstance(edge, Edge)]
        if wrong:
            problem = f"returns node {node.name!r}, whose input {str(wrong[0])!r} is of type {type(wrong[0]).__name__}"
            break
    if problem:
        raise RecipeError(
            f"{rule_.location}: rule {rule_} {problem}, for root {root.name!r}",
            hint='return a list of nodes, or a Skip; an input is an Edge or a text such as "name" or "name:1"',
        )


def _keep_branch(graph: Graph, root: Node, nodes: Sequence[Node]) -> Sequence[Node] | Skip:
    """Add control dependencies to the replacement of ``root`` so that it runs in the same branch as ``root``.

    After a Switch, a node runs only if all of its inputs were computed. A replacement with fewer inputs would run in
    both branches, and in a loop for one iteration more.
    """
    if SWITCHES.isdisjoint(graph.op_counts):
        return nodes
    names = {node.name for node in nodes}
    edges = {edge for node in nodes for edge in node.inputs if edge.node not in names}
    controls = {name for node in nodes for name in node.controls}
    added: dict[str, None] = {}
    for edge in root.inputs:
        if _is_implied(graph, edge, edges, controls, MAX_UPSTREAM_TENSORS):
            continue
        node = graph[edge.node]
        if node.op in SWITCHES or node.name in names:
            return Skip(f"{edge} may belong to a branch that is not taken, where no replacement may run")
        added.update(dict.fromkeys(node.controls if node.is_constant else (node.name,)))
    last = nodes[-1]
    return [*nodes[:-1], last.with_(controls=tuple(dict.fromkeys((*last.controls, *added))))] if added else nodes


def _is_implied(graph: Graph, edge: Edge, edges: set[Edge], controls: set[str], steps: int) -> bool:
    """Return True if ``edge`` is computed whenever all of ``edges`` and ``controls`` are."""
    node = graph[edge.node]
    if edge in edges or not node.sources or (node.name in controls and node.op not in SWITCHES):
        return True
    if node.op in SWITCHES or node.op in LOOP_MERGES or not steps or len(node.inputs) > steps:
        return False
    # A node that loses its last consumer forwards only its control dependencies.
    if node.controls and graph.is_shared(node) and not controls.issuperset(node.controls):
        return False
    steps //= max(len(node.inputs), 1)
    return all(_is_implied(graph, source, edges, controls, steps) for source in node.inputs)


def describe(root: Node, nodes: Sequence[Node]) -> str:
    """Return one line about a rewrite: the root, its new op type, and the other nodes added or changed."""
    op = root.op if nodes[-1].op == root.op else f"{root.op} -> {nodes[-1].op}"
    others = ", ".join(dict.fromkeys(f"{node.name} ({node.op})" for node in nodes[:-1]))
    return f"{root.name} ({op})" + (f" with {others}" if others else "")


@public
def free_name(graph: Graph, name: str) -> str:
    """Return ``name`` if no node has it, else ``name`` with a number appended."""
    return unused_name(graph, name)


def rewrite_nodes(
    graph: Graph,
    rewrite: Callable[[Node], Sequence[Node] | Skip | None],
    describe: Callable[[Node], str] = lambda node: node.name,
) -> Outcome:
    """Rewrite each node of a graph once; the new nodes are not rewritten again.

    Args:
        graph: graph to rewrite; it does not change.
        rewrite: function that returns the nodes that replace a node, a `Skip`, or None for a node that stays.
        describe: function that returns the line about the change of a node.
    """
    draft, changes, skips = Draft(graph), list[str](), list[Skip]()
    for node in graph.nodes.values():
        result = rewrite(node)
        if isinstance(result, Skip):
            skips.append(Skip(result.reason, node.name))
        elif result:
            draft.replace(node.name, *result)
            changes.append(describe(node))
    return Outcome(draft.graph() if changes else graph, tuple(changes), tuple(skips))


def remove_unused(before: Graph, graph: Graph) -> Graph:
    """Return the graph without the nodes whose consumers have been replaced."""
    while unused := [name for name in before.node_uses if name in graph and not _is_needed(graph, name)]:
        graph = graph.with_nodes(node for name, node in graph.nodes.items() if name not in unused)
    return graph


def _is_needed(graph: Graph, name: str) -> bool:
    return name in graph.node_uses or name in graph.endpoint_names


class NewNodes(list[Node]):
    """New nodes of a graph of either dialect, in order of creation.

    Args:
        graph: graph that the nodes are for; its names are not free.
        prefix: begin of the names of the nodes.
    """

    def __init__(self, graph: Graph, prefix: str) -> None:
        super().__init__()
        self._graph, self._prefix = graph, prefix

    def constant(self, suffix: str, values: Any) -> Edge:
        """Create a constant ``prefix/suffix`` of any argument of `Tensor.of`, and return its value."""
        name = free_name(self._graph, f"{self._prefix}/{suffix}")
        is_onnx = self._graph.dialect == "onnx"
        self.append(Node(name, "Constant", attrs={"value": Tensor.of(values)}) if is_onnx else constant(name, values))
        return Edge(name)

    def add(self, suffix: str, op: str, *inputs: Any, **attrs: Attr) -> Edge:
        """Create a node ``prefix/suffix``, and return its first output.

        Other inputs than edges become constants ``prefix/suffix/value_0`` ..., in front of the node.
        """
        edges = [
            value if isinstance(value, Edge) else self.constant(f"{suffix}/value_{index}", value)
            for index, value in enumerate(inputs)
        ]
        self.append(Node(free_name(self._graph, f"{self._prefix}/{suffix}"), op, tuple(edges), attrs=attrs))
        return Edge(self[-1].name)


@public
def sharing_reason(graph: Graph, node: Node, consumer: Node) -> str:
    """Return a clause with the other use of ``node`` than one input of ``consumer``; empty without other uses.

    Control dependencies on ``node`` do not use its values and do not count.
    """
    if node.name in graph.endpoint_names:
        return f"{node.name} is an {'output' if node.name in graph.output_names else 'input'} of the graph"
    consumers = (use.node.name for use in graph.node_uses.get(node.name, ()) if use.slot >= 0)
    first = list(islice(consumers, 2))
    if len(first) < 2:
        return ""
    others = [name for name in first if name != consumer.name]
    if others:
        return f"{node.name} is shared: {others[0]} is a consumer too"
    return f"{node.name} is an input of {consumer.name} twice"


class _UseList(Sequence[Use]):
    """Uses that are looked up on access: the table of a shared constant may be long and change often."""

    def __init__(self, table: Mapping[tuple[str, int], None], nodes: Mapping[str, Node]) -> None:
        self._table = table
        self._nodes = nodes

    def __iter__(self) -> Iterator[Use]:
        return (Use(self._nodes[consumer], slot) for consumer, slot in self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]


class _NodeUses(Mapping[str, Sequence[Use]]):
    """`Graph.node_uses` of a graph whose nodes change; only the entries of changed nodes are copied."""

    def __init__(self, graph: Graph, nodes: Mapping[str, Node]) -> None:
        self._before = graph.node_uses
        self._nodes = nodes
        self._tables: dict[str, dict[tuple[str, int], None]] = {}
        self._num_inputs: dict[str, int] = {}

    def __getitem__(self, name: str) -> Sequence[Use]:
        table = self._tables.get(name)
        return self._before.get(name, ()) if table is None else _UseList(table, self._nodes)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._before, **self._tables})

    def __len__(self) -> int:
        return len({**self._before, **self._tables})

    def has_consumers(self, name: str) -> bool:
        """Return True if the node has consumers; control dependencies do not count."""
        if name in self._num_inputs:
            return self._num_inputs[name] > 0
        return any(use.slot >= 0 for use in self[name])

    def change(self, old: Node | None, new: Node | None) -> None:
        """Update the index after a node was added (``old`` None), removed (``new`` None) or replaced."""
        for node, is_new in ((old, False), (new, True)):
            if node is None:
                continue
            for slot, edge in enumerate(node.inputs):
                self._set(edge.node, (node.name, slot), is_new)
            for name in node.controls:
                self._set(name, (node.name, -1), is_new)

    def _set(self, name: str, key: tuple[str, int], is_new: bool) -> None:
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = {(use.node.name, use.slot): None for use in self._before.get(name, ())}
            self._num_inputs[name] = sum(1 for _, slot in table if slot >= 0)
        if is_new != (key in table):
            self._num_inputs[name] += (1 if is_new else -1) * (key[1] >= 0)
        if is_new:
            table[key] = None
        else:
            table.pop(key, None)


class _Uses(Mapping[Edge, tuple[Use, ...]]):
    """`Graph.uses` of a graph whose nodes change."""

    def __init__(self, node_uses: _NodeUses) -> None:
        self._node_uses = node_uses

    def __getitem__(self, edge: Edge) -> tuple[Use, ...]:
        uses = self._node_uses[edge.node]
        return tuple(use for use in uses if use.slot >= 0 and use.node.inputs[use.slot].port == edge.port)

    def __iter__(self) -> Iterator[Edge]:
        uses = (use for name in self._node_uses for use in self._node_uses[name] if use.slot >= 0)
        return iter(dict.fromkeys(use.node.inputs[use.slot] for use in uses))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _GraphEditor:
    """Graph that the driver edits in place.

    Rebuilding a `Graph` and its indexes after each rewrite would visit all nodes. Therefore `view` is the
    only graph that changes, and only here: its nodes and its two use indexes are updated with each edit.
    """

    def __init__(self, graph: Graph) -> None:
        self._before = graph
        self._order = tuple(graph.nodes)
        self._nodes = dict(graph.nodes)
        self._node_uses = _NodeUses(graph, self._nodes)
        self._inserted_before: dict[str, list[str]] = {}
        self.view = replace(graph, nodes=self._nodes)
        self.view.__dict__.update(node_uses=self._node_uses, uses=_Uses(self._node_uses))

    def rewrite(self, root: Node, nodes: Sequence[Node]) -> None:
        """Replace ``root`` by the nodes that a rule returned."""
        moved = nodes[-1].name
        producers: list[str] = []
        for node in (*nodes[:-1], nodes[-1].with_(name=root.name)):
            old = self._nodes.get(node.name)
            if old is None:
                self._inserted_before.setdefault(root.name, []).append(node.name)
            else:
                producers.extend(edge.node for edge in old.inputs)
            self._put(node)
        names = (*self._nodes[root.name].controls, *root.controls, *self._remove_unused(producers, moved))
        current = self._nodes[root.name]
        controls = tuple(name for name in dict.fromkeys(names) if name in self._nodes and name != root.name)
        self._put(replace(current, controls=controls))

    def _put(self, node: Node) -> None:
        """Add or replace a node."""
        old = self._nodes.get(node.name)
        if old is not node:
            self._nodes[node.name] = node
            self._node_uses.change(old, node)

    def _remove_unused(self, names: Sequence[str], moved: str) -> list[str]:
        """Remove nodes without consumers, from the given names upstream; return their control dependencies.

        A node that others have a control dependency on stays, because its side effect may be needed, unless it has
        just ``moved`` to the root: the control dependencies then go to its inputs, which cannot close a cycle. It
        stays if such an input is a Switch.
        """
        removed_controls: list[str] = []
        stack = [*names]
        while stack:
            name = stack.pop()
            node = self._nodes.get(name)
            if node is None or name in self.view.endpoint_names or self._node_uses.has_consumers(name):
                continue
            control_uses = tuple(self._node_uses[name])
            sources = [edge.node for edge in node.inputs]
            if control_uses and (name != moved or any(self._nodes[source].op in SWITCHES for source in sources)):
                continue
            upstream = [*(source for source in sources if not self._nodes[source].is_constant), *node.controls]
            for use in control_uses:
                dependent = self._nodes[use.node.name]
                obsolete = {name, *(edge.node for edge in dependent.inputs)}
                controls = dict.fromkeys(name for name in (*dependent.controls, *upstream) if name not in obsolete)
                self._put(replace(dependent, controls=tuple(controls)))
            self._node_uses.change(node, None)
            del self._nodes[name]
            removed_controls.extend(node.controls)
            stack.extend(sources)
        return removed_controls

    def update_order(self) -> tuple[str, ...]:
        """Return the names in file order; added nodes come before the root that they were added for."""
        names = (name for root in self._order for name in (*self._inserted_before.pop(root, ()), root))
        self._order = tuple(name for name in dict.fromkeys(names) if name in self._nodes)
        return self._order

    def graph(self) -> Graph:
        """Return the present graph."""
        return replace(self._before, nodes={name: self._nodes[name] for name in self.update_order()})
