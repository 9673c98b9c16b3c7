"""Tests of single rewrites for int8 models on the digits model in every runtime."""

import numpy as np
import pytest
from spread_graphs import REWRITES

import quantkit as qk
from quantkit import recipes
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.runtimes import open_session, runtimes


@pytest.fixture(scope="module")
def digits() -> Graph:
    recipe = 'strip_unused_nodes(shape="1,16,16,1") remove_nodes(op=Identity, op=CheckNumerics) fold_old_batch_norms'
    return recipes.rewrite(qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph, recipe)


def predict(graph: Graph, runtime: str) -> Array:
    pixels = np.random.default_rng(3).integers(0, 256, (4, 1, 16, 16, 1)).astype(np.float32)
    with open_session(graph, runtime) as session:
        (source,) = session.inputs
        images = pixels if source.name == "pixels" else (pixels - 128) / 128
        return np.stack([session.run({source.name: image.astype(source.dtype.numpy)})["softmax"] for image in images])


@pytest.mark.engine
@pytest.mark.parametrize("runtime", [name for name, runtime in runtimes().items() if runtime.available().ok])
@pytest.mark.parametrize("rewrite", REWRITES)
def test_outputs_stay_in_every_runtime(rewrite: str, runtime: str, digits: Graph) -> None:
    before = REWRITES[rewrite](digits)
    after = recipes.rewrite(before, rewrite)
    assert after != before
    np.testing.assert_allclose(predict(after, runtime), predict(before, runtime), rtol=0, atol=1e-5)
    np.testing.assert_allclose(predict(before, runtime), predict(digits, runtime), rtol=0, atol=1e-5)
