"""Instance normalization of images with few channels in ONNX models."""

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import NewNodes, free_name
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.targets.onnx.first_layers import CHANNEL_BLOCK, IMAGE_RANK
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes


def flatten_norms(graph: Graph) -> Graph:
    """Normalize images with fewer channels than a block as rows of values.

        before:  x -> InstanceNormalization -> QuantizeLinear
        after:   x -> Reshape(n, c, h * w) -> InstanceNormalization -> QuantizeLinear -> Reshape(shape of x)

    OpenVINO 2026.4 normalizes images before a convolution with channels last, a block of 16 channels at a time, also if
    only one has values. On an AMD EPYC, rows take less time with up to 12 channels, and more from 16 on.

    Args:
        graph: quantized ONNX graph.
    """
    nodes = [node for node in graph.nodes.values() if node.op == "InstanceNormalization"]
    shapes, draft = infer_shapes(graph) if nodes else {}, Draft(graph)
    for node in nodes:
        dims = shapes.get(node.inputs[0], UNKNOWN).dims
        if dims is None or len(dims) != IMAGE_RANK or (dims[1] or CHANNEL_BLOCK) >= CHANNEL_BLOCK:
            continue
        consumers, rows = graph.consumers(node.name), NewNodes(graph, node.name)
        is_quantized = [each.op for each in consumers] == ["QuantizeLinear"] and node.name not in graph.referenced_names
        steps = [node, *(consumers if is_quantized else ())]
        sizes = rows.constant("rows/sizes", np.array([0, 0, -1], np.int64))
        image = rows.add("rows/image", "Shape", node.inputs[0])
        edge = rows.add("rows", "Reshape", node.inputs[0], sizes)
        for step in steps:
            rows.append(step.with_(name=free_name(graph, f"{step.name}/flat")).with_input(0, edge))
            edge = Edge(rows[-1].name)
            draft.remove(step.name)
        draft.replace(steps[-1].name, *rows, Node(steps[-1].name, "Reshape", (edge, image)))
    return draft.graph()
