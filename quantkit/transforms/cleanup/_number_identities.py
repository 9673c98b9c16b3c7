"""Identities of arithmetic and logic, bit-exact in float32 or with one rounding less.

x * 1 == x / 1 == x - 0 == x            x + 0 == x, except for x = -0
(x * a) * b == x * (a * b)              up to rounding; (x + a) + b too if a and b have the same sign
--x == x                                (-x) * a == -(x * a) == x * (-a)
"""

import numpy as np

from quantkit.ir.graph import Edge, Node
from quantkit.ir.rewrite import Skip
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.semantics import ADD_OPS
from quantkit.ops.table import Fact, find_ops
from quantkit.transforms.cleanup._identities import Facts, Rewritten, Simplify, attribute_or_default, pass_through

# Ops that never return -0.
UNSIGNED = frozenset({"Abs", "Square", "Exp", "Sigmoid", "Softmax", "Softplus"})
# f(f(x)) == f(x)
IDEMPOTENT = find_ops(Fact.IDEMPOTENT, "tensorflow")
# Factors outside [1 / MAX_FACTOR, MAX_FACTOR] are not multiplied: the product could leave the range of float32.
MAX_FACTOR = 1e15
# Types that represent every value of a type exactly.
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

GELU = "part of x * erfc(-x * a), which runtimes fuse as GELU"


