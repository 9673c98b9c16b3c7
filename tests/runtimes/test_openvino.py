import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import GraphError, InputError, UnavailableError
from quantkit.formats.files import load, save
from quantkit.formats.onnx.schema import message_class
from quantkit.runtimes import openvino as module
from quantkit.runtimes.openvino import RUNTIME, _translate_error, properties
from quantkit.runtimes.session import SessionOptions

pytestmark = pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail)

WEIGHTS = np.random.default_rng(0).uniform(-1, 1, (64, 64)).astype(np.float32)
CONVERSION = "Exception from a.cpp:1:\nCheck 'false' failed at b.cpp:2:\nFrontEnd API failed with GeneralFailure:\n"


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """OpenVINO file that multiplies x and WEIGHTS."""
    import openvino

    x = openvino.opset8.parameter([-1, 64], np.float32, name="x")
    y = openvino.opset8.matmul(x, openvino.opset8.constant(WEIGHTS), False, False, name="y")
    openvino.save_model(openvino.Model([y], [x]), tmp_path / "product.xml", compress_to_fp16=False)
    return tmp_path / "product.xml"


def error_of(path: Path, precision: str) -> float:
    """Return the largest difference from NumPy; the results are below 20."""
    with RUNTIME.open(path, SessionOptions(precision=precision)) as session:
        (result,) = session.run({session.inputs[0].name: WEIGHTS}).values()
    return float(np.abs(result - WEIGHTS @ WEIGHTS).max())


def test_float32_agrees_with_numpy(product: Path) -> None:
    assert error_of(product, "float32") < 1e-5


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_smaller_precision_is_used_or_rejected(product: Path, precision: str) -> None:
    try:
        error = error_of(product, precision)
    except UnavailableError as unavailable:
        pytest.skip(unavailable.message)
    assert 1e-4 < error < 0.2  # 8 or 11 bits of mantissa, not 24


def test_unknown_precision_is_rejected(product: Path) -> None:
    with pytest.raises(UnavailableError, match="'float8'"):
        RUNTIME.open(product, SessionOptions(precision="float8"))


@pytest.mark.parametrize(("threads", "is_bound"), [(1, False), (2, False), (4, True)])
def test_threads_are_bound_to_cores_only_if_they_use_all(
    threads: int, is_bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_cores", lambda: 4)
    assert ("ENABLE_CPU_PINNING" not in properties(SessionOptions(intra_op=threads))) == is_bound


@pytest.mark.parametrize(
    ("text", "is_file", "kind", "message"),
    [
        (
            CONVERSION + "Model can't be parsed\n\n",
            True,
            InputError,
            "OpenVINO cannot open m.xml: Model can't be parsed",
        ),
        (CONVERSION + "Bad shape\n", False, GraphError, "OpenVINO rejects m.xml: Bad shape"),
        (
            "Summary:\n-- No conversion rule found for operations: Foo-18, Bar-17\n",
            False,
            UnavailableError,
            "OpenVINO has no Foo, Bar, which m.xml uses",
        ),
        (
            CONVERSION + "Model wasn't fully converted.\n-- Conv-17 with a message:\nSummary:\n"
            "-- Conversion is failed for: Conv-17\n",
            False,
            UnavailableError,
            "OpenVINO cannot run Conv, which m.xml uses",
        ),
        (
            CONVERSION + "Unsupported operation of type: Convert name: y\n",
            True,
            UnavailableError,
            "OpenVINO cannot run Convert, which m.xml uses",
        ),
        ("", False, GraphError, "OpenVINO rejects m.xml: no reason"),
    ],
)
def test_error_is_one_line(text: str, is_file: bool, kind: type[Exception], message: str) -> None:
    error = _translate_error(RuntimeError(text), "m.xml", is_file=is_file)
    assert type(error) is kind
    assert error.message == message
    assert error.hint


def test_the_first_calls_of_two_threads_do_not_block_each_other(product: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from threading import Barrier, Thread; import numpy as np\n"
        "from quantkit.runtimes import open_session; from quantkit.runtimes.session import SessionOptions\n"
        "session = open_session(Path(sys.argv[1]), 'openvino', SessionOptions(streams=2)); barrier = Barrier(2)\n"
        "feeds = {info.name: np.ones([size or 1 for size in info.shape.dims], np.float32) for info in session.inputs}\n"
        "threads = [Thread(target=lambda: (barrier.wait(), session.run(feeds))) for _ in range(2)]\n"
        "sys.setswitchinterval(1e-6); [thread.start() for thread in threads]; [thread.join() for thread in threads]"
    )
    subprocess.run([sys.executable, "-c", script, str(product)], timeout=60, check=True)


def test_opening_a_session_loads_no_telemetry(product: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import sys; from pathlib import Path; from quantkit.runtimes import open_session\n"
        "with open_session(Path(sys.argv[1]), 'openvino'): pass\n"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry')])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"HOME": str(home)}
    command = [sys.executable, "-c", script, str(product)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert not list(home.iterdir())


def test_an_impossible_opset_is_rejected_before_openvino_tries_all_versions(tmp_path: Path) -> None:
    message = message_class("ModelProto")(ir_version=8)
    message.opset_import.add(version=2**31 - 1)
    message.graph.node.add(op_type="Relu", input=["x"], output=["y"])
    path = tmp_path / "m.onnx"
    path.write_bytes(message.SerializeToString())
    with pytest.raises(InputError, match="the version 2147483647 of the operator set 'ai.onnx' is impossible"):
        RUNTIME.open(path, SessionOptions())


@pytest.mark.parametrize("is_file", [True, False])
def test_ops_of_onnxruntime_are_read_without_log_lines(
    is_file: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message = message_class("ModelProto")(ir_version=8)
    message.opset_import.add(version=17)
    message.opset_import.add(domain="com.microsoft", version=1)
    message.graph.node.add(op_type="QuickGelu", domain="com.microsoft", input=["x"], output=["y"])
    for info in (message.graph.input.add(name="x"), message.graph.output.add(name="y")):
        info.type.tensor_type.elem_type = 1
        info.type.tensor_type.shape.dim.add(dim_value=3)
    path = tmp_path / "m.onnx"
    path.write_bytes(message.SerializeToString())
    save(load(path), path)
    importlib.import_module("openvino").Core().read_model(path)
    x = np.array([-1, 0, 2], np.float32)
    with RUNTIME.open(path if is_file else load(path), SessionOptions()) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], x / (1 + np.exp(-1.702 * x)), rtol=1e-5)
    assert capfd.readouterr().err == ""
