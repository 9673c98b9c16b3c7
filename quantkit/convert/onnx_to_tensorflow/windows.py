"""Windows of convolutions and pools: strides, dilations, and padding as SAME or as a separate Pad node.

The transforms fold_pads and fold_batch_norms then simplify the graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantkit.convert.onnx_to_tensorflow.translator import OnnxTranslator, conversion_error
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.layers import same_padding


@dataclass(frozen=True)
class WindowGeometry:
    """Windows over height and width of an image.

    Attributes:
        kernel: sizes of a window.
        strides: distances between windows.
        dilations: distances between the elements of a window.
        pads: padding before and after each axis.
        is_same: the padding is that of the mode SAME.
    """

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


def find_windows(translator: OnnxTranslator, node: Node, kernel: Sequence[int]) -> WindowGeometry:
    """Return the windows of a convolution or pool.

    Raises:
        UnavailableError: the input is not an image, or the padding depends on an unknown size.
    """
    if translator.rank(node.inputs[0]) not in (4, None) or len(kernel) != 2:
        raise conversion_error(node, "the input must be an image of rank 4")
    strides, dilations = (tuple(node.attrs.get(name) or (1, 1)) for name in ("strides", "dilations"))
    auto_pad = node.attrs.get("auto_pad", b"NOTSET")
    explicit = node.attrs.get("pads") or (0, 0, 0, 0)
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    pads: list[tuple[int, int]] = []
    is_same: list[bool] = []
    for axis, (size, stride) in enumerate(zip(dims[2:], strides, strict=True)):
        span = (kernel[axis] - 1) * dilations[axis] + 1
        before, after = (0, 0) if auto_pad == b"VALID" else (explicit[axis], explicit[axis + 2])
        if node.attrs.get("ceil_mode") and auto_pad == b"NOTSET":
            after += _ceil_padding(node, size, before + after, span, stride)
        padding = same_padding(size, span, stride) if size is not None or stride == 1 else None
        if auto_pad == b"SAME_LOWER" and padding is not None:
            before, after = padding[::-1]
        pads.append((before, after))
        is_same.append(auto_pad == b"SAME_UPPER" or padding == (before, after))
    if auto_pad == b"SAME_LOWER" and not all(is_same) and None in dims[2:]:
        raise conversion_error(node, "the padding depends on an unknown size")
    return WindowGeometry((kernel[0], kernel[1]), strides, dilations, (pads[0], pads[1]), all(is_same))


def _ceil_padding(node: Node, size: int | None, padding: int, span: int, stride: int) -> int:
    """Return the additional padding after an axis that completes the last window (ceil_mode)."""
    if size is None:
        raise conversion_error(node, "ceil_mode requires a known size")
    remainder = (size + padding - span) % stride
    return stride - remainder if remainder else 0


def pad_image(translator: OnnxTranslator, node: Node, windows: WindowGeometry, value: float) -> Edge:
    """Return the padded image; the image itself if the mode SAME adds the padding."""
    source = translator.nhwc(node.inputs[0])
    if windows.is_same or not windows.is_padded:
        return source
    name = f"{translator.name(node.name)}/pad"
    widths = translator.add_constant(f"{name}/widths", Tensor.of(np.array([(0, 0), *windows.pads, (0, 0)], np.int32)))
    attrs: dict[str, Attr] = {"Tpaddings": DType.INT32}
    if value == 0:
        return translator.add_intermediate(node, "pad", "Pad", [source, widths], **attrs)
    fill = translator.add_constant(f"{name}/value", Tensor.of(np.float32(value)))
    return translator.add_intermediate(node, "pad", "PadV2", [source, widths, fill], **attrs)
