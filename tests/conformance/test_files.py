"""Files that runtimes open without a conversion; each other runtime rejects them by name."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import UnavailableError
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes import Runtime, find_runtime, open_session

onnx = pytest.importorskip("onnx", reason="pip install onnx")

WEIGHTS = np.random.default_rng(0).uniform(-1, 1, (32, 16)).astype(np.float32)


@pytest.fixture(params=["inside", "external"])
def onnx_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """MatMul whose weights are stored in the file, or in an external file as for models over 2 GB."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("MatMul", ["x", "weights"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(WEIGHTS, "weights")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "small.onnx"
    is_external = request.param == "external"
    onnx.save_model(model, path, save_as_external_data=is_external, size_threshold=0, location="weights.bin")
    return path


def test_onnx_file_runs(runtime: Runtime, onnx_file: Path) -> None:
    if "onnx" not in runtime.kinds:
        with pytest.raises(UnavailableError, match=r"small\.onnx"):
            runtime.open(onnx_file)
        return
    with runtime.open(onnx_file) as session:
        assert [(info.name, info.dtype, info.shape) for info in session.inputs] == [
            ("x", DType.FLOAT, Shape((None, 32)))
        ]
        x = np.ones((3, 32), np.float32)
        np.testing.assert_allclose(session.run({"x": x})["y"], x @ WEIGHTS, rtol=1e-5, atol=1e-5)


def test_auto_opens_an_onnx_file(onnx_file: Path) -> None:
    with open_session(onnx_file) as session:
        assert "onnx" in find_runtime(session.runtime.name).kinds


def test_openvino_file_runs(tmp_path: Path, runtime: Runtime) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install openvino")
    x = openvino.opset8.parameter([2, 3], np.float32, name="x")
    path = tmp_path / "small.xml"
    openvino.save_model(openvino.Model([openvino.opset8.relu(x, name="y")], [x]), path)
    if "openvino" not in runtime.kinds:
        with pytest.raises(UnavailableError, match=r"small\.xml"):
            runtime.open(path)
        return
    with runtime.open(path) as session:
        (result,) = session.run({session.inputs[0].name: np.full((2, 3), -1, np.float32)}).values()
    assert not result.any()
