"""TensorRT by its Python API, or TensorRT-RTX by the same one: compiled ONNX models in the memory of a GPU.

A program computes the sizes of its optimization profile. A model with dynamic sizes is built for those of the first
sample, and built again for a sample that exceeds them. The types of the file are the types of the kernels; before
TensorRT 10, files with float16 permit it for all their float layers.
"""

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from quantkit.errors import GraphError, UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.runtimes.availability import Availability, find_package
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.runtime import Runtime
from quantkit.runtimes.session import RuntimeVersion, Session, SessionOptions, TensorInfo

# Module with the API, the preferred one first, and the distributions that contain it.
PACKAGES = (
    ("tensorrt", "tensorrt", "tensorrt_cu13", "tensorrt_cu12"),
    ("tensorrt_rtx", "tensorrt_rtx", "tensorrt_rtx_cu13", "tensorrt_rtx_cu12"),
)
# Library of the driver, which every machine with a GPU has.
DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# Flag of a stream that is independent of the default stream.
_NON_BLOCKING = 1
# Number of float16 in ONNX.
_FLOAT16 = 10
Profile = Mapping[str, Sequence[Sequence[int]]]


@cache
def _logger(base: Any) -> Any:
    """Return the logger of all objects of the API, which ignores a second one; ``errors`` has the last message."""

    class Logger(base):  # type: ignore[misc]
        errors: ClassVar[list[str]] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= base.Severity.ERROR:
                self.errors[:] = message.strip().splitlines()[:1]

    return Logger()


class Network:
    """ONNX model in the parser of TensorRT, which needs no GPU in TensorRT-RTX.

    Args:
        trt: module with the API.
        model: ModelProto bytes.
        path: file of the model, whose folder has its external data; empty without them.

    Attributes:
        trt, logger: module, and logger of all its objects.
        inputs, outputs: names, types and shapes; None for each dynamic size.

    Raises:
        GraphError: the parser refuses a node.
        UnavailableError: there is no builder.
    """

    def __init__(self, trt: Any, model: bytes, path: str = "") -> None:
        self.trt, self.logger = trt, _logger(trt.ILogger)
        try:
            self._builder = trt.Builder(self.logger)
        except TypeError as error:  # there is no object: the library, its driver or its kernels are missing or damaged
            raise UnavailableError(f"{trt.__name__} {trt.__version__} cannot build: {self.last_error}") from error
        flags = trt.NetworkDefinitionCreationFlag
        self._has_types = hasattr(flags, "STRONGLY_TYPED")  # TensorRT 10
        self._network = self._builder.create_network(
            1 << int(flags.STRONGLY_TYPED if self._has_types else flags.EXPLICIT_BATCH)
        )
        self._parser = trt.OnnxParser(self._network, self.logger)  # it holds the weights
        if not self._parser.parse(model, *[path] * bool(path)):
            fault = self._parser.get_error(0)
            is_named = hasattr(fault, "node_name")  # TensorRT 10
            node = f"{fault.node_name()!r} ({fault.node_operator()})" if is_named else fault.node()
            raise self._error(f"node {node}: {fault.desc()}")
        self._has_half = not self._has_types and _has_half(model, path)
        self.inputs = tuple(_info(self._network.get_input(index)) for index in range(self._network.num_inputs))
        self.outputs = tuple(_info(self._network.get_output(index)) for index in range(self._network.num_outputs))

    def build(self, profile: Profile) -> bytes:
        """Return the serialized program, a TensorRT engine.

        Args:
            profile: least, usual and largest sizes of each input with dynamic sizes, by name.

        Raises:
            GraphError: the builder fails.
        """
        config, sizes = self._builder.create_builder_config(), self._builder.create_optimization_profile()
        config.clear_flag(self.trt.BuilderFlag.TF32)
        if not self._has_types:
            if any(layer.type == self.trt.LayerType.QUANTIZE for layer in self._network):
                config.set_flag(self.trt.BuilderFlag.INT8)
            if self._has_half:
                config.set_flag(self.trt.BuilderFlag.FP16)
        for name, limits in profile.items():
            sizes.set_shape(name, *map(tuple, limits))
        config.add_optimization_profile(sizes)
        self.logger.errors.clear()  # without a driver, the first message is an error
        return bytes(self.check(self._builder.build_serialized_network(self._network, config)))

    def check(self, result: Any) -> Any:
        """Return the result of a function of the API.

        Raises:
            GraphError: there is no result; the message is the last error of the API.
        """
        if result is None or result is False:
            raise self._error(self.last_error)
        return result

    @property
    def last_error(self) -> str:
        """Last error of the API."""
        return next(iter(self.logger.errors), "TensorRT states no reason")

    def _error(self, reason: str) -> GraphError:
        return GraphError(reason, hint="quantkit summarize FILE --for tensorrt names refused nodes")


