"""Tests of `quantkit.quantization.targets.onnx.attention`."""

from itertools import pairwise

import pytest

from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph
from quantkit.quantization.targets import find_target

parser = pytest.importorskip("onnx.parser", reason="pip install onnx")

ATTENTION = """
<ir_version: 8, opset_import: ["": 17]>
network (float[1, 5, 8] x, float[1, 1, 5] mask, bool[1, 1, 5] is_known) => (float[1, 5, 8] y, float[1, 8, 8] covariance)
<float[8, 8] w = {WEIGHTS}, float half = {0.5}>
{
    query = MatMul(x, w)
    transposed = Transpose<perm = [0, 2, 1]>(x)
    scores = MatMul(query, transposed)
    scaled = Mul(scores, half)
    masked = Add(scaled, mask)
    weights = Softmax<axis = -1>(masked)
    dropped = Dropout(weights)
MASKS
    result = MatMul(masked_50, x)
    y = Tanh(result)
    covariance = MatMul(transposed, x)
}
"""


@pytest.fixture
def graph() -> Graph:
    # The number of paths through the masks doubles with each of them.
    names = ["dropped", *(f"masked_{number}" for number in range(51))]
    masks = (f"    {after} = Where(is_known, {name}, {name})" for name, after in pairwise(names))
    text = ATTENTION.replace("WEIGHTS", ", ".join(["0.25"] * 64)).replace("MASKS", "\n".join(masks))
    return onnx_format.decode(parser.parse_model(text).SerializeToString())


@pytest.mark.parametrize("runtime", ["auto", "onnxruntime", "openvino"])
def test_only_the_products_of_attention_stay_float(graph: Graph, runtime: str) -> None:
    assert set(find_target("onnx").slow_nodes(graph, runtime)) == {"scores", "result"}
