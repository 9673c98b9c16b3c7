"""Conversion between TensorProto messages and tensors, with external data."""

import mmap
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.onnx.schema import RAW_DATA, message_class
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.onnx.types import DTYPES, NUMBERS

# Messages up to this size in bytes are parsed as one; the content of larger tensors stays in the file.
SMALL_BYTES = 2048
# Function from the location of external data to the bytes of that file.
ExternalData = Callable[[str], wire.Buffer]
_FIELD_OF = {
    DType.FLOAT: "float_data",
    DType.COMPLEX64: "float_data",
    DType.DOUBLE: "double_data",
    DType.COMPLEX128: "double_data",
    DType.INT64: "int64_data",
    DType.UINT32: "uint64_data",
    DType.UINT64: "uint64_data",
    DType.STRING: "string_data",
}
# Element types with two values in a byte, the first in its lower half.
PACKED_TYPES = (DType.INT4, DType.UINT4)
# Element types that the typed field stores as the bits of an integer of the same size.
_BIT_TYPES = {
    DType.HALF: np.uint16,
    DType.BFLOAT16: np.uint16,
    DType.FLOAT8_E4M3FN: np.uint8,
    DType.FLOAT8_E5M2: np.uint8,
}


def external_data_reader(folder: str | os.PathLike[str]) -> ExternalData:
    """Return a function that maps external data files of a folder; paths outside of the folder are rejected."""
    root = os.path.realpath(folder)
    files: dict[str, memoryview] = {}

    def read(location: str) -> memoryview:
        if "\0" in location:
            raise InputError(f"the name of the external data file {location!r} has a null character")
        path = os.path.realpath(os.path.join(root, location))
        if os.path.commonpath([root, path]) != root:
            raise InputError(f"external data file {location!r} is outside of the model's folder")
        if path not in files:
            try:
                with open(path, "rb") as file:
                    files[path] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError):
                raise InputError(
                    f"cannot read external data file {location!r}", hint="copy the file to the model's folder"
                ) from None
        return files[path]

    return read


