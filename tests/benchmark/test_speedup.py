from dataclasses import replace

import numpy as np
import pytest
from measurements import MACHINE, make_measurement

from quantkit.benchmark.results.speedup import MARGIN, Speedup
from quantkit.benchmark.statistics.student import LOOKS, MIN_PROCESSES, geometric_mean
from quantkit.errors import UsageError

FAST = [0.010, 0.0101, 0.0099, 0.0100] * 10
SLOW = [2 * seconds for seconds in FAST]
NOISY = [
    seconds * factor
    for seconds, factor in zip(FAST, [1.0] * 8 + [1.3] * 8 + [0.8] * 8 + [1.1] * 8 + [0.9] * 8, strict=True)
]


def test_double_speed_is_a_ratio_of_two() -> None:
    speedup = Speedup.of(make_measurement(SLOW, 10, 5), make_measurement(FAST, 10, 5))
    assert speedup.ratio == pytest.approx(2.0)
    assert speedup.low <= 2.0 <= speedup.high
    assert speedup.outcome == "faster"
    assert speedup.is_clear
    assert speedup.is_paired
    assert speedup.processes == 5
    assert speedup.verdict.startswith("2.00x as fast")
    document = speedup.to_json()
    assert (document["outcome"], document["is_different"], document["margin"]) == ("faster", True, MARGIN)


def test_throughput_is_compared_with_throughput_only() -> None:
    latency, throughput = make_measurement(SLOW, 10, 5), make_measurement(FAST, 10, 5, streams=2, batch=4)
    with pytest.raises(UsageError, match="latency and a throughput"):
        Speedup.of(latency, throughput)
    other = make_measurement(SLOW, 10, 5, streams=1, batch=1)
    assert Speedup.of(other, throughput).ratio == pytest.approx(2.0)


def test_half_speed_is_a_ratio_below_one() -> None:
    speedup = Speedup.of(make_measurement(FAST, 10, 5), make_measurement(SLOW, 10, 5))
    assert speedup.ratio == pytest.approx(0.5)
    assert speedup.outcome == "slower"


def test_equal_latency_within_the_margin_is_the_same() -> None:
    other = [seconds + 0.0001 * (-1) ** index for index, seconds in enumerate(reversed(FAST))]
    speedup = Speedup.of(make_measurement(FAST, 10, 5), make_measurement(other, 10, 5))
    assert speedup.outcome == "same"
    assert speedup.verdict.startswith("same within 2 % (95 % CI")


def test_interval_that_spans_1_widely_is_undecided() -> None:
    speedup = Speedup.of(make_measurement(FAST, 10, 5), make_measurement(NOISY, 10, 5))
    assert speedup.outcome == "undecided"
    assert not speedup.is_clear
    assert speedup.smallest_difference > 0.1
    assert speedup.needed_processes > 5
    assert "undecided" in speedup.verdict
    assert not speedup.to_json()["is_different"]


@pytest.mark.parametrize("started", ["2026-01-01T00:00:00", "2026-01-02T00:00:00"])
def test_few_processes_are_undecided(started: str) -> None:
    speedup = Speedup.of(make_measurement(SLOW, 10, 2), make_measurement(FAST, 10, 5, started=started))
    assert (speedup.processes, speedup.outcome) == (2, "undecided")
    assert speedup.ratio == pytest.approx(2.0)
    assert "--processes 3" in speedup.advice


@pytest.mark.parametrize(
    ("interval", "outcome", "is_clear"),
    [
        ((1.02, 1.0, 1.04), "undecided", False),
        ((1.01, 1.005, 1.015), "same", True),
        ((1.03, 1.01, 1.05), "faster", False),
        ((1.03, 1.02, 1.04), "faster", True),
        ((0.98, 0.95, 0.999), "slower", False),
    ],
)
def test_outcome_depends_on_interval_and_margin(
    interval: tuple[float, float, float], outcome: str, is_clear: bool
) -> None:
    speedup = Speedup(*interval, True, 5)
    assert (speedup.outcome, speedup.is_clear) == (outcome, is_clear)


@pytest.mark.parametrize(
    ("speedup", "processes", "text"),
    [
        (Speedup(1.05, 0.95, 1.16, True, 5), 21, "measure again with --processes 21"),
        (Speedup(1.02, 0.96, 1.08, True, 10), None, "the difference is below 8 %, too small to decide in 40 processes"),
        (Speedup(1.05, 0.83, 1.33, True, 10), None, "in 10 processes per model: measure on a quiet machine"),
        (Speedup(5.82, 0.91, 7.52, True, 20), None, "in 20 processes per model: measure on a quiet machine"),
        (
            Speedup(1.02, 0.96, 1.08, True, 10, is_undisturbed=True),
            None,
            "the difference is below 8 %: for a smaller limit, measure on a quiet machine",
        ),
        (Speedup(1.02, 0.96, 1.08, True, 10, state=1.1), None, "the machine has another speed"),
    ],
)
def test_advice_names_the_measurement_that_decides(speedup: Speedup, processes: int | None, text: str) -> None:
    """No advice names more processes than a benchmark runs: the machine is busy, or the difference is small."""
    assert speedup.advised_processes == processes
    assert text in speedup.advice
    assert ("--processes" in speedup.advice) == (processes is not None)


