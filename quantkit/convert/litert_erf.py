"""Error functions in LiteRT, which has no such op.

TensorFlow's converter fuses GELU only with its factors in this order:

    x 0.5 (1 + erf(x / sqrt(2)))    ->    (x 0.5) (erf(x sqrt(0.5)) + 1)

Other error functions become a ratio of polynomials, which a weighted least squares fit on 0 <= x <= 4 determined:

    erf(x)  =  y P(y^2) / Q(y^2),   y = min(max(x, -4), 4),   erf(4) = 1 - 1.5e-8
    erfc(x)  =  1 - erf(x)

The largest absolute error of both in float32 is 5e-7. The relative error of erf is as large.
"""

import math
from collections.abc import Iterator

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import NewNodes
from quantkit.ir.tensor import DType
from quantkit.ops.semantics import ADD_OPS
from quantkit.ops.tensorflow.frames import find_loop_nodes

ERROR_FUNCTIONS = frozenset({"Erf", "Erfc"})
LIMIT = 4.0
# Coefficients of P and Q, lowest power first.
NUMERATOR = (1.12837914, 0.193523303, 0.0530988377, 0.00388241829, 0.000284546069, 1.98694955e-6)
DENOMINATOR = (1.0, 0.504838121, 0.115340982, 0.0152053764, 0.00118534987, 3.74209022e-5)
# Products of products in a GELU, with a margin: further ones are not examined.
MAX_DEPTH = 4
# Relative tolerance of constants such as 1 / sqrt(2), which exporters round to float32 or half.
TOLERANCE = 1e-3
FLOAT: dict[str, Attr] = {"T": DType.FLOAT}


def replace_error_functions(graph: Graph) -> Graph:
    """Replace each float32 error function by ops that TensorFlow's converter supports.

    Error functions in functions and in loops of TensorFlow 1 stay.
    """
    if not ERROR_FUNCTIONS & graph.op_counts.keys():
        return graph
    return _replace_others(_order_gelus(graph).without_unused_nodes(stop_at_inputs=False))


def _order_gelus(graph: Graph) -> Graph:
    draft = Draft(graph)
    for erf in _error_functions(graph, "Erf"):
        gelu = _find_gelu(graph, erf)
        if gelu is not None and not _is_fusible(graph, erf, gelu[1]):
            draft.replace(gelu[1].name, *_gelu(graph, *gelu))
    return draft.graph()


def _replace_others(graph: Graph) -> Graph:
    draft = Draft(graph)
    for node in _error_functions(graph, *ERROR_FUNCTIONS):
        if node.op == "Erfc" or _find_gelu(graph, node) is None:
            draft.replace(node.name, *_ratio(graph, node))
    return draft.graph()


def _error_functions(graph: Graph, *ops: str) -> Iterator[Node]:
    loop_nodes = find_loop_nodes(graph)
    for node in graph.nodes.values():
        if node.op in ops and node.attrs.get("T", DType.FLOAT) is DType.FLOAT and node.name not in loop_nodes:
            yield node


# GELU


def _find_gelu(graph: Graph, erf: Node) -> tuple[Edge, Node] | None:
    """Return the input and the last product of a GELU; None if the error function belongs to none."""
    argument = graph[erf.inputs[0].node]
    for x in argument.inputs if argument.op in ("Mul", "RealDiv") else ():
        factor, others = _factors(graph, erf.inputs[0], {x})
        if others == [x] and math.isclose(factor, math.sqrt(0.5), rel_tol=TOLERANCE):
            root = _find_product(graph, x, erf)
            return None if root is None else (x, root)
    return None


def _find_product(graph: Graph, x: Edge, erf: Node) -> Node | None:
    """Return the node that computes x 0.5 (1 + erf)."""
    for sum_ in graph.consumers(erf.name):
        summands = [_number(graph, edge) for edge in sum_.inputs]
        if sum_.op not in ADD_OPS or 1.0 not in summands:
            continue
        first = graph.consumers(sum_.name)
        for root in (*(node for product in first for node in graph.consumers(product.name)), *first):
            factor, others = _factors(graph, Edge(root.name), {x, Edge(sum_.name)})
            if sorted(others) == sorted((x, Edge(sum_.name))) and math.isclose(factor, 0.5, rel_tol=TOLERANCE):
                return root
    return None


