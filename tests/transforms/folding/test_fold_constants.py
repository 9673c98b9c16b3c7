"""Constant folding: values, limits, control dependencies and skips."""

import numpy as np
import pytest

from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ir.text import from_text
from quantkit.runtimes import open_session
from quantkit.transforms.plugins import find_transform

fold_constants = find_transform("fold_constants")
FLOAT = {"T": DType.FLOAT}


def graph_of(*nodes: Node, outputs: tuple[str, ...] = ("y",), inputs: tuple[str, ...] = ("x",)) -> Graph:
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((2, 3))})
    return Graph.of([x, constant("two", np.float32(2)), constant("three", np.float32(3)), *nodes], inputs, outputs)


ADD = Node("five", "Add", (Edge("two"), Edge("three")), attrs=FLOAT)
MUL = Node("y", "Mul", (Edge("x"), Edge("five")), attrs=FLOAT)


def test_constant_replaces_computed_node() -> None:
    outcome = fold_constants.outcome(graph_of(ADD, MUL))
    assert outcome.graph["y"].inputs == (Edge("x"), Edge("five/_0__cf__0"))
    assert outcome.graph["five/_0__cf__0"].value.array == np.float32(5)
    assert set(outcome.graph.nodes) == {"x", "y", "five/_0__cf__0"}
    assert outcome.changes == ("five (Add) becomes five/_0__cf__0",)
    verify(outcome.graph)


def test_constant_output_keeps_its_name() -> None:
    """The classic tool does not fold such a graph."""
    folded = fold_constants(graph_of(ADD, MUL, outputs=("y", "five")))
    assert folded["five"].op == "Const"
    assert folded["y"].inputs == (Edge("x"), Edge("five"))


def test_identities_of_constants_share_the_constant() -> None:
    weights = constant("w", np.zeros((3, 3), np.float32))
    read = Node("read", "Identity", (Edge("w"),), attrs=FLOAT)
    folded = fold_constants(graph_of(weights, read, Node("y", "MatMul", (Edge("x"), Edge("read")), attrs=FLOAT)))
    assert folded["y"].inputs == (Edge("x"), Edge("w"))
    assert folded["w"].value is weights.value


def test_each_output_of_a_node_becomes_a_constant() -> None:
    split = Node("s", "Split", (Edge("axis"), Edge("v")), attrs={"T": DType.FLOAT, "num_split": 2})
    first = Node("a", "Mul", (Edge("x"), Edge("s")), attrs=FLOAT)
    folded = fold_constants(
        graph_of(
            constant("axis", np.int32(0)),
            constant("v", np.array([1, 2], np.float32)),
            split,
            first,
            Node("y", "Mul", (Edge("a"), Edge("s", 1)), attrs=FLOAT),
        )
    )
    assert folded["a"].inputs[1] == Edge("s/_0__cf__0")
    assert folded["y"].inputs[1] == Edge("s/_1__cf__1")
    assert folded["s/_1__cf__1"].value.array == np.array([2], np.float32)


def test_new_names_do_not_clash() -> None:
    existing = constant("five/_0__cf__0", np.float32(1))
    folded = fold_constants(
        graph_of(existing, ADD, MUL.with_(name="m"), Node("y", "Add", (Edge("m"), Edge(existing.name)), attrs=FLOAT))
    )
    assert folded["m"].inputs[1] == Edge("five/_0__cf__1")


def test_control_dependencies_move_to_constant() -> None:
    guarded = ADD.with_(controls=("guard",))
    guard = Node("guard", "Assert", (Edge("x"),))
    folded = fold_constants(graph_of(guard, guarded, MUL))
    assert folded["five/_0__cf__0"].controls == ("guard",)


def test_constants_with_control_dependencies_stay() -> None:
    late = constant("two", np.float32(2)).with_(controls=("x",))
    graph = graph_of(ADD, MUL)
    graph = graph.with_nodes(late if node.name == "two" else node for node in graph.nodes.values())
    assert "five" in fold_constants(graph)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"exclude_op": ("Add",)}, "exclude_op=Add"),
        ({"exclude_node": ("five",)}, "listed in exclude_node"),
        ({"max_constant_size_in_bytes": 3}, "has 4 bytes"),
    ],
)
def test_options_exclude_nodes(options: dict[str, object], reason: str) -> None:
    outcome = fold_constants.outcome(graph_of(ADD, MUL), **options)
    assert "five" in outcome.graph
    assert reason in outcome.skips[0].reason


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("RandomUniform", "is stateful or random"),
        ("Switch", "belongs to a loop or a branch"),
        ("BesselI0e", "no NumPy kernel for BesselI0e; use --evaluate-with tensorflow"),
        ("Reshape", "evaluation fails"),
    ],
)
def test_node_that_cannot_be_computed_is_skipped(op: str, reason: str) -> None:
    count = {"Switch": 2, "Reshape": 2}.get(op, 1)
    odd = Node("odd", op, (Edge("two"), Edge("three"))[:count], attrs={**FLOAT, "dtype": DType.FLOAT})
    outcome = fold_constants.outcome(graph_of(odd, Node("y", "Mul", (Edge("x"), Edge("odd")), attrs=FLOAT)))
    assert "odd" in outcome.graph
    assert reason in outcome.skips[0].reason


