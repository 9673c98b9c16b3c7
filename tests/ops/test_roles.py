"""Mean outputs of layers, from which the bias correction follows."""

import numpy as np
import pytest

from quantkit.ir.graph import Node
from quantkit.ops.roles.onnx import OnnxRoles

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_mean_output_of_a_convolution_is_the_output_for_constant_channels(groups: int) -> None:
    weights, means = RANDOM.normal(size=(8, 4 // groups, 3, 2)), RANDOM.normal(size=4)
    layer = Node("y", "Conv", ("x", "w"), attrs={"group": groups})
    expected = [
        sum(weights[row, channel].sum() * means[row // (8 // groups) * (4 // groups) + channel] for channel in channels)
        for row in range(8)
        for channels in [range(4 // groups)]
    ]
    np.testing.assert_allclose(OnnxRoles().mean_outputs(layer, weights, means), expected)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_mean_output_of_a_product(is_transposed: bool) -> None:
    weights, means = RANDOM.normal(size=(3, 5)), RANDOM.normal(size=3)
    layer = Node("y", "Gemm", ("x", "w"), attrs={"transB": 1} if is_transposed else {})
    values = weights.T if is_transposed else weights
    np.testing.assert_allclose(OnnxRoles().mean_outputs(layer, values, means), means @ weights)


def test_mean_output_of_a_transposed_convolution_is_unknown() -> None:
    layer = Node("y", "ConvTranspose", ("x", "w"))
    assert OnnxRoles().mean_outputs(layer, np.ones((2, 3)), np.ones(2)) is None
