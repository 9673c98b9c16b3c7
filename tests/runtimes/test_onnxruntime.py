import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import GraphError, InputError, UnavailableError, UsageError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes import onnxruntime as module
from quantkit.runtimes.availability import Availability
from quantkit.runtimes.onnxruntime import (
    CPU,
    CUDA,
    RUNTIME,
    TENSORRT,
    TENSORRT_RUNTIME,
    _info,
    _native_options,
    _providers,
    _translate_error,
)
from quantkit.runtimes.session import SessionOptions

pytestmark = pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail)


class Build:
    """Module `onnxruntime` with other execution providers."""

    __version__ = "1.0"

    def __init__(self, *providers: str) -> None:
        self.get_available_providers = lambda: list(providers)


class Argument:
    def __init__(self, kind: str, shape: list[object] | None) -> None:
        self.name, self.type, self.shape = "x", kind, shape


def test_error_of_a_build_without_cuda_names_the_package() -> None:
    with pytest.raises(UnavailableError, match="cannot use a GPU, only CPUExecutionProvider") as caught:
        _providers(Build(CPU), 0)
    assert "onnxruntime-gpu" in caught.value.hint


def test_cpu_is_the_fallback_of_a_gpu() -> None:
    providers = _providers(Build(CUDA, CPU), 1)
    assert providers[0][0] == CUDA
    assert providers[0][1]["device_id"] == 1
    assert providers[1] == CPU
    assert _providers(Build(CUDA, CPU), None) == [CPU]


def test_tensorrt_leaves_other_ops_to_cuda() -> None:
    providers = _providers(Build(TENSORRT, CUDA, CPU), 1, TENSORRT, has_half=True)
    assert [name if isinstance(name, str) else name[0] for name in providers] == [TENSORRT, CUDA, CPU]
    assert providers[0][1] == {"device_id": 1, "trt_int8_enable": True, "trt_fp16_enable": True}
    assert not _providers(Build(TENSORRT, CUDA, CPU), 0, TENSORRT)[0][1]["trt_fp16_enable"]


def test_tensorrt_needs_its_provider_and_a_gpu() -> None:
    with pytest.raises(UnavailableError, match="cannot use a GPU, only CUDAExecutionProvider"):
        _providers(Build(CUDA), 0, TENSORRT)
    runtime = replace(TENSORRT_RUNTIME, available=lambda: Availability.yes("1.0"))
    with pytest.raises(UnavailableError, match="TensorRT in ONNX Runtime computes on GPUs only") as caught:
        runtime.open(relu_graph())
    assert caught.value.hint == "use --device gpu"


class ScriptedBuild(Build):
    """Module `onnxruntime` that runs on the CPU, and reports the provider of a script as the first one."""

    def __init__(self, first: str) -> None:
        import onnxruntime

        super().__init__(TENSORRT, CUDA, CPU)
        self.SessionOptions, self.GraphOptimizationLevel = onnxruntime.SessionOptions, None

        class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
            def __init__(self, source: object, config: object, providers: list[object]) -> None:
                super().__init__(source, config, providers=[CPU])

            def get_providers(self) -> list[str]:
                return [first, CPU]

            def io_binding(self) -> ScriptedBinding:
                return ScriptedBinding(super().io_binding(), bound)

        class OrtValue:
            @staticmethod
            def ortvalue_from_numpy(array: object, device: str, index: int) -> object:
                bound.append(f"{device}:{index}")
                return onnxruntime.OrtValue.ortvalue_from_numpy(array)

        self.bound = bound = list[str]()
        self.InferenceSession, self.OrtValue = InferenceSession, OrtValue


class ScriptedBinding:
    """Binding of a session on the CPU, which records the devices of its outputs."""

    def __init__(self, binding: Any, bound: list[str]) -> None:
        self._binding, self._bound = binding, bound
        self._iobinding = binding._iobinding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def bind_output(self, name: str, device: str, index: int) -> None:
        self._bound.append(f"{name} {device}:{index}")
        self._binding.bind_output(name)


