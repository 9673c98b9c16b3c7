"""Conversion of resizes, and of blocks of pixels as channels."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantkit.convert.onnx_to_tensorflow.arrays import shape_of
from quantkit.convert.onnx_to_tensorflow.translator import NHWC, OnnxTranslator, conversion_error, converts
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType


@converts("DepthToSpace SpaceToDepth")
def _depth(translator: OnnxTranslator, node: Node) -> None:
    size = node.attrs["blocksize"]
    source = node.inputs[0]
    value = translator.nhwc(source)
    if node.attrs.get("mode", b"DCR") != b"DCR" and isinstance(size, int):
        channels = (translator.shape(source).dims or (None,) * 4)[1]
        if channels is None:
            raise conversion_error(node, "the number of channels is unknown")
        order = np.arange(channels).reshape(-1, size * size).T.reshape(-1)
        inputs = [value, translator.add_array(node, "order", order), translator.add_array(node, "axis", 3, DType.INT32)]
        types: dict[str, Attr] = {"Tparams": translator.types[value], "Tindices": DType.INT64, "Taxis": DType.INT32}
        value = translator.add_node(f"{translator.name(node.name)}/reordered", "GatherV2", inputs, **types)
    translator.emit_typed(node, node.op, [value], NHWC, block_size=size, data_format=b"NHWC")


@converts("Resize")
def _resize(translator: OnnxTranslator, node: Node) -> None:
    if translator.rank(node.inputs[0]) != 4:
        raise conversion_error(node, "the input must be an image of rank 4")
    attrs: Mapping[str, Any] = node.attrs
    mode, coordinates = attrs.get("mode", b"nearest"), attrs.get("coordinate_transformation_mode", b"half_pixel")
    if attrs.get("antialias") or attrs.get("axes") or attrs.get("exclude_outside"):
        raise conversion_error(node, "antialias, axes and exclude_outside are not supported")
    scales = _scales(translator, node)
    flags = {
        "half_pixel_centers": coordinates in (b"half_pixel", b"pytorch_half_pixel"),
        "align_corners": coordinates == b"align_corners",
    }
    if not any(flags.values()) and coordinates != b"asymmetric":
        raise conversion_error(node, f"the coordinates {coordinates!r} are not supported")
    if mode == b"nearest":
        _check_nearest(node, scales, coordinates, attrs.get("nearest_mode", b"round_prefer_floor"))
        flags["align_corners"] = False
    elif mode != b"linear":
        raise conversion_error(node, f"the mode {mode!r} is not supported")
    op = "ResizeNearestNeighbor" if mode == b"nearest" else "ResizeBilinear"
    image = translator.nhwc(node.inputs[0])
    translator.emit_typed(node, op, [image, _size(translator, node, image, scales)], NHWC, **flags)


def _scales(translator: OnnxTranslator, node: Node) -> list[float | None]:
    """Return the factors of height and width; None for an unknown one."""
    if translator.has_input(node, 2):
        constant = translator.constant_of(node.inputs[2])
        if constant is not None and constant.num_elements == 4:
            return [float(scale) for scale in constant.array[2:]]
    before, after = (translator.shape(edge).dims or (None,) * 4 for edge in (node.inputs[0], Edge(node.name)))
    return [None if a is None or b is None else b / a for a, b in zip(before[2:], after[2:], strict=True)]


def _check_nearest(node: Node, scales: list[float | None], coordinates: bytes, rounding: bytes) -> None:
    """Check that a resize selects the pixels of TensorFlow.

    TensorFlow selects floor(i / scale), or floor((i + 1/2) / scale) with half pixel centers. These are equal for
    integer factors, and equal to the pixels of all rounding modes for the factor 2, except for ceil.
    """
    is_floor = coordinates == b"asymmetric" and rounding == b"floor"
    is_whole = all(scale is not None and scale >= 1 and scale == int(scale) for scale in scales)
    if is_floor or (is_whole and coordinates != b"asymmetric" and rounding.startswith(b"round")):
        return
    if not (all(scale in (1, 2) for scale in scales) and rounding == b"round_prefer_floor"):
        raise conversion_error(node, f"the rounding {rounding!r} with {coordinates!r} is not supported")


def _size(translator: OnnxTranslator, node: Node, image: Edge, scales: list[float | None]) -> Edge:
    """Return height and width after a resize, as int32."""
    dims = (translator.shape(Edge(node.name)).dims or (None,) * 4)[2:]
    if None not in dims:
        return translator.add_array(node, "size", dims, DType.INT32)  # type: ignore[arg-type]
    limits = {"begin": [1], "end": [3], "step": [1]}
    if translator.has_input(node, 3):
        source, limits = translator.plain(node.inputs[3]), {"begin": [2], "end": [4], "step": [1]}
    else:
        source = shape_of(translator, node, image)
    edges = [translator.add_array(node, name, values) for name, values in limits.items()]
    size = translator.add_intermediate(node, "sizes", "StridedSlice", [source, *edges], Index=DType.INT64)
    if not translator.has_input(node, 3):
        if None in scales:
            raise conversion_error(node, "the scales must be constant")
        wide = translator.add_cast(node, "sizes/float", size, DType.FLOAT)
        factors = translator.add_array(node, "scales", scales, DType.FLOAT)  # type: ignore[arg-type]
        size = translator.add_intermediate(node, "scaled", "Mul", [wide, factors])
        size = translator.add_intermediate(node, "floor", "Floor", [size])
    return translator.add_cast(node, "size", size, DType.INT32)
