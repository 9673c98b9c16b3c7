from dataclasses import replace

import pytest
from lab import MACHINE, measured

from quantkit.benchmark.comparison import Comparison
from quantkit.errors import UsageError

FAST = [0.010, 0.0101, 0.0099, 0.0100] * 10
SLOW = [2 * seconds for seconds in FAST]


def test_twice_as_fast() -> None:
    found = Comparison.of(measured(SLOW, 10), measured(FAST, 10))
    assert found.ratio == pytest.approx(2.0)
    assert found.low <= 2.0 <= found.high
    assert found.is_different
    assert found.is_paired
    assert found.verdict.startswith("2.00x as fast")


def test_half_as_fast_is_a_ratio_below_one() -> None:
    assert Comparison.of(measured(FAST, 10), measured(SLOW, 10)).ratio == pytest.approx(0.5)


def test_no_difference_is_said_in_words() -> None:
    other = [seconds + 0.0001 * (-1) ** index for index, seconds in enumerate(reversed(FAST))]
    found = Comparison.of(measured(FAST, 10), measured(other, 10))
    assert not found.is_different
    assert "no difference shown" in found.verdict


def test_measurements_of_two_calls_are_not_paired() -> None:
    found = Comparison.of(measured(SLOW, 10), measured(FAST, 10, started="2026-01-02T00:00:00"))
    assert not found.is_paired


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
def test_unlike_machines_are_refused(other: dict[str, object]) -> None:
    machine = replace(MACHINE, **other)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unlike machines"):
        Comparison.of(measured(FAST), measured(FAST, machine=machine))


def test_load_makes_no_machine_unlike() -> None:
    Comparison.of(measured(FAST), measured(FAST, machine=replace(MACHINE, load=9.0)))


def test_another_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="batch: 1 and 8"):
        Comparison.of(measured(FAST), measured(FAST, batch=8))
