"""Inference graphs of TensorFlow ops as ONNX graphs.

Images become NCHW where the first op needs it and stay so: a value is transposed back only for an op, or an
output of the graph, that wants it otherwise. Constants are transposed while they are written. Padding is computed
from the sizes that are known:

    SAME:  total = max((ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
           before = total // 2, after = total - before
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.formats.onnx_schema import NUMBERS
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.inference import UNKNOWN, infer_shapes
from quantkit.ops.layers import same_padding
from quantkit.ops.tensorflow import output_dtypes

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
NCHW, PLAIN = "nchw", "plain"

Handler = Callable[["Translator", Node], None]
HANDLERS: dict[str, Handler] = {}

UNARY = {
    "Abs": "Abs",
    "Ceil": "Ceil",
    "Elu": "Elu",
    "Erf": "Erf",
    "Exp": "Exp",
    "Floor": "Floor",
    "Log": "Log",
    "LogicalNot": "Not",
    "Neg": "Neg",
    "Relu": "Relu",
    "Round": "Round",
    "Selu": "Selu",
    "Sigmoid": "Sigmoid",
    "Sign": "Sign",
    "Softplus": "Softplus",
    "Softsign": "Softsign",
    "Sqrt": "Sqrt",
    "Tanh": "Tanh",
}
BINARY = {
    "Add": "Add",
    "AddV2": "Add",
    "Div": "Div",
    "Equal": "Equal",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "Maximum": "Max",
    "Minimum": "Min",
    "Mul": "Mul",
    "Pow": "Pow",
    "RealDiv": "Div",
    "Sub": "Sub",
}
REDUCTIONS = {"Mean": "ReduceMean", "Max": "ReduceMax", "Min": "ReduceMin", "Prod": "ReduceProd"}
COPIES = "Identity EnsureShape StopGradient CheckNumerics PreventGradient Snapshot"


@dataclass(frozen=True)
class Translation:
    """An ONNX graph, and where in it the values of the other graph are.

    Attributes:
        graph: of dialect ``onnx``; its inputs and outputs are named, and laid out, like the other graph's.
        edges: ONNX edge by TensorFlow edge; images as NCHW where any op wants them so.
    """

    graph: Graph
    edges: Mapping[Edge, Edge]


def convert(graph: Graph) -> Graph:
    """The ONNX graph that computes what a frozen TensorFlow graph does.

    Args:
        graph: with inputs and outputs; fed tensors may be in its middle.

    Raises:
        UnavailableError: naming the first node whose op, or form, this conversion does not know.
        GraphError: an input names no node, or the nodes form a cycle.
    """
    return translate(graph).graph


def translate(graph: Graph) -> Translation:
    """As `convert`, with the place of every value.

    Raises:
        UnavailableError: naming the first node whose op, or form, this conversion does not know.
        GraphError: an input names no node, or the nodes form a cycle.
    """
    return Translator(graph).translation()


@dataclass
class Translator:
    """One conversion: the nodes made so far, and the forms in which each value is at hand."""

    graph: Graph
    shapes: Mapping[Edge, Shape] = field(init=False)
    made: dict[str, Node] = field(default_factory=dict)
    values: dict[tuple[Edge, str], Edge] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    types: dict[Edge, DType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes = infer_shapes(self.graph)

    def translation(self) -> Translation:
        graph = self.graph
        for edge in graph.inputs:
            self._feed(edge)
        # An order of execution that data does not impose, ONNX can not say: it has no side effects to put in order.
        # Nor does it say by how many pixels a transposed convolution grows: its padding follows from that.
        needed = graph.with_nodes(map(_as_read, graph.nodes.values())).reachable()
        for name in graph.order:
            node = graph[name]
            if name not in needed or name in self.done or node.op == "Const" or self._is_fed(node):
                continue
            handler = HANDLERS.get(node.op)
            if handler is None:
                raise refusal(node, "no ONNX form of this op is known here")
            try:
                handler(self, node)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise refusal(node, f"it does not fit its op ({error})") from error
        outputs = [self._output(edge) for edge in graph.outputs]
        infos = {str(edge): (self.dtype(edge), self.shape(edge)) for edge in graph.outputs}
        nodes = self._without_plain_weights()
        made = Graph.of(
            [*([onnx.ABSENT] if any(Edge("") in node.inputs for node in nodes) else []), *nodes],
            [Edge(str(edge)) for edge in graph.inputs],
            outputs,
            dialect=onnx.DIALECT,
            extra=onnx.header(infos),
        )
        edges = {edge: value for (edge, layout), value in self.values.items() if layout == PLAIN}
        edges |= {edge: value for (edge, layout), value in self.values.items() if layout == NCHW}
        return Translation(made, edges)

    def _without_plain_weights(self) -> list[Node]:
        """The nodes but for constants, and casts of them, that were made and are read in another form only."""
        reads = Counter(edge.node for node in self.made.values() for edge in node.inputs)
        reads.update(str(edge) for edge in (*self.graph.outputs, *self.graph.inputs))
        idle = [node for node in self.made.values() if node.op == "Cast" and not reads[node.name]]
        gone = {node.name for node in idle}
        for node in idle:
            reads.subtract(edge.node for edge in node.inputs)
        gone |= {node.name for node in self.made.values() if node.op == "Constant" and not reads[node.name]}
        return [node for node in self.made.values() if node.name not in gone]

    def _is_fed(self, node: Node) -> bool:
        return node.name in self.graph.input_names and Edge(node.name) in self.graph.inputs

    def _feed(self, edge: Edge) -> None:
        name = str(edge)
        shape = self.shape(edge)
        self.made[name] = Node(name, "Placeholder", attrs={"dtype": self.dtype(edge), "shape": shape})
        self.values[edge, PLAIN] = Edge(name)

    def _output(self, edge: Edge) -> Edge:
        """The value of an output, under its own name."""
        value = self.plain(edge)
        if onnx.value_name(self.made[value.node], value.port) == str(edge):
            return value
        return self.add(str(edge), "Identity", [value])

    # What is known

    def shape(self, edge: Edge) -> Shape:
        """As TensorFlow lays it out."""
        return self.shapes.get(edge, UNKNOWN)

    def rank(self, edge: Edge) -> int | None:
        return self.shape(edge).rank

    def dtype(self, edge: Edge) -> DType:
        """The element type of a value.

        Raises:
            UnavailableError: nothing is known of it.
        """
        node = self.graph[edge.node]
        known = output_dtypes(node)
        found = known[edge.port] if edge.port < len(known) else None
        if found is None:
            given = node.attrs.get("T", node.attrs.get("dtype"))
            found = given if isinstance(given, DType) else None
        if found is None:
            raise refusal(node, "the type of its elements is not known")
        return found

    def constant(self, node: Node, slot: int) -> Array:
        """The values of a constant input.

        Raises:
            UnavailableError: the input is computed.
        """
        found = self.graph.constant_of(node.inputs[slot]) if slot < len(node.inputs) else None
        if found is None:
            raise refusal(node, f"its input {slot} is computed, and only a constant has an ONNX form here")
        return found.array

    def is_nchw(self, edge: Edge) -> bool:
        """Whether a value is at hand as NCHW."""
        return (edge, NCHW) in self.values

    def sole_reader(self, edge: Edge) -> tuple[Node, int] | None:
        """The only node that reads a value, and in which slot."""
        uses = self.graph.uses.get(edge, ())
        if len(uses) != 1 or edge in self.graph.outputs or edge.node in self.graph.input_names:
            return None
        return uses[0].node, uses[0].slot

    # Values

    def plain(self, edge: Edge) -> Edge:
        """The value laid out as TensorFlow does."""
        if (edge, PLAIN) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, PLAIN] = self.keep(edge.node, tensor)
            else:
                name = str(edge) if edge in self.graph.outputs else f"{edge}/nhwc"
                source = self.values.get((edge, NCHW))
                if source is None:
                    raise refusal(self.graph[edge.node], f"its output {edge.port} has no ONNX form")
                self.values[edge, PLAIN] = self.add(name, "Transpose", [source], perm=TO_NHWC)
        return self.values[edge, PLAIN]

    def nchw(self, edge: Edge) -> Edge:
        """The value, of four dimensions, as NCHW."""
        if (edge, NCHW) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, NCHW] = self.keep(f"{edge.node}/nchw", transposed(tensor, TO_NCHW))
            else:
                source = self.plain(edge)
                self.values[edge, NCHW] = self.add(f"{edge}/nchw", "Transpose", [source], perm=TO_NCHW)
        return self.values[edge, NCHW]

    def keep(self, name: str, tensor: Tensor) -> Edge:
        """A constant; the same one for the same name."""
        if name not in self.made:
            self.made[name] = Node(name, "Constant", attrs={"value": tensor})
        return Edge(name)

    def numbers(self, name: str, values: Iterable[int]) -> Edge:
        """A constant of int64, as ONNX wants shapes and axes."""
        while name in self.graph:
            name += "/long"  # TensorFlow's own, of int32, may be read as well
        return self.keep(name, Tensor.of(np.array(list(values), np.int64)))

    def add(self, name: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """A node of one output."""
        self.made[name] = Node(name, op, tuple(inputs), attrs=attrs)
        return Edge(name)

    def between(self, node: Node, word: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """A node of one output on the way to what ``node`` makes, under a name that no other has."""
        name = f"{node.name}/{word}"
        while name in self.made or name in self.graph:
            name += "_"
        return self.add(name, op, inputs, **attrs)

    def emit(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> Edge:
        """The node that makes the first output of ``node``, named like it where the layout is its own."""
        edge = Edge(node.name)
        name = node.name if layout == PLAIN or edge not in self.graph.outputs else f"{node.name}/nchw"
        self.values[edge, layout] = self.add(name, op, inputs, **attrs)
        return self.values[edge, layout]

    def read(self, edge: Edge, layout: str) -> Edge:
        return self.nchw(edge) if layout == NCHW else self.plain(edge)

    def image(self, node: Node, edge: Edge) -> Edge:
        """What a node with a ``data_format`` reads, as NCHW."""
        return self.plain(edge) if is_channels_first(node) else self.nchw(edge)

    def layout(self, node: Node) -> str:
        """The layout of what an op on images makes: that of TensorFlow if the node asks for NCHW itself."""
        return PLAIN if is_channels_first(node) else NCHW


def _as_read(node: Node) -> Node:
    """The node with what its ONNX form reads."""
    return node.with_(inputs=node.inputs[1:] if node.op == "Conv2DBackpropInput" else node.inputs, controls=())


def refusal(node: Node, reason: str) -> UnavailableError:
    """That a node can not be converted."""
    return UnavailableError(
        f"node {node.name!r} ({node.op}) can not be converted to ONNX: {reason}",
        hint="TensorFlow runs it: --runtime tensorflow, or --target tensorflow where it is quantized; the recipe "
        "inference removes what only training needs",
    )


def is_channels_first(node: Node) -> bool:
    """Whether a node asks for NCHW itself."""
    return node.attrs.get("data_format", b"NHWC") == b"NCHW"


def transposed(tensor: Tensor, permutation: Sequence[int], shape: Sequence[int] | None = None) -> Tensor:
    """A tensor with its dimensions in another order (and then in another shape), computed when it is needed."""
    made = tuple(shape) if shape is not None else tuple(tensor.shape[axis] for axis in permutation)
    return Tensor(tensor.dtype, made, partial(_transpose_now, tensor, tuple(permutation), made))


def _transpose_now(tensor: Tensor, permutation: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(tensor.array.transpose(permutation)).reshape(shape)


def converts(ops: str) -> Callable[[Handler], Handler]:
    """Register a handler for ops, separated by spaces."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(ops.split(), handler))
        return handler

    return register


