"""Kernels of shape ops: shapes, reshapes, concatenation, splits, padding, space to batch and space to depth."""

import math
from collections.abc import Sequence

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.output_sizes import padded_size, padded_space_size, product, stated_shape
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.windows import is_nchw
from quantkit.ops.tensorflow.signatures import attribute, output_dtypes


def axis_of(axis: int, rank: int) -> int:
    """Return the non-negative form of an axis.

    Raises:
        ValueError: the axis is out of range.
    """
    axis = int(axis)
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} does not exist in {rank} dimensions")
    return axis % rank


def scalar(array: Array) -> int:
    """Return the integer in a tensor of one element.

    Raises:
        ValueError: the tensor does not have exactly one element.
    """
    if array.size != 1:
        raise ValueError("a tensor of one element is expected")
    return int(array.reshape(-1)[0])


def sizes(array: Array) -> tuple[int, ...]:
    """Return the elements of an integer tensor, for example a shape."""
    return tuple(int(size) for size in array.reshape(-1))


kernel("Shape", "ShapeN")(
    lambda node, *inputs: tuple(np.array(x.shape, attribute(node, "out_type").numpy) for x in inputs)
)
kernel("Rank")(lambda _, x: np.array(x.ndim, np.int32))
kernel("Size")(lambda node, x: np.array(x.size, attribute(node, "out_type").numpy))
kernel("ExpandDims")(lambda _, x, axis: np.expand_dims(x, axis_of(scalar(axis), x.ndim + 1)))
kernel("Pack")(lambda node, *inputs: np.stack(inputs, axis_of(attribute(node, "axis"), inputs[0].ndim + 1)))
kernel("Concat")(lambda _, axis, *values: concatenate(values, scalar(axis)))
kernel("ConcatV2")(lambda _, *inputs: concatenate(inputs[:-1], scalar(inputs[-1])))
kernel("Split")(lambda node, axis, x: tuple(np.split(x, len(output_dtypes(node)), axis_of(scalar(axis), x.ndim))))
kernel("Fill", output_size=stated_shape(0))(lambda _, dims, value: np.full(sizes(dims), value, value.dtype))
kernel("ZerosLike")(lambda _, x: np.full_like(x, b"") if x.dtype == object else np.zeros_like(x))
kernel("OnesLike")(lambda _, x: np.ones_like(x))
kernel("BroadcastTo", output_size=stated_shape(1))(lambda _, x, shape: np.broadcast_to(x, sizes(shape)))
kernel("BroadcastArgs")(lambda _, a, b: np.array(np.broadcast_shapes(sizes(a), sizes(b)), a.dtype))
kernel("Roll")(lambda _, x, shift, axes: np.roll(x, sizes(shift), [axis_of(axis, x.ndim) for axis in sizes(axes)]))
kernel("MirrorPad", output_size=padded_size)(lambda node, x, paddings: mirror_pad(x, paddings, attribute(node, "mode")))
kernel("SpaceToBatchND", output_size=padded_space_size)(
    lambda _, x, blocks, paddings: space_to_batch(x, sizes(blocks), paddings)
)
kernel("BatchToSpaceND")(lambda _, x, blocks, crops: batch_to_space(x, sizes(blocks), crops))
kernel("SpaceToBatch", output_size=padded_space_size)(
    lambda node, x, paddings: space_to_batch(x, (attribute(node, "block_size"),) * 2, paddings)
)
kernel("BatchToSpace")(lambda node, x, crops: batch_to_space(x, (attribute(node, "block_size"),) * 2, crops))


@kernel("Reshape")
def _reshape(_: Node, x: Array, dims: Array) -> Array:
    shape = list(sizes(dims))
    if shape.count(-1) == 1:
        product = int(np.prod([size for size in shape if size != -1]))
        if product == 0 or x.size % product:
            raise ValueError(f"{x.size} elements do not fill the shape {shape}")
        shape[shape.index(-1)] = x.size // product
    return x.reshape(shape)


@kernel("Squeeze")
def _squeeze(node: Node, x: Array) -> Array:
    dims = attribute(node, "squeeze_dims")
    return x.squeeze(tuple(axis_of(axis, x.ndim) for axis in dims)) if dims else x.squeeze()


@kernel("Transpose", "ConjugateTranspose")
def _transpose(node: Node, x: Array, order: Array) -> Array:
    transposed = x.transpose(sizes(order))
    return np.conj(transposed) if node.op == "ConjugateTranspose" else transposed


