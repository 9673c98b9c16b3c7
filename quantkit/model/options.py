"""Options of verbs that load a model."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quantkit.arguments import as_names, as_shapes, require_names, require_path, require_text
from quantkit.options import Declaration, option

INPUT_SHAPES = Declaration(
    lambda input_shapes: as_shapes(input_shapes),
    help="sizes of an input with dynamic dimensions, for example x:1x3x640x640; may be repeated",
    doc='sizes of inputs with dynamic dimensions, by input name: ``{"x": (1, 3, 640, 640)}``',
)
RANDOM_WEIGHTS = Declaration(help="build the architecture of a model card with random weights")
OFFLINE = Declaration(help="never download; fail if the model is not cached")


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """Sizes of the inputs of a model."""

    input_shapes: Mapping[str, Sequence[int]] | None = option(None, INPUT_SHAPES)


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Parts of a model file, and how the model is obtained; see `quantkit.load`."""

    signature: str | None = option(None, require_text, help="signature of a SavedModel (default: serving_default)")
    tags: Iterable[str] | None = option(
        None,
        require_names,
        help="comma-separated tags of a SavedModel graph (default: serve)",
        doc="tags of a SavedModel graph (default: ``serve``)",
        convert=as_names,
    )
    checkpoint: str | os.PathLike[str] | None = option(
        None,
        require_path,
        metavar="PREFIX",
        help="checkpoint with the variables of a GraphDef that is not frozen",
        doc="prefix of the checkpoint with the variables of a GraphDef that is not frozen",
    )
    random_weights: bool = option(False, RANDOM_WEIGHTS)
    offline: bool = option(False, OFFLINE)


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(FileOptions):
    """Endpoints of a model, and the options of its file."""

    inputs: Iterable[str] | None = option(
        None,
        require_names,
        help="comma-separated input names (default: from the model card, else inferred)",
        doc="names of the inputs in the graph (default: from the model card, else inferred)",
        convert=as_names,
    )
    outputs: Iterable[str] | None = option(
        None,
        require_names,
        help="comma-separated output names (default: from the model card, else inferred)",
        doc="names of the outputs in the graph (default: from the model card, else inferred)",
        convert=as_names,
    )
