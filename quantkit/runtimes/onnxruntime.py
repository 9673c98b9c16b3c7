"""ONNX Runtime: ONNX files and graphs, and TensorFlow graphs converted to ONNX."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.arguments import expand_user, public, require_path
from quantkit.cores import available_physical_cores, is_restricted
from quantkit.distribution import package_version
from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError, UnknownOpError, UsageError
from quantkit.formats import onnx
from quantkit.formats.temporary import temporary_folder
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.runtimes.availability import Availability, find_package
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.onnxruntime_profile import OnnxRuntimeProfiler, source_name
from quantkit.runtimes.runtime import Runtime
from quantkit.runtimes.session import OpTrace, RuntimeVersion, Session, SessionOptions, TensorInfo

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
GPU_PROVIDERS = {CUDA: "CUDA", TENSORRT: "TensorRT"}
_POOLS = ("intra_op", "inter_op")
# Environment variable with the libraries of custom ops, one per line: child processes inherit it.
_LIBRARIES = "QUANTKIT_CUSTOM_OP_LIBRARY"
_UNKNOWN_OP = "is not a registered function/op"
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
# Exceptions contain the text of all lower levels.
_LOG_FATAL_ONLY = 4
# Int8 layers after the rewrites of ONNX Runtime.
_INT8_OPS = frozenset(
    {
        "QLinearConv",
        "ConvInteger",
        "QLinearMatMul",
        "MatMulInteger",
        "com.microsoft.QLinearConv",
        "com.microsoft.QGemm",
        "com.microsoft.MatMulIntegerToFloat",
        "com.microsoft.DynamicQuantizeMatMul",
    }
)
# Signature of a C++ function: that of the check that failed.
_FUNCTION = re.compile(r"[^()]*::[~\w<>=]+ ?\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^]]*\])? ")
_DTYPE_NAMES = {"float16": "half", "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}


@contextmanager
@public
def custom_op_library(*files: str | os.PathLike[str]) -> Iterator[None]:
    """Register libraries of custom ops in every ONNX Runtime session that is opened within a ``with`` block.

    The libraries are those of ``onnxruntime.SessionOptions.register_custom_ops_library``. They run with the rights of
    this process and of its worker processes. Other runtimes ignore them.

    Args:
        *files: shared libraries, added to those of an enclosing block.

    Raises:
        UsageError: there is no file, or a value is not a path.
        InputError: a file is missing, or ONNX Runtime rejects it.
    """
    if not files:
        raise UsageError("custom_op_library() has no file", hint="name the shared library with the custom ops")
    for file in files:
        require_path(custom_op_library=file)
    paths = [expand_user(file).absolute() for file in files]
    for path in paths:
        if not path.is_file():
            raise InputError(
                f"the custom op library {path} does not exist, or is not a file",
                hint="name the shared library with the custom ops",
            )
    before = os.environ.get(_LIBRARIES)
    os.environ[_LIBRARIES] = "\n".join(dict.fromkeys([*custom_op_libraries(), *map(str, paths)]))
    try:
        if _available().ok:
            _register_libraries(_module().SessionOptions())
        yield
    finally:
        if before is None:
            del os.environ[_LIBRARIES]
        else:
            os.environ[_LIBRARIES] = before


@public
def custom_op_libraries() -> tuple[str, ...]:
    """Return the libraries of the enclosing `custom_op_library` blocks."""
    return tuple(os.environ.get(_LIBRARIES, "").splitlines())


def _register_libraries(config: Any) -> None:
    """Register the libraries of `custom_op_library` in ``onnxruntime.SessionOptions``.

    Raises:
        InputError: ONNX Runtime rejects a library.
    """
    for library in custom_op_libraries():
        try:
            config.register_custom_ops_library(library)
        except Exception as error:
            raise InputError(
                f"ONNX Runtime rejects the custom op library {library}: {_reason(error)[1]}",
                hint="name a shared library that exports RegisterCustomOps and is built for this platform",
            ) from error


def _has_custom_op(op: str) -> bool:
    """Return True if a library of `custom_op_library` has an op type, such as ``com.acme.Resample``."""
    from quantkit.convert.to_onnx import to_onnx

    if not custom_op_libraries() or not _available().ok:
        return False
    onnxruntime = _module()
    # Without inputs, a registered op fails too, but with another error.
    extra = onnx.header({}, domains={op.rpartition(".")[0]: 1})
    graph = Graph.of([Node("op", op)], [], ["op"], dialect=onnx.DIALECT, extra=extra)
    try:
        onnxruntime.InferenceSession(to_onnx(graph), _session_options(onnxruntime, SessionOptions()), providers=[CPU])
    except InputError:
        raise
    except Exception as error:
        return _UNKNOWN_OP not in str(error)
    return True


def _available() -> Availability:
    return find_package("ONNX Runtime", "onnxruntime", *_PACKAGES, extra="onnx")


def _open(model: Graph | Path, options: SessionOptions, provider: str = CUDA) -> Session:
    """Open an ONNX file, with its external data if there is any, or a graph.

    Args:
        model: file or graph.
        options: options of the session.
        provider: execution provider for a GPU.

    Raises:
        UnavailableError: the device is missing, or an op has no kernel.
        InputError: the file is broken.
        GraphError: ONNX Runtime rejects the graph.
    """
    from quantkit.convert.to_onnx import to_onnx

    onnxruntime = _module()
    providers = _providers(onnxruntime, options.gpu_index, provider, has_half=options.precision == "float16")
    config = _session_options(onnxruntime, options)
    profiler = OnnxRuntimeProfiler(model, config) if options.profile else None
    source = profiler.model if profiler else str(model) if isinstance(model, Path) else to_onnx(model)
    try:
        session = onnxruntime.InferenceSession(source, config, providers=providers)
    except Exception as error:
        if profiler:
            profiler.close()
        name = model.name if isinstance(model, Path) else "the graph"
        if options.optimized and _runs_without_optimizer(onnxruntime, source, options):
            raise UnavailableError(
                f"the optimizer of ONNX Runtime {onnxruntime.__version__} fails for {name}, which is valid: "
                f"{_reason(error)[1]}",
                hint="use --runtime openvino, or another version of ONNX Runtime: the fault is not in the model",
            ) from error
        raise _translate_error(error, name) from error
    del source
    device = session.get_providers()[0]
    if options.gpu_index is not None and device != provider:
        more = " and TensorRT: pip install 'tensorrt>=10'" if provider == TENSORRT else ": pip install"
        raise UnavailableError(
            f"ONNX Runtime {onnxruntime.__version__} could not start {GPU_PROVIDERS[provider]}",
            hint=f"install the libraries of CUDA and cuDNN{more} 'onnxruntime-gpu[cuda,cudnn]'",
        )
    inputs, outputs = (tuple(map(_info, arguments)) for arguments in (session.get_inputs(), session.get_outputs()))
    if isinstance(model, Graph):
        # ONNX Runtime reports an unknown rank as that of a scalar.
        shapes = {str(edge): model[edge.node].attrs.get("shape") for edge in model.inputs}
        inputs = tuple(replace(info, shape=UNKNOWN) if shapes.get(info.name) == UNKNOWN else info for info in inputs)
    lines = _placement(session) if options.log_placement else ()
    return FunctionSession(
        RuntimeVersion(
            TENSORRT_RUNTIME.name if provider == TENSORRT else RUNTIME.name, onnxruntime.__version__, device
        ),
        inputs,
        outputs,
        _compute(session, inputs, outputs),
        release=profiler.close if profiler else lambda: None,
        placement=lambda: lines,
        op_trace=lambda: profiler.read(session) if profiler else OpTrace(),
        time_parts=None if options.gpu_index is None else partial(_time_parts, onnxruntime, session, options.gpu_index),
    )


def _runs_without_optimizer(onnxruntime: Any, source: Any, options: SessionOptions) -> bool:
    """Return True if ONNX Runtime opens a model that its optimizer does not rewrite."""
    try:
        onnxruntime.InferenceSession(source, _session_options(onnxruntime, replace(options, optimized=False)), [CPU])
    except Exception:
        return False
    return True


def _find_int8_nodes(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes that ONNX Runtime computes in int8.

    Raises:
        UnavailableError, GraphError: ONNX Runtime rejects the graph.
    """
    from quantkit.convert.to_onnx import to_onnx

    onnxruntime = _module()
    with temporary_folder() as folder:
        config = _session_options(onnxruntime, SessionOptions())
        config.optimized_model_filepath = str(folder / "optimized.onnx")
        try:
            onnxruntime.InferenceSession(to_onnx(graph), config, providers=[CPU])
        except Exception as error:
            raise _translate_error(error, "the graph") from error
        optimized = onnx.decode((folder / "optimized.onnx").read_bytes())
    names = (onnx.node_name(node) for node in optimized.nodes.values() if node.op in _INT8_OPS)
    return frozenset(map(source_name, names))


