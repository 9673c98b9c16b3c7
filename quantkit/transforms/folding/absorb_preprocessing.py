"""Take pixels as they are: the arithmetic that prepares them goes into the first layers.

conv(s p + o, W) + b  ==  conv(p, s W) + (b + sum(o W))     where nothing is padded
conv(s p + o, W) + b  ==  conv(p + o / s, s W) + b          where zeros are padded behind the preparation
"""

from dataclasses import dataclass, replace

import numpy as np

from quantkit.errors import RecipeError, did_you_mean
from quantkit.ir.graph import Attr, Edge, Graph, Node, Use, constant
from quantkit.ir.rewrite import Outcome, Skip, free_name, sharing_reason
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.layers import channel_axis
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.folding._channels import scaled
from quantkit.transforms.registry import transform

LAYERS = ("Conv2D", "DepthwiseConv2dNative")
PIXELS = DType.UINT8


@transform
def absorb_preprocessing(
    graph: Graph, *, input_name: str = "", mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> Outcome:
    """Let the graph take uint8 pixels, and fold what scales and shifts them into the first layers.

    Pixels are a quarter of the bytes to hand over, nobody has to remember mean and deviation, and eight-bit engines
    read them without a conversion. The input keeps its name and shape; it takes integers from 0 to 255.

    Before:  x float -> Sub(mean) -> Mul(1 / std) -> Conv2D(weights) -> BiasAdd(bias)
    After:   x uint8 -> Cast -> Conv2D(weights / std) -> BiasAdd(bias - mean / std weights)

    Options:
        input_name: the input that takes pixels (the only one of four dimensions).
        mean: what is subtracted from pixels before they are fed to the graph as it is now: one number, or one for
            each channel by repeating the option.
        std: what they are divided by then.

    The factor always goes into weights; the summand only into a bias of layers that pad nothing, because a border
    is padded with prepared zeros, not with black pixels: before layers that do, one Sub stays.

    Skips when there is no preparation, neither in the graph nor as mean and std, and when mean and std are given
    but the input takes integers already or has other channels. Where something else than a convolution with
    constant weights reads the prepared pixels, the arithmetic stays in nodes of its own.

    Example:
        absorb_preprocessing
        inputs: x
        outputs: y
        x = Placeholder[1x4x4x1]()
        mean = Const(128.0)
        scale = Const(0.5)
        w = Const([[[[1.0, 2.0]]], [[[3.0, -1.0]]]])
        b = Const([0.5, 1.0])
        centered = Sub(x, mean)
        prepared = Mul(centered, scale)
        conv = Conv2D(prepared, w, padding=VALID, strides=[1, 1, 1, 1])
        y = BiasAdd(conv, b)
    """
    source = _source(graph, input_name)
    if isinstance(source, Skip):
        return Outcome(graph, skips=(source,))
    if source.name in graph.output_names:
        return Outcome(graph, skips=(Skip("it is an output of the graph", source.name),))
    takes_pixels = source.attrs.get("dtype") is PIXELS
    if takes_pixels and (mean or std):
        return Outcome(graph, skips=(Skip("it takes uint8 already: mean and std are for floats", source.name),))
    chain = _Chain.of(graph, source)
    given = _affine_of_options(mean, std)
    if given is None and not chain.num_steps:
        hint = "" if takes_pixels else ": give mean and std"
        return Outcome(graph, skips=(Skip(f"nothing behind it looks like preprocessing{hint}", source.name),))
    mismatch = _mismatch(graph, source, given)
    if mismatch:
        return Outcome(graph, skips=(Skip(mismatch, source.name),))
    return _absorbed(graph, source, replace(chain, affine=chain.affine.after(given)) if given else chain, given)


@dataclass(frozen=True)
class _Affine:
    """``scale p + offset``, float64, () or (c,)."""

    scale: Array
    offset: Array

    def after(self, first: "_Affine") -> "_Affine":
        return _Affine(self.scale * first.scale, self.scale * first.offset + self.offset)


_NOTHING = _Affine(np.array(1.0), np.array(0.0))


def _affine_of_options(mean: tuple[float, ...], std: tuple[float, ...]) -> _Affine | None:
    """``(p - mean) / std``.

    Raises:
        RecipeError: a deviation is zero, or there are several numbers but not equally many.
    """
    if not mean and not std:
        return None
    if 0 in std or (len(mean) > 1 and len(std) > 1 and len(mean) != len(std)):
        raise RecipeError(
            f"absorb_preprocessing: mean {mean} and std {std} do not fit",
            hint="give each once, or once for each channel; no std is 0",
        )
    shift, width = (np.squeeze(np.array(one or (nothing,), np.float64)) for one, nothing in ((mean, 0), (std, 1)))
    return _Affine(1 / width, -shift / width)


def _mismatch(graph: Graph, source: Node, given: _Affine | None) -> str:
    """Why numbers per channel, which are the last dimension of pixels, do not fit the input; empty: they do."""
    count = 1 if given is None else max(given.scale.size, given.offset.size)
    dims = getattr(source.attrs.get("shape"), "dims", None)
    if count == 1:
        return ""
    if dims is not None and dims[-1] not in (None, count):
        return f"mean and std are of {count} channels, its last dimension is {dims[-1]}"
    first = next((use.node.name for use in graph.node_uses.get(source.name, ()) if _is_channels_first(use.node)), "")
    return f"{first} reads channels first: give one mean and one std" if first else ""


def _is_channels_first(node: Node) -> bool:
    return node.op in LAYERS and channel_axis(node, 4) == 1


def _source(graph: Graph, name: str) -> Node | Skip:
    """The placeholder of the pixels.

    Raises:
        RecipeError: the graph has no such input.
    """
    if name and name not in graph.input_names:
        raise RecipeError(
            f"absorb_preprocessing: {name!r} is not an input of the graph",
            hint=did_you_mean(name, graph.input_names) or f"its inputs are {', '.join(sorted(graph.input_names))}",
        )
    found = [graph[one] for one in dict.fromkeys(edge.node for edge in graph.inputs) if not name or one == name]
    fitting = [node for node in found if _takes_pictures(node)]
    if len(fitting) == 1:
        return fitting[0]
    if name:
        return Skip(f"it is no Placeholder of float or uint8 pictures, but {found[0].op}", name)
    return Skip(
        f"{len(fitting)} inputs take pictures: name one with input_name" if fitting else "no input takes pictures"
    )


def _takes_pictures(node: Node) -> bool:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    has_kind = dtype in (DType.FLOAT, DType.HALF, DType.BFLOAT16, PIXELS)
    return node.op == "Placeholder" and has_kind and getattr(shape, "rank", None) in (None, 4)


@dataclass(frozen=True)
class _Chain:
    """What is done to the pixels, place by place.

    Attributes:
        affine: all of it.
        nodes: that do it, in order, and casts and identities between.
        num_steps: how many of them compute.
        dtype: element type at the end.
    """

    affine: _Affine
    nodes: tuple[Node, ...]
    num_steps: int
    dtype: DType

    @classmethod
    def of(cls, graph: Graph, source: Node) -> "_Chain":
        """The longest chain of arithmetic with constants; each node is the only reader of the one before."""
        dtype = source.attrs["dtype"]
        chain = cls(_NOTHING, (), 0, dtype if isinstance(dtype, DType) else DType.FLOAT)
        while True:
            last = chain.nodes[-1] if chain.nodes else source
            uses = graph.node_uses.get(last.name, ())
            if len(uses) != 1 or uses[0].slot < 0 or (chain.nodes and last.name in graph.endpoint_names):
                return chain
            longer = chain._with(graph, uses[0].node, uses[0].slot)
            if longer is None or uses[0].node.name in graph.endpoint_names:
                return chain
            chain = longer

    def _with(self, graph: Graph, node: Node, slot: int) -> "_Chain | None":
        """The chain with a node more; None: that ends it."""
        nodes = (*self.nodes, node)
        if node.controls:
            return None
        if node.op == "Identity":
            return replace(self, nodes=nodes)
        if node.op == "Cast":
            dtype = node.attrs.get("DstT")
            return replace(self, nodes=nodes, dtype=dtype) if isinstance(dtype, DType) and dtype.is_float else None
        if not self.dtype.is_float or len(node.inputs) != 2:
            return None
        step = _step(node, slot, graph.constant_of(node.inputs[1 - slot]))
        if step is None or node.inputs[1 - slot].node in graph.input_names:
            return None
        return _Chain(step.after(self.affine), nodes, self.num_steps + 1, self.dtype)


def _step(node: Node, slot: int, value: Tensor | None) -> _Affine | None:
    """What a node does to its input in a slot; None: no arithmetic with one constant per channel."""
    if value is None or len(value.shape) > 4 or any(size != 1 for size in value.shape[:-1]):
        return None
    one, nothing = _NOTHING.scale, _NOTHING.offset
    number = np.squeeze(value.array.astype(np.float64))
    if not np.isfinite(number).all():
        return None
    if node.op in ("Add", "AddV2"):
        return _Affine(one, number)
    if node.op == "Mul":
        return _Affine(number, nothing)
    if node.op == "Sub":
        return _Affine(one, -number) if slot == 0 else _Affine(-one, number)
    return _Affine(1 / number, nothing) if node.op in ("Div", "RealDiv") and slot == 0 and number.all() else None


def _absorbed(graph: Graph, source: Node, chain: _Chain, given: _Affine | None) -> Outcome:
    """The graph with as much as possible in the layers that read the end of the chain."""
    affine = chain.affine
    uses = graph.node_uses.get(chain.nodes[-1].name if chain.nodes else source.name, ())
    skips = tuple(
        Skip(reason, use.node.name) for use in uses if (reason := _reason_to_stay(graph, use, affine, chain.dtype))
    )
    if skips or not uses:
        return _kept(graph, source, given, skips)
    shift = affine.offset / affine.scale
    padding = next((use.node.name for use in uses if _pads(use.node)), "")
    is_split = bool(padding and shift.any())
    if is_split and source.attrs.get("dtype") is PIXELS and chain.num_steps == 1 and (affine.scale == 1).all():
        reason = f"it pads zeros, so what is subtracted behind {source.name} stays in front of it"
        return Outcome(graph, skips=(Skip(reason, padding),))
    edits = _Edits(graph)
    edits.remove(*chain.nodes)
    pixels, cast = _cast(graph, source, chain.dtype)
    front = [pixels, cast]
    if is_split:
        front += _subtracted(graph, source, cast, -shift, chain.dtype)
    edits.places[source.name] = front
    rest = replace(affine, offset=_NOTHING.offset) if is_split else affine
    for use in uses:
        _fold(edits, use.node, front[-1], rest)
    line = f"{source.name}: takes uint8 pixels; what prepared them is in {', '.join(use.node.name for use in uses)}"
    if is_split:
        line += f", but for a Sub, because {padding} pads zeros"
    return Outcome(edits.graph(), (line,))


def _kept(graph: Graph, source: Node, given: _Affine | None, skips: tuple[Skip, ...]) -> Outcome:
    """The graph with pixels at its input, and the arithmetic in nodes of its own."""
    dtype = source.attrs["dtype"]
    if dtype is PIXELS or not isinstance(dtype, DType):
        return Outcome(graph, skips=skips)
    edits = _Edits(graph)
    pixels, cast = _cast(graph, source, dtype)
    front = [pixels, cast]
    if given:
        front += _scaled_and_shifted(graph, source, cast, given, dtype)
    edits.places[source.name] = front
    for use in graph.node_uses.get(source.name, ()):
        if use.slot >= 0:
            edits.change(edits.current(use.node.name).with_input(use.slot, Edge(front[-1].name)))
    return Outcome(edits.graph(), (f"{source.name}: takes uint8 pixels; nodes behind it prepare them",), skips)


def _reason_to_stay(graph: Graph, use: Use, affine: _Affine, dtype: DType) -> str:
    layer = use.node
    if use.slot < 0:
        return "it waits for what prepares the pixels"
    if layer.op not in LAYERS or use.slot != 0:
        return f"it is {layer.op}, no convolution of the pixels: what prepares them stays"
    weights = graph.constant_of(layer.inputs[1])
    if weights is None or layer.inputs[1].node in graph.input_names or layer.name in graph.input_names:
        return f"its weights {layer.inputs[1]} are not constant"
    if len(weights.shape) != 4 or weights.dtype is not dtype:
        return f"its weights {layer.inputs[1]} are not of its type"
    channels = max(affine.scale.size, affine.offset.size)
    if channels > 1 and (channel_axis(layer, 4) != 3 or weights.shape[2] != channels):
        return f"there are {channels} factors, which are not those of its channels"
    return "" if affine.scale.all() else "a factor is zero"


def _pads(layer: Node) -> bool:
    """Whether zeros may be around what it reads; a 1x1 kernel would need none, but then it is no first layer."""
    padding = attribute(layer, "padding")
    return padding == b"SAME" or (padding == b"EXPLICIT" and any(attribute(layer, "explicit_paddings")))


def _cast(graph: Graph, source: Node, dtype: DType) -> tuple[Node, Node]:
    """The placeholder of pixels, and the floats that they are."""
    attrs: dict[str, Attr] = {"SrcT": PIXELS, "DstT": dtype}
    cast = Node(free_name(graph, f"{source.name}/float"), "Cast", (Edge(source.name),), attrs=attrs)
    return source.with_attrs(dtype=PIXELS, _output_shapes=None), cast.with_(device=source.device)


def _subtracted(graph: Graph, source: Node, before: Node, values: Array, dtype: DType) -> list[Node]:
    mean = constant(free_name(graph, f"{source.name}/mean"), values.astype(dtype.numpy), dtype)
    inputs = (Edge(before.name), Edge(mean.name))
    return [mean, Node(free_name(graph, f"{source.name}/centered"), "Sub", inputs, attrs={"T": dtype})]


def _scaled_and_shifted(graph: Graph, source: Node, before: Node, affine: _Affine, dtype: DType) -> list[Node]:
    nodes: list[Node] = []
    for op, word, values in (("Mul", "scale", affine.scale), ("Add", "offset", affine.offset)):
        operand = constant(free_name(graph, f"{source.name}/{word}"), np.float32(values), dtype)
        name = free_name(graph, f"{source.name}/{word}d" if op == "Mul" else f"{source.name}/prepared")
        nodes += [operand, Node(name, op, (Edge(before.name), Edge(operand.name)), attrs={"T": dtype})]
        before = nodes[-1]
    return nodes


class _Edits:
    """Changed, added and removed nodes of one graph; constants that nobody reads any more go, too."""

    def __init__(self, graph: Graph) -> None:
        self.before = graph
        self.places: dict[str, list[Node]] = {}
        self._left: set[str] = set()

    def current(self, name: str) -> Node:
        return self.places.get(name, [self.before[name]])[-1]

    def change(self, *nodes: Node) -> None:
        """Put nodes in the place of the one that has the name of the last."""
        name = nodes[-1].name
        self._left.update(edge.node for edge in self.before[name].inputs)
        self.places[name] = list(nodes)

    def remove(self, *nodes: Node) -> None:
        for node in nodes:
            self._left.update(edge.node for edge in node.inputs)
            self.places[node.name] = []

    def change_constant(self, reader: Node, slot: int, value: Tensor) -> Node:
        """The reader of a changed constant, which is another one where other nodes read the old."""
        old = self.before[reader.inputs[slot].node]
        if not sharing_reason(self.before, old, reader):
            self.places[old.name] = [old.with_attrs(value=value, _output_shapes=None)]
            return reader
        new = constant(free_name(self.before, f"{reader.name}/{old.name.rpartition('/')[2]}_of_pixels"), value)
        self.places.setdefault(old.name, [old]).insert(0, new)
        return reader.with_input(slot, Edge(new.name))

    def graph(self) -> Graph:
        nodes = [made for name, node in self.before.nodes.items() for made in self.places.get(name, (node,))]
        made = self.before.with_nodes(nodes)
        unread = {name for name in self._left if name in made and made[name].is_constant} - made.node_uses.keys()
        return made.with_nodes(node for node in nodes if node.name not in unread - made.endpoint_names)


def _fold(edits: _Edits, layer: Node, front: Node, affine: _Affine) -> None:
    """Scale the weights of a layer that reads ``front``, and shift the bias behind it."""
    graph = edits.before
    weights = graph[layer.inputs[1].node].value
    shape = (1, 1, -1, 1)
    changed = edits.change_constant(layer, 1, scaled(weights, affine.scale.reshape(shape)))
    changed = changed.with_input(0, Edge(front.name))
    if not affine.offset.any():
        edits.change(changed)
        return
    sums = (weights.array.astype(np.float64) * affine.offset.reshape(shape)).sum((0, 1))
    shift = sums.sum(0) if layer.op == "Conv2D" else sums.reshape(-1)
    bias = _bias_behind(graph, layer)
    if bias is not None:
        edits.change(changed)
        values = graph[bias.inputs[1].node].value
        made = Tensor.of((values.array + shift).astype(values.dtype.numpy), values.dtype)
        edits.change(edits.change_constant(bias, 1, made))
        return
    summand = constant(
        free_name(graph, f"{layer.name}/bias_of_pixels"), shift.astype(weights.dtype.numpy), weights.dtype
    )
    changed = changed.with_(name=free_name(graph, f"{layer.name}/of_pixels"))
    attrs: dict[str, Attr] = {"T": weights.dtype, "data_format": attribute(layer, "data_format")}
    inputs = (Edge(changed.name), Edge(summand.name))
    edits.change(changed, summand, Node(layer.name, "BiasAdd", inputs, attrs=attrs, device=layer.device))


def _bias_behind(graph: Graph, layer: Node) -> Node | None:
    """The BiasAdd of a constant that alone reads a layer."""
    uses = graph.node_uses.get(layer.name, ())
    if layer.name in graph.endpoint_names or len(uses) != 1 or uses[0].node.op != "BiasAdd" or uses[0].slot != 0:
        return None
    bias = uses[0].node
    is_constant = graph.constant_of(bias.inputs[1]) is not None and bias.inputs[1].node not in graph.input_names
    return bias if is_constant and channel_axis(bias, 4) == channel_axis(layer, 4) else None
