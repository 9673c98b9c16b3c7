"""Convolutions in LiteRT whose inputs have unknown sizes."""

import numpy as np
import pytest

from quantkit.ir.text import from_text
from quantkit.runtimes import find_runtime, open_session

GRAPH = """
    inputs: x, sizes
    outputs: y
    x = Placeholder[?](dtype=float)
    sizes = Placeholder[4](dtype=int32)
    image = Reshape(x, sizes, T=float, Tshape=int32)
    w = Const[1x1x3x2]()
    y = Conv2D(image, w, T=float, padding=SAME, strides=[1, 1, 1, 1], dilations=[1, 1, 1, 1])
"""


@pytest.mark.engine
def test_channels_of_the_weights_are_stated() -> None:
    for runtime in ("litert", "tensorflow"):
        if not find_runtime(runtime).available().ok:
            pytest.skip(f"{runtime} is not installed")
    graph = from_text(GRAPH)
    x = np.random.default_rng(0).normal(size=120).astype(np.float32)
    outputs = []
    for runtime in ("tensorflow", "litert"):
        with open_session(graph, runtime) as session:
            outputs.append(session.run({"x": x, "sizes": np.array([2, 4, 5, 3], np.int32)})["y"])
    assert outputs[0].shape == (2, 4, 5, 2)
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-6)
