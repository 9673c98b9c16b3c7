"""SavedModel folders, and the graphs that lie beside checkpoints: GraphDefs that say what is fed and asked for.

A SavedModel holds one MetaGraphDef for each set of tags, and that one signature for each use. Graphs stay in the
file until they are asked for. What has variables, `quantkit.model.importers.freeze` reads.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from quantkit.errors import GraphError, InputError, UsageError, did_you_mean
from quantkit.formats import graphdef, wire
from quantkit.formats.graphdef.nodes import encode_attr
from quantkit.formats.graphdef.schema import message_class, parse, parse_text
from quantkit.formats.graphdef.tensors import type_number
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import ArgDef, OpDef, find_op, output_dtypes

FILE, TEXT_FILE = "saved_model.pb", "saved_model.pbtxt"
SERVE = "serve"
DEFAULT_SIGNATURE = "serving_default"
PREDICT = "tensorflow/serving/predict"
# Made by the loader of TensorFlow 2 itself, to fill the variables.
INITIALIZER = "__saved_model_init_op"

# A length up to 2 GiB as a variable-length integer, all its bytes used.
PADDED_BYTES = 5
META_GRAPH, META_GRAPH_GRAPH, META_GRAPH_OBJECTS = 2, 2, 7
VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp", "AutoReloadVariable"})


@dataclass(frozen=True)
class Signature:
    """What is fed and asked for in one use of a model: its name, and edges by the names that callers give them."""

    name: str = DEFAULT_SIGNATURE
    inputs: Mapping[str, Edge] = field(default_factory=dict)
    outputs: Mapping[str, Edge] = field(default_factory=dict)

    def following(self, before: Graph, after: Graph) -> "Signature":
        """The same names for the ends of a graph that was rewritten: their order stays, whatever they are called."""
        moved = [
            dict(zip(old, new, strict=True)) if len(old) == len(new) else {}
            for old, new in ((before.inputs, after.inputs), (before.outputs, after.outputs))
        ]
        named = [
            {name: places.get(edge, edge) for name, edge in edges.items()}
            for edges, places in zip((self.inputs, self.outputs), moved, strict=True)
        ]
        return Signature(self.name, *named)


@dataclass(frozen=True)
class MetaGraph:
    """A graph with its signatures.

    Attributes:
        tags: what it is for.
        signatures: by name.
        has_objects: whether it is of TensorFlow 2, which fills variables by the objects that own them.
        restore: the node that waits until its saver has restored all variables; nothing where it names none.
        read: decodes the graph; large tensors stay views of the file.
    """

    tags: frozenset[str]
    signatures: Mapping[str, Signature]
    has_objects: bool
    restore: str
    read: Callable[[], Graph]

    def signature(self, name: str | None) -> Signature | None:
        """The signature of a name; without one ``serving_default``, or the only one, or None where there is none.

        Raises:
            UsageError: there is none of that name, or there are several and none is the default.
        """
        wanted = name or DEFAULT_SIGNATURE
        if wanted in self.signatures:
            return self.signatures[wanted]
        if not name and len(self.signatures) <= 1:
            return next(iter(self.signatures.values()), None)
        known = ", ".join(sorted(self.signatures))
        raise UsageError(
            f"there is no signature {wanted!r}, but {known or 'none at all'}",
            hint=did_you_mean(name or "", self.signatures) or "choose one with --signature NAME",
        )


def decode(data: wire.Buffer | Any) -> tuple[MetaGraph, ...]:
    """The graphs of a serialized SavedModel.

    Raises:
        InputError: the bytes are no SavedModel.
    """
    view = memoryview(data)
    found = tuple(
        _meta_graph(view, start, end)
        for number, kind, _, start, end in wire.fields(view, 0, len(view))
        if number == META_GRAPH and kind == wire.LENGTH
    )
    if not found:
        raise InputError("it holds no graph")
    return found


def decode_meta_graph(data: wire.Buffer | Any) -> MetaGraph:
    """The graph of a serialized MetaGraphDef: the ``.meta`` file of a checkpoint.

    Raises:
        InputError: the bytes are no MetaGraphDef.
    """
    view = memoryview(data)
    return _meta_graph(view, 0, len(view))


def from_text(text: str, message: str) -> bytes:
    """What a SavedModel or MetaGraphDef in protobuf's text form is in bytes.

    Args:
        text: of the file.
        message: ``SavedModel`` or ``MetaGraphDef``.

    Raises:
        InputError: it is no such text; the message gives line and column.
    """
    # Collections and objects of TensorFlow's own are passed over: that is much, and nothing of it is needed.
    return bytes(parse_text(message, text, allow_unknown=True).SerializeToString())


def choose(graphs: Iterable[MetaGraph], tags: Iterable[str] | None = None) -> MetaGraph:
    """The graph of a set of tags; without tags the one for serving, or the only one.

    Raises:
        UsageError: there is none of these tags, or there are several and none is for serving.
    """
    graphs = tuple(graphs)
    wanted = frozenset(tags or (SERVE,))
    for graph in graphs:
        if graph.tags == wanted:
            return graph
    if not tags and len(graphs) == 1:
        return graphs[0]
    known = "; ".join(",".join(sorted(graph.tags)) or "(none)" for graph in graphs)
    raise UsageError(
        f"it holds no graph with the tags {','.join(sorted(wanted))}, but {known}",
        hint="choose one with --tags, e.g. --tags serve,gpu",
    )


def write(graph: Graph, file: BinaryIO, signature: Signature = Signature()) -> None:
    """Write a SavedModel with one graph for serving and one signature, node by node.

    Args:
        graph: a frozen TensorFlow graph with inputs and outputs.
        file: where; it can seek, since how long the graph is, writing it tells.
        signature: what callers call the inputs and outputs; the others are called as the graph calls them.

    Raises:
        GraphError: it would be larger than 2 GiB, or the element type of an input or output is not known.
    """
    graphdef.check_size(graph)
    rest = _described(graph, signature)
    file.write(message_class("SavedModel")(saved_model_schema_version=1).SerializeToString())
    meta = _begun(file, META_GRAPH)
    file.write(rest)
    body = _begun(file, META_GRAPH_GRAPH)
    for chunk in graphdef.chunks(graph):
        file.write(chunk)
    for place in (body, meta):
        _ended(file, place)


def num_variable_bytes(graph: Graph) -> int:
    """Bytes of the variables that the outputs of a graph need, as far as their sizes are known."""
    total = 0
    for name in graph.reachable():
        node = graph[name]
        shape, dtype = node.attrs.get("shape"), node.attrs.get("dtype")
        if node.op in VARIABLES and isinstance(shape, Shape) and shape.is_known and isinstance(dtype, DType):
            total += math.prod(shape.sizes) * dtype.num_bytes
    return total


def _meta_graph(view: memoryview, start: int, end: int) -> MetaGraph:
    rest: list[wire.Buffer] = []
    place, has_objects = (start, start), False
    for number, kind, begin, first, stop in wire.fields(view, start, end):
        if number == META_GRAPH_GRAPH and kind == wire.LENGTH:
            place = (first, stop)
        elif number == META_GRAPH_OBJECTS:
            has_objects = True
        else:
            rest.append(view[begin:stop])
    message = parse("MetaGraphDef", b"".join(rest))
    signatures = {
        name: Signature(name, _edges(one.inputs), _edges(one.outputs))
        for name, one in message.signature_def.items()
        if name != INITIALIZER
    }
    content = view[place[0] : place[1]]
    restore = message.saver_def.restore_op_name
    tags = frozenset(message.meta_info_def.tags)
    return MetaGraph(tags, signatures, has_objects, restore, lambda: graphdef.decode(content))


def _edges(infos: Mapping[str, Any]) -> Mapping[str, Edge]:
    """Edges by name; a sparse or composite tensor is none, and stays unnamed."""
    return {name: Edge.parse(infos[name].name) for name in sorted(infos) if infos[name].name}


def _described(graph: Graph, signature: Signature) -> bytes:
    """All of a MetaGraphDef but the graph."""
    meta = message_class("MetaGraphDef")()
    meta.meta_info_def.tags.append(SERVE)
    meta.meta_info_def.stripped_op_list.op.extend(map(_op_def, _ops(graph)))
    one = meta.signature_def[signature.name]
    one.method_name = PREDICT
    shapes = infer_shapes(graph)
    for edges, names, infos in (
        (graph.inputs, signature.inputs, one.inputs),
        (graph.outputs, signature.outputs, one.outputs),
    ):
        for name, edge in _named(edges, names).items():
            _fill_info(infos[name], graph[edge.node], edge, shapes.get(edge, Shape(None)))
    return bytes(meta.SerializeToString(deterministic=True))


def _named(edges: Iterable[Edge], names: Mapping[str, Edge]) -> dict[str, Edge]:
    """Edges by what callers call them; without such a name, by their own."""
    edges = dict.fromkeys(edges)
    found = {name: edge for name, edge in names.items() if edge in edges}
    called = set(found.values())
    for edge in (edge for edge in edges if edge not in called):
        found[str(edge) if str(edge) not in found else f"{edge.node}:{edge.port}"] = edge
    return found


def _begun(file: BinaryIO, number: int) -> int:
    """Write the head of a field whose length is not known yet; where it ends."""
    file.write(wire.header(number, 0)[:-1] + _padded(0))
    return file.tell()


def _ended(file: BinaryIO, place: int) -> None:
    """Fill in the length of a field that began at ``place`` and ends here."""
    end = file.tell()
    if end - place > graphdef.MAX_BYTES:
        raise GraphError(f"the graph has {(end - place) / 1e9:.2f} GB, a SavedModel can hold 2.15 GB")
    file.seek(place - PADDED_BYTES)
    file.write(_padded(end - place))
    file.seek(end)


def _padded(value: int) -> bytes:
    """A variable-length integer in five bytes, however small it is."""
    return bytes(value >> shift & 0x7F | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))


def _fill_info(info: Any, node: Node, edge: Edge, shape: Shape) -> None:
    known = output_dtypes(node)
    dtype = known[edge.port] if edge.port < len(known) else None
    if dtype is None:
        raise GraphError(
            f"the element type of {str(edge)!r} ({node.op}) is not known, and a signature must name it",
            hint="choose other --outputs",
        )
    info.name = f"{edge.node}:{edge.port}"
    info.dtype = type_number(dtype)
    if shape.dims is None:
        info.tensor_shape.unknown_rank = True
    else:
        info.tensor_shape.SetInParent()
        for size in shape.dims:
            info.tensor_shape.dim.add(size=-1 if size is None else size)


def _ops(graph: Graph) -> list[OpDef]:
    """What is known of the ops of a graph and of its functions, by name."""
    used = set(graph.op_counts)
    for function in graph.library.values():
        used.update(function.graph.op_counts)
    return [op for name in sorted(used) if (op := find_op(name)) is not None]


def _op_def(op: OpDef) -> Any:
    message = message_class("OpDef")(name=op.name, is_stateful=op.is_stateful, is_commutative=op.is_commutative)
    for args, fields in ((op.inputs, message.input_arg), (op.outputs, message.output_arg)):
        for arg in args:
            _fill_arg(fields.add(), arg)
    for attr in op.attrs.values():
        made = message.attr.add(name=attr.name, type=attr.kind)
        if attr.default is not None:
            encode_attr(made.default_value, attr.default, Node(op.name, op.name))
    return message


def _fill_arg(message: Any, arg: ArgDef) -> None:
    message.name, message.is_ref = arg.name, arg.is_ref
    message.type_attr, message.number_attr = arg.type_attr, arg.number_attr
    message.type_list_attr = arg.type_list_attr
    if arg.dtype is not None:
        message.type = type_number(arg.dtype)
