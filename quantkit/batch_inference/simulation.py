"""Simulation of N workers from measured parts.

The pool gives the next shard to the first free worker:

    start of shard k = max(time at which a worker is free, time at which the pool has sent shard k)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from quantkit.arguments import public, require_positive, require_ratio


@dataclass(frozen=True)
class MeasuredParts:
    """Parts of a run with one worker.

    Attributes:
        open_seconds: time to start a worker and to open the model.
        shard_seconds: time of each shard in a worker, in order.
        task_seconds: time of the pool for one shard: sending it, and taking its result.
    """

    open_seconds: float
    shard_seconds: Sequence[float]
    task_seconds: float = 0.0


@public
def simulate_run(parts: MeasuredParts, workers: int, *, slowdown: float = 1.0) -> float:
    """Return the duration of a run with several workers in seconds.

    Args:
        parts: measured parts of a run with one worker.
        workers: number of workers.
        slowdown: time of a shard while all workers run, divided by its time with one worker: above 1 if the workers
            share memory bandwidth or cores.

    Raises:
        UsageError: a number is out of its range.

    >>> simulate_run(MeasuredParts(1.0, [4.0, 2.0, 2.0]), 2)
    5.0
    """
    require_positive(workers=workers)
    require_ratio(slowdown=slowdown)
    free = [parts.open_seconds] * workers
    heapify(free)
    sent = 0.0
    for seconds in parts.shard_seconds:
        start = max(free[0], sent)
        sent = start + parts.task_seconds
        heapreplace(free, sent + seconds * slowdown)
    return max(free)
