"""SavedModel folders and the MetaGraphDefs of checkpoints: GraphDefs with signatures.

A SavedModel has one MetaGraphDef per set of tags, and a MetaGraphDef has one signature per use. A graph is decoded on
first access. `quantkit.model.importers.freeze` reads models with variables.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from quantkit.errors import GraphError, InputError, UsageError, did_you_mean
from quantkit.formats import graphdef, wire
from quantkit.formats.graphdef.nodes import encode_attr
from quantkit.formats.graphdef.schema import message_class, parse, parse_text
from quantkit.formats.graphdef.tensors import fill_shape, type_number
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import ArgDef, OpDef, find_op, output_dtypes

FILE, TEXT_FILE = "saved_model.pb", "saved_model.pbtxt"
SERVE = "serve"
DEFAULT_SIGNATURE = "serving_default"
PREDICT = "tensorflow/serving/predict"
# Signature of the TensorFlow 2 loader itself, which initializes the variables.
INITIALIZER = "__saved_model_init_op"

# Number of bytes of a length up to 2 GiB as a variable-length integer.
PADDED_BYTES = 5
META_GRAPH, META_GRAPH_GRAPH, META_GRAPH_OBJECTS = 2, 2, 7
VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp", "AutoReloadVariable"})


@dataclass(frozen=True)
class Signature:
    """Signature of a SavedModel: its name, and the edges of inputs and outputs by the names that callers use."""

    name: str = DEFAULT_SIGNATURE
    inputs: Mapping[str, Edge] = field(default_factory=dict)
    outputs: Mapping[str, Edge] = field(default_factory=dict)

    def following(self, before: Graph, after: Graph) -> "Signature":
        """Return the signature for a rewritten graph, whose inputs and outputs have the same order."""
        new_edges = [
            dict(zip(old, new, strict=True)) if len(old) == len(new) else {}
            for old, new in ((before.inputs, after.inputs), (before.outputs, after.outputs))
        ]
        endpoints = [
            {name: replaced.get(edge, edge) for name, edge in edges.items()}
            for edges, replaced in zip((self.inputs, self.outputs), new_edges, strict=True)
        ]
        return Signature(self.name, *endpoints)


@dataclass(frozen=True)
class MetaGraph:
    """Graph of a SavedModel with its signatures.

    Attributes:
        tags: tags of the graph.
        signatures: signatures by name.
        has_objects: True for a model of TensorFlow 2, whose variables are restored through an object graph.
        restore: node that runs after the saver has restored all variables; empty without a saver.
        read: function that decodes the graph; large tensors stay views of the file.
    """

    tags: frozenset[str]
    signatures: Mapping[str, Signature]
    has_objects: bool
    restore: str
    read: Callable[[], Graph]

    def signature(self, name: str | None) -> Signature | None:
        """Return a signature by name (default: ``serving_default``, else the only one, else None).

        Raises:
            UsageError: no signature has the name, or several signatures exist without a default.
        """
        key = name or DEFAULT_SIGNATURE
        if key in self.signatures:
            return self.signatures[key]
        if not name and len(self.signatures) <= 1:
            return next(iter(self.signatures.values()), None)
        available = ", ".join(sorted(self.signatures))
        raise UsageError(
            f"signature {key!r} does not exist; available: {available or 'none'}",
            hint=did_you_mean(name or "", self.signatures) or "select a signature with --signature NAME",
        )


def decode(data: wire.Buffer | Any) -> tuple[MetaGraph, ...]:
    """Decode the graphs of a serialized SavedModel.

    Raises:
        InputError: the bytes are not a SavedModel.
    """
    view = memoryview(data)
    values, _ = wire.split(view, 0, len(view), META_GRAPH)
    graphs = tuple(_meta_graph(view, *value) for value in values[META_GRAPH])
    if not graphs:
        raise InputError("the file has no graph")
    return graphs


def decode_meta_graph(data: wire.Buffer | Any) -> MetaGraph:
    """Decode a serialized MetaGraphDef: the ``.meta`` file of a checkpoint.

    Raises:
        InputError: the bytes are not a MetaGraphDef.
    """
    view = memoryview(data)
    return _meta_graph(view, 0, len(view))


def from_text(text: str, message: str) -> bytes:
    """Serialize a SavedModel or MetaGraphDef given in protobuf's text form.

    Args:
        text: content of the file.
        message: ``SavedModel`` or ``MetaGraphDef``.

    Raises:
        InputError: the text cannot be parsed; the message has line and column.
    """
    # Collections and TensorFlow's object graph are large and not needed: unknown fields are ignored.
    return bytes(parse_text(message, text, allow_unknown=True).SerializeToString())


def choose(graphs: Iterable[MetaGraph], tags: Iterable[str] | None = None) -> MetaGraph:
    """Return the graph with a set of tags (default: ``serve``, else the only graph).

    Raises:
        UsageError: no graph has these tags, or several graphs exist without a graph for ``serve``.
    """
    graphs = tuple(graphs)
    tag_set = frozenset(tags or (SERVE,))
    for graph in graphs:
        if graph.tags == tag_set:
            return graph
    if not tags and len(graphs) == 1:
        return graphs[0]
    available = "; ".join(",".join(sorted(graph.tags)) or "(none)" for graph in graphs)
    raise UsageError(
        f"the SavedModel has no graph with the tags {','.join(sorted(tag_set))}; available: {available}",
        hint="select a graph with --tags, for example --tags serve,gpu",
    )


def write(graph: Graph, file: BinaryIO, signature: Signature = Signature()) -> None:
    """Write a SavedModel with one graph for serving and one signature, node by node.

    Args:
        graph: frozen TensorFlow graph with inputs and outputs.
        file: seekable output file; the length of the graph is known only after writing it.
        signature: signature with the names of inputs and outputs for callers (default: the names of the graph).

    Raises:
        GraphError: the model exceeds 2 GiB, or the element type of an input or output is not known.
    """
    graphdef.check_size(graph)
    rest = _encode_metadata(graph, signature)
    file.write(message_class("SavedModel")(saved_model_schema_version=1).SerializeToString())
    meta_start = _begin_field(file, META_GRAPH)
    file.write(rest)
    graph_start = _begin_field(file, META_GRAPH_GRAPH)
    for chunk in graphdef.chunks(graph):
        file.write(chunk)
    for start in (graph_start, meta_start):
        _end_field(file, start)


def num_variable_bytes(graph: Graph) -> int:
    """Return the size in bytes of all variables of known shape that the outputs of a graph need."""
    total = 0
    for name in graph.reachable():
        node = graph[name]
        shape, dtype = node.attrs.get("shape"), node.attrs.get("dtype")
        if node.op in VARIABLES and isinstance(shape, Shape) and shape.is_known and isinstance(dtype, DType):
            total += math.prod(shape.sizes) * dtype.num_bytes
    return total


def _meta_graph(view: memoryview, start: int, end: int) -> MetaGraph:
    values, rest = wire.split(view, start, end, META_GRAPH_GRAPH, META_GRAPH_OBJECTS)
    message = parse("MetaGraphDef", rest)
    signatures = {
        name: Signature(name, _edges(entry.inputs), _edges(entry.outputs))
        for name, entry in message.signature_def.items()
        if name != INITIALIZER
    }
    content = view[slice(*(values[META_GRAPH_GRAPH] or [(start, start)])[-1])]
    restore = message.saver_def.restore_op_name
    tags = frozenset(message.meta_info_def.tags)
    return MetaGraph(tags, signatures, bool(values[META_GRAPH_OBJECTS]), restore, lambda: graphdef.decode(content))


def _edges(infos: Mapping[str, Any]) -> Mapping[str, Edge]:
    """Return edges by name, without sparse and composite tensors."""
    return {name: Edge.parse(infos[name].name) for name in sorted(infos) if infos[name].name}


def _encode_metadata(graph: Graph, signature: Signature) -> bytes:
    """Serialize a MetaGraphDef without the graph."""
    meta = message_class("MetaGraphDef")()
    meta.meta_info_def.tags.append(SERVE)
    meta.meta_info_def.stripped_op_list.op.extend(map(_op_def, _ops(graph)))
    signature_def = meta.signature_def[signature.name]
    signature_def.method_name = PREDICT
    shapes = infer_shapes(graph)
    for edges, names, infos in (
        (graph.inputs, signature.inputs, signature_def.inputs),
        (graph.outputs, signature.outputs, signature_def.outputs),
    ):
        for name, edge in _edges_by_name(edges, names).items():
            _fill_info(infos[name], graph[edge.node], edge, shapes.get(edge, Shape(None)))
    return bytes(meta.SerializeToString(deterministic=True))


def _edges_by_name(edges: Iterable[Edge], names: Mapping[str, Edge]) -> dict[str, Edge]:
    """Return edges by the names of the signature; an edge without one has its own name."""
    edges = dict.fromkeys(edges)
    by_name = {name: edge for name, edge in names.items() if edge in edges}
    unnamed = [edge for edge in edges if edge not in set(by_name.values())]
    for edge in unnamed:
        by_name[str(edge) if str(edge) not in by_name else f"{edge.node}:{edge.port}"] = edge
    return by_name


def _begin_field(file: BinaryIO, number: int) -> int:
    """Write the header of a field of unknown length; return the position after the header."""
    file.write(wire.header(number, 0)[:-1] + _padded_varint(0))
    return file.tell()


def _end_field(file: BinaryIO, start: int) -> None:
    """Write the length of a field that starts at ``start`` and ends at the present position."""
    end = file.tell()
    if end - start > graphdef.MAX_BYTES:
        raise GraphError(f"the graph has {(end - start) / 1e9:.2f} GB; the limit of a SavedModel is 2.15 GB")
    file.seek(start - PADDED_BYTES)
    file.write(_padded_varint(end - start))
    file.seek(end)


def _padded_varint(value: int) -> bytes:
    """Encode a variable-length integer in exactly five bytes."""
    return bytes(value >> shift & 0x7F | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))


def _fill_info(info: Any, node: Node, edge: Edge, shape: Shape) -> None:
    dtypes = output_dtypes(node)
    dtype = dtypes[edge.port] if edge.port < len(dtypes) else None
    if dtype is None:
        raise GraphError(
            f"the element type of {str(edge)!r} ({node.op}) is not known, but a signature requires it",
            hint="choose other --outputs",
        )
    info.name = f"{edge.node}:{edge.port}"
    info.dtype = type_number(dtype)
    fill_shape(info.tensor_shape, shape)


def _ops(graph: Graph) -> list[OpDef]:
    """Return the signatures of the op types in a graph and its functions, sorted by name."""
    op_types = set(graph.op_counts)
    for function in graph.library.values():
        op_types.update(function.graph.op_counts)
    return [op for name in sorted(op_types) if (op := find_op(name)) is not None]


def _op_def(op: OpDef) -> Any:
    message = message_class("OpDef")(name=op.name, is_stateful=op.is_stateful, is_commutative=op.is_commutative)
    for args, fields in ((op.inputs, message.input_arg), (op.outputs, message.output_arg)):
        for arg in args:
            _fill_arg(fields.add(), arg)
    for attr in op.attrs.values():
        attr_def = message.attr.add(name=attr.name, type=attr.kind)
        if attr.default is not None:
            encode_attr(attr_def.default_value, attr.default, Node(op.name, op.name))
    return message


def _fill_arg(message: Any, arg: ArgDef) -> None:
    message.name, message.is_ref = arg.name, arg.is_ref
    message.type_attr, message.number_attr = arg.type_attr, arg.number_attr
    message.type_list_attr = arg.type_list_attr
    if arg.dtype is not None:
        message.type = type_number(arg.dtype)