def test_known_shapes_fold() -> None:
    shape = Node("shape", "Shape", (Edge("x"),), attrs={"T": DType.FLOAT, "out_type": DType.INT32})
    folded = fold_constants(
        graph_of(shape, Node("y", "Reshape", (Edge("x"), Edge("shape")), attrs={**FLOAT, "Tshape": DType.INT32}))
    )
    np.testing.assert_array_equal(folded[folded["y"].inputs[1].node].value.array, [2, 3])


def test_clear_output_shapes_removes_attribute() -> None:
    annotated = MUL.with_attrs(_output_shapes=(Shape((2, 3)),))
    assert "_output_shapes" not in fold_constants(graph_of(ADD, annotated))["y"].attrs
    assert "_output_shapes" in fold_constants(graph_of(ADD, annotated), clear_output_shapes=False)["y"].attrs


def test_default_folds_unless_placeholder_is_graph_input() -> None:
    attrs = {"dtype": DType.FLOAT, "shape": Shape(())}
    factor = Node("factor", "PlaceholderWithDefault", (Edge("two"),), attrs=attrs)
    graph = graph_of(factor, Node("y", "Mul", (Edge("x"), Edge("factor")), attrs=FLOAT))
    assert fold_constants(graph)["y"].inputs == (Edge("x"), Edge("factor/_0__cf__0"))
    folded = fold_constants(graph.with_(inputs=(Edge("x"), Edge("factor"))))
    assert (folded["factor"].op, folded["factor"].inputs) == ("Placeholder", ())


def test_outputs_stay_equal() -> None:
    graph = graph_of(ADD, MUL)
    feeds = {"x": np.float32(np.arange(6).reshape(2, 3))}
    with open_session(graph, "reference") as before, open_session(fold_constants(graph), "reference") as after:
        np.testing.assert_array_equal(before.run(feeds)["y"], after.run(feeds)["y"])


@pytest.mark.engine
def test_tensorflow_computes_ops_without_numpy_kernel() -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    from quantkit.runtimes.tensorflow_constants import evaluate_with_tensorflow

    odd = Node("odd", "BesselI0e", (Edge("two"),), attrs=FLOAT)
    graph = graph_of(odd, Node("y", "Mul", (Edge("x"), Edge("odd")), attrs=FLOAT))
    folded = fold_constants(graph, evaluate=evaluate_with_tensorflow())
    np.testing.assert_allclose(folded["odd/_0__cf__0"].value.array, 0.30850832, rtol=1e-5)


def test_values_without_folded_consumer_are_not_loaded() -> None:
    big = Tensor(DType.FLOAT, (1000, 1000), lambda: pytest.fail("the values are not needed"))
    weights = Node("w", "Const", attrs={"dtype": DType.FLOAT, "value": big})
    read = Node("read", "Identity", (Edge("w"),), attrs=FLOAT)
    folded = fold_constants(graph_of(weights, read, Node("y", "MatMul", (Edge("x"), Edge("read")), attrs=FLOAT)))
    assert folded["y"].inputs == (Edge("x"), Edge("w"))


NAN, INF = float("nan"), float("inf")
ONNX = "dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[1x3]()\n"


