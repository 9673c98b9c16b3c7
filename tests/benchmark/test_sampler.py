import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import scripted_clock

from quantkit.benchmark.sampler import WarmUpRule, lead_in, timed, warm_up

RULE = WarmUpRule(window_calls=3, window_seconds=0.0, tolerance=0.1, quiet=2, cap_calls=100, cap_seconds=1000.0)


def nothing() -> None:
    """A call; the scripted clock says how long it took."""


def test_timed_returns_the_seconds_of_every_call_in_order() -> None:
    assert timed(nothing, 3, scripted_clock([1.0, 2.0, 4.0])) == (1.0, 2.0, 4.0)


def test_the_garbage_collector_waits_and_comes_back() -> None:
    seen = []
    timed(lambda: seen.append(gc.isenabled()), 1, scripted_clock([1.0]))
    assert seen == [False]
    assert gc.isenabled()


def test_the_garbage_collector_comes_back_after_an_error() -> None:
    def broken() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        timed(broken, 1, scripted_clock([1.0]))
    assert gc.isenabled()


def test_warm_up_ends_when_window_medians_stand_still() -> None:
    # Windows of three with medians 8, 4, 2, 2, 2: two in a row do not drift after the fifth.
    seconds = [8.0] * 3 + [4.0] * 3 + [2.0] * 3 + [2.0] * 3 + [2.0] * 3
    done = warm_up(nothing, RULE, scripted_clock([*seconds, *[2.0] * 3]))
    assert done.seconds == tuple(seconds)
    assert done.is_settled


def test_one_slow_call_in_a_window_does_not_keep_the_warm_up_going() -> None:
    seconds = [2.0, 2.0, 2.0, 2.0, 9.0, 2.0, 2.0, 2.0, 9.0]
    assert warm_up(nothing, RULE, scripted_clock(seconds)).is_settled


def test_warm_up_gives_up_at_the_cap_and_says_so() -> None:
    ever_slower = [1.5**index for index in range(100)]
    done = warm_up(nothing, RULE, scripted_clock(ever_slower))
    assert done.is_settled is False
    assert sum(done.seconds) >= RULE.cap_seconds
    assert sum(done.seconds[:-1]) < RULE.cap_seconds


def test_a_fixed_number_of_calls_is_made_and_nobody_judges_them() -> None:
    done = warm_up(nothing, WarmUpRule(calls=2), scripted_clock([5.0, 1.0]))
    assert (done.seconds, done.is_settled) == ((5.0, 1.0), None)


def test_short_calls_make_long_windows() -> None:
    rule = WarmUpRule(window_calls=2, window_seconds=0.1)
    done = warm_up(nothing, rule, scripted_clock([0.01] * 100))
    assert done.is_settled
    assert len(done.seconds) >= 3 * 10


def test_lead_in_lasts_a_moment_or_so_many_calls() -> None:
    assert lead_in(nothing, 1.0, clock=scripted_clock([5.0])) == (5.0,)
    assert len(lead_in(nothing, 1.0, cap=7, clock=scripted_clock([0.0] * 7))) == 7


@given(st.lists(st.floats(1e-6, 10.0), min_size=200, max_size=200))
def test_warm_up_always_ends_within_its_cap(seconds: list[float]) -> None:
    done = warm_up(nothing, RULE, scripted_clock(seconds))
    assert 1 <= len(done.seconds) <= RULE.cap_calls
    assert done.is_settled is not None
