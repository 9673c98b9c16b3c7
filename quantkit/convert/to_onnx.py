"""TensorFlow graphs as ONNX models: by our own conversion where it knows every op, else by tf2onnx.

Ours takes milliseconds. A conversion by tf2onnx takes seconds and gigabytes, so its result is kept on disk under
a digest of all that decides it: the nodes, the inputs and outputs, tf2onnx's version and the opset. A refusal is
stored as well.
"""

import contextlib
import gc
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import NamedTuple

import quantkit.runtimes.tensorflow_library as tensorflow
from quantkit.convert import tensorflow_to_onnx
from quantkit.convert.cache import kept, needed
from quantkit.convert.onnx_loops import tell_shapes_of_turns, with_own_lists
from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, constant
from quantkit.ops.kernels import evaluate
from quantkit.runtimes.availability import installed

OPSET = 17
# Counts how what is done before and after tf2onnx changed: what is kept of earlier conversions would be without it.
EDITION = 2
# Ops without any equivalent in ONNX, which no rewriting of tf2onnx removes either: refused without trying.
NEVER_CONVERTED = re.compile(
    r"BatchNormWithGlobalNormalization|_?Quantized\w+|Requantiz\w+|QuantizeV2|QuantizeDownAndShrinkRange"
    r"|Decode(?:Jpeg|Png|Gif|Bmp|Image|WebP|AndCropJpeg)|_Fused\w+"
)
_HINT = "TensorFlow runs them: --runtime tensorflow; transforms such as fold_old_batch_norms remove some of them"


def to_onnx(graph: Graph) -> bytes:
    """Serialize a graph as an ONNX model; a TensorFlow graph is converted.

    Args:
        graph: a graph with inputs and outputs, which may be any of its tensors.

    Returns:
        ModelProto bytes; inputs and outputs are named like the graph's: ``softmax``, ``split:1``.

    Raises:
        UnavailableError: neither conversion knows some ops, which are named.
        GraphError: TensorFlow refuses the graph.
    """
    return onnx.encode(graph if graph.dialect == onnx.DIALECT else to_onnx_graph(graph))


def to_onnx_graph(graph: Graph) -> Graph:
    """As `to_onnx`, a graph of ONNX's ops; it may be larger than one file can hold.

    Raises:
        UnavailableError, GraphError: as `to_onnx`.
    """
    computed = graph.reachable() - graph.input_names
    hopeless = _unconverted(graph[name].op for name in computed if NEVER_CONVERTED.fullmatch(graph[name].op))
    if hopeless:
        raise UnavailableError(hopeless, hint=_HINT)
    graph = _decoded(graph)
    try:
        return tensorflow_to_onnx.convert(graph)
    except UnavailableError as refusal:
        tf2onnx = installed("tf2onnx", "tf2onnx", "tf2onnx", extra="onnx")
        if not (tf2onnx.ok and tensorflow.available().ok):
            raise UnavailableError(
                refusal.message, hint="tf2onnx may convert them: pip install 'quantkit[onnx,tensorflow]'"
            ) from None
    return onnx.decode(by_tf2onnx(graph))


def by_tf2onnx(graph: Graph) -> bytes:
    """As `to_onnx`, by tf2onnx, or from the disk where it did that before.

    Raises:
        UnavailableError: tf2onnx can not convert some ops, which are named.
        GraphError: TensorFlow refuses the graph.
    """
    return kept(needed(graph), ".onnx", (version("tf2onnx"), OPSET, EDITION), _convert, _HINT)


def _decoded(graph: Graph) -> Graph:
    """With weights that are stored as codes, as the floats they stand for: ONNX has no such codes."""
    values = {
        node.name: tensors
        for node in graph.nodes.values()
        if node.op == "Dequantize" and None not in (tensors := [graph.constant_of(edge) for edge in node.inputs])
    }
    return graph.with_nodes(
        constant(node.name, evaluate(node, [tensor.array for tensor in values[node.name] if tensor])[0])
        if node.name in values
        else node
        for node in graph.nodes.values()
    )


def _unconverted(ops: Iterable[str]) -> str:
    counts = Counter(ops)
    listed = ", ".join(f"{op} ({count})" for op, count in sorted(counts.items()))
    return f"no ONNX form is known of {listed}" if counts else ""


def _convert(graph: Graph) -> tuple[bytes, str]:
    """The model, and why it is none (nothing: it is one): tf2onnx's log, not its result, tells."""
    imported = tensorflow.import_graph(graph)  # its errors name nodes; tf2onnx's do not
    for edge in (*graph.inputs, *graph.outputs):
        tensorflow.tensor(imported, edge)
    del imported
    message = tensorflow.graph_def(with_own_lists(graph))
    inputs, outputs = (list(map(_port, dict.fromkeys(edges))) for edges in (graph.inputs, graph.outputs))
    names = {_port(edge): str(edge) for edge in (*graph.inputs, *graph.outputs)}
    with tensorflow.quiet(), _complaints() as complaints, _uncopied():
        from tf2onnx.convert import from_graph_def

        try:
            model, _ = from_graph_def(
                message, input_names=inputs, output_names=outputs, opset=OPSET, tensors_to_rename=names
            )
            tell_shapes_of_turns(model.graph)
            data: bytes = model.SerializeToString()
        except Exception as error:
            raise UnavailableError(
                f"tf2onnx {version('tf2onnx')} can not convert the graph: {_first_line(error)}",
                hint="TensorFlow may run it as it is: --runtime tensorflow",
            ) from error
    del model
    gc.collect()  # tf2onnx's graphs refer to themselves: without this, gigabytes would stay
    return data, _refusal(graph, [_problem(record) for record in complaints])


def _refusal(graph: Graph, problems: list["_Problem"]) -> str:
    for kind, name, reason in problems:
        if kind == "failed":
            op = f" ({graph[name].op})" if name in graph else ""
            return f"tf2onnx can not convert node {name!r}{op}: {reason}"
    return _unconverted(reason for kind, _, reason in problems if kind == "unsupported")


def _port(edge: Edge) -> str:
    return f"{edge.node}:{edge.port}"


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class _Problem(NamedTuple):
    """What tf2onnx logged about a node: that it knows no such op (`reason` is the op), or why it failed."""

    kind: str
    name: str
    reason: str


def _problem(record: logging.LogRecord) -> _Problem:
    args = record.args if isinstance(record.args, tuple) else ()
    message = str(record.msg)
    if message == "Tensorflow op [%s: %s] is not supported" and len(args) == 2:
        return _Problem("unsupported", str(args[0]), str(args[1]))
    if message.startswith("Failed to convert node") and args:
        return _Problem("failed", str(args[0]), _first_line(record.exc_info[1] if record.exc_info else message))
    return _Problem("", "", record.getMessage())


@contextlib.contextmanager
def _uncopied() -> Iterator[None]:
    """Keep tf2onnx from copying the whole model before each of its passes: 2 s and 2 GB less on Inception v3."""
    name = "TF2ONNX_CATCH_ERRORS"
    given = os.environ.get(name)
    os.environ.setdefault(name, "FALSE")
    try:
        yield
    finally:
        if given is None:
            del os.environ[name]


class _Listener(logging.Handler):
    """Keeps records instead of writing them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def _complaints() -> Iterator[list[logging.LogRecord]]:
    """What tf2onnx logs as errors meanwhile; nothing of its log reaches the terminal."""
    logger = logging.getLogger("tf2onnx")
    listener = _Listener()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield listener.records
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagated
