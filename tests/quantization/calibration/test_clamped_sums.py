"""Ranges of layer outputs before a bias and a clamp."""

import numpy as np
import pytest

from quantkit.ir.graph import Edge, Graph
from quantkit.ir.text import from_text
from quantkit.quantization import Range, Scheme, annotate
from quantkit.quantization.calibration.clamped_sums import clip_ranges

TEXT = """
inputs: x
outputs: y
x = Placeholder[<1x6x6x4>]()
w = Const[3x3x4x2]()
b = Const([-1.0, 0.5])
m = Conv2D(x, w, T=float, strides=[1, 1, 1, 1], padding=VALID, data_format=NHWC)
n = BiasAdd(m, b, T=float)
r = Relu6(n, T=float)
v = Const[1x1x2x4]()
y = Conv2D(r, v, T=float, strides=[1, 1, 1, 1], padding=VALID, data_format=NHWC)
"""


def clip(graph: Graph, target: str, observed: Range) -> Range:
    plan = annotate(graph, Scheme.for_target(target))
    return clip_ranges(graph, plan, dict.fromkeys((*plan.activations, Edge("m")), observed))[Edge("m")]


@pytest.mark.parametrize(
    ("activation", "observed", "expected"),
    [
        ("Relu6", Range(-9, 9), Range(-0.5, 7)),
        ("Relu", Range(-9, 9), Range(-0.5, 9)),
        ("Relu6", Range(-0.25, 2), Range(-0.25, 2)),
    ],
)
def test_clamped_values_are_outside_of_the_range(activation: str, observed: Range, expected: Range) -> None:
    graph = from_text(TEXT.replace("Relu6", activation))
    assert clip(graph, "eightbit", observed) == expected
    low, high = expected
    x = np.linspace(-9, 9, 100)[:, None] + np.array([0, 0], np.float32)
    bias = graph["b"].value.array
    limit = 6 if activation == "Relu6" else np.inf
    if observed.low == -9:
        np.testing.assert_allclose(np.clip(np.clip(x, low, high) + bias, 0, limit), np.clip(x + bias, 0, limit))


def test_ranges_of_fused_patterns_and_of_signed_outputs_stay() -> None:
    observed = Range(-9, 9)
    assert clip(from_text(TEXT), "onnx", observed) == observed
    without_activation = TEXT.replace("r = Relu6(n, T=float)\n", "").replace("Conv2D(r,", "Conv2D(n,")
    assert clip(from_text(without_activation), "eightbit", observed) == observed
