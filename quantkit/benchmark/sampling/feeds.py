"""Seeded random arrays of the types and shapes of a model's inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from quantkit.errors import UsageError, did_you_mean
from quantkit.ir.tensor import Array, Shape
from quantkit.runtimes.random_inputs import INTEGERS, random_values
from quantkit.runtimes.session import TensorInfo

# Size of the dynamic dimensions in the example of a hint.
EXAMPLE_SIZE = 64


def seeded_feeds(
    inputs: Sequence[TensorInfo],
    *,
    batch: int | None = None,
    shapes: Mapping[str, Shape] = {},
    sizes: Mapping[str, Sequence[int]] = {},
    seed: int = 0,
    integers: tuple[int, int] = INTEGERS[0],
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
        integers: least value and end of random integers.

    Raises:
        UsageError: a size is unknown, the model has another fixed size, or an input is not numeric.
    """
    names = [info.name for info in inputs]
    for name in sizes:
        if name not in names:
            hint = did_you_mean(name, names) or f"the inputs are {', '.join(names)}"
            raise UsageError(f"--input-shape names {name!r}, which is not an input of the model", hint=hint)
    infos = [
        replace(info, shape=_known_shape(info, shapes.get(info.name))) for info in inputs if info.name not in sizes
    ]
    unknown = [info for info in infos if info.shape.dims is None or None in info.shape.dims[1:]]
    if unknown:
        examples = " ".join(f"--input-shape {info.name}:{_example(info.shape)}" for info in unknown)
        first = unknown[0]
        raise UsageError(
            f"input {first.name!r} has the dynamic shape {first.shape}: random data needs all sizes but the batch",
            hint=f"choose the sizes, for example {examples}, or give data: --data DATA",
        )
    dims = {info.name: _dims(info, batch) for info in infos}
    return {
        info.name: random_values(
            np.random.default_rng((seed, index)),
            info,
            _check_sizes(info, sizes[info.name]) if info.name in sizes else dims[info.name],
            integers=integers,
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


def _known_shape(info: TensorInfo, shape: Shape | None) -> Shape:
    """Return the shape of an input, with sizes of another shape where its own are dynamic; the batch stays dynamic."""
    dims = info.shape.dims
    if shape is None or shape.dims is None or (dims is not None and len(dims) != len(shape.dims)):
        return info.shape
    sizes = dims or (None,) * len(shape.dims)
    rest = [size if size is not None else other for size, other in zip(sizes, shape.dims, strict=True)][1:]
    return Shape((*sizes[:1], *rest))


def _example(shape: Shape) -> Shape:
    dims = (1, None, None, 3) if shape.dims is None else shape.dims
    return Shape([size or (EXAMPLE_SIZE if axis else 1) for axis, size in enumerate(dims)])


def _dims(info: TensorInfo, batch: int | None) -> tuple[int, ...]:
    dims = info.shape.dims or ()
    if dims and batch is not None and dims[0] not in (None, batch):
        raise UsageError(f"input {info.name!r} has a fixed batch size of {dims[0]}, not {batch}", hint="omit --batch")
    return tuple(batch or 1 if size is None else size for size in dims)
