"""What the inputs of a graph declare of their shapes, as a fact that holds while it runs."""

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip, free_name
from quantkit.ir.tensor import Shape
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.registry import transform

# The first GraphDef version whose TensorFlow (1.12) has EnsureShape.
FIRST_PRODUCER = 27
ADDITIONS = ("Add", "AddV2")
CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")
# Ops that keep height and width, the second where their windows move by one and see the border, too.
KEEPING = frozenset(
    {
        "Add",
        "AddV2",
        "BiasAdd",
        "ConcatV2",
        "Elu",
        "FusedBatchNorm",
        "FusedBatchNormV2",
        "FusedBatchNormV3",
        "Identity",
        "LeakyRelu",
        "Maximum",
        "Minimum",
        "Mul",
        "Relu",
        "Relu6",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Sub",
        "Tanh",
    }
)
WINDOWS = frozenset({*CONVOLUTIONS, "MaxPool", "AvgPool"})


@transform
def ensure_input_shapes(graph: Graph) -> Outcome:
    """Let an EnsureShape stand behind each input, so that TensorFlow knows sizes when it fuses residual sums.

    TensorFlow takes the shape of whatever is fed for unknown, though its Placeholder declares one. A residual sum is
    then fused with the convolution before it only where both operands come from one tensor without a stride; with the
    sizes known, all are. EnsureShape passes its tensor on, and copies nothing.

    Before:  x: Placeholder[?x224x224x3] -> Conv2D ... -> Add
    After:   x: Placeholder[?x224x224x3] -> EnsureShape[?x224x224x3] -> Conv2D ... -> Add

    Options: none.

    Skips when no two tensors are added behind a convolution, when TensorFlow sees without it that all those have one
    size, when the input declares nothing beside its batch, and when the graph was written by a TensorFlow before 1.12,
    which has no EnsureShape.

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
    reason = _reason_for_none(graph)
    for name in sorted(graph.input_names):
        why = reason or _reason_to_stay(graph, graph[name])
        if why:
            skips.append(Skip(why, name))
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


def _reason_for_none(graph: Graph) -> str:
    if 0 < graph.versions.producer < FIRST_PRODUCER:
        return "the graph was written by a TensorFlow before 1.12, which has no EnsureShape"
    residual = [node for node in graph.nodes.values() if node.op in ADDITIONS and _is_residual(graph, node)]
    if not residual:
        return "no two tensors are added behind a convolution"
    sizes = _sizes(graph)
    if all(len({sizes[edge.node] for edge in node.inputs}) == 1 for node in residual):
        return "TensorFlow sees without it that tensors that are added have one size"
    return ""


def _is_residual(graph: Graph, node: Node) -> bool:
    sources = [graph[edge.node] for edge in node.inputs]
    behind = [graph[source.inputs[0].node] if source.op == "BiasAdd" else source for source in sources]
    return not any(source.is_constant for source in sources) and any(source.op in CONVOLUTIONS for source in behind)


def _sizes(graph: Graph) -> dict[str, str]:
    """Of each node, the earliest one whose tensor has its height and width for all that TensorFlow can tell."""
    sizes: dict[str, str] = {}
    for name in graph.order:
        node = graph[name]
        read = {sizes.get(edge.node, name) for edge in node.inputs if not graph[edge.node].is_constant}
        is_kept = node.op in KEEPING or (node.op in WINDOWS and _moves_by_one(node))
        sizes[name] = read.pop() if is_kept and len(read) == 1 else name
    return sizes


def _moves_by_one(node: Node) -> bool:
    return attribute(node, "padding") == b"SAME" and set(attribute(node, "strides")) == {1}


def _reason_to_stay(graph: Graph, node: Node) -> str:
    shape = node.attrs.get("shape")
    if node.op != "Placeholder":
        return "it is no Placeholder"
    if not isinstance(shape, Shape) or not any(shape.dims[1:] if shape.dims else ()):
        return "it declares no size beside its batch"
    return "" if graph.node_uses.get(node.name) else "nobody reads it"
