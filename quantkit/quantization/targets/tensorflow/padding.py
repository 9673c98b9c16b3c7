"""What a layer pads with: by itself where the code of 0 is 0, else codes of 0 around what it reads."""

import numpy as np

from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.layers import same_padding
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.quantization.plan import FusedPattern
from quantkit.quantization.targets.tensorflow.graph_builder import GraphBuilder
from quantkit.quantization.targets.tensorflow.parameters import QuantizedTensor

Pads = tuple[tuple[int, int], ...]


def padded(
    builder: GraphBuilder, pattern: FusedPattern, layer: Node, kernel: tuple[int, ...]
) -> tuple[QuantizedTensor | None, dict[str, Attr] | None, str]:
    """The codes a layer reads, and its padding attributes; or nothing, and why."""
    if layer.op == "MatMul":
        return builder.quantized_of(pattern.input), {}, ""
    read, outside = _pad_before(builder, pattern, layer)
    quantized = builder.quantized_of(read)
    same = _same_pads(builder, layer, read, kernel)
    if layer.attrs["padding"] == b"SAME" and not quantized.zero:
        return quantized, {"padding": b"SAME", "padding_list": ()}, ""
    pads = outside or (same if layer.attrs["padding"] == b"SAME" else _explicit(layer))
    if pads is None:
        return None, None, "its padding depends on a size that is not known, and its input has a shifted 0"
    if not any(map(any, pads)):
        return quantized, {"padding": b"VALID", "padding_list": ()}, ""
    if not quantized.zero and pads == same:
        return quantized, {"padding": b"SAME", "padding_list": ()}, ""
    # TensorFlow infers a wrong shape for a depthwise convolution with listed paddings.
    if not quantized.zero and layer.op == "Conv2D":
        listed = (0, 0, *(size for pair in pads for size in pair), 0, 0)
        return quantized, {"padding": b"VALID", "padding_list": listed}, ""
    return _padded_codes(builder, pattern, read, quantized, pads), {"padding": b"VALID", "padding_list": ()}, ""


def _padded_codes(
    builder: GraphBuilder, pattern: FusedPattern, read: Edge, quantized: QuantizedTensor, pads: Pads
) -> QuantizedTensor:
    name = f"{pattern.name}/padded"
    sizes = builder.constant(f"{name}/sizes", np.array([(0, 0), *pads, (0, 0)], np.int32))
    node = Node(name, "Pad", (read, sizes), attrs={"Tpaddings": DType.INT32})
    return quantized._replace(edge=builder.on_bytes(name, node, quantized))


def _pad_before(builder: GraphBuilder, pattern: FusedPattern, layer: Node) -> tuple[Edge, Pads | None]:
    """What a layer reads behind a Pad that it can do itself, and that padding."""
    pad = builder.source[pattern.input.node]
    if pad.op != "Pad" or pad.name not in builder.plan.pass_through or layer.attrs["padding"] != b"VALID":
        return pattern.input, None
    sizes = builder.source.constant_of(pad.inputs[1])
    if sizes is None or sizes.shape != (4, 2) or sizes.array[[0, 3]].any() or builder.quantized_of(pad.inputs[0]).zero:
        return pattern.input, None
    return pad.inputs[0], _pairs(sizes.array[1:3])


def _same_pads(builder: GraphBuilder, layer: Node, read: Edge, kernel: tuple[int, ...]) -> Pads | None:
    """What SAME padding would add to the rows and the columns; None: not known."""
    dims = builder.shapes.get(read, UNKNOWN).dims or (None,) * 4
    strides, dilations = attribute(layer, "strides"), attribute(layer, "dilations")
    spans = [(kernel[at - 1] - 1) * dilations[at] + 1 for at in (1, 2)]
    found = [same_padding(dims[at], spans[at - 1], strides[at]) for at in (1, 2)]
    return None if None in found else tuple(pair for pair in found if pair is not None)


def _explicit(layer: Node) -> Pads:
    """Paddings that a layer names itself; VALID: none."""
    if layer.attrs["padding"] != b"EXPLICIT":
        return ((0, 0), (0, 0))
    return _pairs(np.reshape(np.array(layer.attrs["explicit_paddings"]), (4, 2))[1:3])


def _pairs(values: Array) -> Pads:
    return tuple((int(before), int(after)) for before, after in values)
