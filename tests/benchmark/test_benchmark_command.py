import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from measurements import make_measurement, tiny_graph

import quantkit as qk
from quantkit import formats
from quantkit.benchmark import BenchmarkInterrupted, NotMeasuredError, benchmark
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow, Failure
from quantkit.benchmark.results.speedup import Speedup
from quantkit.convert.to_onnx import to_onnx_graph
from quantkit.errors import UnavailableError, UsageError
from quantkit.model import Model
from quantkit.progress import Progress
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import SessionOptions

QUICK = ("--runs", "6", "--warmup", "1", "--processes", "1", "-q")
# Keys of the JSON document whose values differ from call to call.
MEASURED: tuple[str, ...] = (
    "seconds",
    "warmup_seconds",
    "summary",
    "comparison",
    "started",
    "load",
    "calls_per_sample",
)
MEASURED += ("fastest", "rivals", "call_seconds", "load_seconds", "first_call_seconds", "peak_bytes")
MEASURED += ("width",)


def quantkit(*arguments: str) -> int:
    code: int = import_module("quantkit.cli").main(["benchmark", *arguments])
    return code


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    path = tmp_path / "other.pb"
    formats.save(tiny_graph(batch=1), path)
    return path


def test_table_has_a_row_per_model(tiny_model: Path, other_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantkit(f"{tiny_model}@reference", str(other_model), "--runtime=reference", *QUICK) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["model", "runtime"]
    assert lines[1].startswith("tiny.pb")
    assert lines[2].startswith("other.pb")


def test_saved_file_is_the_json_document(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "times.json"
    assert quantkit(f"{tiny_model}@reference", "--json", "--save", str(saved), *QUICK) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "quantkit.benchmark/1"
    assert document == json.loads(saved.read_text())
    (row,) = Benchmark.from_json(document).rows
    assert row.measurement is not None
    assert len(row.measurement.seconds) == 6


@pytest.mark.parametrize("suffix", ["", "@reference"])
def test_result_does_not_overwrite_a_model(
    suffix: str, tiny_model: Path, other_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tiny_model.read_bytes()
    assert quantkit(str(other_model), f"{tiny_model}{suffix}", "--save", str(tiny_model), *QUICK) == 2
    assert "--save would overwrite" in capsys.readouterr().err
    assert tiny_model.read_bytes() == before


def test_settings_apply_to_the_process(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variables = ("--kmp_blocktime=0", "--kmp-affinity", "granularity=fine,compact", "--kmp-settings", "1")
    threads = ("--omp-num-threads", "2", "--intra-op", "1", "--inter-op", "2", "--cpus", "0", "--batch", "3")
    assert quantkit(f"{tiny_model}@reference", "--json", *variables, *threads, *QUICK) == 0
    context = json.loads(capsys.readouterr().out)["rows"][0]["measurement"]["context"]
    assert context["environment"] == {
        "KMP_AFFINITY": "granularity=fine,compact",
        "KMP_BLOCKTIME": "0",
        "KMP_SETTINGS": "1",
        "OMP_NUM_THREADS": "2",
    }
    assert (context["intra_op"], context["inter_op"], context["cpus"], context["batch"]) == (1, 2, [0], 3)
    assert context["inputs"] == {"x": "float 3x4"}


def test_each_precision_has_a_row(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantkit(f"{tiny_model}@reference", "--precision", "float32,bfloat16", "--json", *QUICK) == 4
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first["measurement"]["context"]["precision"] == "float32"
    assert "does not support the precision 'bfloat16'" in second["failure"]["reason"]
    assert "--precision float32" in second["failure"]["hint"]
    with pytest.raises(UsageError, match="precision is 'float8', and must be one of"):
        benchmark([tiny_model], "reference", precision="float8")


@pytest.mark.engine
def test_table_contains_other_precisions(tiny_model: Path) -> None:
    result = benchmark([tiny_model], "openvino", precision=("float32", "bfloat16"), runs=1, warmup=1, processes=1)
    if result.failures:
        pytest.skip(result.failures[0].reason)
    lines = str(result).splitlines()
    assert [line.split()[1:3] for line in lines[1:3]] == [["openvino", "default"], ["openvino", "bfloat16"]]
    assert result.measurements[1].context.precision == "bfloat16"


def test_effect_of_openmp_variables_is_reported(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantkit(f"{tiny_model}@reference", "--kmp-blocktime", "0", *QUICK) == 0
    assert "reference" in next(line for line in capsys.readouterr().out.splitlines() if "KMP_*" in line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cpus", "4096"), "CPU 4096 is not available"),
        (("--cpus", "one"), "'one' is not the number of a CPU"),
        (("--device", "tpu"), "'tpu' is not a device"),
        (("--runtime", "tensorfow"), "'tensorfow' is not a runtime"),
        (("--runs", "0"), "'0' is not a whole number from 1"),
        (("--time-budget", "soon"), "'soon' is not a time"),
        (("--fail-below", "x"), "'x' is not a ratio"),
        (("--fail-below", "2"), "one is named"),
        (("--save", "/no/such/folder/times.json"), "is not a folder"),
    ],
)
def test_wrong_command_line_is_rejected_before_a_model_runs(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert quantkit(str(tiny_model), *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("missing.pb", 3, "missing.pb does not exist"),
        ("digits@onnxruntim", 2, "did you mean 'onnxruntime'?"),
        ("digit", 2, "did you mean 'digits'?"),
    ],
)
def test_missing_model_is_an_error(capsys: pytest.CaptureFixture[str], model: str, code: int, message: str) -> None:
    assert quantkit(model, "--offline") == code
    assert message in capsys.readouterr().err


def test_other_models_are_measured_if_one_is_broken(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.pb"
    broken.write_bytes(tiny_model.read_bytes()[:-7])
    assert quantkit(str(broken), str(tiny_model), "--runtime", "reference", *QUICK) == 3
    out = capsys.readouterr().out
    assert "not measured: broken.pb" in out
    assert "truncated" in out


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_failure_of_all_models_is_stated_once(
    tiny_model: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (str(tiny_model), str(tiny_model), "--precision", "bfloat16", "--runtime", "reference", *QUICK, *flags)
    assert quantkit(*arguments) == 4
    captured = capsys.readouterr()
    assert bool(captured.out) == bool(flags)
    assert captured.err.count("the NumPy runtime") == 1


def test_runtime_that_cannot_run_a_model_is_an_error(
    tiny_model: Path, other_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4 also if another model was measured; the library raises the same error if all models fail."""
    assert quantkit(str(tiny_model), "--precision", "bfloat16,float32", "--runtime", "reference", *QUICK) == 4
    captured = capsys.readouterr()
    assert "a candidate could not be measured: the NumPy runtime" in captured.err
    assert "tiny.pb" in captured.out
    with pytest.raises(NotMeasuredError, match="no candidate could be measured") as caught:
        benchmark([tiny_model, other_model], "reference", precision="bfloat16")
    assert caught.value.exit_code == 4
    assert len(caught.value.benchmark.failures) == 2


def test_missing_gpu_is_an_error(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnavailableError) as error:
        find_runtime("reference").open(tiny_graph(), SessionOptions(device="gpu"))
    assert quantkit(str(tiny_model), "--runtime", "reference", "--device", "gpu:0", *QUICK) == 4
    captured = capsys.readouterr()
    assert not captured.out
    assert error.value.message in captured.err


def make_benchmark(*medians: float) -> Benchmark:
    return Benchmark(
        tuple(BenchmarkRow(f"{median}.pb", "auto", make_measurement([median] * 20, 5, 5)) for median in medians)
    )


@pytest.mark.parametrize(("ratio", "code"), [("1.9", 0), ("2.1", 1)])
def test_fail_below(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ratio: str, code: int) -> None:
    monkeypatch.setattr(
        import_module("quantkit.cli.benchmark"), "benchmark", lambda *_, **__: make_benchmark(0.02, 0.01)
    )
    assert quantkit("a", "b", "--fail-below", ratio) == code
    captured = capsys.readouterr()
    assert "2.00x as fast" in captured.out
    assert ("below 2.1" in captured.err) == bool(code)
    assert ("more runs do not change the result" in captured.err) == bool(code)


@pytest.mark.parametrize(("ratio", "code"), [("1", 0), ("1.2", 1)])
def test_fail_below_does_not_fail_within_the_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ratio: str, code: int
) -> None:
    """Equal models pass a limit of 1 although half of the measured speed-ups are below it."""
    seconds = [seconds for seconds in (0.0101, 0.0099, 0.0102, 0.0098, 0.0101) for _ in range(4)]
    rows = (*make_benchmark(0.01).rows, BenchmarkRow("b", "auto", make_measurement(seconds, 5, 5)))
    (speedup,) = filter(None, Benchmark(rows).speedups)
    assert isinstance(speedup, Speedup)
    assert speedup.ratio < 1
    monkeypatch.setattr(import_module("quantkit.cli.benchmark"), "benchmark", lambda *_, **__: Benchmark(rows))
    assert quantkit("a", "b", "--fail-below", ratio) == code


def test_fail_below_fails_for_a_row_without_a_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Benchmark((*make_benchmark(0.02).rows, BenchmarkRow("b", "auto", Failure("the process ended"))))
    monkeypatch.setattr(import_module("quantkit.cli.benchmark"), "benchmark", lambda *_, **__: result)
    assert quantkit("a", "b", "--fail-below", "0.1") == 1
    assert "b in auto has no speed-up" in capsys.readouterr().err


def test_ctrl_c_prints_and_saves_finished_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> Benchmark:
        raise BenchmarkInterrupted(make_benchmark(0.02))

    monkeypatch.setattr(import_module("quantkit.cli.benchmark"), "benchmark", interrupt)
    saved = tmp_path / "times.json"
    assert quantkit("a", "--save", str(saved)) == 130
    assert "0.02.pb" in capsys.readouterr().out
    assert len(Benchmark.from_json(json.loads(saved.read_text())).rows) == 1


def test_library_accepts_graphs_and_files(tiny_model: Path) -> None:
    result = benchmark([tiny_graph(), tiny_model], "reference", runs=4, warmup=1, processes=1, batch=2)
    assert [row.label for row in result.rows] == ["graph of 4 nodes", "tiny.pb"]
    assert all(measurement.context.inputs == {"x": "float 2x4"} for measurement in result.measurements)


def test_library_accepts_models_of_both_dialects(tiny_model: Path, tmp_path: Path) -> None:
    loaded = qk.load(tiny_model)
    assert isinstance(benchmark(loaded, "reference", runs=1, warmup=1, processes=1).rows[0].outcome, Measurement)
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    converted = loaded.with_graph(to_onnx_graph(loaded.graph))
    converted.save(tmp_path / "other.onnx")
    result = benchmark(
        [loaded, converted, f"{tmp_path}/other.onnx@onnxruntime"], "onnxruntime", runs=1, warmup=1, processes=1
    )
    assert not result.failures
    assert [row.label for row in result.rows] == ["tiny.pb #1", "tiny.pb #2", "other.onnx"]
    assert len({measurement.context.digest for measurement in result.measurements}) >= 2


def test_wrong_type_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        benchmark([object()])


def without_measured_values(document: Any) -> Any:
    """Return a JSON document with the type in place of each measured number."""
    if isinstance(document, dict):
        return {
            key: type(value).__name__ if key in MEASURED else without_measured_values(value)
            for key, value in document.items()
        }
    return [without_measured_values(value) for value in document] if isinstance(document, list) else document


def test_library_and_command_give_the_same_document(
    tiny_model: Path, other_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [f"{tiny_model}@reference", f"{other_model}@reference"]
    assert quantkit(*models, "--json", "--batch", "1", "--seed", "3", *QUICK) == 0
    document = json.loads(capsys.readouterr().out)
    result = qk.benchmark(models, batch=1, seed=3, runs=6, warmup=1, processes=1)
    assert without_measured_values(json.loads(json.dumps(result.to_json()))) == without_measured_values(document)
    assert set(MEASURED) <= keys_of(document)


def keys_of(document: Any) -> set[str]:
    values = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    return {*(document if isinstance(document, dict) else ()), *(key for value in values for key in keys_of(value))}


def test_progress_reports_each_stage(tiny_model: Path) -> None:
    reports: list[Progress] = []
    benchmark([tiny_model], "reference", runs=2, warmup=1, processes=1, on_progress=reports.append)
    assert list(dict.fromkeys(report.stage for report in reports)) == ["opening", "warming up", "measuring"]
    assert replace(reports[-1], seconds=None) == Progress("measuring", 2, 2)


def test_result_is_an_html_table() -> None:
    html = make_benchmark(0.02, 0.01)._repr_html_()
    assert "<td>0.02.pb</td>" in html
    assert "<p>" in html


def test_random_weights_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    random_model = Model("digits", tiny_graph(), has_random_weights=True)
    monkeypatch.setattr(
        import_module("quantkit.benchmark.sampling.selection"), "as_model", lambda *_, **__: random_model
    )
    result = benchmark(["digits"], "reference", runs=1, warmup=1, processes=1, random_weights=True)
    assert any("predictions are not" in note for note in result.notes)


@pytest.mark.parametrize("count", ["intra_op", "inter_op", "batch", "runs"])
def test_numbers_out_of_range_are_rejected(tiny_model: Path, count: str) -> None:
    with pytest.raises(UsageError, match=f"{count} is 0"):
        benchmark([tiny_model], **{count: 0})  # type: ignore[arg-type]


def test_models_with_equal_file_names_are_labelled_with_their_paths(tiny_model: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin" / tiny_model.name
    twin.parent.mkdir()
    twin.write_bytes(tiny_model.read_bytes())
    result = benchmark([tiny_model, twin], "reference", runs=1, warmup=1, processes=1)
    assert [row.label for row in result.rows] == [str(tiny_model), str(twin)]
