"""Ops that can work on images in either order of dimensions: how each says what it says of a dimension."""

from collections.abc import Callable
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Node, constant
from quantkit.ir.tensor import Array, DType
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.layout._layouts import Handler, Turned, Turning

HANDLERS: dict[str, Handler] = {}


def _handles(ops: str) -> Callable[[Handler], Handler]:
    """Register a handler for ops, separated by spaces."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(ops.split(), handler))
        return handler

    return register


# Ops with a data format


@_handles("Conv2D DepthwiseConv2dNative MaxPool AvgPool BiasAdd FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def _formatted(turning: Turning, node: Node) -> Turned | str:
    layout = attribute(node, "data_format").decode(errors="replace")
    if layout != turning.source:
        return "" if layout == turning.to else f"its data format is {layout}"
    if node.op == "BiasAdd" and not turning.is_image(node.inputs[0]):
        return "" if turning.dims(node.inputs[0]) else "it is not known to work on images"
    return Turned(_in_format(turning, node).with_input(0, turning.turn(node.inputs[0])))


@_handles("Conv2DBackpropInput")
def _transposed(turning: Turning, node: Node) -> Turned | str:
    layout = attribute(node, "data_format").decode(errors="replace")
    sizes = turning.constant(node.inputs[0])
    if layout != turning.source:
        return "" if layout == turning.to else f"its data format is {layout}"
    if sizes is None or sizes.shape != (4,):
        return "the size of its result is computed"
    wanted = turning.beside(node, "sizes", np.array(turning.permuted(sizes.array), sizes.dtype.numpy), node.inputs[0])
    made = _in_format(turning, node).with_input(0, wanted.name).with_input(2, turning.turn(node.inputs[2]))
    return Turned(made, others=(wanted,))


def _in_format(turning: Turning, node: Node) -> Node:
    """The node with all that it says of each dimension in the turned order."""
    changes: dict[str, Any] = {"data_format": turning.to.encode()}
    for name in ("strides", "dilations", "ksize"):
        values = node.attrs.get(name)
        if isinstance(values, tuple) and len(values) == 4:
            changes[name] = turning.permuted(values)
    padding = node.attrs.get("explicit_paddings")
    if isinstance(padding, tuple) and len(padding) == 8:
        pairs = turning.permuted(zip(padding[::2], padding[1::2], strict=True))
        changes["explicit_paddings"] = tuple(width for pair in pairs for width in pair)
    return node.with_attrs(**changes)


# Element by element


@_handles(
    "Identity StopGradient PreventGradient CheckNumerics Snapshot Abs Ceil Elu Erf Exp Floor LeakyRelu Log LogicalNot "
    "Neg Reciprocal Relu Relu6 Round Rsqrt Selu Sigmoid Sign Softplus Softsign Sqrt Square Tanh Cast "
    "FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars"
)
def _of_one(turning: Turning, node: Node) -> Turned | str:
    edge = node.inputs[0]
    return Turned(node.with_input(0, turning.turn(edge))) if turning.at_hand(edge) else ""


@_handles(
    "Add AddV2 AddN Sub Mul Div RealDiv Maximum Minimum Pow SquaredDifference Greater GreaterEqual Less LessEqual "
    "LogicalAnd LogicalOr"
)
def _of_several(turning: Turning, node: Node) -> Turned | str:
    if not any(map(turning.at_hand, node.inputs)):
        return ""
    for edge in node.inputs:
        dims = turning.dims(edge)
        if dims is None or len(dims) > 4 or (turning.constant(edge) is None and len(dims) not in (0, 4)):
            return f"{edge} is not known to have four dimensions, and could not be turned"
    reads = tuple(edge if turning.dims(edge) == () else turning.turn(edge) for edge in node.inputs)
    return Turned(node.with_(inputs=reads))


# Along dimensions


@_handles("Concat ConcatV2")
def _concat(turning: Turning, node: Node) -> Turned | str:
    slot = len(node.inputs) - 1 if node.op == "ConcatV2" else 0
    edges = [edge for place, edge in enumerate(node.inputs) if place != slot]
    axis = turning.constant(node.inputs[slot])
    if not any(map(turning.at_hand, edges)):
        return ""
    if axis is None or axis.num_elements != 1 or not all(map(turning.is_image, edges)):
        return "its axis, or the number of dimensions of what it joins, is not known"
    made = turning.beside(node, "axis", np.array(turning.axis(axis.array.item()), axis.dtype.numpy), node.inputs[slot])
    reads = tuple(Edge(made.name) if place == slot else turning.turn(edge) for place, edge in enumerate(node.inputs))
    return Turned(node.with_(inputs=reads), others=(made,))


@_handles("Split SplitV")
def _split(turning: Turning, node: Node) -> Turned | str:
    slot, source = (2, 0) if node.op == "SplitV" else (0, 1)
    axis = turning.constant(node.inputs[slot])
    if not turning.at_hand(node.inputs[source]):
        return ""
    if axis is None or axis.num_elements != 1:
        return "its axis is computed, or not one number"
    made = turning.beside(node, "axis", np.array(turning.axis(axis.array.item()), axis.dtype.numpy), node.inputs[slot])
    new = node.with_input(slot, made.name).with_input(source, turning.turn(node.inputs[source]))
    return Turned(new, tuple(range(attribute(node, "num_split"))), (made,))


@_handles("Pad PadV2 MirrorPad")
def _pad(turning: Turning, node: Node) -> Turned | str:
    return _with_lists(turning, node, {1: "widths"})


@_handles("Slice")
def _slice(turning: Turning, node: Node) -> Turned | str:
    return _with_lists(turning, node, {1: "begin", 2: "size"})


@_handles("StridedSlice")
def _strided_slice(turning: Turning, node: Node) -> Turned | str:
    if any(node.attrs.get(f"{word}_mask") for word in ("ellipsis", "new_axis", "shrink_axis")):
        return "it changes the number of dimensions"
    found = _with_lists(turning, node, {1: "begin", 2: "end", 3: "strides"})
    if isinstance(found, str):
        return found
    masks: dict[str, int] = {}
    for word in ("begin_mask", "end_mask"):
        mask: Any = node.attrs.get(word, 0)
        masks[word] = sum(((mask >> axis) & 1) << place for place, axis in enumerate(turning.order))
    return Turned(found.node.with_attrs(**masks), others=found.others)


def _with_lists(turning: Turning, node: Node, slots: dict[int, str]) -> Turned | str:
    """The node with constants that have an entry for each dimension."""
    values = {slot: turning.constant(node.inputs[slot]) for slot in slots}
    if not turning.at_hand(node.inputs[0]):
        return ""
    new, others = node, []
    for slot, value in values.items():
        if value is None or value.shape[:1] != (4,):
            return "what it says of each dimension is computed, or not of all of them"
        other = turning.beside(
            node, slots[slot], np.ascontiguousarray(value.array[list(turning.order)]), node.inputs[slot]
        )
        new = new.with_input(slot, other.name)
        others.append(other)
    return Turned(new.with_input(0, turning.turn(node.inputs[0])), others=tuple(others))


# What leaves fewer dimensions, or another order


@_handles("Mean Sum Max Min Prod All Any")
def _reduction(turning: Turning, node: Node) -> Turned | str:
    axes = turning.constant(node.inputs[1])
    if not turning.at_hand(node.inputs[0]):
        return ""
    if axes is None:
        return "its axes are computed"
    gone = {int(axis) % 4 for axis in axes.array.reshape(-1)}
    keeps = bool(node.attrs.get("keep_dims"))
    if not keeps and not turning.keeps_order(axis for axis in range(4) if axis not in gone):
        return "it would leave its dimensions in another order"
    places: Array = np.array([turning.axis(axis) for axis in axes.array.reshape(-1)], axes.dtype.numpy)
    other = turning.beside(node, "axes", places.reshape(axes.shape), node.inputs[1])
    new = node.with_input(0, turning.turn(node.inputs[0])).with_input(1, other.name)
    return Turned(new, (0,) if keeps or not gone else (), (other,))


@_handles("Squeeze")
def _squeeze(turning: Turning, node: Node) -> Turned | str:
    dims = turning.dims(node.inputs[0])
    if not turning.at_hand(node.inputs[0]):
        return ""
    listed: Any = node.attrs.get("squeeze_dims") or ()
    if not listed and (dims is None or None in dims):
        return "what it squeezes is not known"
    gone = {axis % 4 for axis in listed} or {axis for axis, size in enumerate(dims or ()) if size == 1}
    if not gone or not turning.keeps_order(axis for axis in range(4) if axis not in gone):
        return "it would leave its dimensions in another order"
    places = tuple(sorted(turning.axis(axis) for axis in gone))
    return Turned(node.with_attrs(squeeze_dims=places).with_input(0, turning.turn(node.inputs[0])), ())


@_handles("Reshape")
def _reshape(turning: Turning, node: Node) -> Turned | str:
    dims = turning.dims(node.inputs[0])
    if not turning.at_hand(node.inputs[0]) or dims is None:
        return ""
    if not turning.keeps_order(axis for axis, size in enumerate(dims) if size != 1):
        return "it takes numbers in the order of the layout"
    return Turned(node.with_input(0, turning.turn(node.inputs[0])), ())


@_handles("Transpose")
def _transpose(turning: Turning, node: Node) -> Turned | str:
    """Two Transposes become one, or none."""
    source, value = node.inputs[0], turning.constant(node.inputs[1])
    if value is None or value.shape != (4,):
        return "its order of dimensions is computed"
    order = [int(axis) % 4 for axis in value.array]
    if not turning.at_hand(source):
        if turning.permuted(order) == (0, 1, 2, 3):
            turning.turned[Edge(node.name)] = turning.plain(source)
        return ""
    places = [turning.axis(axis) for axis in order]
    turned = turning.turn(source)
    if places == [0, 1, 2, 3]:
        attrs = {"T": node.attrs["T"]} if "T" in node.attrs else {}
        return Turned(node.with_(op="Identity", inputs=(turned,), attrs=attrs), ())
    other = turning.beside(node, "order", np.array(places, value.dtype.numpy), node.inputs[1])
    return Turned(node.with_(inputs=(turned, Edge(other.name))), (), (other,))


@_handles("Shape")
def _shape(turning: Turning, node: Node) -> Turned | str:
    """The sizes of the turned tensor, put back in order: cheaper than turning the tensor."""
    if node.inputs[0] not in turning.lost:
        return ""
    dtype = node.attrs.get("out_type", DType.INT32)
    sizes = node.with_(name=turning.names.free(f"{node.name}/{turning.to.lower()}"))
    sizes = sizes.with_input(0, turning.turn(node.inputs[0]))
    waits = (sizes.name,) if turning.has_loops else ()
    order = [turning.axis(axis) for axis in range(4)]
    names = (turning.names.free(f"{node.name}/{word}") for word in ("places", "first"))
    places, first = (
        constant(name, np.array(values, np.int32)).with_(controls=waits)
        for name, values in zip(names, (order, 0), strict=True)
    )
    gathered = Node(
        node.name,
        "GatherV2",
        (Edge(sizes.name), Edge(places.name), Edge(first.name)),
        node.controls,
        {"Tparams": dtype, "Tindices": DType.INT32, "Taxis": DType.INT32},
        node.device,
    )
    return Turned(gathered, (), (sizes, places, first))
