"""Fuse the move of blocks into channels with the convolution after it.

A convolution of blocks of b x b positions is one of the image with b times the kernel size, stride s and padding p:

    y[i] = sum_{k, q} w[q, k] x[b (s i + k - p) + offset(q)]        w'[b k + offset(q)] = w[q, k]
"""

from typing import NamedTuple

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules
from quantkit.transforms.onnx._facts import constant_value, has_input, new_constant, producer, reason_to_keep
from quantkit.transforms.registry import transform

# Ends of slices from this value on are the end of the axis.
LARGEST = 2**31 - 1
HEIGHT, WIDTH = 2, 3


class Blocks(NamedTuple):
    """Image whose blocks are channels.

    Attributes:
        image: the image, (n, c, h, w).
        size: edge length of a block.
        offsets: position in the block of each group of c channels, (row, column).
    """

    image: Edge
    size: int
    offsets: tuple[tuple[int, int], ...]


@transform(dialects=("onnx",))
def fuse_space_to_depth_and_conv(graph: Graph) -> Outcome:
    """Fuse a SpaceToDepth, or strided Slices and their Concat, with the convolution after it.

    Detectors of the YOLO family begin with such a layer. The convolution computes as many products as
    before, and no op moves the image.

    Before:  x -> SpaceToDepth(blocksize=2) -> Conv(3x3, pads 1)
    After:   x -> Conv(6x6, pads 2, strides 2)

    Options: none. The convolution keeps its name.

    Skips if the blocks have other consumers or are a graph output, if the convolution is
    grouped or dilated, or if its weights or the bounds of the slices are not constant.

    Example:
        fuse_space_to_depth_and_conv
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x2x8x8]()
        w = Constant[4x8x3x3]()
        blocks = SpaceToDepth(x, blocksize=2)
        y = Conv(blocks, w, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    """
    return apply_rules(graph, Rule(op("Conv"), _fuse, ("root",)))


def _fuse(graph: Graph, root: Node) -> list[Node] | Skip | None:
    source = producer(graph, root.inputs[0], "SpaceToDepth|Concat") if has_input(root, 1) else None
    if source is None or root.name in graph.input_names:
        return None
    blocks = _read_space_to_depth(source) if source.op == "SpaceToDepth" else _read_slices(graph, source)
    if blocks is None:
        return None
    reason = reason_to_keep(graph, source, root)
    weights = None if root.inputs[1].node in graph.input_names else graph.constant_of(root.inputs[1])
    if reason or weights is None or len(weights.shape) != 4 or weights.shape[1] % blocks.size**2:
        return Skip(reason or f"the weights of {root.name} are not constant, or have another number of channels")
    attrs = root.attrs
    is_plain = attrs.get("group", 1) == 1 and set(attrs.get("dilations", (1,))) == {1}
    is_valid = attrs.get("auto_pad") == b"VALID"
    if not is_plain or not (is_valid or attrs.get("auto_pad", b"NOTSET") in (b"NOTSET", b"")):
        return Skip(f"{root.name} is grouped or dilated, or computes its padding from the size of its input")
    size = blocks.size
    filters, channels, height, width = weights.shape
    kernel = np.zeros((filters, channels // size**2, size * height, size * width), weights.array.dtype)
    for values, (row, column) in zip(np.split(weights.array, size**2, axis=1), blocks.offsets, strict=True):
        kernel[:, :, row::size, column::size] = values
    constant = new_constant(graph, f"{root.name}/of_image", kernel)
    strides, pads = attrs.get("strides", (1, 1)), attrs.get("pads", (0, 0, 0, 0))
    fused = root.with_(inputs=(blocks.image, Edge(constant.name), *root.inputs[2:])).with_attrs(
        kernel_shape=kernel.shape[2:],
        strides=tuple(size * stride for stride in strides),
        # ONNX Runtime rejects paddings next to VALID.
        pads=None if is_valid else tuple(size * pad for pad in pads),
    )
    return [constant, fused]


def _read_space_to_depth(node: Node) -> Blocks | None:
    size = node.attrs.get("blocksize")
    if not isinstance(size, int) or size < 1:
        return None
    return Blocks(node.inputs[0], size, tuple((row, column) for row in range(size) for column in range(size)))


def _read_slices(graph: Graph, concat: Node) -> Blocks | None:
    """Return the image and the offsets of strided slices that are concatenated; None for other nodes."""
    size = round(len(concat.inputs) ** 0.5)
    if concat.op != "Concat" or concat.attrs.get("axis") not in (1, -3) or size < 2 or size**2 != len(concat.inputs):
        return None
    images, offsets = set[Edge](), []
    for edge in concat.inputs:
        starts = dict[int, int]()
        while len(starts) < 2 and (node := producer(graph, edge, "Slice")):
            bounds = _read_bounds(graph, node, size)
            if bounds is None or not starts.keys().isdisjoint(bounds):
                return None
            starts |= bounds
            edge = node.inputs[0]
        if starts.keys() != {HEIGHT, WIDTH}:
            return None
        images.add(edge)
        offsets.append((starts[HEIGHT], starts[WIDTH]))
    if len(images) > 1 or len(set(offsets)) < len(offsets):
        return None
    return Blocks(images.pop(), size, tuple(offsets))


def _read_bounds(graph: Graph, node: Node, step: int) -> dict[int, int] | None:
    """Return the start of each axis that a Slice takes every ``step``-th element of; None for other slices."""
    values = [constant_value(graph, node, slot) for slot in range(1, 5)]
    if any(value is None for value in values):
        return None
    starts, ends, axes, steps = ([int(each) for each in value.reshape(-1)] for value in values if value is not None)
    axes = [axis + 4 if axis < 0 else axis for axis in axes]
    are_blocks = all(0 <= start < step for start in starts) and set(steps) == {step}
    are_blocks &= all(end >= LARGEST for end in ends) and len(starts) == len(axes)
    return dict(zip(axes, starts, strict=True)) if are_blocks and set(axes) <= {HEIGHT, WIDTH} else None
