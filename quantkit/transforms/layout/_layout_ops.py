"""Layout conversion of each op: attributes and operands that refer to dimensions."""

from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Node, constant
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.shape_rules import Rules
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.layout._layouts import ConvertedNode, Handler, LayoutConverter

HANDLERS: Rules[Handler] = Rules()


# Ops with a data format


@HANDLERS.rule(
    "MaxPool AvgPool BiasAdd FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3",
    *find_ops(Fact.CONVOLUTION, "tensorflow"),
)
def _convert_layer(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    layout = attribute(node, "data_format").decode(errors="replace")
    if layout != converter.source:
        return "" if layout == converter.target else f"the data format is {layout}"
    if node.op == "BiasAdd" and not converter.is_image(node.inputs[0]):
        return "" if converter.dims(node.inputs[0]) else "the rank of the input is unknown"
    return ConvertedNode(_convert_attributes(converter, node).with_input(0, converter.to_target(node.inputs[0])))


@HANDLERS.rule("Conv2DBackpropInput")
def _convert_transposed_convolution(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    layout = attribute(node, "data_format").decode(errors="replace")
    sizes = converter.constant(node.inputs[0])
    if layout != converter.source:
        return "" if layout == converter.target else f"the data format is {layout}"
    if sizes is None or sizes.shape != (4,):
        return "the output size is computed"
    new_sizes = converter.new_operand(
        node, "sizes", np.array(converter.permute(sizes.array), sizes.dtype.numpy), node.inputs[0]
    )
    new = _convert_attributes(converter, node).with_input(0, new_sizes.name)
    return ConvertedNode(new.with_input(2, converter.to_target(node.inputs[2])), others=(new_sizes,))


def _convert_attributes(converter: LayoutConverter, node: Node) -> Node:
    """Return the node with the target data format and with permuted attributes."""
    changes: dict[str, Any] = {"data_format": converter.target.encode()}
    for name in ("strides", "dilations", "ksize"):
        values = node.attrs.get(name)
        if isinstance(values, tuple) and len(values) == 4:
            changes[name] = converter.permute(values)
    padding = node.attrs.get("explicit_paddings")
    if isinstance(padding, tuple) and len(padding) == 8:
        pairs = converter.permute(zip(padding[::2], padding[1::2], strict=True))
        changes["explicit_paddings"] = tuple(width for pair in pairs for width in pair)
    return node.with_attrs(**changes)


# Elementwise ops


@HANDLERS.rule("FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars", *find_ops(Fact.UNARY, "tensorflow"))
def _convert_unary(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    edge = node.inputs[0]
    return ConvertedNode(node.with_input(0, converter.to_target(edge))) if converter.is_converted(edge) else ""


@HANDLERS.rule("AddN", *find_ops(Fact.BINARY, "tensorflow"))
def _convert_elementwise(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    if not any(map(converter.is_converted, node.inputs)):
        return ""
    for edge in node.inputs:
        dims = converter.dims(edge)
        if dims is None or len(dims) > 4 or (converter.constant(edge) is None and len(dims) not in (0, 4)):
            return f"{edge} is not known to have four dimensions"
    inputs = tuple(edge if converter.dims(edge) == () else converter.to_target(edge) for edge in node.inputs)
    return ConvertedNode(node.with_(inputs=inputs))


# Ops along dimensions


@HANDLERS.rule("Concat ConcatV2")
def _convert_concat(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    axis_slot = len(node.inputs) - 1 if node.op == "ConcatV2" else 0
    edges = [edge for slot, edge in enumerate(node.inputs) if slot != axis_slot]
    axis = converter.constant(node.inputs[axis_slot])
    if not any(map(converter.is_converted, edges)):
        return ""
    if axis is None or axis.num_elements != 1 or not all(map(converter.is_image, edges)):
        return "the axis or the rank of an input is unknown"
    new_axis = _new_axis(converter, node, axis_slot, axis)
    inputs = tuple(
        Edge(new_axis.name) if slot == axis_slot else converter.to_target(edge) for slot, edge in enumerate(node.inputs)
    )
    return ConvertedNode(node.with_(inputs=inputs), others=(new_axis,))


@HANDLERS.rule("Split SplitV")
def _convert_split(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    axis_slot, source = (2, 0) if node.op == "SplitV" else (0, 1)
    axis = converter.constant(node.inputs[axis_slot])
    if not converter.is_converted(node.inputs[source]):
        return ""
    if axis is None or axis.num_elements != 1:
        return "the axis is computed, or not one number"
    new_axis = _new_axis(converter, node, axis_slot, axis)
    new = node.with_input(axis_slot, new_axis.name).with_input(source, converter.to_target(node.inputs[source]))
    return ConvertedNode(new, tuple(range(attribute(node, "num_split"))), (new_axis,))


def _new_axis(converter: LayoutConverter, node: Node, slot: int, axis: Tensor) -> Node:
    """Return a constant of an axis in the target layout, for an input of a node."""
    values = np.array(converter.convert_axis(axis.array.item()), axis.dtype.numpy)
    return converter.new_operand(node, "axis", values, node.inputs[slot])


HANDLERS.rule("Pad PadV2 MirrorPad")(lambda converter, node: _permute_operands(converter, node, {1: "widths"}))
HANDLERS.rule("Slice")(lambda converter, node: _permute_operands(converter, node, {1: "begin", 2: "size"}))


@HANDLERS.rule("StridedSlice")
def _convert_strided_slice(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    if any(node.attrs.get(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis")):
        return "StridedSlice changes the rank"
    converted = _permute_operands(converter, node, {1: "begin", 2: "end", 3: "strides"})
    if isinstance(converted, str):
        return converted
    masks: dict[str, int] = {}
    for name in ("begin_mask", "end_mask"):
        masks[name] = sum(((node.attrs.get(name, 0) >> axis) & 1) << bit for bit, axis in enumerate(converter.order))
    return ConvertedNode(converted.node.with_attrs(**masks), others=converted.others)


def _permute_operands(converter: LayoutConverter, node: Node, operands: dict[int, str]) -> ConvertedNode | str:
    """Return the node with permuted constants, which have one entry per dimension.

    Args:
        operands: names of the constants by input index.
    """
    values = {slot: converter.constant(node.inputs[slot]) for slot in operands}
    if not converter.is_converted(node.inputs[0]):
        return ""
    new, others = node, []
    for slot, value in values.items():
        if value is None or value.shape[:1] != (4,):
            return f"{operands[slot]} is computed, or does not have one entry per dimension"
        permuted = np.ascontiguousarray(value.array[list(converter.order)])
        other = converter.new_operand(node, operands[slot], permuted, node.inputs[slot])
        new = new.with_input(slot, other.name)
        others.append(other)
    return ConvertedNode(new.with_input(0, converter.to_target(node.inputs[0])), others=tuple(others))


# Ops that change the rank or the order of dimensions


@HANDLERS.rule(*find_ops(Fact.REDUCTION, "tensorflow"))
def _convert_reduction(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    axes = converter.constant(node.inputs[1])
    if not converter.is_converted(node.inputs[0]):
        return ""
    if axes is None:
        return "the axes are computed"
    reduced = {int(axis) % 4 for axis in axes.array.reshape(-1)}
    keeps_dims = bool(node.attrs.get("keep_dims"))
    if not keeps_dims and not converter.keeps_order(axis for axis in range(4) if axis not in reduced):
        return "the remaining dimensions have another order in the target layout"
    new_axes: Array = np.array([converter.convert_axis(axis) for axis in axes.array.reshape(-1)], axes.dtype.numpy)
    other = converter.new_operand(node, "axes", new_axes.reshape(axes.shape), node.inputs[1])
    new = node.with_input(0, converter.to_target(node.inputs[0])).with_input(1, other.name)
    return ConvertedNode(new, (0,) if keeps_dims or not reduced else (), (other,))


@HANDLERS.rule("Squeeze")
def _convert_squeeze(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    dims = converter.dims(node.inputs[0])
    if not converter.is_converted(node.inputs[0]):
        return ""
    axes = node.attrs.get("squeeze_dims") or ()
    if not axes and (dims is None or None in dims):
        return "the squeezed dimensions are unknown"
    squeezed = {axis % 4 for axis in axes} or {axis for axis, size in enumerate(dims or ()) if size == 1}
    if not squeezed or not converter.keeps_order(axis for axis in range(4) if axis not in squeezed):
        return "the remaining dimensions have another order in the target layout"
    new_axes = tuple(sorted(converter.convert_axis(axis) for axis in squeezed))
    return ConvertedNode(node.with_attrs(squeeze_dims=new_axes).with_input(0, converter.to_target(node.inputs[0])), ())


@HANDLERS.rule("Reshape")
def _convert_reshape(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    dims = converter.dims(node.inputs[0])
    if not converter.is_converted(node.inputs[0]) or dims is None:
        return ""
    if not converter.keeps_order(axis for axis, size in enumerate(dims) if size != 1):
        return "Reshape depends on the order of the elements"
    return ConvertedNode(node.with_input(0, converter.to_target(node.inputs[0])), ())


@HANDLERS.rule("Transpose")
def _convert_transpose(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    """Combine two Transposes into one, or into an Identity."""
    source, value = node.inputs[0], converter.constant(node.inputs[1])
    if value is None or value.shape != (4,):
        return "the permutation is computed"
    order = [int(axis) % 4 for axis in value.array]
    if not converter.is_converted(source):
        if converter.permute(order) == (0, 1, 2, 3):
            converter.converted[Edge(node.name)] = converter.to_source(source)
        return ""
    new_order = [converter.convert_axis(axis) for axis in order]
    converted = converter.to_target(source)
    if new_order == [0, 1, 2, 3]:
        attrs = {"T": node.attrs["T"]} if "T" in node.attrs else {}
        return ConvertedNode(node.with_(op="Identity", inputs=(converted,), attrs=attrs), ())
    other = converter.new_operand(node, "order", np.array(new_order, value.dtype.numpy), node.inputs[1])
    return ConvertedNode(node.with_(inputs=(converted, Edge(other.name))), (), (other,))


@HANDLERS.rule("Shape")
def _convert_shape(converter: LayoutConverter, node: Node) -> ConvertedNode | str:
    """Permute the shape of the converted tensor: cheaper than a Transpose of the tensor."""
    if node.inputs[0] not in converter.target_only:
        return ""
    dtype = node.attrs.get("out_type", DType.INT32)
    sizes = node.with_(name=converter.names.free(f"{node.name}/{converter.target.lower()}"))
    sizes = sizes.with_input(0, converter.to_target(node.inputs[0]))
    controls = (sizes.name,) if converter.has_loops else ()
    order = [converter.convert_axis(axis) for axis in range(4)]
    indices, axis = (
        constant(converter.names.free(f"{node.name}/{suffix}"), np.array(values, np.int32)).with_(controls=controls)
        for suffix, values in (("places", order), ("first", 0))
    )
    gather = Node(
        node.name,
        "GatherV2",
        (Edge(sizes.name), Edge(indices.name), Edge(axis.name)),
        node.controls,
        {"Tparams": dtype, "Tindices": DType.INT32, "Taxis": DType.INT32},
        node.device,
    )
    return ConvertedNode(gather, (), (sizes, indices, axis))
