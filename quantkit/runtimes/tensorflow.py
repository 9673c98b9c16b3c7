"""TensorFlow: frozen graphs in a ``tf.compat.v1.Session``.

TensorFlow creates its intra-op thread pool once per process, with the options of the first session. To compare thread
settings, open each in a process of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.cores import cpu_flags
from quantkit.errors import UnavailableError
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.availability import no_telemetry
from quantkit.runtimes.function_session import FunctionSession, as_array
from quantkit.runtimes.runtime import ISA_VARIABLE, ONEDNN_ISAS, Runtime
from quantkit.runtimes.session import OpTrace, RuntimeVersion, Session, SessionOptions, TensorInfo
from quantkit.runtimes.tensorflow_library import (
    SessionLibrary,
    available,
    find_tensor,
    import_graph,
    import_tensorflow,
    suppress_log,
    translate_error,
)
from quantkit.runtimes.tensorflow_profile import TensorflowProfiler

_DTYPE_NAMES = {"float32": "float", "float64": "double", "float16": "half"}
# Names of the bfloat16 instructions in /proc/cpuinfo (x86, Arm).
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}


def _open(model: Graph | Path, options: SessionOptions) -> Session:
    """Open a frozen graph; inputs and outputs may be any of its tensors.

    Raises:
        UnavailableError: the device is missing, or an op is not in this TensorFlow.
        GraphError: TensorFlow rejects the graph.
    """
    assert isinstance(model, Graph)
    with suppress_log():
        tf = SessionLibrary()
        gpu = options.gpu_index
        device = "/device:CPU:0" if gpu is None else _gpu(import_tensorflow(), gpu)
        config = _config(tf, options, on_gpu=gpu is not None)
        if options.precision == "float32":
            tf.enable_tensor_float_32(False)
        graph = import_graph(model, device)
        session = tf.Session(graph=graph, config=config)
    feeds = [find_tensor(graph, edge) for edge in model.inputs]
    fetches = _protect_fetches(tf, graph, feeds, [find_tensor(graph, edge) for edge in dict.fromkeys(model.outputs)])
    ops = {node.name: node.op for node in model.nodes.values()}
    # On a GPU, a trace has the times of the launches, not of the kernels.
    profiler = TensorflowProfiler(tf, model) if options.profile and gpu is None else None
    call = _Call(tf, session, feeds, fetches, options.log_placement, profiler)
    return FunctionSession(
        RuntimeVersion(RUNTIME.name, tf.version, device),
        tuple(map(_info, model.inputs, feeds)),
        tuple(map(_info, dict.fromkeys(model.outputs), fetches)),
        _translating(tf, call.compute, ops),
        release=session.close,
        placement=lambda: call.placement,
        op_trace=lambda: profiler.read() if profiler else OpTrace(),
    )


def _protect_fetches(tf: SessionLibrary, graph: Any, feeds: list[Any], fetches: list[Any]) -> list[Any]:
    """Return the fetched tensors, with a second consumer for each that has one.

    TensorFlow's optimizer fuses a Sigmoid into a swish and a Rsqrt into a layer norm even if they are fetched, and then
    fails because the tensor is missing. It does not fuse tensors with several consumers.
    """
    inputs = {feed.name for feed in feeds}
    with graph.as_default():
        return [
            tf.identity(fetch, "kept") if fetch.consumers() and fetch.name not in inputs else fetch for fetch in fetches
        ]


class _Call:
    """Callable of a session; its first call records the device of each op if requested, each call its profile."""

    def __init__(
        self,
        tf: SessionLibrary,
        session: Any,
        feeds: list[Any],
        fetches: list[Any],
        log_placement: bool,
        profiler: TensorflowProfiler | None,
    ) -> None:
        self.placement: tuple[str, ...] = ()
        self._tf = tf
        self._call = session.make_callable(fetches, feed_list=feeds)
        # TensorFlow returns the caller's own array for a tensor that is both fed and fetched.
        inputs = {feed.name for feed in feeds}
        self._is_input = [fetch.name in inputs for fetch in fetches]
        self._must_log = log_placement
        self._profiler = profiler

    def compute(self, arrays: list[Array]) -> Sequence[Array]:
        results = self._results(arrays)
        return [
            np.array(result) if is_input else as_array(result)
            for result, is_input in zip(results, self._is_input, strict=True)
        ]

    def _results(self, arrays: list[Array]) -> Any:
        if self._must_log:
            return self._call_with_log(arrays)
        return self._call(*arrays) if self._profiler is None else self._profiler.call(self._call, arrays)

    def _call_with_log(self, arrays: list[Array]) -> Any:
        metadata = self._tf.RunMetadata()
        results = self._call(*arrays, options=self._tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
        self.placement = tuple(
            f"{node.name} ({node.op}): {node.device}"
            for graph in metadata.partition_graphs
            for node in graph.node
            if node.op not in ("_Arg", "_Retval", "Const")
        )
        self._must_log = False
        return results


def _translating(
    tf: SessionLibrary, compute: Callable[[list[Array]], Sequence[Array]], ops: Mapping[str, str]
) -> Callable[[list[Array]], Sequence[Array]]:
    """Wrap a function so that TensorFlow's errors become errors of quantkit."""

    def compute_and_translate(arrays: list[Array]) -> Sequence[Array]:
        try:
            return compute(arrays)
        except tf.OpError as error:
            raise translate_error(error, ops) from error

    return compute_and_translate


