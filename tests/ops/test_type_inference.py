from pathlib import Path

import pytest

import quantkit as qk
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text
from quantkit.ops.tensorflow.type_inference import complete_types

TEXT = """
    inputs: x, n
    outputs: y, z
    x = Placeholder[2x3]()
    n = Placeholder[int32 2x3]()
    axis = Const[int32](1)
    twice = ConcatV2(x, x, axis, N=2)
    y = Neg(twice)
    z = Neg(n)
"""


def test_missing_types_are_those_of_the_inputs() -> None:
    completed = complete_types(from_text(TEXT))
    types = {name: completed[name].attrs["T"] for name in ("twice", "y", "z")}
    assert types == {"twice": DType.FLOAT, "y": DType.FLOAT, "z": DType.INT32}
    assert complete_types(completed) is completed


def test_types_that_no_known_input_determines_stay_absent() -> None:
    graph = from_text("outputs: y\nx = Placeholder[2]()\nq = Custom(x)\ny = Neg(q)\nz = Neg(missing)")
    assert complete_types(graph) is graph


@pytest.mark.parametrize("is_saved", [False, True], ids=["graph", "file"])
def test_graph_from_text_can_be_verified(is_saved: bool, tmp_path: Path) -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[2x3]()\na = Relu(x)\ny = Neg(a)")
    qk.save(graph, tmp_path / "text.pb")
    source = tmp_path / "text.pb" if is_saved else graph
    model = qk.transform(source, "sort_by_execution_order", verify=True, runtime="reference")
    assert model.graph["y"].attrs["T"] is DType.FLOAT
