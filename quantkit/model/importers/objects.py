"""Importer of objects: serialized models, messages, Keras models, TensorFlow functions."""

from typing import Any

from quantkit import formats
from quantkit.errors import InputError
from quantkit.ir.graph import Graph

# Top-level packages whose classes Keras models are made of.
_KERAS_PACKAGES = frozenset({"keras", "tensorflow", "tf_keras"})


def import_object(value: Any) -> Graph:
    """Read a graph from an object.

    Args:
        value: a GraphDef or an ONNX ModelProto, as a message or serialized, a Keras model, or a
            ``tf.function`` with an input signature.

    Raises:
        InputError: the object is broken or too large.
        UsageError: the object is not a model.
        UnavailableError: TensorFlow is not installed.
    """
    if isinstance(value, bytes):
        return _decode(value)
    if hasattr(value, "SerializeToString"):
        return _decode(_serialize(value))
    from quantkit.model.importers.freeze import freeze_object, not_a_model

    if _is_of_tensorflow(value):
        return freeze_object(value)
    raise not_a_model(value)


def _decode(data: bytes) -> Graph:
    """Decode a serialized model.

    Raises:
        InputError: the bytes are neither a GraphDef nor an ONNX ModelProto.
    """
    try:
        return formats.decode(data)
    except InputError as error:
        if error.hint:
            raise
        raise InputError(
            f"the {len(data)} bytes are not a serialized model: {error.message}",
            hint="give a serialized GraphDef or ONNX ModelProto; a path is a str",
        ) from None


def _is_of_tensorflow(value: Any) -> bool:
    if hasattr(value, "get_concrete_function") or hasattr(value, "structured_input_signature"):
        return True
    return any(base.__module__.partition(".")[0] in _KERAS_PACKAGES for base in type(value).__mro__)


def _serialize(message: Any) -> bytes:
    try:
        return bytes(message.SerializeToString())
    except ValueError as error:
        raise InputError(
            f"the {type(message).__name__} cannot be serialized: {error}",
            hint="save it to a file with external weights, and load that file",
        ) from None
