"""OpenVINO: its own, ONNX and LiteRT files, ONNX graphs, and TensorFlow graphs that are converted to ONNX."""

import importlib
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.tensorflow.signatures import output_dtypes
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

REPORTS = "openvino_telemetry"
# A precision as the hint wants it, and as a device lists it among its capabilities.
_PRECISIONS = {"float32": ("f32", "FP32"), "bfloat16": ("bf16", "BF16"), "float16": ("f16", "FP16")}
_DTYPES = {
    "f64": DType.DOUBLE,
    "f32": DType.FLOAT,
    "f16": DType.HALF,
    "bf16": DType.BFLOAT16,
    "i64": DType.INT64,
    "i32": DType.INT32,
    "i16": DType.INT16,
    "i8": DType.INT8,
    "u64": DType.UINT64,
    "u32": DType.UINT32,
    "u16": DType.UINT16,
    "u8": DType.UINT8,
    "boolean": DType.BOOL,
    "string": DType.STRING,
}


class OpenVino:
    """The runtime ``openvino``."""

    name = "openvino"

    def available(self) -> Availability:
        return installed("OpenVINO", "openvino", "openvino", extra="openvino")

    def open(self, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        """Open an ``.xml``, ``.onnx`` or ``.tflite`` file, or a frozen TensorFlow graph.

        The threads are one pool: ``intra_op`` times ``inter_op`` of them work on one picture.

        Raises:
            UnavailableError: not installed, no such device or precision, or an op it can not compile.
            InputError: the file is missing or broken.
            GraphError: OpenVINO refuses the graph.
        """
        require(self.available())
        openvino = _module()
        core = openvino.Core()
        device = _device(core, openvino.__version__, gpu_index(options.device))
        config = _config(core, device, options)
        source = as_onnx(model, "OpenVINO", ("openvino", "onnx", "tflite"))
        name = source.name if isinstance(source, Path) else "the graph"
        try:
            read = core.read_model(source) if isinstance(source, Path) else core.read_model(source, b"")
            compiled = core.compile_model(read, device, config)
        except Exception as error:
            raise _explained(error, name, is_file=isinstance(source, Path)) from error
        asked = [port.names for port in read.outputs]
        del source, read
        inputs = tuple(map(_info, compiled.inputs))
        unread = _unread(model, inputs) if isinstance(model, Graph) else ()
        return FunctionSession(
            Engine(self.name, openvino.__version__.split("-")[0], device),
            (*inputs, *unread),
            tuple(map(_info, compiled.outputs, asked)),
            _compute(compiled, name),
            placement=lambda: _placement(compiled, device) if options.log_placement else (),
        )


RUNTIME = OpenVino()


def _module() -> Any:
    """OpenVINO without its usage reports: importing it writes to the home folder and calls the network otherwise."""
    is_imported = "openvino" in sys.modules or REPORTS in sys.modules
    if not is_imported:
        # OpenVINO works without this package, and None makes Python say that it is not installed.
        sys.modules[REPORTS] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("openvino")
    finally:
        if not is_imported:
            del sys.modules[REPORTS]


def _device(core: Any, version: str, gpu: int | None) -> str:
    """OpenVINO's name of a device.

    Raises:
        UnavailableError: it sees no such one.
    """
    if gpu is None:
        return "CPU"
    seen = core.available_devices
    gpus = [name for name in seen if name.startswith("GPU")]
    if gpu >= len(gpus):
        raise UnavailableError(
            f"OpenVINO {version.split('-')[0]} sees no gpu:{gpu}, only {', '.join(seen)}",
            hint="it computes on Intel's GPUs, whose compute driver (intel-opencl-icd) must be installed",
        )
    return str(gpus[gpu])


def _config(core: Any, device: str, options: SessionOptions) -> dict[str, Any]:
    if options.precision not in _PRECISIONS:
        raise UnavailableError(
            f"OpenVINO does not know the precision {options.precision!r}", hint=f"use {', '.join(_PRECISIONS)}"
        )
    hint, capability = _PRECISIONS[options.precision]
    if capability not in core.get_property(device, "OPTIMIZATION_CAPABILITIES"):
        raise UnavailableError(
            f"{core.get_property(device, 'FULL_DEVICE_NAME')} has no {options.precision} instructions",
            hint="use --precision float32",
        )
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": hint}
    if options.intra_op:
        config["INFERENCE_NUM_THREADS"] = str(options.intra_op * (options.inter_op or 1))
    return config


def _compute(compiled: Any, model: str) -> Callable[[list[Array]], Sequence[Array]]:
    request = compiled.create_infer_request()
    inputs, outputs = range(len(compiled.inputs)), compiled.outputs

    def compute(arrays: list[Array]) -> Sequence[Array]:
        try:
            results = request.infer(dict(zip(inputs, arrays, strict=False)), share_inputs=True, share_outputs=False)
        except Exception as error:
            raise _explained(error, model, is_file=False) from error
        return [results[output] for output in outputs]

    return compute


def _info(port: Any, asked: Collection[str] = ()) -> TensorInfo:
    """What goes in or comes out; a cast that was merged into an output adds its own name to those ``asked`` for."""
    word = port.get_element_type().get_type_name()
    if word not in _DTYPES:
        raise UnavailableError(f"{port.any_name!r} has elements of type {word}, which no session takes or gives")
    sizes = port.get_partial_shape()
    if sizes.rank.is_dynamic:
        shape = Shape(None)
    else:
        shape = Shape(tuple(None if size.is_dynamic else size.get_length() for size in sizes))
    # What passes an input on gives it a name of its own, too: the input's is the one that its node has.
    own = port.get_node().get_friendly_name()
    name = own if own in port.names else port.any_name
    return TensorInfo(name if name in asked or not asked else min(asked), _DTYPES[word], shape)


def _unread(graph: Graph, known: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """Inputs that no output depends on: OpenVINO forgets them, a session takes them."""
    names = {info.name for info in known}
    infos = []
    for edge in graph.inputs:
        node = graph[edge.node]
        dtypes, shape = output_dtypes(node), node.attrs.get("shape")
        dtype = dtypes[edge.port] if edge.port < len(dtypes) else None
        if str(edge) not in names and dtype is not None:
            infos.append(TensorInfo(str(edge), dtype, shape if isinstance(shape, Shape) else Shape(None)))
    return tuple(infos)


def _placement(compiled: Any, device: str) -> tuple[str, ...]:
    """Every operation of the compiled network, and the kernel that OpenVINO chose for it."""
    lines = []
    for operation in compiled.get_runtime_model().get_ordered_ops():
        facts = operation.get_rt_info()
        kind, kernel = (facts[key].astype(str) for key in ("layerType", "primitiveType"))
        if kind not in ("Input", "Output", "Const"):
            lines.append(f"{operation.get_friendly_name()} ({kind}): {device} {kernel}")
    return tuple(lines)


def _explained(error: Exception, model: str, *, is_file: bool) -> QuantkitError:
    """What an OpenVINO error says, in a sentence; its text begins with places in OpenVINO's source."""
    text = str(error)
    missing = re.search(r"No conversion rule found for operations: (.+)", text)
    if missing:
        ops = ", ".join(re.sub(r"-\d+$", "", op) for op in missing[1].split(", "))
        return UnavailableError(
            f"OpenVINO has no {ops}, which {model} uses",
            hint="another --runtime may have a kernel: quantkit doctor lists what is installed",
        )
    lines = [line.strip() for line in text.splitlines()]
    places = ("Exception from", "Check '", "FrontEnd API failed", "While validating")
    reason = next((line for line in lines if line and not line.startswith(places)), lines[0] if lines else "nothing")
    if is_file:
        return InputError(f"OpenVINO can not read {model}: {reason}", hint="fetch or convert it once more")
    return GraphError(f"OpenVINO refuses {model}: {reason}", hint="try --runtime tensorflow or onnxruntime")
