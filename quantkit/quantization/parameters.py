"""Codes and the real numbers they stand for.

    code = clip(round(x / scale) + zero_point)        x ~= (code - zero_point) * scale

Rounding is half to even; real 0 is always exactly a code.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from quantkit.ir.tensor import Array
from quantkit.quantization.ranges import Range
from quantkit.quantization.spec import Spec

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Grid:
    """Evenly spaced numbers.

    Attributes:
        spec: the form of the codes.
        scale: distance between neighbours, float32: () or (c,).
        zero_point: the code of 0, int32, of the same shape.
    """

    spec: Spec
    scale: Floats
    zero_point: npt.NDArray[np.int32]

    @classmethod
    def of_range(cls, spec: Spec, span: Range) -> Self:
        """The finest grid of a spec that reaches a range; a range that holds only 0 gets steps of 1.

        >>> grid = Grid.of_range(Spec.parse("quint8 affine"), Range(-1.0, 0.9921875))
        >>> float(grid.scale), int(grid.zero_point)
        (0.0078125, 128)
        """
        return cls.of_ends(spec, span.low, span.high)

    @classmethod
    def of_weights(cls, spec: Spec, values: Array) -> Self:
        """The grid of a constant: one scale for each channel where the spec says so.

        Args:
            spec: with `Spec.axes` where it is per channel.
            values: the constant, finite.
        """
        if not (spec.per_channel and spec.axes):
            return cls.of_ends(spec, values.min(initial=0), values.max(initial=0))
        rest = tuple(axis for axis in range(values.ndim) if axis not in spec.axes)
        return cls.of_ends(spec, values.min(rest, initial=0).reshape(-1), values.max(rest, initial=0).reshape(-1))

    @classmethod
    def of_ends(cls, spec: Spec, low: npt.ArrayLike, high: npt.ArrayLike) -> Self:
        """The finest grids of a spec that reach from ``low`` to ``high``, both () or (c,)."""
        first, last = spec.limits
        low, high = np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)
        if spec.symmetric:
            width, steps = np.maximum(-low, high) if first else high, last
        else:
            width, steps = high - low, last - first
        scale = (width / steps).astype(np.float32)
        scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)
        zero = np.zeros_like(low) if spec.symmetric else np.clip(np.rint(first - low / scale), first, last)
        return cls(spec, scale, zero.astype(np.int32))

    def along(self, rank: int) -> "tuple[Floats, npt.NDArray[np.int32]]":
        """Scale and zero point in a form that broadcasts against the tensor of ``rank`` dimensions.

        Only for channels that one dimension, or the last ones together, number.
        """
        if not self.scale.ndim:
            return self.scale, self.zero_point
        axis = self.spec.axes[0]
        shape = [1] * rank
        shape[axis] = -1
        return self.scale.reshape(shape), self.zero_point.reshape(shape)

    def encode(self, values: Array) -> Array:
        """Codes of real numbers.

        Args:
            values: float32, any shape; of the weights' shape where the grid is per channel.

        Returns:
            uint8 or int8, same shape.
        """
        flat = self._channels_last(values)
        scale, zero = self.along(flat.ndim) if len(self.spec.axes) < 2 else (self.scale, self.zero_point)
        levels = np.rint(flat / scale)
        levels += zero
        np.clip(levels, *self.spec.limits, out=levels)
        return levels.astype(self.spec.dtype.numpy).reshape(values.shape)

    def decode(self, codes: Array) -> Floats:
        """The real numbers of codes, float32, same shape."""
        flat = self._channels_last(codes)
        scale, zero = self.along(flat.ndim) if len(self.spec.axes) < 2 else (self.scale, self.zero_point)
        return ((flat.astype(np.float32) - zero.astype(np.float32)) * scale).reshape(codes.shape)

    def rounded(self, values: Array) -> Floats:
        """The numbers of the grid that real numbers become."""
        return self.decode(self.encode(values))

    def _channels_last(self, values: Array) -> Array:
        """With the last dimensions joined, where several number the channels."""
        if not self.scale.ndim or len(self.spec.axes) < 2:
            return values
        return values.reshape(*values.shape[: self.spec.axes[0]], -1)
