"""TensorFlow: a GraphDef in a session of its first kind, as frozen graphs were made for.

TensorFlow makes its intra-op threads once in a process, as the first session asks for them; who compares
thread settings opens each in a process of its own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import UnavailableError
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import (
    Availability,
    Engine,
    FunctionSession,
    Session,
    SessionOptions,
    TensorInfo,
    as_array,
    gpu_index,
    require,
)
from quantkit.runtimes.tensorflow_library import available, explained, import_graph, module, quiet, tensor

_SHORT_WORDS = {"float32": "float", "float64": "double", "float16": "half"}
# What Linux calls a processor's bfloat16 instructions (x86, Arm).
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}


class TensorFlow:
    """The runtime ``tensorflow``."""

    name = "tensorflow"

    def available(self) -> Availability:
        return available()

    def open(self, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        """Open a frozen graph; inputs and outputs may be any of its tensors.

        Raises:
            UnavailableError: not installed, no such device, or an op that this TensorFlow does not have.
            GraphError: TensorFlow refuses the graph.
        """
        require(self.available())
        if not isinstance(model, Graph) or model.dialect != "tensorflow":
            what = model.name if isinstance(model, Path) else f"one of {model.dialect}"
            raise UnavailableError(f"TensorFlow runs frozen TensorFlow graphs, not {what}")
        index = gpu_index(options.device)
        with quiet():
            tf = module()
            device = "/device:CPU:0" if index is None else _gpu(tf, index)
            config = _config(tf, options, on_gpu=index is not None)
            if options.precision == "float32":
                tf.config.experimental.enable_tensor_float_32_execution(False)
            graph = import_graph(model, device)
            session = tf.compat.v1.Session(graph=graph, config=config)
        feeds = [tensor(graph, edge) for edge in model.inputs]
        fetches = _kept(tf, graph, feeds, [tensor(graph, edge) for edge in dict.fromkeys(model.outputs)])
        ops = {node.name: node.op for node in model.nodes.values()}
        steps = _Steps(tf, session, feeds, fetches, options.log_placement)
        return FunctionSession(
            Engine(self.name, tf.__version__, device),
            tuple(map(_info, model.inputs, feeds)),
            tuple(map(_info, dict.fromkeys(model.outputs), fetches)),
            _explaining(tf, steps.compute, ops),
            release=session.close,
            placement=lambda: steps.placement,
        )


RUNTIME = TensorFlow()


def _kept(tf: Any, graph: Any, feeds: list[Any], fetches: list[Any]) -> list[Any]:
    """The tensors that are fetched, out of the reach of fusions.

    TensorFlow's optimizer makes a Sigmoid a part of a swish, and a Rsqrt of a layer norm, even where they are fetched,
    and then does not find them; what has two readers it leaves alone.
    """
    fed = {feed.name for feed in feeds}
    with graph.as_default():
        return [tf.identity(one, "kept") if one.consumers() and one.name not in fed else one for one in fetches]


class _Steps:
    """The runs of a session; the first one also says where each operation was put, if that was asked."""

    def __init__(self, tf: Any, session: Any, feeds: list[Any], fetches: list[Any], log_placement: bool) -> None:
        self.placement: tuple[str, ...] = ()
        self._v1 = tf.compat.v1
        self._call = session.make_callable(fetches, feed_list=feeds)
        # TensorFlow gives a tensor that is both fed and fetched back as the very array it was fed.
        fed = {feed.name for feed in feeds}
        self._is_fed = [fetch.name in fed for fetch in fetches]
        self._must_log = log_placement

    def compute(self, arrays: list[Array]) -> Sequence[Array]:
        results = self._logged(arrays) if self._must_log else self._call(*arrays)
        return [
            np.array(result) if is_fed else as_array(result)
            for result, is_fed in zip(results, self._is_fed, strict=True)
        ]

    def _logged(self, arrays: list[Array]) -> Any:
        metadata = self._v1.RunMetadata()
        results = self._call(*arrays, options=self._v1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
        self.placement = tuple(
            f"{node.name} ({node.op}): {node.device}"
            for graph in metadata.partition_graphs
            for node in graph.node
            if node.op not in ("_Arg", "_Retval", "Const")
        )
        self._must_log = False
        return results


def _explaining(
    tf: Any, compute: Callable[[list[Array]], Sequence[Array]], ops: Mapping[str, str]
) -> Callable[[list[Array]], Sequence[Array]]:
    def compute_or_explain(arrays: list[Array]) -> Sequence[Array]:
        try:
            return compute(arrays)
        except tf.errors.OpError as error:
            raise explained(error, ops) from error

    return compute_or_explain


def _gpu(tf: Any, index: int) -> str:
    """TensorFlow's name of a GPU.

    Raises:
        UnavailableError: it does not see that one; the hint says what is missing.
    """
    seen = tf.config.list_physical_devices("GPU")
    if index < len(seen):
        return f"/device:GPU:{index}"
    if seen:
        raise UnavailableError(
            f"TensorFlow {tf.__version__} sees {len(seen)} GPUs, and gpu:{index} is not one of them",
            hint=f"use --device gpu:{len(seen) - 1} or lower; CUDA_VISIBLE_DEVICES hides the others",
        )
    hint = (
        "check that nvidia-smi lists the card, and install the CUDA libraries: pip install 'tensorflow[and-cuda]'"
        if tf.test.is_built_with_cuda()
        else "this build has no CUDA: pip install 'tensorflow[and-cuda]' on Linux with an NVIDIA card"
    )
    devices = ", ".join(device.name for device in tf.config.list_physical_devices())
    raise UnavailableError(f"TensorFlow {tf.__version__} sees no GPU, only {devices}", hint=hint)


def _config(tf: Any, options: SessionOptions, *, on_gpu: bool) -> Any:
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=options.intra_op or 0,
        inter_op_parallelism_threads=options.inter_op or 0,
        allow_soft_placement=True,
    )
    if on_gpu:
        config.gpu_options.allow_growth = True
    else:
        config.device_count["GPU"] = 0
    if options.precision != "float32":
        rewrites = config.graph_options.rewrite_options
        rewrites.min_graph_nodes = -1
        setattr(rewrites, _mixed_precision(options.precision, on_gpu), type(rewrites).ON)
    return config


def _mixed_precision(precision: str, on_gpu: bool) -> str:
    """The graph rewrite that lets TensorFlow compute in a smaller float.

    Raises:
        UnavailableError: none does so on this device.
    """
    if precision == "float16" and on_gpu:
        return "auto_mixed_precision"
    if precision == "bfloat16" and not on_gpu:
        if _BFLOAT16_FLAGS & _processor_flags():
            return "auto_mixed_precision_onednn_bfloat16"
        raise UnavailableError("this processor has no bfloat16 instructions", hint="use --precision float32")
    where = "a GPU" if on_gpu else "a processor"
    raise UnavailableError(
        f"TensorFlow has no {precision} arithmetic on {where}",
        hint=f"on {where} it has {'float16' if on_gpu else 'bfloat16'}; use that, or --precision float32",
    )


@cache
def _processor_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def _info(edge: Edge, found: Any) -> TensorInfo:
    word = found.dtype.base_dtype.name
    shape = Shape(None) if found.shape.rank is None else Shape(tuple(found.shape.as_list()))
    return TensorInfo(str(edge), DType(_SHORT_WORDS.get(word, word)), shape)
