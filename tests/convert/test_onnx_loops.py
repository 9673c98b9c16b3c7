"""Loops in the conversion to ONNX."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.convert.to_onnx import convert_by_tf2onnx, copy_shared_lists, set_scalar_loop_inputs
from quantkit.formats import onnx
from quantkit.ir.check import verify
from quantkit.ir.text import from_text
from quantkit.runtimes import open_session, tensorflow
from quantkit.runtimes.availability import find_package

TOOLS = (find_package("tf2onnx", "tf2onnx", "tf2onnx", extra="onnx"), tensorflow.RUNTIME.available())

# Each iteration appends x to the list and doubles it.
STEP = """function small{0}(out[bool] = s)
n = _Arg(T=int32, index=0)
most = _Arg(T=int32, index=1)
list = _Arg(T=variant, index=2)
x = _Arg(T=float, index=3)
s = Less(n, most, T=int32)
end
function step{0}(n2[int32] = next, most2[int32] = most, list2[variant] = set, x2 = twice)
n = _Arg(T=int32, index=0)
most = _Arg(T=int32, index=1)
list = _Arg(T=variant, index=2)
x = _Arg(T=float, index=3)
one = Const[int32](1)
next = AddV2(n, one, T=int32)
set = TensorListSetItem(list, n, x, element_dtype=float)
twice = AddV2(x, x, T=float)
end
"""
KIND = "T=[int32, int32, variant, float], cond=&small{0}, body=&step{0}, output_shapes=[<>, <>, <>, <2>]"
TWO_LOOPS = f"""inputs: x
outputs: y
x = Placeholder[2]()
zero = Const[int32](0)
three = Const[int32](3)
shape = Const[int32]([2])
list = TensorListReserve(shape, three, element_dtype=float, shape_type=int32)
first = StatelessWhile(zero, three, list, x, {KIND.format(1)})
second = StatelessWhile(zero, three, list, first:3, {KIND.format(2)})
one = TensorListStack(first:2, shape, element_dtype=float, num_elements=3)
other = TensorListStack(second:2, shape, element_dtype=float, num_elements=3)
y = AddV2(one, other, T=float)
{STEP.format(1)}{STEP.format(2)}"""


def test_each_loop_has_a_separate_list() -> None:
    graph = from_text(TWO_LOOPS)
    copied = copy_shared_lists(graph)
    verify(copied)
    assert copied["first"] is graph["first"]
    copy = copied["second"].inputs[2].node
    assert copy != "list"
    assert copied[copy].with_(name="list") == graph["list"]
    assert copy_shared_lists(copied) is copied


def test_loops_in_functions_have_separate_lists() -> None:
    lines = TWO_LOOPS.partition("function")[0].splitlines()[3:]
    body = "\n".join(["function outer(out = y)", "x = _Arg(T=float, index=0)", *lines, "end"])
    graph = from_text(
        f"inputs: x\noutputs: y\nx = Placeholder[2]()\ny = outer(x)\n{body}\n{STEP.format(1)}{STEP.format(2)}"
    )
    function = copy_shared_lists(graph).library["outer"]
    assert function.graph.op_counts["TensorListReserve"] == 2


@pytest.mark.engine
@pytest.mark.skipif(not all(tool.ok for tool in TOOLS), reason=" ".join(tool.detail for tool in TOOLS))
def test_tf2onnx_converts_two_loops_that_share_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    graph = from_text(TWO_LOOPS)
    x = np.array([1, -3], np.float32)
    converted = onnx.decode(convert_by_tf2onnx(graph))
    with open_session(graph, "tensorflow") as expected, open_session(converted, "onnxruntime") as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], expected.run({"x": x})["y"])


def test_iteration_number_is_a_scalar() -> None:
    library = pytest.importorskip("onnx", reason="pip install onnx")
    number = library.helper.make_tensor_value_info("i", library.TensorProto.INT64, None)
    condition = library.helper.make_tensor_value_info("c", library.TensorProto.BOOL, None)
    value = library.helper.make_tensor_value_info("v", library.TensorProto.FLOAT, None)
    inner = library.helper.make_graph([], "inner", [number, condition, value], [condition, value])
    loop = library.helper.make_node("Loop", ["", "c", "v"], ["w"], body=inner)
    branch = library.helper.make_graph([loop], "branch", [], [])
    graph = library.helper.make_graph([library.helper.make_node("If", ["c"], ["w"], then_branch=branch)], "g", [], [])
    set_scalar_loop_inputs(graph)
    inputs = graph.node[0].attribute[0].g.node[0].attribute[0].g.input
    assert [value.type.tensor_type.HasField("shape") for value in inputs] == [True, True, False]
