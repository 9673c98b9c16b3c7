"""Damaged graphs: report and ``compare`` name the layer, and ``--max-drop`` restores the accuracy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.formats import load, save
from quantkit.ir.graph import Graph, constant
from quantkit.ir.tensor import Array, DType
from quantkit.quantization import Scheme, annotate
from quantkit.recipes import rewrite

HELDOUT = Path(__file__).parents[3] / "assets" / "digits_heldout.npz"
TARGETS = {"onnx": "q.onnx", "tensorflow": "q.pb"}
# The first layer and its only consumer; one branch of the first concat.
FIRST, SECOND, BRANCH = "conv", "conv_1", "mixed/conv"

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def digits() -> Graph:
    recipe = 'strip_unused_nodes(shape="1,16,16,1") remove_nodes(op=Identity, op=CheckNumerics) fold_old_batch_norms'
    return rewrite(qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph, recipe)


def edit_layers(graph: Graph, edits: dict[str, Callable[[Array], Array]]) -> Graph:
    """Edit constants of layers: ``conv`` names the weights of the layer with that output, ``conv+`` its bias."""
    patterns = {pattern.output.node: pattern for pattern in annotate(graph, Scheme.for_target("tensorflow")).patterns}
    values: dict[str, Array] = {}
    for name, edit in edits.items():
        pattern = patterns[name.removesuffix("+")]
        biases = [edge.node for edge in graph[pattern.bias].inputs if graph.constant_of(edge) is not None]
        source = biases[0] if name.endswith("+") else pattern.weights
        values[source] = edit(graph[source].value.array.copy()).astype(np.float32)
    return graph.with_nodes(
        constant(node.name, values[node.name]) if node.name in values else node for node in graph.nodes.values()
    )


def enlarge_channel(values: Array) -> Array:
    values[..., 2] *= 1000
    return values


def reduce_channel(values: Array) -> Array:
    values[:, :, 2] /= 1000
    return values


def insert_nan(values: Array) -> Array:
    values.reshape(-1)[5] = np.nan
    return values


def run(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    code = main([*command, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else {}, captured.err


def write_data(folder: Path) -> Path:
    """Write 24 images for the calibration and 120 held-out ones: one error is less than a drop of 0.01."""
    path = folder / "heldout.npz"
    with np.load(HELDOUT) as arrays:
        np.savez(path, **{name: arrays[name][:144] for name in arrays.files})
    return path


def quantize(source: Path, output: Path, *flags: str) -> list[str]:
    target = next(target for target, name in TARGETS.items() if name == output.name)
    data = ["--calibration", str(write_data(output.parent)), "--limit", "24"]
    options = ["--runs", "0", "--input-mean", "128", "--input-std", "128"]
    return ["quantize", str(source), "-o", str(output), "--target", target, *data, *options, *flags]


def write_scheme(folder: Path, target: str) -> Path:
    """Write the default scheme of a target: stated options exclude no layers automatically."""
    path = folder / "scheme.toml"
    path.write_text(f'target = "{target}"\n')
    return path


def compare(source: Path, output: Path) -> list[str]:
    flags = ["--data", str(HELDOUT), "--limit", "4", "--input-mean", "128", "--input-std", "128"]
    return ["compare", str(source), str(output), *flags]


def test_outlier_channel_is_found_and_accuracy_restored(
    digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One layer multiplies a channel by 1000, the next one divides it: the float outputs stay the same."""
    source, output = tmp_path / "float.pb", tmp_path / "q.onnx"
    save(edit_layers(digits, {FIRST: enlarge_channel, f"{FIRST}+": enlarge_channel, SECOND: reduce_channel}), source)
    code, report, log = run(quantize(source, output), capsys)
    assert code == 0
    assert report["quality"]["agreement"]["value"] > 0.9
    assert f"tensors move into weights, for example of {FIRST}, whose channel 2 is the largest" in log
    # A stated scheme is kept.
    scheme = f"--scheme={write_scheme(tmp_path, 'onnx')}"
    code, report, _ = run(quantize(source, output, scheme), capsys)
    assert code == 0
    assert report["quality"]["agreement"]["value"] < 0.5
    (warning,) = report["calibration"]["warnings"]
    assert warning.startswith(f"{FIRST}: channel 2 reaches")
    _, comparison, _ = run(compare(source, output), capsys)
    assert comparison["first_bad"].startswith(FIRST)
    assert comparison["first_outlier"].startswith(FIRST)
    layers = {row["name"]: row for row in comparison["layers"]}
    assert layers[FIRST]["noisy_channels"] >= 12
    # Held-out labels: top-1 must be that of the float model.
    code, report, log = run(quantize(source, output, scheme, "--max-drop", "0.01"), capsys)
    assert code == 0, log
    assert "--max-drop limits top-1 accuracy" in log
    fallback = report["fallback"]
    assert fallback["is_reached"]
    assert fallback["baseline_drop"] > 0.5
    assert set(fallback["keep_float"]) <= {"conv/batchnorm", "conv_1/batchnorm"}
    gains = {row["unit"]: row["predicted"] for row in report["decisions"] if row["source"] == "accuracy"}
    assert sorted(gains) == fallback["keep_float"]
    assert all(isinstance(gain, float) for gain in gains.values())
    assert report["quality"]["top1"]["value"] >= report["float_top1"]["value"] - 0.01
    assert not list(tmp_path.glob("*.fallback")), "a complete search removes its state"


