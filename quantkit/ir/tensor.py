"""Tensors with lazy values.

A `Tensor` has a type and a shape; `array` reads its values on access from a view of the file, from an array in memory,
or from a computation. Graphs share tensors: copying or transforming a graph copies no weights, and a folded weight is
computed when it is written.
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

# Computed values up to this size are cached; larger ones are computed again at each access, because caching them would
# need the memory of a second copy of the network.
CACHE_LIMIT_BYTES = 1 << 16


class DType(Enum):
    """Element types; the values are TensorFlow's short type names, as recipes write them."""

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
        """NumPy type of the elements; for quantized types, the integer type.

        Raises:
            TypeError: the type has no values (resources, variants).
        """
        name = _NUMPY_NAMES.get(self.value, self.value)
        if self in (DType.RESOURCE, DType.VARIANT):
            raise TypeError(f"{self.value} tensors have no values")
        if name.startswith(("bfloat", "float8", "int4", "uint4")):
            import ml_dtypes  # imported only for graphs with such types

            return np.dtype(getattr(ml_dtypes, name))  # type: ignore[no-any-return]
        return np.dtype(name)

    @property
    def num_bytes(self) -> int:
        """Size of one element in bytes; 0 if elements have no fixed size."""
        return 0 if self in _UNSIZED else self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> "DType":
        """Return the element type of a NumPy type.

        Raises:
            TypeError: there is no equivalent element type.
        """
        dtype = np.dtype(dtype)
        if dtype.kind in "OSU":
            return cls.STRING
        try:
            return cls(_SHORT_NAMES.get(dtype.name, dtype.name))
        except ValueError:
            raise TypeError(f"there is no tensor type for the NumPy type {dtype}") from None


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
_SHORT_NAMES = {"float32": "float", "float64": "double", "float16": "half"}
_UNSIZED = (DType.STRING, DType.RESOURCE, DType.VARIANT)
_FLOATS = (DType.FLOAT, DType.DOUBLE, DType.HALF, DType.BFLOAT16, DType.FLOAT8_E5M2, DType.FLOAT8_E4M3FN)


class Shape:
    """Sizes of a tensor's dimensions; None for an unknown size or an unknown rank.

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
        raise AttributeError("a Shape is immutable")

    @property
    def rank(self) -> int | None:
        return None if self.dims is None else len(self.dims)

    @property
    def is_known(self) -> bool:
        """True if all sizes are known."""
        return self.dims is not None and None not in self.dims

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of a fully known shape.

        Raises:
            ValueError: a size is unknown.
        """
        if self.dims is None or None in self.dims:
            raise ValueError(f"{self} is not fully known")
        return tuple(size for size in self.dims if size is not None)

    def accepts(self, sizes: tuple[int, ...]) -> bool:
        """Return True if a tensor of these sizes matches the shape; unknown sizes match any size.

        >>> Shape((None, 3)).accepts((8, 3)), Shape((None, 3)).accepts((3, 8)), Shape((None, 3)).accepts((3,))
        (True, False, False)
        """
        if self.dims is None:
            return True
        return len(self.dims) == len(sizes) and all(
            dim in (None, size) for dim, size in zip(self.dims, sizes, strict=True)
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
    """Constant values: element type, shape, and values that are read on access.

    Args:
        dtype: element type.
        shape: sizes, all known.
        load: function that returns the array; called at each access of a large tensor, once for a small one.
        stored: encoding of the values in their file; only the reader and writer of the format use it, to write
            the same bytes again.
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
        """Create a tensor from values in memory, which must not be changed afterwards.

        Args:
            values: any array; a Python float becomes float32, an int becomes int32.
            dtype: element type, if NumPy has no equivalent type (``QUINT8`` for uint8 quantized values).
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
        """Values as a read-only array of `shape`."""
        if self._array is not None:
            return self._array
        array = self._load()
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        if self.num_bytes <= CACHE_LIMIT_BYTES:
            self._array = array
        return array

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size of the values in bytes; 0 for strings, whose size is not known before reading."""
        return self.num_elements * self.dtype.num_bytes

    @property
    def digest(self) -> bytes:
        """Hash of 16 bytes, equal for equal type, shape and bits (so that NaN equals the same NaN)."""
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
