"""TensorFlow graphs converted to ONNX and back: equal outputs."""

import numpy as np
from hypothesis import given, settings
from network_graphs import compute_outputs, network_graphs

import quantkit as qk
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.convert.to_onnx import to_onnx_graph
from quantkit.ir.graph import Graph


@settings(max_examples=30)
@given(network_graphs())
def test_outputs_after_a_round_trip_are_equal(graph: Graph) -> None:
    compare(graph)


def test_outputs_of_the_bundled_network_are_equal() -> None:
    compare(qk.transform("digits", "inference").graph)


def compare(graph: Graph) -> None:
    expected = compute_outputs(graph).values()
    outputs = compute_outputs(as_tensorflow(to_onnx_graph(graph))).values()
    for values, others in zip(expected, outputs, strict=True):
        scale = float(np.abs(values).max(initial=0)) or 1.0
        np.testing.assert_allclose(others, values, rtol=1e-5, atol=1e-5 * scale)
