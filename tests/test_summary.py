import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.summary import summarize


def layer(*batch: int | None) -> Graph:
    place = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((*batch, 3))})
    weights = constant("w", np.ones((3, 5), np.float32))
    passing = Node("same", "Identity", (Edge("x"),), attrs={"T": DType.FLOAT})
    product = Node("y", "MatMul", (Edge("same"), Edge("w")), attrs={"T": DType.FLOAT})
    return Graph.of([place, weights, passing, product], ["x"], ["y"])


def test_an_open_batch_is_shown_open_and_counted_as_one() -> None:
    found = summarize(layer(None))
    assert [end.shape for end in (*found.inputs, *found.outputs)] == [Shape((None, 3)), Shape((None, 5))]
    assert found.multiply_adds == 15
    assert summarize(layer(2)).multiply_adds == 30


def test_the_next_command_can_be_pasted() -> None:
    assert "quantkit transform 'my model.pb' -o OUT.pb" in str(summarize(layer(1), name="my model.pb"))


def test_what_a_loop_multiplies_is_not_known() -> None:
    graph = layer(1)
    loop = Node("loop", "StatelessWhile", (Edge("y"),))
    assert summarize(Graph.of([*graph.nodes.values(), loop], ["x"], ["loop"])).multiply_adds is None
