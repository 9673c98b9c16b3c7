"""Models with several outputs: the output with the class scores is named, found, or required; never assumed."""

from pathlib import Path

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph, Node, constant
from quantkit.ir.tensor import DType, Shape

pytestmark = pytest.mark.engine

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(0, 1, (40, 8)).astype(np.float32)
WEIGHTS = {name: RANDOM.normal(0, 1, (8, size)).astype(np.float32) for name, size in (("box", 4), ("cls", 10))}
LABELS = (X @ WEIGHTS["cls"]).argmax(1)


def network(*names: str, last: str = "Identity") -> Graph:
    """Return a graph with the outputs ``names``; the op type of the output ``cls`` is ``last``."""
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 8))})]
    for name in names:
        nodes += [
            constant(f"{name}/w", WEIGHTS.get(name, WEIGHTS["cls"])),
            Node(f"{name}/p", "MatMul", ("x", f"{name}/w")),
        ]
        nodes.append(Node(name, last if name == "cls" else "Identity", (f"{name}/p",)))
    return Graph.of(nodes, ["x"], names)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.savez(tmp_path / "d.npz", x=X, labels=LABELS)
    for suffix in ("onnx", "pb", "tflite"):
        qk.save(network("box", "cls"), tmp_path / f"two.{suffix}")
    return tmp_path


def top1(folder: Path, name: str, **options: str) -> float:
    metrics = qk.evaluate(folder / name, folder / "d.npz", **options).metrics
    assert metrics.top1 is not None
    return metrics.top1.value


@pytest.mark.parametrize("name", ["two.onnx", "two.pb", "two.tflite"])
def test_evaluate_requires_the_output_and_uses_it(name: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"2 outputs \(box, cls\)") as caught:
        qk.evaluate(folder / name, folder / "d.npz")
    assert "--output-layer cls," in caught.value.hint
    assert top1(folder, name, output_layer="cls") == 1
    assert "output       cls" in str(qk.evaluate(folder / name, folder / "d.npz", output_layer="cls"))
    assert top1(folder, name, output_layer="box") < 0.6
    with pytest.raises(UsageError):
        top1(folder, name, output_layer="other")
    if name != "two.tflite":
        assert main(["evaluate", str(folder / name), "--data", str(folder / "d.npz"), "--outputs", "cls", "-q"]) == 0
        assert qk.evaluate(qk.load(folder / name, outputs="cls"), folder / "d.npz").metrics.top1.value == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["two.onnx", "two.pb", "two.tflite"])
def test_run_writes_all_outputs(name: str, tmp_path: Path) -> None:
    """A softmax among several outputs is not the only result of the model."""
    qk.save(network("box", "cls", last="Softmax"), tmp_path / name)
    rows = list(qk.run(tmp_path / name, {"x": X}, tmp_path / "out").rows())
    assert [len(row["outputs"]) for row in rows] == [2] * len(X)
    (first, *_) = qk.run(tmp_path / name, {"x": X}, tmp_path / "cls", output_layer="cls").rows()
    assert first["index"] == LABELS[0]


def test_labels_have_the_name_of_their_output(folder: Path) -> None:
    np.savez(folder / "d.npz", x=X, box=LABELS, cls=LABELS)
    for name in ("two.onnx", "two.pb", "two.tflite"):
        assert top1(folder, name, output_layer="cls") == 1
        assert top1(folder, name, output_layer="box") < 0.6
    np.savez(folder / "d.npz", x=X, cls=(LABELS + 1) % 10, labels=LABELS)  # that of the output comes first
    assert top1(folder, "two.onnx", output_layer="cls") == 0
    data = {"x": X, "cls": LABELS}
    evaluation = qk.evaluate(folder / "two.onnx", data, output_layer="cls", workers=2, batch=8)
    assert evaluation.metrics.top1 is not None
    assert evaluation.metrics.top1.value == 1


def test_a_softmax_among_the_outputs_has_the_class_scores(folder: Path) -> None:
    for name in ("soft.onnx", "soft.pb"):
        qk.save(network("box", "cls", last="Softmax"), folder / name)
        assert top1(folder, name) == 1


def test_outputs_of_an_onnx_file_apply_to_every_verb(folder: Path) -> None:
    model = qk.load(folder / "two.onnx", outputs="cls")
    with qk.open_session(model) as session:
        assert [info.name for info in session.outputs] == ["cls"]
    same = qk.load(folder / "two.onnx", outputs=("box", "cls"))
    assert same.runnable == folder / "two.onnx"  # runtimes open the file itself
    for output in ("cls", "box"):
        command = ["run", str(folder / "two.onnx"), "--data", str(folder / "d.npz"), "-o", str(folder / output), "-q"]
        assert main([*command, "--outputs", output, "--rows", "classes"]) == 0
    benchmark = ["benchmark", str(folder / "two.onnx"), "--outputs", "cls", "--runs", "1", "--warmup", "1"]
    assert main([*benchmark, "--processes", "1", "-q"]) == 0
    with pytest.raises(UsageError, match="not read or rewritten"):
        qk.load(folder / "two.tflite", outputs="cls")


def test_quantize_measures_top1_of_the_output_of_the_labels(folder: Path) -> None:
    result = qk.quantize(folder / "two.onnx", folder / "d.npz", runs=0)
    sqnr = result.report.accuracy.sqnr
    assert sqnr is not None
    (metrics,) = sqnr.classes.values()
    assert list(sqnr.classes) == ["cls"]  # box has fewer values than there are classes
    assert metrics.top1 is not None
    assert metrics.top1.value > 0.9
    assert "top-1 of cls" in str(result)
    assert set(sqnr.sqnr) == {"box", "cls"}


def test_quantize_requires_the_output_of_ambiguous_labels(folder: Path) -> None:
    qk.save(network("other", "cls"), folder / "both.onnx")
    messages: list[str] = []
    result = qk.quantize(folder / "both.onnx", folder / "d.npz", runs=0, on_message=messages.append)
    assert result.report.accuracy.sqnr is not None
    assert not result.report.accuracy.sqnr.classes
    (message,) = [text for text in messages if "labels of the samples" in text]
    assert "may belong to 'other' or 'cls'" in message
    assert "--outputs" in message
    result_of_outputs = qk.quantize(
        folder / "both.onnx", folder / "d.npz", runs=0, outputs=("cls", "other"), max_drop=0.05
    )
    assert result_of_outputs.report.accuracy.sqnr is not None
    assert list(result_of_outputs.report.accuracy.sqnr.classes) == ["cls"]
    few = qk.quantize(folder / "both.onnx", (X, LABELS + 20), runs=0, on_message=messages.append)
    assert few.report.accuracy.sqnr is not None
