"""Sparse and clustered weights in `summarize`."""

import zlib

import numpy as np
import pytest

from quantkit.ir.graph import Graph, constant
from quantkit.ir.tensor import Array
from quantkit.ir.text import from_text
from quantkit.summary import compressibility, summarize
from quantkit.transforms.precision.prune_weights import prune_weights

RANDOM = np.random.default_rng(0)
DENSE = RANDOM.normal(0, 1, (64, 32)).astype(np.float32)


def network(values: Array) -> Graph:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[1x64]()\nw = Const[64x32]()\ny = MatMul(x, w, T=float)")
    return Graph.of([graph["x"], constant("w", values), graph["y"]], ["x"], ["y"])


def test_sparse_weights_are_counted_and_compressed() -> None:
    graph = prune_weights(network(DENSE), sparsity=0.8)
    summary = summarize(graph)
    measured = summary.compressibility
    assert measured is not None
    assert measured.to_json() == {
        "layers": 1,
        "weights": 2048,
        "zeros": 1638,
        "sparsity": 1638 / 2048,
        "layers_2_4": 0,
        "clustered_layers": 0,
        "distinct_values": None,
        "num_bytes": 8192,
        "compressed_bytes": len(zlib.compress(graph["w"].value.array.tobytes())),
    }
    assert "80.0% zeros in 1 layers; 0.01 MB, 0.00 MB with zlib" in str(summary)
    assert summary.to_json()["compressibility"]["zeros"] == 1638


def test_the_pattern_is_reported_along_the_input_channels() -> None:
    measured = summarize(prune_weights(network(DENSE), pattern="2:4")).compressibility
    assert measured is not None
    assert (measured.layers_2_4, measured.sparsity) == (1, 0.5)
    assert "2:4 pattern in 1" in str(measured)
    across = prune_weights(network(np.ascontiguousarray(DENSE.reshape(32, 64).T)), sparsity=0.5)
    measured = summarize(across).compressibility
    assert measured is not None
    assert measured.layers_2_4 == 0


def test_distinct_values_of_clustered_weights() -> None:
    measured = summarize(network(RANDOM.choice(np.array([-1, 0.5, 2], np.float32), (64, 32)))).compressibility
    assert measured is not None
    assert (measured.clustered_layers, measured.distinct_values, measured.zeros) == (1, 3, 0)
    assert "at most 3 distinct values in each of 1" in str(measured)


def test_few_distinct_values_of_a_pruned_tensor_are_not_clusters() -> None:
    measured = summarize(prune_weights(network(DENSE), sparsity=0.9)).compressibility
    assert measured is not None
    assert measured.clustered_layers == 0
    assert len(np.unique(prune_weights(network(DENSE), sparsity=0.9)["w"].value.array)) <= 256


def test_clusters_are_counted_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressibility, "DISTINCT_SAMPLE", 512)
    values = DENSE.copy()
    values.reshape(-1)[:512] = 1
    assert summarize(network(values)).compressibility is None
    values = RANDOM.choice(np.array([1, 2], np.float32), (64, 32))
    values.reshape(-1)[-1] = 3
    measured = summarize(network(values)).compressibility
    assert measured is not None
    assert measured.distinct_values == 3


def test_dense_and_small_weights_are_not_reported() -> None:
    summary = summarize(network(DENSE))
    assert summary.compressibility is None
    assert summary.to_json()["compressibility"] is None
    assert "zlib" not in str(summary)


def test_zeros_of_quantized_weights_are_their_zero_point() -> None:
    graph = from_text(
        """
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x64](dtype=float)
        q = Constant[uint8 64x32]()
        scale = Constant(0.5)
        zero = Constant[uint8](128)
        w = DequantizeLinear(q, scale, zero)
        y = MatMul(x, w)
        """
    )
    quantized = RANDOM.choice(np.array([1, 128], np.uint8), (64, 32))
    nodes = {**graph.nodes, "q": constant("q", quantized).with_(op="Constant")}
    measured = summarize(Graph.of(list(nodes.values()), ["x"], ["y"]).with_(dialect="onnx")).compressibility
    assert measured is not None
    assert measured.zeros == np.count_nonzero(quantized == 128)
