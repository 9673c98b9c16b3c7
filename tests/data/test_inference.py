"""Inference of preprocessing, labels and the known model that a model comes from."""

from pathlib import Path

import pytest

from quantkit.data.inference import PreprocessingOptions, find_model_labels, find_origin, infer_preprocessing
from quantkit.data.labels import LABEL_MAP_FILE, NAMES_FILE, Order
from quantkit.data.options import InputImageOptions
from quantkit.errors import UsageError
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo.cards import find_card, list_cards

RELEASE, SLIM, DIGITS = (find_card(name) for name in ("inception_v3", "inception_v3_2016", "digits"))


UNKNOWN_SIZE = TensorInfo("x", DType.FLOAT, Shape(None))


def tensor(name: str, *shape: int | None, dtype: DType = DType.FLOAT) -> TensorInfo:
    return TensorInfo(name, dtype, Shape(shape))


@pytest.mark.parametrize(
    ("source", "result", "name"),
    [
        (tensor("Mul", 1, 299, 299, 3), tensor("softmax", None, 1008), "inception_v3"),
        (TensorInfo("Mul", DType.FLOAT, Shape(None)), tensor("softmax", None, 1008), "inception_v3"),
        (tensor("Mul:0", 1, 299, 299, 3), tensor("softmax:0", 1, 1008), "inception_v3"),
        (tensor("DecodeJpeg/contents", dtype=DType.STRING), tensor("softmax", None, 1008), "inception_v3"),
        (tensor("Mul", 1, 16, 16, 1), tensor("softmax", None, 10), "digits"),
        (tensor("input", 1, 299, 299, 3), tensor("InceptionV3/Predictions/Reshape_1", 1, 1001), "inception_v3_2016"),
        (tensor("Mul", 1, 299, 299, 3), tensor("softmax", None, 5), None),
        (tensor("images", 1, 299, 299, 3), tensor("softmax", None, 1008), None),
        (TensorInfo("Mul", DType.FLOAT, Shape(None)), TensorInfo("softmax", DType.FLOAT, Shape(None)), None),
    ],
)
def test_a_model_is_recognized_by_its_endpoints(source: TensorInfo, result: TensorInfo, name: str | None) -> None:
    card = find_origin(source, result, list_cards())
    assert (card.name if card else None) == name


def test_preprocessing_of_a_card() -> None:
    result = infer_preprocessing(TensorInfo("Mul", DType.FLOAT, Shape(None)), RELEASE)
    assert (
        result.height,
        result.width,
        result.channels,
        result.mean,
        result.std,
        result.crop,
    ) == (299, 299, 3, 128, 128, "none")


def test_the_shape_of_the_input_overrides_the_card() -> None:
    result = infer_preprocessing(tensor("input", None, 128, 160, 3), SLIM)
    assert (result.height, result.width, result.mean) == (128, 160, 127.5)


def test_options_override_the_card_and_its_crop() -> None:
    result = infer_preprocessing(
        TensorInfo("x", DType.FLOAT, Shape(None)), SLIM, PreprocessingOptions(100, 200, 0.0, 255.0)
    )
    assert (result.height, result.width, result.mean, result.std, result.crop) == (
        100,
        200,
        0,
        255,
        "none",
    )
    assert infer_preprocessing(tensor("input", 1, 299, 299, 3), SLIM).crop == "central"


def test_mean_and_deviation_of_images_from_0_to_1_are_rejected() -> None:
    with pytest.raises(UsageError, match="pixels are 0 to 255") as caught:
        InputImageOptions(input_mean=(0.485, 0.456, 0.406), input_std=[0.229, 0.224, 0.225])
    assert caught.value.hint.endswith("--input-mean 123.675,116.28,103.53 --input-std 58.395,57.12,57.375")
    for mean, std in ((0, 0.5), (0.5, 1), (127.5, 0.5), (None, 0.5)):
        assert InputImageOptions(input_mean=mean, input_std=std).preprocessing.std == std


def test_an_option_against_the_shape_is_rejected() -> None:
    with pytest.raises(UsageError, match="--input-width is 224, and input 'Mul' has the width 299"):
        infer_preprocessing(tensor("Mul", 1, 299, 299, 3), RELEASE, PreprocessingOptions(width=224))


def test_labels_of_a_card_with_names() -> None:
    labels = find_model_labels(DIGITS, None, 10)
    assert [labels.name(index) for index in range(10)] == list("0123456789")
    assert labels.order is Order.OWN
    labels.check(10)


@pytest.mark.parametrize("card", [RELEASE, None])
def test_label_files_in_the_folder_of_the_graph_are_found(tmp_path: Path, card: object) -> None:
    (tmp_path / LABEL_MAP_FILE).write_text('entry { target_class: 169 target_class_string: "n02510455" }')
    (tmp_path / NAMES_FILE).write_text("n02510455\tgiant panda\n")
    labels = find_model_labels(card, tmp_path / "graph.pb", 1008)  # type: ignore[arg-type]
    assert labels.name(169) == "giant panda"


def test_labels_are_empty_without_label_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    for card in (RELEASE, SLIM, None):
        assert not find_model_labels(card, tmp_path / "graph.pb", 1008).are_known
        assert not find_model_labels(card, None, None).are_known