def test_host_check_reports_calibration_warnings(
    digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The target tensorflow is checked before the file is written: a broken graph is not written."""
    source, output = tmp_path / "float.pb", tmp_path / "q.pb"
    save(edit_layers(digits, {FIRST: enlarge_channel, f"{FIRST}+": enlarge_channel, SECOND: reduce_channel}), source)
    # The default scheme would keep the layer in float.
    code, _, log = run(quantize(source, output, f"--scheme={write_scheme(tmp_path, 'tensorflow')}"), capsys)
    assert code == 1
    assert f"{FIRST}: channel 2 reaches" in log
    assert "--max-drop" in log
    assert not output.exists()
    code, report, log = run(quantize(source, output, "--max-drop", "0.01"), capsys)
    assert code == 0, log
    assert report["fallback"]["is_reached"]
    assert report["quality"]["top1"]["value"] >= 0.97


def test_float_fallbacks_in_bfloat16(digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "float.pb", tmp_path / "q.pb"
    save(edit_layers(digits, {FIRST: enlarge_channel, f"{FIRST}+": enlarge_channel, SECOND: reduce_channel}), source)
    scheme = f"--scheme={write_scheme(tmp_path, 'tensorflow')}"
    code, report, log = run(quantize(source, output, scheme, "--max-drop", "0.01", "--fallback", "bfloat16"), capsys)
    assert code == 0, log
    assert report["fallback"]["precision"] == "bfloat16"
    fallback = load(output)[report["fallback"]["keep_float"][0]]
    assert fallback.attrs["T"] is DType.BFLOAT16
    assert report["quality"]["top1"]["value"] >= 0.97
    assert main(quantize(source, tmp_path / "q.onnx", "--max-drop", "0.01", "--fallback", "bfloat16")) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_nan_in_weights_is_a_float_fallback(
    target: str, digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "float.pb", tmp_path / TARGETS[target]
    save(edit_layers(digits, {FIRST: insert_nan}), source)
    code, report, _ = run(quantize(source, output, "--max-drop", "0.02"), capsys)
    warnings = "; ".join(report.get("calibration", {}).get("warnings", ()))
    if code == 0:
        # Relu of the runtime turns NaN into 0: the outputs are finite, and the layer is a float fallback.
        assert "conv/Conv2D: the weights conv/conv2d_params hold NaN or infinity; float fallback" in warnings
        assert {"conv/Conv2D"} <= {fallback["name"] for fallback in report["float_fallbacks"]}
        assert report["fallback"]["is_reached"]
    else:
        assert code == 1
    _, comparison, _ = run(compare(source, source), capsys)
    assert comparison["first_bad"].startswith(FIRST)
    problems = [row["problems"] for row in comparison["layers"] if row["name"] == comparison["first_bad"]]
    assert problems == [["NaN in both"]]


def test_float_outputs_with_nan_end_the_search_at_once(
    digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN in the last layer is in every output, of the float model, too: no float fallback fixes that."""
    source = tmp_path / "float.pb"
    save(edit_layers(digits, {"softmax/logits+": insert_nan}), source)
    code, report, log = run(quantize(source, tmp_path / "q.onnx", "--max-drop", "0.01"), capsys)
    assert code == 1, log
    assert report["schema"] == "quantkit.error/1"
    assert "the output of the float model contains NaN or infinity for every sample" in report["message"]
    assert "hold NaN or infinity; float fallback" in report["hint"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("edits", "value", "problem"),
    [
        ({BRANCH: np.zeros_like, f"{BRANCH}+": lambda bias: np.full_like(bias, 0.5)}, "0.5", "constant in both"),
        ({f"{BRANCH}+": lambda bias: np.full_like(bias, -1000)}, "0", "dead (all zero) in both"),
    ],
    ids=["constant", "dead"],
)
def test_constant_activation_is_reported(
    edits: dict[str, Callable[[Array], Array]],
    value: str,
    problem: str,
    target: str,
    digits: Graph,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The branches of a concat share a range, which has a width; the constant branch is reported nevertheless."""
    source, output = tmp_path / "float.pb", tmp_path / TARGETS[target]
    save(edit_layers(digits, edits), source)
    code, report, log = run(quantize(source, output, "--max-drop", "0.02"), capsys)
    assert code == 0, log
    assert report["calibration"]["warnings"] == [f"{BRANCH}: constant {value}; its range has no width"]
    assert report["fallback"]["is_reached"]
    _, comparison, _ = run(compare(source, output), capsys)
    problems = {row["name"]: row["problems"] for row in comparison["layers"] if row["problems"]}
    assert problems[BRANCH] == [problem]
    assert comparison["first_bad"] is None, "int8 represents the constant exactly"


@pytest.mark.parametrize("target", TARGETS)
def test_constant_network_is_quantized(
    target: str, digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All tensors after a dead layer are constant: ranges without width must not divide by zero."""
    source, output = tmp_path / "float.pb", tmp_path / TARGETS[target]
    save(edit_layers(digits, {FIRST: np.zeros_like, f"{FIRST}+": lambda bias: np.full_like(bias, -1)}), source)
    code, report, log = run(quantize(source, output), capsys)
    assert code == 0, log
    assert report["calibration"]["warnings"][0] == f"{FIRST}: constant 0; its range has no width"
    assert report["quality"]["not_finite"] == 0
    assert report["quality"]["agreement"]["value"] == 1
    assert len(load(output)) > 0
