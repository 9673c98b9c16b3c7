"""Tests of the replacement of the batch norm of the 2015 release."""

import numpy as np
import pytest
from conformance_cases import placeholder

import quantkit as qk
from quantkit.convert.batch_norms import replace_old_batch_norms
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType

FLOAT = DType.FLOAT
PARAMETERS = {"mean": [1, 2], "variance": [3, 4], "beta": [5, 6], "gamma": [7, 8]}


def old_batch_norm(*, is_scaled: bool, gamma: str = "gamma") -> Graph:
    attrs = {"T": FLOAT, "variance_epsilon": 0.5, "scale_after_normalization": is_scaled}
    inputs = tuple(map(Edge, ("x", "mean", "variance", "beta", gamma)))
    nodes = [
        placeholder("x", FLOAT, 1, 2, 3, 2),
        placeholder("scale", FLOAT, 2),
        *(constant(name, np.float32(values)) for name, values in PARAMETERS.items()),
        Node("y", "BatchNormWithGlobalNormalization", inputs, attrs=attrs),
    ]
    return Graph.of(nodes, ["x"], ["y"])


@pytest.mark.engine
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "litert"])
def test_converted_batch_norm_has_the_values_of_the_graph(runtime: str, is_scaled: bool) -> None:
    graph = old_batch_norm(is_scaled=is_scaled)
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 2, 3, 2)).astype(np.float32)}
    with qk.open_session(graph, "reference") as reference, qk.open_session(graph, runtime) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], reference.run(feeds)["y"], rtol=1e-5, atol=1e-5)


def test_batch_norm_without_scale_and_with_a_variable_gamma_is_kept() -> None:
    graph = old_batch_norm(is_scaled=False, gamma="scale")
    assert replace_old_batch_norms(graph)["y"] == graph["y"]


def test_graph_without_old_batch_norms_is_unchanged() -> None:
    graph = replace_old_batch_norms(old_batch_norm(is_scaled=True))
    assert replace_old_batch_norms(graph) is graph


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "litert"])
def test_every_runtime_opens_digits(runtime: str) -> None:
    with qk.open_session("digits", runtime) as session:
        assert session.runtime.name == runtime
