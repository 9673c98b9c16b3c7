"""Computations on sizes in ONNX models with int8 convolutions."""

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Tensor
from quantkit.ops.roles.onnx import BIAS_INDEX, RECURRENT_OPS
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes


def hide_sizes(graph: Graph) -> Graph:
    """Insert a Max with 0, which returns its input, after each Shape of a tensor with unknown sizes.

        before:  Shape -> Gather                            after:  Shape -> Max(0) -> Gather
        before:  LSTM(x)                                    after:  LSTM(Reshape(x, Max(Shape(x), 0)))

    OpenVINO 2026.4 computes equal sizes from one tensor, for which it takes a convolution without its bias. An int8
    convolution with a second consumer then loses the bias. OpenVINO cannot infer the sizes after a Max. For a
    recurrent layer it computes the sizes of the input itself. Graphs without such a convolution do not change.
    """
    if not any(node.op == "Conv" and _has_int8_weights_and_bias(graph, node) for node in graph.nodes.values()):
        return graph
    draft = Draft(graph)
    shapes = infer_shapes(graph)
    for name, node in graph.nodes.items():
        if node.op not in RECURRENT_OPS | {"Shape"} or shapes.get(node.inputs[0], UNKNOWN).is_known:
            continue
        prefix = free_name(graph, f"{name}/sizes")
        zero = Node(f"{prefix}/zero", "Constant", attrs={"value": Tensor.of(np.array([0], np.int64))})
        if node.op == "Shape":
            draft.replace(name, node.with_(name=prefix), zero, Node(name, "Max", (Edge(prefix), Edge(zero.name))))
        else:
            maximum, view = f"{prefix}/maximum", f"{prefix}/view"
            draft.replace(
                name,
                zero,
                Node(prefix, "Shape", node.inputs[:1]),
                Node(maximum, "Max", (Edge(prefix), Edge(zero.name))),
                Node(view, "Reshape", (node.inputs[0], Edge(maximum))),  # 0 copies the size, which is 0 as well
                node.with_input(0, Edge(view)),
            )
    return draft.graph()


def _has_int8_weights_and_bias(graph: Graph, layer: Node) -> bool:
    """Return True for a layer with int8 weights and a bias."""
    return len(layer.inputs) > BIAS_INDEX and graph[layer.inputs[1].node].op == "DequantizeLinear"
