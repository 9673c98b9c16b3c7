"""Exporters of model files, found by the kind of the file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quantkit import formats
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.formats import onnx, saved_model
from quantkit.formats.saved_model import Signature
from quantkit.ir.graph import Graph


@dataclass(frozen=True)
class Exporter:
    """Writer of one kind of file.

    Attributes:
        kind: key of `quantkit.formats.KINDS`.
        write: writes a graph with the signature of its callers to a path; returns the size in
            bytes.
        is_tensorflow: True if the file holds TensorFlow ops, whose GraphDef has a maximum size.
        is_folder: True if the path is a folder.
    """

    kind: str
    write: Callable[[Graph, Path, Signature | None], int]
    is_tensorflow: bool = True
    is_folder: bool = False


def _write_graphdef(graph: Graph, path: Path, signature: Signature | None) -> int:
    formats.save_graphdef(as_tensorflow(graph), path, as_text=False)
    return path.stat().st_size


def _write_graphdef_text(graph: Graph, path: Path, signature: Signature | None) -> int:
    formats.save_graphdef(as_tensorflow(graph), path, as_text=True)
    return path.stat().st_size


def _write_saved_model(graph: Graph, path: Path, signature: Signature | None) -> int:
    formats.save_saved_model(as_tensorflow(graph), path, signature or Signature())
    return (path / saved_model.FILE).stat().st_size


def _write_onnx(graph: Graph, path: Path, signature: Signature | None) -> int:
    if graph.dialect != onnx.DIALECT:
        from quantkit.convert.to_onnx import to_onnx_graph

        graph = to_onnx_graph(graph)
    return sum(file.stat().st_size for file in formats.save_onnx(graph, path))


def _write_litert(graph: Graph, path: Path, signature: Signature | None) -> int:
    from quantkit.convert.to_litert import save_litert

    save_litert(as_tensorflow(graph), path)
    return path.stat().st_size


EXPORTERS = {
    exporter.kind: exporter
    for exporter in (
        Exporter("graphdef", _write_graphdef),
        Exporter("graphdef_text", _write_graphdef_text),
        Exporter("saved_model", _write_saved_model, is_folder=True),
        Exporter("onnx", _write_onnx, is_tensorflow=False),
        Exporter("tflite", _write_litert),
    )
}
