"""Importers of model files, found by the kind of the file."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from quantkit import formats
from quantkit.errors import UsageError
from quantkit.formats import metadata
from quantkit.formats.saved_model import Signature
from quantkit.ir.graph import Edge, Graph

EdgeNames = Iterable[Edge | str] | str | None


@dataclass(frozen=True)
class ImportOptions:
    """Options of all importers; each importer states which ones it takes.

    Attributes:
        inputs, outputs: edges that replace the file's own; if None the file's own, else inferred.
        signature: name of a SavedModel's signature; if None ``serving_default``, or the only one.
        tags: tags of one of a SavedModel's graphs; if None those of serving, or of the only graph.
        checkpoint: prefix of the checkpoint files with the variables of a graph that is not frozen.
    """

    inputs: tuple[Edge | str, ...] | None = None
    outputs: tuple[Edge | str, ...] | None = None
    signature: str | None = None
    tags: Iterable[str] | None = None
    checkpoint: str | os.PathLike[str] | None = None


Imported = tuple[Graph | Path, Signature | None]


@dataclass(frozen=True)
class Importer:
    """Reader of some kinds of files.

    Attributes:
        kinds: keys of `quantkit.formats.KINDS`.
        read: reads a file or folder into a graph, or returns the path of a file that runtimes open
            unchanged.
        has_signatures: True if the options `signature` and `tags` apply.
        takes_checkpoint: True if the option `checkpoint` applies.
    """

    kinds: tuple[str, ...]
    read: Callable[[Path, ImportOptions], Imported]
    has_signatures: bool = False
    takes_checkpoint: bool = False


def import_file(path: Path, options: ImportOptions) -> Imported:
    """Read a model file with the importer of its kind.

    Raises:
        InputError: the file is missing or broken.
        UsageError: an option does not apply to this kind of file, or an input or output is not in
            the graph.
    """
    kind = formats.kind_of(path)
    importer = IMPORTERS[kind]
    if (options.signature or options.tags) and not importer.has_signatures:
        raise UsageError(
            f"{path} is {formats.KINDS[kind]}: only a SavedModel folder has signatures and tags",
            hint="remove the signature and the tags, or name the SavedModel folder",
        )
    if options.checkpoint and not importer.takes_checkpoint:
        raise UsageError(
            f"a checkpoint fills the variables of a GraphDef, and {path} is {formats.KINDS[kind]}",
            hint="remove the checkpoint, or name the GraphDef that it belongs to",
        )
    return importer.read(path, options)


def _read_graphdef(path: Path, options: ImportOptions) -> Imported:
    graph = formats.load(path, options.inputs, options.outputs)
    if options.checkpoint:
        from quantkit.model.importers import variables

        graph = variables.fill_variables(graph, Path(options.checkpoint), options.outputs)
    return graph, None


def _read_saved_model(path: Path, options: ImportOptions) -> Imported:
    from quantkit.model.importers import variables

    graph, signature = variables.read_saved_model(
        path, options.signature, options.tags, options.inputs, options.outputs
    )
    return metadata.without_receipt(metadata.with_text(graph, metadata.read_text(path))), signature


def _read_checkpoint(path: Path, options: ImportOptions) -> Imported:
    from quantkit.model.importers import variables

    return variables.read_checkpoint(path, options.inputs, options.outputs), None


def _read_keras(path: Path, options: ImportOptions) -> Imported:
    from quantkit.model.importers.keras import freeze_keras

    return freeze_keras(path).with_endpoints(options.inputs, options.outputs), None


def _keep_file(path: Path, options: ImportOptions) -> Imported:
    return path, None


IMPORTERS = {
    kind: importer
    for importer in (
        Importer(("graphdef", "graphdef_text"), _read_graphdef, takes_checkpoint=True),
        Importer(("saved_model",), _read_saved_model, has_signatures=True),
        Importer(("checkpoint",), _read_checkpoint),
        Importer(("keras",), _read_keras),
        Importer(("onnx", "tflite", "openvino"), _keep_file),
    )
    for kind in importer.kinds
}
