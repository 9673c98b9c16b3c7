"""Scales that keep the values of weights that already have few of them."""

from dataclasses import replace

import numpy as np
import pytest

from quantkit.quantization.pair_sums import MAX_SUM, find_pair_sums
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.spec import Spec
from quantkit.quantization.weight_levels import find_limits

SPEC = Spec.parse("qint8 symmetric per_channel axes=3")


def test_multiples_of_one_step_are_exact() -> None:
    random = np.random.default_rng(0)
    levels = random.integers(-100, 101, (3, 3, 8, 4))
    weights = (levels * np.array([0.5, 0.01, 3.0, 0.125], np.float32)).astype(np.float32)
    parameters = QuantizationParameters.of_weights(SPEC, weights)
    np.testing.assert_allclose(parameters.fake_quantize(weights), weights, rtol=1e-5)


def test_continuous_weights_have_the_largest_weight_as_limit() -> None:
    weights = np.random.default_rng(0).normal(0, 1, (3, 3, 8, 4)).astype(np.float32)
    assert find_limits(weights.reshape(-1, 4)) is None
    parameters = QuantizationParameters.of_weights(SPEC, weights)
    np.testing.assert_allclose(parameters.scale, np.abs(weights).max((0, 1, 2)) / 127, rtol=1e-6)


@pytest.mark.parametrize("factors", [(1.0, 1.0, 1.0, 1.0), (0.3, 1.7, 2.0, 0.01)], ids=["plain", "batch norm"])
def test_clusters_of_all_channels_have_the_same_levels(factors: tuple[float, ...]) -> None:
    random = np.random.default_rng(0)
    weights = random.normal(0, 1, 16)[random.integers(0, 16, (3, 3, 32, 4))] * factors
    quantized = QuantizationParameters.of_weights(SPEC, weights.astype(np.float32)).quantize(weights.astype(np.float32))
    assert len(np.unique(quantized)) <= 16


def test_channels_without_all_clusters_have_the_same_levels() -> None:
    random = np.random.default_rng(0)
    spec = Spec.parse("qint8 symmetric per_channel axes=1")
    weights = (random.normal(0, 1, 16)[random.integers(0, 16, (20, 64))] * np.exp(random.normal(0, 1, 64))).astype("f4")
    assert max(len(np.unique(channel)) for channel in weights.T) < 16
    quantized = QuantizationParameters.of_weights(spec, weights).quantize(weights)
    assert len(np.unique(quantized)) <= 16
    # Channels of other centroids, and those of continuous weights, have their own limits.
    weights[:, 5] = np.repeat(random.normal(0, 1, 10), 2)
    assert find_limits(weights) is None
    assert find_limits(random.normal(0, 1, (20, 64)).astype("f4")) is None


def test_clusters_whose_pairs_exceed_the_limit_stay_clusters() -> None:
    centroids = np.array([-1.0, -0.6, 0.0, 0.3, 0.95], np.float32)
    weights = centroids[np.random.default_rng(0).integers(0, 5, (3, 3, 8, 4))]
    spec = replace(SPEC, pair_axes=(0, 1, 2))
    parameters = QuantizationParameters.of_weights(spec, weights)
    quantized = parameters.quantize(weights)
    assert len(np.unique(quantized)) == 5
    assert find_pair_sums(quantized.astype(int), spec.pair_axes).max() <= MAX_SUM
    np.testing.assert_allclose(parameters.fake_quantize(weights), weights, atol=0.5 / 64)


def test_zeros_and_empty_channels_stay_zero() -> None:
    weights = np.random.default_rng(0).normal(0, 1, (3, 3, 8, 4)).astype(np.float32)
    weights[np.abs(weights) < 1] = 0
    weights[..., 2] = 0
    parameters = QuantizationParameters.of_weights(SPEC, weights)
    assert np.array_equal(parameters.quantize(weights) == 0, parameters.fake_quantize(weights) == 0)
    assert not parameters.quantize(weights)[weights == 0].any()
