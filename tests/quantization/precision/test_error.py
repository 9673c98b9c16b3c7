"""Sample of the values of large outputs, for the error signals."""

import numpy as np

from quantkit.quantization.precision.error import MAX_VALUES, _thin


def test_a_sample_of_images_has_all_columns() -> None:
    columns = np.tile(np.arange(8.0), MAX_VALUES)
    sample = _thin(columns)
    assert len(sample) == MAX_VALUES
    counts = np.bincount(sample.astype(int), minlength=8)
    assert counts.min() > 0.95 * MAX_VALUES / 8, "a stride of 8 selects one column"


def test_samples_of_equal_sizes_have_the_same_positions() -> None:
    values = np.arange(2.5 * MAX_VALUES)
    sample = _thin(values)
    assert np.array_equal(_thin(-values), -sample)
    assert np.all(np.diff(sample) > 0)
    assert sample.max() > 0.999 * len(values)


def test_few_values_are_complete() -> None:
    values = np.arange(float(MAX_VALUES))
    assert _thin(values) is values
