import json
import pickle
from dataclasses import replace

import pytest
from measurements import make_measurement

from quantkit.benchmark.results.report import (
    Benchmark,
    BenchmarkRow,
    Failure,
    NotMeasuredError,
    align_columns,
    openmp_lines,
    threads_text,
)
from quantkit.errors import CheckError, InputError

FAST = [0.010, 0.0101, 0.0099, 0.0100] * 10
SLOW = [2 * seconds for seconds in FAST]


def make_benchmark(**context: object) -> Benchmark:
    return Benchmark(
        (
            BenchmarkRow("a.pb", "auto", make_measurement(SLOW, 10, 5, version="2.1")),
            BenchmarkRow("b.pb", "auto", make_measurement(FAST, 10, 5, **{"version": "2.1", **context})),
            BenchmarkRow("c.pb", "openvino", Failure("no kernel for Foo", "try another runtime")),
        )
    )


def test_table_contains_runtimes_latencies_and_failures() -> None:
    text = str(make_benchmark(intra_op=1, inter_op=2))
    heading, first, second, third, *_ = text.splitlines()
    assert heading.split()[:3] == ["model", "runtime", "threads"]
    assert "20.00" in first
    assert first.split()[-3:] == ["-", "-", "baseline"]
    assert "p90: needs 64 calls, and the fewest are 40: --runs 64" in text
    assert "1,2" in second
    assert "2.00x as fast (" in second
    assert "not measured" in third
    assert "not measured: c.pb in openvino: no kernel for Foo (hint: try another runtime)" in text
    assert "lower is better" in text
    assert "higher is better" in text
    assert "threads: inside one op, ops in parallel" in text
    assert "threads:" not in str(make_benchmark())
    assert "a processor, 2 cores" in text


def test_tail_and_costs_are_in_the_tables() -> None:
    costs = {"load_seconds": (0.2, 0.3, 0.4), "first_call_seconds": (0.05,), "peak_bytes": 300_000_000}
    measurement = replace(make_measurement(FAST * 2, 10, 5), **costs)
    text = str(Benchmark((BenchmarkRow("a.pb", "auto", measurement),)))
    assert text.splitlines()[1].split()[-3:] == ["10.10", "-", "baseline"]
    assert text.splitlines()[4].split()[-4:] == ["300", "50.00", "300", "1.0"]
    assert "p90: needs" not in text
    assert "p99: needs 662 calls, and the fewest are 80: --runs 662" in text


def test_throughput_has_items_per_second() -> None:
    measurement = make_measurement(FAST, 10, 5, streams=2, batch=4, intra_op=1)
    text = str(Benchmark((BenchmarkRow("a.pb", "auto", measurement),)))
    assert "1,., 2 x 4" in text
    assert "throughput: a.pb in reference with threads 1,.: 100.0 items/s (" in text
    assert "streams 2, batch 4" in text


def test_representation_is_one_short_line() -> None:
    text = repr(make_benchmark())
    assert text == "Benchmark('a.pb' in auto: 20.00 ms, 'b.pb' in auto: 10.00 ms, 'c.pb' in openvino: not measured)"


def test_unstable_rows_have_a_reason() -> None:
    unstable = Benchmark((BenchmarkRow("a.pb", "auto", make_measurement([0.1, *FAST])),))
    text = str(unstable)
    assert text.splitlines()[1].endswith("unstable")
    assert "unstable: a.pb in reference: first call 10.0x slower" in text
    unstable = Benchmark((BenchmarkRow("a.pb", "auto", make_measurement([0.1, *FAST], intra_op=1, inter_op=2)),))
    assert "unstable: a.pb in reference with threads 1,2: first call" in str(unstable)


def test_unstable_rows_share_one_line() -> None:
    rows = [BenchmarkRow(f"{index}.pb", "auto", make_measurement([0.1, *FAST])) for index in range(11)]
    spread = [0.01, 0.02, 0.04, 0.08]
    text = str(Benchmark((*rows, BenchmarkRow("wide.pb", "auto", make_measurement(spread, 4, 4)))))
    (line,) = [line for line in text.splitlines() if line.startswith("unstable")]
    assert line.startswith("unstable: wide.pb in reference: ")
    assert line.endswith("on 12 of 12 rows; --json lists all)")
    assert text.count(" unstable\n") == 12


def test_fastest_row_is_named_with_its_rivals() -> None:
    result = make_benchmark()
    assert result.fastest is result.rows[1]
    assert "fastest on this machine: b.pb in reference (10.00 ms)\n" in str(result)
    near = BenchmarkRow("near.pb", "auto", make_measurement([seconds * 1.001 for seconds in FAST], 10, 5))
    result = Benchmark((*result.rows, near))
    assert result.rivals == (near,)
    assert "lowest median: b.pb in reference (10.00 ms), not shown to be the fastest; " in str(result)
    assert "; not shown to be slower: near.pb in reference" in str(result)
    assert (result.to_json()["fastest"], result.to_json()["rivals"]) == (1, [3])
    assert "fastest" not in str(Benchmark(result.rows[:1]))


def test_unstable_rows_have_no_fastest_one() -> None:
    wide = make_measurement([0.01, 0.02, 0.04, 0.08], 4, 4)
    result = Benchmark(
        (BenchmarkRow("a.pb", "auto", make_measurement(FAST, 10, 5)), BenchmarkRow("b.pb", "auto", wide))
    )
    assert not wide.summary.is_stable
    assert "fastest on this machine" not in str(result)
    assert ", not shown to be the fastest: latencies are unstable" in str(result)


