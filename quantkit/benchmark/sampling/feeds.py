"""Seeded random arrays of the types and shapes of a model's inputs."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from quantkit.errors import UsageError, did_you_mean
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.limits import check_size
from quantkit.runtimes.session import TensorInfo


def seeded_feeds(
    inputs: Sequence[TensorInfo],
    *,
    batch: int | None = None,
    shapes: Mapping[str, Shape] = {},
    sizes: Mapping[str, Sequence[int]] = {},
    seed: int = 0,
) -> dict[str, Array]:
    """Return an array for each input.

    The values depend only on seed, index, type and shape of the input: two models with equal inputs get equal values,
    even if the names differ.

    Args:
        inputs: inputs of the session.
        batch: batch size for models with a dynamic batch (default: 1).
        shapes: known shapes by input name, for inputs with dynamic dimensions.
        sizes: all sizes that the caller chose, by input name.
        seed: seed of the values.

    Raises:
        UsageError: a size is unknown, the model has another fixed size, or an input is not numeric.
    """
    names = [info.name for info in inputs]
    for name in sizes:
        if name not in names:
            hint = did_you_mean(name, names) or f"the inputs are {', '.join(names)}"
            raise UsageError(f"--input-shape names {name!r}, which is not an input of the model", hint=hint)
    return {
        info.name: _values(
            info,
            _check_sizes(info, sizes[info.name]) if info.name in sizes else _dims(info, batch, shapes.get(info.name)),
            np.random.default_rng((seed, index)),
        )
        for index, info in enumerate(inputs)
    }


def _check_sizes(info: TensorInfo, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes that the caller chose for an input.

    Raises:
        UsageError: the sizes do not fit the shape of the input.
    """
    if not info.shape.accepts(tuple(sizes)):
        raise UsageError(
            f"input {info.name!r} has the shape {info.shape}, and --input-shape is {'x'.join(map(str, sizes))}",
            hint="the dynamic sizes of an input can be chosen, the others are fixed",
        )
    return tuple(sizes)


def _dims(info: TensorInfo, batch: int | None, shape: Shape | None) -> tuple[int, ...]:
    dims = info.shape.dims
    if shape is not None and shape.dims is not None and (dims is None or len(dims) == len(shape.dims)):
        sizes = dims or (None,) * len(shape.dims)
        rest = [size if size is not None else other for size, other in zip(sizes, shape.dims, strict=True)][1:]
        dims = (*sizes[:1], *rest)
    if dims is None or None in dims[1:]:
        raise UsageError(
            f"input {info.name!r} has the dynamic shape {info.shape}: random data needs all sizes but the batch",
            hint=f"choose the sizes, for example --input-shape {info.name}:1x640x640x3, or give data: --data DATA",
        )
    if not dims:
        return ()
    if batch is not None and dims[0] not in (None, batch):
        raise UsageError(f"input {info.name!r} has a fixed batch size of {dims[0]}, not {batch}", hint="omit --batch")
    return tuple(batch or 1 if size is None else size for size in dims)


def _values(info: TensorInfo, dims: tuple[int, ...], random: "np.random.Generator") -> Array:
    """Return floats in [-1, 1], uint8 values from 0 to 255, or other integers 0 and 1 (valid as ids and masks)."""
    if info.dtype in (DType.STRING, DType.RESOURCE, DType.VARIANT):
        raise UsageError(
            f"input {info.name!r} takes {info.dtype.value}, and random data is numeric",
            hint="give data (--data DATA), or select the tensor after the decoder, for example --inputs Mul",
        )
    check_size(f"random values of input {info.name!r} of shape {info.shape} have", 8 * prod(dims))
    kind = info.dtype.numpy
    if info.dtype in (DType.UINT8, DType.QUINT8):
        return random.integers(0, 256, dims, np.uint8)
    if kind.kind in "iub":
        return random.integers(0, 2, dims).astype(kind)
    return random.uniform(-1, 1, dims).astype(kind)