def _gpu(tf: Any, index: int) -> str:
    """Return TensorFlow's name of a GPU.

    Raises:
        UnavailableError: TensorFlow does not list this GPU; the hint names the missing part.
    """
    devices = tf.config.list_physical_devices("GPU")
    if index < len(devices):
        return f"/device:GPU:{index}"
    if devices:
        raise UnavailableError(
            f"TensorFlow {tf.__version__} lists {len(devices)} GPUs, and gpu:{index} is not one of them",
            hint=f"use --device gpu:{len(devices) - 1} or lower; CUDA_VISIBLE_DEVICES hides the others",
        )
    hint = (
        "check that nvidia-smi lists the GPU, and install the CUDA libraries: pip install 'tensorflow[and-cuda]'"
        if tf.test.is_built_with_cuda()
        else "this build has no CUDA: pip install 'tensorflow[and-cuda]' on Linux with an NVIDIA GPU"
    )
    names = ", ".join(device.name for device in tf.config.list_physical_devices())
    raise UnavailableError(f"TensorFlow {tf.__version__} has no GPU, only {names}", hint=hint)


def _config(tf: SessionLibrary, options: SessionOptions, *, on_gpu: bool) -> Any:
    config = tf.ConfigProto(
        intra_op_parallelism_threads=options.intra_op or 0,
        inter_op_parallelism_threads=options.inter_op or 0,
        allow_soft_placement=True,
    )
    if on_gpu:
        config.gpu_options.allow_growth = True
    else:
        config.device_count["GPU"] = 0
    rewrites = config.graph_options.rewrite_options
    if not options.optimized:
        rewrites.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1  # L0
    if options.precision != "float32":
        rewrites.min_graph_nodes = -1
        setattr(rewrites, _mixed_precision(options.precision, on_gpu), type(rewrites).ON)
    return config


def _native_options(options: SessionOptions, file: str) -> str:
    """Return the options as code that creates a session, which is not bound to a file."""
    threads = {"intra_op_parallelism_threads": options.intra_op, "inter_op_parallelism_threads": options.inter_op}
    arguments = ", ".join(f"{name}={count}" for name, count in threads.items() if count)
    lines = [f"config = tf.compat.v1.ConfigProto({arguments})"]
    if options.precision != "float32":
        name = _mixed_precision(options.precision, options.gpu_index is not None)
        lines.append(f"config.graph_options.rewrite_options.{name} = 1  # RewriterConfig.ON")
    lines.append("session = tf.compat.v1.Session(config=config)")
    calls = [f"tf.config.threading.set_{name}({count})" for name, count in threads.items() if count]
    return "\n".join([*lines, *(f"{call}  # without a session, before the first op" for call in calls)])


def _mixed_precision(precision: str, on_gpu: bool) -> str:
    """Return the name of the graph rewrite that lets TensorFlow compute in a 16-bit float type.

    Raises:
        UnavailableError: there is no such rewrite for this device.
    """
    if precision == "float16" and on_gpu:
        return "auto_mixed_precision"
    if precision == "bfloat16" and not on_gpu:
        if _BFLOAT16_FLAGS & cpu_flags():
            return "auto_mixed_precision_onednn_bfloat16"
        raise UnavailableError("this CPU has no bfloat16 instructions", hint="use --precision float32")
    where = "a GPU" if on_gpu else "a CPU"
    raise UnavailableError(
        f"TensorFlow has no {precision} arithmetic on {where}",
        hint=f"use --precision {'float16' if on_gpu else 'bfloat16'} or --precision float32 on {where}",
    )


def _info(edge: Edge, imported: Any) -> TensorInfo:
    dtype = imported.dtype.base_dtype.name
    shape = Shape(None) if imported.shape.rank is None else Shape(tuple(imported.shape.as_list()))
    return TensorInfo(str(edge), DType(_DTYPE_NAMES.get(dtype, dtype)), shape)


def _describe_build() -> tuple[str, ...]:
    """Return the versions that the build states, and its devices."""
    tf = import_tensorflow()
    facts = tf.sysconfig.get_build_info()
    names = ("is_cuda_build", "cuda_version", "cudnn_version", "is_rocm_build")
    devices = ", ".join(device.name for device in tf.config.list_physical_devices())
    return (*(f"{name}: {facts[name]}" for name in names if facts.get(name)), f"devices: {devices}")


RUNTIME = Runtime(
    name="tensorflow",
    title="TensorFlow",
    available=available,
    open_model=_open,
    load=SessionLibrary,
    dialects=("tensorflow",),
    native_dialect="tensorflow",
    keeps_tensors=True,
    devices=("cpu", "gpu"),
    precisions=("float32", "bfloat16", "float16"),
    has_inter_op=True,
    can_omit_optimizer=True,
    tunables={"TF_ENABLE_ONEDNN_OPTS": ("0",), ISA_VARIABLE: ONEDNN_ISAS},
    native_options=_native_options,
    decodes_images=True,
    weight_copies=12,  # measured; protobuf messages of the graph are kept
    describe_build=_describe_build,
    package="tensorflow",
    describe_telemetry=no_telemetry,
    traces_ops=True,
    priority=30,
)
