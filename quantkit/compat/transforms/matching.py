"""Execution order, pattern matching and input renaming of the original tool.

A pattern consists of op types and the patterns of the inputs. Matches are searched in execution
order and do not overlap: a node of one match, root or inner, is not part of a later match.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quantkit.compat.transforms.nodes import NodeDef, by_name, canonical, node_of, split
from quantkit.errors import GraphError
from quantkit.ir.graph import LOOP_MERGES

ANY_OP = "*"


@dataclass(frozen=True)
class ClassicPattern:
    """Conditions on a node and its upstream nodes.

    Attributes:
        ops: op types separated by ``|``, or ``*`` for any op type.
        inputs: patterns of all data inputs, in order; empty if any inputs match.
    """

    ops: str
    inputs: tuple["ClassicPattern", ...] = ()

    def admits(self, op: str) -> bool:
        return self.ops == ANY_OP or op in self.ops.split("|")


def pattern(ops: str, *inputs: ClassicPattern) -> ClassicPattern:
    """Return the pattern of op types and of the inputs."""
    return ClassicPattern(ops, inputs)


ANY = ClassicPattern(ANY_OP)
CONST = ClassicPattern("Const")


@dataclass(frozen=True)
class ClassicMatch:
    """Node that matches a pattern, and the matches of its inputs."""

    node: NodeDef
    inputs: tuple["ClassicMatch", ...] = ()

    @property
    def nodes(self) -> list[NodeDef]:
        """Distinct matched nodes, breadth first from the root."""
        nodes: dict[str, NodeDef] = {}
        level: list[ClassicMatch] = [self]
        while level:
            for match in level:
                nodes.setdefault(match.node.name, match.node)
            level = [inner for match in level for inner in match.inputs]
        return list(nodes.values())


# Returns the nodes that replace a match. The names are those of matched nodes that have consumers
# outside the match.
Replace = Callable[[ClassicMatch, frozenset[str]], list[NodeDef]]


def replace_matches(
    nodes: Sequence[NodeDef],
    pattern: ClassicPattern,
    replace: Replace,
    *,
    allow_inconsistencies: bool = False,
) -> list[NodeDef]:
    """Replace every match of a pattern.

    Args:
        nodes: nodes in file order.
        pattern: pattern of the matches.
        replace: function that returns the new nodes, which take the position of the root.
        allow_inconsistencies: replace a match even if the new nodes lack a name that has consumers
            outside the match. By default such a match stays, with its nodes at the position of the
            root.
    """
    matches = find_matches(nodes, pattern)
    by_root = {match.node.name: match for match in matches}
    matched_names = {node.name for match in matches for node in match.nodes}
    consumers = consumers_of(nodes) if matches else {}
    result: list[NodeDef] = []
    for node in nodes:
        if node.name in by_root:
            match = by_root[node.name]
            outside = _names_with_outside_consumers(match, consumers)
            new_nodes = replace(match, outside)
            is_complete = allow_inconsistencies or outside <= {new.name for new in new_nodes}
            result.extend(new_nodes if is_complete else match.nodes)
        elif node.name not in matched_names:
            result.append(node)
    return result


def find_matches(nodes: Sequence[NodeDef], pattern: ClassicPattern) -> list[ClassicMatch]:
    """Return the matches of a pattern in execution order, without overlap."""
    try:
        ordered, _ = _partial_execution_order(nodes)
    except GraphError:
        return []
    nodes_by_name = by_name(ordered)
    matched_names: set[str] = set()
    matches: list[ClassicMatch] = []
    for node in ordered:
        match = _match(node, pattern, matched_names, nodes_by_name)
        if match:
            matched_names.update(inner.name for inner in match.nodes)
            matches.append(match)
    return matches


def _match(
    node: NodeDef,
    pattern: ClassicPattern,
    matched_names: set[str],
    nodes_by_name: Mapping[str, NodeDef],
) -> ClassicMatch | None:
    if node.name in matched_names or not pattern.admits(node.op):
        return None
    if not pattern.inputs:
        return ClassicMatch(node)
    sources = node.data_inputs
    if len(sources) != len(pattern.inputs):
        return None
    inputs: list[ClassicMatch] = []
    for text, inner in zip(sources, pattern.inputs, strict=True):
        source = nodes_by_name.get(node_of(text))
        if source is None:
            raise GraphError(
                f"the original crashes here: input {text} of {node.name} is part of a cycle",
                hint="run without --classic, which supports cycles",
            )
        match = _match(source, inner, matched_names, nodes_by_name)
        if match is None:
            return None
        inputs.append(match)
    return ClassicMatch(node, tuple(inputs))


def consumers_of(nodes: Iterable[NodeDef]) -> dict[str, list[str]]:
    """Return the names of consumers and control dependents by node name, once for each input."""
    consumers: dict[str, list[str]] = {}
    for node in nodes:
        for text in node.inputs:
            consumers.setdefault(node_of(text), []).append(node.name)
    return consumers


def _names_with_outside_consumers(match: ClassicMatch, consumers: Mapping[str, Sequence[str]]) -> frozenset[str]:
    names = {node.name for node in match.nodes}
    return frozenset(name for name in names if not names.issuperset(consumers.get(name, ())))


def execution_order(nodes: Sequence[NodeDef]) -> list[NodeDef]:
    """Return the nodes in execution order: Kahn's algorithm with a stack.

    Raises:
        GraphError: an input references a missing node, or the graph has a cycle.
    """
    ordered, num_in_cycles = _partial_execution_order(nodes)
    if num_in_cycles:
        raise GraphError(f"{num_in_cycles} nodes in a cycle")
    return ordered


def _partial_execution_order(nodes: Sequence[NodeDef]) -> tuple[list[NodeDef], int]:
    """Return the executable nodes in order, and the number of the other nodes."""
    index = {node.name: number for number, node in enumerate(nodes)}
    consumers: list[list[int]] = [[] for _ in nodes]
    num_pending: list[int] = []
    stack: list[int] = []
    for number, node in enumerate(nodes):
        if node.op in LOOP_MERGES:
            num_pending.append(1 + sum(text.startswith("^") for text in node.inputs))
        else:
            num_pending.append(len(node.inputs))
        if not node.inputs:
            stack.append(number)
        for text in node.inputs:
            source = index.get(node_of(text))
            if source is None:
                raise GraphError(f"Node '{node.name}': Unknown input node '{text}'")
            consumers[source].append(number)
    ordered: list[NodeDef] = []
    while stack:
        number = stack.pop()
        ordered.append(nodes[number])
        for consumer in consumers[number]:
            num_pending[consumer] -= 1
            if num_pending[consumer] == 0:
                stack.append(consumer)
    return ordered, len(nodes) - len(ordered)


def rename_inputs(
    nodes: Iterable[NodeDef], names: Mapping[str, str], *, ignored: frozenset[str] = frozenset()
) -> list[NodeDef]:
    """Rename the inputs of nodes; chains of new names are followed to the end.

    Args:
        nodes: nodes in file order.
        names: new input text by old input text. ``a:*`` matches every port of ``a`` and control
            inputs, and keeps both; ``a`` and ``a:0`` match port 0 and no control input.
        ignored: names of nodes whose inputs stay unchanged.

    Raises:
        GraphError: the new names form a cycle.
    """
    by_node: dict[str, list[tuple[str, str]]] = {}
    for source in sorted(names):
        by_node.setdefault(node_of(source), []).append((source, names[source]))
    result = []
    for node in nodes:
        if node.name not in ignored and any(node_of(text) in by_node for text in node.inputs):
            node = node.with_(inputs=tuple(_rename_input(text, by_node) for text in node.inputs))
        result.append(node)
    return result


def _rename_input(text: str, by_node: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    visited: set[str] = set()
    while (name := node_of(text)) in by_node:
        if name in visited:
            raise GraphError(f"RenameNodeInputs argument contains a cycle for {name}")
        visited.add(name)
        before = text
        is_renamed = False
        for source, target in by_node[name]:
            if source.endswith(":*"):
                parts = split(text)
                text, is_renamed = f"{parts.prefix}{target}{parts.suffix}", True
            elif canonical(source) == canonical(text):
                text, is_renamed = target, True
        if not is_renamed:
            return before
    return text
