"""The original's order of execution, its matching engine, and its renaming of inputs.

A pattern is ops and patterns of their inputs. Matches are looked for in order of execution and compete: a node that one
match has taken, at its head or anywhere inside, takes part in no later one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quantkit.compat.transforms.nodes import NodeDef, by_name, canonical, node_of, split
from quantkit.errors import GraphError
from quantkit.ir.graph import LOOP_MERGES

ANY_OP = "*"


@dataclass(frozen=True)
class Pattern:
    """What a node and the nodes behind it must be.

    Attributes:
        ops: op types, with ``|`` between them, or ``*`` for any.
        inputs: patterns of all data inputs, in order; none: the inputs do not matter.
    """

    ops: str
    inputs: tuple["Pattern", ...] = ()

    def admits(self, op: str) -> bool:
        return self.ops == ANY_OP or op in self.ops.split("|")


def pattern(ops: str, *inputs: Pattern) -> Pattern:
    """Ops, and the patterns of what they read."""
    return Pattern(ops, inputs)


ANY = Pattern(ANY_OP)
CONST = Pattern("Const")


@dataclass(frozen=True)
class Match:
    """A node that fits a pattern, and what fits the patterns of its inputs."""

    node: NodeDef
    inputs: tuple["Match", ...] = ()

    @property
    def nodes(self) -> list[NodeDef]:
        """The matched nodes, breadth first from the head, each once."""
        found: dict[str, NodeDef] = {}
        level: list[Match] = [self]
        while level:
            for match in level:
                found.setdefault(match.node.name, match.node)
            level = [inner for match in level for inner in match.inputs]
        return list(found.values())


# From a match and the names in it that are read outside of it, the nodes that replace all of it.
Maker = Callable[[Match, frozenset[str]], list[NodeDef]]


def replace_matches(
    nodes: Sequence[NodeDef], wanted: Pattern, make: Maker, *, allow_inconsistencies: bool = False
) -> list[NodeDef]:
    """The nodes with every match of a pattern replaced.

    Args:
        nodes: in file order.
        wanted: the pattern.
        make: what replaces a match; it stands where the head of the match stood.
        allow_inconsistencies: replace even where a name that is read outside of the match is gone afterwards.
            Otherwise the match stays, its nodes gathered at its head.
    """
    matches = find_matches(nodes, wanted)
    by_head = {match.node.name: match for match in matches}
    taken = {node.name for match in matches for node in match.nodes}
    readers = readers_of(nodes) if matches else {}
    result: list[NodeDef] = []
    for node in nodes:
        if node.name in by_head:
            match = by_head[node.name]
            outside = _read_outside(match, readers)
            made = make(match, outside)
            is_complete = allow_inconsistencies or outside <= {one.name for one in made}
            result.extend(made if is_complete else match.nodes)
        elif node.name not in taken:
            result.append(node)
    return result


def find_matches(nodes: Sequence[NodeDef], wanted: Pattern) -> list[Match]:
    """The matches of a pattern, none of which shares a node with another, in order of execution."""
    try:
        ordered, _ = _run_order(nodes)
    except GraphError:
        return []
    named = by_name(ordered)
    taken: set[str] = set()
    found: list[Match] = []
    for node in ordered:
        match = _match(node, wanted, taken, named)
        if match:
            taken.update(one.name for one in match.nodes)
            found.append(match)
    return found


def _match(node: NodeDef, wanted: Pattern, taken: set[str], named: Mapping[str, NodeDef]) -> Match | None:
    if node.name in taken or not wanted.admits(node.op):
        return None
    if not wanted.inputs:
        return Match(node)
    sources = node.data_inputs
    if len(sources) != len(wanted.inputs):
        return None
    inputs: list[Match] = []
    for text, inner in zip(sources, wanted.inputs, strict=True):
        source = named.get(node_of(text))
        if source is None:
            raise GraphError(
                f"the original crashes here: {node.name} reads {text}, which is part of a cycle",
                hint="without --classic this is no problem",
            )
        match = _match(source, inner, taken, named)
        if match is None:
            return None
        inputs.append(match)
    return Match(node, tuple(inputs))


def readers_of(nodes: Iterable[NodeDef]) -> dict[str, list[str]]:
    """Names of the nodes that read a node or wait for it, one for each input, by its name."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for text in node.inputs:
            found.setdefault(node_of(text), []).append(node.name)
    return found


def _read_outside(match: Match, readers: Mapping[str, Sequence[str]]) -> frozenset[str]:
    names = {node.name for node in match.nodes}
    return frozenset(name for name in names if not names.issuperset(readers.get(name, ())))


def run_order(nodes: Sequence[NodeDef]) -> list[NodeDef]:
    """The nodes in order of execution: Kahn's algorithm with a stack.

    Raises:
        GraphError: an input names no node, or some nodes wait for each other.
    """
    ordered, stuck = _run_order(nodes)
    if stuck:
        raise GraphError(f"{stuck} nodes in a cycle")
    return ordered


def _run_order(nodes: Sequence[NodeDef]) -> tuple[list[NodeDef], int]:
    """The nodes that can run, in order, and how many can not."""
    index = {node.name: number for number, node in enumerate(nodes)}
    readers: list[list[int]] = [[] for _ in nodes]
    waiting: list[int] = []
    ready: list[int] = []
    for number, node in enumerate(nodes):
        if node.op in LOOP_MERGES:
            waiting.append(1 + sum(text.startswith("^") for text in node.inputs))
        else:
            waiting.append(len(node.inputs))
        if not node.inputs:
            ready.append(number)
        for text in node.inputs:
            source = index.get(node_of(text))
            if source is None:
                raise GraphError(f"Node '{node.name}': Unknown input node '{text}'")
            readers[source].append(number)
    ordered: list[NodeDef] = []
    while ready:
        number = ready.pop()
        ordered.append(nodes[number])
        for reader in readers[number]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    return ordered, len(nodes) - len(ordered)


def rename_inputs(
    nodes: Iterable[NodeDef], names: Mapping[str, str], *, ignored: frozenset[str] = frozenset()
) -> list[NodeDef]:
    """The nodes with inputs renamed, chains of names followed to their end.

    Args:
        nodes: in file order.
        names: from what to what. ``a:*`` means every port of ``a``, and control inputs, and keeps them; ``a`` and
            ``a:0`` mean its first port and no control input.
        ignored: nodes that keep their inputs.

    Raises:
        GraphError: names lead back to themselves.
    """
    by_node: dict[str, list[tuple[str, str]]] = {}
    for source in sorted(names):
        by_node.setdefault(node_of(source), []).append((source, names[source]))
    result = []
    for node in nodes:
        if node.name not in ignored and any(node_of(text) in by_node for text in node.inputs):
            node = node.with_(inputs=tuple(_renamed(text, by_node) for text in node.inputs))
        result.append(node)
    return result


def _renamed(text: str, by_node: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    visited: set[str] = set()
    while (name := node_of(text)) in by_node:
        if name in visited:
            raise GraphError(f"RenameNodeInputs argument contains a cycle for {name}")
        visited.add(name)
        before = text
        is_found = False
        for source, target in by_node[name]:
            if source.endswith(":*"):
                parts = split(text)
                text, is_found = f"{parts.prefix}{target}{parts.suffix}", True
            elif canonical(source) == canonical(text):
                text, is_found = target, True
        if not is_found:
            return before
    return text