def simplify_product(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``x * 1`` and ``x / 1``, and merge constant factors."""
    for index in (1, 0) if node.op == "Mul" else (1,):
        factor, other = facts.value(node.inputs[index]), node.inputs[1 - index]
        if factor is None or factor.dtype.kind not in "fiu":
            continue
        if factor.size and (factor == 1).all() and facts.broadcasts_to(Shape(factor.shape), other):
            return pass_through(node, other)
        if node.op == "Mul" and factor.dtype == np.float32:
            return _merge_factors(facts, node, other, factor)
    return None


def _merge_factors(facts: Facts, node: Node, other: Edge, factor: Array) -> Rewritten:
    negation = facts.producer(other, frozenset({"Neg"}))
    if negation is not None and not facts.is_shared(other, negation):
        if _is_of_gelu(facts, node):
            return Skip(GELU)
        return _multiply(facts, node, negation.inputs[0], -factor)
    inner = facts.producer(other, frozenset({"Mul"}))
    if inner is None or facts.is_shared(other, inner):
        return None
    for index in (1, 0):
        first = facts.value(inner.inputs[index])
        if first is None or first.dtype != np.float32:
            continue
        product = first.astype(np.float64) * factor
        magnitudes = np.abs(np.concatenate([np.ravel(first), np.ravel(factor), np.ravel(product)]))
        if not ((magnitudes < MAX_FACTOR) & (magnitudes > 1 / MAX_FACTOR)).all():
            return Skip(f"the product of the factors of this node and {inner.name} may leave the range of float32")
        if product.size > max(first.size, factor.size):
            return None
        return _multiply(facts, node, inner.inputs[1 - index], product.astype(np.float32))
    return None


def _multiply(facts: Facts, node: Node, source: Edge, values: Array) -> list[Node]:
    factor = facts.constant(node, "factor", values)
    return [factor, node.with_(op="Mul", inputs=(source, Edge(factor.name)))]


def _is_of_gelu(facts: Facts, node: Node) -> bool:
    return any(use.node.op == "Erfc" for use in facts.graph.node_uses.get(node.name, ()))


def simplify_negation(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``--x`` and ``-(x * a)``."""
    inner = facts.producer(node.inputs[0], frozenset({"Neg", "Mul"}))
    if inner is None:
        return None
    if inner.op == "Neg":
        return pass_through(node, inner.inputs[0])
    if facts.is_shared(node.inputs[0], inner):
        return None
    if any(_is_of_gelu(facts, use.node) for use in facts.graph.node_uses.get(node.name, ()) if use.node.op == "Mul"):
        return Skip(GELU)
    for index in (1, 0):
        values = facts.value(inner.inputs[index])
        if values is not None and values.dtype == np.float32:
            factor = facts.constant(node, "factor", -values)
            return [factor, inner.with_(name=node.name, inputs=(inner.inputs[1 - index], Edge(factor.name)))]
    return None


def simplify_sum(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``x + 0`` and ``x - 0``, and merge constant summands."""
    for index in (1, 0) if node.op in ADD_OPS else (1,):
        summand, other = facts.value(node.inputs[index]), node.inputs[1 - index]
        if summand is None or summand.dtype.kind not in "fiu":
            continue
        is_zero = summand.size and not summand.any()
        if is_zero and (node.op == "BiasAdd" or facts.broadcasts_to(Shape(summand.shape), other)):
            return pass_through(node, other) if _preserves_zeros(facts, node, summand, other) else _zero_skip(other)
        if node.op in ADD_OPS and summand.dtype == np.float32:
            return _merge_summands(facts, node, other, summand)
    return None


def _preserves_zeros(facts: Facts, node: Node, summand: Array, other: Edge) -> bool:
    """Return True if -0 stays -0: -0 is added, 0 is subtracted, or the operand is never -0."""
    if not facts.has_signed_zeros or summand.dtype.kind != "f":
        return True
    signs = np.signbit(summand)
    preserves = not signs.any() if node.op == "Sub" else bool(signs.all())
    return preserves or facts.producer(other, UNSIGNED) is not None


def _zero_skip(other: Edge) -> Skip:
    return Skip(f"{other} may be -0, which becomes 0 here; use signed_zeros=false if -0 and 0 are equivalent")


def _merge_summands(facts: Facts, node: Node, other: Edge, summand: Array) -> Rewritten:
    inner = facts.producer(other, ADD_OPS)
    if inner is None or facts.is_shared(other, inner):
        return None
    for index in (1, 0):
        first = facts.value(inner.inputs[index])
        if first is None or first.dtype != np.float32:
            continue
        total = first.astype(np.float64) + summand
        have_one_sign = ((first >= 0).all() and (summand >= 0).all()) or ((first <= 0).all() and (summand <= 0).all())
        if not have_one_sign or not np.isfinite(total.astype(np.float32)).all():
            return Skip(f"the summands of this node and {inner.name} may cancel, which changes rounding")
        if total.size > max(first.size, summand.size):
            return None
        merged = facts.constant(node, "summand", total.astype(np.float32))
        return [merged, node.with_(inputs=(inner.inputs[1 - index], Edge(merged.name)))]
    return None


def simplify_power(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``x ** 1``."""
    exponent = facts.value(node.inputs[1])
    is_one = exponent is not None and exponent.size and (exponent == 1).all()
    has_same_shape = exponent is not None and facts.broadcasts_to(Shape(exponent.shape), node.inputs[0])
    return pass_through(node, node.inputs[0]) if is_one and has_same_shape else None


def simplify_cast(facts: Facts, node: Node) -> Rewritten:
    """Remove a cast to the same type, and merge a cast with a lossless one before it."""
    from_, to = attribute_or_default(node, "SrcT"), attribute_or_default(node, "DstT")
    if from_ is to:
        return pass_through(node, node.inputs[0])
    inner = facts.producer(node.inputs[0], frozenset({"Cast"}))
    if inner is None:
        return None
    first = attribute_or_default(inner, "SrcT")
    if not isinstance(first, DType) or attribute_or_default(inner, "DstT") not in WIDER.get(first, ()):
        return None
    if first is to:
        return pass_through(node, inner.inputs[0])
    # The result of an overflowing cast to an integer type depends on the source type.
    if not (isinstance(to, DType) and (to.is_float or to in WIDER[first])):
        return None
    return [node.with_(inputs=inner.inputs).with_attrs(SrcT=first)]


def simplify_idempotent(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``f(f(x))`` of an idempotent f, and Relu with Relu6."""
    inner = facts.producer(node.inputs[0], frozenset({node.op, "Relu", "Relu6"}))
    if inner is None:
        return None
    if inner.op == node.op or (node.op, inner.op) == ("Relu", "Relu6"):
        return pass_through(node, node.inputs[0])
    return [node.with_(inputs=inner.inputs)] if (node.op, inner.op) == ("Relu6", "Relu") else None


def simplify_logic(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``x and true``, ``x or false``, and ``x and false`` of known shape."""
    absorbing = node.op == "LogicalOr"
    if facts.skip_identities(node.inputs[0]) == facts.skip_identities(node.inputs[1]):
        return pass_through(node, node.inputs[0])
    for index in (1, 0):
        value, other = facts.value(node.inputs[index]), node.inputs[1 - index]
        if value is None or not value.size or not facts.broadcasts_to(Shape(value.shape), other):
            continue
        if (value != absorbing).all():
            return pass_through(node, other)
        shape = facts.shape(other)
        if (value == absorbing).all() and shape.is_known:
            result = facts.constant(node, "value", np.full(shape.sizes, absorbing))
            return [result, *pass_through(node, Edge(result.name))]
    return None


def simplify_not(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``not not x``."""
    inner = facts.producer(node.inputs[0], frozenset({"LogicalNot"}))
    return None if inner is None else pass_through(node, inner.inputs[0])


def simplify_select(facts: Facts, node: Node) -> Rewritten:
    """Simplify a Select with a constant, uniform condition."""
    condition = facts.value(node.inputs[0])
    if condition is None or not condition.size or not (condition.all() or not condition.any()):
        return None
    selected, other = node.inputs[1:] if condition.all() else node.inputs[:0:-1]
    has_same_shape = node.op == "Select" or (
        facts.broadcasts_to(Shape(condition.shape), selected) and facts.broadcasts_to(facts.shape(other), selected)
    )
    if has_same_shape:
        return pass_through(node, selected)
    return Skip(f"{selected} is always selected, but {other} may broadcast it to a larger shape")


def simplify_extremum(facts: Facts, node: Node) -> Rewritten:
    """Simplify the maximum or minimum of a tensor with itself."""
    is_same = facts.skip_identities(node.inputs[0]) == facts.skip_identities(node.inputs[1])
    return pass_through(node, node.inputs[0]) if is_same else None


RULES: tuple[tuple[str, Simplify], ...] = (
    ("Mul|Div|RealDiv", simplify_product),
    ("Add|AddV2|Sub|BiasAdd", simplify_sum),
    ("Neg", simplify_negation),
    ("Pow", simplify_power),
    ("Cast", simplify_cast),
    ("|".join(sorted(IDEMPOTENT - {"LogicalAnd"})), simplify_idempotent),
    ("LogicalAnd|LogicalOr", simplify_logic),
    ("LogicalNot", simplify_not),
    ("Select|SelectV2", simplify_select),
    ("Maximum|Minimum", simplify_extremum),
)
