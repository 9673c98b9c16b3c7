"""What models are fed: pictures made ready, and rows of tensors as they are."""

import numpy as np
import pytest

from quantkit.data import Data
from quantkit.data.choices import Flags
from quantkit.data.preparation import Preparation, Prepared, prepared_samples
from quantkit.errors import UsageError
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo import find_card

PICTURES = TensorInfo("picture", DType.FLOAT, Shape((None, 4, 4, 3)))
VECTORS = TensorInfo("vector", DType.FLOAT, Shape((None, 6)))
SEQUENCES = TensorInfo("steps", DType.FLOAT, Shape((None, 20, 3)))
TOKENS = TensorInfo("tokens", DType.INT32, Shape((None, 5)))


def fed(infos: list[TensorInfo], data: Data) -> list[dict[str, Array]]:
    preparation = Preparation.of(infos, data, None)
    samples: list[Prepared] = [one for _, (one,) in prepared_samples(data, data.samples, [preparation], {})]
    return [preparation.feeds([sample]) for sample in samples]


@pytest.mark.parametrize("info", [VECTORS, SEQUENCES, TOKENS], ids=lambda info: str(info.name))
def test_inputs_of_no_pictures_take_rows_as_they_are(info: TensorInfo) -> None:
    sizes = [size or 3 for size in info.shape.dims or ()]
    rows = np.arange(np.prod(sizes)).reshape(sizes).astype(np.float64 if info.dtype.is_float else np.int64)
    found = fed([info], Data.of(rows))
    np.testing.assert_array_equal(np.concatenate([one[info.name] for one in found]), rows)
    assert {one[info.name].dtype for one in found} == {np.dtype(info.dtype.numpy)}


def test_pixels_of_a_picture_are_normalised_and_numbers_are_not() -> None:
    pixels = np.full((1, 4, 4, 3), 192, np.uint8)
    assert fed([PICTURES], Data.of(pixels))[0]["picture"].max() == 0.5
    assert fed([PICTURES], Data.of(pixels.astype(np.float32)))[0]["picture"].max() == 192


@pytest.mark.parametrize(
    ("data", "flags", "is_assumed"),
    [
        (Data("folder", ()), Flags(), True),
        (Data("folder", ()), Flags(mean=0.0), False),
        (Data.of(np.zeros((1, 4, 4, 3), np.uint8)), Flags(), True),
        (Data.of(np.zeros((1, 4, 4, 3), np.float32)), Flags(), False),
    ],
)
def test_what_nobody_said_is_assumed(data: Data, flags: Flags, is_assumed: bool) -> None:
    assert Preparation.of([PICTURES], data, None, flags).is_assumed is is_assumed
    assert not Preparation.of([PICTURES], data, find_card("inception_v3"), flags).is_assumed


def test_each_of_several_inputs_takes_the_array_of_its_name() -> None:
    data = Data.of({"vector": np.ones((2, 6)), "picture": np.zeros((2, 48)), "spare": np.zeros(2)})
    for found in fed([PICTURES, VECTORS], data):
        assert {name: array.shape for name, array in found.items()} == {"picture": (1, 4, 4, 3), "vector": (1, 6)}


def test_a_fixed_batch_is_filled_up() -> None:
    info = TensorInfo("vector", DType.FLOAT, Shape((4, 6)))
    preparation = Preparation.of([info], Data.of(np.ones((2, 6))), None)
    assert preparation.batch == 4
    assert preparation.feeds([{"vector": np.ones(6)}])["vector"].shape == (4, 6)


@pytest.mark.parametrize(
    ("infos", "arrays", "message"),
    [
        ([VECTORS], {"": np.ones((2, 7))}, r"takes float of shape \?x6, and the data's rows are of shape 7"),
        ([TOKENS], {"": np.ones((2, 5))}, "takes int32, not float64"),
        ([VECTORS], {"a": np.ones((2, 6)), "b": np.ones(2)}, r"holds 2 arrays \(a, b\), and none for .*'vector'"),
        ([PICTURES, VECTORS], {"vector": np.ones((2, 6))}, "holds one array .* and none for the input 'picture'"),
        ([VECTORS, VECTORS], {}, "takes 2 inputs .* pictures alone do not fill"),
        ([VECTORS], {}, "which is no picture"),
    ],
)
def test_data_that_fits_no_input_is_refused(infos: list[TensorInfo], arrays: dict[str, Array], message: str) -> None:
    data = Data.of(arrays) if arrays else Data("folder", ())
    with pytest.raises(UsageError, match=message) as caught:
        fed(infos, data)
    assert caught.value.hint
