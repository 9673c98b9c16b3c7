import gc
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measurements import scripted_clock

from quantkit.benchmark.sampling.sampler import WarmUpRule, lead_in, time_calls, time_groups, time_streams, warm_up

RULE = WarmUpRule(window_calls=3, window_seconds=0.0, tolerance=0.1, quiet=2, cap_calls=100, cap_seconds=1000.0)


def call() -> None:
    """Return at once; the scripted clock defines the duration."""


def test_streams_run_at_the_same_time() -> None:
    barrier = Barrier(3, timeout=10)
    times = time_streams(barrier.wait, count=2, group=4, streams=3)
    assert len(times.seconds) == 2
    assert len(times.calls) == 2 * 4 * 3
    assert all(seconds > 0 for seconds in times.seconds)


def test_time_calls_returns_the_duration_of_each_call() -> None:
    assert time_calls(call, 3, scripted_clock([1.0, 2.0, 4.0])) == (1.0, 2.0, 4.0)


def test_time_groups_returns_the_mean_of_each_group() -> None:
    calls: list[int] = []
    assert time_groups(lambda: calls.append(1), 2, 4, scripted_clock([1.0, 2.0])) == (0.25, 0.5)
    assert len(calls) == 8
    assert time_groups(call, 2, 1, scripted_clock([1.0, 2.0])) == (1.0, 2.0)


def test_garbage_collection_is_disabled_meanwhile() -> None:
    states = []
    time_calls(lambda: states.append(gc.isenabled()), 1, scripted_clock([1.0]))
    assert states == [False]
    assert gc.isenabled()


def test_garbage_collection_is_enabled_after_an_error() -> None:
    def broken() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        time_calls(broken, 1, scripted_clock([1.0]))
    assert gc.isenabled()


def test_warm_up_ends_when_window_medians_are_stable() -> None:
    # Windows of three with medians 8, 4, 2, 2, 2: two in a row do not drift after the fifth.
    seconds = [8.0] * 3 + [4.0] * 3 + [2.0] * 3 + [2.0] * 3 + [2.0] * 3
    done = warm_up(call, RULE, scripted_clock([*seconds, *[2.0] * 3]))
    assert done.seconds == tuple(seconds)
    assert done.is_settled


def test_warm_up_ignores_one_slow_call_in_a_window() -> None:
    seconds = [2.0, 2.0, 2.0, 2.0, 9.0, 2.0, 2.0, 2.0, 9.0]
    assert warm_up(call, RULE, scripted_clock(seconds)).is_settled


def test_warm_up_ends_unstable_at_the_cap() -> None:
    slower = [1.5**index for index in range(100)]
    done = warm_up(call, RULE, scripted_clock(slower))
    assert done.is_settled is False
    assert sum(done.seconds) >= RULE.cap_seconds
    assert sum(done.seconds[:-1]) < RULE.cap_seconds


def test_fixed_number_of_calls_is_not_judged() -> None:
    done = warm_up(call, WarmUpRule(calls=2), scripted_clock([5.0, 1.0]))
    assert (done.seconds, done.is_settled) == ((5.0, 1.0), None)


def test_windows_of_short_calls_have_a_minimum_duration() -> None:
    rule = WarmUpRule(window_calls=2, window_seconds=0.1)
    done = warm_up(call, rule, scripted_clock([0.01] * 100))
    assert done.is_settled
    assert len(done.seconds) >= 3 * 10


def test_lead_in_has_a_minimum_duration_and_a_cap() -> None:
    assert lead_in(call, 1.0, clock=scripted_clock([5.0])) == (5.0,)
    assert len(lead_in(call, 1.0, cap=7, clock=scripted_clock([0.0] * 7))) == 7


@given(st.lists(st.floats(1e-6, 10.0), min_size=200, max_size=200))
def test_warm_up_ends_at_its_cap(seconds: list[float]) -> None:
    done = warm_up(call, RULE, scripted_clock(seconds))
    assert 1 <= len(done.seconds) <= RULE.cap_calls
    assert done.is_settled is not None
