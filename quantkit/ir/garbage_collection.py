"""Many objects at once, without Python looking for cycles among them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the search for reference cycles, as a ``with`` or around a function.

    Nodes and edges are made by the hundred thousand and hold no cycles; the collector would walk over all of them
    again and again, which takes longer than the work itself and grows faster than the graph.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
