"""Preprocessing and labels travel in the quantized file, and every command uses them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main
from PIL import Image

import quantkit as qk
from quantkit.data.preprocessing import Origin, Preprocessing
from quantkit.errors import InputError
from quantkit.formats.content_digest import content_digest
from quantkit.ir.graph import Graph, Node, constant
from quantkit.ir.tensor import DType, Shape

SIZE, NUM_CLASSES = 12, 6
MEAN, STD = (123.68, 116.78, 103.94), (58.4, 57.1, 57.4)
NAMES = [f"name{index}" for index in range(NUM_CLASSES)]
STATED = ["--input-mean", ",".join(map(str, MEAN)), "--input-std", ",".join(map(str, STD))]
TARGETS = {"q.onnx": "onnx", "q.pb": "eightbit", "q.pbtxt": "eightbit", "q_saved": "eightbit", "q.tflite": "litert"}

pytestmark = pytest.mark.engine


def network() -> Graph:
    random = np.random.default_rng(0)
    weights, dense = random.normal(0, 0.3, (3, 3, 3, 8)), random.normal(0, 1, (8, NUM_CLASSES))
    nodes = (
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, SIZE, SIZE, 3))}),
        constant("w", weights.astype(np.float32)),
        Node("conv", "Conv2D", ("x", "w"), attrs={"strides": (1, 1, 1, 1), "padding": b"SAME"}),
        Node("relu", "Relu", ("conv",)),
        constant("axes", np.array([1, 2], np.int32)),
        Node("mean", "Mean", ("relu", "axes")),
        constant("d", dense.astype(np.float32)),
        Node("y", "MatMul", ("mean", "d")),
    )
    return Graph.of(nodes, ["x"], ["y"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with images, labels, the float model, and a quantized file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(1)
    (folder / "images").mkdir()
    for number in range(6):
        pixels = random.integers(0, 255, (SIZE, SIZE, 3)) * np.array([1, 0.5, 0.1])
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"images/{number}.png")
    (folder / "labels.txt").write_text("\n".join(NAMES))
    qk.save(network(), folder / "m.pb")
    qk.save(network(), folder / "m.onnx")
    for name, target in TARGETS.items():
        quantize(folder, name, "--target", target)
    return folder


def quantize(folder: Path, name: str, *flags: str, model: str = "m.pb") -> Path:
    command = ["quantize", str(folder / model), "-o", str(folder / name), "--calibration", str(folder / "images")]
    common = [*STATED, "--input-color-order", "bgr", "--labels", str(folder / "labels.txt"), "--runs", "0", "-q"]
    assert main([*command, *common, *flags]) == 0
    return folder / name


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", TARGETS)
def test_classify_and_evaluate_use_the_preprocessing_and_labels_of_the_file(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = folder / "images/0.png"
    stated = document(
        capsys,
        *("classify", image, "--model", folder / "m.pb", *STATED),
        *("--input-color-order", "bgr", "--labels", folder / "labels.txt", "--top", 1),
    )
    alone = document(capsys, "classify", image, "--model", folder / name, "--top", 1)
    assert alone["preprocessing"] == {**stated["preprocessing"], "origin": "file"}
    assert alone["labels"] == {"source": str(folder / name), "order": "own", "are_known": True}
    predictions = [result["images"][0]["predictions"][0] for result in (stated, alone)]
    assert predictions[0]["label"] == predictions[1]["label"] in NAMES
    assert predictions[1]["score"] == pytest.approx(predictions[0]["score"], abs=0.1)
    evaluated = document(capsys, "evaluate", folder / name, "--data", folder / "images", "--reference", folder / "m.pb")
    assert evaluated["preprocessing"] == f"12 x 12 x 3 BGR, (x - {MEAN}) / {STD}, from the metadata of the file"
    assert not evaluated["preprocessing_is_assumed"]
    assert evaluated["agreement"]["value"] == 1.0


@pytest.mark.parametrize("name", ["q.onnx", "q.pb"])
def test_compare_run_and_end_to_end_use_them(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = document(capsys, "compare", folder / "m.pb", folder / name, "--data", folder / "images")
    assert (compared["preprocessing"]["mean"], compared["preprocessing"]["color_order"]) == (list(MEAN), "bgr")
    result = document(capsys, "run", folder / name, "--data", folder / "images", "-o", tmp_path / "out")
    assert "BGR" in result["preprocessing"]
    (shard,) = (tmp_path / "out").glob("*.jsonl")
    assert {json.loads(line)["label"] for line in shard.read_text().splitlines()} <= set(NAMES)
    model = qk.load(folder / name)
    with qk.open_session(model) as session:
        assert model.find_basis(session.inputs) == Preprocessing(
            SIZE, SIZE, 3, MEAN, STD, color_order="bgr", origin=Origin.FILE
        )
    timed = ["benchmark", f"{folder / name}", "--end-to-end", "--data", str(folder / "images")]
    assert main([*timed, "--runs", "3", "--warmup", "1", "--processes", "1", "-q"]) == 0


def test_explicit_flags_come_before_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "other.txt").write_text("\n".join(f"other{index}" for index in range(NUM_CLASSES)))
    classify = ["classify", folder / "images/0.png", "--model", folder / "q.onnx"]
    result = document(
        capsys,
        *classify,
        *("--input-mean", 0, "--input-std", 255, "--input-color-order", "rgb", "--labels", folder / "other.txt"),
    )
    preprocessing = result["preprocessing"]
    assert (preprocessing["mean"], preprocessing["std"], preprocessing["color_order"]) == (0, 255, "rgb")
    assert preprocessing["origin"] == "stated"
    assert result["images"][0]["predictions"][0]["label"].startswith("other")
    (folder / "short.txt").write_text("\n".join(NAMES[1:]))
    assert main([*map(str, classify), "--labels", str(folder / "short.txt"), "-q"]) == 3


def test_labels_of_another_model_are_rejected_before_the_calibration(folder: Path) -> None:
    (folder / "short.txt").write_text("a\nb")
    with pytest.raises(InputError, match="6 class scores"):
        qk.quantize(folder / "m.onnx", folder / "images", labels=folder / "short.txt", runs=0)


def test_the_python_result_has_the_metadata(folder: Path, tmp_path: Path) -> None:
    options = {"input_mean": MEAN, "input_std": STD, "input_color_order": "bgr", "labels": folder / "labels.txt"}
    result = qk.quantize(folder / "m.pb", folder / "images", runs=0, **options)  # type: ignore[arg-type]
    assert list(result.model.labels.names.values()) == NAMES
    assert result.model.stated_preprocessing == result.preprocessing
    result.save(tmp_path / "a.onnx")
    qk.save(result.model, tmp_path / "b.onnx")
    assert content_digest(tmp_path / "a.onnx") == content_digest(tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (folder / "q.onnx").read_bytes()
    again = qk.transform(tmp_path / "a.onnx", "inference")
    assert (again.stated_preprocessing, again.labels.names) == (result.preprocessing, result.model.labels.names)


def test_uint8_images_are_fed_in_the_order_of_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantize(folder, "u.onnx", "--uint8-input")
    image = folder / "images/0.png"
    results = [document(capsys, "classify", image, "--model", folder / name) for name in ("q.onnx", "u.onnx")]
    scores = [{p["label"]: p["score"] for p in result["images"][0]["predictions"]} for result in results]
    assert scores[1] == pytest.approx(scores[0], rel=0.1, abs=0.1)


def test_a_weights_only_file_states_the_given_preprocessing(folder: Path, tmp_path: Path) -> None:
    small = qk.quantize(folder / "m.pb", weights_only=True, input_mean=MEAN, runs=0, output=tmp_path / "w.onnx")
    stated = qk.load(tmp_path / "w.onnx").stated_preprocessing
    assert stated is not None
    assert (stated.mean, stated.origin) == (MEAN, Origin.FILE)
    assert "labels" not in small.metadata
    arrays = np.random.default_rng(0).normal(0, 1, (8, SIZE, SIZE, 3)).astype(np.float32)
    again = qk.quantize(folder / "m.pb", arrays, runs=0)
    assert again.metadata.keys() == {"receipt"}  # no guess
    float_model = qk.load(qk.transform(tmp_path / "w.onnx", "inference"))
    assert float_model.stated_preprocessing == stated


def test_an_assumed_preprocessing_stays_an_assumption(folder: Path, tmp_path: Path) -> None:
    qk.quantize(folder / "m.onnx", folder / "images", runs=0, output=tmp_path / "a.onnx")
    stated = qk.load(tmp_path / "a.onnx").stated_preprocessing
    assert stated == Preprocessing(SIZE, SIZE, 3)
    assert stated is not None
    assert stated.origin is Origin.ASSUMED
    messages: list[str] = []
    qk.evaluate(tmp_path / "a.onnx", folder / "images", folder / "m.onnx", on_message=messages.append)
    assert any("is assumed" in message for message in messages)


@pytest.mark.parametrize("flags", [[], ["--uint8-input"], ["--target", "onnx", "--observer", "min_max"]])
def test_names_of_dimensions_stay(flags: list[str], folder: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(folder / "m.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, folder / "named.onnx")
    path = quantize(folder, "named.int8.onnx", *flags, model="named.onnx")
    quantized = onnx.load(path)
    onnx.checker.check_model(quantized)
    values = (*quantized.graph.input, *quantized.graph.output)
    assert [value.type.tensor_type.shape.dim[0].dim_param for value in values] == ["batch", "batch"]
