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


def test_resize_of_a_small_image_equals_tensorflow() -> None:
    image = np.array([[0, 30], [60, 90]], np.float32)[:, :, None]
    # Written down from tf.compat.v1.image.resize_bilinear(image, (3, 3)).
    expected = [[0, 20, 30], [40, 60, 70], [60, 80, 90]]
    np.testing.assert_allclose(resize_bilinear(image, 3, 3)[..., 0], expected, rtol=1e-6)


def test_half_pixel_centers_change_the_result() -> None:
    row = np.array([0, 8], np.float32)[None, :, None]
    assert resize_bilinear(row, 1, 4)[0, :, 0].tolist() == [0, 4, 8, 8]
    assert resize_bilinear(row, 1, 4, half_pixel_centers=True)[0, :, 0].tolist() == [0, 2, 6, 8]


@pytest.mark.engine
@needs_tensorflow
@pytest.mark.parametrize("half_pixel_centers", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_resize_equals_tensorflow_bitwise(shape: tuple[int, ...], half_pixel_centers: bool) -> None:
    import tensorflow as tf

    image = pixels(shape)
    expected = tf.raw_ops.ResizeBilinear(
        images=image[None], size=[299, 299], align_corners=False, half_pixel_centers=half_pixel_centers
    )
    ours = resize_bilinear(image, 299, 299, half_pixel_centers=half_pixel_centers)
    np.testing.assert_array_equal(ours, expected.numpy()[0])


@pytest.mark.engine
@needs_tensorflow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_central_crop_equals_tensorflow(shape: tuple[int, ...]) -> None:
    import tensorflow as tf

    np.testing.assert_array_equal(crop_central(pixels(shape), 0.875), tf.image.central_crop(pixels(shape), 0.875))


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    expected=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    half_pixel_centers=st.booleans(),
)
def test_resize_stays_between_the_extremes(
    height: int, width: int, expected: tuple[int, int], half_pixel_centers: bool
) -> None:
    image = pixels((height, width, 3))
    resized = resize_bilinear(image, *expected, half_pixel_centers=half_pixel_centers)
    assert resized.shape == (*expected, 3)
    assert resized.dtype == np.float32
    assert image.min() - 1e-3 <= resized.min()
    assert resized.max() <= image.max() + 1e-3


def test_resize_to_the_same_size_changes_nothing() -> None:
    image = pixels((13, 17, 3))
    np.testing.assert_array_equal(resize_bilinear(image, 13, 17), image)


def test_crop_square_keeps_the_center() -> None:
    image = np.arange(12).reshape(2, 6, 1)
    np.testing.assert_array_equal(crop_square(image)[..., 0], [[2, 3], [8, 9]])


def test_normalize_by_channel() -> None:
    values = normalize(np.array([[[10, 20, 30]]], np.uint8), (10.0, 10.0, 10.0), (1.0, 2.0, 4.0))
    np.testing.assert_array_equal(values, np.array([[[0, 5, 5]]], np.float32))


def test_prepare_crops_resizes_and_normalises() -> None:
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 20:60] = 255
    prepared = prepare(image, Preprocessing(8, 8, mean=127.5, std=127.5, crop="square"))
    assert prepared.shape == (8, 8, 3)
    np.testing.assert_array_equal(prepared, np.ones((8, 8, 3), np.float32))


def test_crop_changes_the_visible_part() -> None:
    image = pixels((64, 64, 3))
    whole, middle = (resize(image, Preprocessing(8, 8, crop=crop)) for crop in ("none", "central"))
    assert not np.array_equal(whole, middle)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"height": 0}, "0 x 299"),
        ({"channels": 4}, "an input with 4 channels"),
        ({"std": 0.0}, "deviation of 0"),
        ({"mean": (1.0, 2.0)}, "2 values for 3 channels"),
        ({"resize": "bicubic"}, "bicubic"),
        ({"crop": "left"}, "left"),
    ],
)
def test_invalid_preprocessing_is_rejected(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Preprocessing(**fields)  # type: ignore[arg-type]
