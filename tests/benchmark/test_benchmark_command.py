import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from lab import tiny_graph

from quantkit import formats
from quantkit.benchmark import Interrupted, benchmark, side_by_side
from quantkit.benchmark.report import Benchmark, Failure, Row
from quantkit.errors import UnavailableError, UsageError
from quantkit.model import Model
from quantkit.runtimes import find_runtime

QUICK = ("--runs", "6", "--warmup", "1", "-q")


def quantkit(*words: str) -> int:
    code: int = import_module("quantkit.cli").main(["benchmark", *words])
    return code


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    path = tmp_path / "other.pb"
    formats.save(tiny_graph(batch=1), path)
    return path


def test_one_table_of_two_models(tiny_model: Path, other_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantkit(f"{tiny_model}@reference", str(other_model), "--runtime=reference", *QUICK) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["model", "runtime"]
    assert lines[1].startswith("tiny.pb")
    assert lines[2].startswith("other.pb")


def test_json_and_saved_file_hold_the_same(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "times.json"
    assert quantkit(f"{tiny_model}@reference", "--json", "--save", str(saved), *QUICK) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "quantkit.benchmark/1"
    assert document == json.loads(saved.read_text())
    (row,) = Benchmark.from_json(document).rows
    assert row.measurement is not None
    assert len(row.measurement.seconds) == 6


def test_settings_reach_the_process(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--kmp_blocktime=0", "--kmp-affinity", "granularity=fine,compact", "--kmp-settings", "1")
    threads = ("--omp-num-threads", "2", "--intra-op", "1", "--inter-op", "2", "--cpus", "0", "--batch", "3")
    assert quantkit(f"{tiny_model}@reference", "--json", *words, *threads, *QUICK) == 0
    context = json.loads(capsys.readouterr().out)["rows"][0]["measurement"]["context"]
    assert context["environment"] == {
        "KMP_AFFINITY": "granularity=fine,compact",
        "KMP_BLOCKTIME": "0",
        "KMP_SETTINGS": "1",
        "OMP_NUM_THREADS": "2",
    }
    assert (context["intra_op"], context["inter_op"], context["cpus"], context["batch"]) == (1, 2, [0], 3)
    assert context["inputs"] == {"x": "float 3x4"}


def test_each_precision_has_its_row(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (f"{tiny_model}@reference", "--precision", "float32,bfloat16", "--json", *QUICK)
    assert quantkit(*words) == 0
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first["measurement"]["context"]["precision"] == "float32"
    assert "does not support the precision 'bfloat16'" in second["failure"]["reason"]
    assert "--precision float32" in second["failure"]["hint"]
    with pytest.raises(UsageError, match="'float8' is not a precision"):
        benchmark([tiny_model], "reference", precision="float8")


@pytest.mark.engine
def test_a_smaller_precision_is_named_in_the_table(tiny_model: Path) -> None:
    made = benchmark([tiny_model], "openvino", precision=("float32", "bfloat16"), runs=6, warmup=1)
    if made.failures:
        pytest.skip(made.failures[0].reason)
    lines = str(made).splitlines()
    assert [line.split()[1:3] for line in lines[1:3]] == [["openvino", "default"], ["openvino", "bfloat16"]]
    assert made.measurements[1].context.precision == "bfloat16"


def test_a_line_says_whether_openmp_heeds_the_variables(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantkit(f"{tiny_model}@reference", "--kmp-blocktime", "0", *QUICK) == 0
    assert "reference" in next(line for line in capsys.readouterr().out.splitlines() if "KMP_*" in line)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--cpus", "4096"), "no processor 4096"),
        (("--cpus", "one"), "'one' is not a processor's number"),
        (("--device", "tpu"), "'tpu' is not a device"),
        (("--runtime", "tensorfow"), "'tensorfow' is not a runtime"),
        (("--runs", "0"), "'0' is not a whole number from 1"),
        (("--time-budget", "soon"), "'soon' is not a time"),
        (("--fail-below", "x"), "'x' is not a ratio"),
        (("--fail-below", "2"), "only one is named"),
        (("--save", "/no/such/folder/times.json"), "is not a folder"),
    ],
)
def test_a_wrong_command_line_is_told_before_anything_runs(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert quantkit(str(tiny_model), *words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "code", "sentence"),
    [
        ("missing.pb", 3, "missing.pb does not exist"),
        ("digits@tensorfow", 2, "did you mean 'tensorflow'?"),
        ("digit", 2, "did you mean 'digits'?"),
    ],
)
def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], model: str, code: int, sentence: str) -> None:
    assert quantkit(model, "--offline") == code
    assert sentence in capsys.readouterr().err


def test_a_broken_model_does_not_keep_others_from_being_measured(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.pb"
    broken.write_bytes(tiny_model.read_bytes()[:-7])
    assert quantkit(str(broken), str(tiny_model), "--runtime", "reference", *QUICK) == 3
    out = capsys.readouterr().out
    assert "not measured: broken.pb" in out
    assert "truncated" in out


def test_a_gpu_where_there_is_none_is_a_clear_answer(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnavailableError) as error:
        find_runtime("reference").open(tiny_graph(), side_by_side.SessionOptions(device="gpu"))
    assert quantkit(str(tiny_model), "--runtime", "reference", "--device", "gpu:0", *QUICK) == 4
    captured = capsys.readouterr()
    assert error.value.message in captured.out
    assert error.value.message in captured.err


def rows_of(*medians: float) -> Benchmark:
    from lab import measured

    return Benchmark(tuple(Row(f"{median}.pb", "auto", measured([median] * 20, 5)) for median in medians))


@pytest.mark.parametrize(("ratio", "code"), [("1.9", 0), ("2.1", 1)])
def test_fail_below(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ratio: str, code: int) -> None:
    monkeypatch.setattr(import_module("quantkit.cli.benchmark"), "benchmark", lambda *_, **__: rows_of(0.02, 0.01))
    assert quantkit("a", "b", "--fail-below", ratio) == code
    captured = capsys.readouterr()
    assert "2.00x as fast" in captured.out
    assert ("below 2.1" in captured.err) == bool(code)


def test_fail_below_does_not_pass_what_was_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Benchmark((*rows_of(0.02).rows, Row("b", "auto", Failure("it crashed"))))
    monkeypatch.setattr(import_module("quantkit.cli.benchmark"), "benchmark", lambda *_, **__: rows)
    assert quantkit("a", "b", "--fail-below", "0.1") == 1
    assert "b in auto has no speed-up" in capsys.readouterr().err


def test_ctrl_c_shows_and_saves_what_was_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Benchmark:
        raise Interrupted(rows_of(0.02))

    monkeypatch.setattr(import_module("quantkit.cli.benchmark"), "benchmark", interrupted)
    saved = tmp_path / "times.json"
    assert quantkit("a", "--save", str(saved)) == 130
    assert "0.02.pb" in capsys.readouterr().out
    assert len(Benchmark.from_json(json.loads(saved.read_text())).rows) == 1


def test_python_takes_graphs_and_files(tiny_model: Path) -> None:
    found = benchmark([tiny_graph(), tiny_model], "reference", runs=4, warmup=1, batch=2)
    assert [row.label for row in found.rows] == ["graph of 4 nodes", "tiny.pb"]
    assert all(measurement.context.inputs == {"x": "float 2x4"} for measurement in found.measurements)


def test_random_weights_say_that_answers_mean_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Model("digits", tiny_graph(), has_random_weights=True)
    monkeypatch.setattr(side_by_side, "load", lambda *_, **__: drawn)
    found = benchmark(["digits"], "reference", runs=1, warmup=1, random_weights=True)
    assert any("predictions are not" in note for note in found.notes)


@pytest.mark.parametrize("count", ["intra_op", "inter_op", "batch", "runs"])
def test_numbers_that_make_no_sense_are_refused(tiny_model: Path, count: str) -> None:
    with pytest.raises(UsageError, match=f"{count} is 0"):
        benchmark([tiny_model], **{count: 0})  # type: ignore[arg-type]


def test_models_of_equal_names_keep_their_folders_in_the_table(tiny_model: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin" / tiny_model.name
    twin.parent.mkdir()
    twin.write_bytes(tiny_model.read_bytes())
    found = benchmark([tiny_model, twin], "reference", runs=1, warmup=1)
    assert [row.label for row in found.rows] == [str(tiny_model), str(twin)]
