import pytest

from quantkit.errors import GraphError
from quantkit.ir.text import from_text
from quantkit.ops.validation import find_invalid_node
from quantkit.transforms.folding.fold_pads import fold_pads

HEAD = "inputs: x\noutputs: y\nx = Placeholder[1x4x4x3](dtype=float)\nw = Const[3x3x3x2]()\n"
CONVOLUTION = "T=float, padding=SAME, strides=[1, 1, 1, 1]"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (f"y = Conv2D(x, w, {CONVOLUTION})", ""),
        ("y = UnknownOp(x, x, x, strides=7)", ""),
        (f"y = Conv2D(x, {CONVOLUTION})", "node 'y' (Conv2D) has 1 inputs instead of 2"),
        ("y = Conv2D(x, w, T=float, padding=SAME)", "has no attribute 'strides'"),
        ("y = Conv2D(x, w, T=float, padding=SAME, strides=7)", "strides=7, which is not of type list(int)"),
        ("y = Conv2D(x, w, T=float, padding=SAME, strides=[2])", "must have 4 entries"),
        ("y = Conv2D(x, w, T=float, padding=1, strides=[1, 1, 1, 1])", "padding=1, which is not of type string"),
        (f"y = Conv2D(x, x:1, {CONVOLUTION})", "has input 'x:1', but Placeholder has 1 outputs"),
        (f"y = Conv2D(x, missing, {CONVOLUTION})", "has input 'missing', which is not in the graph"),
        ("y = Cast(x, SrcT=int32, DstT=float)", "requires int32 as input 0, but 'x' is float"),
    ],
)
def test_first_invalid_node_is_described(lines: str, message: str) -> None:
    problem = find_invalid_node(from_text(HEAD + lines))
    assert message in (problem.message if problem else "")
    assert bool(message) == bool(problem)
    assert problem is None or problem.hint.startswith("the file is damaged")


def test_hint_for_a_constant_of_another_type_is_the_text_notation() -> None:
    text = "inputs: x\noutputs: y\nx = Placeholder[1x2x3]()\np = Const([1, 2, 0])\ny = Transpose(x, p, T=float)"
    assert find_invalid_node(from_text(text)) == (
        "node 'y' (Transpose) requires int32 as input 1, but 'p' is float",
        "write the constant as p = Const[int32](...)",
    )


def test_failed_transform_names_invalid_node() -> None:
    pad = "q = Const[int32]([[0, 0], [1, 1], [1, 1], [0, 0]])\np = Pad(x, q, T=float, Tpaddings=int32)\n"
    lines = f"{pad}y = Conv2D(p, padding=SAME, strides=[1, 1, 1, 1])"
    with pytest.raises(GraphError, match=r"fold_pads: node 'y' \(Conv2D\) has 1 inputs"):
        fold_pads(from_text(HEAD + lines))