@kernel("InvertPermutation")
def _invert_permutation(_: Node, order: Array) -> Array:
    if sorted(order.tolist()) != list(range(order.size)):
        raise ValueError("the input is not a permutation")
    return np.argsort(order).astype(order.dtype)


@kernel("Unpack")
def _unpack(node: Node, x: Array) -> tuple[Array, ...]:
    axis, num = axis_of(attribute(node, "axis"), x.ndim), len(output_dtypes(node))
    if x.shape[axis] != num:
        raise ValueError(f"axis {axis} must have the size {num}")
    return tuple(np.moveaxis(x, axis, 0))


def concatenate(values: Sequence[Array], axis: int) -> Array:
    """Concatenate tensors along an axis.

    Raises:
        ValueError: the sizes of another axis differ.
    """
    return np.concatenate(values, axis_of(axis, values[0].ndim))


@kernel("ConcatOffset")
def _concat_offset(_: Node, dim: Array, *shapes: Array) -> tuple[Array, ...]:
    """Return the offset of each tensor in the concatenated tensor."""
    axis = axis_of(scalar(dim), shapes[0].size)
    offsets = []
    position = 0
    for shape in shapes:
        offset = np.zeros_like(shape)
        offset[axis] = position
        position += int(shape[axis])
        offsets.append(offset)
    return tuple(offsets)


@kernel("SplitV")
def _split_v(_: Node, x: Array, lengths: Array, dim: Array) -> tuple[Array, ...]:
    parts, axis = list(sizes(lengths)), axis_of(scalar(dim), x.ndim)
    if parts.count(-1) == 1:
        parts[parts.index(-1)] = x.shape[axis] - sum(parts) - 1
    if sum(parts) != x.shape[axis] or min(parts) < 0:
        raise ValueError(f"the sum of the sizes {parts} is not the size {x.shape[axis]} of axis {axis}")
    return tuple(np.split(x, np.cumsum(parts)[:-1], axis))


@kernel("Tile", output_size=lambda _, inputs: inputs[0].size * product(inputs[1]))
def _tile(_: Node, x: Array, multiples: Array) -> Array:
    if multiples.size != x.ndim:
        raise ValueError(f"{multiples.size} multiples for {x.ndim} dimensions")
    return np.tile(x, sizes(multiples))


def _widths(x: Array, paddings: Array) -> list[tuple[int, int]]:
    if paddings.shape != (x.ndim, 2):
        raise ValueError(f"paddings must have shape {x.ndim}x2")
    return [(int(before), int(after)) for before, after in paddings]


@kernel("Pad", "PadV2", output_size=padded_size)
def _pad(node: Node, x: Array, paddings: Array, *fill: Array) -> Array:
    return np.pad(x, _widths(x, paddings), constant_values=fill[0].item() if node.op == "PadV2" else 0)


def mirror_pad(x: Array, paddings: Array, mode: bytes) -> Array:
    """Pad a tensor with its mirror image.

    Args:
        x: tensor of any shape.
        paddings: (rank, 2), padding before and after each axis.
        mode: ``SYMMETRIC`` repeats the border elements, ``REFLECT`` does not.

    Raises:
        ValueError: the padding is wider than the tensor, or negative.
    """
    widths = _widths(x, paddings)
    is_reflect = mode == b"REFLECT"
    if any(max(pair) > size - is_reflect for pair, size in zip(widths, x.shape, strict=True)):
        raise ValueError("paddings are wider than the tensor")
    return np.pad(x, widths, mode="reflect" if is_reflect else "symmetric")


def _range_size(_: Node, inputs: Sequence[Array]) -> int:
    start, limit, delta = (array.item() for array in inputs)
    size: int = math.ceil((limit - start) / delta)
    return max(0, size)


@kernel("Range", output_size=_range_size)
def _range(_: Node, *inputs: Array) -> Array:
    """Return start, start + delta, ...; floats are accumulated step by step as in TensorFlow."""
    start, limit, delta = (array.item() for array in inputs)
    if delta == 0:
        raise ValueError("the delta of a range must not be 0")
    if inputs[0].dtype.kind in "iu":
        return np.array(range(start, limit, delta), inputs[0].dtype)
    steps = np.full(max(0, math.ceil((limit - start) / delta)), delta, inputs[0].dtype)
    steps[:1] = start
    return np.cumsum(steps, dtype=inputs[0].dtype)


