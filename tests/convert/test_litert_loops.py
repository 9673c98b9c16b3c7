"""Loop variables that take the value of another variable, in LiteRT."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.convert.litert_loops import copy_exchanged_variables
from quantkit.ir.check import verify
from quantkit.ir.text import from_text
from quantkit.runtimes import find_runtime, open_session

# a, b = b, a; c and i stay; j and k are integers.
FUNCTIONS = """inputs: x
outputs: y
x = Placeholder[2]()
zero = Const[int32](0)
three = Const[int32](3)
twice = AddV2(x, x, T=float)
loop = StatelessWhile(zero, x, twice, x, three, T=[int32, float, float, float, int32], cond=&small, body=&step)
i = Cast(loop:4, SrcT=int32, DstT=float)
z = Sub(loop:1, loop:3, T=float)
y = AddV2(z, i, T=float)
function small(out[bool] = s)
i = _Arg(T=int32, index=0)
a = _Arg(T=float, index=1)
b = _Arg(T=float, index=2)
c = _Arg(T=float, index=3)
k = _Arg(T=int32, index=4)
three = Const[int32](3)
s = Less(i, three, T=int32)
end
function step(next[int32] = next, second = copy, first = a, same = c, number[int32] = i)
i = _Arg(T=int32, index=0)
a = _Arg(T=float, index=1)
b = _Arg(T=float, index=2)
c = _Arg(T=float, index=3)
k = _Arg(T=int32, index=4)
one = Const[int32](1)
next = AddV2(i, one, T=int32)
copy = Identity(b, T=float)
end
"""


# Two flags exchange their values in each of three iterations.
FLAGS = """inputs: x
outputs: first, second
x = Placeholder[2]()
limit = Const[float]([0, 0])
zero = Const[int32](0)
positive = Greater(x, limit, T=float)
negative = Less(x, limit, T=float)
loop = StatelessWhile(zero, positive, negative, T=[int32, bool, bool], cond=&small, body=&step)
first = Cast(loop:1, SrcT=bool, DstT=float)
second = Cast(loop:2, SrcT=bool, DstT=float)
function small(out[bool] = s)
i = _Arg(T=int32, index=0)
a = _Arg(T=bool, index=1)
b = _Arg(T=bool, index=2)
three = Const[int32](3)
s = Less(i, three, T=int32)
end
function step(next[int32] = next, first[bool] = b, second[bool] = a)
i = _Arg(T=int32, index=0)
a = _Arg(T=bool, index=1)
b = _Arg(T=bool, index=2)
one = Const[int32](1)
next = AddV2(i, one, T=int32)
end
"""


def test_variables_that_exchange_their_values_are_copied() -> None:
    graph = from_text(FUNCTIONS)
    copied = copy_exchanged_variables(graph)
    verify(copied)
    body = copied.library["step"].graph
    assert [body[edge.node].op for edge in body.outputs] == ["AddV2", "Maximum", "Maximum", "_Arg", "Maximum"]
    assert body.op_counts["Maximum"] == 3
    assert copy_exchanged_variables(copied) is copied


@pytest.mark.engine
def test_litert_computes_exchanged_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes = [find_runtime(name).available() for name in ("litert", "tensorflow")]
    if not all(runtime.ok for runtime in runtimes):
        pytest.skip(" ".join(runtime.detail for runtime in runtimes))
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    x = np.array([1, -2], np.float32)
    with open_session(from_text(FUNCTIONS), "litert") as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], 2 * x - x + 2)
    with open_session(from_text(FLAGS), "litert") as session:
        outputs = session.run({"x": x})
    np.testing.assert_array_equal(outputs["first"], [0, 1])
    np.testing.assert_array_equal(outputs["second"], [1, 0])
