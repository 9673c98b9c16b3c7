"""Loops that are invalid, recursive or deeply nested: one error, in bounded time."""

import pytest

from quantkit.convert.litert_loops import copy_exchanged_variables
from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.convert.tensorflow_to_onnx.control_flow import MAX_DEPTH
from quantkit.errors import GraphError, UnavailableError
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text
from quantkit.limits import limits

HEADER = """inputs: x
outputs: y
x = Placeholder[2]()
y = StatelessWhile(x, T=[float], cond=&small, body=&{body})
function small(out[bool] = s)
a = _Arg(T=float, index=0)
axis = Const[int32]([0])
sum = Sum(a, axis, T=float, Tidx=int32)
ten = Const(10.0)
s = Less(sum, ten, T=float)
end
"""
STEP = """function {name}(out = {result})
a = _Arg(T=float, index=0)
one = Const(1.0)
next = AddV2(a, one, T=float)
{extra}
end
"""
LOOP = "inner{} = StatelessWhile({}, T=[float], cond=&small, body=&{})"


def loop(*functions: str) -> Graph:
    """Return a loop whose body is the first function, given as ``name result line line``."""
    parts = [function.split(" ", 2) for function in functions]
    bodies = [STEP.format(name=name, result=result, extra=extra) for name, result, extra in parts]
    return from_text(HEADER.format(body=parts[0][0]) + "".join(bodies))


def chain(depth: int, count: int = 1) -> Graph:
    """Return loops inside one another; each body contains ``count`` of the next loops."""
    functions = []
    for level in range(depth - 1):
        names = ["next", *(f"inner{index}" for index in range(count))]
        lines = [LOOP.format(index, names[index], f"f{level + 1}") for index in range(count)]
        functions.append(f"f{level} {names[-1]} " + "\n".join(lines))
    return loop(*functions, f"f{depth - 1} next ")


def test_depth_of_loops_is_limited() -> None:
    assert convert(chain(MAX_DEPTH)).op_counts["Loop"] == 1
    with pytest.raises(UnavailableError, match=f"inside more than {MAX_DEPTH - 1} loops"):
        convert(chain(MAX_DEPTH + 1))


def test_number_of_nodes_in_loops_is_limited() -> None:
    with limits(max_nodes=500), pytest.raises(GraphError, match="more than 500 nodes"):
        convert(chain(6, count=4))


def test_recursive_body_is_rejected() -> None:
    with pytest.raises(UnavailableError, match="inside more than"):
        convert(loop("f inner0 " + LOOP.format(0, "next", "f")))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f missing ", "missing not found in graph"),
        ("f a2 a2 = Identity(a1, T=float)\na1 = Identity(a2, T=float)", "cycle"),
        ("f next b = _Arg(T=float, index=1)", "has 2 arguments"),
        ("f item item = TensorListGetItem(next, element_dtype=float)", "the node is invalid"),
    ],
)
def test_invalid_body_is_one_error(body: str, message: str) -> None:
    with pytest.raises((UnavailableError, GraphError), match=message):
        convert(loop(body))


def test_missing_function_is_named() -> None:
    with pytest.raises(UnavailableError, match="'y' .*the function 'body' is not in the graph"):
        convert(from_text(HEADER.format(body="absent")))


def test_copies_end_at_cycles() -> None:
    graph = loop("f a2 a2 = Identity(a1, T=float)\na1 = Identity(a2, T=float)")
    assert copy_exchanged_variables(graph) is graph
