"""Patterns: what a piece of a graph looks like, written like the expression it computes.

    op("Mul")(op("Conv2D|MatMul", "layer")(any_("x"), const("weights")), const("scale"))

matches ``(x * weights) * scale`` and binds `layer`, `x`, `weights`, `scale` and `root` (the Mul) to nodes.
Inputs are matched in order; control inputs do not count. A pattern whose inputs are given matches only a
node with exactly that many. Only port 0 of a matched node is followed, save for `any_`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
    """A constant that is not fed."""
    return Pattern(name=name, is_constant=True)


@dataclass(frozen=True)
class Match:
    """Where a pattern was found.

    Attributes:
        root: the node the pattern's head matched.
        names: nodes by the names the pattern binds, and the root as ``root``.
    """

    root: Node
    names: Mapping[str, Node]


def match(pattern: Pattern, graph: Graph, root: Node) -> Match | None:
    """The match of ``pattern`` whose head is ``root``, or None."""
    names = _bound(pattern, graph, root, {})
    return None if names is None else Match(root, {**names, "root": root})


Names = dict[str, Node]


def _bound(pattern: Pattern, graph: Graph, node: Node, names: Names) -> Names | None:
    """The names with those that the pattern binds at a node; None: it does not match."""
    if pattern.ops and node.op not in pattern.ops:
        return None
    if pattern.is_constant and not (node.is_constant and "value" in node.attrs and node.name not in graph.input_names):
        return None
    if pattern.name:
        if names.get(pattern.name, node) is not node:
            return None
        names = {**names, pattern.name: node}
    if pattern.inputs is None:
        return names
    if len(node.inputs) != len(pattern.inputs):
        return None
    for edges in (node.inputs, node.inputs[::-1]) if pattern.either_order else (node.inputs,):
        found = _bound_inputs(pattern.inputs, graph, edges, names)
        if found is not None:
            return found
    return None


def _bound_inputs(patterns: tuple[Pattern, ...], graph: Graph, edges: tuple[Edge, ...], names: Names) -> Names | None:
    found: Names | None = names
    for part, edge in zip(patterns, edges, strict=True):
        source = graph.nodes.get(edge.node)
        if found is None or source is None or (edge.port and not part.matches_all):
            return None
        found = _bound(part, graph, source, found)
    return found
