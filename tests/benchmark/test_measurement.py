import json
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import CONTEXT, MACHINE, measured

from quantkit.benchmark.measurement import Measurement
from quantkit.errors import InputError

STEADY = [0.010, 0.0101, 0.0099, 0.010] * 10


def warnings(seconds: list[float], **changes: object) -> tuple[str, ...]:
    return replace(measured(seconds), **changes).summary.warnings  # type: ignore[arg-type]


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60))
def test_json_keeps_every_sample(seconds: list[float]) -> None:
    before = measured(seconds, blocks=1, cpus=(0, 1), environment={"KMP_BLOCKTIME": "0"}, placement=("a: CPU",))
    after = Measurement.from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    assert after.summary == before.summary


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60))
def test_a_summary_is_in_order(seconds: list[float]) -> None:
    summary = measured(seconds).summary
    assert summary.minimum <= summary.low <= summary.median <= summary.high
    assert summary.median == median(seconds)
    assert summary.median <= summary.p90 * (1 + 1e-12)


def test_another_version_is_refused() -> None:
    document = measured(STEADY).to_json() | {"schema": "quantkit.measurement/99"}
    with pytest.raises(InputError, match="measurement/99"):
        Measurement.from_json(document)


def test_a_missing_key_is_named() -> None:
    document = measured(STEADY).to_json()
    del document["warmup_seconds"]
    with pytest.raises(InputError, match="warmup_seconds"):
        Measurement.from_json(document)


def test_blocks_are_cut_as_they_were_measured() -> None:
    cut = replace(measured([1.0, 2.0, 3.0]), block_sizes=(1, 2))
    assert cut.blocks == ((1.0,), (2.0, 3.0))


def test_steady_times_are_stable() -> None:
    assert measured(STEADY, blocks=10).summary.is_stable


def test_a_slow_first_call_asks_for_more_warm_up() -> None:
    (found,) = warnings([0.09, *STEADY], warmup_calls=0, block_sizes=())
    assert found == "first call 9.0x slower than the rest: raise --warmup (now 0)"


def test_a_warm_up_that_never_settled_is_told() -> None:
    (found,) = warnings(STEADY, is_settled=False, warmup_calls=37)
    assert "still drifting after 37 warm-up calls" in found


def test_a_machine_that_slows_down_is_told() -> None:
    found = warnings([0.010] * 20 + [0.0102] * 20 + [0.012] * 20)
    assert any("20% slower" in warning for warning in found)


def test_other_programs_are_suspected_where_some_calls_are_slow() -> None:
    busy = replace(CONTEXT, machine=replace(MACHINE, load=3.2))
    found = warnings([0.010, 0.010, 0.010, 0.021] * 10, context=busy)
    assert any("2.1x the median" in warning and "load 3.2 on 2 processors" in warning for warning in found)


def test_a_wide_interval_asks_for_more_runs() -> None:
    found = warnings([0.010, 0.013, 0.016, 0.019, 0.011, 0.018])
    assert any("raise --runs (now 6)" in warning for warning in found)