def _module() -> Any:
    """Return the imported package, with usage reports disabled: they write to the cache folder and use the network."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _describe_build() -> tuple[str, ...]:
    """Return the build, and the execution providers that it has."""
    onnxruntime = _module()
    providers = ", ".join(onnxruntime.get_available_providers())
    return (str(onnxruntime.get_build_info()), f"providers: {providers}")


def _describe_telemetry() -> str:
    value = os.environ.get("ORT_DISABLE_TELEMETRY", "")
    return "disabled: ORT_DISABLE_TELEMETRY=1" if value == "1" else f"enabled: ORT_DISABLE_TELEMETRY={value!r}"


def _session_options(onnxruntime: Any, options: SessionOptions) -> Any:
    config = onnxruntime.SessionOptions()
    config.log_severity_level = _LOG_FATAL_ONLY
    if not options.optimized:
        config.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # By default, ONNX Runtime pins threads to all cores of the machine, also to those that the process may not use.
    config.intra_op_num_threads = options.intra_op or (available_physical_cores() if is_restricted() else 0)
    config.inter_op_num_threads = options.inter_op or 0
    if (options.inter_op or 1) > 1:
        # The sequential mode runs one op at a time and ignores inter_op_num_threads.
        config.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if options.spinning is not None:
        for pool in _POOLS:
            config.add_session_config_entry(f"session.{pool}.allow_spinning", str(int(options.spinning)))
    if options.log_placement:
        config.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    _register_libraries(config)
    return config


def _native_options(options: SessionOptions, file: str) -> str:
    """Return the options as code that opens a file, with ``onnxruntime.SessionOptions``."""
    lines = ["options = onnxruntime.SessionOptions()"]
    if options.intra_op:
        lines.append(f"options.intra_op_num_threads = {options.intra_op}")
    if options.inter_op:
        lines.append(f"options.inter_op_num_threads = {options.inter_op}")
    if (options.inter_op or 1) > 1:
        lines.append("options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL")
    if options.spinning is not None:
        value = int(options.spinning)
        lines += [f'options.add_session_config_entry("session.{pool}.allow_spinning", "{value}")' for pool in _POOLS]
    lines += [f"options.register_custom_ops_library({library!r})" for library in custom_op_libraries()]
    return "\n".join([*lines, f'session = onnxruntime.InferenceSession({file}, options, providers=["{CPU}"])'])


def _providers(onnxruntime: Any, gpu: int | None, provider: str = CUDA, *, has_half: bool = False) -> list[Any]:
    """Return the execution providers, the preferred one first.

    Args:
        onnxruntime: imported package.
        gpu: index of the GPU; None for the CPU.
        provider: execution provider for the GPU; CUDA computes the ops that TensorRT does not have.
        has_half: True if float ops may be computed in float16 by TensorRT.

    Raises:
        UnavailableError: a GPU is requested, and this build has no such provider.
    """
    if gpu is None:
        return [CPU]
    providers = onnxruntime.get_available_providers()
    if provider not in providers:
        raise UnavailableError(
            f"this ONNX Runtime ({onnxruntime.__version__}) cannot use a GPU, only {', '.join(providers)}",
            hint="on a machine with an NVIDIA GPU: pip uninstall onnxruntime, pip install onnxruntime-gpu",
        )
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    cuda = (CUDA, {"device_id": gpu, "use_tf32": 0})
    if provider == CUDA:
        return [cuda, CPU]
    return [(TENSORRT, {"device_id": gpu, "trt_int8_enable": True, "trt_fp16_enable": has_half}), cuda, CPU]


def _compute(
    session: Any, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]
) -> Callable[[list[Array]], Sequence[Array]]:
    output_names = [info.name for info in outputs]
    input_names = [info.name for info in inputs]

    def compute(arrays: list[Array]) -> Sequence[Array]:
        try:
            results = session.run(output_names, dict(zip(input_names, arrays, strict=True)))
        except Exception as error:
            raise _translate_error(error, "the graph") from error
        return [_encode_strings(array) if array.dtype.kind == "O" else array for array in map(np.asarray, results)]

    return compute


def _time_parts(
    onnxruntime: Any, session: Any, gpu: int, arrays: list[Array], clock: Callable[[], float]
) -> Mapping[str, float]:
    """Run once with the inputs and outputs in the memory of the GPU; return the seconds of each part."""
    if any(array.dtype.kind in "OSU" for array in arrays):
        return {}
    binding, start = session.io_binding(), clock()
    for argument, array in zip(session.get_inputs(), arrays, strict=True):
        binding.bind_ortvalue_input(argument.name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", gpu))
    for argument in session.get_outputs():
        binding.bind_output(argument.name, "cuda", gpu)
    binding.synchronize_inputs()
    uploaded = clock()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    computed = clock()
    binding.copy_outputs_to_cpu()
    return {"upload": uploaded - start, "infer": computed - uploaded, "download": clock() - computed}


def _encode_strings(strings: Array) -> Array:
    """Return an object array of bytes; ONNX Runtime returns str."""
    encoded = np.empty(strings.shape, object)
    encoded.reshape(-1)[:] = [item.encode() if isinstance(item, str) else item for item in strings.reshape(-1)]
    return encoded


def _info(argument: Any) -> TensorInfo:
    """Convert the description of an input or output: type ``tensor(float)``, shape ``[1, 'n', None]``.

    Raises:
        UnavailableError: the type is a sequence, a map or an optional tensor.
    """
    match = re.fullmatch(r"tensor\((\w+)\)", argument.type)
    try:
        dtype = DType(_DTYPE_NAMES.get(match[1], match[1]) if match else "")
    except ValueError:
        raise UnavailableError(f"{argument.name!r} has the unsupported type {argument.type}") from None
    sizes = argument.shape
    shape = Shape(None) if sizes is None else Shape(tuple(size if isinstance(size, int) else None for size in sizes))
    return TensorInfo(argument.name, dtype, shape)


def _placement(session: Any) -> tuple[str, ...]:
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return (f"not reported by this version of ONNX Runtime; providers: {', '.join(session.get_providers())}",)
    return tuple(
        f"{node.name} ({node.op_type}): {part.ep_name}"
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def _translate_error(error: Exception, model: str) -> QuantkitError:
    """Convert an error to a one-line error."""
    code, reason = _reason(error)
    if code in ("INVALID_PROTOBUF", "NO_SUCHFILE", "NO_MODEL"):
        return InputError(
            f"{model} is not an ONNX model, or is truncated: {reason}", hint="download or convert it again"
        )
    if "tensor(bfloat16)" in reason:
        return UnavailableError(
            f"ONNX Runtime cannot run {model} in bfloat16: {reason}", hint="use --runtime openvino or tensorflow"
        )
    if _UNKNOWN_OP in reason:
        return UnknownOpError(
            f"ONNX Runtime cannot run {model}: {reason}",
            hint="--custom-op-library FILE registers a library with its kernel (quantkit.custom_op_library in Python); "
            "another --runtime may have one: quantkit doctor lists the installed ones",
        )
    if code == "NOT_IMPLEMENTED" or "No Op registered" in reason:
        return UnavailableError(
            f"ONNX Runtime cannot run {model}: {reason}",
            hint="another --runtime may have a kernel: quantkit doctor lists the installed ones",
        )
    failed = re.search(r"while running (\w+) node\. Name:'([^']*)' Status Message: (.*)", reason)
    if failed:
        node = f"node {failed[2]!r} ({failed[1]})" if failed[2] else f"a node of type {failed[1]}"
        return GraphError(
            f"{node}: ONNX Runtime rejects it: {_without_source(failed[3])}",
            hint="quantkit summarize shows the shapes of the inputs",
        )
    return GraphError(
        f"ONNX Runtime rejects {model}: {_without_source(reason)}", hint="quantkit summarize shows its nodes"
    )


def _without_source(reason: str) -> str:
    """Return the reason of a failed check without file, function and condition in the source of ONNX Runtime.

    >>> _without_source("/src/a.h:9 void ort::It::Append(long) axis == 1 was false. Cannot broadcast 8 by 16")
    'Cannot broadcast 8 by 16'
    >>> _without_source("/src/a.cc:9 ort::Status ort::Op::Compute(Context*) const Invalid indices")
    'Invalid indices'
    >>> _without_source("a.h:142 Compute MatMul dimension mismatch")
    'MatMul dimension mismatch'
    """
    text = re.sub(r"^\S+:\d+ ", "", reason)
    if text != reason:
        match = _FUNCTION.match(text)
        text = text[match.end() :] if match else text.partition(" ")[2]
    return text.rpartition(" was false. ")[2] or text


def _reason(error: Exception) -> tuple[str, str]:
    """Return code and first line of an error, whose text begins with ``[ONNXRuntimeError] : 9 : CODE : ...``."""
    text = str(error)
    match = re.match(r"\[ONNXRuntimeError\] : \d+ : (\w+) : (.*)", text, re.DOTALL)
    code, reason = (match[1], match[2]) if match else ("", text)
    return code, next((line.strip() for line in reason.splitlines() if line.strip()), type(error).__name__)


RUNTIME = Runtime(
    name="onnxruntime",
    title="ONNX Runtime",
    available=_available,
    open_model=_open,
    find_int8_nodes=_find_int8_nodes,
    kinds=("onnx",),
    dialects=("onnx", "tensorflow"),
    native_dialect="onnx",
    keeps_tensors=True,
    devices=("cpu", "gpu"),
    describe_build=_describe_build,
    describe_telemetry=_describe_telemetry,
    has_inter_op=True,
    can_omit_optimizer=True,
    tunables={"spinning": (False,)},
    native_options=_native_options,
    op_domains=("com.microsoft",),
    has_custom_op=_has_custom_op,
    package="onnxruntime",
    traces_ops=True,
    priority=40,
)


def _tensorrt_available() -> Availability:
    from importlib.metadata import PackageNotFoundError

    try:
        return Availability.yes(package_version("onnxruntime-gpu"))
    except PackageNotFoundError:
        return Availability.no("ONNX Runtime with TensorRT is not installed: pip install onnxruntime-gpu tensorrt")


# A model takes minutes to build: ``auto`` tries this runtime last.
TENSORRT_RUNTIME = Runtime(
    name="tensorrt",
    title="TensorRT in ONNX Runtime",
    available=_tensorrt_available,
    open_model=partial(_open, provider=TENSORRT),
    kinds=("onnx",),
    dialects=("onnx", "tensorflow"),
    devices=("gpu",),
    precisions=("float32", "float16"),
    describe_build=_describe_build,
    describe_telemetry=_describe_telemetry,
    fuses_float_ops=True,
    transposes_convolutions=True,
    traces_ops=True,
    package="onnxruntime",
    priority=1,
)
