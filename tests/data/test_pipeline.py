"""The input pipeline: images are preprocessed, arrays are fed unchanged."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.data import Dataset, FileDataset, InputPipeline, PreprocessingOptions, as_dataset, batches
from quantkit.errors import InputError, UsageError
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo.cards import find_card

IMAGES = TensorInfo("image", DType.FLOAT, Shape((None, 4, 4, 3)))
VECTORS = TensorInfo("vector", DType.FLOAT, Shape((None, 6)))
SEQUENCES = TensorInfo("steps", DType.FLOAT, Shape((None, 20, 3)))
TOKENS = TensorInfo("tokens", DType.INT32, Shape((None, 5)))
ASSETS = Path(__file__).parents[2] / "assets"


def feeds(inputs: list[TensorInfo], dataset: Dataset) -> list[dict[str, Array]]:
    return [batch.feeds for batch in batches(dataset, InputPipeline.of(inputs, dataset))]


@pytest.mark.parametrize("info", [VECTORS, SEQUENCES, TOKENS], ids=lambda info: str(info.name))
def test_arrays_are_fed_unchanged(info: TensorInfo) -> None:
    sizes = [size or 3 for size in info.shape.dims or ()]
    rows = np.arange(np.prod(sizes)).reshape(sizes).astype(np.float64 if info.dtype.is_float else np.int64)
    result = feeds([info], as_dataset(rows))
    np.testing.assert_array_equal(np.concatenate([batch[info.name] for batch in result]), rows)
    assert {batch[info.name].dtype for batch in result} == {np.dtype(info.dtype.numpy)}


def test_uint8_images_are_normalized_and_float_images_are_not() -> None:
    pixels = np.full((1, 4, 4, 3), 192, np.uint8)
    assert feeds([IMAGES], as_dataset(pixels))[0]["image"].max() == 0.5
    assert feeds([IMAGES], as_dataset(pixels.astype(np.float32)))[0]["image"].max() == 192


@pytest.mark.parametrize(
    ("data", "flags", "is_assumed"),
    [
        (FileDataset("folder", ()), PreprocessingOptions(), True),
        (FileDataset("folder", ()), PreprocessingOptions(mean=0.0), False),
        (as_dataset(np.zeros((1, 4, 4, 3), np.uint8)), PreprocessingOptions(), True),
        (as_dataset(np.zeros((1, 4, 4, 3), np.float32)), PreprocessingOptions(), False),
    ],
)
def test_unknown_normalization_is_assumed(data: Dataset, flags: PreprocessingOptions, is_assumed: bool) -> None:
    assert InputPipeline.of([IMAGES], data, None, flags).is_assumed is is_assumed
    assert not InputPipeline.of([IMAGES], data, find_card("inception_v3"), flags).is_assumed


def test_each_of_several_inputs_takes_the_array_of_its_name() -> None:
    data = as_dataset({"vector": np.ones((2, 6)), "image": np.zeros((2, 48)), "spare": np.zeros(2)})
    for result in feeds([IMAGES, VECTORS], data):
        assert {name: array.shape for name, array in result.items()} == {"image": (1, 4, 4, 3), "vector": (1, 6)}


def test_a_fixed_batch_is_filled_up() -> None:
    info = TensorInfo("vector", DType.FLOAT, Shape((4, 6)))
    pipeline = InputPipeline.of([info], as_dataset(np.ones((2, 6))), None)
    assert pipeline.batch_size == 4
    assert pipeline.stack([{"vector": np.ones(6)}])["vector"].shape == (4, 6)


@pytest.mark.parametrize(
    ("infos", "arrays", "message"),
    [
        ([TOKENS], {"": np.ones((2, 5))}, "arrays: input 'tokens' takes int32, not float64"),
        ([VECTORS], {"a": np.ones((2, 6)), "b": np.ones(2)}, r"holds 2 arrays \(a, b\), and none for .*'vector'"),
        ([IMAGES, VECTORS], {"vector": np.ones((2, 6))}, "holds one array .* and none for the input 'image'"),
        ([VECTORS, VECTORS], {}, "has 2 inputs .* images fill only one"),
        ([VECTORS], {}, "which is not an image"),
    ],
)
def test_data_that_fits_no_input_is_rejected(infos: list[TensorInfo], arrays: dict[str, Array], message: str) -> None:
    data = as_dataset(arrays) if arrays else FileDataset("folder", ())
    with pytest.raises(UsageError, match=message) as caught:
        feeds(infos, data)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("info", "array", "message"),
    [
        (VECTORS, np.ones((2, 7)), r"takes float of shape \?x6, and the samples have the shape 7"),
        (VECTORS, np.ones(2), r"the samples have the shape \(\)"),
        (VECTORS, np.ones((2, 6), complex), "takes float, not complex128"),
        (VECTORS, np.full((2, 6), "text"), "takes float, not <U4"),
        (IMAGES, np.ones((2, 7)), r"takes float of shape \?x4x4x3, and the samples have the shape 7"),
        (IMAGES, np.ones((2, 5, 4, 3)), "the samples have the shape 5x4x3"),
        (IMAGES, np.ones((2, 4, 4, 3), complex), "takes float, not complex128"),
        (IMAGES, np.full((2, 4, 4, 3), b"text"), "takes float, not .S4"),
        (IMAGES, np.ones((2, 8), np.uint8), "the samples have the shape 8"),
        (IMAGES, np.ones((2, 0, 8, 3), np.uint8), "the samples have the shape 0x8x3"),
        (IMAGES, np.ones((2, 8, 8, 5), np.uint8), "the samples have the shape 8x8x5"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_arrays_of_another_shape_or_type_are_rejected(
    info: TensorInfo, array: Array, message: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(InputError, match=rf"a\.npy: input .*{message}") as caught:
        feeds([info], as_dataset(tmp_path / "a.npy"))
    assert caught.value.hint


def test_hint_for_samples_of_another_length_names_the_length() -> None:
    pipeline = InputPipeline.of([VECTORS], as_dataset(np.ones((2, 7), np.float32)))
    with pytest.raises(InputError) as caught:
        pipeline.prepare_arrays({"": np.ones(7, np.float32)})
    assert caught.value.hint == "pass samples of shape 6, or export the model with dynamic sizes"


@pytest.mark.parametrize("count", [1, 3])
def test_streams_of_images_are_preprocessed_like_arrays(count: int) -> None:
    """Elements of a stream are batches, or images with one dimension less than the input."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    expected = np.concatenate([batch["image"] for batch in feeds([IMAGES], as_dataset(pixels, keep_order=True))])
    elements = list(pixels) if count == 1 else [pixels]
    result = feeds([IMAGES], as_dataset(elements))
    np.testing.assert_array_equal(np.concatenate([batch["image"] for batch in result]), expected)
    assert expected.shape == (3, 4, 4, 3)


