"""Tests of `quantkit.runtimes.tensorrt`: parsing and building in TensorRT-RTX, and runs with a scripted API.

The scripted driver has its buffers in the memory of the host, and the scripted program computes with NumPy.
"""

import ctypes
import pickle
from collections.abc import Iterator
from enum import Enum, IntEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import GraphError, UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.runtimes import open_session
from quantkit.runtimes import tensorrt as module
from quantkit.runtimes.availability import Availability
from quantkit.runtimes.session import SessionOptions
from quantkit.runtimes.tensorrt import RUNTIME, Network

needs_package = pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="pip install tensorrt-rtx==1.7.1.116")
GPU = SessionOptions(device="gpu:1")
HEADER = onnx.header({"y": (DType.FLOAT, UNKNOWN), "sum": (DType.FLOAT, UNKNOWN)})


def graph_of(sizes: str = "2x3") -> Graph:
    text = f"""
    dialect: onnx
    inputs: x, bias
    outputs: y, sum
    x = Placeholder[{sizes}](dtype=float)
    bias = Placeholder[3](dtype=float)
    sum = Add(x, bias)
    y = Relu(sum)
    """
    return from_text(text).with_(extra=HEADER)


FEEDS = {"x": np.array([[-1, 2, 3], [4, -5, 6]], np.float32), "bias": np.array([0, 1, -8], np.float32)}
Y = [[0, 3, 0], [4, 0, 0]]


