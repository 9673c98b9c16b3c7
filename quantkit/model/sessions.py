"""Sessions on any value that names a model."""

from typing import Any

from quantkit import runtimes
from quantkit.model.loading import as_model
from quantkit.runtimes.session import Session, SessionOptions


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
    return runtimes.open_session(as_model(model).runnable, runtime, options, threads=threads)
