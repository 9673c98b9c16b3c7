"""Timed calls: warm up until the latency is stable, then sample.

Calls are grouped in windows; the median of a window ignores single slow calls. Warm-up ends when the window medians
are stable:

    |median_i / median_(i-1) - 1| < tolerance      for `quiet` windows in a row
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from quantkit.ir.garbage_collection import garbage_collection_paused

LEAST_PAIRS = 5
Clock = Callable[[], float]
Call = Callable[[], object]


@dataclass(frozen=True)
class WarmUpRule:
    """Condition that ends a warm-up.

    Attributes:
        calls: fixed number of calls (default: until the latency is stable).
        window_calls, window_seconds: minimum number of calls and minimum duration of a window (a median of short,
            noisy calls needs more of them).
        tolerance: maximum relative drift between two stable windows.
        quiet: number of consecutive stable windows.
        cap_calls, cap_seconds: maximum number of calls and maximum duration.
    """

    calls: int | None = None
    window_calls: int = 3
    window_seconds: float = 0.02
    tolerance: float = 0.03
    quiet: int = 2
    cap_calls: int = 5000
    cap_seconds: float = 3.0


@dataclass(frozen=True)
class WarmUp:
    """Result of a warm-up.

    Attributes:
        seconds: duration of each call, in order.
        is_settled: True if the latency was stable at the end; None for a fixed number of calls.
    """

    seconds: tuple[float, ...]
    is_settled: bool | None


def warm_up(call: Call, rule: WarmUpRule = WarmUpRule(), clock: Clock = perf_counter) -> WarmUp:
    """Make calls until the condition of a rule is met.

    Args:
        call: function to time.
        rule: condition that ends the warm-up.
        clock: monotonic clock in seconds.
    """
    if rule.calls is not None:
        return WarmUp(time_calls(call, rule.calls, clock), None)
    seconds: list[float] = []
    spent = 0.0
    previous: float | None = None
    quiet = 0
    while quiet < rule.quiet:
        first, start = len(seconds), spent
        while len(seconds) - first < rule.window_calls or spent - start < rule.window_seconds:
            seconds.extend(time_calls(call, 1, clock))
            spent += seconds[-1]
            if len(seconds) >= rule.cap_calls or spent >= rule.cap_seconds:
                return WarmUp(tuple(seconds), False)
        current = median(seconds[first:])
        quiet = quiet + 1 if previous is not None and abs(current - previous) < rule.tolerance * previous else 0
        previous = current
    return WarmUp(tuple(seconds), True)


def time_calls(call: Call, count: int, clock: Clock = perf_counter) -> tuple[float, ...]:
    """Return the duration of each of ``count`` calls; garbage collection is disabled meanwhile."""
    seconds = []
    with garbage_collection_paused():
        for _ in range(count):
            start = clock()
            call()
            seconds.append(clock() - start)
    return tuple(seconds)


def time_groups(call: Call, count: int, group: int, clock: Clock = perf_counter) -> tuple[float, ...]:
    """Return the mean duration of a call in each of ``count`` groups of consecutive calls.

    Args:
        call: function to time.
        count: number of groups.
        group: number of calls in a group; reading the clock is a large part of a very short call.
        clock: monotonic clock in seconds.
    """

    def call_repeatedly() -> None:
        for _ in range(group):
            call()

    return tuple(seconds / group for seconds in time_calls(call if group == 1 else call_repeatedly, count, clock))


@dataclass(frozen=True)
class StreamTimes:
    """Times of calls from several threads.

    Attributes:
        seconds: wall time of each sample, divided by the number of its calls.
        calls: duration of each call.
    """

    seconds: tuple[float, ...]
    calls: tuple[float, ...]


def time_streams(call: Call, count: int, group: int, streams: int, clock: Clock = perf_counter) -> StreamTimes:
    """Time calls from several threads at once.

    Args:
        call: function to time; it may be called from ``streams`` threads.
        count: number of samples.
        group: number of calls of each thread in a sample.
        streams: number of threads.
        clock: monotonic clock in seconds.
    """
    samples: list[float] = []
    calls: list[float] = []
    with ThreadPoolExecutor(streams) as pool:
        for _ in range(count):
            start = clock()
            futures = [pool.submit(time_calls, call, group, clock) for _ in range(streams)]
            for future in futures:
                calls.extend(future.result())
            samples.append((clock() - start) / (group * streams))
    return StreamTimes(tuple(samples), tuple(calls))


def lead_in(call: Call, min_seconds: float = 0.005, cap: int = 100, clock: Clock = perf_counter) -> tuple[float, ...]:
    """Make calls that restore caches and threads after another process ran; return their durations.

    Args:
        call: function to time.
        min_seconds: minimum total duration.
        cap: maximum number of calls; at least one is made.
        clock: monotonic clock in seconds.
    """
    seconds = list(time_calls(call, 1, clock))
    while sum(seconds) < min_seconds and len(seconds) < cap:
        seconds.extend(time_calls(call, 1, clock))
    return tuple(seconds)


def time_pairs(
    first: Call, second: Call, *, pairs: int, seconds: float, warmup: int, clock: Clock = perf_counter
) -> list[tuple[float, float]]:
    """Time two functions in turn; a call before each timed one restores the caches that the other function used.

    Args:
        first, second: functions to time; each is called twice in each pair.
        pairs: maximum number of timed pairs.
        seconds: duration after which no pair begins; at least `LEAST_PAIRS` pairs are timed.
        warmup: number of pairs before the timed ones.
        clock: monotonic clock in seconds.

    Returns:
        Duration of the second call of each function in each pair.
    """
    for _ in range(warmup):
        time_calls(first, 2, clock)
        time_calls(second, 2, clock)
    times: list[tuple[float, float]] = []
    spent = 0.0
    while len(times) < LEAST_PAIRS or (len(times) < pairs and spent < seconds):
        calls = time_calls(first, 2, clock), time_calls(second, 2, clock)
        times.append((calls[0][1], calls[1][1]))
        spent += sum(map(sum, calls))
    return times