def test_batches_have_the_size_of_the_model_or_of_the_caller() -> None:
    dataset = as_dataset(np.ones((5, 6)))
    pipeline = InputPipeline.of([VECTORS], dataset)
    sizes = [(len(batch.samples), len(batch.feeds["vector"])) for batch in batches(dataset, pipeline, size=2)]
    assert sizes == [(2, 2), (2, 2), (1, 1)]
    fixed = InputPipeline.of([TensorInfo("vector", DType.FLOAT, Shape((3, 6)))], dataset)
    assert [(len(batch.samples), len(batch.feeds["vector"])) for batch in batches(dataset, fixed)] == [(3, 3), (2, 3)]


def test_an_image_that_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not an image")
    (tmp_path / "good.png").write_bytes((ASSETS / "digit_3.png").read_bytes())
    dataset = as_dataset(tmp_path)
    pipeline, rejected = InputPipeline.of([IMAGES], dataset), dict[str, str]()
    (batch,) = batches(dataset, pipeline, size=8, rejected=rejected)
    assert [sample.name for sample in batch.samples] == ["good.png"]
    assert batch.feeds["image"].shape == (1, 4, 4, 3)
    assert list(rejected) == [str(tmp_path / "broken.png")]
    with pytest.raises(InputError, match="broken"):
        list(batches(dataset, pipeline))


STATEFUL = [
    TensorInfo("frame", DType.FLOAT, Shape((None, 6))),
    TensorInfo("state", DType.FLOAT, Shape((2, None, 3))),
    TensorInfo("rate", DType.INT64, Shape(())),
]


@pytest.mark.parametrize("is_list", [False, True], ids=["arrays", "list of feeds"])
def test_inputs_without_a_batch_axis_get_whole_arrays(is_list: bool) -> None:
    """States and single numbers have no batch: one sample is a value for every input."""
    generator = np.random.default_rng(0)
    arrays = {
        "rate": np.array([8000, 16000]),
        "frame": generator.normal(size=(2, 1, 6)).astype(np.float32),
        "state": generator.normal(size=(2, 2, 1, 3)).astype(np.float32),
    }
    samples = [{name: array[row] for name, array in arrays.items()} for row in range(2)]
    result = feeds(STATEFUL, as_dataset(samples if is_list else arrays))
    assert len(result) == 2
    for batch in result:
        row = int(batch["rate"] == 16000)
        for name, array in arrays.items():
            np.testing.assert_array_equal(batch[name], array[row])
