"""Loading of the models that a command line names, with a progress bar during a download."""

from argparse import Namespace
from functools import cache

from quantkit.model import Model, load
from quantkit.model.early_checks import check_sources
from quantkit.progress import Progress
from quantkit.runtimes import split_runtime

from ._arguments import options_of
from ._render import log, show_download


def named_model(args: Namespace, name: str) -> Model:
    """Load the model of a command with the loading flags of the command.

    Args:
        args: parsed arguments of the command.
        name: MODEL as the user wrote it.
    """
    with show_download(args, name) as show:

        @cache
        def announce() -> None:
            log(args, f"downloading {name}")

        def on_progress(progress: Progress) -> None:
            announce()
            show(progress)

        # ``--seed`` is that of the samples, not of random weights.
        options = options_of(load, args, "model", "seed")
        return load(name, **options, on_progress=on_progress)


def check_models(args: Namespace, *texts: str | None, reads_layers: bool = False) -> None:
    """Check the files, data and runtimes that a command names, before a model is loaded.

    Args:
        args: parsed arguments of the command.
        texts: ``MODEL`` or ``MODEL@RUNTIME`` as the user wrote them; None for one that is not given.
        reads_layers: True if the layers of the models are read.
    """
    names = [split_runtime(text)[0] for text in texts if text]
    check_sources(
        *([] if args.random_weights else names),
        data=[args.data],
        labels=getattr(args, "labels", None),
        runtimes=[args.runtime],
        reads_layers=reads_layers,
    )


def model_and_runtime(args: Namespace, text: str) -> tuple[Model, str]:
    """Load ``MODEL`` or ``MODEL@RUNTIME``; return it with its runtime (default: ``--runtime``)."""
    name, runtime = split_runtime(text)
    return named_model(args, name), runtime or args.runtime