@pytest.mark.engine
def test_the_session_is_that_of_tensorrt_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((2,))})
    graph = Graph.of([x, Node("y", "Relu", (Edge("x"),))], ["x"], ["y"], dialect="onnx")
    runtime = replace(TENSORRT_RUNTIME, available=lambda: Availability.yes("1.0"))
    for first in (TENSORRT, CUDA):
        monkeypatch.setattr(module, "_module", lambda first=first: ScriptedBuild(first))
        if first == CUDA:
            with pytest.raises(UnavailableError, match="could not start TensorRT") as caught:
                runtime.open(graph, SessionOptions(device="gpu"))
            assert "tensorrt>=10" in caught.value.hint
        else:
            with runtime.open(graph, SessionOptions(device="gpu", precision="float16")) as session:
                assert (session.runtime.name, session.runtime.device) == ("tensorrt", TENSORRT)
                assert session.run({"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, 2]


@pytest.mark.engine
def test_copies_to_and_from_a_gpu_are_parts_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    build, readings = ScriptedBuild(CUDA), iter([1.0, 2.0, 5.0, 9.0])
    monkeypatch.setattr(module, "_module", lambda: build)
    x = np.ones((1, 2), np.float32)
    with RUNTIME.open(relu_graph(), SessionOptions(device="gpu:1")) as session:
        parts = session.time_parts({"x": x}, lambda: next(readings))
    assert parts == {"upload": 1.0, "infer": 3.0, "download": 4.0}
    assert build.bound == ["cuda:1", "y cuda:1"]
    with RUNTIME.open(relu_graph()) as session:
        assert session.time_parts({"x": x}, lambda: next(readings)) == {}, "the CPU has no copies"


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_other_precisions_are_rejected(precision: str) -> None:
    with pytest.raises(UnavailableError, match=precision):
        RUNTIME.open(Graph.of([]), SessionOptions(precision=precision))


def test_graphs_of_other_dialects_are_rejected() -> None:
    with pytest.raises(UnavailableError, match="not circle graphs"):
        RUNTIME.open(Graph.of([], dialect="circle"))


def test_onnx_graphs_need_no_conversion() -> None:
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 2))})
    graph = Graph.of([x, Node("y", "HardSwish", (Edge("x"),))], ["x"], ["y"], dialect="onnx")
    with RUNTIME.open(graph) as session:
        assert session.run({"x": np.full((1, 2), 3, np.float32)})["y"].tolist() == [[3, 3]]


def test_file_of_another_runtime_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "small.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    with pytest.raises(UnavailableError, match=r"small\.tflite"):
        RUNTIME.open(path)


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        ("tensor(float)", [1, "n", None], (DType.FLOAT, Shape((1, None, None)))),
        ("tensor(float16)", [], (DType.HALF, Shape(()))),
        ("tensor(uint8)", None, (DType.UINT8, Shape(None))),
    ],
)
def test_type_and_shape_of_an_argument(kind: str, shape: list[object] | None, expected: tuple[DType, Shape]) -> None:
    info = _info(Argument(kind, shape))
    assert (info.dtype, info.shape) == expected


def test_sequences_are_rejected() -> None:
    with pytest.raises(UnavailableError, match=r"seq\(tensor\(float\)\)"):
        _info(Argument("seq(tensor(float))", []))


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : parsing failed.", InputError, "a.onnx is not an ONNX model"),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no Foo(1) node", UnavailableError, "cannot run a.onnx: no Foo"),
        ("[ONNXRuntimeError] : 10 : INVALID_GRAPH : No Op registered for Foo", UnavailableError, "registered for Foo"),
        ("[ONNXRuntimeError] : 10 : INVALID_GRAPH : a cycle\nmore", GraphError, "rejects a.onnx: a cycle"),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running MatMul node. Name:'m' "
            "Status Message: matmul_helper.h:59 Compute MatMul dimension mismatch",
            GraphError,
            "node 'm' (MatMul): ONNX Runtime rejects it: MatMul dimension mismatch",
        ),
        ("", GraphError, "RuntimeError"),
    ],
)
def test_error_is_one_line(text: str, kind: type[Exception], message: str) -> None:
    error = _translate_error(RuntimeError(text), "a.onnx")
    assert type(error) is kind
    assert message in error.message
    assert "\n" not in error.message
    assert error.hint


