"""Identities of arithmetic and logic that hold for every float32, rounding included, or up to one more rounding.

x * 1 == x / 1 == x - 0 == x            x + 0 == x, save for x = -0
(x * a) * b == x * (a * b)              up to rounding; (x + a) + b likewise, where a and b have one sign
--x == x                                (-x) * a == -(x * a) == x * (-a)
"""

from collections.abc import Sequence

import numpy as np

from quantkit.ir.graph import Edge, Node
from quantkit.ir.rewrite import Skip
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.transforms.cleanup._identities import Facts, Simplify, passing, setting

ADDITIONS = frozenset({"Add", "AddV2"})
# They never make -0.
UNSIGNED = frozenset({"Abs", "Square", "Exp", "Sigmoid", "Softmax", "Softplus"})
# f(f(x)) == f(x)
IDEMPOTENT = frozenset({"Abs", "Ceil", "Floor", "LogicalAnd", "Relu", "Relu6", "Rint", "Round", "Sign"})
# Farther from 1, a product of factors might be too large or too small for float32 where the steps are not.
FARTHEST = 1e15
# Of each type, those that hold all its numbers.
WIDER: dict[DType, frozenset[DType]] = {
    DType.BOOL: frozenset(
        {DType.UINT8, DType.INT8, DType.INT32, DType.INT64, DType.HALF, DType.BFLOAT16, DType.FLOAT, DType.DOUBLE}
    ),
    DType.UINT8: frozenset({DType.INT16, DType.INT32, DType.INT64, DType.HALF, DType.FLOAT, DType.DOUBLE}),
    DType.INT8: frozenset({DType.INT16, DType.INT32, DType.INT64, DType.HALF, DType.FLOAT, DType.DOUBLE}),
    DType.INT16: frozenset({DType.INT32, DType.INT64, DType.FLOAT, DType.DOUBLE}),
    DType.INT32: frozenset({DType.INT64, DType.DOUBLE}),
    DType.HALF: frozenset({DType.FLOAT, DType.DOUBLE}),
    DType.BFLOAT16: frozenset({DType.FLOAT, DType.DOUBLE}),
    DType.FLOAT: frozenset({DType.DOUBLE}),
}

GELU = "engines know a GELU by it: x * erfc(-x * a)"
Made = Sequence[Node] | Skip | None


def product(facts: Facts, node: Node) -> Made:
    """``x * 1``, ``x / 1``; factors one after another."""
    for slot in (1, 0) if node.op == "Mul" else (1,):
        factor, other = facts.value(node.inputs[slot]), node.inputs[1 - slot]
        if factor is None or factor.dtype.kind not in "fiu":
            continue
        if factor.size and (factor == 1).all() and facts.spreads_over(Shape(factor.shape), other):
            return passing(node, other)
        if node.op == "Mul" and factor.dtype == np.float32:
            return _joined_product(facts, node, other, factor)
    return None


def _joined_product(facts: Facts, node: Node, other: Edge, factor: Array) -> Made:
    negation = facts.maker(other, frozenset({"Neg"}))
    if negation is not None and not facts.is_shared(other, negation):
        if _is_of_gelu(facts, node):
            return Skip(GELU)
        return _times(facts, node, negation.inputs[0], -factor)
    inner = facts.maker(other, frozenset({"Mul"}))
    if inner is None or facts.is_shared(other, inner):
        return None
    for slot in (1, 0):
        first = facts.value(inner.inputs[slot])
        if first is None or first.dtype != np.float32:
            continue
        both = first.astype(np.float64) * factor
        sizes = np.abs(np.concatenate([np.ravel(first), np.ravel(factor), np.ravel(both)]))
        if not ((sizes < FARTHEST) & (sizes > 1 / FARTHEST)).all():
            return Skip(f"its factors and those of {inner.name} make numbers too large or small to be joined")
        if both.size > max(first.size, factor.size):
            return None
        return _times(facts, node, inner.inputs[1 - slot], both.astype(np.float32))
    return None


