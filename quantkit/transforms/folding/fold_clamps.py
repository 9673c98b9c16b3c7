"""Clamps as the activations they are.

max(x, 0)          ==  relu(x)
min(relu(x), 6)    ==  relu6(x)
relu(min(x, 6))    ==  relu6(x)
"""

from quantkit.ir.graph import Graph, Node
from quantkit.ir.pattern import any_, commutative, const, op
from quantkit.ir.rewrite import Outcome, Skip, apply_rules, rule
from quantkit.transforms.registry import transform


@transform
def fold_clamps(graph: Graph) -> Outcome:
    """Write maximum and minimum with constant bounds as Relu and Relu6.

    Engines fuse these with the layer before them; a Maximum and a Minimum are passes over the tensor.

    Before:  x -> Maximum(0) -> Minimum(6)
    After:   x -> Relu6

    Options: none. Both orders, both orders of the operands, and ClipByValue. Where 0 meets -0, either may be the
    larger: Maximum and Relu need not agree, nor the kernels of one engine.

    Skips when the bounds are others than 0 and 6, are no single numbers, or are not constant.

    Example:
        fold_clamps
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        zero = Const(0.0)
        six = Const(6.0)
        low = Maximum(x, zero)
        y = Minimum(low, six)

    Example:
        fold_clamps
        inputs: x
        outputs: y, z
        x = Placeholder[2x3]()
        zero = Const(0.0)
        six = Const(6.0)
        high = Minimum(x, six)
        y = Relu(high)
        z = ClipByValue(x, zero, six)
    """
    return apply_rules(graph, _floor, _ceiling, _floor_of_ceiling, _clip)


def _bound(constant: Node) -> float | None:
    """The one number of a float constant."""
    value = constant.value
    return float(value.array) if value.dtype.is_float and value.shape == () else None


def _activation(root: Node, op: str, source: Node, slot: int, bound: Node) -> list[Node]:
    """The root as an activation of what ``source`` reads in a slot."""
    return [root.with_(op=op, inputs=(source.inputs[slot],), attrs={"T": bound.value.dtype})]


@rule(commutative("Maximum")(any_(), const("low")))
def _floor(graph: Graph, root: Node, low: Node) -> list[Node] | None:
    if _bound(low) != 0 or root.name in graph.input_names:
        return None
    return _activation(root, "Relu", root, 0 if root.inputs[1].node == low.name else 1, low)


@rule(commutative("Minimum")(op("Relu", "floor"), const("high")))
def _ceiling(graph: Graph, root: Node, floor: Node, high: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names or floor.name in graph.input_names:
        return None
    if _bound(high) != 6:
        return Skip(f"it is bounded by {high.name}, not by 6, the only bound with an op of its own")
    return _activation(root, "Relu6", floor, 0, high)


@rule(op("Relu")(commutative("Minimum", "ceiling")(any_(), const("high"))))
def _floor_of_ceiling(graph: Graph, root: Node, ceiling: Node, high: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names or ceiling.name in graph.input_names:
        return None
    if _bound(high) != 6:
        return Skip(f"{ceiling.name} is bounded by {high.name}, not by 6, the only bound with an op of its own")
    return _activation(root, "Relu6", ceiling, 0 if ceiling.inputs[1].node == high.name else 1, high)


@rule(op("ClipByValue")(any_(), const("low"), const("high")))
def _clip(graph: Graph, root: Node, low: Node, high: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    if (_bound(low), _bound(high)) != (0, 6):
        return Skip(f"it is bounded by {low.name} and {high.name}, not by 0 and 6")
    return _activation(root, "Relu6", root, 0, high)