def test_opening_a_session_reports_no_usage(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="pip install onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "small", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "small.onnx")
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import sys, numpy; from pathlib import Path; from quantkit.runtimes import find_runtime\n"
        "with find_runtime('onnxruntime').open(Path(sys.argv[1])) as session:\n"
        "    print(session.run(numpy.float32([-1, 2]))['y'].tolist())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "small.onnx")]
    calls = tmp_path / "calls"
    if shutil.which("strace"):
        command = ["strace", "-f", "-e", "trace=socket,connect", "-o", str(calls), *command]
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "XDG_DATA_HOME": str(home / "data")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[0.0, 2.0]\n"
    assert not list(home.iterdir())
    assert not calls.exists() or "socket(" not in calls.read_text()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the registration of libraries; return the registered ones."""
    import onnxruntime

    libraries: list[str] = []

    class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
        def register_custom_ops_library(self, library: str) -> None:
            libraries.append(library)

    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    return libraries


def test_each_session_in_the_block_registers_the_libraries(registered: list[str], tmp_path: Path) -> None:
    files = [tmp_path / "a:1.so", tmp_path / "b.so"]
    for file in files:
        file.touch()
    before = dict(os.environ)
    with qk.custom_op_library(files[0]), qk.custom_op_library(str(files[1]), files[0]):
        registered.clear()
        with RUNTIME.open(relu_graph()):
            pass
        assert registered == list(map(str, files))
        code = "import os; print(os.environ['QUANTKIT_CUSTOM_OP_LIBRARY'])"
        assert subprocess.check_output([sys.executable, "-c", code], text=True).split("\n")[:2] == registered
        assert f"register_custom_ops_library({str(files[1])!r})" in _native_options(SessionOptions(), "'m.onnx'")
    assert {**os.environ, "ORT_DISABLE_TELEMETRY": ""} == {**before, "ORT_DISABLE_TELEMETRY": ""}
    registered.clear()
    with RUNTIME.open(relu_graph()):
        assert not registered


def test_only_ops_of_a_library_are_custom_ops_of_the_runtime(registered: list[str], tmp_path: Path) -> None:
    assert not RUNTIME.has_custom_op("com.microsoft.QGemm")  # no library: ONNX Runtime is not asked
    (tmp_path / "a.so").touch()
    with qk.custom_op_library(tmp_path / "a.so"):
        assert RUNTIME.has_custom_op("com.microsoft.QGemm")
        assert not RUNTIME.has_custom_op("com.acme.Acme")
        assert not RUNTIME.has_custom_op("com.microsoft.Acme")


def test_missing_and_rejected_libraries_are_input_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"missing\.so does not exist"), qk.custom_op_library("missing.so"):
        pytest.fail("the block runs")
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"x")
    with pytest.raises(InputError, match=r"rejects the custom op library .*broken\.so: "), qk.custom_op_library(broken):
        pytest.fail("the block runs")
    assert "QUANTKIT_CUSTOM_OP_LIBRARY" not in os.environ
    monkeypatch.setenv("QUANTKIT_CUSTOM_OP_LIBRARY", str(broken))  # as in a worker process
    with pytest.raises(InputError, match=r"broken\.so"):
        RUNTIME.open(relu_graph())
    with pytest.raises(InputError, match=r"broken\.so"):
        RUNTIME.has_custom_op("com.acme.Acme")


@pytest.mark.parametrize("files", [(), ("",), (["a.so"],), (None,)])
def test_values_that_are_not_paths_of_libraries(files: tuple[object, ...]) -> None:
    with pytest.raises(UsageError), qk.custom_op_library(*files):  # type: ignore[arg-type]
        pytest.fail("the block runs")


def relu_graph() -> Graph:
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 2))})
    return Graph.of([x, Node("y", "Relu", (Edge("x"),))], ["x"], ["y"], dialect="onnx")
