from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from quantkit.formats import load
from quantkit.runtimes import open_session
from quantkit.zoo.architectures import is_random
from quantkit.zoo.cards import find_card, model_files

ASSETS = Path(__file__).parents[2] / "assets"
MODEL = Path(str(model_files())) / "digits.pb"
Array = npt.NDArray[Any]


def heldout() -> tuple[Array, Array]:
    """Inputs (360, 16, 16, 1) and labels (360,)."""
    with np.load(ASSETS / "digits_heldout.npz") as file:
        return (file["images"].astype(np.float32) - 128) / 128, file["labels"]


def probabilities(inputs: Array, runtime: str) -> Array:
    with open_session(load(MODEL, ["Mul"], ["softmax"]), runtime) as session:
        return np.concatenate([session.run({"Mul": image[None]})["softmax"] for image in inputs])


def test_file_is_small_and_matches_the_card() -> None:
    contents = MODEL.read_bytes()
    (member,) = find_card("digits").members
    assert len(contents) <= 400_000
    assert len(contents) == member.num_bytes
    assert sha256(contents).hexdigest() == member.sha256


def test_graph_has_the_idioms_of_2015() -> None:
    graph = load(MODEL, ["Mul"], ["softmax"])
    counts = graph.op_counts
    assert graph.versions.producer == 8
    assert not is_random(graph)
    for op in ("DecodeJpeg", "ResizeBilinear", "Concat", "AvgPool", "MaxPool", "MatMul", "BiasAdd", "Softmax"):
        assert op in counts
    assert counts["Conv2D"] == counts["BatchNormWithGlobalNormalization"] == counts["Relu"] == 20
    checks = {node.name for node in graph.nodes.values() if node.op == "CheckNumerics"}
    guards = [node for node in graph.nodes.values() if node.controls]
    assert {node.op for node in guards} == {"Identity"}
    assert {name for node in guards for name in node.controls} == checks
    assert len(checks) == counts["Relu"] + counts["MaxPool"]


def test_batch_norms_are_trained() -> None:
    graph = load(MODEL)
    for vector in ("beta", "gamma", "moving_mean", "moving_variance"):
        values = graph[f"mixed_1/conv/batchnorm/{vector}"].value.array
        assert len(np.unique(values)) == values.size
    assert (graph["mixed_1/conv/batchnorm/moving_variance"].value.array > 0).all()


def test_heldout_digits_are_of_every_class() -> None:
    inputs, labels = heldout()
    assert inputs.shape == (360, 16, 16, 1)
    assert np.bincount(labels).tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]


@pytest.mark.engine
def test_heldout_accuracy_matches_the_card() -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    inputs, labels = heldout()
    accuracy = np.mean(probabilities(inputs, "tensorflow").argmax(1) == labels)
    stated = find_card("digits").accuracy
    assert stated is not None
    assert accuracy >= 0.98
    assert accuracy == pytest.approx(stated.top1, abs=1e-4)


def test_reference_reads_every_tenth_heldout_digit() -> None:
    inputs, labels = heldout()
    predicted = probabilities(inputs[::10], "reference").argmax(1)
    assert np.mean(predicted == labels[::10]) >= 0.98


@pytest.mark.engine
def test_graph_decodes_the_images() -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    with open_session(load(MODEL, ["DecodeJpeg/contents"], ["softmax"]), "tensorflow") as session:
        for digit in range(10):
            image = np.array((ASSETS / f"digit_{digit}.png").read_bytes(), object)
            (scores,) = session.run({"DecodeJpeg/contents": image}).values()
            assert scores.shape == (1, 10)
            assert scores.argmax() == digit


def test_images_are_enlarged_held_out_digits() -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install pillow")
    inputs, labels = heldout()
    held_out = {(array.tobytes(), int(label)) for array, label in zip(inputs, labels, strict=True)}
    for digit in range(10):
        with image.open(ASSETS / f"digit_{digit}.png") as file:
            pixels = np.asarray(file)
        assert pixels.shape == (64, 64)
        small = (pixels[::4, ::4, None].astype(np.float32) - 128) / 128
        assert (small.tobytes(), digit) in held_out
