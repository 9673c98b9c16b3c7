import json
import random
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from measurements import MACHINE, make_measurement

from quantkit.benchmark import benchmark
from quantkit.benchmark.regression import compare_with_saved, read_baseline
from quantkit.benchmark.report_page import median_chart
from quantkit.benchmark.results.baseline import BaselineComparison
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow, Failure
from quantkit.errors import CheckError, InputError, UsageError

# Speed of each of five processes: they differ by some percent.
PROCESSES = (1.0, 1.01, 0.99, 1.02, 0.985)
LATER = "2026-01-02T00:00:00"


def make_repeated(seconds: float, factors: Sequence[float] = PROCESSES, **context: Any) -> Measurement:
    """Return a measurement of 4 samples in 2 rounds of each process."""
    samples = [seconds * factor for factor in factors for _ in range(4)]
    return make_measurement(samples, 2 * len(factors), len(factors), **context)


def make_benchmark(seconds: float, workload: float | None = 0.001, label: str = "a.onnx", **context: Any) -> Benchmark:
    product = None if workload is None else make_repeated(workload, PROCESSES[::-1], digest="01")
    return Benchmark((BenchmarkRow(label, "reference", make_repeated(seconds, **context)),), workload=product)


def compare(saved: Benchmark, present: Benchmark) -> BaselineComparison:
    return compare_with_saved("saved.json", saved, present.rows, present.workload)


@pytest.mark.parametrize("slowdown", [0.7, 1.0, 1.3])
def test_change_of_the_machine_is_not_a_regression(slowdown: float) -> None:
    comparison = compare(make_benchmark(0.01), make_benchmark(0.01 * slowdown, 0.001 * slowdown, started=LATER))
    assert comparison.is_relative
    (change,) = comparison.changes
    assert change.speedup is not None
    assert change.speedup.ratio == pytest.approx(1.0)
    assert (change.speedup.is_paired, change.speedup.processes) == (False, 5)
    comparison.check(0.97)


def test_slower_model_is_a_regression_on_the_same_machine() -> None:
    comparison = compare(make_benchmark(0.01), make_benchmark(0.01 * 1.2))
    with pytest.raises(
        CheckError, match=r"a.onnx in reference is 0.83x as fast as in saved.json .*, below 0.97"
    ) as caught:
        comparison.check(0.97)
    assert caught.value.exit_code == 1
    comparison.check(0.8)


@pytest.mark.parametrize(("machine", "low", "high"), [(0.8, 0.83, 1.04), (1.25, 0.67, 0.83)])
def test_interval_contains_the_change_of_the_machine(machine: float, low: float, high: float) -> None:
    """A model that takes 1.2 times as long may follow the speed of the matrix product, or not."""
    (change,) = compare(make_benchmark(0.01), make_benchmark(0.01 * 1.2 * machine, 0.001 * machine)).changes
    assert change.speedup is not None
    assert change.speedup.ratio == pytest.approx(1 / 1.2)
    assert change.speedup.low < low < high < change.speedup.high
    # More processes do not show which of both is the case.
    assert change.speedup.is_clear
    if change.speedup.outcome == "undecided":
        assert "because the machine has another speed than in the saved benchmark" in str(change)


UNSTABLE = (1.0, 1.6, 0.8, 1.5, 0.7)


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("seconds", [0.001, 0.0125, 1.0])
def test_unstable_row_fails_no_gate_and_shows_no_difference(seconds: float, is_saved: bool) -> None:
    factors = (UNSTABLE, PROCESSES) if is_saved else (PROCESSES, UNSTABLE)
    saved, present = (make_benchmark(time, factors=own) for time, own in zip((0.01, seconds), factors, strict=True))
    comparison = compare(saved, present)
    (change,) = comparison.changes
    assert change.speedup is not None
    assert change.speedup.outcome == "undecided"
    assert change.to_json()["speed_up"]["is_different"] is False
    assert f"unstable in {'the saved' if is_saved else 'this'} benchmark: " in str(change)
    assert comparison.lines[-1].endswith("in the same rounds: quantkit benchmark OLD NEW --fail-below RATIO")
    comparison.check(0.97)


def test_unstable_row_fails_the_gate_of_one_benchmark() -> None:
    """Disturbances cancel in the rounds that both models share."""
    rows = (make_benchmark(0.01, factors=UNSTABLE).rows[0], make_benchmark(0.02, factors=UNSTABLE, label="b").rows[0])
    assert not any(row.measurement.summary.is_stable for row in rows if row.measurement)
    with pytest.raises(CheckError, match="b in reference is 0.50x as fast"):
        Benchmark(rows).check_speedups(0.97)


