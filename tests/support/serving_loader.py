"""Open a SavedModel with the C loader that TensorFlow Serving uses, without TensorFlow's Python code.

python serving_loader.py FOLDER TAG        prints the size of the MetaGraphDef
"""

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path

_SPEC = find_spec("tensorflow")
LIBRARY = Path(_SPEC.origin or "" if _SPEC else "").parent / "libtensorflow_cc.so.2"


class Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("free", ctypes.c_void_p))


def load(folder: str, tag: str) -> int:
    """Load and initialize a model; return the size of its MetaGraphDef in bytes.

    Raises:
        RuntimeError: the loader rejects the model.
    """
    library = ctypes.CDLL(str(LIBRARY))
    for name in ("NewSessionOptions", "NewStatus", "NewGraph", "LoadSessionFromSavedModel"):
        getattr(library, f"TF_{name}").restype = ctypes.c_void_p
    library.TF_Message.restype = ctypes.c_char_p
    options, status, graph = (
        ctypes.c_void_p(getattr(library, f"TF_New{name}")()) for name in ("SessionOptions", "Status", "Graph")
    )
    meta, tags = Buffer(), (ctypes.c_char_p * 1)(tag.encode())
    library.TF_LoadSessionFromSavedModel(options, None, folder.encode(), tags, 1, graph, ctypes.byref(meta), status)
    if library.TF_GetCode(status):
        raise RuntimeError(library.TF_Message(status).decode())
    return int(meta.length)


if __name__ == "__main__":
    print(load(*sys.argv[1:]))
