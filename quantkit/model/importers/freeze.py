"""Freezing: variables of models and TensorFlow functions become constants."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.arguments import type_name
from quantkit.distribution import install_command
from quantkit.errors import GraphError, InputError, UnavailableError, UsageError
from quantkit.formats import graphdef
from quantkit.formats.kinds import PYTORCH_HINT
from quantkit.formats.saved_model import VARIABLES
from quantkit.ir.functions import function_names
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.model.importers import keras2
from quantkit.model.importers.checkpoint import Checkpoint, CheckpointEntry
from quantkit.ops.tensorflow.signatures import find_op, input_dtypes, output_dtypes
from quantkit.runtimes.tensorflow_library import available, import_tensorflow, suppress_log, translate_read_errors
from quantkit.transforms._names import name_outputs

# Nodes that only read a variable are Identity nodes at this point.
CHANGING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign", "Rng")
_HINT = (
    "a frozen graph keeps no state: call dropout and random layers with training=False, "
    "and make recurrent layers with stateful=False"
)


def freeze_saved_model(path: Path, tags: Iterable[str], signature: str) -> Graph:
    """Freeze a SavedModel of TensorFlow 2, with its functions inlined.

    Args:
        path: folder of the SavedModel.
        tags: tags of one of its graphs.
        signature: name of one of that graph's signatures.

    Raises:
        InputError: TensorFlow cannot read the folder.
        UnavailableError: TensorFlow is not installed.
    """
    tf = tensorflow_for_models()
    with translate_read_errors(str(path)), suppress_log():
        loaded = tf.saved_model.load(
            str(path), tags=list(tags)
        )  # owns the variables, which a signature alone does not keep alive
        return _freeze(loaded.signatures[signature])


def freeze_meta_graph(path: Path, tags: Iterable[str], outputs: Iterable[Edge]) -> Graph:
    """Freeze the graph of a SavedModel without its objects, as the loader of TensorFlow 1 does.

    Args:
        path: folder of the SavedModel.
        tags: tags of one of its graphs.
        outputs: outputs of one of that graph's signatures.

    Returns:
        Graph without endpoints; names of nodes are those of the file.

    Raises:
        InputError: TensorFlow cannot read the folder.
    """
    tf = tensorflow_for_models()
    from tensorflow.python.framework import convert_to_constants as conversion

    names = [edge.node for edge in outputs]
    with translate_read_errors(str(path)), suppress_log(), tf.compat.v1.Session(graph=tf.Graph()) as session:
        tf.compat.v1.saved_model.load(session, list(tags), str(path))
        message = session.graph.as_graph_def()
        frozen = conversion.convert_variables_to_constants_from_session_graph(session, message, names)
    return graphdef.decode(frozen.SerializeToString())


def freeze_variables(graph: Graph, checkpoint: Checkpoint, entries: Mapping[str, CheckpointEntry]) -> Graph:
    """Replace the variables of a graph by the values of a checkpoint.

    Args:
        graph: graph with its outputs.
        checkpoint: values of the variables.
        entries: entry of the checkpoint for each variable, by node name; a variable without one has
            the name of its node.

    Returns:
        The nodes that the outputs depend on; values are read from the checkpoint on first use.

    Raises:
        InputError: the checkpoint lacks a variable.
        GraphError: a node does not only read a variable.
    """
    names = graph.reachable(stop_at_inputs=False)
    nodes: list[Node] = []
    for name in graph.nodes:
        if name in names:
            nodes.extend(_freeze_node(graph, graph[name], checkpoint, entries))
    return graph.with_nodes(nodes).with_endpoints([edge for edge in graph.inputs if edge.node in names], None)


def _freeze_node(
    graph: Graph, node: Node, checkpoint: Checkpoint, entries: Mapping[str, CheckpointEntry]
) -> list[Node]:
    """Return the nodes that replace a node when variables are constants."""
    if node.op in VARIABLES:
        value = checkpoint.tensor(entries.get(node.name) or CheckpointEntry(_saved_name(node)))
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
        f"node {node.name!r} ({node.op}) does not only read the variable {handles[0].node!r}",
        hint="choose --outputs that do not depend on this node",
    )


def _saved_name(node: Node) -> str:
    """Return the default name of a variable in a checkpoint."""
    name = node.attrs.get("shared_name")
    return name.decode(errors="replace") if isinstance(name, bytes) and name and node.op == "VarHandleOp" else node.name


def freeze_object(model: Any) -> Graph:
    """Freeze a Keras model, or a ``tf.function`` with an input signature.

    Raises:
        InputError: the model is larger than a frozen graph may be.
        UsageError: the object is neither.
        UnavailableError: TensorFlow is not installed.
    """
    tf = tensorflow_for_models()
    if _is_keras_model(model):
        model = keras2.strip_wrappers(model)
        inputs = getattr(model, "inputs", None)
        if not inputs:
            raise UsageError(
                f"the Keras model {model.name!r} has no inputs: it was not built from keras.Input",
                hint="build one: x = keras.Input(SHAPE); keras.Model(x, model(x))",
            )
        size = sum(math.prod(weight.shape) * tf.as_dtype(weight.dtype).size for weight in model.weights)
        graphdef.check_num_bytes("the weights of the model", size)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype, name=tensor.name.split(":")[0]) for tensor in inputs]
        position = {id(tensor): index for index, tensor in enumerate(inputs)}
        # A model is called with the structure that it was built from: a tensor, a list or a dictionary.
        structure = getattr(model, "input", inputs[0] if len(inputs) == 1 else inputs)

        def call(*tensors: Any) -> Any:
            return model(tf.nest.map_structure(lambda tensor: tensors[position[id(tensor)]], structure), training=False)

        names = getattr(model, "output_names", None) or [model.layers[-1].name]
        return name_outputs(_freeze(tf.function(call).get_concrete_function(*specs)), names)
    if hasattr(model, "get_concrete_function"):
        try:
            return _freeze(model.get_concrete_function())
        except (ValueError, TypeError) as error:
            name = getattr(model, "__name__", type(model).__name__)
            raise InputError(
                f"the function {name} has no input signature: {str(error).splitlines()[0]}",
                hint="give the function an input_signature, or pass one of its concrete functions",
            ) from None
    if hasattr(model, "structured_input_signature"):
        return _freeze(model)
    raise not_a_model(model)


def _is_keras_model(value: Any) -> bool:
    """Return True for a model of Keras 3 or of tf-keras."""
    bases = ((base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__)
    return any(package in ("keras", "tf_keras") and name == "Model" for package, name in bases)


def _freeze(function: Any) -> Graph:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    if changes_variables(_ops(function)):
        return _freeze_with_assignments(function)
    frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    graph = graphdef.decode(frozen.graph.as_graph_def().SerializeToString())
    inputs = [Edge.parse(tensor.name) for tensor in frozen.inputs if tensor.dtype.name != "resource"]
    return graph.with_endpoints(inputs, [Edge.parse(tensor.name) for tensor in frozen.outputs])


def _ops(function: Any) -> Iterator[str]:
    """Yield the ops of a function and of the functions that it calls."""
    graph = function.graph.as_graph_def()
    for nodes in (graph.node, *(callee.node_def for callee in graph.library.function)):
        yield from (node.op for node in nodes)


def _freeze_with_assignments(function: Any) -> Graph:
    """Freeze a function that assigns to variables.

    TensorFlow's conversion loads its result at the end, which fails if a constant is assigned to:
    such nodes are removed before.
    """
    from tensorflow.python.framework import convert_to_constants as conversion

    data = conversion._FunctionConverterDataInEager(func=function, lower_control_flow=False, aggressive_inlining=False)
    message, converted = conversion._replace_variables_by_constants(converter_data=data)
    captures = [tensor.name for tensor in function.graph.internal_captures]
    constants = {captures[index] for index in converted}
    inputs = [tensor for tensor in function.inputs if tensor.name not in constants and tensor.dtype.name != "resource"]
    graph = graphdef.decode(message.SerializeToString())
    graph = graph.with_endpoints(
        *([Edge.parse(tensor.name) for tensor in tensors] for tensors in (inputs, function.outputs))
    )
    handles = {id(variable.handle): variable.name for variable in function.graph.variables}
    names = {
        inner.name.split(":")[0]: handles[id(outer)].split(":")[0]
        for outer, inner in function.graph.captures
        if id(outer) in handles
    }
    return remove_assignments(graph, names)


def tensorflow_for_models() -> Any:
    """Import TensorFlow.

    Raises:
        UnavailableError: TensorFlow is not installed.
    """
    if not available().ok:
        raise UnavailableError(
            "SavedModels and Keras models are read by TensorFlow, which is not installed",
            hint=f"{install_command('tensorflow')}, or freeze the model to a .pb elsewhere",
        )
    return import_tensorflow()


def not_a_model(value: Any) -> UsageError:
    """Return the error for an object of another type."""
    return UsageError(
        f"{type_name(value)} is not a model",
        hint=PYTORCH_HINT
        if hasattr(value, "state_dict")
        else "give a Model, a Graph, a path, the name of a model card, a GraphDef, a ModelProto or a Keras model",
    )


def changes_variables(ops: Iterable[str]) -> bool:
    """Return True if one of the ops assigns to a variable."""
    return any(op.startswith(CHANGING) for op in ops)


def remove_assignments(graph: Graph, variables: Mapping[str, str]) -> Graph:
    """Remove assignments to variables that are constants, and nodes that only they depend on.

    Recurrent layers of Keras advance the random state of dropout, which is a variable, even if dropout is inactive:
    assignments that no output depends on are removed, and those that do not change the value. If an output depends on
    an assigned variable, freezing would change the outputs, so that the model is rejected.

    Args:
        graph: graph with its outputs.
        variables: names of the variables, by the names of their constants.

    Raises:
        GraphError: an output depends on an assigned variable.
    """
    assignments = [node for node in graph.nodes.values() if _assigns_to_constant(graph, node)]
    origins = _origins(graph)
    assigned = {origins[node.inputs[0].node] for node in assignments if not _keeps_value(graph, node, origins)}
    copies = {name for name, origin in origins.items() if origin in assigned}
    removed = {*copies, *(node.name for node in assignments)}
    needed: set[str] = set()
    checked_functions: set[str] = set()
    stack = [edge.node for edge in graph.outputs]
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        if name in removed:
            variable = origins[name if name in copies else graph[name].inputs[0].node]
            raise _assigned_error(variables.get(variable, variable))
        needed.add(name)
        node = graph[name]
        _check_functions(graph, node, checked_functions)
        stack.extend(edge.node for edge in node.inputs)
        stack.extend(control for control in node.controls if control not in removed)
    needed |= graph.input_names
    return graph.with_nodes(
        node.with_(controls=tuple(name for name in node.controls if name not in removed))
        for node in graph.nodes.values()
        if node.name in needed
    )


def _origins(graph: Graph) -> dict[str, str]:
    """Return the first node of the chain of Identity nodes that ends in each node."""
    origins: dict[str, str] = {}
    for name in graph.order:
        node = graph[name]
        origins[name] = origins[node.inputs[0].node] if node.op == "Identity" else name
    return origins


def _assigns_to_constant(graph: Graph, node: Node) -> bool:
    """Return True if a node assigns to a constant that replaces a variable or an argument."""
    if not node.op.startswith(CHANGING) or not node.inputs or input_dtypes(node)[:1] != (DType.RESOURCE,):
        return False
    source = graph[node.inputs[0].node]
    return find_op(source.op) is not None and output_dtypes(source)[node.inputs[0].port] is not DType.RESOURCE


def _keeps_value(graph: Graph, node: Node, origins: Mapping[str, str]) -> bool:
    """Return True if a node assigns the product of a variable and a mask, and the variable is already masked.

    The pruning wrappers of TF-MOT apply their masks in every run.
    """
    product = graph[origins[node.inputs[1].node]] if node.op == "AssignVariableOp" and len(node.inputs) > 1 else None
    if product is None or product.op != "Mul":
        return False
    variable, *factors = (graph[origins[edge.node]] for edge in (node.inputs[0], *product.inputs))
    if not variable.is_constant or not all(factor.is_constant for factor in factors):
        return False
    masked = factors[0].value.array * factors[1].value.array
    return bool(np.array_equal(masked, variable.value.array))


def _check_functions(graph: Graph, node: Node, checked: set[str]) -> None:
    """Reject a call of a function that assigns to a variable; ``checked`` functions do not."""
    stack = list(function_names(node.attrs))
    while stack:
        name = stack.pop()
        if name not in checked and name in graph.library:
            checked.add(name)
            body = graph.library[name].graph
            for inner in body.nodes.values():
                if _assigns_to_constant(body, inner):
                    raise _assigned_error(inner.inputs[0].node)
                stack.extend(function_names(inner.attrs))


def _assigned_error(variable: str) -> GraphError:
    return GraphError(f"the outputs depend on the variable {variable!r}, which every run changes", hint=_HINT)
