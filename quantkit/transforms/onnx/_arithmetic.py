"""Rules that remove arithmetic no-ops from ONNX graphs and merge consecutive operations."""

from collections.abc import Callable
from functools import partial

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules
from quantkit.ir.tensor import Array, DType
from quantkit.transforms.onnx import _movement
from quantkit.transforms.onnx._facts import (
    GraphFacts,
    constant_value,
    has_input,
    identity,
    is_all,
    new_constant,
    num_outputs,
    producer,
    reason_to_keep,
    remove_new_identities,
)
from quantkit.transforms.onnx._transposes import remove_transposes

Rewritten = list[Node] | Skip | None
Simplify = Callable[[GraphFacts, Graph, Node], Rewritten]
# Maximum number of passes; each one infers the shapes again.
MAX_PASSES = 8
FLOAT_TYPES = frozenset({DType.FLOAT, DType.DOUBLE, DType.HALF})


def simplify(graph: Graph, signed_zeros: bool) -> Outcome:
    """Apply the rules until none matches.

    Args:
        graph: graph of dialect ``onnx``.
        signed_zeros: x + 0 stays, because it changes -0 to 0.
    """
    changes: list[str] = []
    outcome = Outcome(graph)
    for _ in range(MAX_PASSES):
        moved = remove_transposes(graph)
        changes += moved.changes
        graph = moved.graph
        facts = GraphFacts.of(graph)
        table: tuple[tuple[str, Simplify], ...] = (
            ("Add|Sub|Mul|Div|Pow", partial(_remove_neutral, signed_zeros)),
            *RULES,
            *_movement.RULES,
        )
        outcome = apply_rules(graph, *(_as_rule(facts, ops, rule) for ops, rule in table))
        if not outcome.changes and not moved.changes:
            break
        changes += outcome.changes
        graph = remove_new_identities(graph, outcome.graph)
    return Outcome(graph, tuple(changes), outcome.skips)


def _as_rule(facts: GraphFacts, ops: str, simplify: Simplify) -> Rule:
    def rewrite(graph: Graph, root: Node) -> Rewritten:
        if root.name in graph.input_names or not has_input(root, 0) or num_outputs(root) > 1:
            return None
        try:
            return simplify(facts, graph, root)
        except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError):
            return None  # the node is not valid for its op type: the runtime reports that more precisely

    return Rule(op(ops), rewrite, ("root",), getattr(simplify, "__name__", "_remove_neutral"))


def _keeps_shape(facts: GraphFacts, edge: Edge, operand: Array) -> bool:
    """Return True if broadcasting a constant does not enlarge a tensor."""
    dims = facts.dims(edge)
    if not operand.ndim:
        return True
    if dims is None or operand.ndim > len(dims):
        return False
    return all(size in (1, dim) for size, dim in zip(operand.shape[::-1], dims[::-1], strict=False))


