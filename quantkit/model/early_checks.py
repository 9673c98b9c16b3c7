"""Checks of files and names that need no work: before a model is loaded, converted or run."""

import os
from collections.abc import Iterable
from typing import Any

from quantkit.arguments import expand_user
from quantkit.data.labels import read_labels
from quantkit.data.sources import find_data
from quantkit.errors import UnavailableError
from quantkit.formats.kinds import UNREADABLE, kind_of, model_path
from quantkit.model.loading import find_model_card
from quantkit.model.model import Model
from quantkit.runtimes import AUTO, find_runtime


def check_sources(
    *models: Any,
    data: Iterable[Any] = (),
    labels: Any = None,
    runtimes: Iterable[str | None] = (),
    reads_layers: bool = False,
) -> None:
    """Check that files exist and have a known kind, and that runtimes are known; values in memory pass.

    Args:
        models: models, as `quantkit.load` takes them; None for one that is not given.
        data: datasets, as `quantkit.data.as_dataset` takes them; None for one that is not given.
        labels: label file; None if it is not given.
        runtimes: names of runtimes.
        reads_layers: True if the layers of the models are read.

    Raises:
        InputError: a file does not exist, or has an unsupported kind.
        UsageError: a name is not that of a model card or of a runtime.
        UnavailableError: the layers of a model cannot be read.
    """
    for runtime in runtimes:
        if runtime not in (None, AUTO):
            find_runtime(runtime)
    for model in models:
        path = model.path if isinstance(model, Model) else model
        if not isinstance(path, str | os.PathLike) or find_model_card(os.path.expanduser(path)) is not None:
            continue
        kind = kind_of(model_path(expand_user(path)))
        if reads_layers and kind in UNREADABLE:
            raise UnavailableError(
                f"the layers of {os.fspath(path)} cannot be read",
                hint="quantkit evaluate compares the outputs of such models; .pb and .onnx are compared layer by layer",
            )
    for source in data:
        if isinstance(source, str | os.PathLike):
            find_data(source)
    if labels is not None:
        read_labels(expand_user(labels))