@pytest.mark.parametrize(
    ("interval", "is_clear"), [((2.0, 1.8, 2.2), True), ((1.03, 1.02, 1.04), False), ((1.0, 0.999, 1.001), False)]
)
def test_three_processes_are_enough_for_a_large_difference(
    interval: tuple[float, float, float], is_clear: bool
) -> None:
    assert Speedup(*interval, True, 3).is_clear == is_clear


@pytest.mark.parametrize(
    ("speedup", "is_clear"),
    [
        (Speedup(1.01, 0.91, 1.12, True, 5), False),
        (Speedup(1.01, 0.91, 1.12, True, 10), True),  # 40 processes do not decide
        (Speedup(1.04, 0.98, 1.1, True, 10), False),  # more processes may show it
    ],
)
def test_a_comparison_that_stays_undecided_is_clear(speedup: Speedup, is_clear: bool) -> None:
    assert speedup.outcome == "undecided"
    assert speedup.is_clear == is_clear


@pytest.mark.parametrize(("difference", "most_processes", "least_decided"), [(0.0, 13.0, 0.0), (0.05, 18.0, 0.55)])
def test_early_ends_keep_the_coverage(difference: float, most_processes: float, least_decided: float) -> None:
    """The spread between processes is 8 %; each simulated benchmark ends at its first clear number of processes."""
    processes, covered, wrong, decided = [], [], [], []
    for samples in np.random.default_rng(0).normal(difference, 0.08, (1500, LOOKS[-2])):
        for look in range(MIN_PROCESSES, LOOKS[-2] + 1):
            ratio, (low, high) = geometric_mean(list(np.exp(samples[:look])))
            speedup = Speedup(ratio, low, high, True, look)
            if speedup.is_clear:
                break
        processes.append(speedup.processes)
        covered.append(low <= np.exp(difference) <= high)
        decided.append(speedup.outcome in ("faster", "slower"))
        wrong.append(decided[-1] and not difference)
    assert np.mean(covered) >= 0.94
    assert np.mean(wrong) <= 0.05
    assert np.mean(processes) <= most_processes
    assert np.mean(decided) >= least_decided


@pytest.mark.parametrize(
    ("interval", "processes", "is_clear"),
    [
        ((1.2, 1.11, 1.3), 5, True),
        ((1.2, 1.11, 1.3), 7, False),
        ((1.2, 1.13, 1.28), 7, True),
        ((1.2, 1.13, 1.28), 4, False),
        ((1.0, 0.99, 1.01), 5, True),
        ((1.0, 0.99, 1.01), 7, False),
    ],
)
def test_only_large_differences_end_a_comparison_between_the_looks(
    interval: tuple[float, float, float], processes: int, *, is_clear: bool
) -> None:
    assert Speedup(*interval, True, processes).is_clear == is_clear


def test_a_comparison_with_a_saved_benchmark_ends_if_both_are_the_same() -> None:
    """The saved benchmark may have any number of processes."""
    assert Speedup(1.0, 0.99, 1.01, False, 7).is_clear


def test_measurements_of_two_benchmarks_are_not_paired() -> None:
    other = make_measurement(FAST, 10, 5, started="2026-01-02T00:00:00")
    speedup = Speedup.of(make_measurement(SLOW, 10, 5), other)
    assert not speedup.is_paired
    assert speedup.outcome == "faster"


@pytest.mark.parametrize(
    "other",
    [
        {"cpu": "another processor"},
        {"physical_cores": 4},
        {"isa": ("avx2", "avx512_vnni")},
        {"cpu_quota": 1.0},
        {"gpus": ("NVIDIA GPU",)},
    ],
)
def test_different_machines_are_rejected(other: dict[str, object]) -> None:
    machine = replace(MACHINE, **other)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="different machines"):
        Speedup.of(make_measurement(FAST), make_measurement(FAST, machine=machine))


def test_load_is_not_part_of_the_identity() -> None:
    Speedup.of(make_measurement(FAST), make_measurement(FAST, machine=replace(MACHINE, load=9.0)))


def test_different_batch_sizes_are_rejected() -> None:
    with pytest.raises(UsageError, match="batch size: 1 and 8"):
        Speedup.of(make_measurement(FAST), make_measurement(FAST, batch=8))
