"""Outputs and node counts of the `inference` recipe on the smaller networks of `measure_zoo.py`."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from zoo_graphs import BUILDERS, lstm, small_network, ssd

from quantkit.ir.graph import Graph
from quantkit.recipes import run
from quantkit.recipes.named import find_recipe
from quantkit.runtimes import tensorflow
from quantkit.runtimes.random_inputs import random_arrays

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
# Network, and the maximum number of nodes in graph and functions after the recipe.
SMALL: dict[str, tuple[Callable[[], Graph], int]] = {
    "small_network": (small_network, 46),
    "ssd": (ssd, 258),
    "lstm_loop": (lstm, 122),
    # TensorFlow lowers with two more nodes after other work in the same process.
    "lstm_lowered": (partial(lstm, lower=True), 262),
    "lstm_unrolled": (partial(lstm, unroll=True), 462),
    "mobilenet_v2": (BUILDERS["mobilenet_v2"], 262),
}


@pytest.mark.parametrize("name", SMALL)
def test_inference_recipe_keeps_outputs_with_few_nodes(name: str) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    build, max_nodes = SMALL[name]
    graph = build()
    after, _ = run(find_recipe("inference"), graph)
    with tensorflow.RUNTIME.open(graph) as session:
        feeds = random_arrays(session.inputs)
        expected = session.run(feeds)
    with tensorflow.RUNTIME.open(after) as session:
        actual = session.run(feeds)
    assert expected
    for output, values in expected.items():
        np.testing.assert_allclose(actual[output], values, rtol=1e-5, atol=1e-5 * np.abs(values).max())
    bodies = (function.graph.nodes.values() for function in after.library.values())
    assert len(after) + sum(node.op != "_Arg" for body in bodies for node in body) <= max_nodes
