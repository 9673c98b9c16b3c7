import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.errors import GraphError, UnavailableError
from quantkit.formats import load
from quantkit.formats.content_digest import content_digest
from quantkit.ir.tensor import DType
from quantkit.quantization import Plan, Ranges, Scheme
from quantkit.quantization.fallback import Loss
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.zoo.cards import find_card


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, np.random.default_rng(0).uniform(-1, 1, (12, 16, 16, 1)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def digest_of_finite_samples(images: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the model that all images but the last one calibrate."""
    folder = tmp_path_factory.mktemp("finite")
    np.save(folder / "finite.npy", np.load(images).astype(np.float64)[:11])
    qk.quantize("digits", folder / "finite.npy", runs=0, output=folder / "b.onnx")
    return content_digest(folder / "b.onnx")


def quantize_digits(flags: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main(["quantize", "digits", *flags, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    document: dict[str, Any] = json.loads(captured.out)
    return document


@pytest.mark.engine
@pytest.mark.parametrize(("target", "name"), [("onnx", "d.onnx"), ("tensorflow", "d.pb"), ("eightbit", "d.pb")])
def test_every_target_agrees_with_the_float_model(
    target: str, name: str, tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / name
    flags = ["-o", str(output), "--calibration", str(images), "--target", target, "--runs", "0"]
    document = quantize_digits(flags, capsys)
    assert document["schema"] == "quantkit.quantize/2"
    assert document["ops"]["Conv" if target == "onnx" else "Conv2D"] == {"int8": 20, "float": 0}
    assert [node["op"] for node in document["float_fallbacks"]][-1] == "Softmax" or target == "tensorflow"
    assert document["float_macs"] == 0
    assert document["calibration"]["samples"] == 12
    assert document["quality"]["agreement"]["value"] >= 0.75
    assert document["num_bytes"] == output.stat().st_size < document["float_num_bytes"]
    assert document["not_measured"] == "--runs is 0"
    assert not list(tmp_path.glob("*.calibration")), "the state is removed"


@pytest.mark.parametrize(
    "flags",
    [
        ["-o", "q.onnx", "--save-ranges", "q.onnx"],
        ["-o", "q.onnx", "--save-plan", "./q.onnx"],
        ["-o", "q.onnx", "--save-plan", "p", "--save-ranges", "p"],
        ["-o", "q.onnx", "--save-ranges", "model.pb"],
        ["-o", "q.onnx", "--save-plan", "images.npy"],
    ],
)
def test_outputs_overwrite_neither_each_other_nor_an_input(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.pb", "images.npy"):
        Path(name).write_text("precious")
    assert main(["quantize", "model.pb", "--calibration", "images.npy", *flags]) == 2
    assert re.search("would overwrite|name one file", capsys.readouterr().err)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"] * 2


@pytest.mark.engine
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_samples_that_are_not_finite_are_skipped(
    value: float, tmp_path: Path, images: Path, digest_of_finite_samples: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model equals that of the other samples."""
    values = np.load(images).astype(np.float64)
    values[11, 4, 4, 0] = value
    np.save(tmp_path / "broken.npy", values)
    flags = ["-o", str(tmp_path / "a.onnx"), "--calibration", str(tmp_path / "broken.npy"), "--runs", "0"]
    assert main(["quantize", "digits", *flags]) == 0
    kind = "NaN" if np.isnan(value) else "infinity"
    output = capsys.readouterr()
    assert f"skipped sample 11: {kind} in 1 of 256 values" in output.err
    assert f"warning: 1 of the calibration images skipped, the first one is sample 11: {kind} in 1 of" in output.out
    assert content_digest(tmp_path / "a.onnx") == digest_of_finite_samples


@pytest.mark.engine
@pytest.mark.parametrize("count", [3, 12])
def test_data_with_many_samples_that_are_not_finite_is_rejected(
    count: int, tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.load(images)
    values[:count, 4, 4, 0] = np.nan
    np.save(tmp_path / "broken.npy", values)
    output = tmp_path / "d.onnx"
    assert main(["quantize", "digits", "-o", str(output), "--calibration", str(tmp_path / "broken.npy")]) == 3
    error = capsys.readouterr().err
    assert re.search(r"broken\.npy: at least \d+ of 12 samples are not finite; sample \d+: NaN in 1 of 256", error)
    assert not output.exists()


@pytest.mark.engine
@pytest.mark.parametrize(("target", "name"), [("onnx", "d.onnx"), ("tensorflow", "d.pb")])
def test_uint8_input_folds_the_preprocessing(
    target: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = find_card("digits")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 1), np.uint8)
    documents = {}
    for kind, rows in (
        ("pixels", pixels),
        ("numbers", (pixels.astype(np.float32) - card.preprocessing.mean) / card.preprocessing.std),
    ):
        np.save(tmp_path / f"{kind}.npy", rows)
        flags = ["-o", str(tmp_path / name), "--calibration", str(tmp_path / f"{kind}.npy"), "--target", target]
        documents[kind] = quantize_digits([*flags, "--uint8-input", "--runs", "0"], capsys)
        graph = load(tmp_path / name)
        assert graph[graph.inputs[0].node].attrs["dtype"] is DType.UINT8
    assert documents["pixels"]["quality"] == documents["numbers"]["quality"]
    assert documents["pixels"]["quality"]["agreement"]["value"] >= 0.75


@pytest.mark.engine
def test_uint8_input_rejects_float_data_other_than_normalized_images(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "d.onnx"
    code = main(["quantize", "digits", "-o", str(output), "--calibration", str(images), "--uint8-input"])
    assert code == 2
    assert "takes uint8, not float32" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.engine
def test_ranges_and_plan_replace_the_calibration(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranges, plan = tmp_path / "ranges.json", tmp_path / "plan.json"
    first = ["-o", str(tmp_path / "a.onnx"), "--calibration", str(images), "--runs", "0"]
    quantize_digits([*first, "--save-ranges", str(ranges), "--save-plan", str(plan)], capsys)
    assert Ranges.load(ranges).provenance.count == 12
    assert Plan.load(plan).scheme == Scheme()
    again = ["--ranges", str(ranges), "--runs", "0"]
    document = quantize_digits(["-o", str(tmp_path / "b.onnx"), *again], capsys)
    assert document["quality"] is None
    assert content_digest(tmp_path / "a.onnx") == content_digest(tmp_path / "b.onnx")
    quantize_digits(["-o", str(tmp_path / "c.onnx"), *again, "--plan", str(plan)], capsys)
    assert content_digest(tmp_path / "a.onnx") == content_digest(tmp_path / "c.onnx")
    assert (
        main(["quantize", "digits", "-o", str(tmp_path / "c.onnx"), *again, "--plan", str(plan), "--reduce-range"]) == 2
    )
    assert "--reduce-range contradicts --plan" in capsys.readouterr().err
    plan.write_text(plan.read_text().replace('"conv/batchnorm"', '"conv/Conv3D"'))
    assert main(["quantize", "digits", "-o", str(tmp_path / "c.onnx"), *again, "--plan", str(plan)]) == 3
    assert "the plan references node 'conv/Conv3D', which is not in the graph" in capsys.readouterr().err


@pytest.mark.engine
def test_the_report_compares_with_the_float_model(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "d.onnx"
    held_out = tmp_path / "held_out.npy"
    np.save(held_out, np.load(images)[:5])
    flags = ["-o", str(output), "--calibration", str(images), "--held-out", str(held_out), "--runs", "1"]
    assert main(["quantize", "digits", *flags, "--scheme", _scheme(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "100.0 % of the MACs are int8" not in text
    assert "float fallback: conv/batchnorm (Conv" in text
    assert "the scheme keeps it in float" in text
    assert "on 5 held-out images of" in text
    assert "in openvino" in text


def _scheme(folder: Path) -> str:
    Scheme(keep_float=("conv/Conv2D",), observer="min_max").save(folder / "scheme.toml")
    return str(folder / "scheme.toml")


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["-o", "d.onnx"], 2, "no calibration dataset is given"),
        (
            ["-o", "d.onnx", "--weights-only", "--calibration", "p"],
            2,
            "--calibration has no effect with --weights-only",
        ),
        (["-o", "d.onnx", "--weights-only", "--max-drop", "0.1"], 2, "--max-drop has no effect"),
        (["-o", "d.onnx", "--ranges", "r", "--calibration", "p"], 2, "--ranges and --calibration exclude each other"),
        (
            ["-o", "d.tflite", "--target", "litert", "--reduce-range", "--calibration", "p"],
            2,
            "--reduce-range needs",
        ),
        (["-o", "d.pb", "--calibration", "p", "--target", "onnx"], 2, "cannot write target 'onnx' to d.pb"),
        (["-o", "d.tflite", "--calibration", "p"], 2, "use the suffix .onnx, or target litert (--target litert)"),
        (["-o", "d.onnx", "--calibration", "nowhere"], 3, "nowhere does not exist"),
        (["-o", "d.onnx", "--calibration", "p", "--observer", "percentile(30)"], 2, "is not in (50, 100]"),
        (["-o", "d.onnx", "--calibration", "p", "--runtime", "openvin"], 2, "did you mean 'openvino'"),
        (["-o", "d.onnx", "--calibration", "p", "--pixels"], 2, "did you mean '--uint8-input'?"),
        (["-o", "d.onnx", "--calibration", "p", "--half_range"], 2, "did you mean '--reduce-range'?"),
        (["-o", "d.onnx", "--calibration", "p", "--observer", "entropi"], 2, "'entropi' is not an observer"),
        (["-o", "d.onnx", "--calibration", "p", "--observer", "percentile(9"], 2, "did you mean 'percentile'?"),
    ],
)
def test_usage_errors_are_raised_before_the_model_is_loaded(
    flags: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "digits", *flags]) == code
    assert message in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.parametrize("target", ["onnx", "tensorflow"])
def test_reduced_range_gives_weights_seven_bits(target: str, tmp_path: Path, images: Path) -> None:
    output = tmp_path / ("d.onnx" if target == "onnx" else "d.pb")
    flags = ["-o", str(output), "--calibration", str(images), "--runs", "0", "--target", target, "--limit", "2"]
    largest = []
    for options in ([], ["--reduce-range"]):
        assert main(["quantize", "digits", *flags, "--runtime", "reference", *options]) == 0
        quantized_weights = [
            node.value.array
            for node in load(output).nodes.values()
            if node.is_constant and node.value.dtype in (DType.INT8, DType.QINT8) and len(node.value.shape) == 4
        ]
        largest.append(max(int(np.abs(array.astype(int)).max()) for array in quantized_weights))
    assert largest == [127, 63]


@pytest.mark.engine
@pytest.mark.parametrize("target", ["onnx", "tensorflow"])
def test_the_report_certifies_the_file(target: str, tmp_path: Path, images: Path) -> None:
    output = tmp_path / ("d.onnx" if target == "onnx" else "d.pb")
    for saturation, is_certified in (("pair_safe", True), ("ignore", False), ("reduce_range", True)):
        scheme = {"target": target, "saturation": saturation}
        result = qk.quantize("digits", images, scheme=scheme, runs=0, limit=2, runtime="reference", output=output)
        document = result.report.to_json()["portability"]
        assert document["certified"] == is_certified, saturation
        assert bool(document["unsafe"]) == (not is_certified)
        other = qk.summarize(output).to_json()["portability"]
        assert (other["certified"], len(other["unsafe"])) == (is_certified, len(document["unsafe"]))


@pytest.mark.engine
def test_a_quantized_model_is_not_quantized_again(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--calibration", str(images), "--runs", "0", "--runtime", "reference", "--limit", "2", "--target"]
    for target, name in (("onnx", "d.onnx"), ("tensorflow", "d.pb")):
        first, second = str(tmp_path / name), str(tmp_path / f"again_{name}")
        assert main(["quantize", "digits", "-o", first, *flags, target]) == 0
        assert main(["quantize", first, "-o", second, *flags, target]) == 2
        assert f"{name} is already quantized\nhint: " in capsys.readouterr().err


def test_the_written_model_loads(tmp_path: Path, images: Path) -> None:
    output = tmp_path / "d.onnx"
    flags = ["-o", str(output), "--calibration", str(images), "--runs", "0", "-q", "--runtime", "reference"]
    assert main(["quantize", "digits", *flags]) == 0
    assert load(output).op_counts["QuantizeLinear"] > 20


@pytest.mark.engine
def test_the_accuracy_search_keeps_layers_in_float(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = import_module("quantkit.quantization.workflow.accuracy_search")
    layer = "conv/batchnorm"

    def measure(conversion: Conversion, reference: FloatReference) -> Loss:
        return Loss(0.0 if layer in conversion.fallback_layers else 0.6, 0.1)

    monkeypatch.setattr(search, "measure_loss", measure)
    monkeypatch.setattr(search, "rank_layers", lambda *arguments: None)  # the error model predicts other losses
    output = tmp_path / "d.onnx"
    flags = ["-o", str(output), "--calibration", str(images), "--runs", "0", "--max-drop", "0.05"]
    plan = tmp_path / "plan.json"
    document = quantize_digits([*flags, "--save-plan", str(plan)], capsys)
    assert document["fallback"]["keep_float"] == [layer]
    (row,) = [row for row in document["float_fallbacks"] if row["name"] == layer]
    assert "--max-drop" in row["reason"]
    assert Plan.load(plan).float_fallbacks[layer] == row["reason"]
    plan.unlink()
    assert document["ops"]["Conv"] == {"int8": 19, "float": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["d.onnx"]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("target", "name"), [("onnx", "d.onnx"), ("tensorflow", "d.pb"), ("eightbit", "d.pb"), ("litert", "d.tflite")]
)
def test_weights_only_needs_no_calibration_data(
    target: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / name
    held_out = str(Path(__file__).parents[3] / "assets" / "digits_heldout.npz")
    flags = ["-o", str(output), "--weights-only", "--target", target, "--runs", "0", "--held-out", held_out]
    document = quantize_digits(flags, capsys)
    assert document["scheme"]["weights_only"]
    assert document["weights"] == 21
    assert document["float_fallbacks"] == []
    assert document["quality"]["agreement"]["value"] >= 0.99
    assert output.stat().st_size < document["float_num_bytes"] / 2
    if target == "onnx":
        assert main(["quantize", "digits", *flags, "-q"]) == 0
        assert "int8 weights: 21 constants" in capsys.readouterr().out


@pytest.mark.engine
@pytest.mark.parametrize(("num_cached", "text"), [(64, "on 12 calibration images"), (4, "on 4 of the 12 calibration")])
def test_the_report_names_the_samples_of_the_accuracy(
    num_cached: int,
    text: str,
    tmp_path: Path,
    images: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("float_reference", "calibration_run"):
        module = import_module(f"quantkit.quantization.workflow.{name}")
        monkeypatch.setattr(module, "CACHE_BYTES", num_cached * 16 * 16 * 4)
    flags = ["quantize", "digits", "-o", str(tmp_path / "d.pb"), "--target", "eightbit", "--runs", "0"]
    assert main([*flags, "--calibration", str(images), "--runtime", "reference"]) == 0
    output = capsys.readouterr().out
    assert text in output
    assert ("as many as fit 0 MB" in output) == (num_cached == 4)


@pytest.mark.engine
def test_the_next_runtime_measures_if_the_fastest_fails(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracy = import_module("quantkit.quantization.workflow.accuracy")
    open_session = accuracy.open_session
    broken = ["openvino"]

    def open_or_fail(model: Any, runtime: str, *rest: Any) -> Any:
        if runtime in broken:
            raise GraphError(f"{runtime} cannot read it")
        return open_session(model, runtime, *rest)

    monkeypatch.setattr(accuracy, "open_session", open_or_fail)
    flags = ["-o", str(tmp_path / "d.onnx"), "--calibration", str(images), "--runs", "0"]
    document = quantize_digits(flags, capsys)
    assert document["runtime"]["name"] == "onnxruntime"
    assert document["failed_runtimes"] == ["openvino cannot read it"]
    assert document["quality"]["samples"] == 12
    broken.append("onnxruntime")
    assert main(["quantize", "digits", *flags]) == 0
    output = capsys.readouterr().out
    assert "warning: openvino cannot read it" in output
    assert "agreement with the float model not measured: no runtime can run the quantized model" in output
    assert main(["quantize", "digits", *flags, "--max-drop", "0.01"]) == 3
    assert "openvino cannot read it" in capsys.readouterr().err


def test_an_interrupted_search_resumes(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = import_module("quantkit.quantization.workflow.accuracy_search")
    measured: list[Conversion] = []

    def measure(conversion: Conversion, reference: FloatReference) -> Loss:
        if len(measured) == 1:
            raise KeyboardInterrupt
        measured.append(conversion)
        return Loss(0.6, 0.1)

    monkeypatch.setattr(search, "measure_loss", measure)
    flags = ["quantize", "digits", "-o", str(tmp_path / "d.pb"), "--target", "eightbit", "--runtime", "reference"]
    flags += ["--calibration", str(images), "--runs", "0", "--max-drop", "0.05"]
    assert main(flags) == 130
    (state,) = tmp_path.glob("*.fallback")
    assert f"search state saved to {state}" in capsys.readouterr().err
    assert main(flags) == 130
    assert f"resuming from the search state in {state}" in capsys.readouterr().err


@pytest.mark.engine
def test_an_interrupted_calibration_resumes(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = import_module("quantkit.quantization.workflow.float_reference").FloatReference
    record, runs = reference.record, []

    def interrupt(self: Any, *rest: Any) -> Any:
        runs.append(rest)
        if len(runs) == 5:
            raise KeyboardInterrupt
        return record(self, *rest)

    monkeypatch.setattr(reference, "record", interrupt)
    flags = ["quantize", "digits", "-o", str(tmp_path / "d.pb"), "--target", "eightbit", "--runtime", "reference"]
    flags += ["--calibration", str(images), "--runs", "0"]
    assert main(flags) == 130
    (state,) = tmp_path.glob("*.calibration")
    assert f"calibration state saved to {state}" in capsys.readouterr().err
    monkeypatch.setattr(reference, "record", record)
    assert main(flags) == 0
    captured = capsys.readouterr()
    assert f"resuming from the calibration state in {state}" in captured.err
    assert "those after the interruption" not in captured.out, "the accuracy is that of all samples"
    resumed = (tmp_path / "d.pb").read_bytes()
    assert main(flags) == 0
    assert (tmp_path / "d.pb").read_bytes() == resumed, "the receipt states the same accuracy"


def test_a_missing_distribution_is_an_error_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.distribution.NAME", "no-such-distribution")
    with pytest.raises(UnavailableError, match="metadata of the package no-such-distribution are missing"):
        qk.quantize("digits", weights_only=True, output=tmp_path / "d.onnx", runs=0)
    assert not list(tmp_path.iterdir())
