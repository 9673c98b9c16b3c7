"""Pausing Python's cyclic garbage collector while many objects are created."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector, in a ``with`` statement or as a decorator.

    A large graph has hundreds of thousands of nodes and edges without reference cycles. The collector would visit all
    of them repeatedly: this takes longer than the work itself and grows faster than the graph.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
