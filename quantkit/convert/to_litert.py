"""TensorFlow graphs as LiteRT models, made by TensorFlow's converter once and kept on disk.

A graph whose tensors pass through ``FakeQuantWithMinMaxVars`` becomes one of whole numbers: codes between those
tensors, with the ranges that these ops give, and weights with a scale for each output channel.
"""

import re
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import quantkit.runtimes.tensorflow_library as tensorflow
from quantkit.convert.cache import digest, kept, needed
from quantkit.errors import UnavailableError, UsageError
from quantkit.formats.files import write_whole
from quantkit.ir.graph import Graph

FAKE_QUANT = "FakeQuantWithMinMaxVars"
_HINT = "TensorFlow runs them: --runtime tensorflow; transforms such as fold_old_batch_norms remove some of them"


def to_litert(graph: Graph, *, small_weights: bool = False) -> bytes:
    """The content of a ``.tflite`` file that computes what the graph does.

    Args:
        graph: a frozen TensorFlow graph with inputs and outputs; fed tensors may be in its middle.
        small_weights: whether the layers' weights are stored in 8 bits, without ranges for what flows between them:
            kernels that have 8-bit products round what they read by its own range in each run.

    Returns:
        A flatbuffer; its tensors are named like the graph's: ``softmax``, ``split:1``. Sizes that the graph leaves
        open stay open.

    Raises:
        UnavailableError: TensorFlow is not installed, or its converter knows no form of some ops, which are named.
        GraphError: TensorFlow refuses the graph.
    """
    if graph.dialect != "tensorflow":
        raise UnavailableError(f"LiteRT models are made of TensorFlow graphs, not of one of {graph.dialect}")
    require_converter()
    words = ("litert", tensorflow.available().detail, *(["small_weights"] if small_weights else []))
    return kept(needed(graph), ".tflite", words, partial(_convert, small_weights=small_weights), _HINT)


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
    """Write the ``.tflite`` file of a graph as `to_litert` makes it; it appears complete or not at all.

    Raises:
        UsageError: the folder does not exist, or the ending is that of another format.
        InputError: the file can not be written.
        UnavailableError, GraphError: as `to_litert`.
    """
    path = Path(path)
    if path.suffix.lower() != ".tflite":
        raise UsageError(f"{path.name} can not hold a LiteRT model", hint="name a file that ends in .tflite")
    data = to_litert(graph, small_weights=small_weights)
    write_whole(path, lambda file: file.write(data))


def _convert(graph: Graph, small_weights: bool) -> tuple[bytes, str]:
    """The model, and why it is none (nothing: it is one)."""
    tf = tensorflow.module()
    message = tensorflow.graph_def(graph)
    _rename_functions(message, f"_{digest(graph, ())[:8]}")
    ops = {node.name: node.op for node in graph.nodes.values()}
    with tensorflow.quiet():
        try:
            whole = tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(message, name=""), [])
        except (tf.errors.OpError, ValueError, TypeError, KeyError) as error:
            raise tensorflow.explained(error, ops) from error
        inputs, outputs = (
            [tensorflow.tensor(whole.graph, edge) for edge in dict.fromkeys(edges)]
            for edges in (graph.inputs, graph.outputs)
        )
        converter = tf.lite.TFLiteConverter.from_concrete_functions([whole.prune(inputs, outputs)])
        if small_weights or FAKE_QUANT in graph.op_counts:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return converter.convert(), ""
        except Exception as error:  # its own classes are not public
            return b"", _refusal(str(error))


def _rename_functions(message: Any, ending: str) -> None:
    """Give the functions of a GraphDef names that end so: TensorFlow knows one of a name in what a process loads."""
    names = {function.signature.name for function in message.library.function}
    if not names:
        return
    for gradient in message.library.gradient:
        gradient.function_name += ending
        gradient.gradient_func += ending
    nodes = [*message.node]
    for function in message.library.function:
        function.signature.name += ending
        nodes.extend(function.node_def)
    for node in nodes:
        if node.op in names:
            node.op += ending
        for value in node.attr.values():
            for named in (value.func, *value.list.func):
                if named.name in names:  # to write into what an attribute is not would make it that
                    named.name += ending


def _refusal(text: str) -> str:
    """What the converter's error says, in a sentence."""
    missing = Counter(re.findall(r"'tf\.(\w+)' op is neither a custom op nor a flex op", text))
    if missing:
        listed = ", ".join(f"{op} ({count})" for op, count in sorted(missing.items()))
        return f"TensorFlow's converter knows no LiteRT form of {listed}"
    errors = re.findall(r"error: (.+)", text) or [line for line in text.splitlines() if line.strip()] or ["no reason"]
    return f"TensorFlow's converter can not make a LiteRT model of the graph: {errors[0].strip()}"
