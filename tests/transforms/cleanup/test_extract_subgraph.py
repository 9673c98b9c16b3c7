"""Tests of extract_subgraph."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_linear_work, placeholder

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes import find_runtime
from quantkit.transforms.cleanup.extract_subgraph import extract_subgraph

FLOAT = {"T": DType.FLOAT}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Generate small expressions with splits and control dependencies."""
    nodes = [placeholder((4,)), constant("axis", np.int32(0))]
    edges = [Edge("x")]
    for number in range(draw(st.integers(2, 10))):
        op = draw(st.sampled_from(["Neg", "AddV2", "Split"]))
        inputs = [draw(st.sampled_from(edges)) for _ in range(2 if op == "AddV2" else 1)]
        controls = (draw(st.sampled_from(nodes)).name,) if draw(st.booleans()) else ()
        attrs = {**FLOAT, "num_split": 1} if op == "Split" else FLOAT
        operands = (Edge("axis"), *inputs) if op == "Split" else tuple(inputs)
        nodes.append(Node(f"n{number}", op, operands, controls, attrs))
        edges.append(Edge(f"n{number}"))
    return Graph.of(nodes, ["x"], [edges[-1]])


def run(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    with find_runtime("reference").open(graph) as session:
        return session.run(feeds)


@given(graphs(), st.data())
def test_subgraph_computes_values_of_original_graph(graph: Graph, data: st.DataObject) -> None:
    names = [name for name in graph.nodes if name not in ("x", "axis")]
    inputs = data.draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    outputs = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    copy = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs)
    part = extract_subgraph(graph, inputs=tuple(inputs), outputs=tuple(outputs))
    verify(part)
    assert graph == copy
    assert [str(edge) for edge in part.outputs] == outputs
    all_outputs = graph.with_endpoints(["x"], [Edge(name) for name in ("x", *names)])
    expected = run(all_outputs, {"x": np.array([1, -2, 3, 5], np.float32)})
    actual = run(part, {edge.node: expected[edge.node] for edge in part.inputs})
    for name in outputs:
        np.testing.assert_array_equal(actual[name], expected[name])
    assert extract_subgraph(part, inputs=tuple(edge.node for edge in part.inputs), outputs=tuple(outputs)) == part


def test_placeholder_types_and_shapes_are_inferred() -> None:
    nodes = [
        placeholder((2, 3)),
        Node("s", "Shape", (Edge("x"),), attrs={**FLOAT, "out_type": DType.INT64}),
        Node("f", "FusedBatchNormV3", tuple(Edge("x") for _ in range(5)), attrs={**FLOAT, "U": DType.FLOAT}),
        Node("n", "Neg", (Edge("f", 1),), attrs=FLOAT),
        Node("m", "Neg", (Edge("s"),), attrs={"T": DType.INT64}),
    ]
    part = extract_subgraph(Graph.of(nodes, ["x"], ["n"]), inputs=("s", "f:1"), outputs=("n", "m"))
    assert part.inputs == (Edge("s"), Edge("f"))
    assert part["s"].attrs == {"dtype": DType.INT64, "shape": Shape((2,))}
    assert part["f"].attrs == {"dtype": DType.FLOAT, "shape": Shape(None)}
    assert part["n"].inputs == (Edge("f"),)


def test_edge_can_be_input_and_output() -> None:
    graph = Graph.of([placeholder((2,)), Node("n", "Neg", (Edge("x"),), attrs=FLOAT)], ["x"], ["n"])
    part = extract_subgraph(graph, inputs=("n",), outputs=("n",))
    assert (list(part.nodes), part["n"].op, part.inputs, part.outputs) == (
        ["n"],
        "Placeholder",
        (Edge("n"),),
        (Edge("n"),),
    )


def test_unknown_edge_and_unknown_type_are_rejected() -> None:
    graph = Graph.of([placeholder((2,)), Node("n", "Mine", (Edge("x"),)), Node("y", "Neg", (Edge("n"),))], ["x"], ["y"])
    with pytest.raises(RecipeError, match="extract_subgraph: 'm:1' is not in the graph"):
        extract_subgraph(graph, inputs=("m:1",))
    with pytest.raises(GraphError, match=r"cannot determine the element type of 'n' \(Mine\)"):
        extract_subgraph(graph, inputs=("n",))


def test_missing_control_dependency_is_rejected() -> None:
    graph = Graph.of([placeholder((2,)), Node("n", "Neg", (Edge("x"),), ("missing",), FLOAT)], ["x"], ["n"])
    with pytest.raises(GraphError, match="'missing', which is not in the graph"):
        extract_subgraph(graph)


def test_extract_subgraph_runs_in_linear_time() -> None:
    def chain(count: int) -> Graph:
        sources = ["x", *(f"n{number}" for number in range(count))]
        nodes = [Node(f"n{number}", "Neg", (Edge(sources[number]),), attrs=FLOAT) for number in range(count)]
        return Graph.of([placeholder((2,)), *nodes], ["x"], [nodes[-1].name])

    check_linear_work(extract_subgraph, chain, inputs=("n7",))
