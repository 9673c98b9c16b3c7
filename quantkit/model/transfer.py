"""Models as files that other processes open."""

from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit import formats
from quantkit.formats import onnx
from quantkit.ir.graph import Edge
from quantkit.model.model import Model

if TYPE_CHECKING:
    from quantkit.zoo.cards import ModelCard

# Suffixes of the files with the weights of ONNX and OpenVINO models, which are next to the model.
_WEIGHTS = (".data", "_data", ".bin")


@dataclass(frozen=True)
class ModelFile:
    """Model in a file, with the facts that the file does not hold.

    Attributes:
        name: as the user wrote it.
        file: file that runtimes open, or that holds the graph.
        digest: SHA-256 of the file, its weights and its inputs and outputs.
        is_graph: True if the file holds a graph in memory of another process.
        inputs, outputs: edges; None if the file defines them.
        path: file or folder that the model was loaded from.
        card: card of a known model.
    """

    name: str
    file: Path
    digest: str
    is_graph: bool
    inputs: tuple[Edge | str, ...] | None = None
    outputs: tuple[Edge | str, ...] | None = None
    path: Path | None = None
    card: "ModelCard | None" = None

    def load(self) -> Model:
        """Load the model."""
        if not self.is_graph:
            return Model(self.name, self.file, self.path, self.card)
        return Model(self.name, formats.load(self.file, self.inputs, self.outputs), self.path, self.card)


def write_model_file(model: Model, folder: Path) -> ModelFile:
    """Return a model as a file: the file that it runs from, or else a new file with its graph.

    Args:
        model: the model.
        folder: folder of the new file, which all processes can read; it is created if necessary.
    """
    if isinstance(model.runnable, Path):
        file = model.runnable.resolve()
        digest = _digest([file, *_weights(file)])
        return ModelFile(model.name, file, digest, False, path=model.path, card=model.card)
    graph = model.runnable
    inputs, outputs = (None, None) if graph.dialect == onnx.DIALECT else (graph.inputs, graph.outputs)
    folder.mkdir(exist_ok=True)
    file = folder.resolve() / ("model.onnx" if graph.dialect == onnx.DIALECT else "model.pb")
    formats.save(graph, file)
    digest = _digest([file], inputs, outputs)
    return ModelFile(model.name, file, digest, True, inputs, outputs, model.path, model.card)


def _weights(file: Path) -> list[Path]:
    candidates = (file.with_name(stem + suffix) for stem in (file.name, file.stem) for suffix in _WEIGHTS)
    return [path for path in candidates if path.is_file()]


def _digest(files: list[Path], *endpoints: tuple[Edge | str, ...] | None) -> str:
    """Return the digest of files and names."""
    digests = []
    for path in files:
        with path.open("rb") as content:
            digests.append(file_digest(content, "sha256").hexdigest())
    text = "\n".join([*digests, *(" ".join(map(str, names or ())) for names in endpoints)])
    return sha256(text.encode()).hexdigest()
