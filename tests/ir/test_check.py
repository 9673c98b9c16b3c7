import pytest

from quantkit.errors import GraphError
from quantkit.ir.check import verify
from quantkit.ir.text import from_text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = Placeholder()\ny = Relu(xx)", "node 'y' \\(Relu\\) has input 'xx', which is not in the graph"),
        ("x = Placeholder()\ny = Relu(x, ^z)", "node 'y' \\(Relu\\) has input 'z'"),
        ("outputs: z\nx = Placeholder()", "the graph input or output 'z' does not exist"),
        ("x = Placeholder()\na = Add(x, b)\nb = Relu(a)", "2 nodes depend on each other in a cycle: b, a"),
        ("a = NoOp(^b)\nb = NoOp(^a)", "2 nodes depend on each other in a cycle"),
    ],
)
def test_error_for_a_broken_graph_names_the_transform(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=f"after fold_constants, {message}"):
        verify(from_text(text), blame="fold_constants")


def test_loop_through_merge_is_valid() -> None:
    verify(from_text("x = Enter()\nm = Merge(x, n)\ny = Relu(m)\nn = NextIteration(y)"))
