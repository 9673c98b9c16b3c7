"""Reading of pickled arrays without running code from the file.

A pickle names functions that are called when it is read. `read_pickle` calls none of them: the few names that a pickled
array needs stand for inert classes of this module, and any other name is an error.
"""

import pickle
from typing import Any, BinaryIO

from quantkit.errors import InputError, one_line


class PickledType:
    """Element type of a pickled array.

    Attributes:
        code: NumPy's code of the type, for example ``u1``.
    """

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: Any) -> None:
        """Accept the byte order, which single bytes do not have."""


class PickledArray:
    """Content of a pickled array.

    Attributes:
        shape: sizes of the dimensions.
        type: element type.
        data: bytes of the elements in C order; empty if the array has another order.
    """

    def __init__(self, *_: Any) -> None:
        self.shape: tuple[Any, ...] = ()
        self.type = PickledType()
        self.data = b""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array has an unknown form")
        _, shape, kind, is_fortran, data = state
        if not (isinstance(shape, tuple) and isinstance(kind, PickledType) and isinstance(data, bytes)) or is_fortran:
            raise pickle.UnpicklingError("an array has an unknown form")
        self.shape, self.type, self.data = shape, kind, data


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Return the bytes that Python 3 writes as text in old protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes have an unknown form")
    return text.encode("latin1")


def _empty_bytes(*arguments: Any) -> bytes:
    """Return the empty byte string, which Python 3 writes as a call in old protocols."""
    if arguments:
        raise pickle.UnpicklingError("bytes have an unknown form")
    return b""


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty_bytes,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"the pickle names {module}.{name}, which an archive of arrays does not need")
        return _NAMES[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("the pickle names objects outside the file")


def read_pickle(file: BinaryIO, name: str) -> Any:
    """Read a pickle of dicts, lists, numbers, byte strings and arrays; text of Python 2 becomes bytes.

    Args:
        file: file at the start of the pickle, which states its own end.
        name: name of the file, for messages.

    Returns:
        The value; arrays are `PickledArray` objects.

    Raises:
        InputError: the pickle is damaged, or names anything else.
    """
    try:
        return _Reader(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises errors of many types
        reason = one_line(str(error)) or type(error).__name__
        raise InputError(f"{name} is not a pickle of arrays: {reason}", hint="download the archive again") from None
