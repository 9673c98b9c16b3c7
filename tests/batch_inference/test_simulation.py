"""The simulation of workers, against schedules computed by hand."""

import pytest

from quantkit.batch_inference import MeasuredParts, simulate_run
from quantkit.batch_inference.simulation import ring_all_reduce_seconds
from quantkit.errors import UsageError


def test_free_worker_takes_the_next_shard() -> None:
    parts = MeasuredParts(1.0, [5.0, 1.0, 1.0, 4.0])
    assert simulate_run(parts, 1) == 12.0
    assert simulate_run(parts, 2) == 7.0
    assert simulate_run(parts, 4) == simulate_run(parts, 9) == 6.0
    assert simulate_run(parts, 2, slowdown=2.0) == 13.0
    assert simulate_run(MeasuredParts(2.0, []), 3) == 2.0


def test_pool_sends_one_task_after_the_other() -> None:
    parts = MeasuredParts(0.0, [2.0, 2.0], task_seconds=0.5)
    assert simulate_run(parts, 1) == 5.0
    assert simulate_run(parts, 2) == 3.0


def test_time_of_the_ring_hardly_grows_with_its_members() -> None:
    seconds = [ring_all_reduce_seconds(1e9, members, bandwidth=1e9) for members in (1, 2, 4, 1000)]
    assert seconds == [0.0, 1.0, 1.5, pytest.approx(1.998)]
    assert ring_all_reduce_seconds(0, 3, bandwidth=1e9, latency=0.25) == 1.0
    with pytest.raises(UsageError, match="workers is 0"):
        ring_all_reduce_seconds(1, 0, bandwidth=1)