def _times(facts: Facts, node: Node, source: Edge, factor: Array) -> list[Node]:
    made = facts.constant(node, "factor", factor)
    return [made, node.with_(op="Mul", inputs=(source, Edge(made.name)))]


def _is_of_gelu(facts: Facts, node: Node) -> bool:
    return any(use.node.op == "Erfc" for use in facts.graph.node_uses.get(node.name, ()))


def negation(facts: Facts, node: Node) -> Made:
    """``--x``, and ``-(x * a)``."""
    inner = facts.maker(node.inputs[0], frozenset({"Neg", "Mul"}))
    if inner is None:
        return None
    if inner.op == "Neg":
        return passing(node, inner.inputs[0])
    if facts.is_shared(node.inputs[0], inner):
        return None
    if any(_is_of_gelu(facts, use.node) for use in facts.graph.node_uses.get(node.name, ()) if use.node.op == "Mul"):
        return Skip(GELU)
    for slot in (1, 0):
        factor = facts.value(inner.inputs[slot])
        if factor is not None and factor.dtype == np.float32:
            made = facts.constant(node, "factor", -factor)
            return [made, inner.with_(name=node.name, inputs=(inner.inputs[1 - slot], Edge(made.name)))]
    return None


def addition(facts: Facts, node: Node) -> Made:
    """``x + 0``, ``x - 0``; summands one after another."""
    for slot in (1, 0) if node.op in ADDITIONS else (1,):
        summand, other = facts.value(node.inputs[slot]), node.inputs[1 - slot]
        if summand is None or summand.dtype.kind not in "fiu":
            continue
        is_nothing = summand.size and not summand.any()
        if is_nothing and (node.op == "BiasAdd" or facts.spreads_over(Shape(summand.shape), other)):
            return passing(node, other) if _keeps_zeros(facts, node, summand, other) else _zero_skip(other)
        if node.op in ADDITIONS and summand.dtype == np.float32:
            return _joined_sum(facts, node, other, summand)
    return None


def _keeps_zeros(facts: Facts, node: Node, summand: Array, other: Edge) -> bool:
    """Whether -0 stays -0 (or never comes): only -0 can be added to it, and only 0 subtracted from it."""
    if not facts.has_signed_zeros or summand.dtype.kind != "f":
        return True
    signs = np.signbit(summand)
    keeps = not signs.any() if node.op == "Sub" else bool(signs.all())
    return keeps or facts.maker(other, UNSIGNED) is not None


def _zero_skip(other: Edge) -> Skip:
    return Skip(f"{other} may be -0, which becomes 0 here; signed_zeros=false takes them for equal")


def _joined_sum(facts: Facts, node: Node, other: Edge, summand: Array) -> Made:
    inner = facts.maker(other, ADDITIONS)
    if inner is None or facts.is_shared(other, inner):
        return None
    for slot in (1, 0):
        first = facts.value(inner.inputs[slot])
        if first is None or first.dtype != np.float32:
            continue
        both = first.astype(np.float64) + summand
        have_one_sign = ((first >= 0).all() and (summand >= 0).all()) or ((first <= 0).all() and (summand <= 0).all())
        if not have_one_sign or not np.isfinite(both.astype(np.float32)).all():
            return Skip(f"its summands and those of {inner.name} may cancel out: joined, they would round otherwise")
        if both.size > max(first.size, summand.size):
            return None
        made = facts.constant(node, "summand", both.astype(np.float32))
        return [made, node.with_(inputs=(inner.inputs[1 - slot], Edge(made.name)))]
    return None


def power(facts: Facts, node: Node) -> Made:
    """``x ** 1``."""
    exponent = facts.value(node.inputs[1])
    is_one = exponent is not None and exponent.size and (exponent == 1).all()
    is_kept = exponent is not None and facts.spreads_over(Shape(exponent.shape), node.inputs[0])
    return passing(node, node.inputs[0]) if is_one and is_kept else None


