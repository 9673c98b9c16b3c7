"""Number format of the quantized values of one tensor.

The text form is ``qint8 symmetric per_channel`` for weights or ``quint8 affine`` for activations.
"""

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from quantkit.errors import UsageError, did_you_mean
from quantkit.ir.tensor import DType

LIMITS = MappingProxyType({DType.QUINT8: (0, 255), DType.QINT8: (-128, 127)})
_FLAGS = ("per_channel", "reduce_range")


@dataclass(frozen=True)
class Spec:
    """Number format of one tensor's quantized values; `str` gives the text that `parse` reads.

    Attributes:
        dtype: ``QUINT8`` or ``QINT8``.
        symmetric: zero point 0; otherwise affine, with a zero point.
        per_channel: one scale per output channel.
        reduce_range: 7-bit values, for processors without VNNI, where u8 x s8 products saturate in
            int16.
        axes: dimensions of a constant that together index the channels; empty for one scale, or
            before the layer is known.
        pair_axes: dimensions of the positions of a kernel, in its order, and of the input channels, whose products
            kernels may add in pairs, see `pair_sums`; empty without such kernels.

    >>> str(Spec(DType.QINT8, symmetric=True, per_channel=True, axes=(3,)))
    'qint8 symmetric per_channel axes=3'
    >>> Spec.parse("quint8 affine")
    Spec(dtype=<DType.QUINT8: 'quint8'>, symmetric=False, per_channel=False, reduce_range=False, axes=(), pair_axes=())
    """

    dtype: DType
    symmetric: bool
    per_channel: bool = False
    reduce_range: bool = False
    axes: tuple[int, ...] = ()
    pair_axes: tuple[int, ...] = ()

    @property
    def limits(self) -> tuple[int, int]:
        """Lowest and highest quantized value; symmetric signed formats do not use -128."""
        low, high = LIMITS[self.dtype]
        low = -high if low and self.symmetric else low
        return (int(low / 2), high // 2) if self.reduce_range else (low, high)

    @property
    def is_signed(self) -> bool:
        """True if negative numbers have quantized values."""
        return self.dtype is DType.QINT8 or not self.symmetric

    def __str__(self) -> str:
        parts = [self.dtype.value, "symmetric" if self.symmetric else "affine"]
        parts += [flag for flag in _FLAGS if getattr(self, flag)]
        parts += [f"axes={','.join(map(str, self.axes))}"] if self.axes else []
        parts += [f"pairs={','.join(map(str, self.pair_axes))}"] if self.pair_axes else []
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a spec from its text.

        Raises:
            UsageError: a term is unknown, or the type or the symmetry is missing.
        """
        dtype_of = {dtype.value: dtype for dtype in LIMITS}
        dtypes: list[DType] = []
        symmetries: list[bool] = []
        options: dict[str, Any] = {}
        for token in text.split():
            if token in dtype_of:
                dtypes.append(dtype_of[token])
            elif token in ("symmetric", "affine"):
                symmetries.append(token == "symmetric")
            elif token in _FLAGS:
                options[token] = True
            elif match := re.fullmatch(r"(axes|pairs)=(\d+(?:,\d+)*)", token):
                name = "axes" if match[1] == "axes" else "pair_axes"
                options[name] = tuple(map(int, match[2].split(",")))
            else:
                raise UsageError(
                    f"unknown term {token!r} in the spec {text!r}",
                    hint=did_you_mean(token, (*dtype_of, "symmetric", "affine", *_FLAGS))
                    or "write for example: qint8 symmetric per_channel",
                )
        if len(dtypes) != 1 or len(symmetries) != 1:
            raise UsageError(
                f"the spec {text!r} must name one type and one symmetry",
                hint="write for example: quint8 affine",
            )
        return cls(dtypes[0], symmetries[0], **options)


WEIGHTS = Spec(DType.QINT8, symmetric=True, per_channel=True)
AFFINE = Spec(DType.QUINT8, symmetric=False)
UNSIGNED = Spec(DType.QUINT8, symmetric=True)
