"""Affinity of threads: threads that a runtime pins to other CPUs are moved back, or rejected."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, get_native_id

import pytest

from quantkit import cores
from quantkit.cores import available_physical_cores, is_restricted, restrict_threads, restricted_threads
from quantkit.errors import UnavailableError

CPUS = cores.available_cpus()
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


@pytest.fixture
def one_cpu() -> Iterator[int]:
    """Limit this thread to its first CPU."""
    os.sched_setaffinity(0, CPUS[:1])
    yield CPUS[0]
    os.sched_setaffinity(0, CPUS)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def leave(cpus: tuple[int, ...]) -> int:
    """Move this thread to other CPUs, as the pool of a runtime does."""
    os.sched_setaffinity(0, cpus)
    return get_native_id()


def test_new_thread_returns_to_the_cpus_of_the_process(one_cpu: int, pool: ThreadPoolExecutor) -> None:
    assert is_restricted()
    with restricted_threads():
        thread = pool.submit(leave, CPUS[1:2]).result()
    assert os.sched_getaffinity(thread) == {one_cpu}


def test_earlier_threads_stay_where_the_caller_placed_them(pool: ThreadPoolExecutor) -> None:
    thread = pool.submit(leave, CPUS[1:2]).result()
    os.sched_setaffinity(0, CPUS[:1])
    with restricted_threads():
        pass
    os.sched_setaffinity(0, CPUS)
    assert os.sched_getaffinity(thread) == {CPUS[1]}


def test_placement_within_the_cpus_of_the_process_stays(pool: ThreadPoolExecutor) -> None:
    with restricted_threads():
        thread = pool.submit(leave, CPUS[1:2]).result()
    assert os.sched_getaffinity(thread) == {CPUS[1]}


def test_thread_that_stays_elsewhere_is_an_error(
    one_cpu: int, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = pool.submit(leave, CPUS[1:2]).result()
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cpus: None)
    with pytest.raises(UnavailableError, match=f"on the CPUs {CPUS[1]}, and this process is limited to {one_cpu}"):
        restrict_threads({one_cpu}, {thread})
    monkeypatch.undo()


def test_ended_thread_is_ignored(one_cpu: int) -> None:
    with ThreadPoolExecutor(1) as executor:
        ended = executor.submit(get_native_id).result()
    Event().wait(0.01)
    restrict_threads({one_cpu}, {ended})


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu in CPUS:
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text("0-1\n")
    assert available_physical_cores(tmp_path) == 1
    assert available_physical_cores(tmp_path / "missing") == len(CPUS)
