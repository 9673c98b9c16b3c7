"""Zeros of pruned weights stay zeros in int8, and in the transforms before it."""

import numpy as np
import pytest

import quantkit as qk
from quantkit.ir.graph import Edge, Graph, constant
from quantkit.ir.tensor import Array, DType
from quantkit.ir.text import from_text
from quantkit.ops.weights import find_weights
from quantkit.recipes import rewrite
from quantkit.runtimes import open_session
from quantkit.transforms.precision.prune_weights import prune_weights
from quantkit.transforms.precision.quantize_weights import quantize_weights

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(0, 1, (4, 6, 6, 4)).astype(np.float32)


def network() -> Graph:
    """Return a pruned convolution and a pruned product; the magnitudes of all other weights are from 0.5 to 1."""
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[?x6x6x4]()
        w = Const[3x3x4x8]()
        conv = Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1])
        relu = Relu(conv, T=float)
        axes = Const[int32]([1, 2])
        mean = Mean(relu, axes, T=float)
        v = Const[8x5]()
        y = MatMul(mean, v, T=float)
        """
    )
    weights = {name: constant(name, draw_weights(graph[name].value.shape)) for name in ("w", "v")}
    dense = Graph.of([weights.get(name, node) for name, node in graph.nodes.items()], graph.inputs, graph.outputs)
    return prune_weights(dense, sparsity=0.75, minimum_size=1)


def draw_weights(shape: tuple[int, ...]) -> Array:
    signs: Array = RANDOM.choice(np.array([-1, 1], np.float32), shape)
    return (signs * RANDOM.uniform(0.5, 1, shape)).astype(np.float32)


def count_zeros(graph: Graph) -> list[int]:
    return sorted(int(np.count_nonzero(weights.value.array == 0)) for weights in find_weights(graph))


def test_onnx_models_keep_exactly_the_zeros() -> None:
    pruned = network()
    quantized = qk.quantize(pruned, IMAGES, runs=0, scheme={"target": "onnx"}).model.graph
    assert all(weights.value.dtype is DType.INT8 and weights.zero_point == 0 for weights in find_weights(quantized))
    assert count_zeros(quantized) == count_zeros(pruned) == [30, 216]


@pytest.mark.engine
def test_tensorflow_models_keep_exactly_the_zeros() -> None:
    quantized = qk.quantize(network(), IMAGES, runs=0, scheme={"target": "tensorflow"}).model.graph
    values = [node.value for node in quantized.nodes.values() if node.is_constant]
    zeros = [int(np.count_nonzero(value.array == 0)) for value in values if value.dtype is DType.QINT8]
    assert sorted(zeros) == [30, 216]


def test_int8_constants_are_dequantized_to_exact_zeros() -> None:
    pruned = network()
    graph = quantize_weights(pruned, minimum_size=1).with_endpoints([], [Edge("w")])
    with open_session(graph, "reference") as session:
        (values,) = session.run({}).values()
    np.testing.assert_array_equal(values == 0, pruned["w"].value.array == 0)


def test_the_recipe_inference_keeps_the_zeros() -> None:
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x4]()
        w = Const[3x3x4x8]()
        conv = Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1])
        scale = Const([1.5, 0.5, 2.0, 1.0, 0.25, 3.0, 1.0, 0.75])
        offset = Const([0.5, 0.5, 0.0, 1.0, 0.25, 0.0, 1.0, 0.75])
        norm = FusedBatchNormV3(conv, scale, offset, offset, scale, T=float, U=float, epsilon=0.001, is_training=false)
        y = Relu(norm, T=float)
        """
    )
    pruned = prune_weights(graph, sparsity=0.75, minimum_size=1)
    folded = rewrite(pruned, "inference")
    assert "FusedBatchNormV3" not in folded.op_counts
    assert count_zeros(folded) == count_zeros(pruned) == [216]
