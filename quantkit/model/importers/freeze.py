"""SavedModels, checkpoints, Keras models and TensorFlow functions as frozen graphs: variables become constants."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import GraphError, InputError, UnavailableError
from quantkit.formats import graphdef
from quantkit.formats.saved_model import VARIABLES
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.model.importers.checkpoint import Checkpoint, Place
from quantkit.model.importers.objects import not_a_model
from quantkit.model.importers.state_changes import changes_variables, without_changes
from quantkit.runtimes.tensorflow_library import available, import_tensorflow, suppress_log, translate_read_errors


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
    tf = tensorflow_for_models()
    with translate_read_errors(str(path)), suppress_log():
        loaded = tf.saved_model.load(str(path), tags=list(tags))  # owns the variables: a signature alone loses them
        return _freeze(loaded.signatures[signature])


def freeze_variables(graph: Graph, checkpoint: Checkpoint, restored: Mapping[str, Place]) -> Graph:
    """A graph with the values of a checkpoint in place of its variables.

    Args:
        graph: what reads the variables, with its outputs.
        checkpoint: holds them, under the names of their nodes where nothing else is said.
        restored: where the graph restores them from, by the names of their nodes.

    Returns:
        What the outputs need; values stay in the checkpoint until they are used.

    Raises:
        InputError: the checkpoint lacks a variable.
        GraphError: something else than reading is done with a variable.
    """
    names = graph.reachable(stop_at_inputs=False)
    nodes: list[Node] = []
    for name in graph.nodes:
        if name in names:
            nodes.extend(_frozen(graph, graph[name], checkpoint, restored))
    return graph.with_nodes(nodes).with_endpoints([one for one in graph.inputs if one.node in names], None)


def _frozen(graph: Graph, node: Node, checkpoint: Checkpoint, restored: Mapping[str, Place]) -> list[Node]:
    """What stands for a node where variables are constants."""
    if node.op in VARIABLES:
        value = checkpoint.tensor(restored.get(node.name) or Place(_own_name(node)))
        return [constant(node.name, value).with_(controls=node.controls)]
    handles = [edge for edge in node.inputs if graph[edge.node].op == "VarHandleOp"]
    if not handles:
        return [node]
    dtype = graph[handles[0].node].attrs.get("dtype")
    if dtype is None:
        raise GraphError(f"the variable {handles[0].node!r} has no attribute dtype", hint="save the graph again")
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


def _own_name(node: Node) -> str:
    """What a saver calls a variable, unless it is told otherwise."""
    name = node.attrs.get("shared_name")
    return name.decode(errors="replace") if isinstance(name, bytes) and name and node.op == "VarHandleOp" else node.name


def freeze_object(model: Any) -> Graph:
    """The frozen graph of a Keras model, or of a ``tf.function`` with a signature.

    Raises:
        InputError: the model is larger than a frozen graph may be.
        UsageError: the object is neither.
        UnavailableError: TensorFlow is not installed.
    """
    tf = tensorflow_for_models()
    if isinstance(model, tf.keras.Model):
        size = sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in model.weights)
        graphdef.check_num_bytes("the weights of the model", size)
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
    raise not_a_model(model)


def _freeze(function: Any) -> Graph:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    if changes_variables(_ops(function)):
        return _freeze_changing(function)
    frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    graph = graphdef.decode(frozen.graph.as_graph_def().SerializeToString())
    inputs = [Edge.parse(tensor.name) for tensor in frozen.inputs if tensor.dtype.name != "resource"]
    return graph.with_endpoints(inputs, [Edge.parse(tensor.name) for tensor in frozen.outputs])


def _ops(function: Any) -> Iterator[str]:
    """The ops of a function and of those it calls."""
    graph = function.graph.as_graph_def()
    for nodes in (graph.node, *(one.node_def for one in graph.library.function)):
        yield from (node.op for node in nodes)


def _freeze_changing(function: Any) -> Graph:
    """The frozen graph of a function that changes variables.

    TensorFlow's conversion ends with loading what it made, which fails on a change of a constant: those go before.
    """
    from tensorflow.python.framework import convert_to_constants as conversion

    given = conversion._FunctionConverterDataInEager(func=function, lower_control_flow=False, aggressive_inlining=False)
    message, converted = conversion._replace_variables_by_constants(converter_data=given)
    captures = [tensor.name for tensor in function.graph.internal_captures]
    constants = {captures[place] for place in converted}
    inputs = [one for one in function.inputs if one.name not in constants and one.dtype.name != "resource"]
    graph = graphdef.decode(message.SerializeToString())
    graph = graph.with_endpoints(*([Edge.parse(one.name) for one in ends] for ends in (inputs, function.outputs)))
    handles = {id(variable.handle): variable.name for variable in function.graph.variables}
    names = {
        inner.name.split(":")[0]: handles[id(outer)].split(":")[0]
        for outer, inner in function.graph.captures
        if id(outer) in handles
    }
    return without_changes(graph, names)


def tensorflow_for_models() -> Any:
    """The imported package.

    Raises:
        UnavailableError: it is not installed.
    """
    if not available().ok:
        raise UnavailableError(
            "SavedModels and Keras models are read by TensorFlow, which is not installed",
            hint="pip install 'quantkit[tensorflow]', or freeze the model to a .pb elsewhere",
        )
    return import_tensorflow()
