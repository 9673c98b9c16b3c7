from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantkit.data import find_images
from quantkit.data.inputs import ImageInput, image_size
from quantkit.data.labels import Labels, Order
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import GraphError, InputError, UsageError
from quantkit.evaluation.classifier import Classifier, ImagePredictions, RejectedImage
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.session import RuntimeVersion, TensorInfo

SMALL = Preprocessing(4, 4, 1, mean=0.0, std=255.0)
LABELS = Labels({0: "dark", 1: "light"}, {1: "n00000001"}, length=2, source="two.txt")


def session(
    compute: Callable[[np.ndarray], np.ndarray],
    shape: tuple[int | None, ...] | None = (None, 4, 4, 1),
    dtype: DType = DType.FLOAT,
    output: tuple[int | None, ...] | None = (None, 2),
) -> FunctionSession:
    return FunctionSession(
        RuntimeVersion("scripted", "1"),
        (TensorInfo("input", dtype, Shape(shape)),),
        (TensorInfo("softmax", DType.FLOAT, Shape(output)),),
        lambda arrays: [compute(arrays[0])],
    )


def brightness(batch: np.ndarray) -> np.ndarray:
    """Compute darkness and brightness of each image, (n, 2)."""
    light = batch.mean(axis=(1, 2, 3))
    return np.stack([1 - light, light], axis=1).astype(np.float32)


@pytest.fixture
def greys(tmp_path: Path) -> list[Path]:
    """Image files of 0 %, 20 %, ... 80 % grey."""
    paths = [tmp_path / f"{level}.png" for level in (0, 51, 102, 153, 204)]
    for path in paths:
        Image.new("L", (9, 7), int(path.stem)).save(path)
    return paths


def predictions(classifier: Classifier, paths: list[Path]) -> list[ImagePredictions]:
    results = list(classifier.classify(find_images(paths).samples))
    assert all(isinstance(result, ImagePredictions) for result in results)
    return [result for result in results if isinstance(result, ImagePredictions)]


@pytest.mark.parametrize(("shape", "batch_size"), [((None, 4, 4, 1), 1), ((None, 4, 4, 1), 2), ((3, 4, 4, 1), 1)])
def test_each_image_gets_its_predictions_for_each_batch_size(
    greys: list[Path], shape: tuple[int | None, ...], batch_size: int
) -> None:
    sizes = []

    def compute(batch: np.ndarray) -> np.ndarray:
        sizes.append(len(batch))
        return brightness(batch)

    results = predictions(Classifier(session(compute, shape), SMALL, LABELS, batch_size=batch_size), greys)
    assert [result.image for result in results] == list(map(str, greys))
    for result, light in zip(results, (0, 0.2, 0.4, 0.6, 0.8), strict=True):
        assert {prediction.index: prediction.score for prediction in result}[1] == pytest.approx(light, abs=1e-6)
        assert result.are_probabilities
        assert min(result.seconds) > 0
    assert set(sizes) == {shape[0]} if shape[0] else max(sizes) == batch_size


def test_best_class_comes_first_with_label_and_wordnet_id(greys: list[Path]) -> None:
    (result,) = predictions(Classifier(session(brightness), SMALL, LABELS, top=1), greys[-1:])
    (best,) = result
    assert (best.index, best.label, best.wordnet) == (1, "light", "n00000001")
    assert str(result) in result._repr_html_()


def test_equal_scores_are_in_the_order_of_their_indices(greys: list[Path]) -> None:
    flat = session(lambda batch: np.full((len(batch), 4), 0.25, np.float32), output=None)
    (result,) = predictions(Classifier(flat, SMALL, top=9), greys[:1])
    assert [prediction.index for prediction in result] == [0, 1, 2, 3]
    assert [prediction.label for prediction in result] == ["class 0", "class 1", "class 2", "class 3"]


