"""Rules, and the one driver that applies them.

A rule is a pattern and a function of the nodes it binds. The function returns the nodes that take the
place of the matched root (the last one takes over its name and its readers), or a `Skip` that says why
this match is left as it is.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quantkit.ir.graph import Graph, Node
from quantkit.ir.pattern import Match, Pattern, match


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
        pattern: what to look for.
        rewrite: called with ``graph`` and the nodes the pattern binds, by the names of its parameters
            (`root` is the head of the match). None means: not this match, and not worth a word.
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
    """Apply rules until none matches, each round over matches that do not overlap, in execution order.

    Matched nodes that nobody reads after a round, and that are no end of the graph, go.

    Returns:
        The graph, a line for each rewrite, and the skips of the last round (earlier ones are repeated there).
    """
    changes: list[str] = []
    while True:
        graph, done, skips = _round(graph, rules)
        changes.extend(done)
        if not done:
            return Outcome(graph, tuple(changes), tuple(skips))


def _round(graph: Graph, rules: Sequence[Rule]) -> tuple[Graph, list[str], list[Skip]]:
    heads: dict[str, list[Rule]] = {}
    for one in rules:
        for name in one.pattern.ops:
            heads.setdefault(name, []).append(one)
    claimed: set[str] = set()
    places: dict[str, list[Node]] = {}
    done: list[str] = []
    skips: list[Skip] = []
    for name in graph.order:
        root = graph[name]
        for one in heads.get(root.op, ()):
            found = match(one.pattern, graph, root)
            if found is None or claimed & found.inside:
                continue
            made = one(graph, found)
            if isinstance(made, Skip):
                skips.append(Skip(made.reason, made.node or name))
            elif made:
                claimed |= found.inside
                places[name] = [*made[:-1], made[-1].with_(name=name)]
                done.append(describe(found, graph))
                break
    if not places:
        return graph, done, skips
    return _prune(_placed(graph, places), claimed), done, skips


def _placed(graph: Graph, places: Mapping[str, list[Node]]) -> Graph:
    """The graph with new nodes at their roots; a new node that bears an old name replaces that node."""
    renewed = {node.name for nodes in places.values() for node in nodes}
    nodes: list[Node] = []
    for name, node in graph.nodes.items():
        if name in places:
            nodes.extend(places[name])
        elif name not in renewed:
            nodes.append(node)
    return Graph.of(
        nodes,
        graph.inputs,
        graph.outputs,
        dialect=graph.dialect,
        versions=graph.versions,
        library=graph.library,
        extra=graph.extra,
    )


def _prune(graph: Graph, candidates: set[str]) -> Graph:
    """Without those candidates, and constants behind them, that nobody reads any more."""
    gone: set[str] = set()
    stack = [name for name in candidates if name in graph]
    count = {name: len(uses) for name, uses in graph.readers.items()}
    while stack:
        name = stack.pop()
        if name in gone or count.get(name, 0) or name in graph.ends:
            continue
        gone.add(name)
        node = graph[name]
        for source in (*(edge.node for edge in node.inputs), *node.controls):
            count[source] -= 1
            if source in candidates or graph[source].is_constant:
                stack.append(source)
    return graph.with_nodes(node for node in graph.nodes.values() if node.name not in gone) if gone else graph


def describe(found: Match, graph: Graph) -> str:
    """One line about a match: the head, and the nodes that go into it, in execution order."""
    inner = [graph[name] for name in found.inside if name != found.root.name]
    parts = " <- ".join(f"{node.name} ({node.op})" for node in sorted(inner, key=lambda node: node.name))
    return f"{found.root.name} ({found.root.op})" + (f" <- {parts}" if parts else "")
