"""Sizes of model files, and their text."""

from pathlib import Path

from quantkit.errors import InputError
from quantkit.formats.files import external_data_files
from quantkit.formats.kinds import SUFFIXES
from quantkit.formats.saved_model import FILE
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Tensor


def count_file_bytes(path: Path) -> int:
    """Return the size of a model file or folder in bytes, with the files of weights that belong to an ONNX file."""
    return sum(file.stat().st_size for file in find_files(path))


def find_files(path: Path) -> list[Path]:
    """Return a model file, and the files of weights that belong to it; of a folder, all files sorted by name."""
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    try:
        names = external_data_files(path) if path.suffix == ".onnx" else ()
    except InputError:  # a broken file, which the runtime reports
        names = ()
    return [path, *(path.parent / name for name in names)]


def measure_size(path: Path | None, graph: Graph) -> int:
    """Return the size of a model's file in bytes, with its weights in other files.

    Args:
        path: model file or SavedModel folder; None for a model in memory.
        graph: graph of the model.

    Returns:
        The size of the weights for Keras files, which often hold the state of an optimizer, and for models in memory.
    """
    values = [node.attrs.get("value") for node in graph.nodes.values() if node.is_constant]
    weights = sum(value.num_bytes for value in values if isinstance(value, Tensor))
    file = path / FILE if path is not None and path.is_dir() else path
    kind = "keras" if file is None or not file.is_file() else SUFFIXES.get(file.suffix)
    if file is None or kind == "keras":
        return weights
    return count_file_bytes(file) if kind in ("tflite", "onnx") else max(file.stat().st_size, weights)


def format_size(num_bytes: int) -> str:
    """Return a file size in bytes, kB or MB.

    >>> format_size(24_100_000)
    '24.1 MB'
    """
    if num_bytes < 1e6:
        return f"{num_bytes} bytes" if num_bytes < 1e4 else f"{num_bytes / 1e3:.0f} kB"
    return f"{num_bytes / 1e6:.1f} MB"
