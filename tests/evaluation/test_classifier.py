from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quantkit.data.feeding import Feeding, picture_size
from quantkit.data.labels import Labels, Order
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import GraphError, InputError, UsageError
from quantkit.evaluation.classifier import Classifier, Prediction, Refused
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
    """(n, 2): how dark and how light each picture is."""
    light = batch.mean(axis=(1, 2, 3))
    return np.stack([1 - light, light], axis=1).astype(np.float32)


@pytest.fixture
def greys(tmp_path: Path) -> list[Path]:
    """Pictures of 0 %, 20 %, ... 80 % grey."""
    paths = [tmp_path / f"{level}.png" for level in (0, 51, 102, 153, 204)]
    for path in paths:
        Image.new("L", (9, 7), int(path.stem)).save(path)
    return paths


def predictions(classifier: Classifier, paths: list[Path]) -> list[Prediction]:
    answers = list(classifier.classify(paths))
    assert all(isinstance(answer, Prediction) for answer in answers)
    return [answer for answer in answers if isinstance(answer, Prediction)]


@pytest.mark.parametrize(("shape", "batch_size"), [((None, 4, 4, 1), 1), ((None, 4, 4, 1), 2), ((3, 4, 4, 1), 1)])
def test_every_picture_gets_its_answer_whatever_the_batch(
    greys: list[Path], shape: tuple[int | None, ...], batch_size: int
) -> None:
    sizes = []

    def compute(batch: np.ndarray) -> np.ndarray:
        sizes.append(len(batch))
        return brightness(batch)

    found = predictions(Classifier(session(compute, shape), SMALL, LABELS, batch_size=batch_size), greys)
    assert [one.path for one in found] == greys
    for one, light in zip(found, (0, 0.2, 0.4, 0.6, 0.8), strict=True):
        assert {score.id: score.probability for score in one.scores}[1] == pytest.approx(light, abs=1e-6)
        assert one.are_probabilities
        assert all(stage >= 0 for stage in one.seconds)
    assert set(sizes) == {shape[0]} if shape[0] else max(sizes) == batch_size


def test_best_comes_first_with_words_and_wordnet_id(greys: list[Path]) -> None:
    (found,) = predictions(Classifier(session(brightness), SMALL, LABELS, top=1), greys[-1:])
    ((class_id, words, _, wordnet),) = found.scores
    assert (class_id, words, wordnet) == (1, "light", "n00000001")


def test_equal_scores_keep_the_order_of_their_numbers(greys: list[Path]) -> None:
    flat = session(lambda batch: np.full((len(batch), 4), 0.25, np.float32), output=None)
    (found,) = predictions(Classifier(flat, SMALL, top=9), greys[:1])
    assert [score.id for score in found.scores] == [0, 1, 2, 3]
    assert [score.words for score in found.scores] == ["class 0", "class 1", "class 2", "class 3"]


