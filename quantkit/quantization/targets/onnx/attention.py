"""Products of attention in ONNX graphs, which the runtimes compute faster in float.

    scores = query @ key^T        result = softmax(scores * scale + mask) @ value

Each position is a sum over the size of a head, often 32 to 128, or over the length of the sequence. int8 arithmetic
saves less time in it than the quantization of query, key, value and probabilities costs. OpenVINO computes the whole
attention as one float kernel.
"""

from quantkit.ir.graph import Edge, Graph, Node

REASON = "the product of an attention costs less in float than its quantization"
# Ops between the scores and the softmax, or between the probabilities and the second product.
SCALE_OPS = frozenset({"Mul", "Div", "Add", "Sub", "Where"})
VIEW_OPS = frozenset({"Identity", "Dropout", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose"})


def find_attention(graph: Graph) -> dict[str, str]:
    """Return the products of two activations before and after each Softmax, with the reason for float.

    Args:
        graph: float ONNX graph.
    """
    products = dict[str, str]()
    for node in graph.nodes.values():
        if node.op == "Softmax":
            names = (*_products_before(graph, node.inputs[0]), *_products_after(graph, node.name))
            products.update(dict.fromkeys(names, REASON))
    return products


def _is_product(graph: Graph, node: Node) -> bool:
    return node.op == "MatMul" and all(graph.constant_of(edge) is None for edge in node.inputs)


def _products_before(graph: Graph, edge: Edge) -> list[str]:
    """Return the products before an edge, with only scales, masks and views between them."""
    names, edges = list[str](), [edge]
    visited = set[str]()
    while edges:
        node = graph[edges.pop().node]
        if node.name in visited:
            continue
        visited.add(node.name)
        if _is_product(graph, node):
            names.append(node.name)
        elif node.op in SCALE_OPS | VIEW_OPS:
            edges.extend(node.inputs)
    return names


def _products_after(graph: Graph, name: str) -> list[str]:
    """Return the products after a node, with only masks and views between them."""
    names, sources = list[str](), [name]
    visited = set[str]()
    while sources:
        name = sources.pop()
        if name in visited:
            continue
        visited.add(name)
        for use in graph.node_uses.get(name, ()):
            if _is_product(graph, use.node):
                names.append(use.node.name)
            elif use.node.op in VIEW_OPS or use.node.op == "Where":
                sources.append(use.node.name)
    return names