def test_interval_that_contains_the_limit_passes() -> None:
    saved, present = make_benchmark(0.01), make_benchmark(0.0105)
    (change,) = compare(saved, present).changes
    assert change.speedup is not None
    assert change.speedup.ratio < 0.97 < change.speedup.high
    compare(saved, present).check(0.97)


def test_baseline_without_the_workload_compares_latencies() -> None:
    comparison = compare(make_benchmark(0.01, workload=None), make_benchmark(0.013, 0.0013))
    assert not comparison.is_relative
    assert "no common matrix product" in comparison.lines[0]
    with pytest.raises(CheckError, match="0.77x"):
        comparison.check(0.97)


def test_another_workload_is_ignored() -> None:
    saved, present = make_benchmark(0.01), make_benchmark(0.01)
    assert present.workload is not None
    other = replace(present.workload, context=replace(present.workload.context, digest="02"))
    assert not compare_with_saved("saved.json", saved, present.rows, other).is_relative


def test_equal_models_pass_at_random_speeds_of_machine_and_processes() -> None:
    """Each process differs by 3 %, each benchmark by up to 50 %; the interval is below 0.97 in 2.5 % at most."""
    source = random.Random(0)

    def draw() -> Benchmark:
        speed = source.uniform(1.0, 1.5)
        factors = [source.lognormvariate(0, 0.03) for _ in PROCESSES]
        product = make_repeated(0.001 * speed, [source.lognormvariate(0, 0.03) for _ in PROCESSES])
        return Benchmark((BenchmarkRow("a", "reference", make_repeated(0.01 * speed, factors)),), workload=product)

    failures = 0
    for _ in range(200):
        (change,) = compare(draw(), draw()).changes
        assert change.speedup is not None
        failures += change.speedup.high < 0.97
    assert failures <= 5


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"version": "2"}, "runtime is reference 2, and reference 1 in the file"),
        ({"runtime": "openvino"}, "runtime is openvino 1, and reference 1 in the file"),
        ({"batch": 4}, "batch size is 4, and 1 in the file"),
        ({"streams": 2}, "streams is 2, and none in the file"),
        ({"cpus": (0,)}, "usable CPUs is 1, and 2 in the file"),
    ],
)
def test_unlike_conditions_are_refused(context: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(make_benchmark(0.01), make_benchmark(0.01, **context))


def test_file_of_another_machine_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    make_benchmark(0.01).save(file)
    read_baseline(file, replace(MACHINE, load=9.0))
    other = replace(MACHINE, cpu="another processor", physical_cores=4)
    with pytest.raises(UsageError) as caught:
        read_baseline(file, other)
    assert "cpu is another processor, and a processor in the file; physical cores is 4, and 2" in caught.value.message


def test_rows_are_matched_by_name_and_single_rows_by_position() -> None:
    first, second = make_benchmark(0.01, label="a").rows[0], make_benchmark(0.02, label="b").rows[0]
    saved = Benchmark((first, second))
    swapped = compare(saved, Benchmark((second, first)))
    assert [change.speedup and round(change.speedup.ratio, 6) for change in swapped.changes] == [1, 1]
    renamed = compare(Benchmark((first,)), Benchmark((second,)))
    assert renamed.changes[0].speedup is not None
    unknown = compare(saved, Benchmark((replace(second, label="c"),)))
    assert "has no row of this model" in str(unknown.changes[0])
    with pytest.raises(CheckError, match="c in reference has no speed-up over saved.json"):
        unknown.check(0.1)


def test_few_processes_have_no_speedup() -> None:
    row = BenchmarkRow("a.onnx", "reference", make_repeated(0.01, PROCESSES[:2]))
    comparison = compare(make_benchmark(0.01), Benchmark((row,)))
    with pytest.raises(CheckError, match="a comparison needs 3 processes in both benchmarks"):
        comparison.check(0.5)


def test_result_prints_and_survives_json() -> None:
    present = make_benchmark(0.02)
    result = replace(present, baseline_comparison=compare(make_benchmark(0.01), present))
    assert "speed-up over saved.json of 2026-01-01T00:00:00 UTC; latencies relative to a matrix product" in str(result)
    assert "a.onnx in reference: 0.50x as fast" in str(result)
    document = json.loads(json.dumps(result.to_json()))
    read = Benchmark.from_json(document)
    assert read.to_json() == result.to_json()
    with pytest.raises(CheckError):
        read.check_speedups(0.97)


def broken(**measurement: Any) -> str:
    document = make_benchmark(0.01).to_json()
    document["rows"][0]["measurement"] |= measurement
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a JSON file"),
        ("[]", "does not contain a JSON object"),
        ("{}", "is not a saved benchmark: the schema is 'missing'"),
        (json.dumps({"schema": "quantkit.benchmark/1", "rows": 3}), "is not a saved benchmark"),
        (broken(seconds=[]), "is not a saved benchmark"),
        (broken(seconds=[-1.0] * 20), "is not a saved benchmark"),
        (broken(context=7), "is not a saved benchmark"),
        (json.dumps(Benchmark((BenchmarkRow("a", "b", Failure("x")),)).to_json()), "has no measurement"),
    ],
)
def test_broken_baseline_is_an_input_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "saved.json"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_baseline(file, MACHINE)