# Windows


def _windows(translator: Translator, node: Node, kernel: Sequence[int]) -> dict[str, Attr]:
    """The attributes strides, dilations and pads of an op on windows of an image."""
    height, width = (2, 3) if is_channels_first(node) else (1, 2)
    strides: Any = node.attrs["strides"]
    dilations: Any = node.attrs.get("dilations") or (1, 1, 1, 1)
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    padding = node.attrs["padding"]
    found: dict[str, Attr] = {"strides": (strides[height], strides[width])}
    if (dilations[height], dilations[width]) != (1, 1):
        found["dilations"] = (dilations[height], dilations[width])
    pairs: list[tuple[int, int]] = []
    for axis, size in ((height, kernel[0]), (width, kernel[1])):
        if padding == b"EXPLICIT":
            explicit: Any = node.attrs["explicit_paddings"]
            pairs.append((explicit[2 * axis], explicit[2 * axis + 1]))
        elif padding == b"SAME":
            same = same_padding(dims[axis], (size - 1) * dilations[axis] + 1, strides[axis])
            if same is None:
                raise refusal(node, "the size of its image is not known, and its padding follows from it")
            pairs.append(same)
        else:
            pairs.append((0, 0))
    found["pads"] = (pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1])
    return found


@converts("Conv2D")
def _convolution(translator: Translator, node: Node) -> None:
    weights = weights_of(translator, node)
    h, w, c_in, c_out = weights.shape
    channels = (translator.shape(node.inputs[0]).dims or (None,) * 4)[1 if is_channels_first(node) else 3]
    groups = channels // c_in if channels else 1
    made = kept_weights(translator, node, "oihw", transposed(weights, (3, 2, 0, 1), (c_out, c_in, h, w)))
    _layer(translator, node, made, _windows(translator, node, (h, w)), (h, w), groups, c_out)


