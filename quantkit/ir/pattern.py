"""Patterns: what a piece of a graph looks like, written like the expression it computes.

    op("Mul")(op("Conv2D|MatMul", "layer")(any_("x"), const("weights")), const("scale"))

matches ``(x * weights) * scale`` and binds `layer`, `x`, `weights`, `scale` and `root` (the Mul) to nodes.
Inputs are matched in order; control inputs do not count. A pattern whose inputs are given matches only a
node with exactly that many. Only port 0 of a matched node is followed, save for `any_`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quantkit.ir.graph import Edge, Graph, Node


@dataclass(frozen=True)
class Pattern:
    """What a node must be.

    Attributes:
        ops: allowed op types; empty: any.
        name: what the node is bound to, or nothing.
        inputs: patterns of its inputs; None: do not look.
        is_constant: it must be a constant with a value.
        either_order: the two inputs may come in any order.
    """

    ops: frozenset[str] = frozenset()
    name: str = ""
    inputs: "tuple[Pattern, ...] | None" = None
    is_constant: bool = False
    either_order: bool = False

    def __call__(self, *inputs: "Pattern") -> "Pattern":
        return Pattern(self.ops, self.name, inputs, self.is_constant, self.either_order)

    @property
    def matches_all(self) -> bool:
        return not self.ops and self.inputs is None and not self.is_constant


def op(ops: str, name: str = "") -> Pattern:
    """A node of one of the types in ``ops``, separated by ``|``."""
    return Pattern(frozenset(ops.split("|")), name)


def swapped(ops: str, name: str = "") -> Pattern:
    """Like `op`, for a commutative op of two inputs: both orders match."""
    return Pattern(frozenset(ops.split("|")), name, either_order=True)


def any_(name: str = "") -> Pattern:
    """Whatever puts a tensor there."""
    return Pattern(name=name)


def const(name: str = "") -> Pattern:
    """A constant."""
    return Pattern(name=name, is_constant=True)


@dataclass(frozen=True)
class Match:
    """Where a pattern was found.

    Attributes:
        root: the node the pattern's head matched.
        names: nodes by the names the pattern binds.
        inside: names of the matched nodes that the rewrite may replace (all but `any_` and constants).
    """

    root: Node
    names: Mapping[str, Node]
    inside: frozenset[str] = field(default=frozenset())


def match(pattern: Pattern, graph: Graph, root: Node) -> Match | None:
    """The match of ``pattern`` whose head is ``root``, or None."""
    names: dict[str, Node] = {}
    inside: set[str] = set()
    if _bind(pattern, graph, root, names, inside):
        return Match(root, {**names, "root": root}, frozenset(inside))
    return None


def _bind(pattern: Pattern, graph: Graph, node: Node, names: dict[str, Node], inside: set[str]) -> bool:
    if pattern.ops and node.op not in pattern.ops:
        return False
    if pattern.is_constant and "value" not in node.attrs:
        return False
    if pattern.is_constant and not node.is_constant:
        return False
    if pattern.name:
        if names.get(pattern.name, node) is not node:
            return False
        names[pattern.name] = node
    if not pattern.matches_all and not pattern.is_constant:
        inside.add(node.name)
    if pattern.inputs is None:
        return True
    if len(node.inputs) != len(pattern.inputs):
        return False
    orders = [node.inputs, node.inputs[::-1]] if pattern.either_order else [node.inputs]
    for edges in orders:
        trial: tuple[dict[str, Any], set[str]] = (dict(names), set(inside))
        if all(_bind_edge(part, graph, edge, *trial) for part, edge in zip(pattern.inputs, edges, strict=True)):
            names.update(trial[0])
            inside.update(trial[1])
            return True
    return False


def _bind_edge(pattern: Pattern, graph: Graph, edge: Edge, names: dict[str, Node], inside: set[str]) -> bool:
    source = graph.nodes.get(edge.node)
    if source is None or (edge.port and not pattern.matches_all):
        return False
    return _bind(pattern, graph, source, names, inside)
