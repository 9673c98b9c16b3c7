"""SiLU as one float op of ONNX Runtime.

    x * sigmoid(x)  ->  com.microsoft.QuickGelu(x, alpha=1)

ONNX Runtime fuses both ops itself, but not after a DequantizeLinear, which it copies for each consumer. Its int8
Sigmoid looks up single values, its float op computes a vector at once.
"""

from quantkit.formats import onnx
from quantkit.formats.onnx.schema import parse_message
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.onnx.types import infer_types

DOMAIN = "com.microsoft"
SILU = f"{DOMAIN}.QuickGelu"


def fuse_gates(graph: Graph) -> Graph:
    """Return the ONNX graph with each SiLU as one op."""
    draft, has_silu, types = Draft(graph), False, infer_types(graph)
    for node in graph.nodes.values():
        has_kernel = node.op == "Mul" and types.get(Edge(node.name)) is not DType.DOUBLE
        if has_kernel and (gate := _find_gate(graph, node)) is not None:
            draft.replace(node.name, node.with_(op=SILU, inputs=gate.inputs, attrs={**node.attrs, "alpha": 1.0}))
            draft.remove(gate.name)
            has_silu = True
    return _import_domain(draft.graph()) if has_silu else graph


def _find_gate(graph: Graph, product: Node) -> Node | None:
    """Return the Sigmoid of a SiLU if the product is its only consumer."""
    for edge, other in (product.inputs, product.inputs[::-1]) if len(product.inputs) == 2 else ():
        gate = graph[edge.node]
        is_inner = len(graph.node_uses.get(gate.name, ())) == 1 and gate.name not in graph.endpoint_names
        if gate.op == "Sigmoid" and gate.inputs == (other,) and is_inner:
            return gate
    return None


def _import_domain(graph: Graph) -> Graph:
    """Return the graph with a version of the operator set of ONNX Runtime."""
    if DOMAIN in onnx.opsets(graph):
        return graph
    model = parse_message("ModelProto", graph.extra)
    model.opset_import.add(domain=DOMAIN, version=1)
    return graph.with_(extra=bytes(model.SerializeToString(deterministic=True)))
