"""Rules that replace activations and normalizations of several ops by one op of the graph's opset.

LayerNormalization:  (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) gamma + beta      opset 17
Gelu:                x 0.5 (1 + erf(x / sqrt(2)))                                            opset 20
HardSwish:           x hard_sigmoid(x)                                                       opset 14
HardSigmoid:         clip(x + 3, 0, 6) / 6                                                   opset 6
Mish:                x tanh(softplus(x))                                                     opset 18
PRelu:               relu(x) + c relu(-x), as Keras computes it                              opset 7
LeakyRelu:           max(x, a x)                                                             opset 7
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules
from quantkit.ir.tensor import Array, DType
from quantkit.transforms.onnx._facts import (
    GraphFacts,
    constant_value,
    has_input,
    integers,
    new_constant,
    num_outputs,
    producer,
    reason_to_keep,
)

# Relative tolerance of constants such as 1 / sqrt(2), which exporters round to float32 or half.
TOLERANCE = 1e-3
MEAN_OPS = "ReduceMean|GlobalAveragePool"
LAYER_NORM_OPSET, GELU_OPSET, HARD_SWISH_OPSET, MISH_OPSET = 17, 20, 14, 18
# Element types for which ONNX Runtime has no kernel of the activations: it computes half as float.
WITHOUT_KERNEL = frozenset({DType.DOUBLE, DType.BFLOAT16})

Rewritten = list[Node] | None


def fuse(graph: Graph) -> Outcome:
    """Replace patterns of several ops by one op."""
    facts = GraphFacts.of(graph)
    table: tuple[tuple[str, int, Callable[[GraphFacts, Graph, Node], Rewritten]], ...] = (
        ("Add", LAYER_NORM_OPSET, _layer_norm_with_offset),
        ("Add", LAYER_NORM_OPSET, _layer_norm_of_tensorflow),
        ("Mul", LAYER_NORM_OPSET, _layer_norm),
        ("Mul", GELU_OPSET, _gelu),
        ("Mul|Div", 6, _hard_sigmoid),
        ("Mul|Div", HARD_SWISH_OPSET, _hard_swish),
        ("Mul", MISH_OPSET, _mish),
        ("Add", 7, _prelu),
        ("Max", 7, _leaky_relu),
    )
    rules = (
        Rule(op(ops), partial(_apply, rule, facts), ("root",), rule.__name__.lstrip("_"))
        for ops, opset, rule in table
        if facts.opset >= opset
    )
    return apply_rules(graph, *rules)


def _apply(
    rule: Callable[[GraphFacts, Graph, Node], Rewritten], facts: GraphFacts, graph: Graph, root: Node
) -> Rewritten | Skip:
    if root.name in graph.input_names or len(root.inputs) != 2 or num_outputs(root) > 1:
        return None
    nodes, dtype = rule(facts, graph, root), facts.types.get(Edge(root.name))
    shapes = [facts.shape(edge) for edge in (nodes[-1].inputs[0], Edge(root.name))] if nodes else []
    if shapes and all(shape.dims is not None for shape in shapes) and shapes[0].rank != shapes[1].rank:
        return None  # a constant of one element and of a higher rank adds axes
    if nodes and dtype in WITHOUT_KERNEL and nodes[0].op != "LayerNormalization":
        return Skip(f"ONNX Runtime has no {nodes[0].op} for {dtype.value}")
    return nodes


def _operands(node: Node) -> Iterator[tuple[Edge, Edge]]:
    """Yield the operands of a commutative op in both orders."""
    yield node.inputs[0], node.inputs[1]
    yield node.inputs[1], node.inputs[0]


def _number(graph: Graph, edge: Edge) -> float | None:
    """Return the value of a constant of one element."""
    tensor = graph.constant_of(edge)
    if tensor is None or tensor.num_elements != 1 or edge.node in graph.input_names or not tensor.dtype.is_float:
        return None
    return float(tensor.array.reshape(-1)[0])


def _is_close(value: float | None, expected: float) -> bool:
    return value is not None and math.isclose(value, expected, rel_tol=TOLERANCE)


def _inner(graph: Graph, edge: Edge, ops: str, consumer: Node) -> Node | None:
    """Return the producer of an edge if its only consumer is ``consumer``."""
    node = producer(graph, edge, ops)
    return node if node is not None and not reason_to_keep(graph, node, consumer) else None


def _with_constant(graph: Graph, edge: Edge, ops: str, consumer: Node) -> tuple[Edge, float] | None:
    """Return the other operand and the number of a node that adds a number to a tensor, or multiplies by it."""
    node = _inner(graph, edge, ops, consumer)
    for other, constant in _operands(node) if node is not None else ():
        number = _number(graph, constant)
        if number is not None:
            return other, number
    return None


def _mean_axes(graph: Graph, node: Node, rank: int) -> list[int] | None:
    """Return the axes of a mean over the last axes of a tensor that keeps them; else None."""
    if node.op == "GlobalAveragePool":
        return list(range(2, rank)) or None
    axes = integers(graph, node, "axes", 1)
    if not axes or not node.attrs.get("keepdims", 1):
        return None
    axes = sorted(axis % rank for axis in axes)
    return axes if axes == list(range(axes[0], rank)) else None


def _deviation(facts: GraphFacts, graph: Graph, edge: Edge) -> tuple[Edge, Edge, Edge, int, float] | None:
    """Match ``sqrt(mean((x - mean(x))^2) + epsilon)``.

    Returns:
        x, x - mean(x), mean(x), the first normalized axis, and epsilon.
    """
    root = producer(graph, edge, "Sqrt")
    total = producer(graph, root.inputs[0], "Add") if root is not None else None
    for variance_edge, epsilon_edge in _operands(total) if total is not None else ():
        epsilon, variance = _number(graph, epsilon_edge), producer(graph, variance_edge, MEAN_OPS)
        square = producer(graph, variance.inputs[0], "Pow|Mul") if variance is not None else None
        if epsilon is None or variance is None or square is None:
            continue
        is_square = (
            _is_close(_number(graph, square.inputs[1]), 2)
            if square.op == "Pow"
            else square.inputs[0] == square.inputs[1]
        )
        centered = producer(graph, square.inputs[0], "Sub")
        mean = producer(graph, centered.inputs[1], MEAN_OPS) if centered is not None else None
        dims = facts.dims(centered.inputs[0]) if centered is not None else None
        if not is_square or centered is None or mean is None or dims is None or mean.inputs[0] != centered.inputs[0]:
            continue
        axes = _mean_axes(graph, mean, len(dims))
        if axes and axes == _mean_axes(graph, variance, len(dims)):
            return centered.inputs[0], Edge(centered.name), Edge(mean.name), axes[0] - len(dims), epsilon
    return None


def _is_parameter(facts: GraphFacts, graph: Graph, edge: Edge, x: Edge, axis: int) -> bool:
    """Return True if a constant has the shape of the normalized axes."""
    tensor, dims = graph.constant_of(edge), facts.dims(x)
    return (
        tensor is not None
        and edge.node not in graph.input_names
        and dims is not None
        and tensor.shape == dims[axis:]
        and tensor.dtype is facts.types.get(x)
    )


def _norm(root: Node, inputs: tuple[Edge, ...], axis: int, epsilon: float) -> list[Node]:
    attrs: dict[str, Any] = {"axis": axis, "epsilon": epsilon}
    return [Node(root.name, "LayerNormalization", inputs, attrs=attrs, extra=root.extra)]


def _match_scaled(facts: GraphFacts, graph: Graph, root: Node) -> tuple[Edge, Edge, int, float] | None:
    """Match ``(x - mean) / deviation * gamma``; return x, gamma, the axis and epsilon."""
    for quotient_edge, gamma in _operands(root):
        quotient = _inner(graph, quotient_edge, "Div", root)
        match = _deviation(facts, graph, quotient.inputs[1]) if quotient is not None else None
        if quotient is None or match is None or quotient.inputs[0] != match[1]:
            continue
        x, _, _, axis, epsilon = match
        if _is_parameter(facts, graph, gamma, x, axis):
            return x, gamma, axis, epsilon
    return None


def _layer_norm_with_offset(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    for product_edge, beta in _operands(root):
        product = _inner(graph, product_edge, "Mul", root)
        match = _match_scaled(facts, graph, product) if product is not None else None
        if match is not None and _is_parameter(facts, graph, beta, match[0], match[2]):
            x, gamma, axis, epsilon = match
            return _norm(root, (x, gamma, beta), axis, epsilon)
    return None


def _layer_norm(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    match = _match_scaled(facts, graph, root)
    if match is None:
        return None
    x, gamma, axis, epsilon = match
    uses = graph.node_uses.get(root.name, ())
    if len(uses) == 1 and uses[0].node.op == "Add" and root.name not in graph.endpoint_names:
        others = [edge for edge in uses[0].node.inputs if edge.node != root.name]
        if others and _is_parameter(facts, graph, others[0], x, axis):
            return None  # the Add becomes the LayerNormalization
    return _norm(root, (x, gamma), axis, epsilon)


def _layer_norm_of_tensorflow(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Match ``x s + (beta - mean s)`` with ``s = gamma / deviation``."""
    for product_edge, offset_edge in _operands(root):
        product, offset = _inner(graph, product_edge, "Mul", root), _inner(graph, offset_edge, "Sub", root)
        shift = _inner(graph, offset.inputs[1], "Mul", offset) if offset is not None else None
        if product is None or offset is None or shift is None:
            continue
        for x, scale_edge in _operands(product):
            scale = producer(graph, scale_edge, "Div")
            match = _deviation(facts, graph, scale.inputs[1]) if scale is not None else None
            if scale is None or match is None or match[0] != x:
                continue
            _, _, mean, axis, epsilon = match
            has_shift = set(shift.inputs) == {mean, scale_edge}
            parameters = (scale.inputs[0], offset.inputs[0])
            if has_shift and all(_is_parameter(facts, graph, edge, x, axis) for edge in parameters):
                return _norm(root, (x, *parameters), axis, epsilon)
    return None


