import numpy as np
import pytest

from quantkit.benchmark.sampling.feeds import seeded_feeds
from quantkit.errors import UsageError
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes.session import TensorInfo


def info(dims: tuple[int | None, ...] | None, dtype: DType = DType.FLOAT, name: str = "x") -> TensorInfo:
    return TensorInfo(name, dtype, Shape(dims))


def test_equal_inputs_get_equal_values_under_any_name() -> None:
    first = seeded_feeds([info((2, 3), name="Mul")])["Mul"]
    other = seeded_feeds([info((2, 3), name="input")])["input"]
    np.testing.assert_array_equal(first, other)
    assert not np.array_equal(first, seeded_feeds([info((2, 3))], seed=1)["x"])


def test_two_inputs_get_different_values() -> None:
    feeds = seeded_feeds([info((9,), name="a"), info((9,), name="b")])
    assert not np.array_equal(feeds["a"], feeds["b"])


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(DType.FLOAT, -1, 1), (DType.HALF, -1, 1), (DType.UINT8, 0, 255), (DType.INT64, 0, 1), (DType.BOOL, 0, 1)],
)
def test_values_are_in_the_range_of_the_type(dtype: DType, low: int, high: int) -> None:
    values = seeded_feeds([info((500,), dtype)])["x"]
    assert values.dtype == dtype.numpy
    assert low <= values.min() < values.max() <= high


def test_dynamic_batch_is_one_or_the_requested_size() -> None:
    assert seeded_feeds([info((None, 4))])["x"].shape == (1, 4)
    assert seeded_feeds([info((None, 4))], batch=8)["x"].shape == (8, 4)


def test_fixed_batch_size_is_kept() -> None:
    with pytest.raises(UsageError, match="has a fixed batch size of 1, not 8"):
        seeded_feeds([info((1, 4))], batch=8)


def test_card_defines_dynamic_sizes() -> None:
    shapes = {"x": Shape((1, 16, 16, 1))}
    assert seeded_feeds([info(None)], shapes=shapes)["x"].shape == (1, 16, 16, 1)
    assert seeded_feeds([info((None, None, None, 1))], batch=4, shapes=shapes)["x"].shape == (4, 16, 16, 1)


@pytest.mark.parametrize(
    ("dims", "example"), [((1, None, None, 3), "1x64x64x3"), ((None, None), "1x64"), (None, "1x64x64x3")]
)
def test_unknown_sizes_are_an_error_with_a_hint(dims: tuple[int | None, ...] | None, example: str) -> None:
    with pytest.raises(UsageError, match="needs all sizes but the batch") as error:
        seeded_feeds([info(dims)])
    assert f"--input-shape x:{example}," in error.value.hint
    inputs = [info(dims), info((2, 3), name="a"), info((None, None), name="b")]
    with pytest.raises(UsageError) as error:
        seeded_feeds(inputs)
    assert f"--input-shape x:{example} --input-shape b:1x64," in error.value.hint


def test_sizes_of_the_caller_fill_dynamic_dimensions() -> None:
    unknown = info((None, None, 3))
    assert seeded_feeds([unknown], sizes={"x": (1, 8, 3)})["x"].shape == (1, 8, 3)
    assert seeded_feeds([info(None)], sizes={"x": (2, 5)})["x"].shape == (2, 5)
    with pytest.raises(UsageError, match="has the shape .*x3, and --input-shape is 1x8x4"):
        seeded_feeds([unknown], sizes={"x": (1, 8, 4)})
    with pytest.raises(UsageError, match="names 'xx'"):
        seeded_feeds([unknown], sizes={"xx": (1, 8, 3)})


def test_strings_are_an_error_with_a_hint() -> None:
    with pytest.raises(UsageError, match="takes string") as error:
        seeded_feeds([info((), DType.STRING)])
    assert "--inputs" in error.value.hint
