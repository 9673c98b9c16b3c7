"""OpenVINO: OpenVINO, ONNX and LiteRT files, ONNX graphs, and TensorFlow graphs converted to ONNX."""

import importlib
import re
import sys
from collections.abc import Callable, Collection, Sequence
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np

from quantkit.cores import available_cores
from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError
from quantkit.formats.files import has_onnx_functions
from quantkit.formats.kinds import kind_of
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.runtimes.availability import Availability, find_package
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.op_times import named_onnx_graph
from quantkit.runtimes.openvino_profile import OpenvinoProfiler, find_sources
from quantkit.runtimes.runtime import ISA_VARIABLE, ONEDNN_ISAS, Runtime
from quantkit.runtimes.session import OpTrace, RuntimeVersion, Session, SessionOptions, TensorInfo

TELEMETRY = "openvino_telemetry"
# For each precision: the value of the hint, and the name among the capabilities of a device.
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

# Precisions of int8 layers in the executable graph.
_INT8_PRECISIONS = frozenset({"i8", "u8"})


def _available() -> Availability:
    return find_package("OpenVINO", "openvino", "openvino", extra="openvino")


def _open(model: Graph | Path, options: SessionOptions) -> Session:
    """Open a file or a graph; one pool of ``intra_op`` times ``inter_op`` threads computes each call.

    Raises:
        UnavailableError: the device is missing or lacks the precision, or an op has no kernel.
        InputError: the file is broken.
        GraphError: OpenVINO rejects the graph.
    """
    from quantkit.convert.to_onnx import to_onnx

    openvino = _module()
    # The first conversion of an array initializes NumPy's functions; two threads that do so at once block each other.
    openvino.Tensor(np.zeros(1, np.float32))
    core = openvino.Core()
    device = _device(core, openvino.__version__, options.gpu_index)
    config = _config(core, device, options)
    name = model.name if isinstance(model, Path) else "the graph"
    is_onnx = isinstance(model, Graph) or kind_of(model) == "onnx"
    # OpenVINO does not inline functions.
    if is_onnx and (options.profile or (isinstance(model, Path) and has_onnx_functions(model))):
        model = named_onnx_graph(model)
    is_file = isinstance(model, Path)
    source = BytesIO(to_onnx(model)) if isinstance(model, Graph) else model
    try:
        network = _read_onnx(source) if is_onnx else core.read_model(source)
    except Exception as error:
        raise _translate_error(error, name, is_file=is_file) from error
    for port in network.inputs:
        if port.get_partial_shape().rank.is_dynamic:
            raise UnavailableError(
                f"OpenVINO has no inputs of unknown rank, such as {port.any_name!r}",
                hint="use --runtime tensorflow or onnxruntime, or state the shape (--input-shape)",
            )
    try:
        compiled = core.compile_model(network, device, config)
    except Exception as error:
        raise _translate_error(error, name, is_file=is_file) from error
    profiler = OpenvinoProfiler(compiled, model) if options.profile else None
    output_names = [port.names for port in network.outputs]
    del source, network  # the compiled network keeps no reference, so that their memory is free while it runs
    inputs = tuple(map(_info, compiled.inputs))
    unused = _unused_inputs(model, inputs) if isinstance(model, Graph) else ()
    return FunctionSession(
        RuntimeVersion(RUNTIME.name, openvino.__version__.split("-")[0], device),
        (*inputs, *unused),
        tuple(map(_info, compiled.outputs, output_names)),
        _compute(compiled, name, profiler, options),
        placement=lambda: _placement(compiled, device) if options.log_placement else (),
        op_trace=lambda: profiler.read() if profiler else OpTrace(),
        int8_nodes=lambda: _int8_nodes(compiled),
    )


