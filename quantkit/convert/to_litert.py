"""Conversion of TensorFlow graphs to LiteRT by TensorFlow's converter; the result is cached on disk.

A graph with ``FakeQuantWithMinMaxVars`` ops becomes an int8 model: these ops define the ranges of the activations, and
the weights have a scale per output channel.
"""

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import quantkit.runtimes.tensorflow_library as tensorflow
from quantkit.convert.batch_norms import replace_old_batch_norms
from quantkit.convert.cache import convert_cached, digest
from quantkit.convert.litert_channels import find_unknown_channels, state_channels
from quantkit.convert.litert_erf import replace_error_functions
from quantkit.convert.litert_lists import flatten_lists
from quantkit.convert.litert_loops import copy_exchanged_variables
from quantkit.convert.litert_scatters import replace_scatters
from quantkit.errors import QuantkitError, UnavailableError, UsageError
from quantkit.formats import metadata, tflite
from quantkit.formats.files import write_whole
from quantkit.formats.saved_model import DEFAULT_SIGNATURE
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape

# Version of the code around the converter; it is part of the cache key and grows with each change of that code.
EDITION = 9
# Constants of fewer elements are not weights, but for example axes and sizes.
MIN_WEIGHTS = 256
FAKE_QUANT = "FakeQuantWithMinMaxVars"
# Beginning of the converter's error for a function that TensorFlow's context contains twice.
DUPLICATE = "duplicate function"
_HINT = "use --runtime tensorflow, or --target onnx or tensorflow"
_LIST_HINT = "export the model with TensorFlow 2 or tf.compat.v1.enable_control_flow_v2(), or use --target onnx"


def to_litert(graph: Graph, *, small_weights: bool = False) -> bytes:
    """Convert a graph to the content of a ``.tflite`` file.

    Args:
        graph: a frozen TensorFlow graph with inputs and outputs, which may be any of its tensors.
        small_weights: store the weights of layers as int8, without ranges of activations. Int8 kernels quantize
            their inputs by the range of each run (dynamic range quantization).

    Returns:
        Flatbuffer bytes; the tensors have the names of the edges: ``softmax``, ``split:1``. Dynamic dimensions stay
        dynamic.

    Raises:
        UnavailableError: TensorFlow is not installed, or its converter does not support an op.
        GraphError: TensorFlow rejects the graph.
    """
    if graph.dialect != "tensorflow":
        raise UnavailableError(f"cannot convert {graph.dialect} graphs to LiteRT, only tensorflow graphs")
    require_converter()
    return _convert_cached(graph, small_weights=small_weights)


def check_convertible(graph: Graph) -> None:
    """Check that `to_litert` can convert a graph.

    Weights take most of the time of a conversion. The graph without them is converted, and only if that fails, the
    graph itself: some ops need constants. The result is stored: the same graph with other ranges needs no second check.

    Raises:
        UnavailableError, GraphError: see `to_litert`.
    """
    try:
        _convert_without_weights(graph)
    except QuantkitError:
        to_litert(graph)


