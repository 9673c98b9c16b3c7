"""What two versions of a model are fed: the same samples, each version as its own inputs take them."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import TensorInfo

Feeds = Mapping[str, Array]
# Given what both sessions take: what to feed them, sample by sample.
Feeder = Callable[[Sequence[TensorInfo], Sequence[TensorInfo]], Iterable[tuple[Feeds, Feeds]]]
Batch = Array | Mapping[str, Array]
# Sizes of the patches of a random picture, and how much of its contrast each makes.
PATCHES = ((64, 0.45), (16, 0.35), (4, 0.15), (1, 0.05))
# Without data, pixels stand for what float inputs usually take.
CENTRE = SCALE = np.float32(128)


def batched(batches: Iterable[Batch]) -> Feeder:
    """Feeds both sessions the rows of the same arrays.

    Raises:
        UsageError: the name of a file stands in their place.
    """
    require_arrays(batches)

    def feeder(mine: Sequence[TensorInfo], theirs: Sequence[TensorInfo]) -> Iterator[tuple[Feeds, Feeds]]:
        for batch in batches:
            arrays = dict(batch) if isinstance(batch, Mapping) else {_only(mine).name: np.asarray(batch)}
            partners = _partners(mine, theirs)
            for row in range(len(next(iter(arrays.values())))):
                rows = {name: array[row] for name, array in arrays.items()}
                yield (
                    {info.name: _fit(rows[info.name], info) for info in mine if info.name in rows},
                    {info.name: _fit(rows[one], info) for one, info in partners.items() if one in rows},
                )

    return feeder


def require_arrays(batches: object) -> None:
    """See that batches are no file's name, which is a sequence, too.

    Raises:
        UsageError: they are.
    """
    if isinstance(batches, str | os.PathLike):
        raise UsageError(
            f"batches are arrays, and {os.fspath(batches)!r} names a file", hint="read it first: [np.load(FILE)]"
        )


def random_feeder(samples: int, seed: int) -> Feeder:
    """Feeds both sessions the same seeded numbers: patches where they take pictures, pixels where one takes pixels."""

    def feeder(mine: Sequence[TensorInfo], theirs: Sequence[TensorInfo]) -> Iterator[tuple[Feeds, Feeds]]:
        partners = _partners(mine, theirs)
        random = np.random.default_rng(seed)
        for _ in range(samples):
            rows = {info.name: _row(random, info, partners[info.name]) for info in mine}
            yield (
                {info.name: _fit(rows[info.name], info) for info in mine},
                {info.name: _fit(rows[name], info) for name, info in partners.items()},
            )

    return feeder


def _row(random: np.random.Generator, info: TensorInfo, partner: TensorInfo) -> Array:
    dims = info.shape.dims
    if dims is None or None in dims[1:] or info.dtype is DType.STRING:
        raise UsageError(
            f"input {info.name!r} takes {info.dtype.value} of shape {info.shape}: no random numbers are made for that",
            hint="give --data, or choose an input of known size",
        )
    shape = tuple(size or 1 for size in dims[1:])
    is_picture = len(shape) == 3 and bool({1, 3} & {shape[0], shape[2]})
    if DType.UINT8 in (info.dtype, partner.dtype):
        if is_picture:
            pixels: Array = np.rint(_patches(random, shape) * SCALE + CENTRE).clip(0, 255).astype(np.uint8)
            return pixels
        return random.integers(0, 256, shape, np.uint8)
    if info.dtype.is_float:
        return _patches(random, shape) if is_picture else random.uniform(-1, 1, shape).astype(np.float32)
    return random.integers(0, 2, shape).astype(info.dtype.numpy)


def _patches(random: np.random.Generator, shape: Sequence[int]) -> Array:
    """Patches within patches, from -1 to 1: like pictures, most of it far from noise, which networks were not made for.

    Args:
        random: draws the patches.
        shape: (h, w, c) or (c, h, w); the smallest size is that of channels.
    """
    channels = int(np.argmin(shape))
    made = np.zeros(shape)
    for size, part in PATCHES:
        few = [count if axis == channels else -(-count // size) for axis, count in enumerate(shape)]
        patches = random.uniform(-part, part, few)
        for axis, count in enumerate(shape):
            patches = patches if axis == channels else np.repeat(patches, size, axis).take(range(count), axis)
        made += patches
    return made.astype(np.float32)


def _fit(row: Array, info: TensorInfo) -> Array:
    """A row as an input takes it: its type, its order of axes, its batch."""
    if row.dtype == np.uint8 and info.dtype.is_float:
        row = (row.astype(np.float32) - CENTRE) / SCALE
    if row.dtype != info.dtype.numpy and (not info.dtype.is_float or row.dtype.kind != "f"):
        raise UsageError(
            f"input {info.name!r} takes {info.dtype.value}, not {row.dtype}", hint="give pixels, as uint8, or pictures"
        )
    row = row.astype(info.dtype.numpy, copy=False)
    dims = info.shape.dims
    if dims is None:
        return row[None]
    if len(dims) == 4 and row.ndim == 3 and not Shape(dims[1:]).accepts(row.shape):
        turned = [row.transpose(order) for order in ((2, 0, 1), (1, 2, 0))]
        row = next((one for one in turned if Shape(dims[1:]).accepts(one.shape)), row)
    if not dims:
        return row
    return np.ascontiguousarray(np.broadcast_to(row, (dims[0] or 1, *row.shape)))


def _only(inputs: Sequence[TensorInfo]) -> TensorInfo:
    if len(inputs) != 1:
        raise UsageError(
            f"the model takes {len(inputs)} inputs ({', '.join(info.name for info in inputs)})",
            hint="give arrays by input name",
        )
    return inputs[0]


def _partners(mine: Sequence[TensorInfo], theirs: Sequence[TensorInfo]) -> dict[str, TensorInfo]:
    """The input of the second version for each of the first: by name, or by position."""
    if len(mine) != len(theirs):
        raise UsageError(
            f"one version takes {len(mine)} inputs and the other {len(theirs)}", hint="name them with --inputs"
        )
    named = {info.name: info for info in theirs}
    if all(info.name in named for info in mine):
        return {info.name: named[info.name] for info in mine}
    return {info.name: partner for info, partner in zip(mine, theirs, strict=True)}
