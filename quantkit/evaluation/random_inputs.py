"""Seeded random inputs for the comparison of two versions of a model."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.limits import check_size
from quantkit.runtimes.session import TensorInfo

# Sizes of the patches of a random image, and the contrast of each size.
PATCHES = ((64, 0.45), (16, 0.35), (4, 0.15), (1, 0.05))
# Normalization between uint8 and float inputs: (x - 128) / 128.
MEAN = STD = np.float32(128)


def pair_inputs(first: Sequence[TensorInfo], second: Sequence[TensorInfo]) -> dict[str, TensorInfo]:
    """Return the input of the second version for each input of the first: by name, else by position.

    Raises:
        UsageError: the numbers of inputs differ.
    """
    if len(first) != len(second):
        raise UsageError(
            f"one version has {len(first)} inputs and the other {len(second)}", hint="select them with --inputs"
        )
    by_name = {info.name: info for info in second}
    if all(info.name in by_name for info in first):
        return {info.name: by_name[info.name] for info in first}
    return {info.name: partner for info, partner in zip(first, second, strict=True)}


def random_feeds(
    first: Sequence[TensorInfo], second: Sequence[TensorInfo], samples: int, seed: int
) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array]]]:
    """Yield equal random feeds for both versions.

    Image inputs get patches instead of noise; if one version takes uint8, the other gets normalized pixels.

    Raises:
        UsageError: an input takes strings, or its size is not known.
    """
    partners = pair_inputs(first, second)
    random = np.random.default_rng(seed)
    for _ in range(samples):
        arrays = {info.name: _random_array(random, info, partners[info.name]) for info in first}
        yield (
            {info.name: _fit(arrays[info.name], info) for info in first},
            {partner.name: _fit(arrays[name], partner) for name, partner in partners.items()},
        )


def _random_array(random: np.random.Generator, info: TensorInfo, partner: TensorInfo) -> Array:
    dims = info.shape.dims
    if dims is None or None in dims[1:] or info.dtype is DType.STRING:
        raise UsageError(
            f"input {info.name!r} takes {info.dtype.value} of shape {info.shape}, which cannot be random",
            hint="pass --data, or select an input of known size",
        )
    shape = tuple(size or 1 for size in dims[1:])
    batch = max((each.shape.dims or (1,))[0] or 1 for each in (info, partner))
    check_size(f"random values of input {info.name!r} of shape {info.shape} have", 8 * batch * prod(shape))
    is_image = len(shape) == 3 and bool({1, 3} & {shape[0], shape[2]})
    if DType.UINT8 in (info.dtype, partner.dtype):
        if is_image:
            pixels: Array = np.rint(_random_patches(random, shape) * STD + MEAN).clip(0, 255).astype(np.uint8)
            return pixels
        return random.integers(0, 256, shape, np.uint8)
    if info.dtype.is_float:
        return _random_patches(random, shape) if is_image else random.uniform(-1, 1, shape).astype(np.float32)
    return random.integers(0, 2, shape).astype(info.dtype.numpy)


def _random_patches(random: np.random.Generator, shape: Sequence[int]) -> Array:
    """Return nested patches in [-1, 1], whose statistics are closer to images than those of noise.

    Args:
        random: generator of the patches.
        shape: (h, w, c) or (c, h, w); the smallest dimension counts the channels.
    """
    channels = int(np.argmin(shape))
    image = np.zeros(shape)
    for size, contrast in PATCHES:
        counts = [count if axis == channels else -(-count // size) for axis, count in enumerate(shape)]
        patches = random.uniform(-contrast, contrast, counts)
        for axis, count in enumerate(shape):
            if axis != channels:
                patches = np.repeat(patches, size, axis).take(range(count), axis)
        image += patches
    return image.astype(np.float32)


def _fit(array: Array, info: TensorInfo) -> Array:
    """Convert an array to the type, axes and batch size of an input."""
    if array.dtype == np.uint8 and info.dtype.is_float:
        array = (array.astype(np.float32) - MEAN) / STD
    if array.dtype != info.dtype.numpy and (not info.dtype.is_float or array.dtype.kind != "f"):
        raise UsageError(f"input {info.name!r} takes {info.dtype.value}, not {array.dtype}", hint="pass --data")
    array = array.astype(info.dtype.numpy, copy=False)
    dims = info.shape.dims
    if dims is None:
        return array[None]
    if len(dims) == 4 and array.ndim == 3 and not Shape(dims[1:]).accepts(array.shape):
        candidates = [array.transpose(order) for order in ((2, 0, 1), (1, 2, 0))]
        array = next((candidate for candidate in candidates if Shape(dims[1:]).accepts(candidate.shape)), array)
    if not dims:
        return array
    return np.ascontiguousarray(np.broadcast_to(array, (dims[0] or 1, *array.shape)))
