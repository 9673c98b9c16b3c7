"""Rewrites of the float graph before it is annotated."""

import numpy as np
import pytest

import quantkit as qk
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.ir.text import from_text

# Convolution, depthwise convolution, bias, pool and product in NCHW.
CHANNELS_FIRST = """
    inputs: x
    outputs: y
    x = Placeholder[1x3x8x8](dtype=float)
    w = Const[3x3x3x4]()
    b = Const[4]()
    conv = Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1], dilations=[1, 1, 1, 1], data_format=NCHW)
    biased = BiasAdd(conv, b, T=float, data_format=NCHW)
    act = Relu(biased, T=float)
    d = Const[3x3x4x1]()
    deep = DepthwiseConv2dNative(act, d, T=float, padding=SAME, strides=[1, 1, 1, 1], data_format=NCHW)
    act2 = Relu6(deep, T=float)
    pool = MaxPool(act2, T=float, padding=VALID, ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2], data_format=NCHW)
    v = Const[1x1x4x2]()
    y = Conv2D(pool, v, T=float, padding=VALID, strides=[1, 1, 1, 1], dilations=[1, 1, 1, 1], data_format=NCHW)
"""
IMAGES: Array = np.random.default_rng(2).normal(size=(4, 3, 8, 8)).astype(np.float32)


def channels_first() -> Graph:
    return from_text(CHANNELS_FIRST)


@pytest.mark.engine
@pytest.mark.parametrize("target", ["onnx", "tensorflow", "eightbit", "litert"])
def test_layers_with_channels_first_are_int8(target: str) -> None:
    if target != "onnx":
        pytest.importorskip("tensorflow", reason="pip install tensorflow")
    result = qk.quantize(channels_first(), IMAGES, target=target, runs=0)
    # The classic 8-bit ops have no depthwise convolution.
    assert result.report.census.num_patterns == (2 if target == "eightbit" else 3)
    assert not any("NCHW" in fallback.reason for fallback in result.report.census.float_fallbacks)
    assert result.report.accuracy.sqnr is not None
    assert result.report.accuracy.sqnr.worst > 20
