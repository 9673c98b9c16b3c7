"""Constants in their loops, and nodes beside others."""

from quantkit.ir.text import from_text, to_text
from quantkit.transforms._positions import settled

LOOPS = """
inputs: x
outputs: y, z
x = Placeholder[2]()
two = Const(2.0)
one = Enter(x, frame_name=one)
first = Merge(one, again, N=2)
twice = Mul(first, two)
again = NextIteration(twice)
other = Enter(x, frame_name=other)
second = Merge(other, once_more, N=2)
more = Mul(second, two)
once_more = NextIteration(more)
y = Exit(first)
z = Mul(x, two)
"""


def test_a_constant_of_several_loops_is_one_for_each() -> None:
    graph = from_text(LOOPS)
    after = settled(graph.with_nodes([]), graph)
    assert after["two"].controls == ()
    assert after["z"].inputs[1].node == "two"
    insides = {reader: after[after[reader].inputs[1].node] for reader in ("twice", "more")}
    assert [node.controls for node in insides.values()] == [("first",), ("second",)]
    assert len({node.name for node in insides.values()}) == 2
    assert settled(graph, after) == after


def test_a_constant_of_one_loop_keeps_its_name() -> None:
    graph = from_text(LOOPS.replace("z = Mul(x, two)", "z = Relu(x)").replace("Mul(second, two)", "Neg(second)"))
    after = settled(graph.with_nodes([]), graph)
    assert after["two"].controls == ("first",)
    assert after.nodes.keys() == graph.nodes.keys()


def test_constants_behind_others_are_found() -> None:
    graph = from_text(LOOPS.replace("twice = Mul(first, two)", "same = Neg(two)\ntwice = Mul(first, same)"))
    after = settled(graph.with_nodes([]), graph)
    assert after[after["same"].inputs[0].node].controls == ("first",)


def test_what_is_asked_for_outside_stays_there() -> None:
    graph = from_text(LOOPS.replace("z = Mul(x, two)", "z = Neg(two)"))
    after = settled(graph.with_nodes([]), graph)
    assert after[after["z"].inputs[0].node].controls == ()


def test_what_needs_nothing_stays_as_it_is() -> None:
    graph = from_text('outputs: y\nx = Const(1.0)\ny = Relu(x, _class=["loc:@x"])')
    assert to_text(settled(graph.with_nodes([]), graph)) == to_text(graph)