def test_precision_and_undecided_rows_are_stated() -> None:
    text = str(make_benchmark())
    assert "5 processes per model; this run could see differences from 0.0 %; same: within 2 %" in text
    assert "undecided" not in text
    rows = [BenchmarkRow(name, "auto", make_measurement(FAST, 10)) for name in ("a.pb", "b.pb")]
    text = str(Benchmark(tuple(rows)))
    assert "undecided (1.00x as fast in 1 process)" in text
    assert (
        "undecided: b.pb in reference: the spread between processes is unknown: measure again with --processes 3"
        in text
    )
    assert "could see" not in text


def test_row_that_cannot_be_compared_has_a_reason() -> None:
    text = str(make_benchmark(batch=8))
    assert "as fast" not in text.splitlines()[2]
    assert "no speed-up: b.pb in reference: the measurements differ in batch size: 1 and 8" in text


def test_first_measured_row_is_the_reference() -> None:
    rows = make_benchmark().rows
    reordered = Benchmark((rows[2], rows[0], rows[1]))
    assert [speedup is None for speedup in reordered.speedups] == [True, True, False]
    assert "speed-up: over a.pb in reference, the first measured row, higher" in str(reordered)
    assert "speed-up: over a.pb in reference, higher is better" in str(make_benchmark())
    assert "speed-up:" not in str(Benchmark(rows[2:]))


def test_equal_failures_are_one_line() -> None:
    rows = [BenchmarkRow(name, "auto", Failure("a size is unknown", "pass sizes")) for name in ("x", "y")]
    line = "not measured: x in auto, y in auto: a size is unknown (hint: pass sizes)"
    assert str(Benchmark((*rows, *make_benchmark().rows))).count("a size is unknown") == 1
    assert line in str(Benchmark((*rows, *make_benchmark().rows))).splitlines()


@pytest.mark.parametrize(("exit_codes", "exit_code"), [((4,), 4), ((4, 3), 3), ((4, 2, 3), 2)])
@pytest.mark.parametrize("num_measured", [0, 2])
def test_any_failure_is_an_error(num_measured: int, exit_codes: tuple[int, ...], exit_code: int) -> None:
    failures = [BenchmarkRow("x", "auto", Failure(f"reason {number}", exit_code=number)) for number in exit_codes]
    result = Benchmark((*failures, *make_benchmark().rows[:num_measured]))
    with pytest.raises(NotMeasuredError, match=f"reason {exit_code}") as caught:
        result.check_measured()
    assert caught.value.exit_code == exit_code
    assert caught.value.benchmark is result
    assert pickle.loads(pickle.dumps(caught.value)).exit_code == exit_code


def test_missing_speedup_of_the_first_row_is_an_error() -> None:
    rows = make_benchmark().rows
    with pytest.raises(CheckError, match=r"c\.pb in openvino has no speed-up"):
        Benchmark((rows[2], rows[0])).check_speedups(0.1)


def test_json_contains_rows_and_failures() -> None:
    before = make_benchmark()
    document = json.loads(json.dumps(before.to_json()))
    assert Benchmark.from_json(document) == before
    assert document["rows"][1]["comparison"]["ratio"] == pytest.approx(2.0)
    assert document["rows"][1]["measurement"]["summary"]["median"] == pytest.approx(0.01)


def test_other_documents_are_rejected() -> None:
    with pytest.raises(InputError, match="the schema is 'missing'"):
        Benchmark.from_json({})
    with pytest.raises(InputError, match="incomplete: 'notes'"):
        Benchmark.from_json({"schema": "quantkit.benchmark/1", "rows": []})


@pytest.mark.parametrize(
    ("runtime", "libraries", "text"),
    [
        ("tensorflow", (), "this build does not use OpenMP; KMP_* and OMP_* have no effect"),
        ("tensorflow", ("libiomp5",), "libiomp5 is loaded: it reads KMP_* and OMP_*"),
        ("tensorflow", ("libgomp",), "libgomp is loaded: it reads OMP_*, not KMP_*"),
        ("reference", (), "OMP_NUM_THREADS sets the threads of NumPy's matrix products"),
        ("reference", (), "--intra-op and --inter-op have no effect"),
        ("openvino", (), "--intra-op and --inter-op set its threads"),
    ],
)
def test_each_runtime_has_one_line_on_openmp(runtime: str, libraries: tuple[str, ...], text: str) -> None:
    measurements = [make_measurement(seconds, runtime=runtime, openmp=libraries) for seconds in (FAST, SLOW)]
    lines = openmp_lines(measurements)
    assert len(lines) == 1
    assert lines[0].startswith(f"{runtime} 1: ")
    assert text in lines[0]


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ({}, "default"),
        ({"intra_op": 2}, "2,."),
        ({"intra_op": 1, "inter_op": 2}, "1,2"),
        ({"cpus": (0, 1)}, "default on 0,1"),
    ],
)
def test_thread_options_in_the_table(context: dict[str, object], text: str) -> None:
    assert threads_text(make_measurement(FAST, **context).context) == text


def test_columns_are_aligned() -> None:
    assert align_columns([("a", "bb"), ("ccc", "d")], right=[1]) == ["a    bb", "ccc   d"]


def test_placement_counts_the_ops_of_each_device() -> None:
    placement = ("a: CPU", "b: GPU", "c: CPU")
    rows = (
        BenchmarkRow("x.pb", "auto", make_measurement(FAST, placement=placement)),
        BenchmarkRow("y.pb", "auto", Failure("no kernel")),
    )
    summary = "placement: x.pb in reference: 2 on CPU, 1 on GPU"
    assert Benchmark(rows).placement_lines() == [summary]
    assert Benchmark(rows).placement_lines(is_verbose=True) == [summary, "  a: CPU", "  b: GPU", "  c: CPU"]
