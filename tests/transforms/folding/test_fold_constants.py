"""Computing what does not depend on the inputs: values, limits, control edges, and what is left alone."""

import numpy as np
import pytest

from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.runtimes import open_session
from quantkit.transforms.registry import find_transform

fold_constants = find_transform("fold_constants")
FLOAT = {"T": DType.FLOAT}


def graph_of(*nodes: Node, outputs: tuple[str, ...] = ("y",), inputs: tuple[str, ...] = ("x",)) -> Graph:
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((2, 3))})
    return Graph.of([x, constant("two", np.float32(2)), constant("three", np.float32(3)), *nodes], inputs, outputs)


ADD = Node("five", "Add", (Edge("two"), Edge("three")), attrs=FLOAT)
MUL = Node("y", "Mul", (Edge("x"), Edge("five")), attrs=FLOAT)


def test_a_constant_takes_the_place_of_what_makes_it() -> None:
    outcome = fold_constants.outcome(graph_of(ADD, MUL))
    assert outcome.graph["y"].inputs == (Edge("x"), Edge("five/_0__cf__0"))
    assert outcome.graph["five/_0__cf__0"].value.array == np.float32(5)
    assert set(outcome.graph.nodes) == {"x", "y", "five/_0__cf__0"}
    assert outcome.changes == ("five (Add) becomes five/_0__cf__0",)
    verify(outcome.graph)


def test_an_output_that_is_constant_keeps_its_name() -> None:
    """The original leaves such a graph unfolded."""
    made = fold_constants(graph_of(ADD, MUL, outputs=("y", "five")))
    assert made["five"].op == "Const"
    assert made["y"].inputs == (Edge("x"), Edge("five"))


def test_identities_of_constants_share_the_constant() -> None:
    weights = constant("w", np.zeros((3, 3), np.float32))
    read = Node("read", "Identity", (Edge("w"),), attrs=FLOAT)
    made = fold_constants(graph_of(weights, read, Node("y", "MatMul", (Edge("x"), Edge("read")), attrs=FLOAT)))
    assert made["y"].inputs == (Edge("x"), Edge("w"))
    assert made["w"].value is weights.value


def test_several_outputs_of_one_node() -> None:
    split = Node("s", "Split", (Edge("axis"), Edge("v")), attrs={"T": DType.FLOAT, "num_split": 2})
    first = Node("a", "Mul", (Edge("x"), Edge("s")), attrs=FLOAT)
    made = fold_constants(
        graph_of(
            constant("axis", np.int32(0)),
            constant("v", np.float32([1, 2])),
            split,
            first,
            Node("y", "Mul", (Edge("a"), Edge("s", 1)), attrs=FLOAT),
        )
    )
    assert made["a"].inputs[1] == Edge("s/_0__cf__0")
    assert made["y"].inputs[1] == Edge("s/_1__cf__1")
    assert made["s/_1__cf__1"].value.array == np.float32([2])


def test_new_names_do_not_clash() -> None:
    taken = constant("five/_0__cf__0", np.float32(1))
    made = fold_constants(
        graph_of(taken, ADD, MUL.with_(name="m"), Node("y", "Add", (Edge("m"), Edge(taken.name)), attrs=FLOAT))
    )
    assert made["m"].inputs[1] == Edge("five/_0__cf__1")


def test_control_inputs_carry_over() -> None:
    guarded = ADD.with_(controls=("guard",))
    guard = Node("guard", "Assert", (Edge("x"),))
    made = fold_constants(graph_of(guard, guarded, MUL))
    assert made["five/_0__cf__0"].controls == ("guard",)


