"""Replace Maximum and Minimum with constant bounds by activations.

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
    """Replace Maximum and Minimum with constant bounds by Relu and Relu6.

    Runtimes fuse Relu and Relu6 with the layer before them, but not Maximum and Minimum.

    Before:  x -> Maximum(0) -> Minimum(6)
    After:   x -> Relu6

    Options: none. Both orders of the ops, both orders of the operands, and ClipByValue. For the
    maximum of 0 and -0, Maximum and Relu may return zeros of different sign, as may two kernels of
    one runtime.

    Skips if a bound differs from 0 and 6, is not a scalar, or is not constant.

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
    return apply_rules(graph, _fold_maximum, _fold_minimum, _fold_relu_of_minimum, _fold_clip)


def _bound(constant: Node) -> float | None:
    """Return the value of a float scalar; None for other constants."""
    value = constant.value
    return float(value.array) if value.dtype.is_float and value.shape == () else None


def _activation(root: Node, op: str, source: Node, slot: int, bound: Node) -> list[Node]:
    """Return the root as an activation of input ``slot`` of ``source``."""
    return [root.with_(op=op, inputs=(source.inputs[slot],), attrs={"T": bound.value.dtype})]


@rule(commutative("Maximum")(any_(), const("low")))
def _fold_maximum(graph: Graph, root: Node, low: Node) -> list[Node] | None:
    if _bound(low) != 0 or root.name in graph.input_names:
        return None
    return _activation(root, "Relu", root, 0 if root.inputs[1].node == low.name else 1, low)


@rule(commutative("Minimum")(op("Relu", "relu"), const("high")))
def _fold_minimum(graph: Graph, root: Node, relu: Node, high: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names or relu.name in graph.input_names:
        return None
    if _bound(high) != 6:
        return Skip(f"upper bound {high.name} is not 6, the only bound that an activation has")
    return _activation(root, "Relu6", relu, 0, high)


@rule(op("Relu")(commutative("Minimum", "minimum")(any_(), const("high"))))
def _fold_relu_of_minimum(graph: Graph, root: Node, minimum: Node, high: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names or minimum.name in graph.input_names:
        return None
    if _bound(high) != 6:
        return Skip(f"upper bound {high.name} of {minimum.name} is not 6, the only bound that an activation has")
    return _activation(root, "Relu6", minimum, 0 if minimum.inputs[1].node == high.name else 1, high)


@rule(op("ClipByValue")(any_(), const("low"), const("high")))
def _fold_clip(graph: Graph, root: Node, low: Node, high: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    if (_bound(low), _bound(high)) != (0, 6):
        return Skip(f"bounds {low.name} and {high.name} are not 0 and 6")
    return _activation(root, "Relu6", root, 0, high)