def test_a_broken_picture_does_not_stop_the_others(greys: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    answers = list(Classifier(session(brightness), SMALL, LABELS, batch_size=4).classify([greys[0], broken, greys[4]]))
    assert [type(answer) for answer in answers] == [Prediction, Refused, Prediction]
    assert [answer.path for answer in answers] == [greys[0], broken, greys[4]]
    assert "no picture" in str(answers[1].error)  # type: ignore[union-attr]


def test_scores_that_do_not_sum_to_one_are_said_to_be_none(greys: list[Path]) -> None:
    logits = session(lambda batch: np.float32([[7.0, -6.0]] * len(batch)))
    (found,) = predictions(Classifier(logits, SMALL, LABELS), greys[:1])
    assert not found.are_probabilities
    assert found.scores[0].probability == 7.0


@pytest.mark.parametrize("shape", [(1, 2), (1, 1, 1, 2), (2,)])
def test_ones_around_the_classes_do_not_matter(greys: list[Path], shape: tuple[int, ...]) -> None:
    one = session(lambda batch: np.float32([0.25, 0.75]).reshape(shape), (1, 4, 4, 1), output=None)
    (found,) = predictions(Classifier(one, SMALL, LABELS), greys[:1])
    assert found.scores[0].words == "light"


def test_nan_is_an_error_and_not_an_answer(greys: list[Path]) -> None:
    with pytest.raises(GraphError, match="gives NaN"):
        list(Classifier(session(lambda batch: np.float32([[np.nan, 1]])), SMALL, LABELS).classify(greys[:1]))


def test_labels_are_checked_before_anything_runs() -> None:
    with pytest.raises(InputError, match=r"gives 3 numbers.*lists 2"):
        Classifier(session(brightness, output=(None, 3)), SMALL, LABELS)


def test_labels_are_checked_at_the_first_run_where_the_shape_is_unknown(greys: list[Path]) -> None:
    classifier = Classifier(session(lambda batch: np.ones((1, 3), np.float32), output=None), SMALL, LABELS)
    with pytest.raises(InputError, match=r"gives 3 numbers.*lists 2"):
        list(classifier.classify(greys[:1]))


def test_the_cards_order_counts() -> None:
    with pytest.raises(InputError, match="every answer would be wrong"):
        Classifier(
            session(brightness),
            SMALL,
            Labels({1: "tench"}, order=Order.SYNSETS, length=2, source="x"),
            order=Order.ILSVRC2012,
        )


@pytest.mark.parametrize(("top", "batch_size"), [(0, 1), (1, 0)])
def test_nothing_to_show_is_refused(top: int, batch_size: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Classifier(session(brightness), SMALL, top=top, batch_size=batch_size)


def test_two_inputs_are_refused() -> None:
    two = session(brightness)
    two.inputs = (*two.inputs, TensorInfo("keep", DType.BOOL, Shape(())))
    with pytest.raises(UsageError, match=r"takes 2 inputs \(input, keep\)"):
        Classifier(two, SMALL)


def test_channels_first(greys: list[Path]) -> None:
    shapes = []

    def compute(batch: np.ndarray) -> np.ndarray:
        shapes.append(batch.shape)
        return brightness(batch)

    predictions(Classifier(session(compute, (1, 3, 4, 5)), Preprocessing(4, 5), LABELS), greys[:1])
    assert shapes == [(1, 3, 4, 5)]


@pytest.mark.parametrize(
    ("dtype", "shape", "fed", "kind"),
    [
        (DType.FLOAT, None, (1, 4, 4, 1), np.float32),
        (DType.HALF, (1, 4, 4, 1), (1, 4, 4, 1), np.float16),
        (DType.UINT8, (1, 4, 4, 1), (1, 4, 4, 1), np.uint8),
        (DType.UINT8, (4, 4, 1), (4, 4, 1), np.uint8),
        (DType.UINT8, (None, None, 1), (7, 9, 1), np.uint8),
        (DType.UINT8, None, (7, 9, 1), np.uint8),
    ],
)
def test_each_input_is_fed_what_it_takes(
    greys: list[Path], dtype: DType, shape: tuple[int | None, ...] | None, fed: tuple[int, ...], kind: type
) -> None:
    seen: list[np.ndarray] = []

    def compute(batch: np.ndarray) -> np.ndarray:
        seen.append(batch)
        return np.float32([[0, 1]])

    classifier = Classifier(session(compute, shape, dtype), SMALL, LABELS)
    predictions(classifier, greys[1:2])
    assert (seen[0].shape, seen[0].dtype) == (fed, kind)
    assert classifier.normalizes == (dtype is not DType.UINT8)
    assert seen[0].flat[0] == pytest.approx(51 if dtype is DType.UINT8 else 0.2, rel=1e-3)


@pytest.mark.parametrize(("shape", "ndim"), [(None, 0), ((), 0), ((None,), 1)])
def test_strings_are_fed_the_jpeg_itself(tmp_path: Path, shape: tuple[int | None, ...] | None, ndim: int) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (8, 8), "red").save(path)
    seen: list[np.ndarray] = []

    def compute(batch: np.ndarray) -> np.ndarray:
        seen.append(batch)
        return np.float32([[0, 1]])

    predictions(Classifier(session(compute, shape, DType.STRING), SMALL, LABELS), [path])
    assert seen[0].ndim == ndim
    assert seen[0].flat[0] == path.read_bytes()


@pytest.mark.parametrize(("dtype", "shape"), [(DType.INT32, (1, 4, 4, 3)), (DType.FLOAT, (1, 10)), (DType.BOOL, ())])
def test_inputs_that_take_no_pictures_are_refused(dtype: DType, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="which is no picture"):
        Feeding.of(TensorInfo("input", dtype, Shape(shape)))


def test_picture_size() -> None:
    assert picture_size(TensorInfo("x", DType.FLOAT, Shape((1, 3, 20, 30)))) == (20, 30, 3)
    assert picture_size(TensorInfo("x", DType.FLOAT, Shape((None, 20, 30, 1)))) == (20, 30, 1)
    assert picture_size(TensorInfo("x", DType.FLOAT, Shape(None))) == (None, None, None)
    assert picture_size(TensorInfo("x", DType.STRING, Shape(()))) == (None, None, None)
