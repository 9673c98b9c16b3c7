"""Preprocessing in the graph, before the graph, or both, in front of all kinds of layers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_linear_work, placeholder

from quantkit.errors import RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType
from quantkit.runtimes import find_runtime
from quantkit.transforms.folding.absorb_preprocessing import absorb_preprocessing

PIXELS = np.random.default_rng(0).integers(0, 256, (1, 5, 5, 3), np.uint8)
FLOAT: dict[str, Attr] = {"T": DType.FLOAT}


def outputs(graph: Graph, pixels: Array) -> dict[str, Array]:
    with find_runtime("reference").open(graph) as session:
        return session.run({"x": pixels})


@st.composite
def preprocessed_images(draw: st.DrawFn) -> Graph:
    """Return a graph with arithmetic on an image, and with consumers of the result."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    nodes = [placeholder((1, 5, 5, 3))]
    last = "x"
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["Sub", "Mul", "Add", "RealDiv", "Identity"]))
        shape = draw(st.sampled_from([(), (3,), (1, 1, 1, 3), (1,)]))
        edges = [Edge(last)]
        if kind != "Identity":
            nodes.append(constant(f"c{number}", random.uniform(0.5, 2, shape).astype(np.float32)))
            edges.append(Edge(f"c{number}"))
        if kind in ("Mul", "Add", "Sub") and draw(st.booleans()):
            edges.reverse()
        last = f"p{number}"
        nodes.append(Node(last, kind, tuple(edges), attrs=FLOAT))
    names = []
    for number in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["Conv2D", "Conv2D", "DepthwiseConv2dNative", "Relu"]))
        name = f"y{number}"
        names.append(name)
        if kind == "Relu":
            if draw(st.booleans()):
                nodes.append(Node(name, kind, (Edge(last),), attrs=FLOAT))
            else:
                nodes.append(Node(name, "Neg", (Edge("x"),), attrs=FLOAT))
            continue
        nodes.append(constant(f"w{number}", random.uniform(-1, 1, (2, 2, 3, 2)).astype(np.float32)))
        attrs = {**FLOAT, "strides": (1, 1, 1, 1), "padding": draw(st.sampled_from([b"SAME", b"VALID"]))}
        has_bias = draw(st.booleans())
        layer = f"{name}/layer" if has_bias else name
        nodes.append(Node(layer, kind, (Edge(last), Edge(f"w{number}")), attrs=attrs))
        if has_bias:
            channels = 2 if kind == "Conv2D" else 6
            nodes.append(constant(f"b{number}", random.uniform(-1, 1, channels).astype(np.float32)))
            nodes.append(Node(name, "BiasAdd", (Edge(layer), Edge(f"b{number}")), attrs=FLOAT))
            if draw(st.booleans()):
                names.append(layer)
    return Graph.of(nodes, ["x"], names)


@given(
    preprocessed_images(),
    st.sampled_from([(), (128.0,), (120.0, 100.0, 110.0)]),
    st.sampled_from([(), (64.0,), (50.0, 60.0, 70.0)]),
)
def test_outputs_stay_equal_for_uint8_input(graph: Graph, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    copy = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs)
    outcome = absorb_preprocessing.outcome(graph, mean=mean, std=std)
    verify(outcome.graph)
    assert graph == copy
    assert (outcome.graph.inputs, outcome.graph.outputs) == (graph.inputs, graph.outputs)
    if outcome.changes:
        assert outcome.graph["x"].attrs["dtype"] is DType.UINT8
        image = ((PIXELS - np.array(mean or 0, np.float64)) / np.array(std or 1, np.float64)).astype(np.float32)
        expected, actual = outputs(graph, image), outputs(outcome.graph, PIXELS)
        for name, values in expected.items():
            np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-5 * max(1, np.abs(values).max()))
    else:
        assert outcome.graph == graph
        assert outcome.skips
    again = absorb_preprocessing.outcome(outcome.graph)
    assert not again.changes or not outcome.changes
    assert again.graph == outcome.graph or not outcome.changes


def test_mean_and_std_of_other_channels_are_rejected() -> None:
    graph = Graph.of([placeholder((1, 5, 5, 3))], ["x"], [])
    with pytest.raises(RecipeError, match="do not fit"):
        absorb_preprocessing(graph, mean=(1.0, 2.0, 3.0), std=(1.0, 2.0))
    with pytest.raises(RecipeError, match="do not fit"):
        absorb_preprocessing(graph, std=(0.0,))
    outcome = absorb_preprocessing.outcome(graph, mean=(1.0, 2.0))
    assert "the last dimension of the input is 3" in outcome.skips[0].reason


def test_long_chain_folds_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        nodes = [
            placeholder((1, 5, 5, 3)),
            constant("one", np.float32(1)),
            constant("w", np.ones((1, 1, 3, 1), np.float32)),
        ]
        source = "x"
        for number in range(length):
            nodes.append(Node(f"n{number}", "Sub", (Edge(source), Edge("one")), attrs=FLOAT))
            source = nodes[-1].name
        attrs = {"strides": (1, 1, 1, 1), "padding": b"VALID"}
        nodes.append(Node("y", "Conv2D", (Edge(source), Edge("w")), attrs=attrs))
        return Graph.of(nodes, ["x"], ["y"])

    assert len(absorb_preprocessing(chain(50))) == 6
    check_linear_work(absorb_preprocessing, chain)