def _remove_neutral(signed_zeros: bool, facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove x + 0, x - 0, x * 1, x / 1 and x ** 1."""
    for slot in (0, 1) if root.op in ("Add", "Mul") else (1,):
        value = constant_value(graph, root, slot)
        if value is None or not is_all(value, 0 if root.op in ("Add", "Sub") else 1):
            continue
        if root.op == "Add" and signed_zeros and value.dtype.kind == "f" and not np.signbit(value).all():
            continue
        if _keeps_shape(facts, root.inputs[1 - slot], value):
            return identity(root, root.inputs[1 - slot])
    return None


def _remove_cast(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove a Cast to the type of its input, and the first of two casts if all values fit its type."""
    source, target = facts.types.get(root.inputs[0]), facts.types.get(Edge(root.name))
    if source is not None and source is target:
        return identity(root, root.inputs[0])
    inner = producer(graph, root.inputs[0], "Cast")
    first = facts.types.get(inner.inputs[0]) if inner is not None else None
    if inner is None or source is None or target is None or first is None:
        return None
    # A target that cannot hold all values of the first type may treat overflow differently by source type.
    has_room = target is first or target.is_float or first in _LOSSLESS.get(target, ())
    return [root.with_input(0, inner.inputs[0])] if has_room and first in _LOSSLESS.get(source, ()) else None


# Element types whose values another type can hold.
_LOSSLESS = {
    DType.INT64: (DType.INT32, DType.INT16, DType.INT8, DType.UINT8, DType.BOOL),
    DType.INT32: (DType.INT16, DType.INT8, DType.UINT8, DType.BOOL),
    DType.DOUBLE: (DType.FLOAT, DType.HALF, DType.INT32, DType.BOOL),
    DType.FLOAT: (DType.HALF, DType.BFLOAT16, DType.INT16, DType.INT8, DType.UINT8, DType.BOOL),
}
_IDEMPOTENT = "Relu|Abs|Floor|Ceil|Round|Sign"
_INVOLUTIONS = "Neg|Not"


def _merge_repeated(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace f(f(x)) by f(x), or by x for a negation."""
    inner = producer(graph, root.inputs[0], root.op)
    if inner is None:
        return None
    return identity(root, inner.inputs[0] if root.op in _INVOLUTIONS.split("|") else root.inputs[0])


def _merge_constants(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace (x * a) * b by x * (a * b), and likewise sums."""
    for slot in (0, 1):
        outer, inner = constant_value(graph, root, slot), producer(graph, root.inputs[1 - slot], root.op)
        if outer is None or inner is None or facts.types.get(Edge(root.name)) not in FLOAT_TYPES:
            continue
        for other in (0, 1):
            value = constant_value(graph, inner, other)
            if value is None or constant_value(graph, inner, 1 - other) is not None:
                continue
            reason = reason_to_keep(graph, inner, root)
            if reason:
                return Skip(reason)
            merged = (value * outer if root.op == "Mul" else value + outer).astype(value.dtype)
            if not _is_precise(value, outer, merged, root.op):
                return Skip("the merged constant would lose precision")
            constant = new_constant(graph, f"{root.name}/merged", merged)
            return [constant, root.with_(inputs=(inner.inputs[1 - other], Edge(constant.name)))]
    return None


def _is_precise(first: Array, second: Array, merged: Array, op_type: str) -> bool:
    """Return True if no product leaves the normal range, and no sum has summands of different signs."""
    if op_type == "Mul":
        magnitude = np.abs(merged)
        limits = np.finfo(merged.dtype)
        return bool(np.all((magnitude == 0) | ((magnitude >= limits.tiny) & np.isfinite(merged))))
    return bool(np.all(np.broadcast_to(first, merged.shape) * np.broadcast_to(second, merged.shape) >= 0))


def _join_negation(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace x + (-y) by x - y, and x - (-y) by x + y."""
    for slot in (1, 0) if root.op == "Add" else (1,):
        negation = producer(graph, root.inputs[slot], "Neg")
        if negation is not None:
            inputs = (root.inputs[1 - slot], negation.inputs[0])
            return [root.with_(op="Sub" if root.op == "Add" else "Add", inputs=inputs)]
    return None


def _join_reciprocal(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace x * (1 / y) by x / y."""
    for slot in (1, 0):
        inverse = producer(graph, root.inputs[slot], "Reciprocal")
        if inverse is not None and not reason_to_keep(graph, inverse, root):
            return [root.with_(op="Div", inputs=(root.inputs[1 - slot], inverse.inputs[0]))]
    return None


def _select_constant(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace a Where whose condition is constant and equal for all elements."""
    condition = constant_value(graph, root, 0)
    if condition is None or not condition.size or not (condition.all() or not condition.any()):
        return None
    source = root.inputs[1 if condition.all() else 2]
    shape = facts.shape(source)
    is_equal = shape.is_known and shape == facts.shape(Edge(root.name))
    return identity(root, source) if is_equal else None


def _remove_single(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove sums, extremes and concatenations of one tensor, and a Clip without bounds."""
    is_bounded = root.op == "Clip" and ("min" in root.attrs or "max" in root.attrs)
    return None if is_bounded or any(has_input(root, slot) for slot in (1, 2)) else identity(root, root.inputs[0])


def _remove_split(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove a Split into one part."""
    return identity(root, root.inputs[0])


def _remove_expansion(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove an Expand if the elementwise op after it broadcasts to the same shape."""
    target = facts.shape(Edge(root.name))
    if not target.is_known:
        return None
    for slot, edge in enumerate(root.inputs):
        inner = producer(graph, edge, "Expand")
        if inner is None:
            continue
        shapes = [facts.shape(inner.inputs[0] if index == slot else other) for index, other in enumerate(root.inputs)]
        if all(shape.is_known for shape in shapes):
            result = np.broadcast_shapes(*(shape.sizes for shape in shapes))
            if result == target.sizes:
                return [root.with_input(slot, inner.inputs[0])]
    return None


RULES: tuple[tuple[str, Simplify], ...] = (
    ("Cast", _remove_cast),
    (f"{_IDEMPOTENT}|{_INVOLUTIONS}", _merge_repeated),
    ("Mul|Add", _merge_constants),
    ("Add|Sub", _join_negation),
    ("Mul", _join_reciprocal),
    ("Where", _select_constant),
    ("Sum|Mean|Max|Min|Concat|Clip", _remove_single),
    ("Split", _remove_split),
    ("Add|Sub|Mul|Div|Pow|Where|Equal|Less|Greater|LessOrEqual|GreaterOrEqual|And|Or", _remove_expansion),
)