def test_constants_that_wait_are_left_alone() -> None:
    late = constant("two", np.float32(2)).with_(controls=("x",))
    graph = graph_of(ADD, MUL)
    graph = graph.with_nodes(late if node.name == "two" else node for node in graph.nodes.values())
    assert "five" in fold_constants(graph)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"exclude_op": ("Add",)}, "it is excluded"),
        ({"exclude_node": ("five",)}, "it is excluded"),
        ({"max_constant_size_in_bytes": 3}, "would take 4 bytes"),
    ],
)
def test_limits(options: dict[str, object], reason: str) -> None:
    outcome = fold_constants.outcome(graph_of(ADD, MUL), **options)
    assert "five" in outcome.graph
    assert reason in outcome.skips[0].reason


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("RandomUniform", "keeps state or gives another result"),
        ("Switch", "belongs to a loop or a branch"),
        ("BesselI0e", "no NumPy kernel for BesselI0e; --evaluate-with tensorflow"),
        ("Reshape", "computing it fails"),
    ],
)
def test_what_can_not_be_computed_stays_with_a_reason(op: str, reason: str) -> None:
    count = {"Switch": 2, "Reshape": 2}.get(op, 1)
    odd = Node("odd", op, (Edge("two"), Edge("three"))[:count], attrs={**FLOAT, "dtype": DType.FLOAT})
    outcome = fold_constants.outcome(graph_of(odd, Node("y", "Mul", (Edge("x"), Edge("odd")), attrs=FLOAT)))
    assert "odd" in outcome.graph
    assert reason in outcome.skips[0].reason


def test_shapes_that_are_known_fold() -> None:
    shape = Node("shape", "Shape", (Edge("x"),), attrs={"T": DType.FLOAT, "out_type": DType.INT32})
    made = fold_constants(
        graph_of(shape, Node("y", "Reshape", (Edge("x"), Edge("shape")), attrs={**FLOAT, "Tshape": DType.INT32}))
    )
    np.testing.assert_array_equal(made[made["y"].inputs[1].node].value.array, [2, 3])


def test_stale_shapes_are_dropped_on_request() -> None:
    noted = MUL.with_attrs(_output_shapes=(Shape((2, 3)),))
    assert "_output_shapes" not in fold_constants(graph_of(ADD, noted))["y"].attrs
    assert "_output_shapes" in fold_constants(graph_of(ADD, noted), clear_output_shapes=False)["y"].attrs


def test_a_default_that_is_fed_is_none_and_one_that_is_not_folds() -> None:
    fed = Node("fed", "PlaceholderWithDefault", (Edge("two"),), attrs={"dtype": DType.FLOAT, "shape": Shape(())})
    graph = graph_of(fed, Node("y", "Mul", (Edge("x"), Edge("fed")), attrs=FLOAT))
    assert fold_constants(graph)["y"].inputs == (Edge("x"), Edge("fed/_0__cf__0"))
    made = fold_constants(graph.with_(inputs=(Edge("x"), Edge("fed"))))
    assert (made["fed"].op, made["fed"].inputs) == ("Placeholder", ())


def test_answers_stay() -> None:
    graph = graph_of(ADD, MUL)
    feeds = {"x": np.float32(np.arange(6).reshape(2, 3))}
    with open_session(graph, "reference") as before, open_session(fold_constants(graph), "reference") as after:
        np.testing.assert_array_equal(before.run(feeds)["y"], after.run(feeds)["y"])


@pytest.mark.engine
def test_tensorflow_computes_what_numpy_has_no_kernel_for() -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    from quantkit.runtimes.tensorflow_constants import evaluate_with_tensorflow

    odd = Node("odd", "BesselI0e", (Edge("two"),), attrs=FLOAT)
    graph = graph_of(odd, Node("y", "Mul", (Edge("x"), Edge("odd")), attrs=FLOAT))
    made = fold_constants(graph, evaluate=evaluate_with_tensorflow())
    np.testing.assert_allclose(made["odd/_0__cf__0"].value.array, 0.30850832, rtol=1e-5)


def test_values_that_nothing_folds_are_not_read() -> None:
    big = Tensor(DType.FLOAT, (1000, 1000), lambda: pytest.fail("nothing needs its values"))
    weights = Node("w", "Const", attrs={"dtype": DType.FLOAT, "value": big})
    read = Node("read", "Identity", (Edge("w"),), attrs=FLOAT)
    made = fold_constants(graph_of(weights, read, Node("y", "MatMul", (Edge("x"), Edge("read")), attrs=FLOAT)))
    assert made["y"].inputs == (Edge("x"), Edge("w"))
