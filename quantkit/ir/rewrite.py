"""Rules, and the one driver that applies them.

A rule is a pattern and a function of the nodes it binds. The function returns the nodes that take the
place of the matched root (the last one takes over its name and its readers), or a `Skip` that says why
this match is left as it is.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import NamedTuple, overload

from quantkit.errors import GraphError
from quantkit.ir.check import verify
from quantkit.ir.graph import LOOP_MERGES, SWITCHES, Edge, Graph, Node, Use
from quantkit.ir.pattern import Match, Pattern, match

# A rule may match again where it just rewrote; one that never stops is a mistake in the rule.
MOST_TURNS = 1000
# How many tensors behind what a root reads are looked at, to see whether they are computed in one branch only.
MOST_READ = 256


@dataclass(frozen=True)
class Skip:
    """A near-match that is left alone, and why.

    Attributes:
        reason: one clause, naming the node that stands in the way.
        node: the node that would have changed; the driver fills it in.
    """

    reason: str
    node: str = ""

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}" if self.node else self.reason


class Outcome(NamedTuple):
    """What a transform made.

    Attributes:
        graph: the new graph.
        changes: what was matched and done, a line each.
        skips: near-matches that were declined.
    """

    graph: Graph
    changes: tuple[str, ...] = ()
    skips: tuple[Skip, ...] = ()


Rewrite = Callable[..., Sequence[Node] | Skip | None]


@dataclass(frozen=True)
class Rule:
    """A pattern and what to do where it is found.

    Attributes:
        pattern: what to look for; its head names the op types it is about.
        rewrite: called with ``graph`` and the nodes the pattern binds, by the names of its parameters
            (`root` is the head of the match). The nodes it returns replace those that bear their names, where
            these stand; the others go in front of the root. None means: not this match, and not worth a word.
    """

    pattern: Pattern
    rewrite: Rewrite
    wants: tuple[str, ...] = field(default=())

    def __call__(self, graph: Graph, found: Match) -> Sequence[Node] | Skip | None:
        return self.rewrite(graph, **{name: found.names[name] for name in self.wants})


def rule(pattern: Pattern) -> Callable[[Rewrite], Rule]:
    """Make a `Rule` of a function; its parameters after ``graph`` are names that the pattern binds."""

    def made(rewrite: Rewrite) -> Rule:
        wants = tuple(name for name in inspect.signature(rewrite).parameters if name != "graph")
        return Rule(pattern, rewrite, wants)

    return made


def apply_rules(graph: Graph, *rules: Rule) -> Outcome:
    """Apply rules until none matches, in execution order.

    Each root is offered to the rules in turn, until one rewrites it or declines it with a `Skip`. The graph a rule
    sees holds what was rewritten before. Nodes that a rewrite leaves unread go, unless they are ends of the graph;
    the new root waits for what they waited for, and who waited for them waits for what they read.

    Args:
        graph: what to rewrite; it stays as it is.
        rules: each with op types at its pattern's head.

    Returns:
        The graph, a line for each rewrite, and the skips of the final graph.

    Raises:
        GraphError: a name in the graph resolves to nothing; there is something to rewrite, but the nodes form a
            cycle; a rule keeps matching what it made.
    """
    heads: dict[str, list[Rule]] = {}
    for one in rules:
        for name in one.pattern.ops:
            heads.setdefault(name, []).append(one)
    verify(graph)
    skips = _skips_where_nothing_is_done(graph, heads)
    if skips is not None:
        return Outcome(graph, (), skips)
    workpiece = _Workpiece(graph)
    changes: list[str] = []
    order: Sequence[str] = graph.order
    for _ in range(MOST_TURNS):
        done, declined = _sweep(workpiece, order, heads)
        if not done:
            final = workpiece.graph()
            return Outcome(final, tuple(changes), tuple(declined[name] for name in final.nodes if name in declined))
        changes.extend(done)
        order = workpiece.settle()
    raise _endless(changes[-1])


def _skips_where_nothing_is_done(graph: Graph, heads: Mapping[str, list[Rule]]) -> tuple[Skip, ...] | None:
    """The skips, if no rule rewrites anything; else None. Most calls end here, without sorting the graph."""
    skips: list[Skip] = []
    for name, root in graph.nodes.items():
        made = _first(graph, root, heads[root.op]) if root.op in heads else None
        if isinstance(made, Skip):
            skips.append(Skip(made.reason, made.node or name))
        elif made is not None:
            return None
    return tuple(skips)


def _sweep(
    workpiece: "_Workpiece", order: Sequence[str], heads: Mapping[str, list[Rule]]
) -> tuple[list[str], dict[str, Skip]]:
    """Offer each node to the rules once, and again where it was rewritten; what was done, and skips by root."""
    view = workpiece.view
    done: list[str] = []
    skips: dict[str, Skip] = {}
    for name in order:
        for turn in count():
            root = view.nodes.get(name)
            made = None if root is None else _first(view, root, heads.get(root.op, ()))
            if root is None or made is None:
                break
            if isinstance(made, Skip):
                skips[name] = Skip(made.reason, made.node or name)
                break
            workpiece.rewrite(root, made)
            done.append(describe(root, made))
            if turn == MOST_TURNS:
                raise _endless(done[-1])
    return done, skips


def _endless(change: str) -> GraphError:
    return GraphError(f"a rule rewrites for ever: {change}", hint="a rule must not match what it makes")


def _first(graph: Graph, root: Node, rules: Sequence[Rule]) -> Sequence[Node] | Skip | None:
    """What the first rule makes of a root that says anything about it."""
    for one in rules:
        found = match(one.pattern, graph, root)
        made = one(graph, found) if found else None
        if made:
            return made if isinstance(made, Skip) else _dead_or_alive(graph, root, made)
    return None


def _dead_or_alive(graph: Graph, root: Node, made: Sequence[Node]) -> Sequence[Node] | Skip:
    """The nodes that a rule made, waiting for what the root read and they do not.

    Behind a Switch, a node runs only where all that it reads was computed; one that reads less would run in both
    branches, and in a loop once too often.
    """
    if SWITCHES.isdisjoint(graph.op_counts):
        return made
    names = {node.name for node in made}
    read = {edge for node in made for edge in node.inputs if edge.node not in names}
    waited = {name for node in made for name in node.controls}
    waits: dict[str, None] = {}
    for edge in root.inputs:
        if _decides(graph, edge, read, waited, MOST_READ):
            continue
        node = graph[edge.node]
        if node.op in SWITCHES or node.name in names:
            return Skip(f"{edge} may be of a branch that is not taken, where nothing must take its place")
        waits.update(dict.fromkeys(node.controls if node.is_constant else (node.name,)))
    last = made[-1]
    return [*made[:-1], last.with_(controls=tuple(dict.fromkeys((*last.controls, *waits))))] if waits else made


def _decides(graph: Graph, edge: Edge, read: set[Edge], waited: set[str], steps: int) -> bool:
    """Whether an edge is computed wherever all of these are."""
    node = graph[edge.node]
    if edge in read or not node.sources or (node.name in waited and node.op not in SWITCHES):
        return True
    if node.op in SWITCHES or node.op in LOOP_MERGES or not steps or len(node.inputs) > steps:
        return False
    # What a node waited for that is not read any more, its readers wait for.
    if node.controls and graph.is_shared(node) and not waited.issuperset(node.controls):
        return False
    return all(_decides(graph, one, read, waited, steps // max(len(node.inputs), 1)) for one in node.inputs)


def describe(root: Node, made: Sequence[Node]) -> str:
    """One line about a rewrite: the root, what it became, and the other nodes that were made or changed."""
    became = root.op if made[-1].op == root.op else f"{root.op} -> {made[-1].op}"
    others = ", ".join(dict.fromkeys(f"{node.name} ({node.op})" for node in made[:-1]))
    return f"{root.name} ({became})" + (f" with {others}" if others else "")


def free_name(graph: Graph, wanted: str) -> str:
    """A name no node has: the wanted one, or that with a number."""
    if wanted not in graph:
        return wanted
    return next(name for number in count(1) if (name := f"{wanted}_{number}") not in graph)


def sharing_reason(graph: Graph, node: Node, reader: Node) -> str:
    """A clause that says who needs the tensors of ``node`` besides one slot of ``reader``; empty: nobody.

    Nodes that only wait for ``node`` do not see its values, and do not count.
    """
    if node.name in graph.endpoint_names:
        return f"{node.name} is an {'output' if node.name in graph.output_names else 'input'} of the graph"
    readings = (use.node.name for use in graph.node_uses.get(node.name, ()) if use.slot >= 0)
    first = list(islice(readings, 2))
    if len(first) < 2:
        return ""
    others = [name for name in first if name != reader.name]
    return f"{node.name} is shared: {others[0]} reads it too" if others else f"{reader.name} reads {node.name} twice"


class _UseList(Sequence[Use]):
    """Uses that are looked up as they are asked for: the table of a shared constant may be long, and change often."""

    def __init__(self, table: Mapping[tuple[str, int], None], nodes: Mapping[str, Node]) -> None:
        self._table = table
        self._nodes = nodes

    def __iter__(self) -> Iterator[Use]:
        return (Use(self._nodes[reader], slot) for reader, slot in self._table)

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, place: int) -> Use: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Use]: ...
    def __getitem__(self, place: int | slice) -> Use | Sequence[Use]:
        return tuple(self)[place]


class _Readers(Mapping[str, Sequence[Use]]):
    """`Graph.node_uses` of a graph whose nodes change: touched names are kept as tables, the others as they were."""

    def __init__(self, graph: Graph, nodes: Mapping[str, Node]) -> None:
        self._before = graph.node_uses
        self._nodes = nodes
        self._tables: dict[str, dict[tuple[str, int], None]] = {}
        self._num_readings: dict[str, int] = {}

    def __getitem__(self, name: str) -> Sequence[Use]:
        table = self._tables.get(name)
        return self._before.get(name, ()) if table is None else _UseList(table, self._nodes)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._before, **self._tables})

    def __len__(self) -> int:
        return len({**self._before, **self._tables})

    def is_read(self, name: str) -> bool:
        """Whether an input slot reads the node."""
        if name in self._num_readings:
            return self._num_readings[name] > 0
        return any(use.slot >= 0 for use in self[name])

    def change(self, old: Node | None, new: Node | None) -> None:
        """One reader was replaced by another of the same name (None: there was, or is, none)."""
        for node, adding in ((old, False), (new, True)):
            if node is None:
                continue
            for slot, edge in enumerate(node.inputs):
                self._set(edge.node, (node.name, slot), adding)
            for name in node.controls:
                self._set(name, (node.name, -1), adding)

    def _set(self, name: str, key: tuple[str, int], adding: bool) -> None:
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = {(use.node.name, use.slot): None for use in self._before.get(name, ())}
            self._num_readings[name] = sum(1 for _, slot in table if slot >= 0)
        if adding != (key in table):
            self._num_readings[name] += (1 if adding else -1) * (key[1] >= 0)
        if adding:
            table[key] = None
        else:
            table.pop(key, None)


class _Uses(Mapping[Edge, tuple[Use, ...]]):
    """`Graph.uses` of a graph whose nodes change."""

    def __init__(self, readers: _Readers) -> None:
        self._readers = readers

    def __getitem__(self, edge: Edge) -> tuple[Use, ...]:
        uses = self._readers[edge.node]
        return tuple(use for use in uses if use.slot >= 0 and use.node.inputs[use.slot].port == edge.port)

    def __iter__(self) -> Iterator[Edge]:
        edges = (use.node.inputs[use.slot] for name in self._readers for use in self._readers[name] if use.slot >= 0)
        return iter(dict.fromkeys(edges))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Workpiece:
    """A graph under the driver's hands.

    Rebuilding a `Graph` and its indexes after each rewrite would cost a pass over all nodes, so `view` is the one
    graph that changes, and only here: its nodes and its two reader indexes are kept current edit by edit.
    """

    def __init__(self, graph: Graph) -> None:
        self._before = graph
        self._order = tuple(graph.nodes)
        self._nodes = dict(graph.nodes)
        self._readers = _Readers(graph, self._nodes)
        self._in_front: dict[str, list[str]] = {}
        self.view = replace(graph, nodes=self._nodes)
        self.view.__dict__.update(node_uses=self._readers, uses=_Uses(self._readers))

    def rewrite(self, root: Node, made: Sequence[Node]) -> None:
        """Put the nodes a rule made in the place of ``root``."""
        moved = made[-1].name
        unread: list[str] = []
        for node in (*made[:-1], made[-1].with_(name=root.name)):
            old = self._nodes.get(node.name)
            if old is None:
                self._in_front.setdefault(root.name, []).append(node.name)
            else:
                unread.extend(edge.node for edge in old.inputs)
            self._put(node)
        waits = (*self._nodes[root.name].controls, *root.controls, *self._swept(unread, moved))
        current = self._nodes[root.name]
        controls = tuple(name for name in dict.fromkeys(waits) if name in self._nodes and name != root.name)
        self._put(replace(current, controls=controls))

    def _put(self, node: Node) -> None:
        """Add or replace a node."""
        old = self._nodes.get(node.name)
        if old is not node:
            self._nodes[node.name] = node
            self._readers.change(old, node)

    def _swept(self, names: Sequence[str], moved: str) -> list[str]:
        """Remove what is not read any more, from the readers back; the names of what it waited for.

        A node that others wait for stays, as its effect may be what they wait for, unless it has just ``moved``
        to the root: then they wait for what it reads, which can not close a cycle. It stays where that is a Switch.
        """
        waits: list[str] = []
        stack = [*names]
        while stack:
            name = stack.pop()
            node = self._nodes.get(name)
            if node is None or name in self.view.endpoint_names or self._readers.is_read(name):
                continue
            waiting = tuple(self._readers[name])
            sources = [edge.node for edge in node.inputs]
            if waiting and (name != moved or any(self._nodes[source].op in SWITCHES for source in sources)):
                continue
            before = [*(source for source in sources if not self._nodes[source].is_constant), *node.controls]
            for use in waiting:
                reader = self._nodes[use.node.name]
                read = {name, *(edge.node for edge in reader.inputs)}
                controls = dict.fromkeys(one for one in (*reader.controls, *before) if one not in read)
                self._put(replace(reader, controls=tuple(controls)))
            self._readers.change(node, None)
            del self._nodes[name]
            waits.extend(node.controls)
            stack.extend(sources)
        return waits

    def settle(self) -> tuple[str, ...]:
        """The names in file order; what was added stands in front of the root it was made for."""
        names = (one for name in self._order for one in (*self._in_front.pop(name, ()), name))
        self._order = tuple(name for name in dict.fromkeys(names) if name in self._nodes)
        return self._order

    def graph(self) -> Graph:
        """The graph as it is now."""
        return replace(self._before, nodes={name: self._nodes[name] for name in self.settle()})
