"""Output of the original summarize_graph."""

from pathlib import Path

import numpy as np
import pytest
from command_line import main

from quantkit.compat.summarize_graph import classic_summary, debug_string
from quantkit.formats import save
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ir.text import from_text

GRAPH = from_text(
    """
    inputs: x
    outputs: y
    x = Placeholder[?x3]()
    anything = Placeholder[uint8]()
    w = Const[3x400]()
    name = Const[string]("label")
    v = VariableV2(dtype=float, shape=<3>)
    check = CheckNumerics(x, message=bad)
    product = MatMul(x, w, ^check) @"/cpu:0"
    y = Relu(product) @"/gpu:0"
    z = Neg(product, ^v) @"/gpu:0"
    """
)
# Lists end in a space, and the device lines have no line break.
COUNTS = (
    "Found 2 possible inputs: (name=x, type=float(1), shape=[?,3]) (name=anything, type=uint8(4), shape=None) \n"
    "Found 1 variables: (name=v, type=float(1), shape=[3]) \n"
    "Found 2 possible outputs: (name=y, op=Relu) (name=z, op=Neg) \n"
    "Found 1201 (1.20k) const parameters, 0 (0) variable parameters, and 2 control_edges\n"
    "1 nodes assigned to device '/cpu:0'2 nodes assigned to device '/gpu:0'"
)
REST = """\
Op types used: 2 Const, 2 Placeholder, 1 CheckNumerics, 1 MatMul, 1 Neg, 1 Relu, 1 VariableV2
To use with tensorflow/tools/benchmark:benchmark_model try these arguments:
bazel run tensorflow/tools/benchmark:benchmark_model -- --graph=g.pb --show_flops --input_layer=x,anything,v \
--input_layer_type=float,uint8,float --input_layer_shape=-1,3::3 --output_layer=y,z
"""


def test_text_equals_the_original() -> None:
    summary = classic_summary(GRAPH, "g.pb")
    assert summary.is_valid
    assert summary.output == COUNTS + REST


def test_graph_without_inputs_and_outputs() -> None:
    text = classic_summary(Graph.of([Node("a", "NoOp")]), "g.pb").output
    assert text.splitlines()[:3] == ["No inputs spotted.", "No variables spotted.", "No outputs spotted."]


def test_ops_of_function_bodies_are_counted() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[2]()\ny = PartitionedCall(x, Tin=[float], Tout=[float], f=&double)\n"
        "function double(sum = s)\na = _Arg(T=float, index=0)\ns = Add(a, a)\nend"
    )
    assert "Op types used: 1 Add, 1 PartitionedCall, 1 Placeholder\n" in classic_summary(graph, "g.pb").output


def test_text_ends_after_a_dangling_input() -> None:
    graph = Graph.of([Node("y", "Relu", (), ("gone",))])
    summary = classic_summary(graph, "g.pb")
    assert not summary.is_valid
    assert summary.output.endswith("1 control_edges\nInvalid input gone for node y\n")


def test_structure_is_in_topological_order() -> None:
    text = classic_summary(
        from_text("y = Mul(a:1, b, ^c)\na = Const(2.0)\nb = Const[int32]([1, 2])\nc = NoOp()"),
        "g",
        print_structure=True,
    ).output
    assert text.splitlines()[-4:] == [
        "c (NoOp): []",
        "b (Const): [], value=Tensor<type: int32 shape: [2] values: 1 2>",
        "a (Const): [], value=Tensor<type: float shape: [] values: 2>",
        "y (Mul): [a:1, b, ^c]",
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.float32(1.5), "1.5"),
        (np.array([1, 2, 3, 4], np.float32), "1 2 3..."),
        (np.array([0.1, 1 / 3, 1e-7], np.float32), "0.1 0.333333343 1e-07"),
        (np.array([np.nan, np.inf, 1e10], np.float32), "nan inf 1e+10"),
        (np.array([[1], [2], [3], [4]], np.float32), "[1][2][3]..."),
        (np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32), "[1 2 3...]..."),
        (np.ones((2, 2, 2), np.float32), "[[1 1][1...]]..."),
        (np.ones((1, 1, 1, 4), np.float32), "[[[1 1 1...]]]..."),
        (np.zeros((0, 2), np.float32), ""),
        (np.array([0.1, 1e300], np.float64), "0.1 1e+300"),
        (np.array([0.1], np.float16), "0.0999755859"),
        (np.array([200, 1], np.uint8), "200 1"),
        (np.array([True, False]), "1 0"),
        (np.array([b"ab", b'c\n"x', b"d", b"e"], object), 'ab c\\n\\"x d...'),
    ],
)
def test_values_have_the_format_of_tensorflow(values: np.ndarray, text: str) -> None:
    """Compare with the output of TensorFlow's Print op for ``summarize=3``."""
    tensor = Tensor.of(values, DType.STRING if values.dtype == object else None)
    assert debug_string(tensor).partition("values: ")[2] == f"{text}>"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(GRAPH, tmp_path / "g.pb")
    assert main(["summarize", f"--in_graph={tmp_path / 'g.pb'}", "--classic"]) == 0
    assert capsys.readouterr().out == (COUNTS + REST).replace("g.pb", str(tmp_path / "g.pb"))
    assert main(["summarize", str(tmp_path / "g.pb"), "--print_structure"]) == 0
    assert "w (Const): [], value=Tensor<type: float shape: [3,400] values: [" in capsys.readouterr().out


def test_broken_graph_has_the_error_of_the_original(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.pbtxt").write_text('node { name: "x" op: "NoOp" }\nnode { name: "y" op: "Relu" input: "gone" }\n')
    assert main(["summarize", str(tmp_path / "g.pbtxt"), "--classic"]) == 3
    out, err = capsys.readouterr()
    assert out.endswith("Invalid input gone for node y\n")
    assert "Invalid graph with inputs referring to nonexistent nodes" in err


def test_unknown_rank_is_printed() -> None:
    graph = Graph.of([Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(None)})])
    text = classic_summary(graph, "g.pb").output
    assert "shape=<unknown>)" in text
    assert "--input_layer_shape= " in text
