import json

import pytest
from lab import measured

from quantkit.benchmark.report import Benchmark, Failure, Row, aligned, openmp_lines, threads_text
from quantkit.errors import InputError

FAST = [0.010, 0.0101, 0.0099, 0.0100] * 10
SLOW = [2 * seconds for seconds in FAST]


def side_by_side(**context: object) -> Benchmark:
    return Benchmark(
        (
            Row("a.pb", "auto", measured(SLOW, 10, version="2.1")),
            Row("b.pb", "auto", measured(FAST, 10, **{"version": "2.1", **context})),
            Row("c.pb", "openvino", Failure("no kernel for Foo", "try another runtime")),
        )
    )


def test_the_table_names_engines_times_and_failures() -> None:
    text = str(side_by_side(intra_op=1, inter_op=2))
    heading, first, second, third, *_ = text.splitlines()
    assert heading.split()[:3] == ["model", "runtime", "threads"]
    assert "20.00" in first
    assert first.split()[-2:] == ["first", "1.0"]
    assert "1,2" in second
    assert "2.00x as fast (" in second
    assert "not measured" in third
    assert "not measured: c.pb in openvino: no kernel for Foo (hint: try another runtime)" in text
    assert "lower is better" in text
    assert "higher is better" in text
    assert "threads: inside an operation, operations side by side" in text
    assert "threads:" not in str(side_by_side())
    assert "a processor, 2 cores" in text


def test_unstable_rows_say_why() -> None:
    shaky = Benchmark((Row("a.pb", "auto", measured([0.1, *FAST])),))
    text = str(shaky)
    assert text.splitlines()[1].endswith("unstable")
    assert "unstable: a.pb in reference: first call 10.0x slower" in text
    shaky = Benchmark((Row("a.pb", "auto", measured([0.1, *FAST], intra_op=1, inter_op=2)),))
    assert "unstable: a.pb in reference with threads 1,2: first call" in str(shaky)


def test_what_can_not_be_compared_has_no_ratio_but_a_reason() -> None:
    text = str(side_by_side(batch=8))
    assert "as fast" not in text.splitlines()[2]
    assert "not compared: b.pb in reference: the measurements differ in batch: 1 and 8" in text


def test_the_first_that_was_measured_is_the_reference() -> None:
    rows = side_by_side().rows
    turned = Benchmark((rows[2], rows[0], rows[1]))
    assert [comparison is None for comparison in turned.comparisons] == [True, True, False]


def test_json_round_trip_keeps_rows_and_failures() -> None:
    before = side_by_side()
    document = json.loads(json.dumps(before.to_json()))
    assert Benchmark.from_json(document) == before
    assert document["rows"][1]["comparison"]["ratio"] == pytest.approx(2.0)
    assert document["rows"][1]["measurement"]["summary"]["median"] == pytest.approx(0.01)


def test_other_documents_are_refused() -> None:
    with pytest.raises(InputError, match="no benchmark"):
        Benchmark.from_json({})
    with pytest.raises(InputError, match="not complete: 'notes'"):
        Benchmark.from_json({"schema": "quantkit.benchmark/1", "rows": []})


@pytest.mark.parametrize(
    ("runtime", "libraries", "words"),
    [
        ("tensorflow", (), "this build does not use OpenMP; KMP_* and OMP_* have no effect"),
        ("tensorflow", ("libiomp5",), "libiomp5 is loaded: it reads KMP_* and OMP_*"),
        ("tensorflow", ("libgomp",), "libgomp is loaded: it reads OMP_*, not KMP_*"),
        ("reference", (), "OMP_NUM_THREADS sets the threads of NumPy's matrix products"),
    ],
)
def test_each_engine_has_one_line_on_openmp(runtime: str, libraries: tuple[str, ...], words: str) -> None:
    lines = openmp_lines([measured(times, runtime=runtime, openmp=libraries) for times in (FAST, SLOW)])
    assert len(lines) == 1
    assert lines[0].startswith(f"{runtime} 1: ")
    assert words in lines[0]


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ({}, "default"),
        ({"intra_op": 2}, "2,."),
        ({"intra_op": 1, "inter_op": 2}, "1,2"),
        ({"cpus": (0, 1)}, "default on 0,1"),
    ],
)
def test_threads(context: dict[str, object], text: str) -> None:
    assert threads_text(measured(FAST, **context).context) == text


def test_columns_line_up() -> None:
    assert aligned([("a", "bb"), ("ccc", "d")], right=[1]) == ["a    bb", "ccc   d"]
