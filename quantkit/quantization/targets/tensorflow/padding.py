"""Padding of quantized layers: by the kernel if the zero point is 0, else with the zero point in front of it."""

import numpy as np

from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.layers import same_padding
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.quantization.plan import FusedPattern
from quantkit.quantization.targets.tensorflow.graph_builder import GraphBuilder
from quantkit.quantization.targets.tensorflow.parameters import QuantizedTensor

# Rows and columns to add before and after: ((top, bottom), (left, right)).
Pads = tuple[tuple[int, int], ...]


def pad_input(
    builder: GraphBuilder, pattern: FusedPattern, layer: Node, kernel: tuple[int, ...]
) -> tuple[QuantizedTensor | None, dict[str, Attr] | None, str]:
    """Return the quantized input of a layer and its padding attributes; or None and the reason."""
    if layer.op == "MatMul":
        return builder.quantized_tensor(pattern.input), {}, ""
    source, fused_pads = _fold_pad(builder, pattern, layer)
    tensor = builder.quantized_tensor(source)
    same = _same_pads(builder, layer, source, kernel)
    if layer.attrs["padding"] == b"SAME" and not tensor.zero:
        return tensor, {"padding": b"SAME", "padding_list": ()}, ""
    pads = fused_pads or (same if layer.attrs["padding"] == b"SAME" else _explicit_pads(layer))
    if pads is None:
        return None, None, "SAME padding of an unknown size, and the zero point of the input is not 0"
    if not any(map(any, pads)):
        return tensor, {"padding": b"VALID", "padding_list": ()}, ""
    if not tensor.zero and pads == same:
        return tensor, {"padding": b"SAME", "padding_list": ()}, ""
    # TensorFlow infers a wrong shape for a depthwise convolution with explicit paddings.
    if not tensor.zero and layer.op == "Conv2D":
        padding_list = (0, 0, *(size for pair in pads for size in pair), 0, 0)
        return tensor, {"padding": b"VALID", "padding_list": padding_list}, ""
    return _pad_quantized(builder, pattern, source, tensor, pads), {"padding": b"VALID", "padding_list": ()}, ""


def _pad_quantized(
    builder: GraphBuilder, pattern: FusedPattern, source: Edge, tensor: QuantizedTensor, pads: Pads
) -> QuantizedTensor:
    """Return the tensor padded with its zero point."""
    name = f"{pattern.name}/padded"
    sizes = builder.constant(f"{name}/sizes", np.array([(0, 0), *pads, (0, 0)], np.int32))
    node = Node(name, "Pad", (source, sizes), attrs={"Tpaddings": DType.INT32})
    return tensor._replace(edge=builder.apply_to_bytes(name, node, tensor))


def _fold_pad(builder: GraphBuilder, pattern: FusedPattern, layer: Node) -> tuple[Edge, Pads | None]:
    """Return the input of the Pad before a layer and its pads, if the layer can pad; else the layer's input."""
    pad = builder.source[pattern.input.node]
    if pad.op != "Pad" or pad.name not in builder.plan.pass_through or layer.attrs["padding"] != b"VALID":
        return pattern.input, None
    sizes = builder.source.constant_of(pad.inputs[1])
    if sizes is None or sizes.shape != (4, 2) or sizes.array[[0, 3]].any():
        return pattern.input, None
    if builder.quantized_tensor(pad.inputs[0]).zero:
        return pattern.input, None
    return pad.inputs[0], _pairs(sizes.array[1:3])


def _same_pads(builder: GraphBuilder, layer: Node, source: Edge, kernel: tuple[int, ...]) -> Pads | None:
    """Return the pads of SAME padding; None if a size is unknown."""
    dims = builder.shapes.get(source, UNKNOWN).dims or (None,) * 4
    strides, dilations = attribute(layer, "strides"), attribute(layer, "dilations")
    windows = [(kernel[axis - 1] - 1) * dilations[axis] + 1 for axis in (1, 2)]
    pads = [same_padding(dims[axis], windows[axis - 1], strides[axis]) for axis in (1, 2)]
    return None if None in pads else tuple(pair for pair in pads if pair is not None)


def _explicit_pads(layer: Node) -> Pads:
    """Return the pads of EXPLICIT or VALID padding."""
    if layer.attrs["padding"] != b"EXPLICIT":
        return ((0, 0), (0, 0))
    return _pairs(np.reshape(np.array(layer.attrs["explicit_paddings"]), (4, 2))[1:3])


def _pairs(values: Array) -> Pads:
    return tuple((int(before), int(after)) for before, after in values)
