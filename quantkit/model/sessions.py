"""Sessions on any value that names a model."""

from typing import Any

from quantkit import runtimes
from quantkit.arguments import public, require_positive, require_text, type_name, without_none
from quantkit.errors import UsageError
from quantkit.model.loading import as_model
from quantkit.runtimes.session import Session, SessionOptions


@public
def open_session(
    model: Any,
    runtime: str = runtimes.AUTO,
    options: SessionOptions = SessionOptions(),
    *,
    threads: int | None = None,
) -> Session:
    """Open a session on a model.

    Args:
        model: a `Model`, a `Graph`, a path, the name of a model card, or any other value that
            `quantkit.load` takes.
        runtime: name of a runtime; ``auto``: the fastest one that is installed and can run the
            model.
        options: threads, device and precision.
        threads: threads inside one op; overrides `SessionOptions.intra_op`.

    Returns:
        A session, which is a context manager: ``session.run({input_name: array})`` returns arrays
            by output name.

    Raises:
        UsageError: there is no runtime with that name, or `model` has another type.
        InputError: the file is missing or broken.
        GraphError: the runtime rejects the graph.
        UnavailableError: the runtime, or with ``auto`` every runtime, cannot run the model here.
    """
    require_text(runtime=runtime)
    require_positive(**without_none(threads=threads))
    if not isinstance(options, SessionOptions):
        raise UsageError(
            f"options is {type_name(options)}, and must be SessionOptions", hint="for example threads=2 instead"
        )
    return runtimes.open_session(as_model(model).runnable, runtime, options, threads=threads)
