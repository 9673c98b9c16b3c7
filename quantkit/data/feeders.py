"""Check of batches that are given as arrays."""

import os

from quantkit.errors import UsageError


def require_arrays(batches: object) -> None:
    """Check that batches are arrays and not the name of a file.

    Raises:
        UsageError: they are a path.
    """
    if isinstance(batches, str | os.PathLike):
        raise UsageError(
            f"batches are arrays, and {os.fspath(batches)!r} names a file", hint="read it first: [np.load(FILE)]"
        )
