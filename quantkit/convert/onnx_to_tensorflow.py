"""ONNX graphs of convolutional networks as TensorFlow graphs, so that all that rewrites those can rewrite them.

Images become NHWC where the first op needs it and stay so: a value is transposed back only for an op, or an output of
the graph, that wants it otherwise. Paddings become SAME where they are that, else ops of their own; fold_pads and
fold_batch_norms then do the rest.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from quantkit.convert.tensorflow_to_onnx.elementwise import UNARY as TO_ONNX
from quantkit.convert.tensorflow_to_onnx.translator import TO_NCHW, TO_NHWC, transpose_tensor
from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node, Versions, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes

PLAIN, NHWC = "plain", "nhwc"
# A GraphDef version in which every op made here is known and none is deprecated.
VERSIONS = Versions(producer=1087)

Handler = Callable[["_Translator", Node], None]
_HANDLERS: dict[str, Handler] = {}

# The way back; without ops whose TensorFlow form has no element type (Not), or numbers of its own (Selu).
UNARY = {"Reciprocal": "Reciprocal"} | {
    theirs: ours for ours, theirs in TO_ONNX.items() if theirs not in ("Not", "Selu")
}
BINARY = {
    "Add": "AddV2",
    "Div": "RealDiv",
    "Max": "Maximum",
    "Min": "Minimum",
    "Mul": "Mul",
    "Pow": "Pow",
    "Sub": "Sub",
    "Sum": "AddV2",
}
REDUCTIONS = {"ReduceMean": "Mean", "ReduceSum": "Sum", "ReduceMax": "Max", "ReduceMin": "Min"}


def convert(graph: Graph) -> Graph:
    """The TensorFlow graph that computes what an ONNX graph does.

    Inputs and outputs keep their names as far as TensorFlow takes such names, and their layout.

    Raises:
        UnavailableError: naming the first node whose op, or form, this conversion does not know.
        GraphError: the nodes form a cycle.
    """
    return _Translator(graph).converted()


def as_tensorflow(graph: Graph) -> Graph:
    """The graph, converted where it is of ONNX's ops; see `convert`."""
    return convert(graph) if graph.dialect == onnx.DIALECT else graph