@converts("DepthwiseConv2dNative")
def _depthwise(translator: Translator, node: Node) -> None:
    weights = weights_of(translator, node)
    h, w, c_in, multiplier = weights.shape
    shape = (c_in * multiplier, 1, h, w)
    made = kept_weights(translator, node, "depthwise", transposed(weights, (2, 3, 0, 1), shape))
    _layer(translator, node, made, _windows(translator, node, (h, w)), (h, w), c_in, c_in * multiplier)


def weights_of(translator: Translator, node: Node) -> Tensor:
    """The constant that a layer multiplies with, as it is stored.

    Raises:
        UnavailableError: it is computed.
    """
    edge = node.inputs[1]
    source = translator.graph[edge.node]
    is_widened = source.op == "Cast" and source.name not in translator.graph.input_names
    tensor = translator.graph.constant_of(source.inputs[0] if is_widened else edge)
    if tensor is None:
        raise refusal(node, "its weights are computed")
    return tensor


def kept_weights(translator: Translator, node: Node, word: str, tensor: Tensor) -> Edge:
    """Weights as ONNX lays them out; those that are stored in another type are cast behind that, as they were."""
    edge = node.inputs[1]
    made = translator.keep(f"{edge.node}/{word}", tensor)
    dtype = translator.dtype(edge)
    if dtype is not tensor.dtype:
        made = translator.add(f"{edge.node}/{word}/{dtype.value}", "Cast", [made], to=NUMBERS[dtype])
    return made


