from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_graphs import compute_outputs, network_graphs
from work import check_work_is_linear

from quantkit.errors import GraphError
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.plugins import find_transform


def op(name: str, kind: str, *inputs: str, controls: tuple[str, ...] = (), **attrs: object) -> Node:
    return Node(name, kind, tuple(map(Edge.parse, inputs)), controls, {"T": DType.FLOAT, **attrs})  # type: ignore[dict-item]


def placeholder(name: str) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(())})


X = placeholder("x")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Generate graphs of small ops with many duplicates, in any file order."""
    nodes = [X]
    for number in range(draw(st.integers(1, 25))):
        before = st.sampled_from([node.name for node in nodes])
        kind = draw(st.sampled_from(["Relu", "Neg", "Add", "Const", "Split"]))
        controls = (draw(before),) if draw(st.integers(0, 4)) == 0 else ()
        if kind == "Const":
            nodes.append(constant(f"n{number}", np.float32(draw(st.sampled_from([0.0, -0.0, 1.0])))))
        else:
            port = draw(st.sampled_from(["", ":1"])) if kind == "Neg" else ""
            inputs = [draw(before) + port for _ in range(2 if kind == "Add" else 1)]
            nodes.append(op(f"n{number}", kind, *inputs, controls=controls))
    outputs = draw(st.lists(st.sampled_from([node.name for node in nodes]), min_size=1, max_size=3, unique=True))
    return Graph.of(draw(st.permutations(nodes)), ["x"], outputs)


def formula(graph: Graph, name: str, expressions: dict[str, str]) -> str:
    """Return the expression that a node computes; equal expressions have equal texts."""
    if name not in expressions:
        node = graph[name]
        inputs = [f"{formula(graph, edge.node, expressions)}:{edge.port}" for edge in node.inputs]
        controls = sorted({formula(graph, control, expressions) for control in node.controls})
        value = str(node.value.array) if node.is_constant else ""
        expressions[name] = f"{node.op}({', '.join(inputs)} after {', '.join(controls)}){value}"
    return expressions[name]


@given(graphs())
def test_outputs_stay_equal_and_no_duplicate_remains(graph: Graph) -> None:
    after = merge_duplicate_nodes(graph)
    verify(after)
    expressions_before: dict[str, str] = {}
    expressions_after: dict[str, str] = {}
    for edge in graph.outputs:
        assert formula(graph, edge.node, expressions_before) == formula(after, edge.node, expressions_after)
    endpoints = {name: name for name in after.endpoint_names}
    inner = [formula(after, name, endpoints) for name in after.nodes]
    assert len(set(inner)) == len(inner)
    assert list(after.nodes) == [name for name in graph.nodes if name in after]


@given(graphs())
def test_merge_is_idempotent_and_deterministic(graph: Graph) -> None:
    once = merge_duplicate_nodes(graph)
    assert merge_duplicate_nodes(once) == once
    assert merge_duplicate_nodes(graph) == once


def test_duplicate_chains_merge_in_any_file_order() -> None:
    nodes = [op("b2", "Neg", "b1"), op("b1", "Relu", "x"), op("a1", "Relu", "x"), op("a2", "Neg", "a1"), X]
    graph = Graph.of([*nodes, op("y", "Add", "a2", "b2")], ["x"], ["y"])
    outcome = merge_duplicate_nodes.outcome(graph)
    assert list(outcome.graph.nodes) == ["b2", "b1", "x", "y"]
    assert outcome.graph["y"].inputs == (Edge("b2"), Edge("b2"))
    assert outcome.changes == ("a2 (Neg) -> b2", "a1 (Relu) -> b1")


def test_ports_and_control_dependencies_move_to_first_duplicate() -> None:
    splits = [op(name, "Split", "axis", "x", num_split=2) for name in ("s", "t")]
    consumers = [op("u", "Neg", "t:1", controls=("t", "s")), op("y", "Relu", "u")]
    after = merge_duplicate_nodes(Graph.of([X, constant("axis", 0), *splits, *consumers], ["x"], ["y"]))
    assert after["u"].inputs == (Edge("s", 1),)
    assert after["u"].controls == ("s",)


@pytest.mark.parametrize(
    "other",
    [
        op("b", "Relu", "x", controls=("x",)),
        op("b", "Relu", "x:1"),
        op("b", "Relu", "x").with_(device="/cpu:0"),
        op("b", "Relu", "x", T=DType.HALF),
        op("b", "Relu", "x", extra=1),
        op("b", "Relu6", "x"),
    ],
)
def test_nodes_with_any_difference_stay(other: Node) -> None:
    graph = Graph.of([X, op("a", "Relu", "x", extra=True), op("c", "Relu", "x"), other], ["x"], ["x"])
    assert set(merge_duplicate_nodes(graph).nodes) >= {"a", "b", "c"}


def test_inputs_outputs_and_placeholders_stay() -> None:
    duplicates = [op("a", "Relu", "x"), op("b", "Relu", "x"), op("c", "Relu", "x")]
    graph = Graph.of([X, placeholder("z"), *duplicates], [], ["a:0", "b"])
    assert merge_duplicate_nodes(graph) == graph


def test_stateful_and_unknown_ops_are_skipped() -> None:
    duplicates = [op(f"{kind}{number}", kind, "x") for kind in ("RandomUniform", "MyOp") for number in (1, 2)]
    consumers = [op(f"r{node.name}", "Relu", node.name) for node in duplicates]
    graph = Graph.of([X, *duplicates, *consumers], ["x"], ["rMyOp1"])
    outcome = merge_duplicate_nodes.outcome(graph)
    assert outcome.graph == graph
    assert [str(skip) for skip in outcome.skips] == [
        "RandomUniform2: duplicate of RandomUniform1, but RandomUniform is stateful",
        "MyOp2: duplicate of MyOp1, but MyOp is an unknown op",
    ]


def test_constants_are_compared_by_bits() -> None:
    long = np.zeros(1000, np.float32)
    other = long.copy()
    other[-1] = 1
    values = {"a": long, "b": long.copy(), "c": other, "d": long.reshape(10, 100), "e": long.astype(np.int32)}
    nodes = [constant(name, array) for name, array in values.items()]
    strings = [constant(name, np.array([text], object)) for name, text in (("f", b"1"), ("g", b"2"), ("h", b"1"))]
    after = merge_duplicate_nodes(Graph.of([*nodes, *strings]))
    assert list(after.nodes) == ["a", "c", "d", "e", "f", "g"]


def test_constant_of_unique_type_and_shape_is_not_loaded() -> None:
    def load() -> Array:
        raise AssertionError("the constant was loaded")

    unique = constant("a", Tensor(DType.FLOAT, (5, 5), load))
    variants = [constant(name, Tensor(DType.VARIANT, (), load)) for name in ("v", "w")]
    graph = Graph.of([unique, *variants, constant("b", np.zeros((5, 6), np.float32))])
    assert merge_duplicate_nodes(graph) == graph


def test_duplicates_in_loop_merge_and_cycle_is_rejected() -> None:
    loop = [op("enter", "Enter", "x"), op("merge", "Merge", "enter", "next"), op("next", "NextIteration", "merge")]
    duplicates = [op("a", "Relu", "merge"), op("b", "Relu", "merge"), op("y", "Add", "a", "b")]
    after = merge_duplicate_nodes(Graph.of([X, *loop, *duplicates], ["x"], ["y"]))
    assert after["y"].inputs == (Edge("a"), Edge("a"))
    with pytest.raises(GraphError, match="cycle"):
        merge_duplicate_nodes(Graph.of([op("a", "Relu", "b"), op("b", "Relu", "a")]))


def copies(count: int) -> Graph:
    """Return a graph of seven different branches after one Relu, each repeated many times."""
    nodes = [X]
    for number in range(count):
        nodes += [
            constant(f"c{number}", np.array([number % 7], np.float32)),
            op(f"r{number}", "Relu", "x"),
            op(f"a{number}", "Add", f"r{number}", f"c{number}"),
            op(f"b{number}", "Neg", f"a{number}"),
        ]
    return Graph.of(nodes, ["x"], ["b0"])


def test_merge_runs_in_linear_time() -> None:
    def work(count: int) -> Callable[[], object]:
        graph = copies(count)
        return lambda: merge_duplicate_nodes(graph)

    assert len(merge_duplicate_nodes(copies(100))) == 1 + 7 + 1 + 7 + 8
    check_work_is_linear(work, 50)


@pytest.mark.parametrize("kind", ["AssignAdd", "QueueDequeue", "ScatterUpdate", "CountUpTo"])
def test_ops_that_change_state_of_another_op_stay(kind: str) -> None:
    duplicates = [op(name, kind, "v", "x") for name in ("a", "b")]
    graph = Graph.of([X, Node("v", "VariableV2"), *duplicates, op("y", "Add", "a", "b")], ["x"], ["y"])
    outcome = merge_duplicate_nodes.outcome(graph)
    assert outcome.graph == graph
    assert [str(skip) for skip in outcome.skips] == [f"b: duplicate of a, but {kind} is stateful"]


@pytest.mark.parametrize(
    ("kind", "dtype", "are_equal"),
    [("Add", DType.FLOAT, True), ("Mul", DType.FLOAT, True), ("Sub", DType.FLOAT, False), ("Add", DType.STRING, False)],
)
def test_commutative_option_ignores_order_of_two_inputs(kind: str, dtype: DType, are_equal: bool) -> None:
    nodes = [X, placeholder("z"), op("a", kind, "x", "z", T=dtype), op("b", kind, "z", "x", T=dtype)]
    graph = Graph.of([*nodes, op("y", "Div", "a", "b")], ["x", "z"], ["y"])
    assert merge_duplicate_nodes(graph) == graph
    assert ("b" in merge_duplicate_nodes(graph, commutative=True)) is not are_equal


FOLDING = (
    "fold_constants fold_batch_norms fold_old_batch_norms fold_pads fold_clamps simplify_arithmetic quantize_weights"
)


@pytest.mark.parametrize("later", FOLDING.split())
@settings(max_examples=15)
@given(graph=network_graphs())
def test_merge_is_safe_before_other_transforms(later: str, graph: Graph) -> None:
    merged = merge_duplicate_nodes(graph, commutative=True)
    expected, actual = compute_outputs(find_transform(later)(graph)), compute_outputs(find_transform(later)(merged))
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=2e-5, atol=2e-5 * max(1, np.abs(values).max()))