@dataclass
class _Translator:
    """One conversion: the nodes made so far, and the layouts in which each value is at hand."""

    graph: Graph
    shapes: Mapping[Edge, Shape] = field(init=False)
    made: dict[str, Node] = field(default_factory=dict)
    values: dict[tuple[Edge, str], Edge] = field(default_factory=dict)
    types: dict[Edge, DType] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stated = {edge: shape for edge, (_, shape) in onnx.value_infos(self.graph).items()}
        self.shapes = infer_shapes(self.graph, stated)
        for edge in (*self.graph.inputs, *self.graph.outputs):  # they come first, so that none is renamed
            self.name(edge.node)

    def converted(self) -> Graph:
        graph = self.graph
        for edge in graph.inputs:
            self._feed(edge)
        needed = graph.reachable()
        for name in graph.order:
            node = graph[name]
            if name not in needed or node.is_constant or name in graph.input_names or name == onnx.ABSENT.name:
                continue
            handler = _HANDLERS.get(node.op)
            if handler is None:
                raise refusal(node, "no TensorFlow form of this op is known here")
            try:
                handler(self, node)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise refusal(node, f"it does not fit its op ({error})") from error
        outputs = [self._output(edge) for edge in graph.outputs]
        inputs = [self.values[edge, PLAIN] for edge in graph.inputs]
        return Graph.of(self.made.values(), inputs, outputs, versions=VERSIONS)

    def _feed(self, edge: Edge) -> None:
        node = self.graph[edge.node]
        dtype = node.attrs.get("dtype")
        if node.op != "Placeholder" or not isinstance(dtype, DType):
            raise refusal(node, "it is fed, and the type of its elements is not known")
        made = self.add(self.name(edge.node), "Placeholder", [], dtype=dtype, shape=self.shape(edge))
        self.values[edge, PLAIN], self.types[made] = made, dtype

    def _output(self, edge: Edge) -> Edge:
        """The value of an output, under its own name."""
        value = self.plain(edge)
        name = self.name(edge.node)
        if edge.port or value == Edge(name):
            return value
        return self.add(name, "Identity", [value], T=self.types[value])

    # Names

    def name(self, value: str) -> str:
        """What a value is called in TensorFlow, which takes fewer letters."""
        if value not in self.names:
            plain = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", re.sub(r":0$", "", value))
            plain = re.sub(r"^[^A-Za-z0-9.]+", "", plain) or "value"
            self.names[value] = self._free(plain, self.names.values())
        return self.names[value]

    def _free(self, name: str, taken: Iterable[str]) -> str:
        names = {*self.made, *taken}
        number = 0
        found = name
        while found in names:
            number += 1
            found = f"{name}_{number}"
        return found

    # What is known

    def shape(self, edge: Edge) -> Shape:
        """As ONNX lays it out."""
        return self.shapes.get(edge, UNKNOWN)

    def rank(self, edge: Edge) -> int | None:
        return 4 if self.is_image(edge) else self.shape(edge).rank

    def given(self, node: Node, slot: int) -> bool:
        """Whether an input that may be left out is there."""
        return slot < len(node.inputs) and node.inputs[slot].node != onnx.ABSENT.name

    def constant(self, node: Node, slot: int) -> Array:
        """The values of a constant input.

        Raises:
            UnavailableError: the input is computed.
        """
        found = self.graph.constant_of(node.inputs[slot]) if self.given(node, slot) else None
        if found is None:
            raise refusal(node, f"its input {slot} is computed, and only a constant has a TensorFlow form here")
        return found.array

    def listed(self, node: Node, name: str, slot: int) -> list[int] | None:
        """Whole numbers that an attribute or, in later versions, a constant input lists."""
        found: Any = node.attrs.get(name)
        if found is None and self.given(node, slot):
            found = self.constant(node, slot).reshape(-1)
        return None if found is None else [int(one) for one in found]

    def is_image(self, edge: Edge) -> bool:
        """Whether a value is at hand as NHWC."""
        return (edge, NHWC) in self.values

    # Values

    def plain(self, edge: Edge) -> Edge:
        """The value laid out as ONNX does."""
        if (edge, PLAIN) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, PLAIN] = self.keep(self.name(edge.node), tensor)
            elif (source := self.values.get((edge, NHWC))) is not None:
                is_output = edge in self.graph.outputs and not edge.port and self.name(edge.node) not in self.made
                name = self.name(edge.node) if is_output else f"{source.node}/nchw"
                self.values[edge, PLAIN] = self.transpose(name, source, TO_NCHW)
            else:
                raise refusal(self.graph[edge.node], f"its output {edge.port} has no TensorFlow form")
        return self.values[edge, PLAIN]

    def nhwc(self, edge: Edge) -> Edge:
        """The value, of four dimensions, as NHWC."""
        if (edge, NHWC) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, NHWC] = self.keep(f"{self.name(edge.node)}/nhwc", transpose_tensor(tensor, TO_NHWC))
            else:
                source = self.plain(edge)
                self.values[edge, NHWC] = self.transpose(f"{source.node}/nhwc", source, TO_NHWC)
        return self.values[edge, NHWC]

    def read(self, edge: Edge, layout: str) -> Edge:
        return self.nhwc(edge) if layout == NHWC else self.plain(edge)

    def transpose(self, name: str, source: Edge, order: Sequence[int]) -> Edge:
        places = self.keep(f"{name}/order", Tensor.of(np.array(order, np.int32)))
        return self.add(name, "Transpose", [source, places], T=self.types[source], Tperm=DType.INT32)

    def keep(self, name: str, tensor: Tensor) -> Edge:
        """A constant; the same one for the same name."""
        if name not in self.made:
            self.made[name] = constant(name, tensor)
            self.types[Edge(name)] = tensor.dtype
        return Edge(name)

    def numbers(self, name: str, values: Iterable[int]) -> Edge:
        """A constant of int32, as TensorFlow wants shapes and axes."""
        return self.keep(name, Tensor.of(np.array(list(values), np.int32)))

    def add(self, name: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """A node of one output that has the type of its first input."""
        name = self._free(name, ())
        self.made[name] = Node(name, op, tuple(inputs), attrs=attrs)
        self.types[Edge(name)] = self.types[inputs[0]] if inputs else DType.FLOAT
        return Edge(name)

    def emit(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> Edge:
        """The node that makes the first output of ``node``, named like it where the layout is its own."""
        edge = Edge(node.name)
        is_own = layout == PLAIN or edge not in self.graph.outputs
        name = self.name(node.name) if is_own else f"{self.name(node.name)}/nhwc"
        self.values[edge, layout] = self.add(name, op, inputs, **attrs)
        return self.values[edge, layout]

    def typed(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> Edge:
        """As `emit`, of an op whose attribute T is the type of what it reads."""
        return self.emit(node, op, inputs, layout, T=self.types[inputs[0]], **attrs)

    def part(self, node: Node, suffix: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """A node on the way to what ``node`` computes."""
        return self.add(f"{self.name(node.name)}/{suffix}", op, inputs, T=self.types[inputs[0]], **attrs)


def refusal(node: Node, reason: str) -> UnavailableError:
    """That a node can not be converted."""
    return UnavailableError(
        f"node {node.name!r} ({node.op}) can not be converted to TensorFlow: {reason}",
        hint="transforms of ONNX graphs, and the engines that read ONNX, take it as it is",
    )


def _converts(ops: str) -> Callable[[Handler], Handler]:
    """Register a handler for ops, separated by spaces."""

    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(ops.split(), handler))
        return handler

    return register


# Windows


@dataclass(frozen=True)
class _Windows:
    """How windows move over an image: sizes, and what is added before and after, for height and width."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    is_same: bool

    @property
    def is_padded(self) -> bool:
        return any(map(any, self.pads))

    @property
    def attrs(self) -> dict[str, Attr]:
        return {"strides": (1, *self.strides, 1), "padding": b"SAME" if self.is_same else b"VALID"}


def _windows(translator: _Translator, node: Node, kernel: Sequence[int]) -> _Windows:
    """Raises UnavailableError: the node is not on images, or rounds up what can not be padded."""
    if translator.rank(node.inputs[0]) not in (4, None) or len(kernel) != 2:
        raise refusal(node, "it is not on images, which have height and width")
    attrs: Mapping[str, Any] = node.attrs
    strides, dilations = (tuple(attrs.get(name) or (1, 1)) for name in ("strides", "dilations"))
    automatic = attrs.get("auto_pad", b"NOTSET")
    given = attrs.get("pads") or (0, 0, 0, 0)
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    pads: list[tuple[int, int]] = []
    same: list[bool] = []
    for axis, (size, stride) in enumerate(zip(dims[2:], strides, strict=True)):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        before, after = (0, 0) if automatic == b"VALID" else (given[axis], given[axis + 2])
        if attrs.get("ceil_mode") and automatic == b"NOTSET":
            after += _rounded_up(node, size, before + after, reach, stride)
        wanted = _same_padding(size, reach, stride)
        if automatic == b"SAME_LOWER" and wanted is not None:
            before, after = wanted[::-1]
        pads.append((before, after))
        same.append(automatic == b"SAME_UPPER" or wanted == (before, after))
    if automatic == b"SAME_LOWER" and not all(same) and None in dims[2:]:
        raise refusal(node, "its padding depends on a size that is not known")
    return _Windows((kernel[0], kernel[1]), strides, dilations, (pads[0], pads[1]), all(same))


def _same_padding(size: int | None, reach: int, stride: int) -> tuple[int, int] | None:
    """What SAME adds before and after; None where that depends on a size that is not known."""
    if size is None and stride > 1:
        return None
    total = reach - 1 if size is None else max((-(-size // stride) - 1) * stride + reach - size, 0)
    return total // 2, total - total // 2


def _rounded_up(node: Node, size: int | None, added: int, reach: int, stride: int) -> int:
    """What must be added behind an image so that its last, incomplete window counts."""
    if size is None:
        raise refusal(node, "it rounds up a size that is not known")
    rest = (size + added - reach) % stride
    return stride - rest if rest else 0


def _padded(translator: _Translator, node: Node, windows: _Windows, value: float) -> Edge:
    """The image with what the windows need around it, unless SAME adds that."""
    source = translator.nhwc(node.inputs[0])
    if windows.is_same or not windows.is_padded:
        return source
    name = f"{translator.name(node.name)}/pad"
    widths = translator.keep(f"{name}/widths", Tensor.of(np.array([(0, 0), *windows.pads, (0, 0)], np.int32)))
    attrs: dict[str, Attr] = {"Tpaddings": DType.INT32}
    if value == 0:
        return translator.part(node, "pad", "Pad", [source, widths], **attrs)
    filling = translator.keep(f"{name}/value", Tensor.of(np.float32(value)))
    return translator.part(node, "pad", "PadV2", [source, widths, filling], **attrs)


@_converts("Conv")
def _convert_conv(translator: _Translator, node: Node) -> None:
    weights = translator.graph.constant_of(node.inputs[1])
    if weights is None or len(weights.shape) != 4:
        raise refusal(node, "its weights are not those of a convolution of images")
    group: Any = node.attrs.get("group", 1)
    count, depth, height, width = weights.shape
    windows = _windows(translator, node, (height, width))
    name = translator.name(node.name)
    layer = f"{name}/product" if translator.given(node, 2) else name
    if group == 1:
        kernel, op = transpose_tensor(weights, (2, 3, 1, 0)), "Conv2D"
    elif depth == 1:
        order = (height, width, group, count // group)
        kernel, op = Tensor(weights.dtype, order, partial(_depthwise, weights, order)), "DepthwiseConv2dNative"
    else:
        raise refusal(node, f"it has {group} groups of {depth} channels")
    inputs = [_padded(translator, node, windows, 0), translator.keep(f"{name}/weights", kernel)]
    attrs: dict[str, Attr] = {**windows.attrs, "data_format": b"NHWC", "dilations": (1, *windows.dilations, 1)}
    if not translator.given(node, 2):
        translator.typed(node, op, inputs, NHWC, **attrs)
        return
    product = translator.add(layer, op, inputs, T=translator.types[inputs[0]], **attrs)
    bias = translator.plain(node.inputs[2])
    translator.typed(node, "BiasAdd", [product, bias], NHWC, data_format=b"NHWC")


def _depthwise(weights: Tensor, order: tuple[int, ...]) -> Array:
    """(c * m, 1, h, w) as (h, w, c, m)."""
    height, width, channels, multiplier = order
    array = weights.array.reshape(channels, multiplier, height, width)
    return np.ascontiguousarray(array.transpose(2, 3, 0, 1))


@_converts("MaxPool AveragePool")
def _convert_pool(translator: _Translator, node: Node) -> None:
    kernel: Any = node.attrs["kernel_shape"]
    windows = _windows(translator, node, kernel)
    is_max = node.op == "MaxPool"
    if windows.dilations != (1, 1):
        raise refusal(node, "its windows have gaps")
    counts = bool(node.attrs.get("count_include_pad")) and windows.is_padded
    if counts:
        windows = _Windows(windows.kernel, windows.strides, windows.dilations, windows.pads, is_same=False)
    elif not is_max and windows.is_padded and not windows.is_same:
        raise refusal(node, "it averages without its padding, which TensorFlow can only for the padding SAME")
    if counts and node.attrs.get("ceil_mode"):
        raise refusal(node, "it counts padding, and rounds up")
    source = _padded(translator, node, windows, -math.inf if is_max else 0)
    attrs: dict[str, Attr] = {**windows.attrs, "ksize": (1, *windows.kernel, 1), "data_format": b"NHWC"}
    translator.typed(node, "MaxPool" if is_max else "AvgPool", [source], NHWC, **attrs)


@_converts("GlobalAveragePool GlobalMaxPool")
def _convert_global_pool(translator: _Translator, node: Node) -> None:
    op = "Mean" if node.op == "GlobalAveragePool" else "Max"
    _reduced(translator, node, op, translator.nhwc(node.inputs[0]), (1, 2), NHWC, keep_dims=True)


@_converts(" ".join(REDUCTIONS))
def _convert_reduction(translator: _Translator, node: Node) -> None:
    edge = node.inputs[0]
    rank = translator.rank(edge)
    if rank is None:
        raise refusal(node, "the rank of its input is not known")
    listed = translator.listed(node, "axes", 1)
    axes = sorted(axis % rank for axis in (range(rank) if listed is None else listed))
    keeps = bool(node.attrs.get("keepdims", 1))
    if translator.is_image(edge) and axes == [2, 3]:
        layout = NHWC if keeps else PLAIN
        _reduced(translator, node, REDUCTIONS[node.op], translator.nhwc(edge), (1, 2), layout, keep_dims=keeps)
    else:
        _reduced(translator, node, REDUCTIONS[node.op], translator.plain(edge), axes, PLAIN, keep_dims=keeps)


def _reduced(
    translator: _Translator, node: Node, op: str, source: Edge, axes: Iterable[int], layout: str, *, keep_dims: bool
) -> None:
    places = translator.numbers(f"{translator.name(node.name)}/axes", axes)
    translator.typed(node, op, [source, places], layout, Tidx=DType.INT32, keep_dims=keep_dims)


@_converts("BatchNormalization")
def _convert_batch_norm(translator: _Translator, node: Node) -> None:
    if node.attrs.get("training_mode"):
        raise refusal(node, "it is in training mode")
    if translator.rank(node.inputs[0]) != 4:
        raise refusal(node, "it is not on images")
    inputs = [translator.nhwc(node.inputs[0]), *(translator.plain(edge) for edge in node.inputs[1:5])]
    attrs: dict[str, Attr] = {"U": DType.FLOAT, "data_format": b"NHWC", "is_training": False}
    attrs["epsilon"] = float(np.asarray(node.attrs.get("epsilon", 1e-5), np.float32))
    translator.typed(node, "FusedBatchNormV3", inputs, NHWC, **attrs)


@_converts("LRN")
def _convert_lrn(translator: _Translator, node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    size = attrs["size"]
    made: dict[str, Attr] = {
        "depth_radius": (size - 1) // 2,
        "alpha": attrs.get("alpha", 1e-4) / size,
        "beta": attrs.get("beta", 0.75),
        "bias": attrs.get("bias", 1.0),
    }
    if size % 2 == 0:
        raise refusal(node, "its window has an even size")
    translator.typed(node, "LRN", [translator.nhwc(node.inputs[0])], NHWC, **made)


# Elementwise


def _layout(translator: _Translator, node: Node) -> str:
    return NHWC if translator.is_image(node.inputs[0]) else PLAIN


@_converts(" ".join(UNARY))
def _convert_unary(translator: _Translator, node: Node) -> None:
    if node.op == "Elu" and node.attrs.get("alpha", 1.0) != 1.0:
        raise refusal(node, "TensorFlow's Elu knows no alpha but 1")
    layout = _layout(translator, node)
    translator.typed(node, UNARY[node.op], [translator.read(node.inputs[0], layout)], layout)


@_converts("Identity Dropout")
def _convert_identity(translator: _Translator, node: Node) -> None:
    if node.op == "Dropout" and any(Edge(node.name, 1) in one.inputs for one in translator.graph.nodes.values()):
        raise refusal(node, "its mask is read")
    layout = _layout(translator, node)
    translator.typed(node, "Identity", [translator.read(node.inputs[0], layout)], layout)


@_converts("LeakyRelu")
def _convert_leaky_relu(translator: _Translator, node: Node) -> None:
    layout = _layout(translator, node)
    alpha = float(np.asarray(node.attrs.get("alpha", 0.01), np.float32))
    translator.typed(node, "LeakyRelu", [translator.read(node.inputs[0], layout)], layout, alpha=alpha)


@_converts("Clip")
def _convert_clip(translator: _Translator, node: Node) -> None:
    layout = _layout(translator, node)
    source = translator.read(node.inputs[0], layout)
    low, high = _limit(translator, node, 1, "min"), _limit(translator, node, 2, "max")
    if low == 0 and high in (6, None):
        translator.typed(node, "Relu" if high is None else "Relu6", [source], layout)
    elif low is None and high is None:
        translator.typed(node, "Identity", [source], layout)
    elif low is None or high is None:
        op, limit = ("Maximum", low) if high is None else ("Minimum", high)
        translator.typed(node, op, [source, _number(translator, node, "limit", limit)], layout)
    else:
        source = translator.part(node, "raised", "Maximum", [source, _number(translator, node, "low", low)])
        translator.typed(node, "Minimum", [source, _number(translator, node, "high", high)], layout)


def _limit(translator: _Translator, node: Node, slot: int, name: str) -> float | None:
    """One end of what a Clip lets through; None where it has none."""
    found: Any = translator.constant(node, slot) if translator.given(node, slot) else node.attrs.get(name)
    return None if found is None else float(found)


def _number(translator: _Translator, node: Node, word: str, number: float | None) -> Edge:
    return translator.keep(f"{translator.name(node.name)}/{word}", Tensor.of(np.asarray(number, np.float32)))


@_converts("HardSigmoid HardSwish")
def _convert_hard_sigmoid(translator: _Translator, node: Node) -> None:
    """HardSigmoid: max(0, min(1, alpha x + beta));   HardSwish: x max(0, min(1, x / 6 + 1/2)) = x relu6(x + 3) / 6."""
    layout = _layout(translator, node)
    source = translator.read(node.inputs[0], layout)
    attrs: Mapping[str, Any] = node.attrs
    is_swish = node.op == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if is_swish else (attrs.get("alpha", 0.2), attrs.get("beta", 0.5))
    scaled = source
    if not is_swish:
        scaled = translator.part(node, "scaled", "Mul", [source, _number(translator, node, "six_alpha", 6 * alpha)])
    shifted = translator.part(node, "shifted", "AddV2", [scaled, _number(translator, node, "six_beta", 6 * beta)])
    clipped = translator.part(node, "clipped", "Relu6", [shifted])
    if is_swish:
        clipped = translator.part(node, "gated", "Mul", [clipped, source])
    translator.typed(node, "Mul", [clipped, _number(translator, node, "sixth", 1 / 6)], layout)


@_converts("Softmax LogSoftmax")
def _convert_softmax(translator: _Translator, node: Node) -> None:
    edge = node.inputs[0]
    rank = translator.rank(edge)
    is_old = onnx.opsets(translator.graph).get("", onnx.OPSET) < 13
    axis: Any = node.attrs.get("axis", 1 if is_old else -1)
    if rank is None or (is_old and axis % rank != rank - 1):
        raise refusal(node, "it is over several axes, or an unknown one")
    if axis % rank == rank - 1 and not (translator.is_image(edge) and rank == 4):
        translator.typed(node, node.op, [translator.plain(edge)], PLAIN)
    elif rank == 4 and axis % rank == 1:
        translator.typed(node, node.op, [translator.nhwc(edge)], NHWC)
    else:
        raise refusal(node, f"it is over axis {axis}, and TensorFlow's is over the last one")


@_converts(" ".join(BINARY))
def _convert_binary(translator: _Translator, node: Node) -> None:
    op = BINARY[node.op]
    known = (translator.rank(edge) == 4 or translator.graph.constant_of(edge) is not None for edge in node.inputs)
    fits = all(known)
    layout = NHWC if fits and any(map(translator.is_image, node.inputs)) else PLAIN
    inputs = [_operand(translator, edge, layout) for edge in node.inputs]
    while len(inputs) > 2:
        inputs[:2] = [translator.part(node, f"of_{len(inputs)}", op, inputs[:2])]
    if len(inputs) == 1:
        op = "Identity"
    translator.typed(node, op, inputs, layout)


def _operand(translator: _Translator, edge: Edge, layout: str) -> Edge:
    """What broadcasts against an image as well as it does in ONNX; a value for each channel stays a vector."""
    tensor = translator.graph.constant_of(edge)
    if layout == PLAIN or tensor is None or not tensor.shape:
        return translator.read(edge, layout)
    shape = (*(1,) * (4 - len(tensor.shape)), *tensor.shape)
    if math.prod(shape) == shape[1]:
        made = Tensor(tensor.dtype, (shape[1],), partial(_reshaped, tensor, (shape[1],)))
    else:
        made = transpose_tensor(Tensor(tensor.dtype, shape, partial(_reshaped, tensor, shape)), TO_NHWC)
    return translator.keep(f"{translator.name(edge.node)}/broadcast", made)


def _reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Array:
    return tensor.array.reshape(shape)


# Products


@_converts("Gemm")
def _convert_gemm(translator: _Translator, node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    if attrs.get("alpha", 1.0) != 1 or attrs.get("beta", 1.0) != 1:
        raise refusal(node, "it has factors alpha or beta")
    inputs = [translator.plain(node.inputs[0]), translator.plain(node.inputs[1])]
    flags: dict[str, Attr] = {
        "transpose_a": bool(attrs.get("transA", 0)),
        "transpose_b": bool(attrs.get("transB", 0)),
    }
    weights = translator.graph.constant_of(node.inputs[1])
    if flags["transpose_b"] and weights is not None:  # as TensorFlow stores them
        flags["transpose_b"] = False
        inputs[1] = translator.keep(f"{translator.name(node.name)}/weights", transpose_tensor(weights, (1, 0)))
    if not translator.given(node, 2):
        translator.typed(node, "MatMul", inputs, PLAIN, **flags)
        return
    product = translator.part(node, "product", "MatMul", inputs, **flags)
    bias = translator.plain(node.inputs[2])
    op = "BiasAdd" if translator.rank(node.inputs[2]) == 1 else "AddV2"
    translator.typed(node, op, [product, bias], PLAIN, **({"data_format": b"NHWC"} if op == "BiasAdd" else {}))


@_converts("MatMul")
def _convert_matmul(translator: _Translator, node: Node) -> None:
    inputs = [translator.plain(edge) for edge in node.inputs]
    ranks = [translator.rank(edge) for edge in node.inputs]
    if ranks == [2, 2]:
        translator.typed(node, "MatMul", inputs, PLAIN, transpose_a=False, transpose_b=False)
    elif None not in ranks and min(rank for rank in ranks if rank is not None) >= 2:
        translator.typed(node, "BatchMatMulV2", inputs, PLAIN, adj_x=False, adj_y=False)
    else:
        raise refusal(node, "it multiplies vectors, or tensors of unknown rank")


# Shapes


@_converts("Concat")
def _convert_concat(translator: _Translator, node: Node) -> None:
    rank = translator.rank(node.inputs[0])
    axis: Any = node.attrs["axis"]
    layout = NHWC if rank == 4 and any(map(translator.is_image, node.inputs)) else PLAIN
    if layout == NHWC:
        axis = TO_NHWC.index(axis % 4)
    inputs = [translator.read(edge, layout) for edge in node.inputs]
    place = translator.keep(f"{translator.name(node.name)}/axis", Tensor.of(np.int32(axis)))
    translator.typed(node, "ConcatV2", [*inputs, place], layout, N=len(inputs), Tidx=DType.INT32)


@_converts("Split")
def _convert_split(translator: _Translator, node: Node) -> None:
    edge = node.inputs[0]
    rank, axis = translator.rank(edge), node.attrs.get("axis", 0)
    layout = NHWC if rank == 4 and translator.is_image(edge) else PLAIN
    if rank is None or not isinstance(axis, int):
        raise refusal(node, "the rank of its input is not known")
    shapes = [translator.shape(Edge(node.name, port)).dims for port in range(_count(node))]
    sizes = [None if dims is None else dims[axis] for dims in shapes]
    if None in sizes:
        raise refusal(node, "the sizes of its parts are not known")
    name = translator.name(node.name)
    place = TO_NHWC.index(axis % 4) if layout == NHWC else axis % rank
    parts = translator.numbers(f"{name}/sizes", (size for size in sizes if size is not None))
    axis_edge = translator.keep(f"{name}/axis", Tensor.of(np.asarray(place, np.int32)))
    inputs = [translator.read(edge, layout), parts, axis_edge]
    made = translator.typed(node, "SplitV", inputs, layout, Tlen=DType.INT32, num_split=len(sizes))
    for port in range(1, len(sizes)):
        translator.values[Edge(node.name, port), layout] = Edge(made.node, port)
        translator.types[Edge(made.node, port)] = translator.types[made]


def _count(node: Node) -> int:
    """How many values a node makes."""
    names = node.attrs.get(onnx.OUTPUTS)
    return len(names) if isinstance(names, tuple) else 1


@_converts("Pad")
def _convert_pad(translator: _Translator, node: Node) -> None:
    edge = node.inputs[0]
    rank, pads = translator.rank(edge), translator.listed(node, "pads", 1)
    mode = node.attrs.get("mode", b"constant")
    if rank is None or pads is None or len(pads) != 2 * rank or min(pads) < 0 or translator.given(node, 3):
        raise refusal(node, "it cuts, or its axes are not all of a known rank")
    layout = NHWC if rank == 4 and translator.is_image(edge) else PLAIN
    widths = np.array(pads, np.int32).reshape(2, rank).T[list(TO_NHWC) if layout == NHWC else slice(None)]
    inputs = [translator.read(edge, layout), translator.keep(f"{translator.name(node.name)}/widths", Tensor.of(widths))]
    if mode == b"reflect":
        translator.typed(node, "MirrorPad", inputs, layout, Tpaddings=DType.INT32, mode=b"REFLECT")
        return
    if mode != b"constant":
        raise refusal(node, f"its mode is {mode!r}")
    value: Any = translator.constant(node, 2) if translator.given(node, 2) else node.attrs.get("value", 0.0)
    if value == 0:
        translator.typed(node, "Pad", inputs, layout, Tpaddings=DType.INT32)
        return
    filling = translator.keep(f"{translator.name(node.name)}/value", Tensor.of(np.float32(value)))
    translator.typed(node, "PadV2", [*inputs, filling], layout, Tpaddings=DType.INT32)


@_converts("Transpose")
def _convert_transpose(translator: _Translator, node: Node) -> None:
    edge, made = node.inputs[0], Edge(node.name)
    rank = translator.rank(edge)
    given: Any = node.attrs.get("perm") or range(rank or 0)[::-1]
    order = tuple(given)
    if order == TO_NCHW:  # what is read is the NHWC form of what is made
        translator.values[made, NHWC] = translator.plain(edge)
    elif order == TO_NHWC:
        translator.values[made, PLAIN] = translator.nhwc(edge)
    elif order:
        name = translator.name(node.name)
        translator.values[made, PLAIN] = translator.transpose(name, translator.plain(edge), order)
    else:
        raise refusal(node, "the rank of its input is not known")


@_converts("Reshape Flatten Squeeze Unsqueeze")
def _convert_reshape(translator: _Translator, node: Node) -> None:
    edge, made = node.inputs[0], translator.shape(Edge(node.name)).dims
    if made is None and node.op == "Reshape" and 0 not in (wanted := translator.constant(node, 1).reshape(-1)):
        made = tuple(None if size < 0 else int(size) for size in wanted)
    if made is None or made.count(None) > 1:
        raise refusal(node, "the shape of what it makes is not known")
    dims = translator.shape(edge).dims
    is_pixel = translator.is_image(edge) and dims is not None and dims[2:] == (1, 1)  # both layouts are one
    source = translator.nhwc(edge) if is_pixel else translator.plain(edge)
    sizes = translator.numbers(f"{translator.name(node.name)}/shape", (-1 if size is None else size for size in made))
    translator.typed(node, "Reshape", [source, sizes], PLAIN, Tshape=DType.INT32)
