"""TensorFlow as a library: import without log output, messages, graphs, and one-line errors.

Importers, converters and the runtime share this module. TensorFlow is imported on the first use of a function; sessions
use `SessionLibrary`, whose modules take a quarter of the time of the whole package.
"""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec, module_from_spec
from typing import Any

from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError, did_you_mean, one_line
from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph
from quantkit.ops.tensorflow.signatures import op_names
from quantkit.runtimes.availability import Availability, find_package, require
from quantkit.zoo.cache import cache_folder

# Colors of Keras' messages, and its message about an error inside a layer.
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_CALLED = re.compile(
    r"Exception encountered when calling (\S+?)\.?\s*\n(.*?)(?:\n\s*\n\s*Arguments received|\Z)", re.DOTALL
)


def available() -> Availability:
    """Return the installed version of TensorFlow, or the reason why it is missing."""
    return find_package("TensorFlow", "tensorflow", "tensorflow", "tensorflow-cpu", "tf-nightly", extra="tensorflow")


def import_tensorflow() -> Any:
    """Import the package; its log is suppressed unless ``TF_CPP_MIN_LOG_LEVEL`` is set.

    Raises:
        UnavailableError: TensorFlow is not installed.
    """
    _prepare_import()
    with suppress_log():
        import tensorflow

        return tensorflow


def _prepare_import() -> None:
    """Set the environment of TensorFlow.

    Keras, a part of it, writes its configuration into the home folder unless a file is there: it gets the cache.
    TensorFlow enables oneDNN, which has its int8 kernels, without being asked only on processors with AVX512_VNNI or
    later.

    Raises:
        UnavailableError: TensorFlow is not installed.
    """
    require(available())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if not os.path.exists(os.path.expanduser("~/.keras/keras.json")):
        with suppress(InputError):
            os.environ.setdefault("KERAS_HOME", str(cache_folder() / "keras"))


@contextmanager
def _lazy_binding() -> Iterator[None]:
    """Resolve the functions of imported libraries at their first call, which makes the import of TensorFlow shorter."""
    if not hasattr(sys, "setdlopenflags"):  # Windows
        yield
        return
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


@contextmanager
def _without_package() -> Iterator[None]:
    """Import modules of TensorFlow without the code of the package, which imports four times as many.

    A later ``import tensorflow`` runs that code, and uses the imported modules.
    """
    spec = None if "tensorflow" in sys.modules else find_spec("tensorflow")
    if spec is None:
        yield
        return
    sys.modules["tensorflow"] = module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules["tensorflow"]


class SessionLibrary:
    """Parts of TensorFlow that run a graph.

    Raises:
        UnavailableError: TensorFlow is not installed.
    """

    def __init__(self) -> None:
        _prepare_import()
        is_package_imported = "tensorflow" in sys.modules
        with suppress_log(), _lazy_binding(), _without_package():
            from tensorflow.core.framework import graph_pb2
            from tensorflow.core.protobuf import config_pb2
            from tensorflow.python.client import session
            from tensorflow.python.framework import config, errors, importer, ops, versions
            from tensorflow.python.ops import array_ops

            # A later ``import keras`` would meet this module half imported.
            from tensorflow.python.trackable import data_structures  # noqa: F401
        if not is_package_imported:
            ops.enable_eager_execution()  # as the package does: its functions fail after a session in graph mode
        self.version: str = versions.VERSION
        self.GraphDef, self.ConfigProto = graph_pb2.GraphDef, config_pb2.ConfigProto
        self.RunMetadata, self.RunOptions = config_pb2.RunMetadata, config_pb2.RunOptions
        self.Session, self.Graph, self.device = session.Session, ops.Graph, ops.device
        self.identity, self.import_graph_def = array_ops.identity, importer.import_graph_def
        self.OpError = errors.OpError
        self.enable_tensor_float_32 = config.enable_tensor_float_32_execution