def decode_tensor(message: Any, content: memoryview | None, external: ExternalData | None) -> Tensor:
    """Decode a TensorProto.

    Args:
        message: TensorProto, without ``raw_data`` if ``content`` is given.
        content: bytes of the values; None if the message or an external file has the values.
        external: reader of external data; None if it is not available.

    Raises:
        InputError: the shape is invalid, the number of values is wrong, or external data cannot be read.
    """
    dtype, shape = DTYPES[message.data_type], tuple(message.dims)
    if any(size < 0 for size in shape):
        raise InputError(f"the tensor {message.name!r} has the invalid shape {shape}")
    if message.external_data:
        content = _external_bytes(message, external)
    elif content is None and message.raw_data:
        content = memoryview(message.raw_data)
    count = int(np.prod(shape, dtype=object))
    if content is not None and dtype is not DType.STRING:
        if len(content) != (size := _size_in_bytes(dtype, count)):
            raise InputError(
                f"the {dtype.value} tensor {message.name!r} of shape {Shape(shape)} needs "
                f"{size} bytes but has {len(content)}"
            )
        return Tensor(dtype, shape, partial(_values_of_bytes, content, dtype, shape), stored=content)
    values = getattr(message, _FIELD_OF.get(dtype, "int32_data"))
    if dtype in PACKED_TYPES:
        if len(values) != -(-count // 2):
            raise InputError(
                f"the {dtype.value} tensor {message.name!r} of shape {Shape(shape)} has {len(values)} bytes"
            )
        return Tensor.of(_unpack(np.array(values, np.int32).astype(np.uint8), dtype, shape), dtype)
    if len(values) != count * (2 if dtype in (DType.COMPLEX64, DType.COMPLEX128) else 1):
        raise InputError(f"the {dtype.value} tensor {message.name!r} of shape {Shape(shape)} has {len(values)} values")
    return Tensor.of(_values_of_field(values, dtype).reshape(shape), dtype)


def _external_bytes(message: Any, external: ExternalData | None) -> memoryview:
    entries = {entry.key: entry.value for entry in message.external_data}
    if external is None or not entries.get("location"):
        raise InputError(
            f"the tensor {message.name!r} is in an external file ({entries.get('location')})",
            hint="load the model by the path of its file",
        )
    data = memoryview(external(entries["location"]))
    try:
        offset = int(entries.get("offset", 0))
        end = offset + int(entries["length"]) if "length" in entries else len(data)
    except ValueError:
        raise InputError(f"offset or length of the external tensor {message.name!r} is not a number") from None
    if not 0 <= offset <= end <= len(data):
        raise InputError(f"the external tensor {message.name!r} exceeds the end of {entries['location']!r}")
    return data[offset:end]


def _size_in_bytes(dtype: DType, count: int) -> int:
    return -(-count // 2) if dtype in PACKED_TYPES else count * dtype.num_bytes


def stored_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor's values in a file; types of 4 bits are packed."""
    return _size_in_bytes(tensor.dtype, tensor.num_elements)


def _unpack(packed: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Return values of 4 bits from bytes with two values each."""
    halves = np.stack([packed & 15, packed >> 4], -1).reshape(-1)[: int(np.prod(shape, dtype=np.int64))]
    signed = halves.astype(np.int8)
    return (
        (np.where(signed > 7, signed - 16, signed) if dtype is DType.INT4 else halves)
        .astype(dtype.numpy)
        .reshape(shape)
    )


def _pack(array: Array) -> Array:
    """Return bytes with two values of 4 bits each."""
    flat = array.astype(np.int8).reshape(-1).view(np.uint8) & 15
    even = np.append(flat, np.uint8(0)) if flat.size % 2 else flat
    return np.asarray(even[::2] | even[1::2] << 4, np.uint8)


def _values_of_bytes(content: memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype in PACKED_TYPES:
        return _unpack(np.frombuffer(content, np.uint8), dtype, shape)
    order = dtype.numpy if dtype.numpy.kind == "V" else dtype.numpy.newbyteorder("<")
    return np.frombuffer(content, order).reshape(shape)


def _values_of_field(values: Any, dtype: DType) -> Array:
    """Return the values of a typed field."""
    if dtype is DType.STRING:
        flat = np.empty(len(values), object)
        flat[:] = list(values)
        return flat
    if dtype in _BIT_TYPES:
        return np.array(values, np.int32).astype(_BIT_TYPES[dtype]).view(dtype.numpy)
    if dtype in (DType.COMPLEX64, DType.COMPLEX128):
        return np.array(values, np.float32 if dtype is DType.COMPLEX64 else np.float64).view(dtype.numpy)
    if dtype in (DType.UINT32, DType.UINT64):
        return np.array(values, np.uint64).astype(dtype.numpy)
    return np.array(values, np.int64 if _FIELD_OF.get(dtype, "int32_data").startswith("int") else dtype.numpy).astype(
        dtype.numpy
    )


def inline_external_data(message: Any, external: ExternalData | None) -> None:
    """Replace the reference of a TensorProto to external data by the data."""
    if message.external_data:
        message.raw_data = bytes(_external_bytes(message, external))
        message.ClearField("external_data")
        message.ClearField("data_location")


def encode_tensor(number: int, name: str, tensor: Tensor) -> list[wire.Buffer | Tensor]:
    """Encode a field with a tensor in parts; the content of a large tensor is the last part.

    Raises:
        GraphError: ONNX has no such element type.
    """
    if tensor.dtype not in NUMBERS:
        raise GraphError(f"ONNX has no element type {tensor.dtype.value} (constant {name!r})")
    message = message_class("TensorProto")(dims=tensor.shape, data_type=NUMBERS[tensor.dtype])
    if name:
        message.name = name
    if tensor.dtype is DType.STRING:
        message.string_data.extend(
            item if isinstance(item, bytes) else str(item).encode() for item in tensor.array.flat
        )
        return nested_field(number, message.SerializeToString(deterministic=True), [])
    head = message.SerializeToString(deterministic=True) + wire.header(RAW_DATA, stored_bytes(tensor))
    return nested_field(number, head, [tensor if tensor.num_bytes > SMALL_BYTES else bytes(content_of(tensor))])


def nested_field(number: int, head: bytes, parts: list[wire.Buffer | Tensor]) -> list[wire.Buffer | Tensor]:
    """Return the parts of a field whose message consists of ``head`` and ``parts``."""
    length = len(head) + num_bytes(parts)
    return [wire.header(number, length) + head, *parts]


def num_bytes(parts: Iterable[wire.Buffer | Tensor]) -> int:
    """Return the size of a field's parts in a file."""
    return sum(stored_bytes(part) if isinstance(part, Tensor) else len(part) for part in parts)


def content_of(tensor: Tensor) -> wire.Buffer:
    """Return the bytes of a tensor's values.

    Raises:
        GraphError: the computed values have another type or shape than the tensor.
    """
    if isinstance(tensor.stored, memoryview) and len(tensor.stored) == stored_bytes(tensor):
        return tensor.stored
    array = np.asarray(tensor.array, order="C")
    if array.shape != tensor.shape or array.dtype != tensor.dtype.numpy:
        raise GraphError(f"the values of {tensor} have type and shape {array.dtype}{array.shape}")
    packed = _pack(array) if tensor.dtype in PACKED_TYPES else array
    return memoryview(packed.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
