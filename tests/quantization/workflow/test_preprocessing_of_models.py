"""Preprocessing of images is never assumed silently: scaling layers are found, and every result states it."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from command_line import main
from PIL import Image

import quantkit as qk
from quantkit.data.preprocessing import Origin, Preprocessing
from quantkit.errors import CheckError
from quantkit.ir.graph import Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization import Ranges

SIZE, NUM_CLASSES, NUM_IMAGES, NOISE = 12, 10, 60, 40
RANDOM = np.random.default_rng(0)
PROTOTYPES = RANDOM.integers(40, 216, (NUM_CLASSES, SIZE, SIZE, 3))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder per class with noisy copies of its prototype."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(1)
    for number in range(NUM_IMAGES):
        index = number % NUM_CLASSES
        pixels = np.clip(PROTOTYPES[index] + random.normal(0, NOISE, PROTOTYPES[0].shape), 0, 255)
        path = folder / str(index) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def nearest_prototype(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and bias of a dense layer whose largest output is the nearest prototype.

    Args:
        scale: factor of pixels before the layer.
    """
    weights = scale * PROTOTYPES.reshape(NUM_CLASSES, -1).T.astype(np.float32)
    return 2 * weights, -np.square(weights).sum(0)


def classifier(*, scale: float = 1 / 255, scales_itself: bool = True) -> Graph:
    """Return a graph that classifies pixels of 0 to 255, which it scales itself if it should."""
    weights, bias = nearest_prototype(scale)
    size = SIZE * SIZE * 3
    scaling = (constant("factor", np.float32(scale)), Node("scaled", "Mul", ("x", "factor")))
    nodes = (
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, SIZE, SIZE, 3))}),
        *(scaling if scales_itself else ()),
        constant("shape", np.array([-1, size], np.int32)),
        Node("flat", "Reshape", ("scaled" if scales_itself else "x", "shape")),
        constant("weights", weights),
        Node("product", "MatMul", ("flat", "weights")),
        constant("bias", bias),
        Node("logits", "BiasAdd", ("product", "bias")),
        Node("scores", "Softmax", ("logits",)),
    )
    return Graph.of(nodes, ["x"], ["scores"])


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_keras_network_with_its_own_rescaling_stays_accurate(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    keras = import_module("keras")
    model = keras.Sequential(
        [
            keras.layers.Input((SIZE, SIZE, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(NUM_CLASSES, activation="softmax"),
        ]
    )
    model.layers[-1].set_weights(nearest_prototype(1 / 255))
    model.save(tmp_path / "r.keras")
    result = qk.quantize(
        tmp_path / "r.keras",
        images,
        runs=0,
        output=tmp_path / "r.onnx",
        save_ranges=tmp_path / "r.json",
    )
    accuracy = result.report.accuracy
    assert accuracy.float_top1 is not None
    assert accuracy.float_top1.value >= 0.96
    assert not accuracy.doubts
    assert isinstance(result.preprocessing, Preprocessing)
    assert (result.preprocessing.mean, result.preprocessing.std, result.preprocessing.origin) == (0, 1, Origin.GRAPH)
    assert "preprocessing: 12 x 12 x 3, (x - 0) / 1, from the scaling in the graph" in str(result)
    # The deployed file alone: its own scaling states how images are fed.
    deployed = qk.evaluate(tmp_path / "r.onnx", images)
    assert deployed.metrics.top1 is not None
    assert deployed.metrics.top1.value >= 0.96
    assert Ranges.load(tmp_path / "r.json").provenance.preprocessing == result.preprocessing


@pytest.mark.engine
@pytest.mark.parametrize("flags", [["-q"], ["--json"], ["-q", "--json"]])
def test_an_assumed_preprocessing_is_stated_in_every_form(
    flags: list[str], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.pb"
    qk.load(classifier(scales_itself=False)).save(model)
    command = ["quantize", str(model), "-o", str(tmp_path / "m.onnx"), "--calibration", str(images), "--runs", "0"]
    assert main([*command, "--save-ranges", str(tmp_path / "r.json"), *flags]) == 0
    captured = capsys.readouterr()
    assert ("(x - 128) / 128 is assumed" in captured.err) == ("-q" not in flags)
    if "--json" in flags:
        document = json.loads(captured.out)
        assert document["preprocessing"]["origin"] == "assumed"
        assert document["preprocessing"]["mean"] == 128
    else:
        assert "(x - 128) / 128, assumed" in captured.out
    ranges = json.loads((tmp_path / "r.json").read_text())
    assert ranges["schema"] == "quantkit.ranges/3"
    assert ranges["provenance"]["preprocessing"]["origin"] == "assumed"


@pytest.mark.engine
def test_values_far_from_the_expected_range_make_the_agreement_meaningless(images: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    result = qk.quantize(
        classifier(), images, runs=0, input_mean=128.0, input_std=128.0 * 100, on_message=messages.append
    )
    doubts = " ".join(result.report.accuracy.doubts)
    assert "the values of input 'x' are from -0.01 to 0.00992" in doubts
    assert "the graph expects values from 0 to 255: 'scaled' (Mul) scales them" in doubts
    assert "the outputs of the float model barely vary over the 60 calibration images" in doubts
    assert "the float model itself is at chance on these labels" in doubts
    assert "(meaningless: see the warnings)" in str(result)
    # A reader of messages and report sees each reason once.
    everything = "\n".join((*messages, str(result)))
    assert [everything.count(doubt) for doubt in result.report.accuracy.doubts] == [1, 1, 1]
    assert result.to_json()["doubts"] == list(result.report.accuracy.doubts)
    assert result.report.next_step is not None
    assert result.report.next_step.reason == "check the float model first"


@pytest.mark.engine
def test_the_ranges_file_states_the_preprocessing_of_the_images(images: Path, tmp_path: Path) -> None:
    graph = classifier(scales_itself=False)
    first = qk.quantize(
        graph, images, runs=0, input_mean=[0, 0, 0], input_std=[255.0] * 3, save_ranges=tmp_path / "r.json"
    )
    assert first.report.accuracy.float_top1 is not None
    assert first.report.accuracy.float_top1.value >= 0.96
    # The ranges file, not the default, determines how the held-out images are prepared.
    second = qk.quantize(graph, ranges=tmp_path / "r.json", held_out=images, runs=0)
    assert second.preprocessing == first.preprocessing
    assert second.report.accuracy.float_top1 == first.report.accuracy.float_top1
    other = qk.quantize(graph, ranges=tmp_path / "r.json", held_out=images, runs=0, input_mean=128, input_std=128)
    assert any("the ranges were calibrated on images prepared as" in doubt for doubt in other.report.accuracy.doubts)


def test_ranges_without_preprocessing_are_read_as_unknown(tmp_path: Path) -> None:
    document = Ranges({}).to_json() | {"schema": "quantkit.ranges/2"}
    del document["provenance"]["preprocessing"]
    assert Ranges.from_json(document).provenance.preprocessing == "unknown"


@pytest.mark.engine
def test_the_mean_and_the_deviation_may_be_given_per_channel(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.pb"
    qk.load(classifier(scales_itself=False)).save(model)
    flags = ["--input-mean", "0,0,0", "--input-std", "255,255,255"]
    assert main(["evaluate", str(model), "--data", str(images), *flags, "--min-top1", "0.96"]) == 0
    assert main(["compare", str(model), str(model), "--data", str(images), *flags]) == 0
    assert main(["classify", str(images / "3"), "--model", str(model), *flags, "--json"]) == 0
    document = json.loads(capsys.readouterr().out.split("\n{\n", 1)[-1].join(["{", ""]))
    assert document["preprocessing"]["std"] == [255, 255, 255]
    assert main(["evaluate", str(model), "--data", str(images), "--input-mean", "1,2", "--input-std", "255"]) == 2
    assert "mean has 2 values for 3 channels" in capsys.readouterr().err
    assert main(["evaluate", str(model), "--data", str(images), "--input-std", "1,0,2"]) == 2


@pytest.mark.engine
def test_a_drop_of_outputs_that_barely_vary_is_not_searched(images: Path) -> None:
    with pytest.raises(CheckError, match="barely varies"):
        qk.quantize(classifier(), images, runs=0, max_drop=0.1, limit=30, input_mean=128.0, input_std=12800.0)