def _layer(
    translator: Translator,
    node: Node,
    weights: Edge,
    windows: Mapping[str, Attr],
    kernel: tuple[int, int],
    groups: int,
    channels: int,
) -> None:
    inputs = [translator.image(node, node.inputs[0]), weights]
    last = take_bias(translator, node, inputs, channels)
    attrs: dict[str, Attr] = {**windows, "kernel_shape": kernel, **({"group": groups} if groups > 1 else {})}
    translator.emit(last, "Conv", inputs, translator.layout(node), **attrs)


def take_bias(translator: Translator, layer: Node, inputs: list[Edge], channels: int) -> Node:
    """Let a layer add the bias that follows it, if only it reads the layer; the node whose value is then made."""
    found = translator.sole_reader(Edge(layer.name))
    if found is None:
        return layer
    node, slot = found
    if node.op not in ("BiasAdd", "Add", "AddV2") or (node.op == "BiasAdd" and slot != 0):
        return layer
    if node.op != "BiasAdd" and is_channels_first(layer):
        return layer
    bias = translator.graph.constant_of(node.inputs[1 - slot])
    if bias is None or bias.dtype is not DType.FLOAT or bias.shape[-1:] != (channels,):
        return layer
    rank = translator.rank(Edge(layer.name))
    if bias.num_elements != channels or (rank is not None and len(bias.shape) > rank):
        return layer
    flat = bias if len(bias.shape) == 1 else Tensor(bias.dtype, (channels,), lambda: bias.array.reshape(channels))
    inputs.append(
        translator.keep(f"{node.inputs[1 - slot].node}/bias" if flat is not bias else node.inputs[1 - slot].node, flat)
    )
    translator.done.add(node.name)
    return node