@contextmanager
def suppress_log() -> Iterator[None]:
    """Discard the stderr output of C++ code: TensorFlow logs before it reads its log level."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":
        yield
        return
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


def graph_def(graph: Graph) -> Any:
    """Return the graph as TensorFlow's GraphDef message.

    Raises:
        GraphError: a part of the file that quantkit keeps unchanged is not a message.
    """
    return graphdef.as_message(graph, SessionLibrary().GraphDef)


def import_graph(graph: Graph, device: str = "/device:CPU:0") -> Any:
    """Return the ``tf.Graph`` of a graph, with the same node names.

    Args:
        graph: a frozen TensorFlow graph.
        device: device of the nodes that specify none.

    Raises:
        UnavailableError: an op is not in this TensorFlow.
        GraphError: TensorFlow rejects the graph.
    """
    tf = SessionLibrary()
    imported = tf.Graph()
    try:
        with imported.as_default(), tf.device(device):
            tf.import_graph_def(graph_def(graph), name="")
    except (tf.OpError, ValueError, TypeError, KeyError) as error:
        raise translate_error(error, {node.name: node.op for node in graph.nodes.values()}) from error
    return imported


def find_tensor(imported: Any, edge: Edge) -> Any:
    """Return the tensor of an imported graph for an edge.

    Raises:
        GraphError: the graph has no such node, or the node has no such output.
    """
    try:
        return imported.get_tensor_by_name(f"{edge.node}:{edge.port}")
    except (KeyError, ValueError):
        raise GraphError(
            f"{str(edge)!r}, an input or output, is not a tensor of the graph",
            hint=did_you_mean(edge.node, [operation.name for operation in imported.get_operations()]),
        ) from None


def translate_error(error: Exception, ops: Mapping[str, str]) -> QuantkitError:
    """Convert a TensorFlow error to a one-line error that names node and op.

    Args:
        error: error of an import or a run.
        ops: op type of each node by name.
    """
    text = str(getattr(error, "message", "") or error)
    version = SessionLibrary().version
    missing = re.search(r"Op type not registered '(\w+)'", text)
    if missing:
        op = missing[1]
        node = next((name for name, op_type in ops.items() if op_type == op), "")
        return UnavailableError(
            f"TensorFlow {version} has no op {op}" + (f", the op of node {node!r}" if node else ""),
            hint=did_you_mean(op, op_names()) or "the op may be in another package or in another version of TensorFlow",
        )
    matches = re.findall(r"\{\{node ([^}]+)\}\}|\b[Nn]ode '?([\w./>-]+)", text)
    node = next((name for pair in matches for name in pair if name in ops), "")
    prefix = f"node {node!r} ({ops[node]}): " if node else ""
    reason = _first_line(text)
    if re.search(r"No OpKernel was registered|not supported on|only supports? NHWC|out of memory|OOM", text):
        return UnavailableError(
            f"{prefix}TensorFlow {version} cannot run it here: {reason}",
            hint="another --runtime may have a kernel: quantkit doctor lists the installed ones",
        )
    return GraphError(
        f"{prefix}TensorFlow rejects it: {reason}" if prefix else f"TensorFlow rejects the graph: {reason}",
        hint="quantkit summarize shows the graph; an earlier transform may have broken it",
    )


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("Graph execution error"):
        # The reason stands between the stack trace of the node and the last mention of the node.
        nodes = [number for number, line in enumerate(lines) if line.startswith("Node:")]
        lines = lines[nodes[-1] + 1 :] if nodes else lines[1:]
        lines = [line for line in lines if not line.startswith(("Detected at node", "<stack traces unavailable>"))]
    line = lines[0] if lines else "no reason"
    # The rest of the line repeats the signature and the whole node.
    return re.split(r"; (?:Op<|NodeDef|while )|\s*\[\[\{\{|\. Registered:| for '\{\{node | from Op<", line)[0].rstrip(
        ". ;"
    )


def describe_error(error: Exception) -> str:
    r"""Return the first line of a TensorFlow or Keras error, with printable characters only.

    >>> describe_error(ValueError("Unknown layer: 'Swish2'. Please register it.\nSee the guide."))
    "Unknown layer: 'Swish2'. Please register it"
    >>> describe_error(KeyError("dense"))
    "KeyError: 'dense'"
    """
    text = one_line(_reason(_COLOR.sub("", str(getattr(error, "message", "") or error))))
    if isinstance(error, KeyError | IndexError | AttributeError | AssertionError) or not text:
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


def _reason(text: str) -> str:
    r"""Return the reason inside the messages that AutoGraph and Keras put around an error of a layer.

    >>> _reason("in user code:\n\n  File x\n\n  ValueError: Exception encountered when calling A.call().\n\nbad\n")
    'A.call(): bad'
    """
    called = _CALLED.search(text)
    if called is None:
        return text
    return f"{called[1]}: {' '.join(called[2].split())}"


@contextmanager
def translate_read_errors(
    file: str, hint: str = "copy the file again, or save the model again with the installed TensorFlow"
) -> Iterator[None]:
    """Convert every error of TensorFlow or Keras to a one-line error: reading a broken file may raise any class.

    Args:
        file: name of the file in the message.
        hint: hint of the error.

    Raises:
        InputError: the body of the ``with`` statement raised an error that is not a `QuantkitError`.
    """
    try:
        yield
    except QuantkitError:
        raise
    except Exception as error:
        raise InputError(f"{file} cannot be read by TensorFlow: {describe_error(error)}", hint) from error
