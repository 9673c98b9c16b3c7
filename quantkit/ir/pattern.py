"""Patterns of subgraphs, written like the expression that the subgraph computes.

    op("Mul")(op("Conv2D|MatMul", "layer")(any_("x"), const("weights")), const("scale"))

matches ``(x * weights) * scale`` and binds `layer`, `x`, `weights`, `scale` and `root` (the Mul) to nodes.
Inputs are matched in order; control dependencies are ignored. A pattern with inputs matches only a node with
exactly that number of inputs. Only output 0 of a matched node matches, except for `any_`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quantkit.arguments import public
from quantkit.ir.graph import Edge, Graph, Node


@dataclass(frozen=True)
class Pattern:
    """Condition on a node and its inputs.

    Attributes:
        ops: allowed op types; empty for any.
        name: name that the node is bound to; empty if it is not bound.
        inputs: patterns of the inputs; None for any inputs.
        is_constant: the node must be a constant with a value.
        either_order: the two inputs may be in any order.
    """

    ops: frozenset[str] = frozenset()
    name: str = ""
    inputs: "tuple[Pattern, ...] | None" = None
    is_constant: bool = False
    either_order: bool = False

    def __call__(self, *inputs: "Pattern") -> "Pattern":
        return Pattern(self.ops, self.name, inputs, self.is_constant, self.either_order)

    def __str__(self) -> str:
        """Return the pattern as an expression of op types: ``Mul(Conv2D|MatMul(any, const), const)``."""
        text = "|".join(sorted(self.ops)) or ("const" if self.is_constant else "any")
        return text if self.inputs is None else f"{text}({', '.join(map(str, self.inputs))})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names that the pattern binds, without ``root``."""
        inner = (name for pattern in self.inputs or () for name in pattern.names)
        return tuple(dict.fromkeys((*([self.name] if self.name else []), *inner)))

    @property
    def matches_all(self) -> bool:
        return not self.ops and self.inputs is None and not self.is_constant


@public
def op(ops: str, name: str = "") -> Pattern:
    """Match a node of one of the op types in ``ops``, separated by ``|``."""
    return Pattern(frozenset(ops.split("|")), name)


@public
def commutative(ops: str, name: str = "") -> Pattern:
    """Match a commutative op of two inputs like `op`, with the inputs in any order."""
    return Pattern(frozenset(ops.split("|")), name, either_order=True)


@public
def any_(name: str = "") -> Pattern:
    """Match any producer."""
    return Pattern(name=name)


@public
def const(name: str = "") -> Pattern:
    """Match a constant that is not a graph input."""
    return Pattern(name=name, is_constant=True)


@dataclass(frozen=True)
class Match:
    """Match of a pattern.

    Attributes:
        root: node that the outermost pattern matched.
        names: nodes by the names that the pattern binds, and the root as ``root``.
    """

    root: Node
    names: Mapping[str, Node]


def match(pattern: Pattern, graph: Graph, root: Node) -> Match | None:
    """Return the match of ``pattern`` at ``root``, or None."""
    names = _bind(pattern, graph, root, {})
    return None if names is None else Match(root, {**names, "root": root})


Names = dict[str, Node]


def _bind(pattern: Pattern, graph: Graph, node: Node, names: Names) -> Names | None:
    """Return ``names`` with the nodes that the pattern binds at ``node``; None if the pattern does not match."""
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
        bound = _bind_inputs(pattern.inputs, graph, edges, names)
        if bound is not None:
            return bound
    return None


def _bind_inputs(patterns: tuple[Pattern, ...], graph: Graph, edges: tuple[Edge, ...], names: Names) -> Names | None:
    bound: Names | None = names
    for pattern, edge in zip(patterns, edges, strict=True):
        producer = graph.nodes.get(edge.node)
        if bound is None or producer is None or (edge.port and not pattern.matches_all):
            return None
        bound = _bind(pattern, graph, producer, bound)
    return bound
