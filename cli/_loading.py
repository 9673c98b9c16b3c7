"""Loading of the models that a command line names, with a progress bar during a download."""

from argparse import Namespace
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache

from quantkit.model import Model, load
from quantkit.progress import OnProgress
from quantkit.runtimes import split_runtime

from ._render import log, progress


def named_model(
    args: Namespace,
    name: str,
    *,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    random_weights: bool = False,
) -> Model:
    """Load the model of a command with the loading flags of the command.

    Args:
        args: parsed arguments of the command.
        name: MODEL as the user wrote it.
        inputs, outputs: names of the inputs and outputs; if None those of the file or its card.
        random_weights: build the card's architecture with random weights.
    """
    with ExitStack() as bars:

        @cache
        def open_bar() -> OnProgress:
            """Open the progress bar at the first report: it takes a tenth of a second."""
            log(args, f"downloading {name}")
            bar = bars.enter_context(progress(args))
            task = bar.add_task(name, total=None)
            return lambda state: bar.update(task, completed=state.done, total=state.total)

        return load(
            name,
            inputs,
            outputs,
            signature=getattr(args, "signature", None),
            tags=getattr(args, "tags", None),
            checkpoint=getattr(args, "checkpoint", None),
            random_weights=random_weights,
            offline=args.offline,
            on_progress=lambda state: open_bar()(state),
        )


def model_and_runtime(args: Namespace, text: str) -> tuple[Model, str]:
    """Load ``MODEL`` or ``MODEL@RUNTIME``; return it with its runtime (default: ``--runtime``)."""
    name, runtime = split_runtime(text)
    model = named_model(args, name, inputs=args.inputs, outputs=args.outputs, random_weights=args.random_weights)
    return model, runtime or args.runtime
