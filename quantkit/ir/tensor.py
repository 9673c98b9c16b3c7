"""Tensors whose values are read when they are needed.

A `Tensor` knows its type and shape; its values stay where they are (a view of the file's bytes, an
array, or a computation still to be done) until `array` is asked for. Graphs share tensors, so that
copying or transforming a graph copies no weights, and a weight that is folded on the way is computed
while it is written.
"""

import math
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Results of a computation up to this size are kept; larger ones are made anew at each use, because
# keeping them would hold a second copy of the network in memory.
KEPT_BYTES = 1 << 16


class DType(Enum):
    """Element types; the values are TensorFlow's short words, as recipes write them."""

    FLOAT = "float"
    DOUBLE = "double"
    HALF = "half"
    BFLOAT16 = "bfloat16"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT4 = "uint4"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    QINT8 = "qint8"
    QUINT8 = "quint8"
    QINT16 = "qint16"
    QUINT16 = "quint16"
    QINT32 = "qint32"
    BOOL = "bool"
    STRING = "string"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    RESOURCE = "resource"
    VARIANT = "variant"

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type that holds the elements; quantized types are held by the integers they are.

        Raises:
            TypeError: the type has no values (resources, variants).
        """
        name = _NUMPY_NAMES.get(self.value, self.value)
        if self in (DType.RESOURCE, DType.VARIANT):
            raise TypeError(f"{self.value} tensors have no values")
        if name.startswith(("bfloat", "float8", "int4", "uint4")):
            import ml_dtypes  # only graphs that hold such numbers pay for it

            return np.dtype(getattr(ml_dtypes, name))  # type: ignore[no-any-return]
        return np.dtype(name)

    @property
    def num_bytes(self) -> int:
        """Bytes of one element; 0 where elements have no fixed size."""
        return 0 if self in _UNSIZED else self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> "DType":
        """The type of a NumPy array's elements.

        Raises:
            TypeError: no element type corresponds.
        """
        dtype = np.dtype(dtype)
        if dtype.kind in "OSU":
            return cls.STRING
        try:
            return cls(_SHORT_WORDS.get(dtype.name, dtype.name))
        except ValueError:
            raise TypeError(f"no tensor type holds NumPy's {dtype}") from None


_NUMPY_NAMES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "string": "object",
    "qint8": "int8",
    "quint8": "uint8",
    "qint16": "int16",
    "quint16": "uint16",
    "qint32": "int32",
}
_SHORT_WORDS = {"float32": "float", "float64": "double", "float16": "half"}
_UNSIZED = (DType.STRING, DType.RESOURCE, DType.VARIANT)
_FLOATS = (DType.FLOAT, DType.DOUBLE, DType.HALF, DType.BFLOAT16, DType.FLOAT8_E5M2, DType.FLOAT8_E4M3FN)


class Shape:
    """The sizes of a tensor's dimensions; None where a size, or the number of dimensions, is unknown.

    >>> Shape((None, 299, 299, 3))
    Shape(?, 299, 299, 3)
    >>> Shape(None).is_known
    False
    """

    __slots__ = ("dims",)
    dims: tuple[int | None, ...] | None

    def __init__(self, dims: "tuple[int | None, ...] | list[int | None] | list[int] | tuple[int, ...] | None") -> None:
        object.__setattr__(self, "dims", None if dims is None else tuple(dims))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Shape does not change")

    @property
    def rank(self) -> int | None:
        return None if self.dims is None else len(self.dims)

    @property
    def is_known(self) -> bool:
        """Whether every size is known."""
        return self.dims is not None and None not in self.dims

    @property
    def known(self) -> tuple[int, ...]:
        """The sizes.

        Raises:
            ValueError: some are unknown.
        """
        if self.dims is None or None in self.dims:
            raise ValueError(f"{self} is not fully known")
        return tuple(size for size in self.dims if size is not None)

    def takes(self, sizes: tuple[int, ...]) -> bool:
        """Whether a tensor of these sizes has this shape, as far as it is known.

        >>> Shape((None, 3)).takes((8, 3)), Shape((None, 3)).takes((3, 8)), Shape((None, 3)).takes((3,))
        (True, False, False)
        """
        if self.dims is None:
            return True
        return len(self.dims) == len(sizes) and all(
            size in (None, found) for size, found in zip(self.dims, sizes, strict=True)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(self.dims)

    def __str__(self) -> str:
        if self.dims is None:
            return "?"
        return "x".join("?" if size is None else str(size) for size in self.dims) or "scalar"

    def __repr__(self) -> str:
        if self.dims is None:
            return "Shape(?)"
        return f"Shape({', '.join('?' if size is None else str(size) for size in self.dims)})"


class Tensor:
    """A constant: element type, shape, and values that are read on demand.

    Args:
        dtype: element type.
        shape: sizes, all known.
        load: makes the array; called at each use of a large tensor, once for a small one.
        stored: how the file it came from wrote it. Only the format that made it looks inside, to write
            the same again.
    """

    __slots__ = ("_array", "_load", "dtype", "shape", "stored")

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], load: Callable[[], Array], *, stored: object = None
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.stored = stored
        self._load = load
        self._array: Array | None = None

    @classmethod
    def of(cls, values: npt.ArrayLike, dtype: DType | None = None) -> Self:
        """A tensor of values at hand, which must not be changed afterwards.

        Args:
            values: any array; a Python float becomes float32, an int becomes int32.
            dtype: element type where NumPy has no own one for it (``QUINT8`` for uint8 codes).
        """
        if isinstance(values, np.ndarray | np.generic):
            array = np.asarray(values)
        else:
            array = np.asarray(values)
            narrow = {"float64": np.float32, "int64": np.int32}.get(array.dtype.name)
            array = array.astype(narrow) if narrow else array
        if dtype is not None and dtype not in _UNSIZED:
            array = array.astype(dtype.numpy, copy=False)
        array = array.view()
        array.flags.writeable = False
        tensor = cls(dtype or DType.of(array.dtype), array.shape, lambda: array)
        tensor._array = array
        return tensor

    @property
    def array(self) -> Array:
        """The values, read-only, of `shape`."""
        if self._array is not None:
            return self._array
        array = self._load()
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        if self.num_bytes <= KEPT_BYTES:
            self._array = array
        return array

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the values; 0 for strings, whose size only reading tells."""
        return self.num_elements * self.dtype.num_bytes

    @property
    def digest(self) -> bytes:
        """16 bytes that are equal for equal type, shape and bits (so NaN equals the same NaN)."""
        hashed = blake2b(f"{self.dtype.value}{self.shape}".encode(), digest_size=16)
        if self.dtype is DType.STRING:
            for item in self.array.reshape(-1):
                hashed.update(len(item).to_bytes(8, "little") + item)
        else:
            hashed.update(np.ascontiguousarray(self.array).reshape(-1).view(np.uint8).data)
        return hashed.digest()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Tensor)
            and self.dtype is other.dtype
            and self.shape == other.shape
            and self.digest == other.digest
        )

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __repr__(self) -> str:
        return f"Tensor({self.dtype.value}, {'x'.join(map(str, self.shape)) or 'scalar'})"
