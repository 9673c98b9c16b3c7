"""Graphs made to break, from the digits: the verdict and ``compare`` name the layer, and ``--max-drop`` mends what
8 bits broke.
"""

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import load, save
from quantkit.ir.graph import Graph, constant
from quantkit.ir.tensor import Array, DType
from quantkit.quantization import annotate

HELDOUT = Path(__file__).parent.parent.parent / "assets" / "digits_heldout.npz"
(ENTRY,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit"]
main = ENTRY.load()
TARGETS = {"onnx": "q.onnx", "tensorflow": "q.pb"}
# The first layer and its only reader; one branch of the first concat.
FIRST, SECOND, BRANCH = "conv", "conv_1", "mixed/conv"

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def digits() -> Graph:
    recipe = 'strip_unused_nodes(shape="1,16,16,1") remove_nodes(op=Identity, op=CheckNumerics) fold_old_batch_norms'
    return qk.transform(qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph, recipe)


def changed(graph: Graph, edits: dict[str, Callable[[Array], Array]]) -> Graph:
    """Constants changed, of layers named by what leaves them: ``conv`` its weights, ``conv+`` its bias."""
    patterns = {pattern.output.node: pattern for pattern in annotate(graph).patterns}
    values: dict[str, Array] = {}
    for name, edit in edits.items():
        pattern = patterns[name.removesuffix("+")]
        biases = [edge.node for edge in graph[pattern.bias].inputs if graph.constant_of(edge) is not None]
        place = biases[0] if name.endswith("+") else pattern.weights
        values[place] = edit(graph[place].value.array.copy()).astype(np.float32)
    return graph.with_nodes(
        constant(node.name, values[node.name]) if node.name in values else node for node in graph.nodes.values()
    )


def larger(values: Array) -> Array:
    values[..., 2] *= 1000
    return values


def smaller(values: Array) -> Array:
    values[:, :, 2] /= 1000
    return values


def damaged(values: Array) -> Array:
    values.reshape(-1)[5] = np.nan
    return values


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    code = main([*words, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else {}, captured.err


def quantize(source: Path, output: Path, *words: str) -> list[str]:
    target = next(target for target, name in TARGETS.items() if name == output.name)
    flags = ["--calibration", str(HELDOUT), "--limit", "40", "--runs", "0", "--input-mean", "128", "--input-std", "128"]
    return ["quantize", str(source), "-o", str(output), "--target", target, *flags, *words]


def compare(source: Path, output: Path) -> list[str]:
    flags = ["--data", str(HELDOUT), "--limit", "4", "--input-mean", "128", "--input-std", "128"]
    return ["compare", str(source), str(output), *flags]


def test_a_channel_that_dwarfs_the_others(digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The float graph computes what it did: what one layer multiplies by 1000, the next divides by 1000."""
    source, output = tmp_path / "float.pb", tmp_path / "q.onnx"
    save(changed(digits, {FIRST: larger, f"{FIRST}+": larger, SECOND: smaller}), source)
    code, verdict, _ = run(quantize(source, output), capsys)
    assert code == 0
    assert verdict["quality"]["agreement"]["value"] < 0.5
    (remark,) = verdict["calibration"]["warnings"]
    assert remark.startswith(f"{FIRST}: channel 2 reaches")
    _, found, _ = run(compare(source, output), capsys)
    assert found["first_bad"].startswith(FIRST)
    assert found["first_uneven"].startswith(FIRST)
    layers = {row["name"]: row for row in found["layers"]}
    assert layers[FIRST]["lost_channels"] >= 12
    # Labels say what is right: of 40 other pictures, as many as in float.
    code, verdict, said = run(quantize(source, output, "--max-drop", "0.01"), capsys)
    assert code == 0, said
    assert "--max-drop limits top-1 accuracy" in said
    fallback = verdict["fallback"]
    assert fallback["is_reached"]
    assert fallback["baseline_drop"] > 0.5
    assert set(fallback["keep_float"]) <= {"conv/Conv2D", "conv_1/Conv2D"}
    assert [row["unit"] for row in fallback["units"] if row["bought"]] == fallback["keep_float"]
    assert verdict["quality"]["top1"]["value"] >= verdict["float_top1"]["value"] - 0.01
    assert not list(tmp_path.glob("*.fallback")), "the search is over, and its state gone"


def test_the_host_check_says_what_the_guard_saw(
    digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorFlow's target runs the graph before it is written: what a range ruins is not written, unless mended."""
    source, output = tmp_path / "float.pb", tmp_path / "q.pb"
    save(changed(digits, {FIRST: larger, f"{FIRST}+": larger, SECOND: smaller}), source)
    code, _, said = run(quantize(source, output), capsys)
    if code:
        assert f"{FIRST}: channel 2 reaches" in said
        assert "--max-drop" in said
        assert not output.exists()
    code, verdict, said = run(quantize(source, output, "--max-drop", "0.01"), capsys)
    assert code == 0, said
    assert verdict["fallback"]["is_reached"]
    assert verdict["quality"]["top1"]["value"] >= 0.97


def test_layers_may_stay_in_bfloat16(digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "float.pb", tmp_path / "q.pb"
    save(changed(digits, {FIRST: larger, f"{FIRST}+": larger, SECOND: smaller}), source)
    code, verdict, said = run(quantize(source, output, "--max-drop", "0.01", "--fallback", "bfloat16"), capsys)
    assert code == 0, said
    assert verdict["fallback"]["precision"] == "bfloat16"
    kept = load(output)[verdict["fallback"]["keep_float"][0]]
    assert kept.attrs["T"] is DType.BFLOAT16
    assert verdict["quality"]["top1"]["value"] >= 0.97
    assert main(quantize(source, tmp_path / "q.onnx", "--max-drop", "0.01", "--fallback", "bfloat16")) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_a_weight_that_is_none(target: str, digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "float.pb", tmp_path / TARGETS[target]
    save(changed(digits, {FIRST: damaged}), source)
    code, verdict, _ = run(quantize(source, output, "--max-drop", "0.02"), capsys)
    remarks = "; ".join(verdict.get("calibration", {}).get("warnings", ()))
    if code == 0:
        # The engine's Relu makes 0 of NaN: its answers are numbers, and the layer stays float.
        assert "conv/Conv2D: the weights conv/conv2d_params hold NaN or infinity; float fallback" in remarks
        assert {"conv/Conv2D"} <= {one["name"] for one in verdict["float_fallbacks"]}
        assert verdict["fallback"]["is_reached"]
    else:
        assert code == 1
    _, found, _ = run(compare(source, source), capsys)
    assert found["first_bad"].startswith(FIRST)
    problems = [row["problems"] for row in found["layers"] if row["name"] == found["first_bad"]]
    assert problems == [["NaN in both"]]


def test_answers_that_are_no_numbers_end_the_search_at_once(
    digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last layer's NaN is in every answer, in float as well: no choice of layers can mend that."""
    source = tmp_path / "float.pb"
    save(changed(digits, {"softmax/logits+": damaged}), source)
    code, verdict, said = run(quantize(source, tmp_path / "q.onnx", "--max-drop", "0.01"), capsys)
    assert code == 1
    assert not verdict
    assert "the output of the float model contains NaN or infinity for every sample" in said
    assert "hold NaN or infinity; float fallback" in said


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("edits", "value", "problem"),
    [
        ({BRANCH: np.zeros_like, f"{BRANCH}+": lambda bias: np.full_like(bias, 0.5)}, "0.5", "constant in both"),
        ({f"{BRANCH}+": lambda bias: np.full_like(bias, -1000)}, "0", "dead (all zero) in both"),
    ],
    ids=["constant", "dead"],
)
def test_an_activation_that_never_changes(
    edits: dict[str, Callable[[Array], Array]],
    value: str,
    problem: str,
    target: str,
    digits: Graph,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It shares its range with the other branches of a concat, so no range is dead; it is named all the same."""
    source, output = tmp_path / "float.pb", tmp_path / TARGETS[target]
    save(changed(digits, edits), source)
    code, verdict, said = run(quantize(source, output, "--max-drop", "0.02"), capsys)
    assert code == 0, said
    assert verdict["calibration"]["warnings"] == [f"{BRANCH}: constant {value}; its range has no width"]
    assert verdict["fallback"]["is_reached"]
    _, found, _ = run(compare(source, output), capsys)
    noted = {row["name"]: row["problems"] for row in found["layers"] if row["problems"]}
    assert noted[BRANCH] == [problem]
    assert found["first_bad"] is None, "8 bits say it exactly"


@pytest.mark.parametrize("target", TARGETS)
def test_a_network_of_one_constant(
    target: str, digits: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that follows a dead layer is constant: ranges of no width must not divide by zero."""
    source, output = tmp_path / "float.pb", tmp_path / TARGETS[target]
    save(changed(digits, {FIRST: np.zeros_like, f"{FIRST}+": lambda bias: np.full_like(bias, -1)}), source)
    code, verdict, said = run(quantize(source, output), capsys)
    assert code == 0, said
    assert verdict["calibration"]["warnings"][0] == f"{FIRST}: constant 0; its range has no width"
    assert verdict["quality"]["not_finite"] == 0
    assert verdict["quality"]["agreement"]["value"] == 1
    assert len(load(output)) > 0