@pytest.mark.parametrize(
    "node",
    [
        "n = ArgMin(c, axis=1)",
        "n = ArgMax(c, axis=1, select_last_index=1)",
        "n = ReduceMax(c)",
        "n = ReduceMin(c, keepdims=0)",
        "n = Hardmax(c)",
        "n = Relu(c)",
        "n = Max(c, one)",
        "n = Clip(one, c)",
        "n = MaxPool(image, kernel_shape=[2])",
        "n = Pow(minus, half)",
    ],
)
def test_values_that_depend_on_the_runtime_are_not_folded(node: str) -> None:
    constants = "c = Constant([[0.0, nan, -1.0]])\none = Constant(1.0)\nimage = Constant([[[nan, 0.0, 1.0]]])\n"
    more = "minus = Constant([-inf, -2.0])\nhalf = Constant(0.5)\n"
    outcome = fold_constants.outcome(from_text(f"{ONNX}{constants}{more}{node}\ny = Where(x, x, n)"))
    assert outcome.graph["n"].op == node.split()[2].partition("(")[0]
    assert [skip.node for skip in outcome.skips] == ["n"]
    assert "NaN depends on the runtime" in outcome.skips[0].reason


@pytest.mark.parametrize(
    ("node", "value"),
    [
        ("n = Add(c, c)", [[0, NAN, -2]]),
        ("n = IsNaN(c)", [[False, True, False]]),
        ("n = Transpose(c, perm=[1, 0])", [[0], [NAN], [-1]]),
        ("n = ReduceLogSumExp(i, keepdims=0)", INF),
        ("n = CumSum(i, zero, exclusive=1)", [0, 1, INF]),
        ("n = ReduceMax(i, keepdims=0)", INF),
    ],
)
def test_nan_and_infinity_that_all_runtimes_agree_on_are_folded(node: str, value: object) -> None:
    constants = "c = Constant([[0.0, nan, -1.0]])\ni = Constant([1.0, inf, 2.0])\nzero = Constant[int64](0)\n"
    folded = fold_constants(from_text(f"{ONNX}{constants}{node}\ny = Where(x, x, n)"))
    np.testing.assert_array_equal(folded["n"].value.array, value)


@pytest.mark.parametrize(
    ("node", "value"),
    [
        ("n = Div(low, three)", [-715827882, 2, -2, 0]),
        ("n = Div(low, minus)", [1073741824, -3, 3, 0]),
        ("n = Mod(low, three)", [1, 1, 2, 1]),
        ("n = Mod(low, minus, fmod=1)", [0, 1, -1, 1]),
    ],
)
def test_integers_are_divided_as_the_runtimes_do(node: str, value: list[int]) -> None:
    constants = (
        "low = Constant[int32]([-2147483648, 7, -7, 1])\nthree = Constant[int32](3)\nminus = Constant[int32](-2)\n"
    )
    folded = fold_constants(from_text(f"{ONNX}{constants}{node}\ny = Where(x, x, n)"))
    np.testing.assert_array_equal(folded["n"].value.array, value)


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("rounding", ["floor", "ceil"])
def test_positions_of_resize_are_rounded_as_in_onnxruntime(mode: str, rounding: str) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    graph = from_text(f"""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x1x4x5]()
        scales = Constant([1.0, 1.0, 1.7, 0.6])
        "" = Absent()
        y = Resize(x, "", scales, mode=nearest, coordinate_transformation_mode={mode}, nearest_mode={rounding})
    """)
    feeds = {"x": np.arange(20, dtype=np.float32).reshape(1, 1, 4, 5)}
    with open_session(graph, "reference") as kernels, open_session(graph, "onnxruntime") as runtime:
        np.testing.assert_array_equal(kernels.run(feeds)["y"], runtime.run(feeds)["y"])


@pytest.mark.parametrize("node", ["ArgMax(c, axis)", "Max(c, axes)", "TopKV2(c, two)", "Maximum(c, c)", "Round(c)"])
def test_tensorflow_ops_keep_constants_with_nan(node: str) -> None:
    outcome = fold_constants.outcome(
        from_text(
            "inputs: x\noutputs: n\nx = Placeholder[3]()\nc = Const([0.0, nan, -1.0])\naxis = Const[int32](0)\n"
            f"axes = Const[int32]([0])\ntwo = Const[int32](2)\nn = {node}"
        )
    )
    assert outcome.graph["n"].op == node.partition("(")[0]
    assert "NaN depends on the runtime" in outcome.skips[0].reason


def test_sizes_do_not_come_from_values_that_depend_on_the_runtime() -> None:
    nodes = """
        c = Constant([0.0, nan, -1.0])
        largest = ReduceMax(c, keepdims=0)
        zero = Constant(0.0)
        is_less = Less(largest, zero)
        one = Constant[int64]([1])
        three = Constant[int64]([3])
        size = Where(is_less, one, three)
        y = Expand(x, size)
    """
    assert {"largest", "is_less", "size"} <= fold_constants(from_text(ONNX + nodes)).nodes.keys()