def test_broken_image_does_not_stop_the_others(greys: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    paths = [greys[0], broken, greys[4]]
    results = list(Classifier(session(brightness), SMALL, LABELS, batch_size=4).classify(find_images(paths).samples))
    assert [type(result) for result in results] == [ImagePredictions, RejectedImage, ImagePredictions]
    assert [result.image for result in results] == list(map(str, paths))
    assert "broken.png" in str(results[1].error)  # type: ignore[union-attr]


def test_scores_that_do_not_sum_to_one_are_not_probabilities(greys: list[Path]) -> None:
    logits = session(lambda batch: np.array([[7.0, -6.0]] * len(batch), np.float32))
    (result,) = predictions(Classifier(logits, SMALL, LABELS), greys[:1])
    assert not result.are_probabilities
    assert result[0].score == 7.0


@pytest.mark.parametrize("shape", [(1, 2), (1, 1, 1, 2), (2,)])
def test_dimensions_of_one_around_the_classes_are_ignored(greys: list[Path], shape: tuple[int, ...]) -> None:
    scores = session(lambda batch: np.array([0.25, 0.75], np.float32).reshape(shape), (1, 4, 4, 1), output=None)
    (result,) = predictions(Classifier(scores, SMALL, LABELS), greys[:1])
    assert result[0].label == "light"


def test_nan_is_an_error(greys: list[Path]) -> None:
    with pytest.raises(GraphError, match="is NaN"):
        list(
            Classifier(session(lambda batch: np.array([[np.nan, 1]], np.float32)), SMALL, LABELS).classify(
                find_images(greys[:1]).samples
            )
        )


def test_labels_are_checked_before_anything_runs() -> None:
    with pytest.raises(InputError, match=r"has 3 class scores.*has 2"):
        Classifier(session(brightness, output=(None, 3)), SMALL, LABELS)


def test_labels_are_checked_at_the_first_run_where_the_shape_is_unknown(greys: list[Path]) -> None:
    classifier = Classifier(session(lambda batch: np.ones((1, 3), np.float32), output=None), SMALL, LABELS)
    with pytest.raises(InputError, match=r"has 3 class scores.*has 2"):
        list(classifier.classify(find_images(greys[:1]).samples))


def test_the_cards_order_counts() -> None:
    with pytest.raises(InputError, match="every prediction would be wrong"):
        Classifier(
            session(brightness),
            SMALL,
            Labels({1: "tench"}, order=Order.SYNSETS, length=2, source="x"),
            order=Order.ILSVRC2012,
        )


@pytest.mark.parametrize(("top", "batch_size"), [(0, 1), (1, 0)])
def test_top_and_batch_size_are_at_least_one(top: int, batch_size: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Classifier(session(brightness), SMALL, top=top, batch_size=batch_size)


def test_two_inputs_are_rejected() -> None:
    two = session(brightness)
    two.inputs = (*two.inputs, TensorInfo("keep", DType.BOOL, Shape(())))
    with pytest.raises(UsageError, match=r"has 2 inputs \(input, keep\)"):
        Classifier(two, SMALL)


def test_channels_first(greys: list[Path]) -> None:
    shapes = []

    def compute(batch: np.ndarray) -> np.ndarray:
        shapes.append(batch.shape)
        return brightness(batch)

    predictions(Classifier(session(compute, (1, 3, 4, 5)), Preprocessing(4, 5), LABELS), greys[:1])
    assert shapes == [(1, 3, 4, 5)]


@pytest.mark.parametrize(
    ("dtype", "shape", "feed_shape", "kind"),
    [
        (DType.FLOAT, None, (1, 4, 4, 1), np.float32),
        (DType.HALF, (1, 4, 4, 1), (1, 4, 4, 1), np.float16),
        (DType.UINT8, (1, 4, 4, 1), (1, 4, 4, 1), np.uint8),
        (DType.UINT8, (4, 4, 1), (4, 4, 1), np.uint8),
        (DType.UINT8, (None, None, 1), (7, 9, 1), np.uint8),
        (DType.UINT8, None, (7, 9, 1), np.uint8),
    ],
)
def test_image_is_prepared_for_the_input(
    greys: list[Path], dtype: DType, shape: tuple[int | None, ...] | None, feed_shape: tuple[int, ...], kind: type
) -> None:
    batches: list[np.ndarray] = []

    def compute(batch: np.ndarray) -> np.ndarray:
        batches.append(batch)
        return np.array([[0, 1]], np.float32)

    classifier = Classifier(session(compute, shape, dtype), SMALL, LABELS)
    predictions(classifier, greys[1:2])
    assert batches[0].shape == feed_shape
    assert batches[0].dtype == kind
    assert classifier.normalizes == (dtype is not DType.UINT8)
    assert batches[0].flat[0] == pytest.approx(51 if dtype is DType.UINT8 else 0.2, rel=1e-3)


@pytest.mark.parametrize(("shape", "ndim"), [(None, 0), ((), 0), ((None,), 1)])
def test_string_input_takes_the_encoded_jpeg(tmp_path: Path, shape: tuple[int | None, ...] | None, ndim: int) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (8, 8), "red").save(path)
    batches: list[np.ndarray] = []

    def compute(batch: np.ndarray) -> np.ndarray:
        batches.append(batch)
        return np.array([[0, 1]], np.float32)

    predictions(Classifier(session(compute, shape, DType.STRING), SMALL, LABELS), [path])
    assert batches[0].ndim == ndim
    assert batches[0].flat[0] == path.read_bytes()


@pytest.mark.parametrize(("dtype", "shape"), [(DType.INT32, (1, 4, 4, 3)), (DType.FLOAT, (1, 10)), (DType.BOOL, ())])
def test_inputs_of_other_types_are_rejected(dtype: DType, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="which is not an image"):
        ImageInput.of(TensorInfo("input", dtype, Shape(shape)))


def test_size_of_an_image_input() -> None:
    assert image_size(TensorInfo("x", DType.FLOAT, Shape((1, 3, 20, 30)))) == (20, 30, 3)
    assert image_size(TensorInfo("x", DType.FLOAT, Shape((None, 20, 30, 1)))) == (20, 30, 1)
    assert image_size(TensorInfo("x", DType.FLOAT, Shape(None))) == (None, None, None)
    assert image_size(TensorInfo("x", DType.STRING, Shape(()))) == (None, None, None)
