"""TensorFlow as a library: importing it quietly, its messages and graphs, and its errors as sentences.

Importers, converters and the runtime share this module; TensorFlow is imported when a function first needs it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError, did_you_mean, one_line
from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph
from quantkit.ops.tensorflow.signatures import op_names
from quantkit.runtimes.availability import Availability, installed


def available() -> Availability:
    """Return the installed version of TensorFlow, or the reason why it is missing."""
    return installed("TensorFlow", "tensorflow", "tensorflow", "tensorflow-cpu", "tf-nightly", extra="tensorflow")


def module() -> Any:
    """The imported package; its chatter is kept off the terminal unless ``TF_CPP_MIN_LOG_LEVEL`` is set."""
    with quiet():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        import tensorflow

        return tensorflow


@contextmanager
def quiet() -> Iterator[None]:
    """Send what C++ code writes to stderr nowhere: TensorFlow talks before its log level is read."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":
        yield
        return
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def graph_def(graph: Graph) -> Any:
    """TensorFlow's own GraphDef message of a graph; the encoded bytes are not kept."""
    return module().compat.v1.GraphDef.FromString(graphdef.encode(graph))


def import_graph(graph: Graph, device: str = "/device:CPU:0") -> Any:
    """A ``tf.Graph`` of a graph, under the same names.

    Args:
        graph: a frozen TensorFlow graph.
        device: where operations go that name no device of their own.

    Raises:
        UnavailableError: this TensorFlow has no such op.
        GraphError: TensorFlow refuses the graph.
    """
    tf = module()
    made = tf.Graph()
    try:
        with made.as_default(), tf.device(device):
            tf.compat.v1.import_graph_def(graph_def(graph), name="")
    except (tf.errors.OpError, ValueError, TypeError, KeyError) as error:
        raise explained(error, {node.name: node.op for node in graph.nodes.values()}) from error
    return made


def tensor(imported: Any, edge: Edge) -> Any:
    """The tensor of an imported graph that an edge means.

    Raises:
        GraphError: it has no such node, or the node not so many outputs.
    """
    try:
        return imported.get_tensor_by_name(f"{edge.node}:{edge.port}")
    except (KeyError, ValueError):
        raise GraphError(
            f"{str(edge)!r}, an input or output, is no tensor of the graph",
            hint=did_you_mean(edge.node, [operation.name for operation in imported.get_operations()]),
        ) from None


def explained(error: Exception, ops: Mapping[str, str]) -> QuantkitError:
    """What a TensorFlow error says of the graph, in a sentence that names node and op.

    Args:
        error: raised by an import or a run.
        ops: each node's op, by name.
    """
    text = str(getattr(error, "message", "") or error)
    version = module().__version__
    missing = re.search(r"Op type not registered '(\w+)'", text)
    if missing:
        op = missing[1]
        name = next((name for name, its in ops.items() if its == op), "")
        return UnavailableError(
            f"TensorFlow {version} has no op {op}" + (f", which node {name!r} is" if name else ""),
            hint=did_you_mean(op, op_names()) or "it may live in another package, or in another version of TensorFlow",
        )
    named = re.findall(r"\{\{node ([^}]+)\}\}|\b[Nn]ode '?([\w./>-]+)", text)
    name = next((one or other for one, other in named if one or other in ops), "")
    op = ops.get(name, "")
    where = f"node {name!r}" + (f" ({op})" if op else "") + ": " if name else ""
    reason = _first_line(text)
    if re.search(r"No OpKernel was registered|not supported on|only supports? NHWC|out of memory|OOM", text):
        return UnavailableError(
            f"{where}TensorFlow {version} can not run it here: {reason}",
            hint="another --runtime may have a kernel: quantkit doctor lists what is installed",
        )
    return GraphError(
        f"{where}TensorFlow refuses it: {reason}" if where else f"TensorFlow refuses the graph: {reason}",
        hint="quantkit summarize shows the graph; a transform before this step may have broken it",
    )


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("Graph execution error"):
        # The node and where it was made come first; the reason is between them and the node once more.
        named = [number for number, line in enumerate(lines) if line.startswith("Node:")]
        lines = lines[named[-1] + 1 :] if named else lines[1:]
    line = lines[0] if lines else "nothing"
    # What follows is the whole signature and the whole node.
    return re.split(r"; (?:Op<|NodeDef|while )|\s*\[\[\{\{|\. Registered:| for '\{\{node | from Op<", line)[0].rstrip(
        ". ;"
    )


def reason(error: Exception) -> str:
    r"""What an error of TensorFlow's or Keras' says first, on one line that every terminal can print.

    >>> reason(ValueError("Unknown layer: 'Mine'. Please register it.\nSee the guide."))
    "Unknown layer: 'Mine'. Please register it"
    >>> reason(KeyError("dense"))
    "KeyError: 'dense'"
    """
    text = one_line(str(getattr(error, "message", "") or error))
    if isinstance(error, KeyError | IndexError | AttributeError | AssertionError) or not text:
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


@contextmanager
def reading(what: str, hint: str = "copy it again, or save it again with the installed TensorFlow") -> Iterator[None]:
    """Say in one sentence what TensorFlow or Keras say of what they read: of a broken file that may be anything.

    Raises:
        InputError: naming ``what``.
    """
    try:
        yield
    except QuantkitError:
        raise
    except Exception as error:
        raise InputError(f"{what} can not be read by TensorFlow: {reason(error)}", hint) from error
