"""Networks other than image classifiers, quantized and evaluated by the commands."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape

FLOAT: dict[str, Attr] = {"T": DType.FLOAT}
OUTPUTS = {"onnx": "q.onnx", "tensorflow": "q.pb", "eightbit": "q.pb"}
RANDOM = np.random.default_rng(3)

pytestmark = pytest.mark.engine


class Network:
    """Graph, built node by node."""

    def __init__(self, **inputs: tuple[int | None, ...]) -> None:
        self.nodes = [
            Node(name, "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(dims)})
            for name, dims in inputs.items()
        ]
        self.inputs = tuple(inputs)

    def const(self, name: str, *sizes: int) -> str:
        self.nodes.append(constant(name, (RANDOM.normal(size=sizes) / np.sqrt(np.prod(sizes[:-1]))).astype(np.float32)))
        return name

    def add(self, name: str, op: str, *inputs: str, **attrs: Attr) -> str:
        self.nodes.append(Node(name, op, tuple(map(Edge, inputs)), attrs={**FLOAT, **attrs}))
        return name

    def dense(self, name: str, x: str, c_in: int, c_out: int, activation: str = "Relu") -> str:
        product = self.add(f"{name}/product", "MatMul", x, self.const(f"{name}/weights", c_in, c_out))
        biased = self.add(f"{name}/biased", "BiasAdd", product, self.const(f"{name}/bias", c_out))
        return self.add(name, activation, biased)

    def save(self, path: Path, *outputs: str) -> Path:
        qk.save(Graph.of(self.nodes, self.inputs, outputs), path)
        return path


def run(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    code = main([*command, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out), captured.err


def op_type(op: str, target: str) -> str:
    """Return the op type of a layer in the float graph that is quantized."""
    return {"Conv2D": "Conv", "MatMul": "Gemm"}[op] if target == "onnx" else op


def quantize(
    source: Path, target: str, data: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[dict[str, Any], Path]:
    output = source.parent / OUTPUTS[target]
    flags = ["-o", str(output), "--calibration", str(data), "--target", target, "--runs", "0", *options]
    return run(["quantize", str(source), *flags], capsys)[0], output


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.npz"
    rows: Array = RANDOM.normal(size=(24, 12)).astype(np.float32)
    np.savez(path, rows=rows, labels=np.arange(24) % 4)
    return path


@pytest.mark.parametrize("target", OUTPUTS)
def test_dense_layers_alone(target: str, tmp_path: Path, vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = Network(x=(None, 12))
    network.dense("y", network.dense("h", "x", 12, 16), 16, 4, "Softmax")
    source = network.save(tmp_path / "dense.pb", "y")
    report, output = quantize(source, target, vectors, capsys)
    assert report["ops"][op_type("MatMul", target)] == {"int8": 2, "float": 0}
    assert report["quality"]["agreement"]["value"] >= 0.9
    command = ["evaluate", str(output), "--data", str(vectors), "--reference", str(source)]
    evaluation, _ = run(command, capsys)
    assert evaluation["agreement"] == report["quality"]["agreement"]
    assert evaluation["top1"]["total"] == 24
    comparison, _ = run(["compare", str(source), str(output), "--data", str(vectors)], capsys)
    assert comparison["samples"] == 16
    assert comparison["first_bad"] is None


@pytest.mark.parametrize("target", OUTPUTS)
def test_two_inputs_are_matched_by_name(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "both.npz"
    np.savez(data, a=RANDOM.normal(size=(24, 8)), b=RANDOM.normal(size=(24, 6)))
    network = Network(a=(None, 8), b=(None, 6))
    network.nodes.append(constant("axis", np.int32(1)))
    sides = [network.dense("left", "a", 8, 10), network.dense("right", "b", 6, 5)]
    network.add("joined", "ConcatV2", *sides, "axis", N=2, Tidx=DType.INT32)
    network.dense("y", "joined", 15, 4, "Softmax")
    source = network.save(tmp_path / "two.pb", "y")
    report, output = quantize(source, target, data, capsys)
    counts = report["ops"][op_type("MatMul", target)]
    # Layers whose inputs are noisy may stay float for a better agreement.
    assert counts["int8"] + counts["float"] == 3
    assert counts["int8"] >= 1
    assert report["quality"]["agreement"]["value"] >= 0.9
    evaluation, _ = run(["evaluate", str(output), "--data", str(data), "--reference", str(source)], capsys)
    assert evaluation["agreement"] == report["quality"]["agreement"]
    comparison, _ = run(["compare", str(source), str(output), "--data", str(data)], capsys)
    assert comparison["first_bad"] is None


@pytest.mark.parametrize("target", OUTPUTS)
def test_outputs_other_than_classes_are_compared_by_sqnr(
    target: str, tmp_path: Path, vectors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = Network(x=(None, 12))
    hidden = network.dense("h", "x", 12, 16)
    outputs = [network.dense("box", hidden, 16, 4, "Identity"), network.dense("score", hidden, 16, 1, "Sigmoid")]
    source = network.save(tmp_path / "two.pb", *outputs)
    # Labels of the samples would fit the output of four values.
    samples = tmp_path / "unlabeled.npz"
    with np.load(vectors) as file:
        np.savez(samples, **{name: file[name] for name in file.files if name != "labels"})
    report, _ = quantize(source, target, samples, capsys)
    assert report["quality"] is None
    assert report["sqnr"]["samples"] == 24
    noise = report["sqnr"]["sqnr"]
    assert set(noise) == {"box", "score"}
    assert min(noise.values()) > 25
    # int8 exceeds the allowed error, and float fallbacks do not.
    allowed = 10 ** (-min(noise.values()) / 20) / 2
    report, _ = quantize(source, target, samples, capsys, "--max-drop", f"{allowed:.5f}")
    assert report["fallback"]["is_reached"]
    assert report["fallback"]["keep_float"]
    left = [value for value in report["sqnr"]["sqnr"].values() if value is not None]
    assert min(left, default=1000) > min(noise.values()) + 6
    command = ["evaluate", str(source), "--input-layer", "x", "--output-layer", "score", "--data", str(vectors)]
    assert main(command) == 2
    assert "'score' of" in capsys.readouterr().err


@pytest.mark.parametrize("target", OUTPUTS)
def test_a_fixed_batch_counts_each_sample_once(
    target: str, tmp_path: Path, vectors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = Network(x=(5, 12))
    network.dense("y", network.dense("h", "x", 12, 16), 16, 4, "Softmax")
    source = network.save(tmp_path / "five.pb", "y")
    report, output = quantize(source, target, vectors, capsys)
    assert report["quality"]["samples"] == 24
    assert report["quality"]["top1"]["total"] == 24
    evaluation, _ = run(["evaluate", str(output), "--data", str(vectors), "--reference", str(source)], capsys)
    assert evaluation["agreement"] == report["quality"]["agreement"]


@pytest.mark.parametrize("target", OUTPUTS)
def test_dilated_and_grouped_convolutions(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dilated as Keras writes it, and grouped: layers without a kernel are float fallbacks."""
    data = tmp_path / "images.npy"
    np.save(data, RANDOM.normal(size=(16, 12, 12, 4)).astype(np.float32))
    network = Network(x=(None, 12, 12, 4))
    for name, values in (
        ("block", [2, 2]),
        ("paddings", [[2, 2], [2, 2]]),
        ("crops", [[0, 0], [0, 0]]),
        ("axes", [1, 2]),
    ):
        network.nodes.append(constant(name, np.int32(values)))
    moved = network.add("moved", "SpaceToBatchND", "x", "block", "paddings", Tblock_shape=DType.INT32)
    strides = {"strides": (1, 1, 1, 1), "data_format": b"NHWC"}
    dilated = network.add("dilated", "Conv2D", moved, network.const("w", 3, 3, 4, 8), padding=b"VALID", **strides)
    back = network.add("back", "BatchToSpaceND", dilated, "block", "crops", Tblock_shape=DType.INT32)
    first = network.add("first", "Relu", back)
    grouped = network.add("grouped", "Conv2D", first, network.const("v", 3, 3, 2, 8), padding=b"SAME", **strides)
    mean = network.add("mean", "Mean", network.add("second", "Relu", grouped), "axes", Tidx=DType.INT32)
    network.dense("y", mean, 8, 4, "Softmax")
    source = network.save(tmp_path / "net.pb", "y")
    report, output = quantize(source, target, data, capsys)
    assert report["quality"]["agreement"]["value"] >= 0.9
    reasons = {fallback["name"]: fallback["reason"] for fallback in report["float_fallbacks"]}
    assert ("grouped" in reasons) == (target != "onnx")
    assert re.search("2 of 8 (input )?channels", reasons.get("grouped", "2 of 8 channels"))
    ops = qk.load(output).graph.op_counts
    assert ("SpaceToBatchND" in ops) == (target == "eightbit")
    assert report["ops"][op_type("Conv2D", target)] == {"int8": 2 - (target != "onnx"), "float": int(target != "onnx")}


