"""Values of an ONNX model: their names, element types and shapes, and the header of a new model."""

from collections.abc import Collection, Mapping
from typing import Any

from quantkit.errors import GraphError
from quantkit.formats.onnx.schema import message_class, parse_message
from quantkit.ir.graph import Edge, Graph, Node, Opaque
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.onnx.types import DTYPES, NUMBERS

DIALECT = "onnx"
# Opset of new models: every supported runtime reads it, and it is the oldest with all ops that quantkit writes.
OPSET, IR_VERSION = 17, 8
# Producer of omitted inputs, which ONNX writes as an empty name.
ABSENT = Node("", "Absent")
OUTPUTS = "_outputs"
# Attribute of an initializer whose element type has no NumPy equivalent: its TensorProto.
INITIALIZER_BYTES = "_initializer"
STANDARD_DOMAINS = ("", "ai.onnx")


def header(
    outputs: Mapping[str, tuple[DType, Shape]], *, opset: int = OPSET, domains: Mapping[str, int] | None = None
) -> bytes:
    """Return `Graph.extra` of a new model: versions, and the types of the outputs.

    Args:
        outputs: element type and shape by value name.
        opset: version of the standard operator set.
        domains: versions of other operator sets by domain.
    """
    model = message_class("ModelProto")(ir_version=IR_VERSION, producer_name="quantkit")
    for domain, version in {"": opset, **(domains or {})}.items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = "quantkit"
    for name, (dtype, shape) in outputs.items():
        fill_info(model.graph.output.add(name=name), dtype, shape)
    return bytes(model.SerializeToString(deterministic=True))


def opsets(graph: Graph) -> Mapping[str, int]:
    """Return the versions of the operator sets by domain; the standard operator set has the domain ``""``.

    Raises:
        InputError: `Graph.extra` is broken.
    """
    imports = parse_message("ModelProto", graph.extra).opset_import
    versions = {"" if opset.domain in STANDARD_DOMAINS else opset.domain: opset.version for opset in imports}
    return versions or {"": OPSET}


def value_infos(graph: Graph) -> Mapping[Edge, tuple[DType | None, Shape]]:
    """Return element types and shapes of inner values and outputs as stated by the file.

    Raises:
        InputError: `Graph.extra` is broken.
    """
    model = parse_message("ModelProto", graph.extra)
    infos = {info.name: read_info(info) for info in (*model.graph.value_info, *model.graph.output)}
    infos_by_edge: dict[Edge, tuple[DType | None, Shape]] = {}
    for node in graph.nodes.values():
        names = node.attrs.get(OUTPUTS)
        for port in range(len(names) if isinstance(names, tuple) else 1):
            if (name := value_name(node, port)) in infos:
                infos_by_edge[Edge(node.name, port)] = infos[name]
        if node.op == "If":
            for port, info in enumerate(_branch_infos(node)):
                infos_by_edge.setdefault(Edge(node.name, port), info)
    return infos_by_edge


def _branch_infos(node: Node) -> list[tuple[DType | None, Shape]]:
    """Return the element types of an If as stated by a branch, and the shapes that both branches state."""
    branches = []
    for name in ("then_branch", "else_branch"):
        attribute = node.attrs.get(name)
        data = attribute.data if isinstance(attribute, Opaque) else b""
        branches.append([read_info(info) for info in parse_message("AttributeProto", data).g.output])
    pairs = zip(*branches, strict=False)
    return [(first[0], first[1] if first[1] == second[1] else Shape(None)) for first, second in pairs]


def renamed_infos(extra: bytes, names: Mapping[str, str]) -> bytes:
    """Return `Graph.extra` with values renamed.

    Raises:
        InputError: ``extra`` is broken.
    """
    model = parse_message("ModelProto", extra)
    for info in (*model.graph.value_info, *model.graph.output):
        info.name = names.get(info.name, info.name)
    return bytes(model.SerializeToString(deterministic=True))


def with_dimension_names(graph: Graph, source: Graph) -> Graph:
    """Return the graph with the names of the dynamic dimensions of another graph, such as ``batch``.

    Args:
        graph: graph without such names.
        source: graph with the same inputs and outputs in the same order; graphs of another dialect have no names.
    """
    if source.dialect != DIALECT:
        return graph
    model, nodes = parse_message("ModelProto", graph.extra), dict(graph.nodes)
    infos = {info.name: info for info in model.graph.output}
    stated = {info.name: info for info in parse_message("ModelProto", source.extra).graph.output}
    if len(graph.inputs) == len(source.inputs):
        for edge, old in zip(graph.inputs, source.inputs, strict=True):
            info = input_info(nodes[edge.node])
            _name_dimensions(info, input_info(source[old.node]))
            nodes[edge.node] = nodes[edge.node].with_(extra=info.SerializeToString(deterministic=True))
    if len(graph.outputs) == len(source.outputs):
        for edge, old in zip(graph.outputs, source.outputs, strict=True):
            names = value_name(graph[edge.node], edge.port), value_name(source[old.node], old.port)
            if names[0] in infos and names[1] in stated:
                _name_dimensions(infos[names[0]], stated[names[1]])
    return graph.with_nodes(nodes.values()).with_(extra=bytes(model.SerializeToString(deterministic=True)))


