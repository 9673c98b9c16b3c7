"""Conversion of TensorFlow graphs to ONNX: by `tensorflow_to_onnx` if it supports all ops, else by tf2onnx.

A conversion by tf2onnx takes seconds and gigabytes of memory, so that its result is cached on disk; see `cache`.
"""

import contextlib
import gc
import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

import quantkit.runtimes.tensorflow_library as tensorflow
from quantkit.convert import tensorflow_to_onnx
from quantkit.convert.batch_norms import replace_old_batch_norms
from quantkit.convert.cache import convert_cached
from quantkit.distribution import install_command
from quantkit.errors import FallbackWarning, QuantkitError, UnavailableError
from quantkit.formats import onnx
from quantkit.formats.metadata import text_of, with_text
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ops.kernels import evaluate
from quantkit.ops.semantics import LOOP_OPS
from quantkit.runtimes.availability import find_package

LIST_OP = "TensorListReserve"
OPSET = 17
# Version of the code around tf2onnx; it is part of the cache key and grows with each change of that code.
EDITION = 2
# Ops that neither converter supports: a graph with one of them is rejected before any work.
UNSUPPORTED = re.compile(
    r"BatchNormWithGlobalNormalization|_?Quantized\w+|Requantiz\w+|QuantizeV2|QuantizeDownAndShrinkRange"
    r"|Decode(?:Jpeg|Png|Gif|Bmp|Image|WebP|AndCropJpeg)|_Fused\w+"
)
_HINT = "use --runtime tensorflow or --target tensorflow, which need no conversion"


def to_onnx(graph: Graph) -> bytes:
    """Serialize a graph as an ONNX model; a TensorFlow graph is converted.

    Args:
        graph: a graph with inputs and outputs, which may be any of its tensors.

    Returns:
        ModelProto bytes; inputs and outputs have the names of the edges: ``softmax``, ``split:1``.

    Raises:
        UnavailableError: an op is not supported.
        GraphError: TensorFlow rejects the graph.
    """
    return onnx.encode(graph if graph.dialect == onnx.DIALECT else to_onnx_graph(graph))


def to_onnx_graph(graph: Graph) -> Graph:
    """Convert a TensorFlow graph to a graph of ONNX ops, which may exceed the size of one file.

    If tf2onnx converts the graph, a `FallbackWarning` lists the nodes that need it.

    Raises:
        UnavailableError: an op is not supported.
        GraphError: TensorFlow rejects the graph.
    """
    text = text_of(graph)
    graph = replace_old_batch_norms(graph)
    live = graph.reachable() - graph.input_names
    reason = _unsupported_ops(graph[name].op for name in live if UNSUPPORTED.fullmatch(graph[name].op))
    if reason:
        raise UnavailableError(reason, hint=_HINT)
    graph = _dequantize_constants(graph)
    try:
        return with_text(tensorflow_to_onnx.convert(graph), text)
    except UnavailableError as error:
        tf2onnx = find_package("tf2onnx", "tf2onnx", "tf2onnx", extra="onnx")
        if not (tf2onnx.ok and tensorflow.available().ok):
            raise UnavailableError(
                error.message, hint=f"tf2onnx may convert them: {install_command('onnx', 'tensorflow')}"
            ) from None
        warnings.warn(f"{error.message}; tf2onnx converts the graph", FallbackWarning, stacklevel=2)
        try:
            data = convert_by_tf2onnx(graph)
        except UnavailableError as second:
            raise UnavailableError(f"{second.message}; without tf2onnx: {error.message}", hint=error.hint) from None
    return with_text(onnx.decode(data), text)


def convert_by_tf2onnx(graph: Graph) -> bytes:
    """Convert a TensorFlow graph to a serialized ONNX model by tf2onnx, or return the cached result.

    Raises:
        UnavailableError: tf2onnx does not support an op.
        GraphError: TensorFlow rejects the graph.
    """
    graph = graph.without_unused_nodes(stop_at_inputs=False)  # the nodes before an input define its shape
    return convert_cached(graph, ".onnx", (version("tf2onnx"), OPSET, EDITION), _convert, lambda _: _HINT)


def _dequantize_constants(graph: Graph) -> Graph:
    """Replace Dequantize nodes of constants by float constants: ONNX has no such quantized types."""
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


def _unsupported_ops(ops: Iterable[str]) -> str:
    """Return the message for unsupported ops; empty if all are supported."""
    counts = Counter(ops)
    names = ", ".join(f"{op} ({count})" for op, count in sorted(counts.items()))
    return f"no conversion to ONNX for {names}" if counts else ""


