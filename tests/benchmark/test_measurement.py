import json
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measurements import CONTEXT, MACHINE, make_measurement

from quantkit.benchmark.results.measurement import Measurement
from quantkit.errors import InputError

STEADY = [0.010, 0.0101, 0.0099, 0.010] * 10


def warnings(seconds: list[float], **changes: object) -> tuple[str, ...]:
    return replace(make_measurement(seconds), **changes).summary.warnings  # type: ignore[arg-type]


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60))
def test_json_contains_every_sample(seconds: list[float]) -> None:
    before = make_measurement(
        seconds,
        cpus=(0, 1),
        environment={"KMP_BLOCKTIME": "0"},
        placement=("a: CPU",),
        skipped_runtimes=("openvino: no kernel",),
    )
    document = json.loads(json.dumps(before.to_json()))
    assert document["context"]["passed_over"] == ["openvino: no kernel"]
    after = Measurement.from_json(document)
    assert after == before
    assert after.summary == before.summary


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=160))
def test_statistics_are_ordered(seconds: list[float]) -> None:
    summary = make_measurement(seconds).summary
    assert summary.minimum <= summary.low <= summary.median <= summary.high
    assert summary.median == median(seconds)
    bounds = [bound for bound in summary.percentiles.values() if bound is not None]
    assert [summary.median, *bounds] == sorted([summary.median, *bounds])
    assert len(bounds) == sum(len(seconds) >= calls for calls in (11, 64, 130))


def test_percentiles_are_those_of_single_calls() -> None:
    measurement = replace(make_measurement(STEADY), calls_per_sample=10, call_seconds=(0.5,) * 63 + (0.7,))
    assert measurement.summary.percentiles == {"p50": 0.5, "p90": 0.7, "p95": None, "p99": None, "p99.9": None}


def test_other_version_is_rejected() -> None:
    document = make_measurement(STEADY).to_json() | {"schema": "quantkit.measurement/99"}
    with pytest.raises(InputError, match="measurement/99"):
        Measurement.from_json(document)


def test_missing_key_is_named() -> None:
    document = make_measurement(STEADY).to_json()
    del document["warmup_seconds"]
    with pytest.raises(InputError, match="warmup_seconds"):
        Measurement.from_json(document)


def test_blocks_have_the_measured_sizes() -> None:
    measurement = replace(make_measurement([1.0, 2.0, 3.0]), block_sizes=(1, 2))
    assert measurement.blocks == ((1.0,), (2.0, 3.0))
    assert replace(measurement, process_rounds=(1, 1)).processes == (((1.0,),), ((2.0, 3.0),))


def test_interval_contains_the_spread_between_processes() -> None:
    """The calls of each process are steady, and the processes differ by 10 %."""
    seconds = [0.010] * 10 + [0.011] * 10 + [0.0105] * 10
    narrow, wide = make_measurement(seconds, 6).summary, make_measurement(seconds, 6, 3).summary
    assert wide.low < narrow.low <= narrow.high < wide.high
    assert narrow.median == wide.median


def test_measurement_of_one_process_is_read() -> None:
    """Earlier versions wrote neither the rounds of each process nor the size of the groups."""
    document = make_measurement(STEADY).to_json()
    del document["process_rounds"], document["calls_per_sample"]
    assert len(Measurement.from_json(document).processes) == 1


def test_constant_latency_is_stable() -> None:
    assert make_measurement(STEADY, blocks=10).summary.is_stable


def test_slow_first_call_recommends_more_warm_up() -> None:
    (warning,) = warnings([0.09, *STEADY], warmup_calls=0, block_sizes=())
    assert warning == "first call 9.0x slower than the rest: raise --warmup (now 0)"


def test_unstable_warm_up_is_reported() -> None:
    (warning,) = warnings(STEADY, is_settled=False, warmup_calls=37)
    assert "latency is not stable after 37 warm-up calls" in warning


def test_drift_is_reported() -> None:
    reported = warnings([0.010] * 20 + [0.0102] * 20 + [0.012] * 20)
    assert any("20% slower" in warning for warning in reported)


def test_slow_calls_report_the_load() -> None:
    busy = replace(CONTEXT, machine=replace(MACHINE, load=3.2))
    reported = warnings([0.010, 0.010, 0.010, 0.021] * 10, context=busy)
    assert any("2.1x the median" in warning and "load 3.2 on 2 CPUs" in warning for warning in reported)


def test_wide_interval_recommends_more_runs() -> None:
    reported = warnings([0.010, 0.013, 0.016, 0.019, 0.011, 0.018])
    assert any("raise --runs (now 6)" in warning for warning in reported)
