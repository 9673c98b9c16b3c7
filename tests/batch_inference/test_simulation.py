"""The simulation of workers, against schedules computed by hand."""

from quantkit.batch_inference import MeasuredParts, simulate_run


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
