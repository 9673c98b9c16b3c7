"""Embeddings whose table is also the weights of the output projection: stored once, in int8."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.ir.tensor import DType

RANDOM = np.random.default_rng(0)


@pytest.mark.engine
@pytest.mark.parametrize("ids_shape", [(1, 7), (1,)])
@pytest.mark.parametrize("projection", ["transpose", "gemm"])
def test_a_tied_embedding_is_stored_once(projection: str, ids_shape: tuple[int, ...], tmp_path: Path) -> None:
    package = pytest.importorskip("onnx")
    if projection == "gemm" and len(ids_shape) > 1:
        pytest.skip("Gemm takes matrices")
    make, info = package.helper.make_node, package.helper.make_tensor_value_info
    table = RANDOM.standard_normal((1000, 32)).astype(np.float32)
    weights = (RANDOM.standard_normal((32, 32)) * 0.2).astype(np.float32)
    last: list[Any] = [make("Gemm", ["r", "E"], ["y"], transB=1)]
    if projection == "transpose":
        last = [make("Transpose", ["E"], ["t"], perm=[1, 0]), make("MatMul", ["r", "t"], ["y"])]
    graph = package.helper.make_graph(
        [make("Gather", ["E", "ids"], ["e"]), make("MatMul", ["e", "w"], ["h"]), make("Relu", ["h"], ["r"]), *last],
        "g",
        [info("ids", 7, ids_shape)],
        [info("y", 1, None)],
        [package.numpy_helper.from_array(value, name) for name, value in {"E": table, "w": weights}.items()],
    )
    model = package.helper.make_model(graph, opset_imports=[package.helper.make_opsetid("", 17)], ir_version=8)
    package.save(model, tmp_path / "tied.onnx")
    samples = RANDOM.integers(0, 1000, (24, *ids_shape[1:]))
    report = qk.quantize(tmp_path / "tied.onnx", samples, runs=0, output=tmp_path / "q.onnx").report
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 25
    graph = qk.load(tmp_path / "q.onnx").graph
    sizes = [node.value for node in graph.nodes.values() if node.is_constant and node.value.num_elements == table.size]
    assert [value.dtype for value in sizes] == [DType.INT8]
    assert report.num_bytes < 0.5 * report.float_num_bytes


@pytest.mark.engine
def test_layers_that_share_weights_along_other_axes_are_int8() -> None:
    package = pytest.importorskip("onnx")
    make, info = package.helper.make_node, package.helper.make_tensor_value_info
    weights = (RANDOM.standard_normal((32, 32)) * 0.2).astype(np.float32)
    graph = package.helper.make_graph(
        [make("MatMul", ["x", "w"], ["a"]), make("Relu", ["a"], ["b"]), make("Gemm", ["b", "w"], ["y"], transB=1)],
        "g",
        [info("x", 1, (4, 32))],
        [info("y", 1, (4, 32))],
        [package.numpy_helper.from_array(weights, "w")],
    )
    model = package.helper.make_model(graph, opset_imports=[package.helper.make_opsetid("", 17)], ir_version=8)
    report = qk.quantize(model, RANDOM.standard_normal((16, 4, 32)).astype(np.float32), runs=0).report
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 25
