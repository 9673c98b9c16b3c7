"""Models by the words of the command line, with a bar while one is fetched."""

from argparse import Namespace
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from quantkit.model import Model, load
from quantkit.progress import OnProgress
from quantkit.runtimes import split_runtime

from ._render import log, progress


def named_model(
    args: Namespace,
    word: str,
    *,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    random_weights: bool = False,
) -> Model:
    """The model of a word: a file, a folder, or the name of a card.

    Args:
        args: of the command, which has ``--offline``, and may have what `add_saved_model` adds.
        word: as the user wrote it; ``~`` is expanded.
        inputs, outputs: ends of the graph; None: as the file or its card says.
        random_weights: take the card's architecture with random parameters.
    """
    path = Path(word).expanduser()
    with ExitStack() as bars:

        @cache
        def bar() -> OnProgress:
            """Made when the first bytes come: most models are there, and a bar takes a tenth of a second."""
            log(args, f"fetching {word}")
            shown = bars.enter_context(progress(args))
            task = shown.add_task(word, total=None)
            return lambda state: shown.update(task, completed=state.done, total=state.total)

        return load(
            path if path.exists() else word,
            inputs=inputs,
            outputs=outputs,
            signature=getattr(args, "signature", None),
            tags=getattr(args, "tags", None),
            checkpoint=getattr(args, "checkpoint", None),
            random_weights=random_weights,
            offline=args.offline,
            on_progress=lambda state: bar()(state),
        )


def model_and_runtime(args: Namespace, word: str) -> tuple[Model, str]:
    """The model of ``MODEL`` or ``MODEL@RUNTIME``, and its engine, which is ``--runtime`` where it names none."""
    name, runtime = split_runtime(word)
    model = named_model(args, name, inputs=args.inputs, outputs=args.outputs, random_weights=args.random_weights)
    return model, runtime or args.runtime
