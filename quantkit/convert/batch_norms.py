"""Replacement of the batch norm of the 2015 release, which no converter supports.

    BatchNormWithGlobalNormalization(x, mean, variance, beta, gamma)  ->  FusedBatchNorm(x, gamma, beta, mean, variance)

Both compute (x - mean) * gamma / sqrt(variance + epsilon) + beta. Without ``scale_after_normalization``, gamma is 1.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.names import unused_name
from quantkit.ir.tensor import DType

OLD_BATCH_NORM = "BatchNormWithGlobalNormalization"


def replace_old_batch_norms(graph: Graph) -> Graph:
    """Replace each float32 BatchNormWithGlobalNormalization by a FusedBatchNorm of the same name.

    A node without ``scale_after_normalization`` is replaced only if its gamma is a constant.
    """
    if all(node.op != OLD_BATCH_NORM for node in graph.nodes.values()):
        return graph
    return graph.with_nodes(new for node in graph.nodes.values() for new in _replacements(graph, node))


def _replacements(graph: Graph, node: Node) -> Iterator[Node]:
    if node.op != OLD_BATCH_NORM or len(node.inputs) != 5 or node.attrs.get("T", DType.FLOAT) is not DType.FLOAT:
        yield node
        return
    x, mean, variance, beta, gamma = node.inputs
    if not node.attrs.get("scale_after_normalization", False):
        tensor = graph.constant_of(gamma)
        if tensor is None:
            yield node
            return
        scale = constant(unused_name(graph, f"{node.name}/ones"), np.ones_like(tensor.array))
        gamma = Edge(scale.name)
        yield scale
    attrs = {
        "T": DType.FLOAT,
        "epsilon": node.attrs["variance_epsilon"],
        "is_training": False,
        "data_format": b"NHWC",
    }
    yield replace(node, op="FusedBatchNorm", inputs=(x, gamma, beta, mean, variance), attrs=attrs)
