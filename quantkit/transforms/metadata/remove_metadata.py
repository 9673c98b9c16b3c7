"""Remove the notes of exporters."""

from typing import Any

from quantkit.formats import onnx
from quantkit.formats.onnx.schema import parse_message
from quantkit.ir.graph import Attr, Graph, Node, Opaque
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import transform


@transform(dialects=("onnx",))
def remove_metadata(graph: Graph) -> Outcome:
    """Remove documentation strings and properties of nodes, values and graphs, such as stack traces.

    No runtime uses them, and in small models of PyTorch they are a quarter of the file.

    Before:  y = Relu(x)   metadata_props: pkg.torch.onnx.stack_trace = ...
    After:   y = Relu(x)

    Options: none.

    The names of nodes stay, and the documentation string and the properties of the model, for example its labels.

    Skips graphs without them.

    Example:
        remove_metadata
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Neg(x, body=Opaque("0a04626f64793212120167520d66726f6d206d6f64656c2e7079a00105"))
    """
    nodes = {node.name: _strip_node(node) for node in graph.nodes.values()}
    changes = tuple(name for name, node in nodes.items() if node is not graph[name])
    model = parse_message("ModelProto", graph.extra)
    _strip_graph(model.graph)
    extra = bytes(model.SerializeToString(deterministic=True))
    if len(extra) < len(graph.extra):
        changes = (*changes, "the graph")
    return Outcome(graph.with_(nodes=nodes, extra=extra) if changes else graph, changes)


def _strip_node(node: Node) -> Node:
    if node.op == onnx.ABSENT.op:
        return node
    # The extra field of inputs, and of constants that are also inputs, describes a value.
    kind = "ValueInfoProto" if node.op in ("Placeholder", "Constant") else "NodeProto"
    extra = _strip_message(kind, node.extra) if node.extra else b""
    attrs: dict[str, Attr] = {
        name: Opaque(_strip_message("AttributeProto", value.data)) if isinstance(value, Opaque) else value
        for name, value in node.attrs.items()
        if name != onnx.INITIALIZER_BYTES
    }
    attrs = {**node.attrs, **attrs}
    return node if extra == node.extra and attrs == node.attrs else node.with_(extra=extra, attrs=attrs)


def _strip_message(kind: str, data: bytes) -> bytes:
    """Return a message without its notes, or the same bytes if there are no notes."""
    message = parse_message(kind, data)
    if kind == "AttributeProto":
        for graph in (*([message.g] if message.HasField("g") else []), *message.graphs):
            _strip_graph(graph)
    else:
        _strip(message)
    stripped = bytes(message.SerializeToString(deterministic=True))
    return stripped if len(stripped) < len(data) else data


def _strip_graph(graph: Any) -> None:
    for message in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        _strip(message)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _strip_graph(inner)


def _strip(message: Any) -> None:
    message.ClearField("doc_string")
    message.ClearField("metadata_props")
