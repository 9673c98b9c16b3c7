"""Conversion of the while loops of TensorFlow 1 to the ONNX op Loop.

    TensorFlow   Enter -> Merge -> condition -> LoopCond -> Switch -> body -> NextIteration -> Merge; Switch -> Exit
    ONNX         Loop(condition of the initial values, initial values), body: body, then condition of the new values

The condition exists twice, because ONNX computes the condition of an iteration at the end of the iteration before.
Constants from outside are copied into the body. The body refers to other values from outside by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from quantkit.convert.tensorflow_to_onnx.translator import PLAIN, Loop, Translator, conversion_error, converts, dtype_of
from quantkit.formats import onnx
from quantkit.ir.graph import LOOP_MERGES, Attr, Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.frames import ENTERS, EXITS, NEXT_ITERATIONS, OUTSIDE, Frame, find_frames

LOOP = "_WhileLoop"


def lower_loops(graph: Graph) -> tuple[Graph, Mapping[str, Loop], Mapping[Edge, Shape]]:
    """Return the graph with one node for each loop, the loops by node name, and the shapes of their outputs.

    Raises:
        UnavailableError: a loop is inside another loop, or has an unusual structure.
    """
    if ENTERS.isdisjoint(graph.op_counts):
        return graph, {}, {}
    inferred = infer_shapes(graph)
    output_shapes = {edge: inferred[edge] for edge in graph.inputs if edge in inferred}
    graph = _with_needed_nodes(graph)
    frames = find_frames(graph)
    members: dict[Frame, list[Node]] = {}
    for name, frame in frames.items():
        if frame is not OUTSIDE:
            if frame.depth > 1:
                raise conversion_error(graph[name], "a loop is inside another loop")
            members.setdefault(frame, []).append(graph[name])
    loops = {loop.node.name: loop for frame, nodes in members.items() for loop in [_read_loop(graph, frame, nodes)]}
    exits = {name: node for loop in loops.values() for name, node in loop.exits.items()}
    outside = [exits.get(name, node) for name, node in graph.nodes.items() if frames[name] is OUTSIDE]
    added = [node for loop in loops.values() for node in (*loop.condition, loop.node)]
    lowered = graph.with_nodes([*outside, *added])
    for name in lowered.order:
        if name in loops:
            shapes = infer_shapes(lowered, output_shapes)
            loop = loops[name]
            initial = [shapes.get(edge, UNKNOWN) for edge in loop.node.inputs[1:]]
            loops[name] = loop = replace(loop, body=_with_shapes(loop, initial))
            for port, edge in enumerate(loop.body.inputs[: loop.num_variables]):
                output_shapes[Edge(name, port)] = _shape_of(loop.body[edge.node])
    return lowered, loops, output_shapes


def _with_needed_nodes(graph: Graph) -> Graph:
    """Return the graph without nodes before its inputs and without nodes that no output needs."""
    needed = graph.reachable() | graph.input_names
    return graph.with_nodes(
        node.with_(inputs=(), controls=()) if node.name in graph.input_names else node
        for node in graph.nodes.values()
        if node.name in needed
    )


def _read_loop(graph: Graph, frame: Frame, nodes: Iterable[Node]) -> Loop:
    members = {node.name: node for node in nodes}
    merges = [node for node in members.values() if node.op in LOOP_MERGES and _source(graph, node, ENTERS)]
    conditions = [node for node in members.values() if node.op == "LoopCond"]
    variables = [(merge, _source(graph, merge, ENTERS), _source(graph, merge, NEXT_ITERATIONS)) for merge in merges]
    name = free_name(graph, frame.name.decode() if isinstance(frame.name, bytes) else "while")
    first = next(iter(members.values()))
    if len(conditions) != 1 or not all(back for _, _, back in variables):
        raise conversion_error(first, "the loop does not have the structure of tf.while_loop")
    [condition] = conditions
    initial = {merge.name: enter.inputs[0] for merge, enter, _ in variables if enter}
    updated = {merge.name: back.inputs[0] for merge, _, back in variables if back}
    body: dict[str, Node] = {}
    captured: dict[str, Edge] = {}
    mapped: dict[Edge, Edge] = {}

    def map_edge(edge: Edge) -> Edge:
        """Return the edge of the body for an edge of the graph; add the inputs from outside."""
        node = members.get(edge.node)
        if node is not None and node.op == "Switch" and node.inputs[0].node in initial:
            return Edge(node.inputs[0].node)
        if node is not None and node.op not in ENTERS:
            return edge
        if edge not in mapped:
            source = edge if node is None else node.inputs[0]
            name = free_name(graph, f"{edge.node}/in_loop") if node is None else edge.node
            if graph.constant_of(source) is not None:
                body[name] = graph[source.node].with_(name=name, controls=())
            else:
                captured[name] = source
                body[name] = Node(name, "Placeholder", attrs={"shape": UNKNOWN, "dtype": dtype_of(graph, source)})
            mapped[edge] = Edge(name)
        return mapped[edge]

    for merge in merges:
        body[merge.name] = Node(
            merge.name, "Placeholder", attrs={"shape": UNKNOWN, "dtype": dtype_of(graph, Edge(merge.name))}
        )
    control_flow = {*LOOP_MERGES, *ENTERS, *EXITS, *NEXT_ITERATIONS, "LoopCond"}
    for node in members.values():
        if node.op in LOOP_MERGES and node.name not in initial:
            raise conversion_error(node, "a condition is inside a loop")
        if node.op not in control_flow and not (node.op == "Switch" and node.inputs[0].node in initial):
            body[node.name] = node.with_(inputs=tuple(map(map_edge, node.inputs)), controls=())
    tested = _condition_nodes(members, condition, initial)
    for node in tested:  # in the body, the condition tests the new values
        inputs = (
            map_edge(updated[edge.node]) if edge.node in updated else _rename_copy(map_edge(edge), tested, "next")
            for edge in node.inputs
        )
        body[f"{node.name}/next"] = node.with_(name=f"{node.name}/next", inputs=tuple(inputs), controls=())
    tests = condition.inputs[0]
    test = map_edge(updated[tests.node]) if tests.node in updated else _rename_copy(map_edge(tests), tested, "next")
    body[condition.name] = Node(condition.name, "Identity", (test,), attrs={"T": DType.BOOL})
    backs = [back for _, _, back in variables if back]
    for back in backs:
        body[back.name] = back.with_(op="Identity", inputs=(map_edge(back.inputs[0]),), controls=())

    def outer(edge: Edge) -> Edge:
        node = members.get(edge.node)
        if edge.node in initial:
            return initial[edge.node]
        return node.inputs[0] if node is not None and node.op in ENTERS else _rename_copy(edge, tested, "initial")

    first_condition = tuple(
        node.with_(name=f"{node.name}/initial", inputs=tuple(map(outer, node.inputs)), controls=()) for node in tested
    )
    loop = Node(name, LOOP, (outer(condition.inputs[0]), *initial.values(), *captured.values()))
    ports = {merge.name: port for port, merge in enumerate(merges)}
    exits = {}
    for node in graph.nodes.values():
        if node.op in EXITS and (switch := members.get(node.inputs[0].node)) is not None:
            exits[node.name] = node.with_(
                op="Identity", inputs=(Edge(name, ports[switch.inputs[0].node]),), controls=()
            )
    endpoints = [*ports, *captured], [condition.name, *(back.name for back in backs)]
    return Loop(loop, Graph.of(body.values(), *endpoints), len(merges), exits, first_condition)


def _source(graph: Graph, merge: Node, ops: frozenset[str]) -> Node | None:
    """Return the producer of an input of a Merge that has one of the op types."""
    return next((graph[edge.node] for edge in merge.inputs if graph[edge.node].op in ops), None)


def _condition_nodes(members: Mapping[str, Node], condition: Node, initial: Mapping[str, Edge]) -> list[Node]:
    """Return the nodes of the loop that compute the condition from the variables."""
    tested: dict[str, Node] = {}
    stack = [condition.inputs[0].node]
    while stack:
        node = members.get(stack.pop())
        if node is not None and node.name not in initial and node.op not in ENTERS and node.name not in tested:
            tested[node.name] = node
            stack.extend(edge.node for edge in node.inputs)
    return list(tested.values())


def _rename_copy(edge: Edge, tested: Iterable[Node], suffix: str) -> Edge:
    """Return the edge of the copy of a condition node; other edges stay."""
    return Edge(f"{edge.node}/{suffix}", edge.port) if any(edge.node == node.name for node in tested) else edge


def _shape_of(node: Node) -> Shape:
    shape = node.attrs["shape"]
    assert isinstance(shape, Shape)
    return shape


def _with_shapes(loop: Loop, shapes: list[Shape]) -> Graph:
    """Return the body with the shapes of its inputs, given those of the initial and captured values.

    A dimension that an iteration changes, or may change, is unknown.
    """
    body = loop.body
    while True:
        nodes = dict(body.nodes)
        for edge, shape in zip(body.inputs, shapes, strict=True):
            nodes[edge.node] = nodes[edge.node].with_attrs(shape=shape)
        body = body.with_nodes(nodes.values())
        inferred = infer_shapes(body)
        updated = [inferred.get(edge, UNKNOWN) for edge in body.outputs[1:]]
        joined = [_join(*pair) for pair in zip(shapes, updated, strict=False)] + shapes[loop.num_variables :]
        if joined == shapes:
            return body
        shapes = joined


def _join(first: Shape, second: Shape) -> Shape:
    if first.dims is None or second.dims is None or len(first.dims) != len(second.dims):
        return UNKNOWN
    return Shape([size if size == other else None for size, other in zip(first.dims, second.dims, strict=True)])


@converts(LOOP)
def _loop(translator: Translator, node: Node) -> None:
    loop = translator.loops[node.name]
    num_values = 1 + loop.num_variables
    captured = [edge.node for edge in loop.body.inputs[loop.num_variables :]]
    for name, edge in zip(captured, node.inputs[num_values:], strict=True):
        translator.add_node(name, "Identity", [translator.plain(edge)])
    body = onnx.encode_loop_body(Translator(loop.body).translate().graph, loop.num_variables, node.name)
    outputs = [Edge(node.name, port) for port in range(loop.num_variables)]
    inputs = (Edge(onnx.ABSENT.name), *map(translator.plain, node.inputs[:num_values]))
    names = tuple(str(edge).encode() for edge in outputs)
    attrs: dict[str, Attr] = {"body": body, onnx.OUTPUTS: names}
    translator.nodes[node.name] = Node(node.name, "Loop", inputs, tuple(captured), attrs)
    translator.values |= {(edge, PLAIN): edge for edge in outputs}
