"""Where a graph goes: a GraphDef, a SavedModel folder, an ONNX or a LiteRT model, chosen by the path's ending."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import UsageError, did_you_mean
from quantkit.formats import graphdef, onnx, saved_model
from quantkit.formats.saved_model import Signature
from quantkit.ir.graph import Graph
from quantkit.model.loading import as_model

KINDS = ("graphdef", "graphdef_text", "saved_model", "onnx", "tflite")
ENDINGS = {ending: kind for ending, kind in formats.ENDINGS.items() if kind in KINDS}


@dataclass(frozen=True)
class Target:
    """A place to write graphs to.

    Attributes:
        path: the file or folder.
        kind: what is written there, one of `KINDS`.
        is_guess: whether the path has an ending that names no format, so that a GraphDef is written there.
    """

    path: Path
    kind: str
    is_guess: bool = False

    @classmethod
    def of(cls, path: str | os.PathLike[str], kind: str | None = None, *, as_text: bool = False) -> "Target":
        """The target of a path: a folder, or a path that ends in ``/``, is a SavedModel's; an ending tells the rest.

        Args:
            path: as a user writes it; an ending that names no format, and looks like none, is free for GraphDefs.
            kind: one of `KINDS`, whatever the ending is.
            as_text: choose the text form of a GraphDef.

        Raises:
            UsageError: no such kind, the ending is that of a format that is only read, the ending is almost one that
                names a format, or the kind has no text form.
        """
        text, place = os.fspath(path), Path(path).expanduser()
        is_guess = False
        if kind is None:
            is_folder = text.endswith(("/", os.sep)) or place.is_dir()
            ending = place.suffix.lower()
            is_guess = not is_folder and bool(ending) and ending not in formats.ENDINGS and not as_text
            kind = "saved_model" if is_folder else formats.ENDINGS.get(ending, "graphdef")
            if is_guess and (hint := did_you_mean(ending, ENDINGS)):
                raise UsageError(
                    f"{place.name} has the ending {place.suffix!r}, which names no format",
                    hint=f"{hint} --format graphdef takes any name",
                )
            if kind not in KINDS:
                raise UsageError(
                    f"{place.name} would be {formats.KINDS[kind]}, and those are only read",
                    hint="name a file that ends in .pb, .pbtxt, .onnx or .tflite, or a folder for a SavedModel",
                )
        if kind not in KINDS:
            raise UsageError(
                f"no format is called {kind!r}", hint=did_you_mean(kind, KINDS) or f"the formats are {', '.join(KINDS)}"
            )
        if as_text and not kind.startswith("graphdef"):
            raise UsageError(f"{formats.KINDS[kind]} has no text form", hint="name a file that ends in .pbtxt")
        return cls(place, "graphdef_text" if as_text else kind, is_guess)

    def check(self, graph: Graph, *, may_shrink: bool = False) -> None:
        """Refuse early what can not be written.

        Args:
            graph: what is to be written, or what it will be made of.
            may_shrink: whether it is still to be rewritten in a way that makes it smaller.

        Raises:
            UsageError: the place is none.
            InputError: the place may not be written to.
            GraphError: the graph is larger than what can be written.
        """
        if self.kind == "saved_model":
            formats.check_folder(self.path)
        else:
            formats.check_target(self.path)
        if self.kind != "onnx" and not may_shrink:
            graphdef.check_size(graph, graph.reachable() if graph.outputs else None)

    def write(self, graph: Graph, signature: Signature | None = None) -> int:
        """Write a graph; it appears complete or not at all.

        Args:
            graph: what to write.
            signature: what callers of a SavedModel call its inputs and outputs; None: as the graph does.

        Returns:
            How many bytes the files have.

        Raises:
            UsageError, InputError, GraphError: as `check`; the disk is full.
            UnavailableError: it can not be converted to what is to be written.
        """
        self.check(graph)
        if self.kind != "onnx":
            graph = as_tensorflow(graph)
        if self.kind == "saved_model":
            formats.save_saved_model(graph, self.path, signature or Signature())
            return (self.path / saved_model.FILE).stat().st_size
        if self.kind == "onnx":
            return sum(file.stat().st_size for file in formats.save_onnx(_as_onnx(graph), self.path))
        if self.kind == "tflite":
            from quantkit.convert.to_litert import save_litert

            save_litert(graph, self.path)
        else:
            formats.save_graphdef(graph, self.path, as_text=self.kind == "graphdef_text")
        return self.path.stat().st_size


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    as_text: bool | None = None,
    format: str | None = None,
    signature: Signature | None = None,
) -> None:
    """Write a model in the format of the path's suffix; the file appears complete or not at all.

    Args:
        model: a `Model`, or any value that `quantkit.load` takes; TensorFlow ops are converted for a ``.onnx`` file,
            ONNX ops for all other formats.
        path: ``.pb``, ``.pbtxt``, ``.onnx``, ``.tflite``, or a folder (new with a ``/`` at the end, or empty) for a
            SavedModel. The weights of an ONNX model over 2 GiB go to ``PATH.data`` beside it. Any other ending is
            that of a GraphDef, unless it is almost one of these.
        as_text: whether a GraphDef is written as text; None: as the ending says.
        format: one of `KINDS`, whatever the ending is.
        signature: names of the inputs and outputs of a SavedModel for its callers; None: the model's own.

    Raises:
        UsageError: the place is none.
        InputError: the disk is full, or the place may not be written to.
        GraphError: the graph is larger than the format allows.
        UnavailableError: it can not be converted to what the ending names.
    """
    kind = "graphdef" if format is None and as_text is False and os.fspath(path).endswith(".pbtxt") else format
    model = as_model(model)
    Target.of(path, kind, as_text=bool(as_text)).write(model.graph, signature or model.signature)


def _as_onnx(graph: Graph) -> Graph:
    if graph.dialect == onnx.DIALECT:
        return graph
    from quantkit.convert.to_onnx import to_onnx_graph

    return to_onnx_graph(graph)
