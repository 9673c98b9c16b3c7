"""Tensors, shapes and element types of GraphDefs.

The content of a large tensor is a view of the file, or a function that computes it when it is written.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.graphdef.schema import DATA_TYPES, message_class
from quantkit.ir.tensor import Array, DType, Shape, Tensor

_NUMBERS = {dtype: DATA_TYPES[dtype.value.upper()] for dtype in DType}
_DTYPES = {number: dtype for dtype, number in _NUMBERS.items()}

_FIELD_OF = {
    DType.FLOAT: "float_val",
    DType.DOUBLE: "double_val",
    DType.INT64: "int64_val",
    DType.BOOL: "bool_val",
    DType.HALF: "half_val",
    DType.BFLOAT16: "half_val",
    DType.UINT32: "uint32_val",
    DType.UINT64: "uint64_val",
    DType.COMPLEX64: "scomplex_val",
    DType.COMPLEX128: "dcomplex_val",
    DType.FLOAT8_E5M2: "float8_val",
    DType.FLOAT8_E4M3FN: "float8_val",
}


def element_type(number: int) -> DType | None:
    """Return the element type of a DataType number, or None if there is no such `DType`."""
    return _DTYPES.get(number)


def type_number(dtype: DType) -> int:
    """Return the DataType number of an element type."""
    return _NUMBERS[dtype]


def decode_shape(message: Any) -> Shape:
    """Decode a TensorShapeProto."""
    if message.unknown_rank:
        return Shape(None)
    return Shape(tuple(None if dim.size < 0 else dim.size for dim in message.dim))


def fill_shape(message: Any, shape: Shape) -> None:
    """Write a shape into a TensorShapeProto."""
    if shape.dims is None:
        message.unknown_rank = True
    else:
        message.SetInParent()
        for size in shape.dims:
            message.dim.add(size=-1 if size is None else size)


def decode_tensor(message: Any, content: memoryview | None) -> Tensor:
    """Decode a TensorProto.

    Args:
        message: TensorProto, without ``tensor_content`` if ``content`` is given.
        content: bytes of the values; None if the message has the values.

    Raises:
        InputError: a constant cannot have the type or shape, or the content has a wrong length.
    """
    dtype = _DTYPES.get(message.dtype)
    sizes = tuple(dim.size for dim in message.tensor_shape.dim)
    if dtype is None or message.tensor_shape.unknown_rank or any(size < 0 for size in sizes):
        raise InputError(f"a tensor has the invalid type {message.dtype} or shape {sizes}")
    shape = tuple(int(size) for size in sizes)
    tensor = Tensor(dtype, shape, partial(_no_values, dtype))
    if content is None and message.tensor_content:
        content = memoryview(message.tensor_content)
    if content is not None and dtype is not DType.STRING:
        if len(content) != tensor.num_bytes:
            raise InputError(
                f"a {dtype.value} tensor of shape {Shape(shape)} needs {tensor.num_bytes} bytes and has {len(content)}"
            )
        return Tensor(dtype, shape, partial(_from_content, content, dtype, shape), stored=content)
    if content is not None:
        message.tensor_content = bytes(content)
    stored = message.SerializeToString(deterministic=True)
    return Tensor(dtype, shape, partial(_from_stored, stored, dtype, shape), stored=stored)


def with_typed_field(tensor: Tensor) -> Tensor:
    """Return the tensor encoded with a field of its type (``float_val``, ...) instead of ``tensor_content``."""
    message = message_class("TensorProto")(dtype=_NUMBERS[tensor.dtype])
    fill_shape(message.tensor_shape, Shape(tensor.shape))
    field = _FIELD_OF.get(tensor.dtype, "int_val")
    if tensor.dtype is DType.STRING:
        message.string_val.extend(tensor.array.flat)
    elif field in ("scomplex_val", "dcomplex_val", "float8_val"):
        return tensor
    else:
        array = tensor.array.view(np.uint16) if field == "half_val" else tensor.array
        getattr(message, field).extend(array.reshape(-1).tolist())
    stored = message.SerializeToString(deterministic=True)
    return Tensor(tensor.dtype, tensor.shape, lambda: tensor.array, stored=stored)


def _no_values(dtype: DType) -> Array:
    raise GraphError(f"a {dtype.value} tensor has no values")


def _from_content(content: memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(content, dtype.numpy.newbyteorder("<") if dtype.numpy.kind != "V" else dtype.numpy).reshape(
        shape
    )


def _from_stored(stored: bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Return the values of a TensorProto's typed field; the last value is repeated for missing ones."""
    message = message_class("TensorProto").FromString(stored)
    field = _FIELD_OF.get(dtype, "string_val" if dtype is DType.STRING else "int_val")
    if dtype in (DType.RESOURCE, DType.VARIANT):
        return _no_values(dtype)
    values = getattr(message, field)
    if dtype is DType.STRING:
        values = values or _split_strings(message.tensor_content, shape)
        flat = np.empty(len(values), object)
        flat[:] = list(values)
        empty: Any = b""
    elif field == "half_val":
        flat, empty = np.array(values, np.uint16).view(dtype.numpy), 0
    elif field == "float8_val":
        flat, empty = np.frombuffer(values, np.uint8).view(dtype.numpy), 0
    elif field in ("scomplex_val", "dcomplex_val"):
        flat, empty = np.array(values, np.float32 if field[0] == "s" else np.float64).view(dtype.numpy), 0
    else:
        flat, empty = np.array(values, np.int64 if field == "int_val" else dtype.numpy).astype(dtype.numpy), 0
    count = int(np.prod(shape, dtype=np.int64))
    if len(flat) > count:
        raise GraphError(f"a {dtype.value} tensor of shape {Shape(shape)} lists {len(flat)} values")
    array = np.empty(count, dtype.numpy)
    array[: len(flat)] = flat
    array[len(flat) :] = flat[-1] if len(flat) else empty
    return array.reshape(shape)


def _split_strings(content: bytes, shape: tuple[int, ...]) -> list[bytes]:
    """Return the strings of ``tensor_content``: their lengths as varints, and then their bytes."""
    if not content:
        return []
    lengths, position = [], 0
    for _ in range(int(np.prod(shape, dtype=np.int64))):
        length, position = wire.varint(content, position, len(content))
        lengths.append(length)
    if position + sum(lengths) != len(content):
        raise GraphError(f"a string tensor of shape {Shape(shape)} has a damaged content")
    ends = np.cumsum([position, *lengths]).tolist()
    return [content[start:end] for start, end in pairwise(ends)]


def fill_tensor(message: Any, tensor: Tensor) -> None:
    """Write a tensor into a TensorProto."""
    if isinstance(tensor.stored, bytes):
        message.MergeFromString(tensor.stored)
        return
    message.dtype = _NUMBERS[tensor.dtype]
    fill_shape(message.tensor_shape, Shape(tensor.shape))
    if tensor.dtype is DType.STRING:
        message.string_val.extend(item if isinstance(item, bytes) else str(item).encode() for item in tensor.array.flat)
    else:
        message.tensor_content = bytes(content_of(tensor))


def content_of(tensor: Tensor) -> wire.Buffer:
    """Return the bytes of a tensor's values.

    Raises:
        GraphError: the computed values have another type or shape than the tensor.
    """
    if isinstance(tensor.stored, memoryview):
        return tensor.stored
    array = np.asarray(tensor.array, order="C")
    if array.shape != tensor.shape or array.dtype != tensor.dtype.numpy:
        raise GraphError(f"the values of {tensor} have type and shape {array.dtype}{array.shape}")
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
