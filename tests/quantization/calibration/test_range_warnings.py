"""Warnings about observed tensors."""

import numpy as np
import pytest

from quantkit.ir.text import from_text
from quantkit.quantization import Scheme, annotate, calibrate

PADDED = """
inputs: x
outputs: y
x = Placeholder[<?x4x4x2>]()
sizes = Const[int32]([[0, 0], [1, 1], [1, 1], [0, 0]])
lowest = Const(-inf)
w = Const[3x3x2x8]()
c = Conv2D(x, w, T=float, strides=[1, 1, 1, 1], padding="SAME", data_format="NHWC")
p = PadV2(c, sizes, lowest, T=float, Tpaddings=int32)
m = MaxPool(p, T=float, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="VALID", data_format="NHWC")
v = Const[1x1x8x3]()
y = Conv2D(m, v, T=float, strides=[1, 1, 1, 1], padding="SAME", data_format="NHWC")
"""


@pytest.mark.parametrize(("value", "count"), [("-inf", 0), ("nan", 1)])
def test_infinity_that_the_graph_writes_is_not_reported(value: str, count: int) -> None:
    graph = from_text(PADDED.replace("-inf", value))
    plan = annotate(graph, Scheme.for_target("litert"))
    samples = np.random.default_rng(0).normal(size=(4, 1, 4, 4, 2)).astype(np.float32)
    ranges = calibrate(graph, plan, list(samples), runtime="reference")
    assert len([text for text in ranges.warnings if text.startswith("p: ")]) == count


@pytest.mark.parametrize(("state", "count"), [("Fill(sizes, zero, T=float)", 0), ("Relu(x, T=float)", 1)])
def test_constants_of_a_new_state_are_not_reported(state: str, count: int) -> None:
    text = """
    inputs: x
    outputs: y
    x = Placeholder[<?x4>]()
    w = Const[4x6]()
    zero = Const(0.0)
    sizes = Shape(x, T=float)
    z = STATE
    m = MatMul(x, w, T=float)
    n = MatMul(z, w, T=float)
    y = AddV2(m, n, T=float)
    """
    graph = from_text(text.replace("STATE", state))
    plan = annotate(graph, Scheme.for_target("litert"))
    ranges = calibrate(graph, plan, [-np.ones((1, 4), np.float32) * number for number in (1, 2)], runtime="reference")
    assert [text for text in ranges.warnings if text.startswith("z: ")] == [
        "z: constant 0; its range has no width"
    ] * count
