"""Tests of ensure_input_shapes: TensorFlow fuses residual sums of known size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, check_linear_work, placeholder

from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph, Node, Versions, constant
from quantkit.ir.tensor import DType
from quantkit.transforms.metadata.ensure_input_shapes import ensure_input_shapes


def blocks(strides: list[int], version: int = 0, projects: bool = True) -> Graph:
    """Return a graph of residual blocks.

    Args:
        strides: stride of each block.
        version: producer version of the graph.
        projects: project the input of a block with a convolution; else add it directly.
    """
    random = np.random.default_rng(0)
    nodes = [placeholder((1, 16, 16, 4)), constant("bias", random.standard_normal(4).astype(np.float32))]
    source = "x"
    for number, stride in enumerate(strides):
        paths = []
        for path in ("main", "shortcut")[: 1 + projects]:
            name = f"block{number}/{path}"
            weights = constant(f"{name}/w", random.standard_normal((1, 1, 4, 4)).astype(np.float32) / 4)
            attrs = {"strides": (1, stride, stride, 1), "padding": b"VALID" if projects else b"SAME", "T": DType.FLOAT}
            conv = Node(f"{name}/conv", "Conv2D", (Edge(source), Edge(weights.name)), attrs=attrs)
            bias = Node(f"{name}/bias", "BiasAdd", (Edge(conv.name), Edge("bias")), attrs={"T": DType.FLOAT})
            nodes += [weights, conv, bias]
            paths.append(Edge(bias.name))
        operands = tuple(paths) if projects else (*paths, Edge(source))
        total = Node(f"block{number}/sum", "AddV2", operands, attrs={"T": DType.FLOAT})
        source = f"block{number}/relu"
        nodes += [total, Node(source, "Relu", (Edge(total.name),), attrs={"T": DType.FLOAT})]
    return Graph.of(nodes, ["x"], [source], versions=Versions(version))


@given(st.lists(st.sampled_from([1, 2]), max_size=3))
def test_outputs_stay(strides: list[int]) -> None:
    check_exact_transform(ensure_input_shapes, blocks(strides))


def test_transform_runs_in_linear_time() -> None:
    check_linear_work(ensure_input_shapes, lambda length: blocks([1] * length))


@pytest.mark.parametrize(("version", "expected"), [(21, 0), (27, 1), (2000, 1)])
def test_ensure_shape_needs_tensorflow_1_12(version: int, expected: int) -> None:
    after = ensure_input_shapes(blocks([2], version))
    assert after.op_counts.get("EnsureShape", 0) == expected


def find_fused_ops(graph: Graph) -> list[list[bytes]]:
    """Return the ops that TensorFlow fuses with each convolution."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default() as target, v1.Session(graph=target) as session:
        tf.import_graph_def(v1.GraphDef.FromString(graphdef.encode(graph)), name="")
        metadata = v1.RunMetadata()
        options = v1.RunOptions(output_partition_graphs=True)
        feeds = {f"{edge.node}:0": np.ones((1, 16, 16, 4), np.float32) for edge in graph.inputs}
        session.run([f"{edge.node}:0" for edge in graph.outputs], feeds, options=options, run_metadata=metadata)
        nodes = [node for part in metadata.partition_graphs for node in part.node]
    return [list(node.attr["fused_ops"].list.s) for node in nodes if "fused_ops" in node.attr]


def test_tensorflow_fuses_residual_sums_of_known_size() -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    graph = blocks([2, 2], 2000)
    residual = [b"BiasAdd", b"Add", b"Relu"]
    if residual not in find_fused_ops(blocks([1], 2000, projects=False)):
        pytest.skip("TensorFlow fuses no residual sums on this processor")
    assert find_fused_ops(graph).count(residual) == 0
    assert find_fused_ops(ensure_input_shapes(graph)).count(residual) == 2