def test_command_compares_with_the_saved_file(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved model that was 1e6 times as fast is a regression at any speed of the machine."""
    monkeypatch.setattr(import_module("quantkit.benchmark.results.measurement"), "_warnings", lambda *facts: ())
    saved = tmp_path / "saved.json"
    command = ["benchmark", f"{tiny_model}@reference", "--runs", "6", "--warmup", "1", "-q"]
    main = import_module("quantkit.cli").main
    assert main([*command, "--save", str(saved)]) == 0
    document = json.loads(saved.read_text())
    samples = document["rows"][0]["measurement"]
    samples["seconds"] = [seconds / 1e6 for seconds in samples["seconds"]]
    saved.write_text(json.dumps(document))
    assert main([*command, "--baseline", str(saved), "--fail-below", "0.97"]) == 1
    captured = capsys.readouterr()
    assert "latencies relative to a matrix product in the same rounds" in captured.out
    assert "below 0.97" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--baseline", "missing.json"), 3, "cannot read missing.json"),
        (("--baseline", "saved.json", "--save", "saved.json"), 2, "--save would overwrite"),
        (("--baseline", "saved.json", "--profile"), 2, "omit --save, --baseline"),
        (("--baseline", "saved.json", "--sweep"), 2, "--baseline does not apply to --sweep"),
    ],
)
def test_wrong_use_of_the_baseline_is_rejected_before_a_model_runs(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("saved.json").write_text("{}")
    assert import_module("quantkit.cli").main(["benchmark", str(tiny_model), *arguments]) == code
    assert message in capsys.readouterr().err


def test_saved_benchmark_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, saved = import_module("quantkit.cli").main, tmp_path / "saved.json"
    rows = (make_benchmark(0.01).rows[0], make_benchmark(0.02, label="b").rows[0])
    Benchmark(rows).save(saved)
    assert main(["benchmark", str(saved), "--html", str(tmp_path / "chart.svg")]) == 0
    assert capsys.readouterr().out == f"{Benchmark(rows)}\n"
    assert (tmp_path / "chart.svg").read_text() == median_chart(Benchmark(rows))
    assert main(["benchmark", str(saved), "--html", str(tmp_path / "page.html")]) == 0
    assert "Slowest layers" not in (tmp_path / "page.html").read_text()
    assert benchmark([saved]).to_json() == benchmark(str(saved)).to_json() == Benchmark(rows).to_json()


def test_two_saved_benchmarks_are_compared(tmp_path: Path) -> None:
    make_benchmark(0.01).save(tmp_path / "before.json")
    make_benchmark(0.02).save(tmp_path / "after.json")
    result = benchmark(tmp_path / "after.json", baseline=tmp_path / "before.json")
    with pytest.raises(CheckError, match="0.50x as fast as in"):
        result.check_speedups(0.97)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("saved.json", "digits"), 2, "saved.json is a saved benchmark, and is shown alone"),
        (("saved.json", "--sweep"), 2, "saved.json is a saved benchmark, not a model"),
        (("saved.json", "--profile"), 2, "saved.json is a saved benchmark, not a model"),
        (("saved.json",), 3, "saved.json is not a saved benchmark: the schema is 'missing'"),
        (("missing.json",), 3, "cannot read missing.json"),
    ],
)
def test_wrong_use_of_a_saved_benchmark_is_rejected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("saved.json").write_text("{}")
    assert import_module("quantkit.cli").main(["benchmark", *arguments]) == code
    assert message in capsys.readouterr().err