def _name_dimensions(info: Any, source: Any) -> None:
    """Name the unnamed dynamic dimensions of a ValueInfoProto like those of another one of its rank."""
    dims, others = info.type.tensor_type.shape.dim, source.type.tensor_type.shape.dim
    for dim, other in zip(dims, others, strict=False) if len(dims) == len(others) else ():
        if not dim.HasField("dim_value") and not dim.dim_param and other.dim_param:
            dim.dim_param = other.dim_param


def retyped_infos(extra: bytes, names: Collection[str], dtype: DType) -> bytes:
    """Return `Graph.extra` with another element type of some inner values.

    Raises:
        InputError: ``extra`` is broken.
    """
    model = parse_message("ModelProto", extra)
    for info in model.graph.value_info:
        if info.name in names:
            info.type.tensor_type.elem_type = NUMBERS[dtype]
    return bytes(model.SerializeToString(deterministic=True))


def value_name(node: Node, port: int) -> str:
    """Return the value name of an output of a node; empty for an omitted output."""
    attr = node.attrs.get(OUTPUTS)
    names = attr if isinstance(attr, tuple) else ()
    if port < len(names) and (port or not names[0]):
        return str(names[port].decode())
    return f"{node.name}:{port}" if port else node.name


def node_name(node: Node) -> str:
    """Return the name of a node in the file, which can be empty; its values have names of their own."""
    return str(parse_message("NodeProto", node.extra).name)


def with_node_names(graph: Graph) -> Graph:
    """Return the graph with the name of its first output as the name of each node in the file."""

    def rename(node: Node) -> Node:
        if node.op in ("Placeholder", "Constant", ABSENT.op):
            return node
        message = parse_message("NodeProto", node.extra)
        message.name = node.name
        return node.with_(extra=bytes(message.SerializeToString(deterministic=True)))

    return graph.with_nodes(map(rename, graph.nodes.values()))


def edges_by_name(graph: Graph) -> Mapping[str, Edge]:
    """Return the edges of all values with names."""
    edges: dict[str, Edge] = {}
    for node in graph.nodes.values():
        names = node.attrs.get(OUTPUTS)
        for port in range(len(names) if isinstance(names, tuple) else 1):
            edges[value_name(node, port)] = Edge(node.name, port)
    edges.pop("", None)
    return edges


def edge_of(graph: Graph, name: str) -> Edge:
    """Return the edge of a value name; if no value has the name, parse it as ``node`` or ``node:port``."""
    if name in graph.nodes:
        return Edge(name)
    for node in graph.nodes.values():
        names = node.attrs.get(OUTPUTS)
        if isinstance(names, tuple) and name.encode() in names:
            return Edge(node.name, names.index(name.encode()))
    return Edge.parse(name)


def read_info(info: Any) -> tuple[DType | None, Shape]:
    """Return element type and shape of a ValueInfoProto."""
    kind = info.type.tensor_type
    if not kind.HasField("shape"):
        return DTYPES.get(kind.elem_type), Shape(None)
    dims = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in kind.shape.dim]
    return DTYPES.get(kind.elem_type), Shape(dims)


def input_info(node: Node) -> Any:
    """Return the ValueInfoProto of a node that is an input of the model; that of a constant follows its tensor.

    Raises:
        InputError: `Node.extra` is broken.
        GraphError: ONNX has no such element type.
    """
    info = parse_message("ValueInfoProto", node.extra)
    info.name = node.name
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape") or Shape(None)
    is_stale = node.op == "Placeholder" and (dtype, shape) != read_info(info)
    if isinstance(tensor := node.attrs.get("value"), Tensor):
        stated, sizes = read_info(info)
        dtype, shape = tensor.dtype, Shape(tensor.shape)
        is_stale = dtype is not stated or (sizes.is_known and sizes != shape)
    if is_stale:
        info.ClearField("type")
        fill_info(info, dtype if isinstance(dtype, DType) else None, shape if isinstance(shape, Shape) else Shape(None))
    return info


def fill_info(info: Any, dtype: DType | None, shape: Shape) -> None:
    """Write element type and shape into a ValueInfoProto.

    Raises:
        GraphError: ONNX has no such element type.
    """
    if dtype is not None and dtype not in NUMBERS:
        raise GraphError(f"{info.name!r} has the element type {dtype.value}, which ONNX does not have")
    if dtype is not None:
        info.type.tensor_type.elem_type = NUMBERS[dtype]
    if shape.dims is not None:
        info.type.tensor_type.shape.SetInParent()
        for size in shape.dims:
            dim = info.type.tensor_type.shape.dim.add()
            if size is not None:
                dim.dim_value = size
