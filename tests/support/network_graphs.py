"""Random networks as frameworks write them, with all layers and norms, for tests of transforms.

They contain tensors with several consumers, shared weights, control dependencies, duplicate nodes,
nodes with several outputs, and graph outputs inside the network. All are valid in TensorFlow, and run
in the reference runtime.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes import find_runtime

BATCH = 2
FLOAT, INT32 = DType.FLOAT, DType.INT32
EPSILON = float(np.float32(0.001))
MAX_CHANNELS = 8

Dims = tuple[int, ...]


@dataclass
class _Builder:
    """Network under construction.

    Attributes:
        draw: source of Hypothesis choices.
        random: source of constant values.
        nodes: nodes so far.
        tensors: edges so far with their shapes, in order of creation.
        weights: latest weights of each shape.
    """

    draw: st.DrawFn
    random: np.random.Generator
    nodes: list[Node] = field(default_factory=list)
    tensors: list[tuple[str, Dims]] = field(default_factory=list)
    weights: dict[Dims, str] = field(default_factory=dict)

    def choose(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def chance(self, odds: int) -> bool:
        """Return True once in ``odds`` draws; examples shrink to False."""
        return self.draw(st.integers(0, odds - 1)) == odds - 1

    def name(self, base: str) -> str:
        scope = "block/" if self.chance(3) else ""
        return f"{scope}{base}{len(self.nodes)}"

    def put(self, op: str, *inputs: str, **attrs: Attr) -> str:
        """Add a node, sometimes with a control dependency, a private attribute or a device; return its name."""
        controls: tuple[str, ...] = ()
        if self.chance(8):
            controls = (self.draw(st.sampled_from([node.name for node in self.nodes])),)
        if self.chance(6):
            attrs["_note"] = b"private"
        device = "/device:CPU:0" if self.chance(10) else ""
        self.nodes.append(Node(self.name(op), op, tuple(map(Edge.parse, inputs)), controls, attrs, device))
        return self.nodes[-1].name

    def const(self, values: Array) -> str:
        self.nodes.append(constant(self.name("c"), values))
        return self.nodes[-1].name

    def normal(self, shape: Dims, fan_in: int = 1) -> str:
        return self.const((self.random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32))

    def factors(self, shape: Dims) -> str:
        return self.const(self.random.uniform(0.5, 1.5, shape).astype(np.float32))

    def choose_weights(self, shape: Dims, fan_in: int) -> str:
        """Return new weights, sometimes those of an earlier layer, or an Identity of them."""
        if shape in self.weights and self.chance(4):
            return self.weights[shape]
        weights = self.normal(shape, fan_in)
        self.weights[shape] = self.put("Identity", weights, T=FLOAT) if self.chance(4) else weights
        return self.weights[shape]

    def add_tensor(self, edge: str, dims: Dims) -> None:
        self.tensors.append((edge, dims))

    def source(self) -> tuple[str, Dims]:
        """Return a tensor, usually the latest one."""
        return self.draw(st.sampled_from(self.tensors)) if self.chance(4) else self.tensors[-1]

    def image(self) -> tuple[str, Dims] | None:
        """Return a tensor of four dimensions, None if the network has no such tensor."""
        images = [tensor for tensor in self.tensors if len(tensor[1]) == 4]
        if not images:
            return None
        return self.draw(st.sampled_from(images)) if self.chance(4) else images[-1]


def _window(size: int, kernel: int, stride: int, padding: bytes) -> int:
    return -(-size // stride) if padding == b"SAME" else -(-(size - kernel + 1) // stride)


def _spatial(b: _Builder, dims: Dims, kernel: int) -> tuple[Dims, dict[str, Attr]]:
    """Return output height and width of a window, and the attributes of the op."""
    stride = 2 if b.chance(4) else 1
    padding = b"VALID" if min(dims[1:3]) >= kernel and b.chance(3) else b"SAME"
    size = tuple(_window(dim, kernel, stride, padding) for dim in dims[1:3])
    return size, {"strides": (1, stride, stride, 1), "padding": padding, "data_format": b"NHWC", "T": FLOAT}


def _convolution(b: _Builder) -> None:
    image = b.image()
    if image is None:
        return
    edge, dims = image
    kernel = b.draw(st.sampled_from([1, 3]))
    size, attrs = _spatial(b, dims, kernel)
    if b.chance(3) and dims[3] <= MAX_CHANNELS // 2:
        multiplier = b.draw(st.sampled_from([1, 2]))
        weights = b.choose_weights((kernel, kernel, dims[3], multiplier), kernel * kernel)
        channels = dims[3] * multiplier
        layer = b.put("DepthwiseConv2dNative", edge, weights, **attrs)
    else:
        channels = b.draw(st.sampled_from([2, 4]))
        weights = b.choose_weights((kernel, kernel, dims[3], channels), kernel * kernel * dims[3])
        layer = b.put("Conv2D", edge, weights, **attrs)
    if b.chance(3):
        layer = b.put(b.choose("BiasAdd", "AddV2", "Add"), layer, b.normal((channels,)), T=FLOAT)
    if not b.chance(3):
        layer = _NORMS[b.draw(st.sampled_from(sorted(_NORMS)))](b, layer, channels)
    b.add_tensor(layer, (dims[0], *size, channels))


def _fused_norm(op: str) -> Callable[[_Builder, str, int], str]:
    def norm(b: _Builder, edge: str, channels: int) -> str:
        parameters = [b.factors((channels,)), b.normal((channels,)), b.normal((channels,)), b.factors((channels,))]
        attrs: dict[str, Attr] = {"T": FLOAT, "epsilon": EPSILON, "is_training": False, "data_format": b"NHWC"}
        return b.put(op, edge, *parameters, **(attrs if op == "FusedBatchNorm" else {**attrs, "U": FLOAT}))

    return norm


def _global_norm(b: _Builder, edge: str, channels: int) -> str:
    parameters = [b.normal((channels,)), b.factors((channels,)), b.normal((channels,)), b.factors((channels,))]
    attrs: dict[str, Attr] = {"variance_epsilon": EPSILON, "scale_after_normalization": not b.chance(3)}
    return b.put("BatchNormWithGlobalNormalization", edge, *parameters, T=FLOAT, **attrs)


def _decomposed_norm(b: _Builder, edge: str, channels: int) -> str:
    """Add ``y (gamma rsqrt(variance + e)) + (beta - mean (...))``, the form of tf.nn.batch_normalization."""
    variance, epsilon = b.factors((channels,)), b.const(np.float32(EPSILON))
    scale = b.put("Rsqrt", b.put("AddV2", variance, epsilon, T=FLOAT), T=FLOAT)
    scale = b.put("Mul", scale, b.factors((channels,)), T=FLOAT)
    shift = b.put("Sub", b.normal((channels,)), b.put("Mul", b.normal((channels,)), scale, T=FLOAT), T=FLOAT)
    pair = (edge, scale) if b.chance(2) else (scale, edge)
    return b.put("AddV2", b.put("Mul", *pair, T=FLOAT), shift, T=FLOAT)


def _centered_norm(b: _Builder, edge: str, channels: int) -> str:
    """Add ``(y - mean) / deviation``."""
    return b.put("RealDiv", b.put("Sub", edge, b.normal((channels,)), T=FLOAT), b.factors((1, 1, 1, channels)), T=FLOAT)


_NORMS: Mapping[str, Callable[[_Builder, str, int], str]] = {
    "fused": _fused_norm("FusedBatchNorm"),
    "fused 2": _fused_norm("FusedBatchNormV2"),
    "fused 3": _fused_norm("FusedBatchNormV3"),
    "global": _global_norm,
    "decomposed": _decomposed_norm,
    "centered": _centered_norm,
}


def _activation(b: _Builder) -> None:
    edge, dims = b.source()
    kind = b.choose("Relu", "Relu6", "Sigmoid", "Tanh", "clip", "clip to 6")
    if kind.startswith("clip"):
        top, bottom = b.const(np.float32(6 if kind == "clip to 6" else 3)), b.const(np.float32(0))
        edge = b.put("Maximum", b.put("Minimum", edge, top, T=FLOAT), bottom, T=FLOAT)
    else:
        edge = b.put(kind, edge, T=FLOAT)
    b.add_tensor(edge, dims)


def _no_op(b: _Builder) -> None:
    edge, dims = b.source()
    kind = b.choose("Identity", "StopGradient", "CheckNumerics", "IdentityN")
    if kind == "IdentityN":
        other, other_dims = b.source()
        node = b.put(kind, edge, other, T=(FLOAT, FLOAT))
        b.add_tensor(node, dims)
        b.add_tensor(f"{node}:1", other_dims)
        return
    attrs: dict[str, Attr] = {"message": b"not finite"} if kind == "CheckNumerics" else {}
    b.add_tensor(b.put(kind, edge, T=FLOAT, **attrs), dims)


def _pool(b: _Builder) -> None:
    image = b.image()
    if image is None:
        return
    edge, dims = image
    kernel = b.draw(st.sampled_from([2, 3]))
    size, attrs = _spatial(b, dims, kernel)
    edge = b.put(b.choose("MaxPool", "AvgPool"), edge, ksize=(1, kernel, kernel, 1), **attrs)
    b.add_tensor(edge, (dims[0], *size, dims[3]))


def _pad(b: _Builder) -> None:
    """Add a Pad of zeros before a convolution."""
    image = b.image()
    if image is None or min(image[1][1:3]) > 4:
        return
    edge, dims = image
    widths = np.array([[0, 0], [1, 1], [b.draw(st.integers(0, 1)), 1], [0, 0]], np.int32)
    if b.chance(2):
        edge = b.put("Relu", edge, T=FLOAT)
    edge = b.put("Pad", edge, b.const(widths), T=FLOAT, Tpaddings=INT32)
    b.add_tensor(edge, (dims[0], dims[1] + 2, dims[2] + int(widths[2].sum()), dims[3]))
    _convolution(b)


def _join(b: _Builder) -> None:
    """Add a sum, product or concatenation of two tensors."""
    edge, dims = b.source()
    same_shape = [other for other, other_dims in b.tensors if other_dims == dims]
    same_size = [(other, other_dims) for other, other_dims in b.tensors if other_dims[:-1] == dims[:-1]]
    if b.chance(2):
        other, other_dims = b.draw(st.sampled_from(same_size))
        if dims[-1] + other_dims[-1] <= 2 * MAX_CHANNELS:
            axis = b.const(np.int32(len(dims) - 1))
            edge = b.put("ConcatV2", edge, other, axis, T=FLOAT, N=2, Tidx=INT32)
            b.add_tensor(edge, (*dims[:-1], dims[-1] + other_dims[-1]))
        return
    b.add_tensor(b.put(b.choose("AddV2", "Mul", "Sub"), edge, b.draw(st.sampled_from(same_shape)), T=FLOAT), dims)


def _split(b: _Builder) -> None:
    edge, dims = b.source()
    if dims[-1] % 2:
        return
    node = b.put("Split", b.const(np.int32(-1)), edge, T=FLOAT, num_split=2)
    half = (*dims[:-1], dims[-1] // 2)
    b.add_tensor(node, half)
    b.add_tensor(f"{node}:1", half)


def _scale_or_shift(b: _Builder) -> None:
    """Add a product or sum with a constant, per channel or per tensor."""
    edge, dims = b.source()
    shape = b.draw(st.sampled_from([dims[-1:], (), (1,) * (len(dims) - 1) + dims[-1:]]))
    b.add_tensor(b.put(b.choose("Mul", "AddV2", "Sub", "RealDiv"), edge, b.factors(shape), T=FLOAT), dims)


def _squeeze_excite(b: _Builder) -> None:
    """Add a squeeze-and-excite block: a product with a gate per channel."""
    image = b.image()
    if image is None:
        return
    edge, dims = image
    mean = b.put("Mean", edge, b.const(np.array([1, 2], np.int32)), T=FLOAT, Tidx=INT32, keep_dims=True)
    attrs: dict[str, Attr] = {"T": FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME"}
    gate = b.put("Conv2D", mean, b.choose_weights((1, 1, dims[3], dims[3]), dims[3]), **attrs)
    b.add_tensor(b.put("Mul", edge, b.put("Sigmoid", gate, T=FLOAT), T=FLOAT), dims)


def _dense(b: _Builder) -> None:
    """Add a dense layer, after a Reshape with a constant or computed shape if the input is an image."""
    edge, dims = b.source()
    if len(dims) == 4:
        flat = int(np.prod(dims[1:]))
        if b.chance(3):
            last = b.put("Mul", b.const(np.int32(flat)), b.const(np.int32(1)), T=INT32)
            shape = b.put("Pack", b.const(np.int32(dims[0])), last, T=INT32, N=2, axis=0)
        else:
            shape = b.const(np.array([-1, flat], np.int32))
        edge, dims = b.put("Reshape", edge, shape, T=FLOAT, Tshape=INT32), (dims[0], flat)
    features = b.draw(st.sampled_from([2, 4]))
    transposed = b.chance(3)
    weights = b.choose_weights((features, dims[1]) if transposed else (dims[1], features), dims[1])
    edge = b.put("MatMul", edge, weights, T=FLOAT, transpose_a=False, transpose_b=transposed)
    if b.chance(2):
        edge = b.put("BiasAdd", edge, b.normal((features,)), T=FLOAT)
    b.add_tensor(b.put("Softmax", edge, T=FLOAT) if b.chance(4) else edge, (dims[0], features))


def _duplicate(b: _Builder) -> None:
    """Add a duplicate of the latest node."""
    edge, dims = b.tensors[-1]
    original = next(node for node in b.nodes if node.name == Edge.parse(edge).node)
    if original.op == "Placeholder":
        return
    b.nodes.append(original.with_(name=b.name("duplicate")))
    b.add_tensor(str(Edge(b.nodes[-1].name, Edge.parse(edge).port)), dims)


def _unused_branch(b: _Builder) -> None:
    """Add a node without consumers."""
    edge, _ = b.source()
    b.put(b.choose("Neg", "Relu"), edge, T=FLOAT)


STEPS: tuple[Callable[[_Builder], None], ...] = (
    _convolution,
    _convolution,
    _activation,
    _activation,
    _no_op,
    _pool,
    _pad,
    _join,
    _split,
    _scale_or_shift,
    _squeeze_excite,
    _dense,
    _duplicate,
    _unused_branch,
)


@st.composite
def network_graphs(draw: st.DrawFn) -> Graph:
    """Generate networks of one or two inputs, up to eight layers, and up to three outputs."""
    builder = _Builder(draw, np.random.default_rng(draw(st.integers(0, 2**16))))
    for number in range(draw(st.integers(1, 2))):
        name, dims = f"input{number}", (BATCH, 5, 4, 3)
        builder.nodes.append(Node(name, "Placeholder", attrs={"dtype": FLOAT, "shape": Shape(dims)}))
        builder.add_tensor(name, dims)
    inputs = [edge for edge, _ in builder.tensors]
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=8)):
        step(builder)
    edges = [edge for edge, _ in builder.tensors]
    outputs = [edges[-1], *draw(st.lists(st.sampled_from(edges), max_size=2))]
    return Graph.of(builder.nodes, inputs, dict.fromkeys(outputs))


VALUES: tuple[Attr, ...] = (-1, 0, 7, 0.5, True, b"SAME", b"invalid", FLOAT, INT32, (), (1, 2), (b"a",), Shape(None))
CONSTANTS = (
    np.float32(np.nan),
    np.zeros((0, 3), np.float32),
    np.arange(4, dtype=np.int32),
    np.ones((1, 1, 3, 2), np.float16),
    np.full((2,), -1e38, np.float32),
    np.array([b"text", b""], object),
)
OPS = ("Conv2D", "BiasAdd", "FusedBatchNormV3", "Mul", "ConcatV2", "Reshape", "Pad", "Switch", "Merge", "NoSuchOp")


def _with_attr(draw: st.DrawFn, node: Node, names: list[str]) -> Node:
    if not node.attrs:
        return node
    name = draw(st.sampled_from(sorted(node.attrs)))
    return node.with_attrs(**{name: draw(st.sampled_from([None, *VALUES]))})


def _with_value(draw: st.DrawFn, node: Node, names: list[str]) -> Node:
    return constant(node.name, draw(st.sampled_from(CONSTANTS)))


def _with_op(draw: st.DrawFn, node: Node, names: list[str]) -> Node:
    return node.with_(op=draw(st.sampled_from(OPS)))


def _with_inputs(draw: st.DrawFn, node: Node, names: list[str]) -> Node:
    edge = Edge(draw(st.sampled_from([*names, "missing"])), draw(st.sampled_from([0, 1, 9])))
    slot = draw(st.integers(0, len(node.inputs)))
    return node.with_(inputs=(*node.inputs[:slot], edge, *node.inputs[slot + draw(st.integers(0, 1)) :]))


def _with_fewer_inputs(draw: st.DrawFn, node: Node, names: list[str]) -> Node:
    return node.with_(inputs=node.inputs[:-1])


def _with_control(draw: st.DrawFn, node: Node, names: list[str]) -> Node:
    return node.with_(controls=(*node.controls, draw(st.sampled_from([*names, "missing"]))))


@st.composite
def damaged_graphs(draw: st.DrawFn) -> Graph:
    """Generate networks with one to three invalid nodes."""
    graph = draw(network_graphs())
    names = list(graph.nodes)
    damages = [_with_attr, _with_attr, _with_value, _with_op, _with_inputs, _with_fewer_inputs, _with_control]
    nodes = dict(graph.nodes)
    for damage in draw(st.lists(st.sampled_from(damages), min_size=1, max_size=3)):
        name = draw(st.sampled_from(names))
        nodes[name] = damage(draw, nodes[name], names)
    outputs = [*graph.outputs, Edge(draw(st.sampled_from(names)), 7)] if draw(st.booleans()) else graph.outputs
    return Graph.of(nodes.values(), graph.inputs, outputs)


def compute_outputs(graph: Graph, *, pixels: bool = False) -> dict[str, Array]:
    """Return the outputs for seeded inputs, by name, in the order of the graph outputs.

    Args:
        graph: graph to run.
        pixels: use integers from 0 to 255 as inputs, in the type of the input, instead of -1 to 1.
    """
    random = np.random.default_rng(0)
    with find_runtime("reference").open(graph) as session:
        feeds = {}
        for info in session.inputs:
            shape = info.shape.sizes
            values = random.integers(0, 256, shape) if pixels else random.uniform(-1, 1, shape)
            feeds[info.name] = values.astype(info.dtype.numpy)
        outputs = session.run(feeds)
    return {str(edge): outputs[str(edge)] for edge in graph.outputs}
