"""ONNX Runtime: ONNX files and graphs, and TensorFlow graphs that are converted to ONNX."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.model import as_onnx
from quantkit.runtimes.session import (
    Availability,
    Engine,
    FunctionSession,
    Session,
    SessionOptions,
    TensorInfo,
    gpu_index,
    installed,
    require,
)

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
# Everything an error would say on the terminal is in the exception.
_LOG_FATAL_ONLY = 4


class OnnxRuntime:
    """The runtime ``onnxruntime``."""

    name = "onnxruntime"

    def available(self) -> Availability:
        return installed("ONNX Runtime", "onnxruntime", *_PACKAGES, extra="onnx")

    def open(self, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        """Open an ONNX file, with its external data if it has some, or a frozen TensorFlow graph.

        Raises:
            UnavailableError: not installed, no such device or precision, or an op without a kernel.
            InputError: the file is missing or broken.
            GraphError: ONNX Runtime refuses the graph.
        """
        require(self.available())
        import onnxruntime

        providers = _providers(onnxruntime, gpu_index(options.device))
        if options.precision != "float32":
            raise UnavailableError(
                f"ONNX Runtime computes in the model's own types, not in {options.precision}",
                hint="use --precision float32 or --runtime openvino, or convert the model with convert_precision",
            )
        source = as_onnx(model, "ONNX Runtime", ("onnx",))
        try:
            session = onnxruntime.InferenceSession(
                str(source) if isinstance(source, Path) else source,
                _session_options(onnxruntime, options),
                providers=providers,
            )
        except Exception as error:
            raise _explained(error, source.name if isinstance(source, Path) else "the graph") from error
        device = session.get_providers()[0]
        if gpu_index(options.device) is not None and device != CUDA:
            raise UnavailableError(
                f"ONNX Runtime {onnxruntime.__version__} could not start CUDA",
                hint="it needs CUDA's and cuDNN's libraries: pip install 'onnxruntime-gpu[cuda,cudnn]'",
            )
        inputs, outputs = _infos(session.get_inputs()), _infos(session.get_outputs())
        lines = _placement(session) if options.log_placement else ()
        return FunctionSession(
            Engine(self.name, onnxruntime.__version__, device),
            inputs,
            outputs,
            _compute(session, inputs, outputs),
            placement=lambda: lines,
        )


RUNTIME = OnnxRuntime()


def _session_options(onnxruntime: Any, options: SessionOptions) -> Any:
    made = onnxruntime.SessionOptions()
    made.log_severity_level = _LOG_FATAL_ONLY
    made.intra_op_num_threads = options.intra_op or 0
    made.inter_op_num_threads = options.inter_op or 0
    if (options.inter_op or 1) > 1:
        # In its other mode it runs one operation at a time, whatever number of threads there are.
        made.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if options.log_placement:
        made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return made


def _providers(onnxruntime: Any, gpu: int | None) -> list[Any]:
    """Where it may run, best first.

    Raises:
        UnavailableError: a GPU is asked for and this build knows none.
    """
    if gpu is None:
        return [CPU]
    known = onnxruntime.get_available_providers()
    if CUDA not in known:
        raise UnavailableError(
            f"this ONNX Runtime ({onnxruntime.__version__}) can not use a GPU, only {', '.join(known)}",
            hint="on a machine with an NVIDIA card: pip uninstall onnxruntime, pip install onnxruntime-gpu",
        )
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    return [(CUDA, {"device_id": gpu, "use_tf32": 0}), CPU]


def _compute(
    session: Any, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]
) -> Callable[[list[Array]], Sequence[Array]]:
    wanted = [info.name for info in outputs]
    names = [info.name for info in inputs]

    def compute(arrays: list[Array]) -> Sequence[Array]:
        try:
            results = session.run(wanted, dict(zip(names, arrays, strict=True)))
        except Exception as error:
            raise _explained(error, "the graph") from error
        return [_bytes(result) if result.dtype.kind == "O" else result for result in map(np.asarray, results)]

    return compute


def _bytes(strings: Array) -> Array:
    """ONNX Runtime gives text where a session gives bytes."""
    flat = [item.encode() if isinstance(item, str) else item for item in strings.reshape(-1)]
    made = np.empty(strings.shape, object)
    made.reshape(-1)[:] = flat
    return made


def _infos(arguments: Sequence[Any]) -> tuple[TensorInfo, ...]:
    return tuple(_info(argument) for argument in arguments)


def _info(argument: Any) -> TensorInfo:
    """What ``tensor(float)`` and ``[1, 'n', None]`` mean.

    Raises:
        UnavailableError: it is a sequence, a map or an optional tensor.
    """
    found = re.fullmatch(r"tensor\((\w+)\)", argument.type)
    words = {"float16": "half", "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}
    try:
        dtype = DType(words.get(found[1], found[1]) if found else "")
    except ValueError:
        raise UnavailableError(f"{argument.name!r} is a {argument.type}, which no session takes or gives") from None
    sizes = argument.shape
    shape = Shape(None) if sizes is None else Shape(tuple(size if isinstance(size, int) else None for size in sizes))
    return TensorInfo(argument.name, dtype, shape)


def _placement(session: Any) -> tuple[str, ...]:
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return (f"this version of ONNX Runtime does not say; providers: {', '.join(session.get_providers())}",)
    return tuple(
        f"{node.name} ({node.op_type}): {part.ep_name}"
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def _explained(error: Exception, model: str) -> QuantkitError:
    """What an ONNX Runtime error says, in a sentence; its text begins ``[ONNXRuntimeError] : 9 : CODE : ...``."""
    text = str(error)
    found = re.match(r"\[ONNXRuntimeError\] : \d+ : (\w+) : (.*)", text, re.DOTALL)
    code, reason = (found[1], found[2]) if found else ("", text)
    reason = next((line.strip() for line in reason.splitlines() if line.strip()), type(error).__name__)
    if code in ("INVALID_PROTOBUF", "NO_SUCHFILE", "NO_MODEL"):
        return InputError(
            f"{model} is not an ONNX model, or is truncated: {reason}", hint="fetch or convert it once more"
        )
    if "tensor(bfloat16)" in reason:
        return UnavailableError(
            f"ONNX Runtime can not compute {model} in bfloat16: {reason}", hint="OpenVINO and TensorFlow can"
        )
    if code == "NOT_IMPLEMENTED" or "No Op registered" in reason or "is not a registered function/op" in reason:
        return UnavailableError(
            f"ONNX Runtime can not run {model}: {reason}",
            hint="another --runtime may have a kernel: quantkit doctor lists what is installed",
        )
    running = re.search(r"while running (\w+) node\. Name:'([^']*)' Status Message: (?:\S+:\d+ \S+ )?(.*)", reason)
    if running:
        return GraphError(
            f"node {running[2]!r} ({running[1]}): ONNX Runtime refuses it: {running[3]}",
            hint="quantkit summarize shows the shapes that the model takes",
        )
    return GraphError(f"ONNX Runtime refuses {model}: {reason}", hint="quantkit summarize shows its nodes")
