"""Wrong rewrites of ONNX and TensorFlow graphs, and small networks with the nodes that they change.

Each rewrite is a function from a graph to graphs with one fault each: a swapped channel, a lost epsilon, a wrong axis.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, Tensor
from quantkit.ir.text import from_text

Rewrite = Callable[[Graph], Iterator[Graph]]
REWRITES: dict[str, Rewrite] = {}
LAYERS = ("Conv", "Gemm", "MatMul", "Conv2D")
BIASES = ("Add", "BiasAdd")
NORMS = ("BatchNormalization", "LayerNormalization", "InstanceNormalization", "FusedBatchNormV3")

# Networks whose outputs hide faults: a sigmoid far from any object, one value, a decision, a normalized vector.
NETWORKS: Mapping[str, str] = {
    "detector": """
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x3x16x16]()
        w1 = Constant[8x3x3x3]()
        b1 = Constant[8]()
        conv1 = Conv(x, w1, b1, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        scale = Constant([0.5, 0.7, 1.0, 1.3, 0.9, 0.6, 1.1, 0.8])
        shift = Constant[8]()
        mean = Constant[8]()
        variance = Constant([0.5, 1.0, 1.5, 0.7, 0.9, 1.2, 0.6, 0.8])
        norm1 = BatchNormalization(conv1, scale, shift, mean, variance)
        relu1 = Relu(norm1)
        pool = MaxPool(relu1, kernel_shape=[2, 2], strides=[2, 2])
        w2 = Constant[8x8x3x3]()
        conv2 = Conv(pool, w2, b1, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        slope = Constant([[[0.1]], [[0.3]], [[0.2]], [[0.4]], [[0.1]], [[0.5]], [[0.2]], [[0.3]]])
        relu2 = PRelu(conv2, slope)
        sizes = Constant([1.0, 1.0, 2.0, 2.0])
        none = Constant[0]()
        large = Resize(relu2, none, sizes, mode=nearest)
        both = Concat(relu1, large, axis=1)
        w3 = Constant[4x16x1x1]()
        logits = Conv(both, w3, kernel_shape=[1, 1])
        far = Constant(-40.0)
        object = Add(logits, far)
        y = Sigmoid(object)
    """,
    "transformer": """
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[2x6x8]()
        gain = Constant[8]()
        offset = Constant[8]()
        norm = LayerNormalization(x, gain, offset, axis=-1, epsilon=1e-5)
        wq = Constant[8x8]()
        wk = Constant[8x8]()
        wv = Constant[8x8]()
        q = MatMul(norm, wq)
        k = MatMul(norm, wk)
        v = MatMul(norm, wv)
        kt = Transpose(k, perm=[0, 2, 1])
        scores = MatMul(q, kt)
        root = Constant(2.828)
        scaled = Div(scores, root)
        weights = Softmax(scaled, axis=-1)
        mixed = MatMul(weights, v)
        residual = Add(x, mixed)
        center = ReduceMean(residual, axes=[-1])
        difference = Sub(residual, center)
        square = Mul(difference, difference)
        spread = ReduceMean(square, axes=[-1])
        epsilon = Constant(1e-3)
        safe = Add(spread, epsilon)
        deviation = Sqrt(safe)
        unit = Div(difference, deviation)
        w1 = Constant[8x16]()
        h = MatMul(unit, w1)
        bias = Constant[16]()
        biased = Add(h, bias)
        inner = Sigmoid(biased)
        gated = Mul(biased, inner)
        w2 = Constant[16x4]()
        out = MatMul(gated, w2)
        y = ArgMax(out, axis=-1, keepdims=0)
    """,
    "score": """
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x12]()
        w1 = Constant[12x12]()
        b1 = Constant[12]()
        h = Gemm(x, w1, b1)
        low = Constant(0.0)
        high = Constant(6.0)
        clipped = Clip(h, low, high)
        sizes = Constant[int64]([6, 6])
        parts = Split(clipped, sizes, axis=1, _outputs=[left, right])
        change = Sub(parts, parts:1)
        joined = Concat(change, parts, axis=1)
        w2 = Constant[12x1]()
        y = Gemm(joined, w2)
    """,
    "channels last": """
        inputs: x
        outputs: y
        x = Placeholder[1x8x8x3]()
        w = Const[3x3x3x6]()
        conv = Conv2D(x, w, T=float, strides=[1, 1, 1, 1], padding=SAME)
        b = Const[6]()
        biased = BiasAdd(conv, b, T=float)
        scale = Const([0.5, 0.7, 1.0, 1.3, 0.9, 0.6])
        shift = Const[6]()
        mean = Const[6]()
        variance = Const([0.5, 1.0, 1.5, 0.7, 0.9, 1.2])
        n = FusedBatchNormV3(biased, scale, shift, mean, variance, T=float, U=float, epsilon=0.001, is_training=false)
        relu = Relu(n, T=float)
        axes = Const[int32]([1, 2])
        pooled = Mean(relu, axes, T=float, Tidx=int32)
        w2 = Const[6x6]()
        logits = MatMul(pooled, w2, T=float)
        far = Const([90.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        shifted = Add(logits, far, T=float)
        y = Softmax(shifted, T=float)
    """,
}


def networks() -> dict[str, Graph]:
    return {name: from_text(text) for name, text in NETWORKS.items()}


def rewrite(function: Rewrite) -> Rewrite:
    REWRITES[function.__name__] = function
    return function


def _nodes(graph: Graph, *ops: str) -> list[Node]:
    return [node for node in graph.nodes.values() if node.op in ops]


def _array(graph: Graph, node: Node, slot: int) -> Array | None:
    tensor = graph.constant_of(node.inputs[slot]) if slot < len(node.inputs) else None
    return None if tensor is None else tensor.array.copy()


def _with_constant(graph: Graph, node: Node, slot: int, values: Array) -> Graph:
    source = graph[node.inputs[slot].node]
    wrong = source.with_(name="wrong").with_attrs(value=Tensor.of(np.ascontiguousarray(values)))
    return graph.with_nodes([wrong, *_replace_node(graph, node.with_input(slot, "wrong"))])


def _replace_node(graph: Graph, new: Node) -> list[Node]:
    return [new if node.name == new.name else node for node in graph.nodes.values()]


def _change_node(graph: Graph, node: Node, op: str | None = None, **attrs: Attr) -> Graph:
    return graph.with_nodes(_replace_node(graph, node.with_(op=op or node.op).with_attrs(**attrs)))


def _reconnect_node(graph: Graph, node: Node, inputs: tuple[Edge, ...]) -> Graph:
    return graph.with_nodes(_replace_node(graph, node.with_(inputs=inputs)))


def _bypass_node(graph: Graph, node: Node) -> Graph:
    return graph.with_nodes(_replace_node(graph, node.with_(op="Identity", inputs=node.inputs[:1])))


def _weights(graph: Graph) -> Iterator[tuple[Node, Array, int]]:
    """Yield layers with their weights and the axis of the output channels."""
    for node in _nodes(graph, *LAYERS):
        weights = _array(graph, node, 1)
        if weights is not None:
            yield node, weights, 0 if node.op == "Conv" else -1


@rewrite
def swapped_channels(graph: Graph) -> Iterator[Graph]:
    for node, weights, axis in _weights(graph):
        if weights.shape[axis] > 1:
            yield _with_constant(graph, node, 1, np.roll(weights, 1, axis))


@rewrite
def channel_of_zeros(graph: Graph) -> Iterator[Graph]:
    for node, weights, axis in _weights(graph):
        np.moveaxis(weights, axis, 0)[0] = 0
        yield _with_constant(graph, node, 1, weights)


@rewrite
def one_wrong_weight(graph: Graph) -> Iterator[Graph]:
    for node, weights, _ in _weights(graph):
        weights.reshape(-1)[np.abs(weights).argmax()] *= 1.01
        yield _with_constant(graph, node, 1, weights)


@rewrite
def scale_in_half_precision(graph: Graph) -> Iterator[Graph]:
    for node, weights, _ in _weights(graph):
        yield _with_constant(graph, node, 1, weights * np.float32(1 + 2e-5))


@rewrite
def transposed_weights(graph: Graph) -> Iterator[Graph]:
    for node, weights, _ in _weights(graph):
        if weights.ndim == 2 and len(set(weights.shape)) == 1:
            yield _with_constant(graph, node, 1, weights.T)


@rewrite
def flipped_kernel(graph: Graph) -> Iterator[Graph]:
    for node, weights, _ in _weights(graph):
        if weights.ndim == 4 and 3 in weights.shape[:2] + weights.shape[2:]:
            spatial = (2, 3) if node.op == "Conv" else (0, 1)
            if weights.shape[spatial[0]] > 1:
                yield _with_constant(graph, node, 1, np.flip(weights, spatial))


@rewrite
def lost_bias(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Conv", "Gemm"):
        if _array(graph, node, 2) is not None:
            yield _reconnect_node(graph, node, node.inputs[:2])
    for node in _nodes(graph, *BIASES):
        bias = _array(graph, node, 1)
        if bias is not None and bias.ndim:
            yield _with_constant(graph, node, 1, np.zeros_like(bias))


@rewrite
def lost_bias_of_a_channel(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Conv", "Gemm", *BIASES):
        slot = 1 if node.op in BIASES else 2
        bias = _array(graph, node, slot)
        if bias is not None and bias.ndim:
            bias.reshape(-1)[np.abs(bias).argmax()] = 0
            yield _with_constant(graph, node, slot, bias)


@rewrite
def lost_epsilon(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, *NORMS):
        yield _change_node(graph, node, epsilon=0.0)
    for node in _nodes(graph, "Add"):
        epsilon = _array(graph, node, 1)
        if epsilon is not None and epsilon.size == 1 and abs(epsilon) < 0.1:
            yield _bypass_node(graph, node)


@rewrite
def lost_mean(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "BatchNormalization", "FusedBatchNormV3"):
        yield _with_constant(graph, node, 3, np.zeros_like(_array(graph, node, 3)))


@rewrite
def scale_of_the_next_channel(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, *NORMS, "PRelu"):
        values = _array(graph, node, 1)
        assert values is not None
        yield _with_constant(graph, node, 1, np.roll(values, 1, 0))


@rewrite
def swapped_operands(graph: Graph) -> Iterator[Graph]:
    squared = {edge.node for node in _nodes(graph, "Mul") for edge in node.inputs if len(set(node.inputs)) == 1}
    for node in _nodes(graph, "Sub", "Div"):
        if node.name not in squared:
            yield _reconnect_node(graph, node, node.inputs[::-1])


@rewrite
def swapped_parts(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Concat"):
        yield _reconnect_node(graph, node, node.inputs[::-1])


@rewrite
def swapped_outputs(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Split"):
        edges = {Edge(node.name, 0): Edge(node.name, 1), Edge(node.name, 1): Edge(node.name, 0)}
        yield graph.with_nodes(
            each.with_(inputs=tuple(edges.get(edge, edge) for edge in each.inputs)) for each in graph.nodes.values()
        )


@rewrite
def wrong_axis(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Softmax"):
        if node.attrs.get("axis") == -1:
            yield _change_node(graph, node, axis=1)


@rewrite
def other_operand(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Transpose"):
        yield _reconnect_node(graph, node, (Edge("q"),))


@rewrite
def lost_activation(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Relu", "PRelu", "Clip"):
        yield _bypass_node(graph, node)


@rewrite
def clamped_activation(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Clip"):
        yield _with_constant(graph, node, 2, np.array(3, np.float32))
    for node in _nodes(graph, "Relu"):
        yield _change_node(graph, node, "Sigmoid")


@rewrite
def shifted_padding(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Conv"):
        if node.attrs.get("pads"):
            yield _change_node(graph, node, pads=(0, 1, 2, 1))


@rewrite
def average_instead_of_maximum(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "MaxPool"):
        yield _change_node(graph, node, "AveragePool")


@rewrite
def linear_instead_of_nearest(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Resize"):
        yield _change_node(graph, node, mode=b"linear")


@rewrite
def lost_residual(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Add"):
        if all(graph.constant_of(edge) is None for edge in node.inputs):
            yield _reconnect_node(graph, node, (node.inputs[1], node.inputs[1]))


@rewrite
def lost_factor(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Mul", "Div"):
        yield _bypass_node(graph, node)


@rewrite
def other_norm(graph: Graph) -> Iterator[Graph]:
    for node in _nodes(graph, "Sqrt"):
        yield _bypass_node(graph, node)