def _find_int8_nodes(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes that OpenVINO computes in int8.

    Raises:
        GraphError: OpenVINO rejects the graph.
    """
    from quantkit.convert.to_onnx import to_onnx

    core = _module().Core()
    config = _config(core, "CPU", SessionOptions())
    try:
        compiled = core.compile_model(_read_onnx(BytesIO(to_onnx(graph))), "CPU", config)
    except Exception as error:
        raise _translate_error(error, "the graph", is_file=False) from error
    return _int8_nodes(compiled)


def _read_onnx(model: Path | BytesIO) -> Any:
    """Return the network of an ONNX model; a search for its front end would log the errors of the other ones."""
    front_end = importlib.import_module("openvino.frontend").FrontEndManager().load_by_framework("onnx")
    return front_end.convert(front_end.load(model))


def _int8_nodes(compiled: Any) -> frozenset[str]:
    """Return the names of the nodes that a compiled network computes in int8: those of the file, else of the output."""
    names: set[str] = set()
    for node in compiled.get_runtime_model().get_ops():
        facts = node.get_rt_info()
        if "runtimePrecision" in facts and facts["runtimePrecision"].astype(str) in _INT8_PRECISIONS:
            names.update(find_sources(facts["originalLayersNames"].astype(str)))
    return frozenset(names)


def _module() -> Any:
    """Return the imported package without its telemetry, which writes to the home folder and uses the network."""
    is_imported = "openvino" in sys.modules or TELEMETRY in sys.modules
    if not is_imported:
        # OpenVINO works without this package; None makes its import fail.
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("openvino")
    finally:
        if not is_imported:
            del sys.modules[TELEMETRY]


def _describe_build() -> tuple[str, ...]:
    """Return the build, and the arithmetic of each device."""
    openvino = _module()
    core = openvino.Core()
    names = {device: core.get_property(device, "OPTIMIZATION_CAPABILITIES") for device in core.available_devices}
    return (openvino.get_version(), *(f"{device}: {', '.join(values)}" for device, values in names.items()))


def _describe_telemetry() -> str:
    is_loaded = sys.modules.get(TELEMETRY) is not None
    return f"enabled: {TELEMETRY} is loaded" if is_loaded else f"disabled: {TELEMETRY} is not loaded"


def _device(core: Any, version: str, gpu: int | None) -> str:
    """Return OpenVINO's name of a device.

    Raises:
        UnavailableError: there is no such device.
    """
    if gpu is None:
        return "CPU"
    devices = core.available_devices
    gpus = [name for name in devices if name.startswith("GPU")]
    if gpu >= len(gpus):
        raise UnavailableError(
            f"OpenVINO {version.split('-')[0]} has no device gpu:{gpu}, only {', '.join(devices)}",
            hint="OpenVINO supports Intel GPUs; install their compute driver (intel-opencl-icd)",
        )
    return str(gpus[gpu])


def _config(core: Any, device: str, options: SessionOptions) -> dict[str, Any]:
    _, capability = _PRECISIONS[options.precision]
    if capability not in core.get_property(device, "OPTIMIZATION_CAPABILITIES"):
        raise UnavailableError(
            f"{core.get_property(device, 'FULL_DEVICE_NAME')} has no {options.precision} instructions",
            hint="use --precision float32",
        )
    return properties(options)


def properties(options: SessionOptions) -> dict[str, str]:
    """Return the properties of a compiled network."""
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": _PRECISIONS[options.precision][0]}
    if options.streams > 1:
        config |= {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": str(options.streams)}
    if options.intra_op:
        threads = options.intra_op * (options.inter_op or 1)
        config["INFERENCE_NUM_THREADS"] = str(threads)
        if threads < available_cores():  # OpenVINO binds the threads of each process to the first cores
            config["ENABLE_CPU_PINNING"] = "NO"
    if options.profile:
        config["PERF_COUNT"] = "YES"
    return config


def _native_options(options: SessionOptions, file: str) -> str:
    """Return the options as code that compiles a model."""
    return f'compiled = openvino.Core().compile_model({file}, "CPU", {properties(options)})'


def _compute(
    compiled: Any, model: str, profiler: OpenvinoProfiler | None, options: SessionOptions
) -> Callable[[list[Array]], Sequence[Array]]:
    """Return the function that runs a network.

    Args:
        compiled: the network.
        model: name of the model in messages.
        profiler: receives the time of each op; None for no profile.
        options: number of calls at the same time, each with a request of its own, and reuse of the outputs.
    """
    requests: SimpleQueue[Any] = SimpleQueue()
    # A request computes into its own memory: one more keeps the outputs of a run while the next ones are computed.
    for _ in range(options.streams + options.reuse_outputs):
        requests.put(compiled.create_infer_request())
    inputs, outputs = range(len(compiled.inputs)), compiled.outputs

    def compute(arrays: list[Array]) -> Sequence[Array]:
        request = requests.get()
        start = perf_counter()
        try:
            feeds = dict(zip(inputs, arrays, strict=False))
            results = request.infer(feeds, share_inputs=True, share_outputs=options.reuse_outputs)
        except Exception as error:
            raise _translate_error(error, model, is_file=False) from error
        finally:
            requests.put(request)
        if profiler is not None:
            seconds = perf_counter() - start
            profiler.add_run(request.profiling_info, seconds)
        return [results[output] for output in outputs]

    return compute


def _info(port: Any, names: Collection[str] = ()) -> TensorInfo:
    """Convert the description of an input or output.

    Args:
        port: port of the compiled network.
        names: names of the output before compilation; a Cast that is merged into an output adds its own name.
    """
    dtype = port.get_element_type().get_type_name()
    if dtype not in _DTYPES:
        raise UnavailableError(f"{port.any_name!r} has the unsupported element type {dtype}")
    sizes = port.get_partial_shape()
    if sizes.rank.is_dynamic:
        shape = Shape(None)
    else:
        shape = Shape(tuple(None if size.is_dynamic else size.get_length() for size in sizes))
    # A node that forwards an input adds its name to the port; the name of the input is that of its own node.
    own_name = port.get_node().get_friendly_name()
    name = own_name if own_name in port.names else port.any_name
    return TensorInfo(name if name in names or not names else min(names), _DTYPES[dtype], shape)


def _unused_inputs(graph: Graph, inputs: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """Return the inputs that no output depends on: OpenVINO removes them, a session accepts them."""
    names = {info.name for info in inputs}
    infos = []
    for edge in graph.inputs:
        node = graph[edge.node]
        dtypes, shape = output_dtypes(node), node.attrs.get("shape")
        dtype = dtypes[edge.port] if edge.port < len(dtypes) else None
        if str(edge) not in names and dtype is not None:
            infos.append(TensorInfo(str(edge), dtype, shape if isinstance(shape, Shape) else Shape(None)))
    return tuple(infos)


def _placement(compiled: Any, device: str) -> tuple[str, ...]:
    """Return device and kernel of each op of the compiled network."""
    lines = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        facts = op.get_rt_info()
        op_type, kernel = (facts[key].astype(str) for key in ("layerType", "primitiveType"))
        if op_type not in ("Input", "Output", "Const"):
            lines.append(f"{op.get_friendly_name()} ({op_type}): {device} {kernel}")
    return tuple(lines)


def _translate_error(error: Exception, model: str, *, is_file: bool) -> QuantkitError:
    """Convert an error, whose text begins with positions in OpenVINO's source, to a one-line error."""
    text = str(error)
    missing = re.search(
        r"(No conversion rule found for operations|Conversion is failed for|Unsupported operation of type): "
        r"(.+?)( name: .*)?$",
        text,
        re.MULTILINE,
    )
    if missing:
        ops = ", ".join(re.sub(r"-\d+$", "", op) for op in missing[2].split(", "))
        return UnavailableError(
            f"OpenVINO {'has no' if missing[1].startswith('No') else 'cannot run'} {ops}, which {model} uses",
            hint="another --runtime may have a kernel: quantkit doctor lists the installed ones",
        )
    # The reason of a failed check is the line after it.
    text = re.sub(r" Check '.*' failed at \S+:\d+:\s*", ": ", text.replace("[CPU] ", "").replace("[cpu]", ""))
    lines = [line.strip() for line in text.splitlines()]
    positions = ("Exception from", "Check '", "FrontEnd API failed", "While validating")
    messages = [line for line in lines if line and not line.startswith(positions)]
    reason = (messages or lines or ["no reason"])[0]
    if is_file:
        return InputError(f"OpenVINO cannot open {model}: {reason}", hint="download or convert it again")
    return GraphError(f"OpenVINO rejects {model}: {reason}", hint="try --runtime tensorflow or onnxruntime")


RUNTIME = Runtime(
    name="openvino",
    title="OpenVINO",
    available=_available,
    open_model=_open,
    find_int8_nodes=_find_int8_nodes,
    kinds=("openvino", "onnx", "tflite"),
    dialects=("onnx", "tensorflow"),
    native_dialect="onnx",
    devices=("cpu", "gpu"),
    precisions=tuple(_PRECISIONS),
    describe_build=_describe_build,
    describe_telemetry=_describe_telemetry,
    tunables={ISA_VARIABLE: ONEDNN_ISAS},
    native_options=_native_options,
    fuses_float_ops=True,
    transposes_convolutions=True,
    compiles_sizes=True,
    package="openvino",
    traces_ops=True,
    priority=50,
)
