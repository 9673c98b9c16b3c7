"""Timed calls: warm up until the times stop drifting, then sample.

Calls are grouped in windows; the median of a window ignores stray slow calls. Warm-up ends when the
window medians stop moving:

    |median_i / median_(i-1) - 1| < tolerance      for `quiet` windows in a row
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from quantkit.ir.garbage_collection import garbage_collection_paused

Clock = Callable[[], float]
Call = Callable[[], object]


@dataclass(frozen=True)
class WarmUpRule:
    """When a warm-up is over.

    Attributes:
        calls: exactly so many calls, no questions asked; None: until stable.
        window_calls, window_seconds: a window has at least so many calls and lasts at least so long
            (short calls are noisy: more of them go into a median).
        tolerance: largest drift between two windows that counts as none.
        quiet: windows in a row that must not drift.
        cap_calls, cap_seconds: give up after either, once a first call was made.
    """

    calls: int | None = None
    window_calls: int = 5
    window_seconds: float = 0.02
    tolerance: float = 0.03
    quiet: int = 2
    cap_calls: int = 5000
    cap_seconds: float = 10.0


@dataclass(frozen=True)
class WarmUp:
    """What a warm-up saw.

    Attributes:
        seconds: of every call, in order.
        is_settled: whether the times had stopped drifting; None where nobody looked (a fixed number of calls).
    """

    seconds: tuple[float, ...]
    is_settled: bool | None


def warm_up(call: Call, rule: WarmUpRule = WarmUpRule(), clock: Clock = perf_counter) -> WarmUp:
    """Make calls until the rule is content.

    Args:
        call: what is timed.
        rule: when to stop.
        clock: seconds from any origin; it never goes back.
    """
    if rule.calls is not None:
        return WarmUp(timed(call, rule.calls, clock), None)
    seconds: list[float] = []
    spent = 0.0
    previous: float | None = None
    quiet = 0
    while quiet < rule.quiet:
        begin, begun = len(seconds), spent
        while len(seconds) - begin < rule.window_calls or spent - begun < rule.window_seconds:
            seconds.extend(timed(call, 1, clock))
            spent += seconds[-1]
            if len(seconds) >= rule.cap_calls or spent >= rule.cap_seconds:
                return WarmUp(tuple(seconds), False)
        now = median(seconds[begin:])
        quiet = quiet + 1 if previous is not None and abs(now - previous) < rule.tolerance * previous else 0
        previous = now
    return WarmUp(tuple(seconds), True)


def timed(call: Call, count: int, clock: Clock = perf_counter) -> tuple[float, ...]:
    """Seconds of ``count`` calls, one by one; the garbage collector waits until they are over."""
    seconds = []
    with garbage_collection_paused():
        for _ in range(count):
            start = clock()
            call()
            seconds.append(clock() - start)
    return tuple(seconds)


def lead_in(call: Call, least_seconds: float = 0.005, cap: int = 100, clock: Clock = perf_counter) -> tuple[float, ...]:
    """Calls that bring caches and threads back after another process had the machine.

    Args:
        call: what is timed.
        least_seconds: they last so long together,
        cap: unless so many calls were made; at least one is.
        clock: seconds from any origin.
    """
    seconds = list(timed(call, 1, clock))
    while sum(seconds) < least_seconds and len(seconds) < cap:
        seconds.extend(timed(call, 1, clock))
    return tuple(seconds)