@converts("MatMul")
def _product(translator: Translator, node: Node) -> None:
    edges = [translator.plain(edge) for edge in node.inputs]
    weights = translator.graph.constant_of(node.inputs[1])
    flips = [bool(node.attrs.get(key)) for key in ("transpose_a", "transpose_b")]
    last = node
    if weights is not None and weights.dtype is DType.FLOAT:
        last = take_bias(translator, node, edges, weights.shape[0 if flips[1] else 1])
    if len(edges) == 2 and not any(flips):
        translator.emit(last, "MatMul", edges, PLAIN)
    else:
        given = {key: 1 for key, flip in zip(("transA", "transB"), flips, strict=True) if flip}
        translator.emit(last, "Gemm", edges, PLAIN, **given)


@converts("MaxPool AvgPool")
def _pool(translator: Translator, node: Node) -> None:
    height, width = (2, 3) if is_channels_first(node) else (1, 2)
    size: Any = node.attrs["ksize"]
    if sorted(size)[:2] != [1, 1] or {size[0], size[1 if is_channels_first(node) else 3]} != {1}:
        raise refusal(node, "it pools over pictures or channels")
    kernel = (size[height], size[width])
    windows = _windows(translator, node, kernel)
    source = [translator.image(node, node.inputs[0])]
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    layout = translator.layout(node)
    if node.op == "AvgPool" and windows["pads"] == (0, 0, 0, 0) and kernel == (dims[height], dims[width]):
        translator.emit(node, "GlobalAveragePool", source, layout)
    else:
        op = "MaxPool" if node.op == "MaxPool" else "AveragePool"
        translator.emit(node, op, source, layout, **windows, kernel_shape=kernel)


# Element by element


def _together(translator: Translator, edges: Sequence[Edge]) -> str:
    """The layout in which an op that works element by element reads: NCHW if some image is at hand so."""
    images = [edge for edge in edges if translator.is_nchw(edge)]
    others = [edge for edge in edges if edge not in images and translator.graph.constant_of(edge) is None]
    fits = all(translator.rank(edge) == 4 for edge in others)
    return NCHW if images and fits else PLAIN


def _element(translator: Translator, edge: Edge, layout: str) -> Edge:
    """An operand; a constant that broadcasts is given four dimensions before it is transposed."""
    tensor = translator.graph.constant_of(edge)
    if layout == PLAIN or tensor is None or len(tensor.shape) in (0, 4):
        return translator.plain(edge) if tensor is not None and not tensor.shape else translator.read(edge, layout)
    shape = (1,) * (4 - len(tensor.shape)) + tensor.shape
    wide = Tensor(tensor.dtype, shape, lambda: tensor.array.reshape(shape))
    return translator.keep(f"{edge.node}/nchw", transposed(wide, TO_NCHW))


@converts(" ".join(UNARY))
def _unary(translator: Translator, node: Node) -> None:
    layout = _together(translator, node.inputs[:1])
    translator.emit(node, UNARY[node.op], [translator.read(node.inputs[0], layout)], layout)


@converts(" ".join(BINARY))
def _binary(translator: Translator, node: Node) -> None:
    if node.op == "Div" and not translator.dtype(node.inputs[0]).is_float:
        raise refusal(node, "it divides whole numbers")
    layout = _together(translator, node.inputs)
    translator.emit(node, BINARY[node.op], [_element(translator, edge, layout) for edge in node.inputs], layout)


