"""Output files: the format of a path's suffix, checks before the work, and writing."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from quantkit import formats
from quantkit.arguments import expand_user, require_flag, require_path, require_text, without_none
from quantkit.errors import UsageError, did_you_mean
from quantkit.formats import graphdef, onnx
from quantkit.formats.saved_model import Signature
from quantkit.ir.graph import Graph
from quantkit.model.exporters import EXPORTERS

OUTPUT_KINDS = tuple(EXPORTERS)
SUFFIXES = {suffix: kind for suffix, kind in formats.SUFFIXES.items() if kind in EXPORTERS}


@dataclass(frozen=True)
class OutputFile:
    """Path and format of a model that is written.

    Attributes:
        path: file or folder.
        kind: key of `EXPORTERS`.
        is_guess: True if the suffix names no format, so that a GraphDef is written.
        opset: version of the standard operator set of an ONNX model; None for that of the graph, or of the conversion.
    """

    path: Path
    kind: str
    is_guess: bool = False
    opset: int | None = None

    @classmethod
    def of(
        cls, path: str | os.PathLike[str], kind: str | None = None, *, as_text: bool = False, opset: int | None = None
    ) -> Self:
        """Choose the format of a path: a folder, or a path that ends in ``/``, is a SavedModel.

        Args:
            path: path as the user wrote it; a suffix that resembles no known one is a GraphDef's.
            kind: key of `EXPORTERS`, which overrides the suffix.
            as_text: choose the text form of a GraphDef.
            opset: version of the standard operator set of an ONNX model.

        Raises:
            UsageError: there is no such kind, the format can only be read, the suffix resembles a
                known one, or the kind has no text form or no opset.
        """
        text, expanded = os.fspath(path), expand_user(path)
        is_guess = False
        if kind is None:
            is_folder = text.endswith(("/", os.sep)) or expanded.is_dir()
            suffix = expanded.suffix.lower()
            is_guess = not is_folder and bool(suffix) and suffix not in formats.SUFFIXES and not as_text
            kind = "saved_model" if is_folder else formats.SUFFIXES.get(suffix, "graphdef")
            if is_guess and (hint := did_you_mean(suffix, SUFFIXES)):
                raise UsageError(
                    f"{expanded.name} has the suffix {expanded.suffix!r}, which names no format",
                    hint=f"{hint} --format graphdef takes any name",
                )
            if kind not in EXPORTERS:
                raise UsageError(
                    f"{expanded.name} would be {formats.KINDS[kind]}, which quantkit can only read",
                    hint="name a file that ends in .pb, .pbtxt, .onnx or .tflite, or a folder for a SavedModel",
                )
        if kind not in EXPORTERS:
            raise UsageError(
                f"{kind!r} is not a format",
                hint=did_you_mean(kind, OUTPUT_KINDS) or f"the formats are {', '.join(OUTPUT_KINDS)}",
            )
        if as_text and not kind.startswith("graphdef"):
            raise UsageError(f"{formats.KINDS[kind]} has no text form", hint="name a file that ends in .pbtxt")
        if opset is not None and kind != "onnx":
            raise UsageError(f"{formats.KINDS[kind]} has no opset", hint="name a file that ends in .onnx")
        return cls(expanded, "graphdef_text" if as_text else kind, is_guess, opset)

    @property
    def guess_text(self) -> str:
        """Message that the suffix names no format, with the format that is written."""
        return f"{self.path.name}: {self.path.suffix.lower()} names no format: writing {formats.KINDS[self.kind]}"

    def check_path(self) -> None:
        """Check, before any work, that the path can be written.

        Raises:
            UsageError: the path cannot be a file or folder.
            InputError: the path is not writable.
        """
        if EXPORTERS[self.kind].is_folder:
            formats.check_folder(self.path)
        else:
            formats.check_target(self.path)

    def check(self, graph: Graph, *, may_shrink: bool = False) -> None:
        """Check, before any work, that a graph can be written.

        Args:
            graph: the graph to write, or the one that it will be made of.
            may_shrink: True if a later rewrite may make the graph smaller.

        Raises:
            UsageError: the path cannot be a file or folder.
            InputError: the path is not writable.
            GraphError: the graph is larger than the format allows.
        """
        self.check_path()
        if EXPORTERS[self.kind].is_tensorflow and not may_shrink:
            graphdef.check_size(graph, graph.reachable() if graph.outputs else None)

    def write(self, graph: Graph, signature: Signature | None = None) -> int:
        """Write a graph; the file appears complete or not at all.

        Args:
            graph: the graph to write, which is converted to the ops of the format.
            signature: names of the inputs and outputs of a SavedModel for its callers; if None the
                names in the graph.

        Returns:
            Size of the files in bytes.

        Raises:
            UsageError, InputError, GraphError: see `check`; the disk is full.
            UnavailableError: an op has no equivalent in the format.
        """
        self.check(graph)
        if self.opset is not None:
            from quantkit.convert.onnx_opsets import change_opset
            from quantkit.convert.to_onnx import to_onnx_graph

            graph = change_opset(graph if graph.dialect == onnx.DIALECT else to_onnx_graph(graph), self.opset)
        return EXPORTERS[self.kind].write(graph, self.path, signature)


def choose_output_file(
    path: str | os.PathLike[str], *, as_text: bool | None = None, format: str | None = None
) -> OutputFile:
    """Return the file that `quantkit.save` writes; see there for the arguments.

    Raises:
        UsageError: an argument has another type, or the path names no format that can be written.
    """
    require_path(path=path)
    require_flag(**without_none(as_text=as_text))
    require_text(**without_none(format=format))
    kind = "graphdef" if format is None and as_text is False and os.fspath(path).endswith(".pbtxt") else format
    file = OutputFile.of(path, kind, as_text=bool(as_text))
    if file.is_guess:
        warnings.warn(file.guess_text, stacklevel=3)
    return file
