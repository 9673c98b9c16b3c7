"""Conversion of If nodes: each branch becomes a function of the values that it uses from outside.

An If whose condition is constant, for example because it compares static sizes, becomes the nodes of one branch.
"""

from collections.abc import Mapping, Sequence

from quantkit.convert.onnx_to_tensorflow.arrays import num_outputs
from quantkit.convert.onnx_to_tensorflow.translator import PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.formats import onnx
from quantkit.formats.onnx.schema import parse_message
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node, Opaque
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_rules import join_shapes

ROLES = ("then_branch", "else_branch")


@converts("If")
def _if(translator: OnnxTranslator, node: Node) -> None:
    outputs = [Edge(node.name, port) for port in range(num_outputs(node))]
    condition = translator.fold(node.inputs[0])
    if condition is not None:
        branch, arguments = read_subgraph(translator, node, ROLES[0 if condition.item() else 1])
        branch_translator = OnnxTranslator(branch, translator.function_name(node, "branch_"))
        _inline(translator, node, branch_translator, [translator.plain(edge) for edge in arguments], outputs)
        translator.add_shapes(dict(zip(outputs, map(branch_translator.shape, branch.outputs), strict=True)))
        return
    branches = [read_subgraph(translator, node, role) for role in ROLES]
    captured = list(dict.fromkeys(edge for _, edges in branches for edge in edges))
    arguments = [translator.plain(edge) for edge in captured]
    names = [translator.function_name(node, role) for role in ROLES]
    shapes: list[list[Shape]] = []
    for name, (branch, edges) in zip(names, branches, strict=True):
        shapes.append(_add_function(translator, name, branch, [captured.index(edge) for edge in edges], arguments))
    joined = [join_shapes(*pair) for pair in zip(*shapes, strict=True)]
    translator.add_shapes(dict(zip(outputs, joined, strict=True)))
    results = tuple(translator.functions[names[0]].results.values())
    types = tuple(translator.types[edge] for edge in arguments)
    predicate = translator.condition(node, 0)
    roles = {role: FunctionName(name) for role, name in zip(ROLES, names, strict=True)}
    attrs: dict[str, Attr] = {"Tcond": DType.BOOL, "Tin": types, "Tout": results, "output_shapes": tuple(joined)}
    call = translator.emit(node, "StatelessIf", [predicate, *arguments], PLAIN, **attrs, **roles)
    for edge, dtype in zip(outputs, results, strict=True):
        translator.values[edge, PLAIN] = Edge(call.node, edge.port)
        translator.types[Edge(call.node, edge.port)] = dtype or DType.FLOAT


def read_subgraph(translator: OnnxTranslator, node: Node, role: str) -> tuple[Graph, list[Edge]]:
    """Return a branch or body with a further input for each value that it uses from outside, and these values."""
    outer, attribute = translator.graph, node.attrs[role]
    if not isinstance(attribute, Opaque):
        raise conversion_error(node, f"{role} is not a graph")
    branch = onnx.decode_subgraph(attribute, outer)
    used = [edge for inner in branch.nodes.values() for edge in (*inner.inputs, *map(Edge, inner.controls))]
    captured = list(dict.fromkeys(edge for edge in (*used, *branch.outputs) if edge.node not in branch.nodes))
    names = {edge: str(edge) if edge.port else edge.node for edge in captured if edge.node != onnx.ABSENT.name}
    sources = {edge: _source(translator, edge, name) for edge, name in names.items()}

    def rename(edge: Edge) -> Edge:
        return Edge(names[edge]) if edge in names else edge

    inner_nodes = [inner.with_(inputs=tuple(map(rename, inner.inputs))) for inner in branch.nodes.values()]
    inputs = [edge for edge in names if sources[edge].op == "Placeholder"]
    model = parse_message("ModelProto", branch.extra)
    model.opset_import.extend(parse_message("ModelProto", outer.extra).opset_import)
    absent = [onnx.ABSENT] if onnx.ABSENT.name not in branch.nodes else []
    graph = branch.with_nodes([*absent, *sources.values(), *inner_nodes]).with_(
        inputs=(*branch.inputs, *(Edge(names[edge]) for edge in inputs)),
        outputs=tuple(map(rename, branch.outputs)),
        extra=bytes(model.SerializeToString(deterministic=True)),
    )
    return graph, inputs


def _source(translator: OnnxTranslator, edge: Edge, name: str) -> Node:
    """Return the node of a value from outside: a constant, or an input."""
    tensor = translator.constant_of(edge)
    if tensor is not None:
        return Node(name, "Constant", attrs={"value": tensor})
    return Node(name, "Placeholder", attrs={"dtype": translator.dtype(edge), "shape": translator.shape(edge)})


def _inline(
    translator: OnnxTranslator, node: Node, branch: OnnxTranslator, arguments: Sequence[Edge], outputs: Sequence[Edge]
) -> None:
    """Add the nodes of a branch."""
    inner = branch.translate()
    translator.functions |= branch.functions
    edges = dict(zip(inner.inputs, arguments, strict=True))
    types: dict[str, list[tuple[int, DType]]] = {}
    for edge, dtype in branch.types.items():
        types.setdefault(edge.node, []).append((edge.port, dtype))
    names: dict[str, str] = {}
    for name in inner.order:
        if Edge(name) not in edges:
            new = inner[name]
            inputs = tuple(_rename_edge(edges, names, edge) for edge in new.inputs)
            names[name] = translator.add_node(f"{translator.name(node.name)}/{name}", new.op, inputs, **new.attrs).node
            translator.types |= {Edge(names[name], port): dtype for port, dtype in types[name]}
    for output, edge in zip(outputs, inner.outputs, strict=True):
        translator.values[output, PLAIN] = _rename_edge(edges, names, edge)


def _rename_edge(edges: Mapping[Edge, Edge], names: Mapping[str, str], edge: Edge) -> Edge:
    return edges[edge] if edge in edges else Edge(names[edge.node], edge.port)


def _add_function(
    translator: OnnxTranslator, name: str, branch: Graph, ports: Sequence[int], arguments: Sequence[Edge]
) -> list[Shape]:
    """Add a branch as a function of all arguments, and return the shapes of its results.

    ``ports`` are the arguments that are its inputs.
    """
    branch_translator = OnnxTranslator(branch, f"{name}_")
    body = branch_translator.translate()
    translator.functions |= branch_translator.functions
    types = [translator.types[edge] for edge in arguments]
    argument_names = [f"arg_{port}" for port in range(len(arguments))]
    edges = {edge: Edge(argument_names[port]) for edge, port in zip(body.inputs, ports, strict=True)}
    inputs = {edge.node for edge in body.inputs}
    nodes = [
        Node(argument, "_Arg", attrs={"T": dtype, "index": port})
        for port, (argument, dtype) in enumerate(zip(argument_names, types, strict=True))
    ]
    nodes += [
        inner.with_(inputs=tuple(edges.get(edge, edge) for edge in inner.inputs))
        for inner in body.nodes.values()
        if inner.name not in inputs
    ]
    outputs = [edges.get(edge, edge) for edge in body.outputs]
    results = {f"result_{port}": branch_translator.types[edge] for port, edge in enumerate(body.outputs)}
    translator.functions[name] = Function(name, Graph.of(nodes, argument_names, outputs), results)
    return [branch_translator.shape(edge) for edge in branch.outputs]
