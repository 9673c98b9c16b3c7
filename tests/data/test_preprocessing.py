import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.data.preprocessing import (
    Preprocessing,
    crop_central,
    crop_square,
    normalize,
    prepare,
    resize,
    resize_bilinear,
)
from quantkit.errors import UsageError

SHAPES = [(100, 100, 3), (480, 640, 3), (299, 299, 3), (31, 57, 1), (7, 500, 3), (1, 1, 3)]

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed: pip install tensorflow"
)


def pixels(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8)


def test_resize_of_a_small_picture_is_what_tensorflow_gives() -> None:
    picture = np.float32([[0, 30], [60, 90]])[:, :, None]
    # Written down from tf.compat.v1.image.resize_bilinear(picture, (3, 3)).
    expected = [[0, 20, 30], [40, 60, 70], [60, 80, 90]]
    np.testing.assert_allclose(resize_bilinear(picture, 3, 3)[..., 0], expected, rtol=1e-6)


def test_halved_pixel_centres_give_other_numbers() -> None:
    row = np.float32([0, 8])[None, :, None]
    assert resize_bilinear(row, 1, 4)[0, :, 0].tolist() == [0, 4, 8, 8]
    assert resize_bilinear(row, 1, 4, half_pixel_centers=True)[0, :, 0].tolist() == [0, 2, 6, 8]


@pytest.mark.engine
@needs_tensorflow
@pytest.mark.parametrize("half_pixel_centers", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_resize_has_the_bits_of_tensorflows(shape: tuple[int, ...], half_pixel_centers: bool) -> None:
    import tensorflow as tf

    picture = pixels(shape)
    theirs = tf.raw_ops.ResizeBilinear(
        images=picture[None], size=[299, 299], align_corners=False, half_pixel_centers=half_pixel_centers
    )
    ours = resize_bilinear(picture, 299, 299, half_pixel_centers=half_pixel_centers)
    np.testing.assert_array_equal(ours, theirs.numpy()[0])


@pytest.mark.engine
@needs_tensorflow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_central_crop_is_tensorflows(shape: tuple[int, ...]) -> None:
    import tensorflow as tf

    np.testing.assert_array_equal(crop_central(pixels(shape), 0.875), tf.image.central_crop(pixels(shape), 0.875))


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    wanted=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    half_pixel_centers=st.booleans(),
)
def test_resize_stays_between_the_extremes(
    height: int, width: int, wanted: tuple[int, int], half_pixel_centers: bool
) -> None:
    picture = pixels((height, width, 3))
    resized = resize_bilinear(picture, *wanted, half_pixel_centers=half_pixel_centers)
    assert resized.shape == (*wanted, 3)
    assert resized.dtype == np.float32
    assert picture.min() - 1e-3 <= resized.min()
    assert resized.max() <= picture.max() + 1e-3


def test_resize_to_the_same_size_changes_nothing() -> None:
    picture = pixels((13, 17, 3))
    np.testing.assert_array_equal(resize_bilinear(picture, 13, 17), picture)


def test_crop_square_takes_the_middle() -> None:
    picture = np.arange(12).reshape(2, 6, 1)
    np.testing.assert_array_equal(crop_square(picture)[..., 0], [[2, 3], [8, 9]])


def test_normalize_by_channel() -> None:
    values = normalize(np.uint8([[[10, 20, 30]]]), (10.0, 10.0, 10.0), (1.0, 2.0, 4.0))
    np.testing.assert_array_equal(values, np.float32([[[0, 5, 5]]]))


def test_prepare_crops_resizes_and_normalises() -> None:
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 20:60] = 255
    prepared = prepare(picture, Preprocessing(8, 8, mean=127.5, std=127.5, crop="square"))
    assert prepared.shape == (8, 8, 3)
    np.testing.assert_array_equal(prepared, np.ones((8, 8, 3), np.float32))


def test_crop_changes_what_is_seen() -> None:
    picture = pixels((64, 64, 3))
    whole, middle = (resize(picture, Preprocessing(8, 8, crop=crop)) for crop in ("none", "central"))
    assert not np.array_equal(whole, middle)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"height": 0}, "0 x 299"),
        ({"channels": 4}, "4 input channels"),
        ({"std": 0.0}, "deviation of 0"),
        ({"mean": (1.0, 2.0)}, "2 numbers for 3 channels"),
        ({"resize": "bicubic"}, "bicubic"),
        ({"crop": "left"}, "left"),
    ],
)
def test_impossible_preprocessing_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Preprocessing(**fields)  # type: ignore[arg-type]