def _convert(graph: Graph) -> tuple[bytes, str]:
    """Return the model, and the reason if the conversion fails: tf2onnx reports failed nodes in its log only."""
    imported = tensorflow.import_graph(graph)  # its errors name nodes; those of tf2onnx do not
    for edge in (*graph.inputs, *graph.outputs):
        tensorflow.find_tensor(imported, edge)
    del imported
    message = tensorflow.graph_def(copy_shared_lists(graph))
    inputs, outputs = (list(map(_port, dict.fromkeys(edges))) for edges in (graph.inputs, graph.outputs))
    names = {_port(edge): str(edge) for edge in (*graph.inputs, *graph.outputs)}
    with tensorflow.suppress_log(), _record_errors() as records, _disable_copies():
        from tf2onnx.convert import from_graph_def

        try:
            model, _ = from_graph_def(
                message, input_names=inputs, output_names=outputs, opset=OPSET, tensors_to_rename=names
            )
            set_scalar_loop_inputs(model.graph)
            data: bytes = model.SerializeToString()
        except Exception as error:
            raise UnavailableError(
                f"tf2onnx {version('tf2onnx')} cannot convert the graph: {_first_line(error)}",
                hint="use --runtime tensorflow, which needs no conversion",
            ) from error
    del model
    gc.collect()  # tf2onnx's graphs contain reference cycles of gigabytes
    return data, _failure(graph, [_parse_record(record) for record in records])


def _failure(graph: Graph, problems: list["_Problem"]) -> str:
    failed = [
        f"node {name!r}" + (f" ({graph[name].op})" if name in graph else "") + f": {reason}"
        for kind, name, reason in problems
        if kind == "failed"
    ]
    if failed:
        return f"tf2onnx cannot convert {'; '.join(failed)}"
    return _unsupported_ops(reason for kind, _, reason in problems if kind == "unsupported")


def _port(edge: Edge) -> str:
    return f"{edge.node}:{edge.port}"


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class _Problem(NamedTuple):
    """Log record of tf2onnx about a node: ``unsupported`` (`reason` is the op) or ``failed``."""

    kind: str
    name: str
    reason: str


def _parse_record(record: logging.LogRecord) -> _Problem:
    args = record.args if isinstance(record.args, tuple) else ()
    message = str(record.msg)
    if message == "Tensorflow op [%s: %s] is not supported" and len(args) == 2:
        return _Problem("unsupported", str(args[0]), str(args[1]))
    if message.startswith("Failed to convert node") and args:
        return _Problem("failed", str(args[0]), _first_line(record.exc_info[1] if record.exc_info else message))
    return _Problem("", "", record.getMessage())


@contextlib.contextmanager
def _disable_copies() -> Iterator[None]:
    """Keep tf2onnx from copying the model before each of its passes: saves 2 s and 2 GB for Inception v3."""
    name = "TF2ONNX_CATCH_ERRORS"
    value = os.environ.get(name)
    os.environ.setdefault(name, "FALSE")
    try:
        yield
    finally:
        if value is None:
            del os.environ[name]


class _RecordingHandler(logging.Handler):
    """Handler that keeps records instead of writing them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def _record_errors() -> Iterator[list[logging.LogRecord]]:
    """Collect the errors that tf2onnx logs; its log does not reach the terminal."""
    logger = logging.getLogger("tf2onnx")
    handler = _RecordingHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.records
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def copy_shared_lists(graph: Graph) -> Graph:
    """Copy each empty list that several loops start with: tf2onnx removes the list together with the first loop."""
    changed = []
    for name in graph.library:
        try:
            function = graph.library[name]
        except QuantkitError:
            continue
        body = _copy_shared_lists(function.graph)
        if body is not function.graph:
            changed.append(replace(function, graph=body))
    graph = graph.with_(library=graph.library.with_(*changed)) if changed else graph
    return _copy_shared_lists(graph)


def _copy_shared_lists(graph: Graph) -> Graph:
    nodes: list[Node] = []
    used: set[str] = set()
    for node in graph.nodes.values():
        if node.op in LOOP_OPS:
            for index, edge in enumerate(node.inputs):
                if graph[edge.node].op == LIST_OP and edge.node in used:
                    copy = graph[edge.node].with_(name=free_name(graph, f"{edge.node}/of/{node.name}/{index}"))
                    nodes.append(copy)
                    node = node.with_input(index, Edge(copy.name))
                used.add(edge.node)
        nodes.append(node)
    return graph.with_nodes(nodes) if len(nodes) > len(graph) else graph


def set_scalar_loop_inputs(graph: Any) -> None:
    """Set the shape of iteration number and condition, the first two inputs of each loop body, to a scalar.

    Args:
        graph: ONNX GraphProto, which is changed in place.
    """
    graphs = [graph]
    for subgraph in graphs:
        for node in subgraph.node:
            bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            graphs.extend(bodies)
            if node.op_type == "Loop":
                for body in bodies:
                    for value in body.input[:2]:
                        value.type.tensor_type.shape.SetInParent()