def _is_fusible(graph: Graph, erf: Node, root: Node) -> bool:
    """Return True if the converter fuses a GELU in its order: such a graph does not change."""
    argument, *factors = (graph[edge.node] for edge in (erf.inputs[0], *root.inputs))
    numbers = {_number(graph, edge) for edge in argument.inputs}
    is_exact = argument.op == "Mul" and float(np.float32(math.sqrt(0.5))) in numbers
    gates = [node for node in factors if node.op in ADD_OPS and Edge(erf.name) in node.inputs]
    return is_exact and root.op == "Mul" and len(gates) == 1 and any(node.op == "Mul" for node in factors)


def _factors(graph: Graph, product: Edge, whole: set[Edge], depth: int = MAX_DEPTH) -> tuple[float, list[Edge]]:
    """Return the constant factor and the other factors of a product.

    Args:
        graph: graph of the product.
        product: edge with the product.
        whole: edges that are not divided further.
        depth: number of products of products that are divided.
    """
    number = _number(graph, product)
    if number is not None:
        return number, []
    node = graph[product.node]
    divisor = _number(graph, node.inputs[1]) if node.op == "RealDiv" else None
    if product in whole or depth == 0 or (node.op != "Mul" and not divisor):
        return 1.0, [product]
    if divisor:
        factor, others = _factors(graph, node.inputs[0], whole, depth - 1)
        return factor / divisor, others
    (first, others), (second, more) = (_factors(graph, edge, whole, depth - 1) for edge in node.inputs)
    return first * second, others + more


def _number(graph: Graph, edge: Edge) -> float | None:
    """Return the value of a scalar constant, else None."""
    tensor = graph.constant_of(edge)
    return None if tensor is None or tensor.num_elements != 1 else float(tensor.array.reshape(-1)[0])


def _gelu(graph: Graph, x: Edge, root: Node) -> list[Node]:
    """Return the nodes of a GELU in the order that the converter fuses."""
    nodes = NewNodes(graph, f"{root.name}/gelu")
    half, factor, summand = (
        nodes.constant(f"{suffix}/value", value)
        for suffix, value in (("half", 0.5), ("scaled", math.sqrt(0.5)), ("gate", 1.0))
    )
    product = nodes.add("half", "Mul", x, half, **FLOAT)
    erf = nodes.add("erf", "Erf", nodes.add("scaled", "Mul", x, factor, **FLOAT), **FLOAT)
    gate = nodes.add("gate", "AddV2", erf, summand, **FLOAT)
    return [*nodes, root.with_(op="Mul", inputs=(product, gate), attrs=FLOAT)]


# Ratio of polynomials


def _ratio(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes that replace an error function; the last one has its name."""
    nodes = NewNodes(graph, node.name)

    def add(suffix: str, op: str, *inputs: Edge | float) -> Edge:
        return nodes.add(suffix, op, *inputs, **FLOAT)

    def polynomial(name: str, coefficients: tuple[float, ...]) -> Edge:
        *rest, last = coefficients
        value = add(f"{name}/{len(rest)}", "Mul", square, last)
        for power in range(len(rest) - 1, 0, -1):
            sum_ = add(f"{name}/{power}/sum", "AddV2", value, rest[power])
            value = add(f"{name}/{power}", "Mul", sum_, square)
        return add(name, "AddV2", value, rest[0])

    y = add("limited", "Minimum", add("low", "Maximum", node.inputs[0], -LIMIT), LIMIT)
    square = add("square", "Mul", y, y)
    product = add("product", "Mul", y, polynomial("numerator", NUMERATOR))
    ratio = add("ratio", "RealDiv", product, polynomial("denominator", DENOMINATOR))
    if node.op == "Erfc":
        add("complement", "Sub", 1.0, ratio)
    return [*nodes[:-1], nodes[-1].with_(name=node.name, controls=node.controls)]