def _factors(graph: Graph, node: Node, count: int) -> list[Edge]:
    """Return the factors of a product of up to ``count`` factors."""
    edges = list(node.inputs)
    for index, edge in enumerate(node.inputs):
        inner = _inner(graph, edge, "Mul", node)
        if inner is not None and count > 2:
            return [*_factors(graph, inner, count - 1), *(edges[:index] + edges[index + 1 :])]
    return edges


def _gelu(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Match ``x 0.5 (1 + erf(x / sqrt(2)))`` with the factors in any order."""
    factors = _factors(graph, root, 3)
    half = [edge for edge in factors if _is_close(_number(graph, edge), 0.5)]
    for total_edge in factors if len(factors) == 3 and len(half) == 1 else ():
        total = producer(graph, total_edge, "Add")
        if total is None or len(graph.node_uses.get(total.name, ())) != 1 or total.name in graph.endpoint_names:
            continue
        (x,) = [edge for edge in factors if edge not in (half[0], total_edge)] or [Edge("")]
        for erf_edge, summand in _operands(total):
            erf = _inner(graph, erf_edge, "Erf", total)
            argument = _inner(graph, erf.inputs[0], "Div|Mul", erf) if erf is not None else None
            if argument is None or not _is_close(_number(graph, summand), 1):
                continue
            factor = math.sqrt(2) if argument.op == "Div" else math.sqrt(0.5)
            slots = (1,) if argument.op == "Div" else (0, 1)
            if any(
                argument.inputs[1 - slot] == x and _is_close(_number(graph, argument.inputs[slot]), factor)
                for slot in slots
            ):
                return [Node(root.name, "Gelu", (x,), extra=root.extra)]
    return None


def _bounds(graph: Graph, node: Node) -> tuple[Any, Any]:
    """Return the bounds of a Clip."""
    values: list[Array | None] = [constant_value(graph, node, slot) for slot in (1, 2)]
    return tuple(
        node.attrs.get(name) if not has_input(node, slot) else None if value is None else float(value.reshape(-1)[0])
        for slot, name, value in zip((1, 2), ("min", "max"), values, strict=True)
    )  # type: ignore[return-value]


def _match_clipped(graph: Graph, edge: Edge, consumer: Node) -> Edge | None:
    """Match ``clip(x + 3, 0, 6)``; return x."""
    clip = _inner(graph, edge, "Clip", consumer)
    if clip is None or _bounds(graph, clip) != (0, 6):
        return None
    total = _with_constant(graph, clip.inputs[0], "Add", clip)
    return total[0] if total is not None and total[1] == 3 else None


def _hard_sigmoid(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Match ``clip(x + 3, 0, 6) / 6``, or the product with 1 / 6."""
    for clip_edge, constant in _operands(root) if root.op == "Mul" else ((root.inputs[0], root.inputs[1]),):
        x = _match_clipped(graph, clip_edge, root)
        number = _number(graph, constant)
        if x is not None and _is_close(number, 6 if root.op == "Div" else 1 / 6):
            return [
                Node(
                    root.name,
                    "HardSigmoid",
                    (x,),
                    attrs={"alpha": float(np.float32(1 / 6)), "beta": 0.5},
                    extra=root.extra,
                )
            ]
    return None


def _hard_swish(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Match ``x hard_sigmoid(x)`` and ``x clip(x + 3, 0, 6) / 6``."""
    for first, second in _operands(root) if root.op == "Mul" else ((root.inputs[0], root.inputs[1]),):
        sigmoid = _inner(graph, second, "HardSigmoid", root) if root.op == "Mul" else None
        if sigmoid is not None and sigmoid.inputs[0] == first:
            alpha, beta = (float(sigmoid.attrs.get(name, value)) for name, value in (("alpha", 0.2), ("beta", 0.5)))
            if _is_close(alpha, 1 / 6) and _is_close(beta, 0.5):
                return [Node(root.name, "HardSwish", (first,), extra=root.extra)]
        product = _inner(graph, first, "Mul", root)
        if product is not None and _is_close(_number(graph, second), 6 if root.op == "Div" else 1 / 6):
            for x, clip_edge in _operands(product):
                if _match_clipped(graph, clip_edge, product) == x:
                    return [Node(root.name, "HardSwish", (x,), extra=root.extra)]
    return None


def _mish(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Match ``x tanh(softplus(x))``."""
    for x, tanh_edge in _operands(root):
        tanh = _inner(graph, tanh_edge, "Tanh", root)
        softplus = _inner(graph, tanh.inputs[0], "Softplus", tanh) if tanh is not None else None
        if softplus is not None and softplus.inputs[0] == x:
            return [Node(root.name, "Mish", (x,), extra=root.extra)]
    return None


def _prelu(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Match ``relu(x) + c relu(-x)``; the slope is -c."""
    for positive_edge, product_edge in _operands(root):
        positive = _inner(graph, positive_edge, "Relu", root)
        product = _inner(graph, product_edge, "Mul", root)
        if positive is None or product is None:
            continue
        for relu_edge, constant in _operands(product):
            relu = _inner(graph, relu_edge, "Relu", product)
            negative = _inner(graph, relu.inputs[0], "Neg", relu) if relu is not None else None
            value = graph.constant_of(constant)
            if negative is None or value is None or value.dtype is not DType.FLOAT:
                continue
            x, sizes = positive.inputs[0], value.shape
            dims = facts.dims(x) or ()
            pairs = zip(sizes[::-1], dims[::-1], strict=False)
            fits = len(sizes) <= len(dims) and all(size in (1, dim) for size, dim in pairs)
            if negative.inputs[0] == x and fits:
                # OpenVINO applies a slope of rank 1 to the second axis.
                slope = new_constant(
                    graph, f"{root.name}/slope", -value.array.reshape((1,) * (len(dims) - len(sizes)) + tuple(sizes))
                )
                return [slope, Node(root.name, "PRelu", (x, Edge(slope.name)), extra=root.extra)]
    return None


def _leaky_relu(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Match ``max(x, a x)`` with a between 0 and 1."""
    for x, product in _operands(root):
        scaled = _with_constant(graph, product, "Mul", root)
        if scaled is not None and scaled[0] == x and 0 < scaled[1] < 1:
            return [Node(root.name, "LeakyRelu", (x,), attrs={"alpha": scaled[1]}, extra=root.extra)]
    return None