@pytest.mark.parametrize("target", OUTPUTS)
def test_dynamic_sizes_become_those_of_the_data(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fully convolutional network, whose padding depends on the image size."""
    network = Network(x=(None, None, None, 3))
    network.nodes.append(constant("axes", np.array([1, 2], np.int32)))
    steps = {"strides": (1, 2, 2, 1), "padding": b"SAME", "data_format": b"NHWC"}
    first = network.add("first", "Relu", network.add("conv", "Conv2D", "x", network.const("w", 3, 3, 3, 8), **steps))
    second = network.add(
        "other", "Relu", network.add("conv_1", "Conv2D", first, network.const("v", 3, 3, 8, 8), **steps)
    )
    network.dense("y", network.add("mean", "Mean", second, "axes", Tidx=DType.INT32), 8, 4, "Softmax")
    source, data = network.save(tmp_path / "open.pb", "y"), tmp_path / "images.npy"
    np.save(data, RANDOM.normal(size=(8, 21, 14, 3)).astype(np.float32))
    report, output = quantize(source, target, data, capsys)
    assert report["ops"][op_type("Conv2D", target)] == {"int8": 2, "float": 0}
    assert report["int8_macs"] == 11 * 7 * 27 * 8 + 6 * 4 * 72 * 8 + 8 * 4
    assert qk.load(output).graph["x"].attrs["shape"] == Shape((None, 21, 14, 3))
    np.save(data, RANDOM.integers(0, 256, (2, 9, 9, 3)).astype(np.uint8))
    command = [
        "quantize",
        str(source),
        "-o",
        str(output),
        "--target",
        target,
        "--calibration",
        str(data),
        "--runs",
        "0",
    ]
    assert main([*command, "--input-width", "16", "--input-height", "12"]) == 0
    assert "input 'x' has no fixed size: it is quantized for ?x12x16x3" in capsys.readouterr().err


def test_all_outputs_are_kept_in_addition_to_class_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The image input is found among the placeholders; the outputs stay those of the file."""
    network = Network(image=(None, 8, 8, 3))
    weights = network.const("weights", 8, 8, 3, 6)
    hidden = network.add("hidden", "Conv2D", "image", weights, strides=(1, 1, 1, 1), padding=b"VALID")
    sizes = Node("sizes", "Const", attrs=constant("sizes", np.array([-1, 6], np.int32)).attrs)
    network.nodes.append(sizes)
    flat = network.add("flat", "Reshape", hidden, "sizes")
    outputs = [network.dense("classes", flat, 6, 4, "Softmax"), network.dense("boxes", flat, 6, 4, "Identity")]
    source = network.save(tmp_path / "two.pb", *outputs)
    np.save(tmp_path / "images.npy", RANDOM.normal(size=(8, 8, 8, 3)).astype(np.float32))
    _, output = quantize(source, "onnx", tmp_path / "images.npy", capsys)
    assert [str(edge) for edge in qk.load(output).graph.outputs] == outputs