def _convert_without_weights(graph: Graph) -> None:
    """Convert a graph with inputs in the place of its large constants.

    Raises:
        UnavailableError, GraphError: the conversion fails.
    """
    weights = [
        node
        for node in graph.without_unused_nodes(stop_at_inputs=False).nodes.values()
        if node.is_constant and node.value.dtype is DType.FLOAT and node.value.num_elements >= MIN_WEIGHTS
    ]
    placeholders = [
        Node(node.name, "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(node.value.shape)})
        for node in weights
        if node.name not in graph.endpoint_names
    ]
    nodes = {**graph.nodes, **{node.name: node for node in placeholders}}
    inputs = (*graph.inputs, *(Edge(node.name) for node in placeholders))
    skeleton = graph.with_nodes(nodes.values()).with_endpoints(inputs, graph.outputs)
    _convert_cached(skeleton, small_weights=False)


def require_converter() -> None:
    """Check that TensorFlow, which writes LiteRT models, is installed.

    Raises:
        UnavailableError: TensorFlow is not installed.
    """
    availability = tensorflow.available()
    if not availability.ok:
        raise UnavailableError(
            "LiteRT models are written by TensorFlow, which is not installed", hint=availability.command
        )


def save_litert(graph: Graph, path: str | Path, *, small_weights: bool = False) -> None:
    """Write a graph to a ``.tflite`` file with a signature; the file appears complete or not at all.

    Raises:
        UsageError: the folder does not exist, or the suffix is not ``.tflite``.
        InputError: the file cannot be written.
        UnavailableError, GraphError: see `to_litert`.
    """
    path = Path(path)
    if path.suffix.lower() != ".tflite":
        raise UsageError(f"cannot write a LiteRT model to {path.name}", hint="use the suffix .tflite")
    data = _add_signature(graph, to_litert(graph, small_weights=small_weights))
    if text := metadata.text_of(graph):
        data = tflite.with_metadata(data, metadata.KEY, text)
    write_whole(path, lambda file: file.write(data))


def _add_signature(graph: Graph, data: bytes) -> bytes:
    """Return the model with a signature, whose names are the edges of the graph."""
    endpoints = [
        {str(edge): index for edge, index in zip(dict.fromkeys(edges), indices, strict=True)}
        for edges, indices in zip((graph.inputs, graph.outputs), tflite.endpoint_indices(data), strict=True)
    ]
    return tflite.with_signature(data, DEFAULT_SIGNATURE, *endpoints)


def _convert_cached(graph: Graph, *, small_weights: bool) -> bytes:
    """Return a stored conversion, or convert the graph; TensorFlow is imported only for that.

    Raises:
        UnavailableError, GraphError: the conversion fails.
    """
    converter = ("litert", tensorflow.available().detail, EDITION, *(["small_weights"] if small_weights else []))
    convert = partial(_convert, small_weights=small_weights)
    graph = replace_old_batch_norms(graph).without_unused_nodes(stop_at_inputs=False)
    graph = replace_scatters(replace_error_functions(graph))
    return convert_cached(graph, ".tflite", converter, convert, _choose_hint)


def _convert(graph: Graph, small_weights: bool) -> tuple[bytes, str]:
    """Return the model, and the reason if the conversion fails."""
    tensorflow.import_tensorflow()
    suffix = f"_{digest(graph, ())[:8]}"
    graph = flatten_lists(copy_exchanged_variables(graph))
    with tensorflow.suppress_log():
        function = _import(graph, suffix)
        unknown = find_unknown_channels(function.graph, graph)
        if unknown:
            graph = state_channels(graph, unknown)
            function = _import(graph, suffix)
        inputs, outputs = (
            [tensorflow.find_tensor(function.graph, edge) for edge in dict.fromkeys(edges)]
            for edges in (graph.inputs, graph.outputs)
        )
        data, reason = _run_converter(function.prune(inputs, outputs), graph, small_weights=small_weights)
        if DUPLICATE in reason:
            single = _import_once(graph, inputs, f"{suffix}_once")
            data, reason = _run_converter(single, graph, small_weights=small_weights)
            data = _add_signature(graph, data) if data else data
        return data, reason


def _run_converter(function: Any, graph: Graph, *, small_weights: bool) -> tuple[bytes, str]:
    """Return the model of a concrete function of a graph, and the reason if the conversion fails."""
    tf = tensorflow.import_tensorflow()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    if small_weights or FAKE_QUANT in graph.op_counts:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return converter.convert(), ""
    except Exception as error:  # the classes of its errors are not public
        return b"", _describe_failure(str(error))


def _import_once(graph: Graph, inputs: Sequence[Any], suffix: str) -> Any:
    """Return the graph as a concrete function from its inputs to its outputs.

    `_import` and its ``prune`` register the functions of the graph twice. The converter replaces the functions that its
    optimizer changes, and cannot replace both.

    Args:
        graph: TensorFlow graph.
        inputs: tensors of its inputs.
        suffix: end of the names of its functions in this process.
    """
    tf = tensorflow.import_tensorflow()
    message = tensorflow.graph_def(graph)
    _rename_functions(message, suffix)
    names, results = (
        [f"{edge.node}:{edge.port}" for edge in dict.fromkeys(edges)] for edges in (graph.inputs, graph.outputs)
    )

    def run(*arguments: Any) -> Any:
        sources = dict(zip(names, arguments, strict=True))
        return tf.graph_util.import_graph_def(message, input_map=sources, return_elements=results, name="")

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype, name=tensor.op.name) for tensor in inputs]
    return tf.function(run, input_signature=specs, autograph=False).get_concrete_function()


def _import(graph: Graph, suffix: str) -> Any:
    """Return the graph as a function without inputs and outputs.

    Args:
        graph: TensorFlow graph.
        suffix: end of the names of its functions in this process.

    Raises:
        GraphError, UnavailableError: TensorFlow rejects the graph.
    """
    tf = tensorflow.import_tensorflow()
    message = tensorflow.graph_def(graph)
    _rename_functions(message, suffix)
    try:
        return tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(message, name=""), [])
    except (tf.errors.OpError, ValueError, TypeError, KeyError) as error:
        raise tensorflow.translate_error(error, {node.name: node.op for node in graph.nodes.values()}) from error


def _rename_functions(message: Any, suffix: str) -> None:
    """Append a suffix to the function names of a GraphDef: a process can load one function of each name only."""
    names = {function.signature.name for function in message.library.function}
    if not names:
        return
    for gradient in message.library.gradient:
        gradient.function_name += suffix
        gradient.gradient_func += suffix
    nodes = [*message.node]
    for function in message.library.function:
        function.signature.name += suffix
        nodes.extend(function.node_def)
    for node in nodes:
        if node.op in names:
            node.op += suffix
        for value in node.attr.values():
            for reference in (value.func, *value.list.func):
                if reference.name in names:  # writing to value.func would change the type of another attribute
                    reference.name += suffix


def _choose_hint(reason: str) -> str:
    """Return the hint for the reason of a failure: LiteRT has the lists of TensorFlow 2 only, with known sizes."""
    if "element_shape" in reason:
        return f"state the sizes of the input (--input-shape), or {_HINT}"
    return _LIST_HINT if "TensorArray" in reason else _HINT


def _describe_failure(text: str) -> str:
    """Convert the error of the converter to one line."""
    missing = Counter(re.findall(r"'tf\.(\w+)' op is neither a custom op nor a flex op", text))
    if missing:
        ops = ", ".join(f"{op} ({count})" for op, count in sorted(missing.items()))
        return f"TensorFlow's converter has no LiteRT form of {ops}"
    loop_output = re.search(r"Graph does not contain node: (\S+)", text)
    if loop_output:
        return f"TensorFlow's converter cannot convert a model whose output is the end of a loop, {loop_output[1]!r}"
    errors = re.findall(r"error: (.+)", text) or [line for line in text.splitlines() if line.strip()] or ["no reason"]
    return f"TensorFlow's converter cannot convert the graph to LiteRT: {errors[0].strip()}"
