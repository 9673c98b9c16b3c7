"""What an engine is given: a graph, or a file of a format of its own."""

import os
from pathlib import Path

from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.formats.files import load
from quantkit.formats.kinds import KINDS, kind_of
from quantkit.ir.graph import Graph


def read(model: Graph | str | os.PathLike[str]) -> Graph | Path:
    """A frozen graph's file as a graph; any other file stays where it is, for an engine to open.

    Raises:
        InputError: the file is missing or no model.
    """
    if isinstance(model, Graph):
        return model
    path = Path(model)
    return load(path) if kind_of(path) in ("graphdef", "graphdef_text") else path


def as_onnx(model: Graph | Path, title: str, kinds: tuple[str, ...]) -> bytes | Path:
    """What an engine that reads ONNX opens: bytes made of a graph, or the file.

    Args:
        model: what the caller gave.
        title: the engine's name in a sentence.
        kinds: the kinds of files it reads, as in `quantkit.formats.KINDS`.

    Raises:
        InputError: the file is missing or no model.
        UnavailableError: the engine reads no such file, or the graph can not be converted.
    """
    if isinstance(model, Graph):
        if model.dialect not in ("tensorflow", onnx.DIALECT):
            raise UnavailableError(f"{title} opens TensorFlow and ONNX graphs, not a graph of {model.dialect}")
        if model.dialect == onnx.DIALECT:
            return onnx.encode(model)
        from quantkit.convert.to_onnx import to_onnx

        return to_onnx(model)
    kind = kind_of(model)
    if kind not in kinds:
        raise UnavailableError(f"{title} can not read {model.name}, which is {KINDS[kind]}")
    return model
