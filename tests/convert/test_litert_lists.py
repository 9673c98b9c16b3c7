"""Lists of loops in LiteRT."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.convert.litert_lists import flatten_lists
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.formats import onnx as onnx_format
from quantkit.ir.check import verify
from quantkit.ir.text import from_text
from quantkit.runtimes import find_runtime, open_session

pytest.importorskip("onnx", reason="pip install onnx")
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
from onnx import TensorProto, helper, numpy_helper

# A list of x, 2 x, 4 x. The optimizer of the converter changes functions with weights. ``first`` is the number of the
# first iteration, ``size`` that of the elements.
LOOP = """inputs: x
outputs: y
x = Placeholder[?x3]()
zero = Const[int64]({first})
three = Const[int64](3)
shape = Const[int32]([{size}, 3])
most = Const[int32](-1)
empty = EmptyTensorList(shape, most, element_dtype=float, shape_type=int32)
loop = StatelessWhile(zero, x, empty, three, T=[int64, float, variant, int64], cond=&small, body=&step)
y = TensorListStack(loop:2, shape, element_dtype=float, num_elements=-1)
function small(out[bool] = s)
i = _Arg(T=int64, index=0)
a = _Arg(T=float, index=1)
l = _Arg(T=variant, index=2)
k = _Arg(T=int64, index=3)
s = Less(i, k, T=int64)
end
function step(next[int64] = next, value = double, list[variant] = push, number[int64] = k)
i = _Arg(T=int64, index=0)
a = _Arg(T=float, index=1)
l = _Arg(T=variant, index=2)
k = _Arg(T=int64, index=3)
one = Const[int64](1)
w = Const[float]([[2, 0, 0], [0, 2, 0], [0, 0, 2]])
next = AddV2(i, one, T=int64)
push = TensorListPushBack(l, a, element_dtype=float)
double = MatMul(a, w, T=float, transpose_a=false, transpose_b=false)
end
"""


@pytest.mark.parametrize("size", [-1, 2])
def test_lists_that_grow_with_a_counter_become_flat(size: int) -> None:
    flat = flatten_lists(from_text(LOOP.format(first=0, size=size)))
    verify(flat)
    assert flat["y"].op == "Reshape"
    assert "TensorListPushBack" not in flat.library["step"].graph.op_counts
    uncounted = from_text(LOOP.format(first=1, size=size))
    assert flatten_lists(uncounted) is uncounted


@pytest.mark.engine
def test_litert_computes_a_list_with_an_unknown_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    availability = find_runtime("litert").available()
    if not availability.ok:
        pytest.skip(availability.detail)
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    with open_session(from_text(LOOP.format(first=0, size=-1)), "litert") as session:
        for count in (2, 1):
            y = session.run({"x": x[:count]})["y"]
            np.testing.assert_array_equal(y, np.stack([x[:count], 2 * x[:count], 4 * x[:count]]))


@pytest.mark.engine
@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_litert_computes_a_recurrent_layer_with_an_unknown_number_of_steps(
    op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of states is unknown; batch and size of each are not."""
    availability = find_runtime("litert").available()
    if not availability.ok:
        pytest.skip(availability.detail)
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    gates, random = {"GRU": 3, "LSTM": 4}[op], np.random.default_rng(1)
    shapes = {"w": (2, 5 * gates, 3), "r": (2, 5 * gates, 5), "b": (2, 10 * gates)}
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", 2, 3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *shapes], ["y"], hidden_size=5, direction="bidirectional")],
        "network",
        infos[:1],
        infos[1:],
        [numpy_helper.from_array(random.normal(size=shapes[name]).astype(np.float32), name) for name in shapes],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = onnx_format.decode(model.SerializeToString())
    with open_session(network, "onnxruntime") as expected, open_session(as_tensorflow(network), "litert") as actual:
        for steps in (4, 1, 7):
            feeds = {"x": random.normal(size=(steps, 2, 3)).astype(np.float32)}
            y = expected.run(feeds)["y"]
            np.testing.assert_allclose(actual.run(feeds)["y"].reshape(y.shape), y, atol=1e-6)