class ScriptedDriver:
    """Driver of CUDA with the memory of the host; functions return 0, or the status of `failures`."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.contexts: set[int] = set()
        self.is_unsupported = False
        self.pending = 0
        self.failures: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return lambda *arguments: 0
        return lambda *arguments: self.failures.get(name) or getattr(self, f"_{name}")(*arguments) or 0

    def _cuDeviceGet(self, device: Any, index: int) -> None:
        device._obj.value = index

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:
        context._obj.value = 7 + device.value
        self.contexts.add(context._obj.value)

    def _cuDevicePrimaryCtxRelease_v2(self, device: Any) -> None:
        self.contexts.remove(7 + device.value)

    def _cuStreamCreate(self, stream: Any, flags: int) -> None:
        stream._obj.value = 70 + flags

    def _cuMemAlloc_v2(self, pointer: Any, size: Any) -> None:
        buffer = ctypes.create_string_buffer(size.value)
        pointer._obj.value = ctypes.addressof(buffer)
        self.memory[pointer._obj.value] = buffer

    def _cuMemFree_v2(self, pointer: Any) -> None:
        del self.memory[pointer.value]

    def _cuMemcpyHtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> None:
        assert size.value <= len(self.memory[target.value])
        assert stream.value == 71
        ctypes.memmove(target.value, source.value, size.value)
        self.pending += 1

    def _cuMemcpyDtoHAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> None:
        self._cuMemcpyHtoDAsync_v2(SimpleNamespace(value=source.value), target, SimpleNamespace(value=0), stream)
        assert size.value <= len(self.memory[source.value])
        ctypes.memmove(target.value, source.value, size.value)

    def _cuStreamSynchronize(self, stream: Any) -> None:
        self.pending = 0

    def _cuGetErrorName(self, status: int, text: Any) -> None:
        text._obj.value = {2: b"CUDA_ERROR_OUT_OF_MEMORY", 101: b"CUDA_ERROR_INVALID_DEVICE"}[status]


class ILogger:
    class Severity(IntEnum):
        ERROR = 1
        WARNING = 2

    def log(self, severity: Severity, message: str) -> None:
        raise NotImplementedError


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1


class BuilderFlag(IntEnum):
    TF32 = 7


class DataType(Enum):
    FLOAT = 0
    INT64 = 1


class OnnxParser:
    def __init__(self, network: Any, logger: ILogger) -> None:
        self.network = network

    def parse(self, model: bytes, path: str | None = None) -> bool:
        graph = onnx.decode(model)
        self.network.model = model

        def tensors(edges: Any) -> list[Any]:
            shapes: dict[str, Any] = {
                str(edge): graph[edge.node].attrs.get("shape", Shape((None, 3))) for edge in edges
            }
            return [
                SimpleNamespace(name=name, dtype=DataType.FLOAT, shape=tuple(size or -1 for size in shape.dims))
                for name, shape in shapes.items()
            ]

        inputs, outputs = tensors(graph.inputs), tensors(graph.outputs)
        self.network.num_inputs, self.network.num_outputs = len(inputs), len(outputs)
        self.network.get_input, self.network.get_output = inputs.__getitem__, outputs.__getitem__
        return True


class Builder:
    """Builder that serializes the model with its profile, and counts the programs."""

    count = 0

    def __init__(self, logger: ILogger) -> None:
        self.logger = logger

    def create_network(self, flags: int) -> Any:
        assert flags == 2
        return SimpleNamespace()

    def create_builder_config(self) -> Any:
        profiles: list[Any] = []
        return SimpleNamespace(profiles=profiles, add_optimization_profile=profiles.append, clear_flag=BuilderFlag)

    def create_optimization_profile(self) -> Any:
        limits: dict[str, Any] = {}
        return SimpleNamespace(
            limits=limits, set_shape=lambda name, least, usual, most: limits.update({name: (least, usual, most)})
        )

    def build_serialized_network(self, network: Any, config: Any) -> bytes | None:
        limits = config.profiles[0].limits
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            if -1 in tensor.shape and tensor.name not in limits:
                self.logger.log(ILogger.Severity.ERROR, f"{tensor.name} has no profile\nmore")
                return None
        Builder.count += 1
        return pickle.dumps((network.model, limits))


def create_runtime(logger: ILogger) -> Any:
    def deserialize(serialized: bytes) -> Any:
        if DRIVER.is_unsupported:
            logger.log(ILogger.Severity.ERROR, "The engine cannot run on this GPU\nmore")
            return None
        return SimpleNamespace(create_execution_context=lambda: ScriptedContext(*pickle.loads(serialized)))

    return SimpleNamespace(deserialize_cuda_engine=deserialize)


class ScriptedContext:
    def __init__(self, model: bytes, limits: dict[str, Any]) -> None:
        self.graph, self.limits = onnx.decode(model), limits
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self.limits.get(name, (shape, shape, shape))
        self.shapes[name] = shape
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        outputs = self._compute({key: np.zeros(shape, np.float32) for key, shape in self.shapes.items()})
        return tuple(outputs[name].shape)

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        if not all(address in DRIVER.memory for address in self.addresses.values()) or DRIVER.pending:
            return False
        arrays = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}
        for name, array in arrays.items():
            ctypes.memmove(array.ctypes.data, self.addresses[name], array.nbytes)
        for name, array in self._compute(arrays).items():
            ctypes.memmove(self.addresses[name], np.ascontiguousarray(array).ctypes.data, array.nbytes)
        DRIVER.pending += 1
        return stream == 71

    def _compute(self, arrays: dict[str, Any]) -> dict[str, Any]:
        with open_session(self.graph, "reference") as session:
            return session.run(arrays)


DRIVER = ScriptedDriver()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedDriver]:
    """Install the scripted driver and API; a test that leaves memory or a context fails."""
    api = SimpleNamespace(
        __name__="tensorrt",
        __version__="10.9",
        **{each.__name__: each for each in (ILogger, Builder, OnnxParser, NetworkDefinitionCreationFlag)},
        BuilderFlag=BuilderFlag,
        Runtime=create_runtime,
    )
    DRIVER.__init__()  # type: ignore[misc]
    Builder.count = 0
    monkeypatch.setattr(module, "import_module", lambda name: api)
    monkeypatch.setattr(module, "find_spec", lambda name: name == "tensorrt")
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: DRIVER)
    monkeypatch.setattr(module, "find_package", lambda *names, **_: Availability.yes("10.9"))
    yield DRIVER
    assert DRIVER.memory == {}
    assert DRIVER.contexts == set()


def test_outputs_come_from_the_memory_of_the_gpu(scripted: ScriptedDriver) -> None:
    with RUNTIME.open(graph_of(), GPU) as session:
        assert str(session.runtime) == "tensorrt_native 10.9"
        assert [(info.name, info.dtype, info.shape) for info in session.inputs] == [
            ("x", DType.FLOAT, Shape((2, 3))),
            ("bias", DType.FLOAT, Shape((3,))),
        ]
        transposed = {**FEEDS, "x": np.asfortranarray(FEEDS["x"])}
        for feeds in (FEEDS, transposed):
            outputs = session.run(feeds)
            assert outputs["y"].tolist() == Y
            assert outputs["sum"].tolist() == (FEEDS["x"] + FEEDS["bias"]).tolist()
        assert len(scripted.memory) == 4
        assert scripted.contexts == {8}
    assert Builder.count == 1


def test_copies_are_parts_of_a_run(scripted: ScriptedDriver) -> None:
    readings = iter([1.0, 2.0, 5.0, 9.0])
    with RUNTIME.open(graph_of(), GPU) as session:
        assert session.time_parts(FEEDS, lambda: next(readings)) == {"upload": 1.0, "infer": 3.0, "download": 4.0}


def test_the_profile_has_the_sizes_of_all_samples(scripted: ScriptedDriver) -> None:
    with RUNTIME.open(graph_of("?x3"), GPU) as session:
        counts = []
        for rows in (4, 2, 3, 4, 5):
            x = np.ones((rows, 3), np.float32)
            assert session.run({"x": x, "bias": FEEDS["bias"]})["y"].shape == (rows, 3)
            counts.append(Builder.count)
    assert counts == [1, 2, 2, 2, 3]


def test_errors_of_the_driver_are_named(scripted: ScriptedDriver) -> None:
    scripted.failures = {"cuMemAlloc_v2": 2}
    with (
        RUNTIME.open(graph_of(), GPU) as session,
        pytest.raises(UnavailableError, match="cuMemAlloc_v2 of the CUDA driver: CUDA_ERROR_OUT_OF_MEMORY"),
    ):
        session.run(FEEDS)
    scripted.failures = {"cuDeviceGet": 101}
    with pytest.raises(UnavailableError, match="INVALID_DEVICE"):
        RUNTIME.open(graph_of(), GPU)


def test_a_gpu_without_memory_for_a_stream_is_released(scripted: ScriptedDriver) -> None:
    scripted.failures = {"cuStreamCreate": 2}
    with pytest.raises(UnavailableError, match="cuStreamCreate of the CUDA driver: CUDA_ERROR_OUT_OF_MEMORY"):
        RUNTIME.open(graph_of(), GPU)


def test_a_failed_build_for_a_sample_does_not_end_the_session(
    scripted: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Builder.build_serialized_network

    def build_small(self: Builder, network: Any, config: Any) -> bytes | None:
        return None if config.profiles[0].limits["x"][2][0] > 4 else build(self, network, config)

    monkeypatch.setattr(Builder, "build_serialized_network", build_small)
    with RUNTIME.open(graph_of("?x3"), GPU) as session:
        for rows in (2, 5, 2):
            feeds = {"x": np.ones((rows, 3), np.float32), "bias": FEEDS["bias"]}
            if rows == 5:
                with pytest.raises(GraphError):
                    session.run(feeds)
            else:
                assert session.run(feeds)["y"].shape == (rows, 3)


def test_errors_of_the_builder_are_one_line(scripted: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(module.import_module("tensorrt"), onnx.encode(graph_of("?x3")))
    with pytest.raises(GraphError, match="^x has no profile$"):
        network.build({})
    monkeypatch.setattr(ScriptedContext, "get_tensor_shape", lambda self, name: (-1, 3))
    with RUNTIME.open(graph_of(), GPU) as session, pytest.raises(UnavailableError, match="'y' depend on values"):
        session.run(FEEDS)


def test_an_unsupported_gpu_is_named(scripted: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted, "is_unsupported", True)
    with pytest.raises(
        UnavailableError, match="10.9 cannot use this GPU: The engine cannot run on this GPU$"
    ) as caught:
        RUNTIME.open(graph_of(), GPU)
    assert "--runtime onnxruntime" in str(caught.value.hint)


def test_a_gpu_is_necessary(monkeypatch: pytest.MonkeyPatch, scripted: ScriptedDriver) -> None:
    with pytest.raises(UnavailableError, match="TensorRT computes on GPUs only") as caught:
        RUNTIME.open(graph_of())
    assert caught.value.hint == "use --device gpu"

    def without_driver(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(module.ctypes, "CDLL", without_driver)
    with pytest.raises(UnavailableError, match="TensorRT 10.9 has no GPU here") as caught:
        RUNTIME.open(graph_of(), GPU)
    assert caught.value.hint == "install the driver of an NVIDIA GPU"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.runtimes.availability.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="TensorRT is not installed") as caught:
        RUNTIME.open(graph_of(), GPU)
    assert caught.value.hint == "pip install tensorrt"


@pytest.mark.engine
@needs_package
def test_tensorrt_rtx_builds_for_a_range_of_sizes() -> None:
    network = Network(import_module("tensorrt_rtx"), onnx.encode(graph_of("?x3")))
    assert [(info.name, info.dtype, info.shape) for info in network.inputs + network.outputs] == [
        ("x", DType.FLOAT, Shape((None, 3))),
        ("bias", DType.FLOAT, Shape((3,))),
        ("y", DType.FLOAT, Shape((None, 3))),
        ("sum", DType.FLOAT, Shape((None, 3))),
    ]
    assert b"relu" in network.build({"x": [(1, 3), (2, 3), (8, 3)]}).lower()
    with pytest.raises(GraphError, match="profile"):
        network.build({})


@pytest.mark.engine
@needs_package
def test_tensorrt_rtx_names_the_refused_node(tmp_path: Path) -> None:
    text = "dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[3x3](dtype=float)\ny = Det(x)"
    path = tmp_path / "det.onnx"
    qk.save(from_text(text).with_(extra=HEADER), path)
    with pytest.raises(GraphError, match=r"\(Det\)"):
        Network(import_module("tensorrt_rtx"), path.read_bytes(), str(path))


@pytest.mark.parametrize(
    ("ops", "step", "flags"),
    [
        ((), "Mul(x, x)", set()),
        (("QUANTIZE",), "Mul(x, x)", {"INT8"}),
        (("QUANTIZE",), "Mul(half, half)", {"INT8", "FP16"}),
        ((), "Cast(x, to=10)", {"FP16"}),
    ],
)
def test_before_tensorrt_10_the_flags_of_the_builder_follow_from_the_model(
    scripted: ScriptedDriver, monkeypatch: pytest.MonkeyPatch, ops: tuple[str, ...], step: str, flags: set[str]
) -> None:
    class OldNetwork(SimpleNamespace):
        def __iter__(self) -> Iterator[Any]:
            for op in ("CONVOLUTION", *ops):
                yield SimpleNamespace(type=op)

    api, set_flags = module.import_module("tensorrt"), []
    config = Builder.create_builder_config
    monkeypatch.setattr(Builder, "create_network", lambda self, flags: OldNetwork(flags=flags))
    monkeypatch.setattr(
        Builder,
        "create_builder_config",
        lambda self: SimpleNamespace(**vars(config(self)), set_flag=lambda flag: set_flags.append(flag)),
    )
    api.NetworkDefinitionCreationFlag = SimpleNamespace(EXPLICIT_BATCH=0)
    api.BuilderFlag = SimpleNamespace(TF32=7, INT8="INT8", FP16="FP16")
    api.LayerType = SimpleNamespace(QUANTIZE="QUANTIZE")
    text = f"""
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[2](dtype=float)
    half = Constant[half]([1.0, 2.0])
    y = {step}
    """
    graph = qk.transform(from_text(text), "strip_unused_nodes").graph
    network = Network(api, onnx.encode(graph.with_(extra=HEADER)))
    network.build({})
    assert network._network.flags == 1
    assert set(set_flags) == flags


def test_a_missing_builder_is_one_line(scripted: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Builder, logger: ILogger) -> None:
        logger.log(ILogger.Severity.ERROR, "Unable to load library\nmore")
        raise TypeError("pybind11::init(): factory function returned nullptr")

    monkeypatch.setattr(Builder, "__init__", fail)
    with pytest.raises(UnavailableError, match="^tensorrt 10.9 cannot build: Unable to load library"):
        RUNTIME.open(graph_of(), GPU)
