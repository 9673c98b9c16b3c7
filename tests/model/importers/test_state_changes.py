"""Variables that a model changes, where it becomes a graph that keeps no state."""

from collections.abc import Callable
from functools import partial

import pytest
from work import check_work_is_linear

from quantkit.errors import GraphError
from quantkit.ir.check import verify
from quantkit.ir.text import from_text
from quantkit.model.importers.freeze import changes_variables, remove_assignments

COUNTS = """inputs: x
outputs: y
x = Placeholder[2]()
count = Const(0.0)
handle = Identity(count, T=float)
again = Identity(count, T=float)
read = Identity(handle, T=float)
one = Const(1.0)
more = AddV2(read, one, T=float)
write = AssignVariableOp(handle, more, ^read, dtype=float)
check = CheckNumerics(x, T=float, message=bad)
done = NoOp(^write, ^read, ^check)
double = AddV2(x, x, T=float)
"""


def test_unneeded_assignments_are_removed() -> None:
    graph = from_text(COUNTS + "y = Identity(double, ^done, T=float)")
    pruned = remove_assignments(graph, {})
    verify(pruned)
    assert set(pruned.nodes) == {"x", "check", "done", "double", "y"}
    assert pruned["done"].controls == ("check",)
    assert remove_assignments(pruned, {}) == pruned


@pytest.mark.parametrize(
    "line",
    [
        "y = Mul(double, read, ^done, T=float)",
        "y = Mul(double, again, ^done, T=float)",
        "y = Mul(double, count, T=float)",
        "y = Mul(double, more, T=float)",
    ],
)
def test_output_that_depends_on_the_variable_is_rejected(line: str) -> None:
    with pytest.raises(GraphError, match="depend on the variable 'layer/calls', which every run changes") as raised:
        remove_assignments(from_text(COUNTS + line), {"count": "layer/calls"})
    assert "stateful=False" in raised.value.hint


def test_loop_that_changes_a_variable_is_rejected() -> None:
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[]()
        count = Const(0.0)
        y = While(x, count, T=[float, float], cond=&small, body=&step)
        function small(out[bool] = s)
        a = _Arg(T=float, index=0)
        v = _Arg(T=float, index=1)
        s = Less(a, a, T=float)
        end
        function step(next = a, same = v, ^done = write)
        a = _Arg(T=float, index=0)
        v = _Arg(T=float, index=1)
        write = AssignAddVariableOp(v, a, dtype=float)
        end
    """)
    with pytest.raises(GraphError, match="depend on the variable 'v'"):
        remove_assignments(graph, {})


def test_tables_and_constant_variables_are_kept() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[2]()\nv = VarHandleOp(dtype=float, shape=<2>)\n"
        "write = AssignVariableOp(v, x, dtype=float)\ny = Neg(x, ^write, T=float)"
    )
    assert remove_assignments(graph, {}).nodes == graph.nodes
    assert changes_variables(["ReadVariableOp", "AssignAddVariableOp"])
    assert not changes_variables(["ReadVariableOp", "ResourceGather", "Relu"])


def test_function_is_checked_once_for_all_its_calls() -> None:
    def work(size: int) -> Callable[[], object]:
        calls = [f"c{at} = PartitionedCall(c{at - 1}, Tin=[float], Tout=[float], f=&step)" for at in range(1, size)]
        steps = [f"s{at} = Neg(s{at - 1}, T=float)" for at in range(1, size)]
        lines = [
            *("inputs: x", f"outputs: c{size - 1}", "x = Placeholder[]()", "c0 = Identity(x, T=float)", *calls),
            *(f"function step(out = s{size - 1})", "s0 = _Arg(T=float, index=0)", *steps, "end"),
        ]
        return partial(remove_assignments, from_text("\n".join(lines)), {})

    check_work_is_linear(work, 40)