def cast(facts: Facts, node: Node) -> Made:
    """A cast to the type that it has, and one after another that loses nothing."""
    from_, to = setting(node, "SrcT"), setting(node, "DstT")
    if from_ is to:
        return passing(node, node.inputs[0])
    inner = facts.maker(node.inputs[0], frozenset({"Cast"}))
    if inner is None:
        return None
    first = setting(inner, "SrcT")
    if not isinstance(first, DType) or setting(inner, "DstT") not in WIDER.get(first, ()):
        return None
    if first is to:
        return passing(node, inner.inputs[0])
    # Where numbers do not fit an integer, each type has its own answer.
    if not (isinstance(to, DType) and (to.is_float or to in WIDER[first])):
        return None
    return [node.with_(inputs=inner.inputs).with_attrs(SrcT=first)]


def idempotent(facts: Facts, node: Node) -> Made:
    """A function of what it gave already; two limits that are one."""
    inner = facts.maker(node.inputs[0], frozenset({node.op, "Relu", "Relu6"}))
    if inner is None:
        return None
    if inner.op == node.op or (node.op, inner.op) == ("Relu", "Relu6"):
        return passing(node, node.inputs[0])
    return [node.with_(inputs=inner.inputs)] if (node.op, inner.op) == ("Relu6", "Relu") else None


def logical(facts: Facts, node: Node) -> Made:
    """``x and true``, ``x or false``; ``x and false`` where the shape is known."""
    absorbing = node.op == "LogicalOr"
    if facts.behind(node.inputs[0]) == facts.behind(node.inputs[1]):
        return passing(node, node.inputs[0])
    for slot in (1, 0):
        value, other = facts.value(node.inputs[slot]), node.inputs[1 - slot]
        if value is None or not value.size or not facts.spreads_over(Shape(value.shape), other):
            continue
        if (value != absorbing).all():
            return passing(node, other)
        shape = facts.shape(other)
        if (value == absorbing).all() and shape.is_known:
            made = facts.constant(node, "value", np.full(shape.sizes, absorbing))
            return [made, *passing(node, Edge(made.name))]
    return None


def negated_logic(facts: Facts, node: Node) -> Made:
    """``not not x``."""
    inner = facts.maker(node.inputs[0], frozenset({"LogicalNot"}))
    return None if inner is None else passing(node, inner.inputs[0])


def selection(facts: Facts, node: Node) -> Made:
    """A choice that is always the same."""
    condition = facts.value(node.inputs[0])
    if condition is None or not condition.size or not (condition.all() or not condition.any()):
        return None
    chosen, other = node.inputs[1:] if condition.all() else node.inputs[:0:-1]
    is_kept = node.op == "Select" or (
        facts.spreads_over(Shape(condition.shape), chosen) and facts.spreads_over(facts.shape(other), chosen)
    )
    return passing(node, chosen) if is_kept else Skip(f"{other} may be larger than {chosen}, which it always chooses")


def same_twice(facts: Facts, node: Node) -> Made:
    """The larger of two that are one."""
    is_same = facts.behind(node.inputs[0]) == facts.behind(node.inputs[1])
    return passing(node, node.inputs[0]) if is_same else None


RULES: tuple[tuple[str, Simplify], ...] = (
    ("Mul|Div|RealDiv", product),
    ("Add|AddV2|Sub|BiasAdd", addition),
    ("Neg", negation),
    ("Pow", power),
    ("Cast", cast),
    ("|".join(sorted(IDEMPOTENT - {"LogicalAnd"})), idempotent),
    ("LogicalAnd|LogicalOr", logical),
    ("LogicalNot", negated_logic),
    ("Select|SelectV2", selection),
    ("Maximum|Minimum", same_twice),
)
