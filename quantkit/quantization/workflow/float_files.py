"""Float model in each runtime, in files that the runtimes read without a conversion."""

import warnings
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from quantkit import formats
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.convert.to_litert import to_litert
from quantkit.convert.to_onnx import to_onnx_graph
from quantkit.errors import FallbackWarning, QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.quantization.report.census import FLOAT
from quantkit.runtimes import REFERENCE, find_runtime, runtimes


def float_candidates(graph: Graph, folder: Path, required: Collection[str]) -> list[Candidate]:
    """Return the float model in each installed runtime that opens it.

    Args:
        graph: float graph.
        folder: for its file.
        required: runtimes that are candidates even if they are known to be slow.
    """
    path, settings = folder / "float.onnx", Settings()
    if graph.dialect != onnx.DIALECT:
        path = folder / "float.pb"
        settings = Settings(inputs=tuple(map(str, graph.inputs)), outputs=tuple(map(str, graph.outputs)))
    formats.save(graph, path)
    names = [name for name, runtime in runtimes().items() if runtime.opens(graph) and runtime.available().ok]
    # The reference runtime is never the fastest.
    names = [name for name in names if name != REFERENCE or name in required]
    return [Candidate(FLOAT, path, replace(settings, runtime=name)) for name in names]


class ConvertedFiles:
    """Files of the float model in the formats that runtimes read without a conversion.

    Each is written once: otherwise every process of a runtime would convert the graph.

    Args:
        graph: float graph.
        folder: for the files.
        required: runtimes whose format is worth a conversion that takes seconds.
    """

    def __init__(self, graph: Graph, folder: Path, required: Collection[str]) -> None:
        self._graph, self._folder, self._required = graph, folder, required

    def replace(self, candidate: Candidate) -> Candidate:
        """Return a candidate with the file for its runtime; unchanged if its process converts the graph itself."""
        name = candidate.settings.runtime
        kinds = find_runtime(name).kinds
        path = None
        if onnx.DIALECT in kinds:
            path = self._onnx
        elif "tflite" in kinds and name in self._required:
            path = self._litert
        if path is None:
            return candidate
        return Candidate(FLOAT, path, Settings(runtime=name, input_shapes=candidate.settings.input_shapes))

    @cached_property
    def _onnx(self) -> Path | None:
        """ONNX file; None if the graph is an ONNX graph, or has no conversion."""
        if self._graph.dialect == onnx.DIALECT:
            return None
        path = self._folder / "converted.onnx"
        # A candidate whose conversion fails reports the reason.
        with suppress(QuantkitError), warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            formats.save(to_onnx_graph(self._graph), path)
            return path
        return None

    @cached_property
    def _litert(self) -> Path | None:
        """LiteRT file; None if the graph has no conversion."""
        path = self._folder / "converted.tflite"
        with suppress(QuantkitError):
            path.write_bytes(to_litert(self._graph))
            return path
        return None
