"""Batch inference: equal results however the work is divided, interrupted and repeated."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from inline_clusters import InlineCluster, use_inline_workers
from records import example, write_records

import quantkit as qk
from quantkit.batch_inference import BatchInference
from quantkit.batch_inference.results import FORMATS, read_rows
from quantkit.batch_inference.rows import class_rows
from quantkit.batch_inference.service import InferenceTask
from quantkit.data.labels import read_labels
from quantkit.errors import InputError, UsageError
from quantkit.ir.text import from_text
from quantkit.progress import Progress
from quantkit.runtimes import Runtime

ASSETS = Path(__file__).parent.parent.parent / "assets"
HELD_OUT = ASSETS / "digits_heldout.npz"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images; the file 13 is broken."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(20):
        shutil.copy(ASSETS / f"digit_{number % 10}.png", folder / f"{number:02}.png")
    (folder / "13.png").write_bytes(b"broken")
    return folder


@pytest.fixture
def use_inline(monkeypatch: pytest.MonkeyPatch) -> Callable[..., InlineCluster]:
    """Select a cluster in this process for the next calls."""
    return partial(use_inline_workers, monkeypatch)


def run(data: Any, folder: Path, **options: Any) -> BatchInference:
    return qk.run("digits", data, folder, runtime="reference", shard_size=6, **options)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the result files of a folder, and the manifest, in which no time is."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "report.json"}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_a_model_without_class_scores_is_opened_once(
    tmp_path: Path, use_inline: Callable[..., InlineCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_session = [], Runtime.open

    def count(self: Runtime, *rest: Any) -> Any:
        opened.append(self.name)
        return open_session(self, *rest)

    monkeypatch.setattr(Runtime, "open", count)
    use_inline()
    graph = from_text("x = Placeholder[1x2x3]()\ny = Relu(x)").with_endpoints(["x"], ["y"])
    qk.run(graph, np.ones((4, 2, 3), np.float32), tmp_path, runtime="reference")
    assert opened == ["reference"]
    assert len(rows_of(tmp_path)) == 4


def test_rows_are_predictions_in_the_order_of_the_dataset(
    images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]
) -> None:
    use_inline()
    result = run(images, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert [row["file"] for row in rows] == [str(images / f"{number:02}.png") for number in range(20)]
    assert [row["index"] for row in rows] == [None if number == 13 else number % 10 for number in range(20)]
    expected = qk.classify(images / "04.png", "digits", runtime="reference")[0]
    assert rows[4] == {
        "file": str(images / "04.png"),
        **{key: vars(expected)[key] for key in ("label", "score", "index")},
    }
    assert "is not an image" in rows[13]["error"]
    assert list(result.rejected) == [str(images / "13.png")]
    assert list(result.rows()) == rows
    assert [file.name for file in result.files] == [f"results-0000{number}-of-00004.jsonl" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "report.json",
        *(file.name for file in result.files),
    ]
    assert result.samples == 20
    assert "1 samples rejected" in str(result)
    assert result._repr_html_().startswith("<pre>digits")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["schema"] == "quantkit.run/1"


def test_processes_and_command_write_the_same_bytes(
    images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"run digits@reference --data {images} -o {tmp_path / 'command'} --shard-size 6 --workers 2 --json -q"
    assert import_module("quantkit.cli").main(command.split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert [worker["tasks"] for worker in document["workers"]] != [0, 0]
    assert len({worker["pid"] for worker in document["workers"]} | {os.getpid()}) == 3
    use_inline()
    result = run(images, tmp_path / "inline")
    assert contents(tmp_path / "command") == contents(tmp_path / "inline")
    assert document.keys() == result.to_json().keys()


def test_labels_of_another_model_are_rejected(tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    use_inline()
    (tmp_path / "labels.txt").write_text("\n".join(f"class {index}" for index in range(12)))
    with pytest.raises(InputError, match="the labels belong to another model"):
        run(HELD_OUT, tmp_path / "out", limit=7, labels=tmp_path / "labels.txt")


def test_labels_are_checked_by_the_scores_of_a_model_with_a_dynamic_output(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc")
    labels = read_labels(tmp_path / "labels.txt")
    model: Any = SimpleNamespace(predict=lambda *_: np.eye(4)[:2], label_order=None)
    with pytest.raises(InputError, match="the model has 4 class scores"):
        class_rows(model, Any, labels, [])
    model.predict = lambda *_: np.eye(3)[1:]
    assert [row["label"] for row in class_rows(model, Any, labels, [])] == ["b", "c"]


def test_limit_is_the_fixed_subset_of_evaluate(tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    use_inline()
    run(HELD_OUT, tmp_path / "out", limit=7)
    evaluated = qk.evaluate("digits", HELD_OUT, runtime="reference", limit=7)
    labels = np.load(HELD_OUT)["labels"]
    correct = sum(row["index"] == labels[int(row["file"])] for row in rows_of(tmp_path / "out"))
    assert evaluated.metrics.top1 is not None
    assert correct == evaluated.metrics.top1.count


@pytest.mark.parametrize("format", ["npz", "parquet"])
@pytest.mark.parametrize("rows", ["classes", "tensors"])
def test_formats_hold_the_same_rows(
    format: str, rows: str, images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]
) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="pip install pyarrow")
    use_inline()
    expected = {row["file"]: row for row in run(images, tmp_path / "jsonl", rows=rows).rows()}
    first, second = (run(images, tmp_path / name, rows=rows, format=format) for name in ("first", "second"))
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert first.rejected == second.rejected
    count = 0
    for row in first.rows():
        expected_row = expected[row["file"]]
        assert row.get("error") == expected_row.get("error")
        if "error" in row:
            continue
        count += 1
        if rows == "classes":
            assert row == expected_row
        else:
            assert row["outputs"]["softmax"].tolist() == expected_row["outputs"]["softmax"]
            assert len(expected_row["outputs"]["softmax"]) == 10
    assert count == 19


@pytest.mark.parametrize("format", ["jsonl", "parquet", "npz"])
@pytest.mark.parametrize("rows", ["classes", "tensors"])
def test_shard_without_an_accepted_sample(
    format: str, rows: str, images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]
) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="pip install 'quantkit-toolchain[distributed]'")
    use_inline()
    files = [images / "03.png", images / "13.png"]
    result = qk.run("digits", files, tmp_path / "out", runtime="reference", format=format, rows=rows, shard_size=1)
    by_name = {Path(row["file"]).name: row for row in result.rows()}
    assert ("error" in by_name["03.png"], "error" in by_name["13.png"]) == (False, True)
    assert list(result.rejected) == [str(images / "13.png")]


def test_missing_shards_are_run_again(images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    use_inline()
    run(images, tmp_path / "out")
    expected = contents(tmp_path / "out")
    (tmp_path / "out" / "results-00002-of-00004.jsonl").unlink()
    (tmp_path / "out" / ".results-00002-of-00004.jsonl.abc.part").write_text("partial")
    cluster = use_inline()
    messages: list[str] = []
    reports: list[Progress] = []
    result = run(images, tmp_path / "out", on_message=messages.append, on_progress=reports.append)
    assert [message.index for message in cluster.messages if message] == [2]
    assert contents(tmp_path / "out") == expected
    assert messages == ["resuming: 3 of 4 shards are finished"]
    assert (result.resumed_samples, result.samples, len(result.rejected)) == (14, 20, 1)
    assert (reports[-1].done, reports[-1].total) == (20, 20)
    assert "samples per second" in reports[-1].step
    finished = run(images, tmp_path / "out")
    assert (finished.resumed_samples, finished.scaling, finished.samples_per_second) == (20, {}, 0)
    assert "20 samples were finished before" in str(finished)


def test_truncated_result_file_is_an_error(tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    use_inline()
    images = {"images": np.load(HELD_OUT)["images"][:6]}
    run(images, tmp_path / "out")
    file = tmp_path / "out" / "results-00000-of-00001.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(InputError, match="has 4 rows, and the shard has 6 samples"):
        run(images, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 3}, "batch is 8 there and 3 here"),
        ({"limit": 3}, "data sha256 is"),
        ({"rows": "tensors"}, "rows is 'auto' there and 'tensors' here"),
        ({"input_mean": 3.0}, "preprocessing is {} there"),
        ({"format": "npz"}, "format is 'jsonl' there"),
        ({"model": "folded"}, "model sha256 is"),
    ],
    ids=lambda change: next(iter(change), "") if isinstance(change, dict) else "",
)
def test_other_settings_are_refused(
    change: dict[str, Any], message: str, images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]
) -> None:
    use_inline()
    run(images, tmp_path / "out")
    before = contents(tmp_path / "out")
    if "model" in change:
        change = {"model": qk.transform("digits", "inference")}
    settings = {"model": "digits", "runtime": "reference", "shard_size": 6, **change}
    with pytest.raises(UsageError, match=message) as caught:
        qk.run(data=images, output=tmp_path / "out", **settings)
    assert caught.value.hint == "write to another folder, or remove this one"
    assert {name: data for name, data in contents(tmp_path / "out").items() if not name.startswith("model")} == before


def test_other_data_is_refused(tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    use_inline()
    arrays = np.load(HELD_OUT)["images"][:6]
    run(arrays, tmp_path / "out")
    run(arrays.copy(), tmp_path / "out")
    with pytest.raises(UsageError, match="data sha256"):
        run(255 - arrays, tmp_path / "out")
    with pytest.raises(UsageError, match="read once and in order"):
        run((array for array in arrays), tmp_path / "stream")


def test_lost_workers_change_nothing(images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    use_inline()
    run(images, tmp_path / "quiet")
    losses = iter([False, False, True, False, True, False, False, True] + [False] * 20)
    use_inline(lambda message: next(losses))
    result = run(images, tmp_path / "lossy", workers=2)
    assert contents(tmp_path / "lossy") == contents(tmp_path / "quiet")
    assert sum(worker.restarts for worker in result.workers) == 3
    assert result.failed_attempts >= 1


def ends_with(name: str) -> Callable[[InferenceTask | None], bool]:
    """Return a function that is True for tasks with a sample."""

    def ends(message: InferenceTask | None) -> bool:
        if message is None:
            return False
        names = [sample.name for sample in message.data.samples]
        return any(names[at] == name for at in range(len(names)) if at not in message.excluded)

    return ends


def test_sample_that_ends_its_worker_is_rejected(
    images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]
) -> None:
    use_inline()
    run(images, tmp_path / "quiet")
    use_inline(ends_with("08.png"))
    messages: list[str] = []
    result = run(images, tmp_path / "out", retries=1, on_message=messages.append)
    assert result.rejected[str(images / "08.png")] == "the process was ended by SIGKILL"
    assert messages == ["results-00001-of-00004.jsonl: the process was ended by SIGKILL; its 6 samples run one by one"]
    rows, expected = rows_of(tmp_path / "out"), rows_of(tmp_path / "quiet")
    assert rows[8] == {
        "file": str(images / "08.png"),
        "label": None,
        "score": None,
        "index": None,
        "error": "the process was ended by SIGKILL",
    }
    assert rows[:8] + rows[9:] == expected[:8] + expected[9:]


def test_shard_that_fails_without_a_bad_sample_does_not_stop_the_others(
    images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]
) -> None:
    use_inline(lambda message: message is not None and message.file.startswith("results-00001"))
    with pytest.raises(InputError, match=r"1 of 4 shards failed, the first: results-00001-of-00004\.jsonl") as caught:
        run(images, tmp_path / "out", retries=0)
    assert "run the same command" in caught.value.hint
    use_inline()
    result = run(images, tmp_path / "out")
    assert (result.resumed_samples, result.samples) == (14, 20)


def test_damaged_files_of_an_earlier_run_are_rejected(
    images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]
) -> None:
    use_inline()
    run(images, tmp_path / "out")
    path = tmp_path / "out" / "results-00001-of-00004.jsonl"
    for content in (b"", path.read_bytes()[:30], b"[]\n" * 6, b'{"file": 3}\n' * 6, b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"results-00001-of-00004\.jsonl (is not a result file|has 0 rows)"):
            run(images, tmp_path / "out")
    for content in (b"", b"PK\3\4", b"\x93NUMPY"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is not a result file"):
            read_rows(path, FORMATS["npz"])
    (tmp_path / "out" / "manifest.json").write_text('{"settings": [], "facts": {}}')
    with pytest.raises(InputError, match=r"manifest.json is broken: the manifest\['settings'\] is '\[\]'"):
        run(images, tmp_path / "out")


def test_data_that_no_sample_of_fits_is_an_error(tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    use_inline()
    with pytest.raises(InputError, match="takes float of shape"):
        run(np.zeros((9, 5), np.float32), tmp_path / "out")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"broken")
    with pytest.raises(InputError, match="none of 1 images can be decoded"):
        run(tmp_path / "images", tmp_path / "broken")


def test_damaged_record_is_rejected(tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    use_inline()
    records = [example(image__encoded=[(ASSETS / f"digit_{digit}.png").read_bytes()]) for digit in range(8)]
    path = write_records(tmp_path / "digits.tfrecord", records)
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    result = run(path, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4, 5, 6, None]
    assert "damaged" in next(iter(result.rejected.values()))


def test_killed_run_is_resumed(images: Path, tmp_path: Path, use_inline: Callable[..., InlineCluster]) -> None:
    """Kill the command after its first result file, with its worker."""
    folder = tmp_path / "out"
    command = f"run digits@reference --data {images} -o {folder} --shard-size 6 --batch 1 -q"
    process = subprocess.Popen([sys.executable, "-m", "quantkit", *command.split()])
    deadline = time.monotonic() + 120
    while not list(folder.glob("results-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(folder.glob("results-*.jsonl"))
    use_inline()
    result = run(images, folder, batch=1)
    assert result.resumed_samples >= 6
    run(images, tmp_path / "quiet", batch=1)
    assert contents(folder) == contents(tmp_path / "quiet")


def test_ray_writes_the_same_bytes(
    images: Path,
    tmp_path: Path,
    use_inline: Callable[..., InlineCluster],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray", reason="pip install 'quantkit-toolchain[distributed]'")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    result = run(images, tmp_path / "ray", cluster="ray", workers=1, threads=1)
    assert result.cluster == "ray"
    captured = capfd.readouterr()
    assert not captured.out
    assert "Token" not in captured.err
    assert not (home / ".ray").exists()
    assert "RAY_AUTH_TOKEN" not in os.environ
    use_inline()
    run(images, tmp_path / "inline")
    assert contents(tmp_path / "ray") == contents(tmp_path / "inline")
