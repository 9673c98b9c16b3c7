"""Outputs whose size depends on the data, and samples of different lengths, in every command that takes data."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main
from inline_clusters import use_inline_workers
from varying_sizes import (
    CONSTANTS,
    DETECTORS,
    FLOAT,
    IMAGES,
    INT64,
    NETWORKS,
    NODE,
    STEM,
    TAILS,
    make_model,
    with_tail,
    write,
)

import quantkit as qk
from quantkit.batch_inference.results import FORMATS, read_rows
from quantkit.errors import UsageError
from quantkit.evaluation.output_rows import find_whole_outputs
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.ir.tensor import Array
from quantkit.model.endpoints import SIZES_HINT, scores_hint
from quantkit.runtimes import open_session

pytestmark = pytest.mark.engine
RUNTIME = "onnxruntime"
INLINE = pytest.mark.usefixtures("inline_workers")


@pytest.fixture
def inline_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    use_inline_workers(monkeypatch)


def other_version(name: str, folder: Path) -> Path:
    """Write a network with changed weights, whose output sizes differ from those of the first version."""
    model = NETWORKS[name]()
    for tensor in model.graph.initializer:
        if tensor.name in ("w", "v", "box_weights", "score_weights"):
            values = np.frombuffer(tensor.raw_data, np.float32)
            noise = np.random.default_rng(1).normal(0, 0.03, values.shape).astype(np.float32)
            tensor.raw_data = (values * (1 + noise)).tobytes()
    path = folder / f"other_{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def run_alone(path: Path) -> list[dict[str, Array]]:
    """Return the outputs of each image, run by itself."""
    with open_session(path, RUNTIME) as session:
        return [session.run({"x": image[None]}) for image in IMAGES]


@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_compares_outputs_of_varying_size(name: str, tmp_path: Path) -> None:
    task = "detection" if name in DETECTORS else "text"
    result = qk.quantize(write(name, tmp_path), IMAGES, runs=0, task=task)
    accuracy = result.report.accuracy
    assert not accuracy.failures
    assert accuracy.sqnr is not None
    assert accuracy.sqnr.samples == len(IMAGES)
    if name in DETECTORS:
        assert accuracy.sqnr.score > 0.9
    assert all(0.9 < ratio <= 1 and equal < len(IMAGES) for equal, ratio in accuracy.sqnr.sizes.values())


@pytest.mark.parametrize("name", ["thresholds", "indices"])
def test_max_drop_measures_each_layer_where_errors_do_not_add_up(name: str, tmp_path: Path) -> None:
    messages: list[str] = []
    task = "detection" if name in DETECTORS else "text"
    result = qk.quantize(write(name, tmp_path), IMAGES, runs=0, task=task, max_drop=0.001, on_message=messages.append)
    assert result.report.fallback is not None
    assert result.report.fallback.is_complete
    assert any(message.startswith("each layer is measured by itself: ") for message in messages)


def test_quantize_reports_sizes_without_a_task(tmp_path: Path) -> None:
    sqnr = qk.quantize(write("thresholds", tmp_path), IMAGES, runs=0).report.accuracy.sqnr
    assert sqnr is not None
    equal, ratio = sqnr.sizes["y"]
    assert equal < len(IMAGES)
    assert 0.95 < ratio < 1
    assert sqnr.error >= 1 - ratio
    assert not sqnr.is_near(0, 1.0)
    assert sqnr.to_json()["sizes"]["y"] == {"equal": equal, "ratio": ratio}
    assert f"sizes of y {100 * ratio:.1f} % (equal in {equal} of 12 samples)" in str(sqnr)


def test_a_task_that_does_not_fit_is_rejected_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not boxes"):
        qk.quantize(write("thresholds", tmp_path), IMAGES, runs=0, task="detection")


@pytest.mark.parametrize("name", DETECTORS)
def test_all_forms_of_detections_have_one_precision(name: str, tmp_path: Path) -> None:
    path, other = write(name, tmp_path), other_version(name, tmp_path)
    options: dict[str, Any] = {"runtime": RUNTIME, "reference_runtime": RUNTIME, "task": "detection"}
    equal, changed = (qk.evaluate(model, IMAGES, path, **options).outputs for model in (path, other))
    assert equal is not None
    assert changed is not None
    assert (equal.score, dict(equal.sizes)) == (1, {})
    expected = qk.evaluate(other_version("lists", tmp_path), IMAGES, write("lists", tmp_path), **options).outputs
    assert expected is not None
    assert 0.3 < expected.score < 0.99
    if name != "indices":  # without boxes, another index is another object
        assert changed.score == pytest.approx(expected.score, abs=1e-6)
    assert changed.sizes


@pytest.mark.parametrize("name", NETWORKS)
def test_compare_keeps_the_samples_of_equal_size(name: str, tmp_path: Path) -> None:
    path, other = write(name, tmp_path), other_version(name, tmp_path)
    result = qk.compare(path, other, IMAGES, runtimes=(RUNTIME, RUNTIME))
    assert result.samples == len(IMAGES)
    output = {"lists": "out_boxes", "rows": "y"}.get(name, "selected" if name in DETECTORS else "y")
    sizes = [[outputs[output].shape for outputs in run_alone(version)] for version in (path, other)]
    num_different = sum(first != second for first, second in zip(*sizes, strict=True))
    row = next((row for row in result.rows if row.name == output), None)
    if num_different == len(IMAGES):
        assert row is None
        assert output in result.resized
        assert output not in result.only_first
        assert f"no value is compared: {', '.join(result.resized)}" in str(result)
    else:
        assert row is not None
        assert (f"another size in {num_different} of 12 samples" in row.notes) == bool(num_different)


@pytest.mark.parametrize(
    ("name", "format"), [*((name, "npz") for name in NETWORKS), ("lists", "jsonl"), ("decoder", "parquet")]
)
@INLINE
def test_run_writes_outputs_of_any_size(name: str, format: str, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    np.savez(tmp_path / "x.npz", x=IMAGES)
    result = qk.run(path, tmp_path / "x.npz", tmp_path / "out", format=format, runtime=RUNTIME)
    assert not result.rejected
    rows = read_rows(tmp_path / "out" / f"results-00000-of-00001.{FORMATS[format].suffix}", FORMATS[format])
    expected = run_alone(path)
    assert len(rows) == len(expected)
    for row in rows:
        for output, values in expected[int(row["file"])].items():
            actual = np.asarray(row["outputs"][output])
            values = values if name == "rows" or values.shape[:1] != (1,) else values[0]
            assert actual.shape == values.shape
            np.testing.assert_allclose(actual, values, rtol=1e-5, atol=1e-6)


@INLINE
def test_run_rejects_a_batch_of_fixed_size_that_it_cannot_divide(tmp_path: Path) -> None:
    (tmp_path / "pair.onnx").write_bytes(NETWORKS["rows"]().SerializeToString())
    model = make_model(
        [*STEM, NODE("NonZero", ["r"], ["y"])], [("x", FLOAT, [2, 3, 16, 16])], [("y", 7, [4, "m"])], CONSTANTS
    )
    (tmp_path / "pair.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match="output 'y' has the shape 4x.* for 2 samples") as caught:
        qk.run(tmp_path / "pair.onnx", IMAGES, tmp_path / "out", runtime=RUNTIME)
    assert "dynamic batch" in caught.value.hint


@pytest.mark.parametrize(("name", "whole"), [("rows", {"y"}), ("selected_boxes", {"selected"}), ("decoder", set())])
def test_outputs_without_a_batch_axis_are_found(name: str, whole: set[str], tmp_path: Path) -> None:
    assert find_whole_outputs(qk.load(write(name, tmp_path)).graph) == whole


def test_workers_add_the_sizes_of_their_samples(tmp_path: Path) -> None:
    path, other = write("lists", tmp_path), other_version("lists", tmp_path)
    options: dict[str, Any] = {"runtime": RUNTIME, "reference_runtime": RUNTIME, "task": "detection", "batch": 3}
    alone, shared = (qk.evaluate(other, IMAGES, path, **options, workers=workers).outputs for workers in (1, 2))
    assert isinstance(alone, OutputSqnr)
    assert isinstance(shared, OutputSqnr)
    assert shared.score == pytest.approx(alone.score)
    assert {name: equal for name, (equal, _) in shared.sizes.items()} == {
        n: equal for n, (equal, _) in alone.sizes.items()
    }


@pytest.mark.parametrize("name", TAILS)
@INLINE
def test_every_verb_takes_sizes_of_any_op(name: str, tmp_path: Path) -> None:
    path, quantized, data = tmp_path / "m.onnx", tmp_path / "q.onnx", IMAGES[:6]
    path.write_bytes(with_tail(name).SerializeToString())
    options: dict[str, Any] = {"runtime": RUNTIME, "reference_runtime": RUNTIME, "task": "regression"}
    report = qk.quantize(path, data, runs=0, output=quantized).report
    assert all("OpenVINO" in failure for failure in report.accuracy.failures)  # it has no strings
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.samples == len(data)
    comparison = qk.compare(path, quantized, data, runtimes=(RUNTIME, RUNTIME))
    assert {"r", "c"} <= {row.name for row in comparison.rows}
    assert all(row.sqnr > 20 for row in comparison.rows if row.name in ("r", "c"))
    if name != "strings":
        changed = qk.evaluate(quantized, data, path, **options).outputs
        assert changed is not None
        assert changed.samples == len(data)
    result = qk.run(quantized, data, tmp_path / "out", runtime=RUNTIME)
    rows = [json.loads(line) for line in (tmp_path / "out" / result.files[0].name).read_text().splitlines()]
    with open_session(quantized, RUNTIME) as session:
        shapes = [session.run({"x": image[None]})["y"].shape for image in data]
    assert [np.size(row["outputs"]["y"]) for row in rows] == [np.prod(shape, dtype=int) for shape in shapes]
    assert qk.transform(path, "inference", verify=True, runtime=RUNTIME).trace is not None
    assert "y" in str(qk.summarize(path))


# Samples of different lengths


def speech(folder: Path, noise: float = 0.0) -> Path:
    """Write a convolution over time."""
    random = np.random.default_rng(3)
    weights = random.normal(0, 0.3, (16, 8, 3)) * (1 + noise * np.random.default_rng(4).normal(size=(16, 8, 3)))
    nodes = [NODE("Conv", ["x", "w"], ["h"], pads=[1, 1]), NODE("Relu", ["h"], ["y"])]
    model = make_model(nodes, [("x", FLOAT, ["n", 8, "t"])], [("y", FLOAT, ["n", 16, "t"])], {"w": weights})
    path = folder / f"speech_{noise:g}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


LENGTHS = (9, 9, 6, 12, 12, 12, 7)
RECORDINGS = [np.random.default_rng(n).normal(size=(8, length)).astype(np.float32) for n, length in enumerate(LENGTHS)]


def data_forms(folder: Path, samples: Sequence[Array] = RECORDINGS) -> Mapping[str, Any]:
    """Return the samples as a folder of arrays, in one file, and as objects."""
    (folder / "folder").mkdir(exist_ok=True)
    for number, sample in enumerate(samples):
        np.save(folder / "folder" / f"{number}.npy", sample)
    np.savez(folder / "x.npz", **{f"x_{number}": sample for number, sample in enumerate(samples)})
    return {"folder": folder / "folder", "file": folder / "x.npz", "list": samples, "by name": {"x": samples}}


@pytest.mark.parametrize("form", ["folder", "list", "by name"])
@INLINE
def test_every_verb_takes_samples_of_different_lengths(form: str, tmp_path: Path) -> None:
    path, other, data = speech(tmp_path), speech(tmp_path, 0.05), data_forms(tmp_path)[form]
    result = qk.quantize(path, data, runs=0)
    assert result.ranges.provenance.count == len(RECORDINGS)
    assert result.report.accuracy.sqnr is not None
    assert result.report.accuracy.sqnr.worst > 25
    comparison = qk.compare(path, other, data, runtimes=(RUNTIME, RUNTIME))
    assert comparison.samples == len(RECORDINGS)
    assert [row.name for row in comparison.rows] == ["h", "y"]
    options: dict[str, Any] = {"runtime": RUNTIME, "reference_runtime": RUNTIME}
    evaluation = qk.evaluate(other, data, path, task="regression", **options)
    assert evaluation.outputs is not None
    assert evaluation.metrics.samples == len(RECORDINGS)
    assert 0.9 < evaluation.outputs.score < 1
    assert qk.transform(path, "inference", verify=True, data=data).trace is not None
    if form == "list":  # a stream cannot be divided into shards
        return
    batch = qk.run(path, data, tmp_path / "out", runtime=RUNTIME)
    assert batch.samples == len(RECORDINGS)
    rows = [json.loads(line) for line in (tmp_path / "out" / batch.files[0].name).read_text().splitlines()]
    assert sorted(np.shape(row["outputs"]["y"])[1] for row in rows) == sorted(LENGTHS)


def test_auto_compiles_for_no_sample(tmp_path: Path) -> None:
    """A runtime that compiles for each length is slower than the next one; for equal lengths it is the fastest."""
    pytest.importorskip("openvino")
    path, other = speech(tmp_path), speech(tmp_path, 0.05)
    equal = [recording[:, :6] for recording in RECORDINGS]
    for data, name in ((RECORDINGS, "onnxruntime"), (equal, "openvino")):
        accuracy = qk.quantize(path, data, runs=0).report.accuracy
        assert accuracy.runtime is not None
        evaluation = qk.evaluate(other, data, path, task="regression")
        assert (accuracy.runtime.name, evaluation.runtime.name) == (name, name)
        assert evaluation.reference_runtime is not None
        assert evaluation.reference_runtime.name == name
        for workers in (1, 2):
            batch = qk.run(path, data_forms(tmp_path, data)["folder"], tmp_path / f"{name}_{workers}", workers=workers)
            assert str(batch.facts["runtime"]).startswith(name)


LAYER = [NODE("Relu", ["h"], ["r"]), NODE("MatMul", ["r", "u"], ["y"])]
# Nodes, shapes of the inputs, and the shape of a sample of a length.
INPUTS: Mapping[str, tuple[list[Any], Mapping[str, Any], Callable[[int], Mapping[str, tuple[int, ...]]]]] = {
    "waveform": (
        [NODE("Unsqueeze", ["x", "one"], ["x3"]), NODE("Conv", ["x3", "filters"], ["h"]), NODE("Relu", ["h"], ["y"])],
        {"x": ["n", "t"]},
        lambda length: {"x": (length,)},
    ),
    "tokens and mask": (
        [
            NODE("Gather", ["table", "ids"], ["e"]),
            NODE("Cast", ["mask"], ["m"], to=FLOAT),
            NODE("Unsqueeze", ["m", "two"], ["m3"]),
            NODE("Mul", ["e", "m3"], ["x"]),
            NODE("MatMul", ["x", "u"], ["h"]),
            *LAYER,
        ],
        {"ids": ["n", "t"], "mask": ["n", "t"]},
        lambda length: {"ids": (length,), "mask": (length,)},
    ),
    "images": (
        [NODE("Conv", ["x", "w"], ["h"]), NODE("Relu", ["h"], ["y"])],
        {"x": ["n", 3, "h", "w"]},
        lambda length: {"x": (3, length, 2 * length)},
    ),
    "no batch axis": (
        [NODE("MatMul", ["x", "u"], ["h"]), *LAYER],
        {"x": ["t", 16]},
        lambda length: {"x": (length, 16)},
    ),
    "batches of two": (
        [NODE("MatMul", ["x", "u"], ["h"]), *LAYER],
        {"x": [2, "t", 16]},
        lambda length: {"x": (length, 16)},
    ),
}


@pytest.mark.parametrize("name", INPUTS)
@INLINE
def test_every_verb_takes_inputs_of_any_rank(name: str, tmp_path: Path) -> None:
    nodes, shapes, shape_of = INPUTS[name]
    random = np.random.default_rng(0)
    constants = {
        "u": random.normal(0, 0.3, (16, 16)),
        "filters": random.normal(0, 1, (16, 1, 3)),
        "table": random.normal(0, 1, (9, 16)),
    }
    constants |= {key: CONSTANTS[key] for key in ("w", "one", "two")}
    kinds = {key: INT64 if key in ("ids", "mask") else FLOAT for key in shapes}
    model = make_model(
        nodes, [(key, kinds[key], shape) for key, shape in shapes.items()], [("y", FLOAT, None)], constants
    )
    path, quantized, data = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "x.npz"
    path.write_bytes(model.SerializeToString())
    arrays = {
        f"{key}_{number}": np.ones(sizes, int) if kinds[key] == INT64 else random.normal(size=sizes).astype(np.float32)
        for number, length in enumerate(LENGTHS)
        for key, sizes in shape_of(length).items()
    }
    np.savez(data, **arrays)
    report = qk.quantize(path, data, runs=0, output=quantized).report
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 20
    options: dict[str, Any] = {"runtime": RUNTIME, "reference_runtime": RUNTIME}
    assert qk.compare(path, quantized, data, runtimes=(RUNTIME, RUNTIME)).samples >= len(LENGTHS)
    assert qk.evaluate(quantized, data, path, task="regression", **options).metrics.samples == len(LENGTHS)
    result = qk.run(quantized, data, tmp_path / "out", runtime=RUNTIME)
    rows = [json.loads(line) for line in (tmp_path / "out" / result.files[0].name).read_text().splitlines()]
    assert len({np.shape(row["outputs"]["y"]) for row in rows}) == len(set(LENGTHS))
    assert qk.transform(path, "inference", verify=True, data=data).trace is not None


def test_the_command_line_takes_samples_of_different_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = speech(tmp_path), data_forms(tmp_path)
    source, output = str(data["folder"]), str(tmp_path / "int8.onnx")
    assert main(["quantize", str(path), "-o", output, "--calibration", source, "--runs", "0"]) == 0
    assert main(["run", output, "--data", str(data["file"]), "-o", str(tmp_path / "out"), "--format", "npz"]) == 0
    assert main(["benchmark", str(path), "--data", source, "--runs", "2", "--processes", "1", "--warmup", "1"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(path), "--data", str(data["file"])]) == 2
    hint = capsys.readouterr().err
    assert "boxes with --task detection, logits of tokens with --task text or language, other values" in hint
    assert run_hint(hint, path, data["file"]) == 0


def run_hint(hint: str, model: Path, data: Any) -> int:
    """Run the command at the end of a hint on a model, with itself as reference."""
    arguments = {"FILE": str(model), "DATA": str(data), "MODEL": str(model)}
    command = hint.strip().rpartition(": quantkit ")[2].split()
    return main([arguments.get(argument, argument) for argument in command])


@pytest.mark.parametrize("text", [scores_hint(), SIZES_HINT])
def test_hints_end_with_a_command_that_works(text: str, tmp_path: Path) -> None:
    path = write("lists", tmp_path)
    np.savez(tmp_path / "x.npz", x=IMAGES[:2])
    assert run_hint(text, path, tmp_path / "x.npz") == 0


def test_hint_for_logits_of_tokens_names_a_metric_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = np.random.default_rng(0).normal(size=(9, 9)).astype(np.float32)
    nodes = [NODE("Gather", ["table", "ids"], ["logits"])]
    endpoints = [("ids", INT64, ["n", "t"])], [("logits", FLOAT, ["n", "t", 9])]
    model = make_model(nodes, *endpoints, {"table": table})
    path, data = tmp_path / "m.onnx", tmp_path / "ids.npz"
    path.write_bytes(model.SerializeToString())
    np.savez(data, ids=np.arange(12).reshape(2, 6) % 9)
    assert main(["evaluate", str(path), "--data", str(data), "--reference", str(path), "--min-agreement", "1"]) == 2
    hint = capsys.readouterr().err
    assert hint.rstrip().endswith("--task language")
    assert run_hint(hint, path, data) == 0


def test_benchmark_takes_samples_in_memory(tmp_path: Path) -> None:
    result = qk.benchmark(speech(tmp_path), data={"x": RECORDINGS}, batch=2, runs=2, processes=1, warmup=1)
    assert "2x8x9" in json.dumps(result.to_json())


def test_a_varying_number_of_scores_is_rejected(tmp_path: Path) -> None:
    nodes = [NODE("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)]
    model = make_model(nodes, [("x", FLOAT, ["n", 8, "t"])], [("y", FLOAT, ["n", "t"])])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match=r"has 12 (values|scores) for one sample and 9 for another"):
        qk.evaluate(tmp_path / "m.onnx", {"x": RECORDINGS}, runtime=RUNTIME)


def test_a_damaged_batch_size_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [NODE("Relu", ["x"], ["y"])]
    model = make_model(nodes, [("x", FLOAT, [2**31 - 1, 3, 4, 4])], [("y", FLOAT, ["n", 3, 4, 4])])
    path, data = tmp_path / "m.onnx", tmp_path / "x.npz"
    path.write_bytes(model.SerializeToString())
    np.savez(data, x=np.zeros((3, 3, 4, 4), np.float32))
    for arguments in (
        ["compare", str(path), str(path)],
        ["compare", str(path), str(path), "--data", str(data)],
        [
            "evaluate",
            f"{path}@onnxruntime",
            "--reference",
            f"{path}@onnxruntime",
            "--task",
            "text",
            "--data",
            str(data),
        ],
        ["quantize", str(path), "-o", str(tmp_path / "q.onnx"), "--calibration", str(data)],
        ["run", f"{path}@onnxruntime", "--data", str(data), "-o", str(tmp_path / "out")],
    ):
        assert main(arguments) == 3, arguments
        assert "2147483647x3x4x4 ha" in capsys.readouterr().err
