"""Add EnsureShape ops to the inputs of a graph."""

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip, free_name
from quantkit.ir.tensor import Shape
from quantkit.ops.semantics import ADD_OPS
from quantkit.ops.table import ELEMENTWISE, Fact, find_ops
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.registry import transform

# The first GraphDef version whose TensorFlow (1.12) has EnsureShape.
FIRST_PRODUCER = 27
CONVOLUTIONS = find_ops(Fact.CONVOLUTION, "tensorflow")
# Ops that keep height and width.
SIZE_PRESERVING = find_ops(ELEMENTWISE | Fact.BATCH_NORM | Fact.BIAS | Fact.CONCAT, "tensorflow")
# Ops that keep height and width with stride 1 and SAME padding.
WINDOWED = frozenset({*CONVOLUTIONS, "MaxPool", "AvgPool"})


@transform
def ensure_input_shapes(graph: Graph) -> Outcome:
    """Add an EnsureShape after each input, so that TensorFlow fuses residual sums.

    TensorFlow ignores the shape that a Placeholder declares. With unknown sizes it fuses a residual
    sum with the preceding convolution only if both operands come from one tensor without a stride;
    with known sizes it fuses all of them. EnsureShape copies no data.

    Before:  x: Placeholder[?x224x224x3] -> Conv2D ... -> Add
    After:   x: Placeholder[?x224x224x3] -> EnsureShape[?x224x224x3] -> Conv2D ... -> Add

    Options: none.

    Skips graphs without residual sums after convolutions, graphs whose residual operands have the same
    size without known input shapes, inputs that declare no size except the batch, and graphs of
    TensorFlow versions before 1.12, which have no EnsureShape.

    Example:
        ensure_input_shapes
        inputs: x
        outputs: y
        x = Placeholder[1x4x4x2]()
        w = Const[3x3x2x2]()
        b = Const([0.5, -1.0])
        one = Const[1x1x2x2]()
        conv = Conv2D(x, w, padding=SAME, strides=[1, 2, 2, 1])
        short = Conv2D(x, one, padding=SAME, strides=[1, 2, 2, 1])
        bias = BiasAdd(conv, b)
        y = AddV2(bias, short)
    """
    skips: list[Skip] = []
    added: dict[str, Node] = {}
    graph_reason = _graph_skip_reason(graph)
    for name in sorted(graph.input_names):
        reason = graph_reason or _input_skip_reason(graph, graph[name])
        if reason:
            skips.append(Skip(reason, name))
        elif not any(use.node.op == "EnsureShape" for use in graph.node_uses[name]):
            new = free_name(graph, f"{name}/ensured_shape")
            attrs = {"T": graph[name].attrs["dtype"], "shape": graph[name].attrs["shape"]}
            added[name] = Node(new, "EnsureShape", (Edge(name),), attrs=attrs, device=graph[name].device)
    if not added:
        return Outcome(graph, skips=tuple(skips))
    nodes: list[Node] = []
    for node in graph.nodes.values():
        inputs = tuple(Edge(added[edge.node].name) if edge.node in added else edge for edge in node.inputs)
        nodes.append(node if inputs == node.inputs else node.with_(inputs=inputs))
        if node.name in added:
            nodes.append(added[node.name])
    changes = tuple(f"{name} (EnsureShape)" for name in added)
    return Outcome(graph.with_nodes(nodes), changes, tuple(skips))


def _graph_skip_reason(graph: Graph) -> str:
    if 0 < graph.versions.producer < FIRST_PRODUCER:
        return "the graph was written by TensorFlow before 1.12, which has no EnsureShape"
    residual = [node for node in graph.nodes.values() if node.op in ADD_OPS and _is_residual(graph, node)]
    if not residual:
        return "the graph has no residual sum after a convolution"
    sources = _find_size_sources(graph)
    if all(len({sources[edge.node] for edge in node.inputs}) == 1 for node in residual):
        return "the operands of all residual sums have the same size for any input shape"
    return ""


def _is_residual(graph: Graph, node: Node) -> bool:
    operands = [graph[edge.node] for edge in node.inputs]
    layers = [graph[operand.inputs[0].node] if operand.op == "BiasAdd" else operand for operand in operands]
    return not any(operand.is_constant for operand in operands) and any(layer.op in CONVOLUTIONS for layer in layers)


def _find_size_sources(graph: Graph) -> dict[str, str]:
    """Return for each node the first upstream node with provably the same height and width."""
    sources: dict[str, str] = {}
    for name in graph.order:
        node = graph[name]
        inputs = {sources.get(edge.node, name) for edge in node.inputs if not graph[edge.node].is_constant}
        preserves_size = node.op in SIZE_PRESERVING or (node.op in WINDOWED and _has_stride_1(node))
        sources[name] = inputs.pop() if preserves_size and len(inputs) == 1 else name
    return sources


def _has_stride_1(node: Node) -> bool:
    return attribute(node, "padding") == b"SAME" and set(attribute(node, "strides")) == {1}


def _input_skip_reason(graph: Graph, node: Node) -> str:
    shape = node.attrs.get("shape")
    if node.op != "Placeholder":
        return f"the input is {node.op}, not Placeholder"
    if not isinstance(shape, Shape) or not any(shape.dims[1:] if shape.dims else ()):
        return "the Placeholder declares no size except the batch"
    return "" if graph.node_uses.get(node.name) else "the input has no consumer"
