from dataclasses import replace

import pytest
from measurements import MACHINE, make_measurement

from quantkit.benchmark.speedup import Speedup
from quantkit.errors import UsageError

FAST = [0.010, 0.0101, 0.0099, 0.0100] * 10
SLOW = [2 * seconds for seconds in FAST]


def test_double_speed_is_a_ratio_of_two() -> None:
    speedup = Speedup.of(make_measurement(SLOW, 10), make_measurement(FAST, 10))
    assert speedup.ratio == pytest.approx(2.0)
    assert speedup.low <= 2.0 <= speedup.high
    assert speedup.is_significant
    assert speedup.is_paired
    assert speedup.verdict.startswith("2.00x as fast")


def test_half_speed_is_a_ratio_below_one() -> None:
    assert Speedup.of(make_measurement(FAST, 10), make_measurement(SLOW, 10)).ratio == pytest.approx(0.5)


def test_equal_latency_is_not_significant() -> None:
    other = [seconds + 0.0001 * (-1) ** index for index, seconds in enumerate(reversed(FAST))]
    speedup = Speedup.of(make_measurement(FAST, 10), make_measurement(other, 10))
    assert not speedup.is_significant
    assert "no significant difference" in speedup.verdict


def test_measurements_of_two_benchmarks_are_not_paired() -> None:
    speedup = Speedup.of(make_measurement(SLOW, 10), make_measurement(FAST, 10, started="2026-01-02T00:00:00"))
    assert not speedup.is_paired


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