@converts("BiasAdd")
def _bias(translator: Translator, node: Node) -> None:
    if is_channels_first(node):
        bias = translator.graph.constant_of(node.inputs[1])
        rank = translator.rank(node.inputs[0])
        if bias is None or rank is None:
            raise refusal(node, "its bias is computed, or the shape of what it adds to is not known")
        shape = (*bias.shape, *(1,) * (rank - 2))
        wide = Tensor(bias.dtype, shape, lambda: bias.array.reshape(shape))
        edges = [translator.plain(node.inputs[0]), translator.keep(f"{node.inputs[1].node}/wide", wide)]
        translator.emit(node, "Add", edges, PLAIN)
    else:
        layout = _together(translator, node.inputs)
        translator.emit(node, "Add", [_element(translator, edge, layout) for edge in node.inputs], layout)


@converts("SquaredDifference NotEqual")
def _binary_in_two(translator: Translator, node: Node) -> None:
    layout = _together(translator, node.inputs)
    edges = [_element(translator, edge, layout) for edge in node.inputs]
    first = translator.add(f"{node.name}/first", "Equal" if node.op == "NotEqual" else "Sub", edges)
    if node.op == "NotEqual":
        translator.emit(node, "Not", [first], layout)
    else:
        translator.emit(node, "Mul", [first, first], layout)


@converts("Square Rsqrt Reciprocal Inv")
def _powers(translator: Translator, node: Node) -> None:
    layout = _together(translator, node.inputs[:1])
    x = translator.read(node.inputs[0], layout)
    if node.op == "Square":
        translator.emit(node, "Mul", [x, x], layout)
        return
    if node.op == "Rsqrt":
        x = translator.add(f"{node.name}/root", "Sqrt", [x])
    translator.emit(node, "Reciprocal", [x], layout)


@converts("Relu6")
def _relu6(translator: Translator, node: Node) -> None:
    layout = _together(translator, node.inputs[:1])
    dtype = translator.dtype(node.inputs[0])
    ends = [translator.keep(f"{node.name}/{end}", Tensor.of(np.array(end, dtype.numpy), dtype)) for end in (0, 6)]
    translator.emit(node, "Clip", [translator.read(node.inputs[0], layout), *ends], layout)


@converts("LeakyRelu")
def _leaky_relu(translator: Translator, node: Node) -> None:
    layout = _together(translator, node.inputs[:1])
    alpha: Any = node.attrs.get("alpha", 0.2)
    translator.emit(node, "LeakyRelu", [translator.read(node.inputs[0], layout)], layout, alpha=float(alpha))


@converts("Cast")
def _cast(translator: Translator, node: Node) -> None:
    layout = _together(translator, node.inputs[:1])
    to: Any = node.attrs["DstT"]
    translator.emit(node, "Cast", [translator.read(node.inputs[0], layout)], layout, to=NUMBERS[to])


@converts("Softmax LogSoftmax")
def _softmax(translator: Translator, node: Node) -> None:
    layout = _together(translator, node.inputs[:1])
    axis = 1 if layout == NCHW else -1
    translator.emit(node, node.op, [translator.read(node.inputs[0], layout)], layout, axis=axis)