@kernel("LinSpace", output_size=lambda _, inputs: scalar(inputs[2]))
def _lin_space(_: Node, start: Array, stop: Array, length: Array) -> Array:
    num = scalar(length)
    if num < 1:
        raise ValueError("num must be at least 1")
    step = (stop - start) / np.asarray(max(1, num - 1), start.dtype)
    line = np.asarray(start + step * np.arange(num, dtype=start.dtype))
    line[1:][-1:] = stop
    return line


@kernel("Reverse", "ReverseV2")
def _reverse(node: Node, x: Array, dims: Array) -> Array:
    axes = np.flatnonzero(dims) if node.op == "Reverse" else dims
    return np.flip(x, tuple(axis_of(axis, x.ndim) for axis in sizes(axes)))


def space_to_batch(x: Array, blocks: tuple[int, ...], paddings: Array) -> Array:
    """Move blocks of the spatial axes into the batch.

    Args:
        x: (n, s_1 ... s_m, ...).
        blocks: m block sizes.
        paddings: (m, 2), padding of the spatial axes before they are divided into blocks.

    Returns:
        (n * prod(blocks), (s_1 + padding) / block_1, ...).

    Raises:
        ValueError: a padded size is not a multiple of its block.
    """
    count = len(blocks)
    widths = [(0, 0), *((int(a), int(b)) for a, b in paddings), *[(0, 0)] * (x.ndim - 1 - count)]
    x = np.pad(x, widths)
    rest = x.shape[count + 1 :]
    cut: list[int] = [x.shape[0]]
    for size, block in zip(x.shape[1 : count + 1], blocks, strict=True):
        if size % block:
            raise ValueError(f"padded size {size} is not a multiple of the block size {block}")
        cut += [size // block, block]
    order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), *range(2 * count + 1, 2 * count + 1 + len(rest))]
    blocks_last = x.reshape(*cut, *rest).transpose(order)
    return (
        blocks_last.reshape(-1, *cut[1::2], *rest)
        if x.size
        else blocks_last.reshape(x.shape[0] * int(np.prod(blocks)), *cut[1::2], *rest)
    )


def batch_to_space(x: Array, blocks: tuple[int, ...], crops: Array) -> Array:
    """Invert `space_to_batch`, and crop.

    Args:
        x: (n * prod(blocks), s_1 ... s_m, ...).
        blocks: m block sizes.
        crops: (m, 2), elements removed at the start and end of each spatial axis.

    Raises:
        ValueError: the batch is not a multiple of the block sizes.
    """
    count, total = len(blocks), int(np.prod(blocks))
    if x.shape[0] % total:
        raise ValueError(f"batch {x.shape[0]} is not a multiple of {total}")
    batch, space, rest = x.shape[0] // total, x.shape[1 : count + 1], x.shape[count + 1 :]
    order = [count]
    for axis in range(count):
        order += [count + 1 + axis, axis]
    order += range(2 * count + 1, 2 * count + 1 + len(rest))
    joined = x.reshape(*blocks, batch, *space, *rest).transpose(order)
    joined = joined.reshape(batch, *(size * block for size, block in zip(space, blocks, strict=True)), *rest)
    window = [slice(int(a), joined.shape[1 + i] - int(b)) for i, (a, b) in enumerate(crops)]
    return joined[(slice(None), *window)]


@kernel("SpaceToDepth")
def _space_to_depth(node: Node, x: Array) -> Array:
    """Move blocks of pixels into channels: (n, h, w, c) -> (n, h / b, w / b, b * b * c)."""
    block, channels_first = attribute(node, "block_size"), is_nchw(node)
    x = np.moveaxis(x, 1, -1) if channels_first else x
    n, h, w, c = x.shape
    if h % block or w % block:
        raise ValueError(f"height and width must be multiples of {block}")
    blocks_last = x.reshape(n, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)
    blocks_last = blocks_last.reshape(n, h // block, w // block, block * block * c)
    return np.moveaxis(blocks_last, -1, 1) if channels_first else blocks_last


@kernel("DepthToSpace")
def _depth_to_space(node: Node, x: Array) -> Array:
    """Move channels into blocks of pixels: (n, h, w, b * b * c) -> (n, h * b, w * b, c)."""
    block, channels_first = attribute(node, "block_size"), is_nchw(node)
    x = np.moveaxis(x, 1, -1) if channels_first else x
    n, h, w, depth = x.shape
    if depth % (block * block):
        raise ValueError(f"the depth must be a multiple of {block * block}")
    c = depth // (block * block)
    result = x.reshape(n, h, w, block, block, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h * block, w * block, c)
    return np.moveaxis(result, -1, 1) if channels_first else result
