import json
import random
from pathlib import Path

import pytest

from quantkit.benchmark.statistics.percentile import needed_calls, percentile_bound

# Written by loadgen itself, from calls of random duration.
CASES = json.loads((Path(__file__).parent / "loadgen.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['nanoseconds'])} calls at {case['target']}")
def test_bounds_equal_those_of_loadgen(case: dict[str, object]) -> None:
    seconds = [nanoseconds / 1e9 for nanoseconds in case["nanoseconds"]]  # type: ignore[attr-defined]
    bounds: dict[str, int] = case["bounds"]  # type: ignore[assignment]
    for percentile, nanoseconds in bounds.items():
        assert percentile_bound(seconds, float(percentile)) == nanoseconds / 1e9
    target = float(case["target"])  # type: ignore[arg-type]
    assert (percentile_bound(seconds, target) is None) == (f"{target:g}" not in bounds)


@pytest.mark.parametrize(("percentile", "calls"), [(0.5, 11), (0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636)])
def test_smallest_number_of_calls(percentile: float, calls: int) -> None:
    assert needed_calls(percentile) == calls
    assert percentile_bound([1.0] * calls, percentile) == 1.0
    assert percentile_bound([1.0] * (calls - 1), percentile) is None


def test_bound_exceeds_the_percentile_in_99_of_100_runs() -> None:
    """The 90th percentile of the uniform distribution is 0.9."""
    source = random.Random(0)
    bounds = [percentile_bound([source.random() for _ in range(200)], 0.9) or 0.0 for _ in range(500)]
    assert sum(bound >= 0.9 for bound in bounds) >= 490
    assert sum(bound >= 0.99 for bound in bounds) <= 50, "the bound is not trivial"
