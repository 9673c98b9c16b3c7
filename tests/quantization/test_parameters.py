from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.ranges import Range
from quantkit.quantization.spec import Spec

SPECS = ["quint8 affine", "qint8 affine", "qint8 symmetric", "quint8 symmetric", "qint8 symmetric reduce_range"]
LIMITS = st.floats(-(2.0**40), 2.0**40, width=32)


@pytest.mark.parametrize("text", SPECS)
@given(LIMITS, LIMITS)
def test_zero_is_exact_and_the_range_is_covered(text: str, first: float, second: float) -> None:
    spec = Spec.parse(text)
    low, high = min(first, second), max(first, second)
    if not spec.is_signed:
        low, high = abs(low), max(abs(low), abs(high))
    parameters = QuantizationParameters.of_range(spec, Range(low, high))
    limits = np.array([0.0, low, high], np.float32)
    assert parameters.fake_quantize(limits)[0] == 0
    assert (
        np.abs(parameters.fake_quantize(limits) - limits).max()
        <= 0.51 * parameters.scale + 1e-30 + np.abs(limits).max() * 1e-6
    )


def test_weights_have_a_scale_for_each_channel() -> None:
    values = np.random.default_rng(0).normal(size=(3, 3, 2, 3)).astype(np.float32) * np.array([1, 10, 100], np.float32)
    parameters = QuantizationParameters.of_weights(Spec.parse("qint8 symmetric per_channel axes=3"), values)
    assert parameters.scale == pytest.approx(np.abs(values).max((0, 1, 2)) / 127)
    assert np.abs(parameters.fake_quantize(values) - values).max((0, 1, 2)) == pytest.approx(
        parameters.scale / 2, rel=0.2
    )
    quantized = parameters.quantize(values)
    assert quantized.dtype == np.int8
    assert (quantized.min(), quantized.max()) >= (-127, 127)


def test_the_parameters_of_equal_constants_are_computed_once() -> None:
    spec = Spec.parse("qint8 symmetric per_channel axes=1 pairs=0")
    values = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    parameters = QuantizationParameters.of_weights(spec, values)
    assert QuantizationParameters.of_weights(spec, values.copy()) is parameters
    assert QuantizationParameters.of_weights(replace(spec, pair_axes=()), values).scale.max() < parameters.scale.max()
    assert QuantizationParameters.of_weights(spec, 2 * values).scale == pytest.approx(2 * parameters.scale)


def test_depthwise_channels_have_two_dimensions() -> None:
    values = np.random.default_rng(0).normal(size=(3, 3, 2, 3)).astype(np.float32)
    parameters = QuantizationParameters.of_weights(Spec.parse("qint8 symmetric per_channel axes=2,3"), values)
    assert parameters.scale.shape == (6,)
    assert np.abs(parameters.fake_quantize(values) - values).max() <= parameters.scale.max() / 2 * 1.001


def test_rows_of_a_transposed_product() -> None:
    values = np.array([[1, 0.5], [100, 50]], np.float32)
    parameters = QuantizationParameters.of_weights(Spec.parse("qint8 symmetric per_channel axes=0"), values)
    assert parameters.fake_quantize(values)[:, 0].tolist() == [1, 100]


def test_reduced_range_has_seven_bits() -> None:
    parameters = QuantizationParameters.of_weights(
        Spec.parse("qint8 symmetric reduce_range"), np.array([-2.0, 2.0], np.float32)
    )
    assert parameters.quantize(np.array([-2.0, 1.5, 2.0], np.float32)).tolist() == [-63, 47, 63]


def test_a_range_of_zero_has_scale_one() -> None:
    assert float(QuantizationParameters.of_range(Spec.parse("quint8 affine"), Range(0.0, 0.0)).scale) == 1
