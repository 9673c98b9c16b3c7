"""Datasets of TensorFlow as graphs, and back."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from quantkit.arguments import public, require_path, type_name
from quantkit.errors import InputError, UnavailableError, UsageError, one_line
from quantkit.formats import graphdef
from quantkit.ir.functions import Function
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.pipelines.python_lines import function_name
from quantkit.runtimes.tensorflow_library import import_tensorflow
from quantkit.transforms.functions.inline_functions import inline_functions

_OUTPUT = "dataset"
# Constant with the structure of the elements in a file; no node of the pipeline uses the constant.
_STRUCTURE = "quantkit/element_spec"
_UNSIZED = ("string", "resource", "variant")
# Ops that call a function of the process that built the graph.
_PYTHON_CALLS = {"PyFunc": "numpy_function", "PyFuncStateless": "numpy_function", "EagerPyFunc": "py_function"}


def to_graph(dataset: Any) -> Graph:
    """Return the graph of a dataset, with calls in its functions inlined.

    Raises:
        UsageError: the value is not a ``tf.data.Dataset``.
        UnavailableError: TensorFlow cannot serialize the dataset.
    """
    tf = import_tensorflow()
    if not isinstance(dataset, tf.data.Dataset):
        raise UsageError(f"{type_name(dataset)} is not a tf.data.Dataset", hint="pass the dataset itself")
    try:
        policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        data = dataset._as_serialized_graph(external_state_policy=policy).numpy()
    except Exception as error:
        raise UnavailableError(f"TensorFlow cannot serialize the dataset: {one_line(str(error))}") from None
    decoded = graphdef.decode(data)
    result = next(node for node in decoded.nodes.values() if node.op == "_Retval")
    nodes = [node for node in decoded.nodes.values() if node.op != "_Retval"]
    graph = decoded.with_nodes(nodes).with_endpoints([], [result.inputs[0]])
    return inline_functions(graph)


def encode(graph: Graph) -> bytes:
    """Serialize the graph of a dataset for TensorFlow."""
    result = Node(_OUTPUT, "_Retval", graph.outputs, attrs={"T": DType.VARIANT, "index": 0})
    return graphdef.encode(graph.with_nodes([*graph.nodes.values(), result]))


def to_dataset(graph: Graph, element_spec: Any) -> Any:
    """Return the dataset of a graph.

    Args:
        graph: graph of a dataset.
        element_spec: structure of the elements, as ``dataset.element_spec``.

    Raises:
        UnavailableError: TensorFlow rejects the graph.
    """
    tf = import_tensorflow()
    try:
        variant = tf.raw_ops.DatasetFromGraph(graph_def=encode(graph))
        return tf.data.experimental.from_variant(variant, element_spec)
    except Exception as error:
        raise UnavailableError(f"TensorFlow rejects the rewritten dataset: {one_line(str(error))}") from None


def save_dataset(graph: Graph, element_spec: Any) -> bytes:
    """Serialize the graph of a dataset with the structure of its elements.

    Raises:
        UnavailableError: no file can hold the dataset; see `check_portable`.
    """
    check_portable(graph, element_spec)
    text = json.dumps(_structure_to_json(element_spec))
    return encode(graph.with_nodes([*graph.nodes.values(), constant(_STRUCTURE, text.encode())]))


def check_portable(graph: Graph, element_spec: Any) -> None:
    """Check that another process can load the dataset from a file.

    Raises:
        UnavailableError: the dataset runs Python code, or its elements have a structure that files do not store.
    """
    if code := _python_code(graph):
        raise UnavailableError(
            f"no file can hold the dataset: {code}",
            hint="omit the output, and use the printed lines in your code; or replace that code by TensorFlow ops",
        )
    _structure_to_json(element_spec)


def _python_code(graph: Graph) -> str:
    """Return a clause about the Python code that a dataset runs; empty without such code."""
    for name in graph.library:
        for node in graph.library[name].graph.nodes.values():
            if call := _PYTHON_CALLS.get(node.op):
                if "Dataset_from_generator" in name:
                    call = "from_generator"
                elif "__inference" in name and (caller := function_name(name)) != "function":
                    call = f"{call} in {caller}"
                return f"{call} runs Python code of the process that made the dataset"
    return ""


@public
def load_dataset(path: str) -> Any:
    """Read a dataset that `quantkit.data.optimize` wrote.

    Args:
        path: file of the dataset.

    Returns:
        A ``tf.data.Dataset``.

    Raises:
        InputError: the file cannot be read, is not a dataset, or runs Python code of another process.
    """
    require_path(path=path)
    tf = import_tensorflow()
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or 'unknown error').lower()}") from None
    graph = graphdef.decode(data)
    if _STRUCTURE not in graph.nodes:
        raise InputError(f"{path} is not a dataset of quantkit", hint="write it with quantkit data optimize -o FILE")
    if code := _python_code(graph):
        raise InputError(f"{path} cannot be used: {code}", hint="use the dataset in the program that makes it")
    spec = _structure_from_json(tf, json.loads(graph[_STRUCTURE].value.array.item()))
    return tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=data), spec)


def _structure_to_json(spec: Any) -> Any:
    if isinstance(spec, Mapping):
        return {"dict": {key: _structure_to_json(value) for key, value in spec.items()}}
    if isinstance(spec, tuple) and not hasattr(spec, "_fields"):
        return {"tuple": [_structure_to_json(value) for value in spec]}
    if type(spec).__name__ != "TensorSpec":
        raise UnavailableError(
            f"elements of the type {type(spec).__name__} cannot be written to a file", hint="use the dataset in Python"
        )
    return {"dtype": spec.dtype.name, "shape": None if spec.shape.rank is None else spec.shape.as_list()}


def _structure_from_json(tf: Any, value: Any) -> Any:
    if "dict" in value:
        return {key: _structure_from_json(tf, each) for key, each in value["dict"].items()}
    if "tuple" in value:
        return tuple(_structure_from_json(tf, each) for each in value["tuple"])
    return tf.TensorSpec(value["shape"], tf.as_dtype(value["dtype"]))


@cache
def is_stateful(op: str) -> bool:
    """Return True if TensorFlow marks an op type as stateful; unknown op types count as stateful."""
    import_tensorflow()
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    return definition is None or bool(definition.is_stateful)


def as_message(function: Function[Graph], graph: Graph, arguments: Iterable[Shape]) -> Any:
    """Return the body of a function as a ``GraphDef`` of TensorFlow with a placeholder for each argument.

    Args:
        function: function of a stage.
        graph: graph with the library.
        arguments: shape of each argument.
    """
    body = function.graph
    shapes = dict(zip((edge.node for edge in body.inputs), arguments, strict=True))
    nodes = [
        Node(node.name, "Placeholder", attrs={"dtype": node.attrs["T"], "shape": shapes[node.name]})
        if node.op == "_Arg"
        else node
        for node in body.nodes.values()
    ]
    data = graphdef.encode(graph.with_nodes(nodes).with_endpoints([], []))
    return import_tensorflow().compat.v1.GraphDef.FromString(data)


def infer_specs(function: Function[Graph], graph: Graph, arguments: Iterable[Shape]) -> dict[Edge, tuple[Shape, DType]]:
    """Return the shape and the type of each tensor in a function.

    Args:
        function, graph, arguments: see `as_message`.

    Raises:
        UnavailableError: TensorFlow cannot import the function.
    """
    tf = import_tensorflow()
    imported = tf.Graph()
    try:
        with imported.as_default():
            tf.graph_util.import_graph_def(as_message(function, graph, arguments), name="")
    except Exception as error:
        raise UnavailableError(f"TensorFlow cannot import {function.name}: {one_line(str(error))}") from None
    return {
        Edge(operation.name, port): (
            Shape(None if tensor.shape.rank is None else tuple(tensor.shape.as_list())),
            DType(tensor.dtype.name) if tensor.dtype.name in _UNSIZED else DType.of(tensor.dtype.as_numpy_dtype),
        )
        for operation in imported.get_operations()
        for port, tensor in enumerate(operation.outputs)
    }
