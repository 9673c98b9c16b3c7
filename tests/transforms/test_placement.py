"""Tests of loop frames and colocations after a transform."""

from quantkit.ir.text import from_text, to_text
from quantkit.transforms._placement import restore_placement

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


def test_constant_used_in_two_loops_is_copied_into_each() -> None:
    graph = from_text(LOOPS)
    after = restore_placement(graph.with_nodes([]), graph)
    assert after["two"].controls == ()
    assert after["z"].inputs[1].node == "two"
    copies = {consumer: after[after[consumer].inputs[1].node] for consumer in ("twice", "more")}
    assert [node.controls for node in copies.values()] == [("first",), ("second",)]
    assert len({node.name for node in copies.values()}) == 2
    assert restore_placement(graph, after) == after


def test_constant_used_in_one_loop_keeps_its_name() -> None:
    graph = from_text(LOOPS.replace("z = Mul(x, two)", "z = Relu(x)").replace("Mul(second, two)", "Neg(second)"))
    after = restore_placement(graph.with_nodes([]), graph)
    assert after["two"].controls == ("first",)
    assert after.nodes.keys() == graph.nodes.keys()


def test_constant_used_indirectly_is_placed_in_loop() -> None:
    graph = from_text(LOOPS.replace("twice = Mul(first, two)", "same = Neg(two)\ntwice = Mul(first, same)"))
    after = restore_placement(graph.with_nodes([]), graph)
    assert after[after["same"].inputs[0].node].controls == ("first",)


def test_constant_used_by_graph_output_stays_outside() -> None:
    graph = from_text(LOOPS.replace("z = Mul(x, two)", "z = Neg(two)"))
    after = restore_placement(graph.with_nodes([]), graph)
    assert after[after["z"].inputs[0].node].controls == ()


def test_graph_without_loops_stays_unchanged() -> None:
    graph = from_text('outputs: y\nx = Const(1.0)\ny = Relu(x, _class=["loc:@x"])')
    assert to_text(restore_placement(graph.with_nodes([]), graph)) == to_text(graph)
