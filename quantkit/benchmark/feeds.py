"""What a model is fed while it is timed: seeded random data of its own types and shapes."""

from collections.abc import Mapping, Sequence

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import TensorInfo


def seeded_feeds(
    inputs: Sequence[TensorInfo], *, batch: int | None = None, shapes: Mapping[str, Shape] = {}, seed: int = 0
) -> dict[str, Array]:
    """Arrays for every input.

    The data depends on the seed, the input's position, its type and its shape only: two models that take
    the same tensors are fed the same numbers, whatever they call them.

    Args:
        inputs: what the session takes.
        batch: size of a first dimension that the model leaves open; None: 1.
        shapes: what else is known about inputs, by name.
        seed: of the numbers.

    Raises:
        UsageError: a size is unknown, the batch is fixed to another one, or an input takes no numbers.
    """
    return {
        info.name: _values(info, _dims(info, batch, shapes.get(info.name)), np.random.default_rng((seed, index)))
        for index, info in enumerate(inputs)
    }


def _dims(info: TensorInfo, batch: int | None, known: Shape | None) -> tuple[int, ...]:
    dims = info.shape.dims
    if known is not None and known.dims is not None and (dims is None or len(dims) == len(known.dims)):
        own = dims or (None,) * len(known.dims)
        rest = [size if size is not None else other for size, other in zip(own, known.dims, strict=True)][1:]
        dims = (*own[:1], *rest)
    if dims is None or None in dims[1:]:
        raise UsageError(
            f"input {info.name!r} has shape {info.shape}, and its sizes must be known to make data for it",
            hint="write them into the graph: quantkit transform --transforms='strip_unused_nodes(shape=\"1,H,W,C\")'",
        )
    if not dims:
        return ()
    if batch is not None and dims[0] not in (None, batch):
        raise UsageError(f"input {info.name!r} is fixed to a batch of {dims[0]}, not {batch}", hint="leave --batch out")
    return tuple(batch or 1 if size is None else size for size in dims)


def _values(info: TensorInfo, dims: tuple[int, ...], random: "np.random.Generator") -> Array:
    """Real numbers from -1 to 1, pixels from 0 to 255, other integers 0 or 1 (good as ids and as masks)."""
    if info.dtype in (DType.STRING, DType.RESOURCE, DType.VARIANT):
        raise UsageError(
            f"input {info.name!r} takes {info.dtype.value}, and random data is made of numbers",
            hint="choose the tensor behind the decoder, e.g. --inputs Mul",
        )
    kind = info.dtype.numpy
    if info.dtype in (DType.UINT8, DType.QUINT8):
        return random.integers(0, 256, dims, np.uint8)
    if kind.kind in "iub":
        return random.integers(0, 2, dims).astype(kind)
    return random.uniform(-1, 1, dims).astype(kind)
