"""`quantize` and ``quantkit quantize`` write identical files and return equal JSON."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.formats.content_digest import content_digest
from quantkit.ir.graph import Edge
from quantkit.progress import Progress
from quantkit.quantization import Plan, Ranges
from quantkit.quantization.fallback import Fallback, Loss
from quantkit.quantization.precision import policy
from quantkit.quantization.ranges import Range

IMAGES = Path(__file__).parents[3] / "assets" / "digits_heldout.npz"
HELD_OUT = "HELD_OUT"  # stands for a file of a few images, which each test writes
FILES = {"onnx": "digits.onnx", "tensorflow": "digits.pb", "eightbit": "digits.pb", "litert": "digits.tflite"}
# Options of each case; the same names are flags of the command.
CASES: dict[str, dict[str, Any]] = {
    "plain": {"calibration": IMAGES, "limit": 12},
    "max_drop": {"calibration": IMAGES, "limit": 12, "max_drop": 0.01},
    "uint8_input": {"calibration": IMAGES, "limit": 12, "uint8_input": True},
    "held_out": {"calibration": IMAGES, "limit": 12, "held_out": HELD_OUT, "observer": "percentile(99.9)"},
    "weights_only": {"weights_only": True, "held_out": HELD_OUT},
    "reduce_range": {"calibration": IMAGES, "limit": 12, "reduce_range": True, "input_mean": 128.0, "input_std": 128.0},
}
# The command passes its flags to the same function for every target.
PAIRS = [*(("onnx", case) for case in CASES), *((target, "plain") for target in FILES if target != "onnx")]
PAIRS += [("tensorflow", "max_drop"), ("litert", "weights_only")]

pytestmark = pytest.mark.engine


def flags_of(options: dict[str, Any]) -> list[str]:
    """Return the flags of the command for keyword arguments of `quantize`."""
    flags = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] if value is True else [flag, str(value)]
    return flags


def save_held_out(path: Path) -> Path:
    """Write some images with labels that calibration does not use, and return the path."""
    with np.load(IMAGES) as file:
        np.savez(path, **{name: file[name][-20:] for name in file.files})
    return path


def run_command(output: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    code = main(["quantize", "digits", "-o", str(output), "--json", *flags_of(options)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    document: dict[str, Any] = json.loads(captured.out)
    assert document["schema"] == "quantkit.quantize/2"
    return document


def as_json(result: qk.QuantizationResult) -> dict[str, Any]:
    """Return the report after a round trip through text, as the command prints it."""
    document: dict[str, Any] = json.loads(json.dumps(result.to_json()))
    return document


@pytest.mark.parametrize(("target", "case"), PAIRS)
def test_python_equals_the_command(target: str, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {**CASES[case], "target": target, "runs": 0}
    if "held_out" in options:
        options["held_out"] = save_held_out(tmp_path / "held_out.npz")
    command, python, saved = (tmp_path / folder / FILES[target] for folder in ("command", "python", "saved"))
    for file in (command, python, saved):
        file.parent.mkdir()
    document = run_command(command, capsys, **options)
    result = qk.quantize("digits", output=python, **options)
    result.save(saved)
    assert python.read_bytes() == saved.read_bytes() == command.read_bytes()
    expected = json.loads(json.dumps(document).replace(str(command), str(python)))
    assert as_json(result) == expected
    if not options.get("weights_only"):
        assert document["quality"]["agreement"]["total"] > 0


@pytest.mark.parametrize("target", ["onnx", "tensorflow"])
def test_plan_and_ranges_equal_those_of_the_command(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"target": target, "runs": 0}
    command, plan, ranges = tmp_path / FILES[target], tmp_path / "plan.json", tmp_path / "ranges.json"
    run_command(command, capsys, calibration=IMAGES, limit=12, save_plan=plan, save_ranges=ranges, **options)
    result = qk.quantize("digits", IMAGES, limit=12, **options)
    assert (result.plan.text, result.ranges.text) == (plan.read_text(), ranges.read_text())
    again = qk.quantize("digits", plan=Plan.load(plan), ranges=Ranges.load(ranges), **options)
    from_files = qk.quantize("digits", plan=plan, ranges=str(ranges), **options)
    for index, repeated in enumerate((result, again, from_files)):
        file = repeated.save(tmp_path / f"{index}_{FILES[target]}")
        assert content_digest(file) == content_digest(command)
        assert (file.read_bytes() == command.read_bytes()) == (index == 0)  # the others have no data for the accuracy
    second = tmp_path / f"again_{FILES[target]}"
    document = run_command(second, capsys, plan=plan, ranges=ranges, **options)
    assert second.read_bytes() == file.read_bytes()
    own = {"output": str(second), "next_command": document["next_command"]}
    assert {**as_json(from_files), **own} == document


def test_a_result_without_an_output_file_is_in_memory(tmp_path: Path) -> None:
    with np.load(IMAGES) as file:
        images = file["images"][:12]
    result = qk.quantize("digits", images, runs=0)
    assert result.report.output is None
    assert result.report.next_step is None or "OUTPUT.onnx" in result.report.next_step.command
    assert "agreement with the float model" in str(result)
    assert result._repr_html_().startswith("<pre>")
    assert repr(result).startswith("QuantizationResult('digits', target='onnx', ")
    with qk.open_session(result.model, "onnxruntime") as session:
        scores = session.run({session.inputs[0].name: np.zeros((1, 16, 16, 1), np.float32)})
    assert next(iter(scores.values())).shape == (1, 10)
    with pytest.raises(qk.UsageError, match="cannot write target 'onnx' to digits.pb"):
        result.save(tmp_path / "digits.pb")


@pytest.mark.parametrize("has_alternatives", [False, True])
def test_callbacks_receive_progress_and_messages(has_alternatives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_alternatives:
        monkeypatch.setattr(policy, "GOOD_KL", 0.0)
    reports: list[Progress] = []
    messages: list[str] = []
    qk.quantize(
        "digits", IMAGES, limit=12, runs=0, max_drop=0.5, on_progress=reports.append, on_message=messages.append
    )
    stages = {
        *("preparing the graph", "calibrating", "computing the ranges", "running the float model", "searching"),
        *("writing the model", "measuring the accuracy", "measuring the calibrated model"),
        *(("comparing alternatives", "measuring the errors of the layers") if has_alternatives else ()),
    }
    assert {report.stage for report in reports} == stages
    assert Progress("calibrating", 12, 12) in reports
    assert any(message.startswith("calibrating on 12 images from") for message in messages)


def test_a_drop_above_the_limit_is_a_check_error() -> None:
    result = qk.quantize("digits", IMAGES, limit=12, runs=0)
    loss = Loss(drop=0.2, kl_divergence=0.1)
    fallback = Fallback(frozenset(), loss, loss, (), is_reached=False, is_complete=True)
    report = replace(result.report, fallback=fallback, max_drop=0.01)
    with pytest.raises(qk.CheckError, match="the drop is 0.2000, more than --max-drop 0.01"):
        report.require_max_drop()
    replace(report, fallback=replace(fallback, is_reached=True)).require_max_drop()


def images_as(kind: str) -> Any:
    """Return the same twelve normalized images as data of another kind."""
    with np.load(IMAGES) as file:
        images = ((file["images"][:12] - np.float32(128)) / 128).astype(np.float32)
    if kind == "tf.data":
        return import_module("tensorflow").data.Dataset.from_tensor_slices(images).batch(5)
    return {
        "batches": [images[:5], images[5:]],
        "dicts": [{"Mul": images[:7]}, {"Mul": images[7:]}],
        "labels": [(images[:6], np.arange(6) % 10), (images[6:], np.arange(6) % 10)],
        "iterator": iter(images),
        "function": lambda: iter(images),
    }[kind]


@pytest.fixture(scope="module")
def ranges() -> dict[Edge, Range]:
    return dict(qk.quantize("digits", images_as("batches"), limit=8, runs=0, observer="min_max").ranges)


@pytest.mark.parametrize(
    ("kind", "max_drop"),
    [
        *((kind, None) for kind in ("batches", "dicts", "labels", "iterator", "function", "tf.data")),
        *((kind, 0.5) for kind in ("batches", "iterator", "function")),
    ],
)
def test_data_of_every_kind_calibrates(kind: str, max_drop: float | None, ranges: dict[Edge, Range]) -> None:
    result = qk.quantize("digits", images_as(kind), limit=8, runs=0, observer="min_max", max_drop=max_drop)
    assert result.ranges.provenance.count == 8
    assert dict(result.ranges) == ranges
    quality = result.report.accuracy.quality
    # With max_drop, the accuracy is measured on the four images that remain, which an iterator cannot give.
    assert quality is not None
    assert quality.samples == (4 if max_drop is not None and kind != "iterator" else 8)


def test_a_value_of_another_type_is_an_error() -> None:
    with pytest.raises(qk.UsageError):
        qk.quantize("digits", 3, runs=0)
