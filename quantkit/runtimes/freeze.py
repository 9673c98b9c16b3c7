"""SavedModels, checkpoints, Keras models and TensorFlow functions as frozen graphs: variables become constants.

TensorFlow's own loaders read them, in inference mode; nothing of a model file is executed (Keras' safe mode stays on).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import GraphError, InputError, UnavailableError, did_you_mean
from quantkit.formats import graphdef
from quantkit.formats.saved_model import VARIABLES
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Tensor
from quantkit.runtimes.tensorflow import RUNTIME, module, quiet


def freeze_keras(path: Path) -> Graph:
    """The frozen graph of a Keras file, ``.keras`` or ``.h5``.

    Raises:
        InputError: TensorFlow can not read it.
        UnavailableError: TensorFlow is not installed.
    """
    tf = _tensorflow()
    with _explained(path), quiet():
        return freeze_object(tf.keras.models.load_model(path, compile=False, safe_mode=True))


def freeze_saved_model(path: Path, tags: Iterable[str], signature: str) -> Graph:
    """The frozen graph of a SavedModel of TensorFlow 2, with its functions inlined.

    Args:
        path: the folder.
        tags: of one of its graphs.
        signature: the name of one of that graph's signatures.

    Raises:
        InputError: TensorFlow can not read it.
        UnavailableError: TensorFlow is not installed.
    """
    tf = _tensorflow()
    with _explained(path), quiet():
        loaded = tf.saved_model.load(str(path), tags=list(tags))  # owns the variables: a signature alone loses them
        return _freeze(loaded.signatures[signature])


def freeze_variables(graph: Graph, prefix: Path) -> Graph:
    """A graph with the values of a checkpoint in place of its variables, which are found there by their names.

    Args:
        graph: what reads the variables, with its outputs.
        prefix: what the checkpoint's files begin with.

    Returns:
        What the outputs need; values stay in the checkpoint until they are used.

    Raises:
        InputError: the checkpoint can not be read, or lacks a variable.
        GraphError: something else than reading is done with a variable.
        UnavailableError: TensorFlow is not installed.
    """
    tf = _tensorflow()
    with _explained(prefix), quiet():
        values = tf.train.load_checkpoint(str(prefix))
    names = graph.reachable(stop_at_inputs=False)
    nodes: list[Node] = []
    for name in graph.nodes:
        if name in names:
            nodes.extend(_frozen(graph, graph[name], values, prefix))
    return graph.with_nodes(nodes).with_ends([one for one in graph.inputs if one.node in names], None)


def _frozen(graph: Graph, node: Node, values: Any, prefix: Path) -> list[Node]:
    """What stands for a node where variables are constants."""
    if node.op in VARIABLES:
        return [constant(node.name, _value(node, values, prefix)).with_(controls=node.controls)]
    handles = [edge for edge in node.inputs if graph[edge.node].op == "VarHandleOp"]
    if not handles:
        return [node]
    dtype = graph[handles[0].node].attrs["dtype"]
    if node.op == "ReadVariableOp":
        return [node.with_(op="Identity", attrs={"T": dtype})]
    if node.op == "ResourceGather":
        axis = constant(f"{node.name}/axis", np.asarray(node.attrs.get("batch_dims", 0), np.int32))
        attrs = {"Tparams": dtype, "Taxis": DType.INT32}
        attrs |= {key: node.attrs[key] for key in ("Tindices", "batch_dims") if key in node.attrs}
        return [axis, node.with_(op="GatherV2", inputs=(*node.inputs, Edge(axis.name)), attrs=attrs)]
    raise GraphError(
        f"node {node.name!r} ({node.op}) does something else than reading with the variable {handles[0].node!r}",
        hint="choose --outputs that do not need it",
    )


def _value(node: Node, values: Any, prefix: Path) -> Tensor:
    """What the checkpoint holds of a variable."""
    key = node.name
    if isinstance(name := node.attrs.get("shared_name"), bytes) and name and node.op == "VarHandleOp":
        key = name.decode()
    shapes = values.get_variable_to_shape_map()
    if key not in shapes:
        raise InputError(
            f"{prefix} holds no variable {key!r}, which the graph reads",
            hint=did_you_mean(key, shapes) or f"it holds {', '.join(sorted(shapes)[:5])}",
        )
    dtype = DType.of(values.get_variable_to_dtype_map()[key].as_numpy_dtype)
    return Tensor(dtype, tuple(shapes[key]), lambda: np.asarray(values.get_tensor(key)))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What TensorFlow says of a file, in a sentence that names it."""
    try:
        yield
    except (ValueError, OSError, TypeError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} can not be read by TensorFlow: {reason}") from None


def freeze_object(model: Any) -> Graph:
    """The frozen graph of a Keras model, or of a ``tf.function`` with a signature.

    Raises:
        InputError: it is neither.
        UnavailableError: TensorFlow is not installed.
    """
    tf = _tensorflow()
    if isinstance(model, tf.keras.Model):
        specs = [tf.TensorSpec(one.shape, one.dtype, name=one.name.split(":")[0]) for one in model.inputs]
        function = tf.function(
            lambda *tensors: model(list(tensors) if len(tensors) > 1 else tensors[0], training=False)
        )
        return _freeze(function.get_concrete_function(*specs))
    if hasattr(model, "get_concrete_function"):
        try:
            return _freeze(model.get_concrete_function())
        except (ValueError, TypeError) as error:
            name = getattr(model, "__name__", type(model).__name__)
            raise InputError(
                f"the function {name} does not say what it takes: {str(error).splitlines()[0]}",
                hint="give it an input_signature, or give one of its concrete functions",
            ) from None
    if hasattr(model, "structured_input_signature"):
        return _freeze(model)
    raise InputError(
        f"a {type(model).__name__} is no model that quantkit reads",
        hint="give a file, a GraphDef, a Keras model or a tf.function with an input signature",
    )


def _freeze(function: Any) -> Graph:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    graph = graphdef.decode(frozen.graph.as_graph_def().SerializeToString())
    inputs = [Edge.parse(tensor.name) for tensor in frozen.inputs if tensor.dtype.name != "resource"]
    return graph.with_ends(inputs, [Edge.parse(tensor.name) for tensor in frozen.outputs])


def _tensorflow() -> Any:
    if not RUNTIME.available().ok:
        raise UnavailableError(
            "SavedModels and Keras models are read by TensorFlow, which is not installed",
            hint="pip install tensorflow, or freeze the model to a .pb elsewhere",
        )
    return module()
