"""Threads of a job, read from a scripted ``/proc``."""

from pathlib import Path

import pytest
from monitored_jobs import FUTEX, PID, RUN, TICK, ScriptedJob, ScriptedThread, run_job, write_proc

from quantkit.monitor import recorder as recorder_module
from quantkit.monitor.processes import ProcessReader, activity_of
from quantkit.monitor.recorder import merge_pairs


@pytest.mark.parametrize(
    ("state", "function", "activity"),
    [
        ("R", "0", "running"),
        ("S", "futex_wait_queue", "lock"),
        ("S", "futex_do_wait", "lock"),
        ("S", "hrtimer_nanosleep", "sleep"),
        ("S", "pipe_read", "pipe"),
        ("S", "anon_pipe_write", "pipe"),
        ("S", "unix_stream_read_generic", "network"),
        ("S", "inet_csk_accept", "network"),
        ("S", "do_wait", "child process"),
        ("S", "poll_schedule_timeout.constprop.0", "events"),
        ("S", "do_epoll_wait", "events"),
        ("D", "folio_wait_bit_common", "disk"),
        ("D", "0", "disk"),
        ("S", "0", "other"),
    ],
)
def test_activity_of_a_thread(state: str, function: str, activity: str) -> None:
    assert activity_of(state, function) == activity


def test_threads_of_child_processes_belong_to_the_job(tmp_path: Path) -> None:
    threads = {PID: ScriptedThread([FUTEX]), 101: ScriptedThread([RUN]), 200: ScriptedThread([RUN], pid=200)}
    job = ScriptedJob("", "", threads)
    write_proc(tmp_path, job, 0)
    reader = ProcessReader(PID, tmp_path, 100)
    reader.find_threads()
    assert reader.pids == (PID, 200)
    assert {thread.tid for thread in reader.sample()} == {PID, 101, 200}


def test_ended_threads_and_processes_are_removed(tmp_path: Path) -> None:
    reader = ProcessReader(PID, tmp_path, 100)
    assert reader.pids == ()
    reader.tick()
    assert reader.sample() == ()
    assert reader.memory() == 0
    assert reader.disk() == (0, 0)
    assert reader.throttled_seconds() is None
    assert not reader.uses_gpu()


def test_names_with_parentheses_are_read(tmp_path: Path) -> None:
    write_proc(tmp_path, ScriptedJob("", "", {PID: ScriptedThread([RUN], user=1.0, name="a) b(")}), 2)
    (thread,) = ProcessReader(PID, tmp_path, 100).sample()
    assert (thread.name, thread.user) == ("a) b(", 2.0)


def test_a_blocked_job_has_the_activity_of_the_thread_outside_the_job(tmp_path: Path) -> None:
    threads = {PID: ScriptedThread([FUTEX]), 101: ScriptedThread([("S", "wait_woken")])}
    write_proc(tmp_path, ScriptedJob("", "", threads), 0)
    reader = ProcessReader(PID, tmp_path, 100)
    reader.tick()
    assert reader.activities == {"network": 1}


def test_merged_samples_keep_the_activities(tmp_path: Path) -> None:
    _, recorder = run_job(ScriptedJob("", "", {PID: ScriptedThread([RUN, FUTEX], user=TICK / 2)}), tmp_path)
    samples = recorder.samples
    assert len(samples) == 5
    for number in (5, 4):
        merged = merge_pairs(samples[:number])
        assert (merged[0], merged[-1].seconds) == (samples[0], samples[number - 1].seconds)
        assert len(merged) == number // 2 + 1
        for name in ("running", "lock"):
            counts = [[sample.activities.get(name, 0) for sample in each[1:]] for each in (merged, samples[:number])]
            assert sum(counts[0]) == sum(counts[1]) > 5
            threads = [[s.threads[0].activities.get(name, 0) for s in each[1:]] for each in (merged, samples[:number])]
            assert sum(threads[0]) == sum(threads[1]) > 5


def test_long_jobs_keep_few_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MAX_SAMPLES", 4)
    facts, recorder = run_job(ScriptedJob("", "", {PID: ScriptedThread([RUN], user=TICK)}), tmp_path)
    assert len(recorder.samples) <= 4
    assert facts.cpu == pytest.approx(1.0, rel=0.05)
    assert facts.seconds == pytest.approx(2.0, abs=0.6)


def test_ticks_are_longer_when_they_exceed_the_budget(tmp_path: Path) -> None:
    _, recorder = run_job(ScriptedJob("", "", {PID: ScriptedThread([RUN])}), tmp_path)
    assert recorder.next_delay == TICK
    recorder._cost = lambda: 1.0
    delays = [recorder.next_delay for _ in range(20)]
    assert delays == sorted(delays)
    assert delays[-1] == 0.5
    recorder._cost = lambda: 0.0
    assert [recorder.next_delay for _ in range(20)][-1] == TICK


def test_a_new_thread_of_a_blocked_job_is_read_at_once(tmp_path: Path) -> None:
    write_proc(tmp_path, ScriptedJob("", "", {PID: ScriptedThread([FUTEX])}), 0)
    reader = ProcessReader(PID, tmp_path, 100)
    reader.tick()
    write_proc(tmp_path, ScriptedJob("", "", {PID: ScriptedThread([FUTEX]), 101: ScriptedThread([RUN])}), 1)
    reader.tick()
    assert reader.activities == {"lock": 1, "running": 1}
