"""`save`: write any model in the format of a path."""

import os
from typing import Any

from quantkit.arguments import public, type_name
from quantkit.errors import UsageError
from quantkit.formats.saved_model import Signature
from quantkit.model.exporters.files import choose_output_file
from quantkit.model.loading import as_model


@public
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
        model: a `Model`, or any value that `quantkit.load` takes; TensorFlow ops are converted for
            a ``.onnx`` file, ONNX ops for all other formats.
        path: ``.pb``, ``.pbtxt``, ``.onnx``, ``.tflite``, or a folder (new with a ``/`` at the end,
            or empty) for a SavedModel. The weights of an ONNX model over 2 GiB go to ``PATH.data``.
            Any other suffix is that of a GraphDef, with a warning, unless it resembles one of these.
        as_text: True for the text form of a GraphDef, False for the binary form; if None the suffix
            decides.
        format: key of `EXPORTERS`, which overrides the suffix.
        signature: names of the inputs and outputs of a SavedModel for its callers; if None the
            model's own.

    Raises:
        UsageError: the path cannot be written, or `model` has another type.
        InputError: the disk is full, or the path is not writable.
        GraphError: the graph is larger than the format allows.
        UnavailableError: an op has no equivalent in the format.
    """
    file = choose_output_file(path, as_text=as_text, format=format)
    if signature is not None and not isinstance(signature, Signature):
        raise UsageError(
            f"signature is {type_name(signature)}, and must be a Signature",
            hint="load(model, signature=NAME) selects one",
        )
    model = as_model(model)
    file.write(model.graph, signature or model.signature)
