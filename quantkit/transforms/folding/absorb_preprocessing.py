"""Fold preprocessing of the input into the first layers, so that the graph accepts uint8 images.

conv(s p + o, W) + b  ==  conv(p, s W) + (b + sum(o W))     without padding
conv(s p + o, W) + b  ==  conv(p + o / s, s W) + b          with zero padding in the layer
"""

from dataclasses import dataclass, replace

import numpy as np

from quantkit.errors import RecipeError, did_you_mean
from quantkit.ir.graph import Attr, Edge, Graph, Node, Use, constant
from quantkit.ir.rewrite import NewNodes, Outcome, Skip, free_name, sharing_reason
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.layers import channel_axis
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.folding._channels import scale_weights
from quantkit.transforms.registry import transform

LAYERS = find_ops(Fact.CONVOLUTION, "tensorflow")
PIXELS = DType.UINT8


@transform
def absorb_preprocessing(
    graph: Graph, *, input_name: str = "", mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> Outcome:
    """Make the input uint8, and fold its scaling and shifting into the first layers.

    A uint8 image has a quarter of the bytes, the calling program does not depend on mean and
    standard deviation, and int8 runtimes use the image without a conversion. The input keeps its
    name and shape; its values are integers from 0 to 255.

    Before:  x float -> Sub(mean) -> Mul(1 / std) -> Conv2D(weights) -> BiasAdd(bias)
    After:   x uint8 -> Cast -> Conv2D(weights / std) -> BiasAdd(bias - mean / std weights)

    Options:
        input_name: image input (default: the only input of four dimensions).
        mean: value that callers subtract from the pixels today: one number, or one per channel if
            the option is repeated.
        std: value by which callers divide the pixels after that.

    The scale is always folded into the weights. The offset is folded into the bias only if the
    layer does not pad: zero padding stands for preprocessed zeros, not for black pixels. Before a
    layer that pads, one Sub remains.

    Skips if there is no preprocessing, neither in the graph nor as mean and std, and if mean and
    std are given but the input is uint8 already or has another number of channels. If a consumer of
    the preprocessed image is not a convolution with constant weights, the arithmetic stays in
    separate nodes.

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
        return Outcome(graph, skips=(Skip("the node is a graph output", source.name),))
    is_uint8 = source.attrs.get("dtype") is PIXELS
    if is_uint8 and (mean or std):
        return Outcome(graph, skips=(Skip("the input is uint8 already: mean and std need a float input", source.name),))
    chain = _Chain.of(graph, source)
    affine = _affine_of_options(mean, std)
    if affine is None and not chain.num_steps:
        hint = "" if is_uint8 else ": give mean and std"
        return Outcome(graph, skips=(Skip(f"no preprocessing after the input{hint}", source.name),))
    mismatch = _explain_mismatch(graph, source, affine)
    if mismatch:
        return Outcome(graph, skips=(Skip(mismatch, source.name),))
    return _fold_into_layers(
        graph, source, replace(chain, affine=chain.affine.after(affine)) if affine else chain, affine
    )


@dataclass(frozen=True)
class _Affine:
    """Map ``scale p + offset``; both float64, () or (c,)."""

    scale: Array
    offset: Array

    def after(self, first: "_Affine") -> "_Affine":
        return _Affine(self.scale * first.scale, self.scale * first.offset + self.offset)


_IDENTITY = _Affine(np.array(1.0), np.array(0.0))


def _affine_of_options(mean: tuple[float, ...], std: tuple[float, ...]) -> _Affine | None:
    """Return ``(p - mean) / std``; None without options.

    Raises:
        RecipeError: a standard deviation is zero, or the numbers of channels differ.
    """
    if not mean and not std:
        return None
    if 0 in std or (len(mean) > 1 and len(std) > 1 and len(mean) != len(std)):
        raise RecipeError(
            f"absorb_preprocessing: mean {mean} and std {std} do not fit",
            hint="give each option once, or once per channel; std must not be 0",
        )
    shift, divisor = (np.squeeze(np.array(values, np.float64)) for values in (mean or (0,), std or (1,)))
    return _Affine(1 / divisor, -shift / divisor)


def _explain_mismatch(graph: Graph, source: Node, affine: _Affine | None) -> str:
    """Return the reason why the options do not fit the last dimension; empty if they fit."""
    count = 1 if affine is None else max(affine.scale.size, affine.offset.size)
    dims = getattr(source.attrs.get("shape"), "dims", None)
    if count == 1:
        return ""
    if dims is not None and dims[-1] not in (None, count):
        return f"mean and std have {count} channels, but the last dimension of the input is {dims[-1]}"
    first = next((use.node.name for use in graph.node_uses.get(source.name, ()) if _is_channels_first(use.node)), "")
    return f"{first} has the data_format NCHW: give one mean and one std" if first else ""


def _is_channels_first(node: Node) -> bool:
    return node.op in LAYERS and channel_axis(node, 4) == 1


def _source(graph: Graph, name: str) -> Node | Skip:
    """Return the placeholder of the images.

    Raises:
        RecipeError: the graph has no such input.
    """
    if name and name not in graph.input_names:
        raise RecipeError(
            f"absorb_preprocessing: {name!r} is not an input of the graph",
            hint=did_you_mean(name, graph.input_names) or f"inputs: {', '.join(sorted(graph.input_names))}",
        )
    if name and not _is_image_input(graph[name]):
        return Skip(f"{graph[name].op} is not a Placeholder of float or uint8 images", name)
    names = [name] if name else dict.fromkeys(edge.node for edge in graph.inputs)
    sources = [graph[source] for source in names if _is_image_input(graph[source])]
    if len(sources) == 1:
        return sources[0]
    return Skip(f"{len(sources)} inputs may be images: choose with input_name" if sources else "no image input")


def _is_image_input(node: Node) -> bool:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    has_image_type = dtype in (DType.FLOAT, DType.HALF, DType.BFLOAT16, PIXELS)
    return node.op == "Placeholder" and has_image_type and getattr(shape, "rank", None) in (None, 4)


@dataclass(frozen=True)
class _Chain:
    """Chain of elementwise nodes that preprocess an image.

    Attributes:
        affine: map of the whole chain.
        nodes: nodes of the chain in order, including Cast and Identity.
        num_steps: number of nodes with arithmetic.
        dtype: element type of the result.
    """

    affine: _Affine
    nodes: tuple[Node, ...]
    num_steps: int
    dtype: DType

    @classmethod
    def of(cls, graph: Graph, source: Node) -> "_Chain":
        """Return the longest chain of arithmetic with constants and without other consumers."""
        dtype = source.attrs["dtype"]
        chain = cls(_IDENTITY, (), 0, dtype if isinstance(dtype, DType) else DType.FLOAT)
        while True:
            last = chain.nodes[-1] if chain.nodes else source
            uses = graph.node_uses.get(last.name, ())
            if len(uses) != 1 or uses[0].slot < 0 or (chain.nodes and last.name in graph.endpoint_names):
                return chain
            longer = chain._append(graph, uses[0].node, uses[0].slot)
            if longer is None or uses[0].node.name in graph.endpoint_names:
                return chain
            chain = longer

    def _append(self, graph: Graph, node: Node, slot: int) -> "_Chain | None":
        """Return the chain with another node; None if the node is not such arithmetic."""
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
        step = _affine_of_node(node, slot, graph.constant_of(node.inputs[1 - slot]))
        if step is None or node.inputs[1 - slot].node in graph.input_names:
            return None
        return _Chain(step.after(self.affine), nodes, self.num_steps + 1, self.dtype)


def _affine_of_node(node: Node, slot: int, value: Tensor | None) -> _Affine | None:
    """Return a node's map of its input ``slot``; None without a constant per channel."""
    if value is None or len(value.shape) > 4 or any(size != 1 for size in value.shape[:-1]):
        return None
    identity, zero = _IDENTITY.scale, _IDENTITY.offset
    operand = np.squeeze(value.array.astype(np.float64))
    if not np.isfinite(operand).all():
        return None
    if node.op in ("Add", "AddV2"):
        return _Affine(identity, operand)
    if node.op == "Mul":
        return _Affine(operand, zero)
    if node.op == "Sub":
        return _Affine(identity, -operand) if slot == 0 else _Affine(-identity, operand)
    return _Affine(1 / operand, zero) if node.op in ("Div", "RealDiv") and slot == 0 and operand.all() else None


def _fold_into_layers(graph: Graph, source: Node, chain: _Chain, options: _Affine | None) -> Outcome:
    """Fold the chain into its consumers, or keep it if a consumer is not a suitable layer."""
    affine = chain.affine
    uses = graph.node_uses.get(chain.nodes[-1].name if chain.nodes else source.name, ())
    skips = tuple(
        Skip(reason, use.node.name) for use in uses if (reason := _reason_to_stay(graph, use, affine, chain.dtype))
    )
    if skips or not uses:
        return _keep_arithmetic(graph, source, options, skips)
    shift = affine.offset / affine.scale
    padding = next((use.node.name for use in uses if _pads(use.node)), "")
    is_split = bool(padding and shift.any())
    if is_split and source.attrs.get("dtype") is PIXELS and chain.num_steps == 1 and (affine.scale == 1).all():
        reason = f"zero padding: the Sub after {source.name} cannot be folded"
        return Outcome(graph, skips=(Skip(reason, padding),))
    edits = _Edits(graph)
    edits.remove(*chain.nodes)
    pixels, cast = _cast(graph, source, chain.dtype)
    front = [pixels, cast]
    if is_split:
        front += _subtract(graph, source, cast, -shift, chain.dtype)
    edits.replacements[source.name] = front
    rest = replace(affine, offset=_IDENTITY.offset) if is_split else affine
    for use in uses:
        _fold_into_layer(edits, use.node, front[-1], rest)
    line = f"{source.name}: uint8 input, preprocessing folded into {', '.join(use.node.name for use in uses)}"
    if is_split:
        line += f", except a Sub, because {padding} pads with zeros"
    return Outcome(edits.graph(), (line,))


def _keep_arithmetic(graph: Graph, source: Node, options: _Affine | None, skips: tuple[Skip, ...]) -> Outcome:
    """Make the input uint8, and keep the arithmetic in separate nodes."""
    dtype = source.attrs["dtype"]
    if dtype is PIXELS or not isinstance(dtype, DType):
        return Outcome(graph, skips=skips)
    edits = _Edits(graph)
    pixels, cast = _cast(graph, source, dtype)
    front = [pixels, cast]
    if options:
        front += _scale_and_shift(graph, source, cast, options, dtype)
    edits.replacements[source.name] = front
    for use in graph.node_uses.get(source.name, ()):
        if use.slot >= 0:
            edits.change(edits.current(use.node.name).with_input(use.slot, Edge(front[-1].name)))
    return Outcome(edits.graph(), (f"{source.name}: uint8 input, preprocessing in separate nodes",), skips)


def _reason_to_stay(graph: Graph, use: Use, affine: _Affine, dtype: DType) -> str:
    layer = use.node
    if use.slot < 0:
        return "the node has a control dependency on the preprocessing"
    if layer.op not in LAYERS or use.slot != 0:
        return f"{layer.op} is not a convolution of the image: preprocessing stays"
    weights = graph.constant_of(layer.inputs[1])
    if weights is None or layer.inputs[1].node in graph.input_names or layer.name in graph.input_names:
        return f"weights {layer.inputs[1]} are not constant"
    if len(weights.shape) != 4 or weights.dtype is not dtype:
        return f"weights {layer.inputs[1]} do not have four dimensions of type {dtype.value}"
    channels = max(affine.scale.size, affine.offset.size)
    if channels > 1 and (channel_axis(layer, 4) != 3 or weights.shape[2] != channels):
        return f"preprocessing has {channels} channels, which do not match the input channels"
    return "" if affine.scale.all() else "a factor is zero"


def _pads(layer: Node) -> bool:
    """Return True if a layer may pad: SAME counts even for a 1x1 kernel."""
    padding = attribute(layer, "padding")
    return padding == b"SAME" or (padding == b"EXPLICIT" and any(attribute(layer, "explicit_paddings")))


def _cast(graph: Graph, source: Node, dtype: DType) -> tuple[Node, Node]:
    """Return the uint8 placeholder, and its Cast to float."""
    attrs: dict[str, Attr] = {"SrcT": PIXELS, "DstT": dtype}
    cast = Node(free_name(graph, f"{source.name}/float"), "Cast", (Edge(source.name),), attrs=attrs)
    return source.with_attrs(dtype=PIXELS, _output_shapes=None), cast.with_(device=source.device)


def _subtract(graph: Graph, source: Node, before: Node, values: Array, dtype: DType) -> list[Node]:
    nodes = NewNodes(graph, source.name)
    mean = nodes.constant("mean", Tensor.of(values.astype(dtype.numpy), dtype))
    nodes.add("centered", "Sub", Edge(before.name), mean, T=dtype)
    return nodes


def _scale_and_shift(graph: Graph, source: Node, before: Node, affine: _Affine, dtype: DType) -> list[Node]:
    nodes, edge = NewNodes(graph, source.name), Edge(before.name)
    steps = (("Mul", "scale", "scaled", affine.scale), ("Add", "offset", "prepared", affine.offset))
    for op, operand, result, values in steps:
        edge = nodes.add(result, op, edge, nodes.constant(operand, Tensor.of(np.float32(values), dtype)), T=dtype)
    return nodes


class _Edits:
    """Changed, added and removed nodes of one graph, without the constants that become unused.

    Attributes:
        before: original graph.
        replacements: new nodes by the name of the node that they replace.
    """

    def __init__(self, graph: Graph) -> None:
        self.before = graph
        self.replacements: dict[str, list[Node]] = {}
        self._old_inputs: set[str] = set()

    def current(self, name: str) -> Node:
        return self.replacements.get(name, [self.before[name]])[-1]

    def change(self, *nodes: Node) -> None:
        """Replace the node that has the name of the last of the new nodes."""
        name = nodes[-1].name
        self._old_inputs.update(edge.node for edge in self.before[name].inputs)
        self.replacements[name] = list(nodes)

    def remove(self, *nodes: Node) -> None:
        for node in nodes:
            self._old_inputs.update(edge.node for edge in node.inputs)
            self.replacements[node.name] = []

    def change_constant(self, consumer: Node, slot: int, value: Tensor) -> Node:
        """Change a constant, or copy it if it has other consumers, and return the consumer."""
        old = self.before[consumer.inputs[slot].node]
        if not sharing_reason(self.before, old, consumer):
            self.replacements[old.name] = [old.with_attrs(value=value, _output_shapes=None)]
            return consumer
        new = constant(free_name(self.before, f"{consumer.name}/{old.name.rpartition('/')[2]}_of_pixels"), value)
        self.replacements.setdefault(old.name, [old]).insert(0, new)
        return consumer.with_input(slot, Edge(new.name))

    def graph(self) -> Graph:
        nodes = [new for name, node in self.before.nodes.items() for new in self.replacements.get(name, (node,))]
        after = self.before.with_nodes(nodes)
        constants = {name for name in self._old_inputs if name in after and after[name].is_constant}
        unused = constants - after.node_uses.keys() - after.endpoint_names
        return after.with_nodes(node for node in nodes if node.name not in unused)


def _fold_into_layer(edits: _Edits, layer: Node, front: Node, affine: _Affine) -> None:
    """Connect a layer to ``front``, scale its weights, and shift its bias."""
    graph = edits.before
    weights = graph[layer.inputs[1].node].value
    shape = (1, 1, -1, 1)
    changed = edits.change_constant(layer, 1, scale_weights(weights, affine.scale.reshape(shape)))
    changed = changed.with_input(0, Edge(front.name))
    if not affine.offset.any():
        edits.change(changed)
        return
    sums = (weights.array.astype(np.float64) * affine.offset.reshape(shape)).sum((0, 1))
    shift = sums.sum(0) if layer.op == "Conv2D" else sums.reshape(-1)
    bias = _find_bias(graph, layer)
    if bias is not None:
        edits.change(changed)
        old = graph[bias.inputs[1].node].value
        new = Tensor.of((old.array + shift).astype(old.dtype.numpy), old.dtype)
        edits.change(edits.change_constant(bias, 1, new))
        return
    summand = constant(
        free_name(graph, f"{layer.name}/bias_of_pixels"), shift.astype(weights.dtype.numpy), weights.dtype
    )
    changed = changed.with_(name=free_name(graph, f"{layer.name}/of_pixels"))
    attrs: dict[str, Attr] = {"T": weights.dtype, "data_format": attribute(layer, "data_format")}
    inputs = (Edge(changed.name), Edge(summand.name))
    edits.change(changed, summand, Node(layer.name, "BiasAdd", inputs, attrs=attrs, device=layer.device))


def _find_bias(graph: Graph, layer: Node) -> Node | None:
    """Return the only consumer of a layer if it is a BiasAdd of a constant, else None."""
    uses = graph.node_uses.get(layer.name, ())
    if layer.name in graph.endpoint_names or len(uses) != 1 or uses[0].node.op != "BiasAdd" or uses[0].slot != 0:
        return None
    bias = uses[0].node
    is_constant = graph.constant_of(bias.inputs[1]) is not None and bias.inputs[1].node not in graph.input_names
    return bias if is_constant and channel_axis(bias, 4) == channel_axis(layer, 4) else None