def _has_half(model: bytes, path: str) -> bool:
    """Return True if an input, a constant or a Cast is float16: TensorRT 8 states float32 for the layers then, too."""
    graph = onnx.decode(model, onnx.external_data_reader(Path(path).parent))
    nodes = graph.nodes.values()
    values = [value for node in nodes for value in node.attrs.values()]
    types = {
        value.dtype if isinstance(value, Tensor) else value for value in values if isinstance(value, Tensor | DType)
    }
    return DType.HALF in types or any(node.op == "Cast" and node.attrs.get("to") == _FLOAT16 for node in nodes)


def _info(tensor: Any) -> TensorInfo:
    dtype = DType.BFLOAT16 if tensor.dtype.name == "BF16" else DType[tensor.dtype.name]
    return TensorInfo(tensor.name, dtype, Shape(tuple(None if size < 0 else size for size in tensor.shape)))


class _Gpu:
    """Buffers and one stream of a GPU by the API of the driver: TensorRT allocates neither inputs nor outputs."""

    def __init__(self, index: int) -> None:
        self._library = ctypes.CDLL(DRIVER)
        self._device, self._context, self.stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._buffers: dict[str, tuple[ctypes.c_uint64, int]] = {}
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self._device), index)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        try:
            self.activate()
            self.call("cuStreamCreate", ctypes.byref(self.stream), _NON_BLOCKING)
        except UnavailableError:
            self.call("cuDevicePrimaryCtxRelease_v2", self._device)
            raise

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            UnavailableError: the function fails, for example without such a GPU, or without memory.
        """
        if status := getattr(self._library, function)(*arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            reason = (text.value or b"unknown error").decode()
            raise UnavailableError(f"{function} of the CUDA driver: {reason}", hint="nvidia-smi shows GPUs and memory")

    def activate(self) -> None:
        """Select the GPU for this thread."""
        self.call("cuCtxSetCurrent", self._context)

    def allocate(self, name: str, size: int) -> ctypes.c_uint64:
        """Return the address of a buffer of ``size`` bytes, which is kept until another size is necessary."""
        if name not in self._buffers or self._buffers[name][1] != size:
            self.free(name)
            pointer = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
            self._buffers[name] = pointer, size
        return self._buffers[name][0]

    def free(self, *names: str) -> None:
        """Free buffers, if there are any of these names."""
        for name in self._buffers.keys() & {*names}:
            self.call("cuMemFree_v2", self._buffers.pop(name)[0])

    def copy(self, arrays: Mapping[str, Array], *, to_gpu: bool) -> None:
        """Copy arrays to their buffers, or the buffers to the arrays, and synchronize the stream."""
        for name, array in arrays.items():
            ends = self._buffers[name][0], ctypes.c_void_p(array.ctypes.data)
            function = "cuMemcpyHtoDAsync_v2" if to_gpu else "cuMemcpyDtoHAsync_v2"
            self.call(function, *(ends if to_gpu else ends[::-1]), ctypes.c_size_t(array.nbytes), self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def close(self) -> None:
        """Release the memory and the stream."""
        self.activate()
        self.free(*self._buffers)
        self.call("cuStreamDestroy_v2", self.stream)
        self.call("cuDevicePrimaryCtxRelease_v2", self._device)


class _CompiledNetwork:
    """Program of a network on a GPU, for the sizes of all samples so far."""

    def __init__(self, network: Network, gpu: _Gpu) -> None:
        self._network, self._gpu, self._lock = network, gpu, Lock()
        self._limits: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._objects: tuple[Any, ...] = ()
        if all(info.shape.is_known for info in network.inputs):
            self._build({})

    def run(
        self, arrays: list[Array], clock: Callable[[], float] = perf_counter
    ) -> tuple[list[Array], Mapping[str, float]]:
        """Return the outputs, and the seconds of the copies to the GPU, of the kernels, and of the copies back."""
        network, gpu = self._network, self._gpu
        with self._lock:
            gpu.activate()
            inputs = {info.name: np.ascontiguousarray(each) for info, each in zip(network.inputs, arrays, strict=True)}
            self._fit({info.name: inputs[info.name].shape for info in network.inputs if not info.shape.is_known})
            context = self._objects[-1]
            for name, array in inputs.items():
                network.check(context.set_input_shape(name, array.shape))
            outputs = {info.name: np.empty(self._sizes_of(info.name), info.dtype.numpy) for info in network.outputs}
            for name, array in (inputs | outputs).items():
                context.set_tensor_address(name, gpu.allocate(name, array.nbytes).value)
            readings = [clock()]
            gpu.copy(inputs, to_gpu=True)
            readings.append(clock())
            network.check(context.execute_async_v3(gpu.stream.value))
            gpu.call("cuStreamSynchronize", gpu.stream)
            readings.append(clock())
            gpu.copy(outputs, to_gpu=False)
            readings.append(clock())
        return [*outputs.values()], dict(zip(("upload", "infer", "download"), np.diff(readings).tolist(), strict=True))

    def close(self) -> None:
        """Release the memory of the GPU."""
        self._objects = ()
        self._gpu.close()

    def _fit(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        """Build the program again if the dynamic sizes of a sample exceed its profile."""
        limits = {}
        for name, shape in sizes.items():
            low, high = self._limits.get(name, (shape, shape))
            limits[name] = tuple(map(min, low, shape)), tuple(map(max, high, shape))
        if limits != self._limits:
            self._limits = {}  # a failed build leaves no program
            self._build({name: (low, sizes[name], high) for name, (low, high) in limits.items()})
            self._limits = limits

    def _build(self, profile: Profile) -> None:
        network = self._network
        self._objects = ()  # the memory has one program at a time
        runtime = network.trt.Runtime(network.logger)
        if (program := runtime.deserialize_cuda_engine(network.build(profile))) is None:
            raise UnavailableError(
                f"{network.trt.__name__} {network.trt.__version__} cannot use this GPU: {network.last_error}",
                hint="TensorRT-RTX supports the cards of the RTX series, TensorRT also those of data centers: "
                "pip install tensorrt, or use --runtime onnxruntime",
            )
        self._objects = runtime, program, network.check(program.create_execution_context())

    def _sizes_of(self, output: str) -> tuple[int, ...]:
        if -1 in (sizes := tuple(self._objects[-1].get_tensor_shape(output))):
            raise UnavailableError(f"the sizes of output {output!r} depend on values", hint="use --runtime onnxruntime")
        return sizes


def _open(model: Graph | Path, options: SessionOptions) -> Session:
    """Open an ONNX file, with its external data if there is any, or a graph.

    Raises:
        UnavailableError: there is no such GPU, TensorRT does not support it, or it has too little memory.
        GraphError: TensorRT refuses the graph.
    """
    from quantkit.convert.to_onnx import to_onnx

    trt = import_module(next(module for module, *_ in PACKAGES if find_spec(module)))
    assert options.gpu_index is not None, "the runtime has no other device"
    gpu = _Gpu(options.gpu_index)
    try:
        source = (model.read_bytes(), str(model)) if isinstance(model, Path) else (to_onnx(model),)
        program = _CompiledNetwork(network := Network(trt, *source), gpu)
    except BaseException:
        gpu.close()
        raise
    return FunctionSession(
        RuntimeVersion(RUNTIME.name, trt.__version__, options.device),
        network.inputs,
        network.outputs,
        lambda arrays: program.run(arrays)[0],
        release=program.close,
        time_parts=lambda arrays, clock: program.run(arrays, clock)[1],
    )


def _available() -> Availability:
    packages = [find_package("TensorRT", *names, command="pip install tensorrt") for names in PACKAGES]
    installed = next((each for each in packages if each.ok), packages[0])
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        if installed.ok:
            return Availability.no(f"TensorRT {installed.detail} has no GPU here: install the driver of an NVIDIA GPU")
    return installed


# A model takes minutes to build: ``auto`` tries this runtime last.
RUNTIME = Runtime(
    name="tensorrt_native",
    title="TensorRT",
    available=_available,
    open_model=_open,
    kinds=("onnx",),
    dialects=("onnx", "tensorflow"),
    devices=("gpu",),
    has_threads=False,
    fuses_float_ops=True,
    transposes_convolutions=True,
    compiles_sizes=True,
    priority=1,
)