@converts(COPIES)
def _copy(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    if translator.graph.constant_of(source) is not None:
        translator.plain(source)
    for layout in (PLAIN, NCHW):
        if (source, layout) in translator.values:
            translator.values[Edge(node.name), layout] = translator.values[source, layout]


@converts("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def _batch_norm(translator: Translator, node: Node) -> None:
    if node.attrs.get("is_training", True):
        raise refusal(node, "it is in training mode")
    edges = [translator.image(node, node.inputs[0]), *map(translator.plain, node.inputs[1:5])]
    epsilon: Any = node.attrs.get("epsilon", 1e-4)
    translator.emit(node, "BatchNormalization", edges, translator.layout(node), epsilon=float(epsilon))


# Shapes


def _axis(translator: Translator, node: Node, edge: Edge, axis: int, layout: str) -> int:
    """An axis as the layout counts it."""
    rank = translator.rank(edge)
    if axis < 0:
        if rank is None:
            raise refusal(node, "the number of dimensions that it counts from is not known")
        axis += rank
    return TO_NCHW.index(axis) if layout == NCHW else axis


@converts("Concat ConcatV2")
def _concat(translator: Translator, node: Node) -> None:
    slot = len(node.inputs) - 1 if node.op == "ConcatV2" else 0
    edges = node.inputs[:slot] if slot else node.inputs[1:]
    layout = _together(translator, edges)
    axis = _axis(translator, node, edges[0], translator.constant(node, slot).item(), layout)
    translator.emit(node, "Concat", [translator.read(edge, layout) for edge in edges], layout, axis=axis)


@converts("Split SplitV")
def _split(translator: Translator, node: Node) -> None:
    axis_slot, source = (2, node.inputs[0]) if node.op == "SplitV" else (0, node.inputs[1])
    count: Any = node.attrs["num_split"]
    layout = _together(translator, [source])
    axis = _axis(translator, node, source, translator.constant(node, axis_slot).item(), layout)
    inputs = [translator.read(source, layout)]
    if node.op == "SplitV":
        inputs.append(translator.numbers(f"{node.name}/sizes", map(int, translator.constant(node, 1))))
    edges = [Edge(node.name, port) for port in range(count)]
    is_asked = layout == NCHW and any(edge in translator.graph.outputs for edge in edges)
    name = f"{node.name}/nchw" if is_asked else node.name
    names = tuple(str(Edge(name, port)).encode() for port in range(count))
    made = translator.add(name, "Split", inputs, axis=axis, **{onnx.OUTPUTS: names})
    for edge in edges:
        translator.values[edge, layout] = Edge(made.node, edge.port)


@converts("Slice")
def _slice(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    begins, sizes = ([int(one) for one in translator.constant(node, slot)] for slot in (1, 2))
    layout = _together(translator, [source])
    axes = [_axis(translator, node, source, axis, layout) for axis in range(len(begins))]
    ends = [begin + size if size >= 0 else np.iinfo(np.int64).max for begin, size in zip(begins, sizes, strict=True)]
    lists = (("starts", begins), ("ends", ends), ("axes", axes))
    inputs = [translator.numbers(f"{node.name}/{word}", values) for word, values in lists]
    translator.emit(node, "Slice", [translator.read(source, layout), *inputs], layout)


@converts("Pad PadV2 MirrorPad")
def _pad(translator: Translator, node: Node) -> None:
    widths = translator.constant(node, 1)
    layout = _together(translator, node.inputs[:1])
    if layout == NCHW:
        widths = widths[list(TO_NCHW)]
    if node.op == "MirrorPad" and node.attrs["mode"] != b"REFLECT":
        raise refusal(node, "ONNX mirrors without the border only")
    pads = translator.numbers(f"{node.name}/pads", map(int, (*widths[:, 0], *widths[:, 1])))
    inputs = [translator.read(node.inputs[0], layout), pads]
    if node.op == "PadV2":
        inputs.append(translator.plain(node.inputs[2]))
    translator.emit(node, "Pad", inputs, layout, mode=b"reflect" if node.op == "MirrorPad" else b"constant")


def _unrolled(translator: Translator, edge: Edge) -> Edge:
    """A value whose elements are in TensorFlow's order, whatever its shape is: a 1x1 image needs no transposing."""
    dims = translator.shape(edge).dims
    if translator.is_nchw(edge) and (edge, PLAIN) not in translator.values and dims and dims[1:3] == (1, 1):
        return translator.nchw(edge)
    return translator.plain(edge)


@converts("Reshape")
def _reshape(translator: Translator, node: Node) -> None:
    found = translator.graph.constant_of(node.inputs[1])
    if found is None and translator.dtype(node.inputs[1]) in (DType.INT32, DType.INT64):
        shape = translator.add(
            f"{node.name}/shape", "Cast", [translator.plain(node.inputs[1])], to=NUMBERS[DType.INT64]
        )
    else:
        wanted = [int(size) for size in translator.constant(node, 1).reshape(-1)]
        if 0 in wanted:
            raise refusal(node, "its result is empty")
        shape = translator.numbers(f"{node.name}/shape", wanted)
    translator.emit(node, "Reshape", [_unrolled(translator, node.inputs[0]), shape], PLAIN)


@converts("Squeeze")
def _squeeze(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    listed: Any = node.attrs.get("squeeze_dims") or ()
    dims = translator.shape(source).dims
    if dims is None or (not listed and None in dims):
        raise refusal(node, "the shape that it squeezes is not known")
    axes = sorted(axis % len(dims) for axis in listed) or [axis for axis, size in enumerate(dims) if size == 1]
    edge = _unrolled(translator, source)
    if translator.values.get((source, NCHW)) == edge:
        if 3 in axes or not {1, 2} <= set(axes):
            edge = translator.plain(source)
        else:
            axes = sorted(TO_NCHW.index(axis) for axis in axes)
    translator.emit(node, "Squeeze", [edge, translator.numbers(f"{node.name}/axes", axes)], PLAIN)


@converts("ExpandDims")
def _expand_dims(translator: Translator, node: Node) -> None:
    axes = translator.numbers(f"{node.name}/axes", [translator.constant(node, 1).item()])
    translator.emit(node, "Unsqueeze", [translator.plain(node.inputs[0]), axes], PLAIN)


@converts("Transpose")
def _transpose(translator: Translator, node: Node) -> None:
    permutation = tuple(int(axis) for axis in translator.constant(node, 1))
    translator.emit(node, "Transpose", [translator.plain(node.inputs[0])], PLAIN, perm=permutation)


@converts("Sum " + " ".join(REDUCTIONS))
def _reduction(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    rank = translator.rank(source)
    if rank is None:
        raise refusal(node, "the number of dimensions of what it reduces is not known")
    axes = sorted(int(axis) % rank for axis in translator.constant(node, 1).reshape(-1))
    keeps = bool(node.attrs.get("keep_dims"))
    layout = _together(translator, [source])
    if layout == NCHW and not keeps and axes != [1, 2]:
        layout = PLAIN  # what is left would be in another order
    if layout == NCHW and axes == [1, 2] and keeps and node.op == "Mean":
        translator.emit(node, "GlobalAveragePool", [translator.nchw(source)], NCHW)
        return
    made = layout if keeps else PLAIN
    counted = tuple(sorted(TO_NCHW.index(axis) for axis in axes)) if layout == NCHW else tuple(axes)
    edges = [translator.read(source, layout)]
    if node.op == "Sum":
        edges.append(translator.numbers(f"{node.name}/axes", counted))
        translator.emit(node, "ReduceSum", edges, made, keepdims=int(keeps))
    else:
        translator.emit(node, REDUCTIONS[node.op], edges, made, axes=counted, keepdims=int(keeps))


@converts("ResizeBilinear ResizeNearestNeighbor")
def _resize(translator: Translator, node: Node) -> None:
    shape = translator.shape(node.inputs[0])
    if translator.dtype(node.inputs[0]) is not DType.FLOAT or not shape.is_known:
        raise refusal(node, "it resizes whole numbers, or images of unknown shape")
    n, _, _, c = shape.known
    height, width = (int(size) for size in translator.constant(node, 1))
    centers, corners = bool(node.attrs.get("half_pixel_centers")), bool(node.attrs.get("align_corners"))
    is_linear = node.op == "ResizeBilinear"
    if corners and not is_linear:
        raise refusal(node, "ONNX rounds corners of the nearest pixel otherwise")
    mode = b"half_pixel" if centers else b"align_corners" if corners else b"asymmetric"
    attrs: dict[str, Attr] = {"coordinate_transformation_mode": mode, "mode": b"linear" if is_linear else b"nearest"}
    if not is_linear:
        attrs["nearest_mode"] = b"round_prefer_ceil" if centers else b"floor"
    sizes = translator.numbers(f"{node.name}/sizes", (n, c, height, width))
    inputs = [translator.nchw(node.inputs[0]), Edge(""), Edge(""), sizes]
    translator.emit(node, "Resize", inputs, NCHW, **attrs)
