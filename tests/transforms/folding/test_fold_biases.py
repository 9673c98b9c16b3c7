"""Outputs of sums after layers stay equal when the sums become BiasAdd."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, check_linear_work, placeholder

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.transforms.folding.fold_biases import fold_biases

CONVOLUTION = {"strides": (1, 1, 1, 1), "padding": b"SAME", "T": DType.FLOAT}
CHANNELS = 3
SHAPES = [(), (1,), (3,), (1, 3), (1, 1, 1, 3), (1, 4, 1, 1), (4, 3), (2, 4, 4, 3)]


def layer(name: str, kind: str, source: str) -> list[Node]:
    """Return a layer with as many output channels as input channels, and its weights."""
    shape = (3, 3, CHANNELS, 1 if kind.startswith("Depthwise") else CHANNELS)
    weights = np.random.default_rng(0).standard_normal(shape).astype(np.float32) / 10
    return [constant(f"{name}/w", weights), Node(name, kind, (Edge(source), Edge(f"{name}/w")), attrs=CONVOLUTION)]


@st.composite
def sums(draw: st.DrawFn) -> Graph:
    """Return layers, and sums of layers with constants of all shapes and with each other."""
    nodes = [placeholder((1, 4, 4, CHANNELS))]
    names = ["x"]
    for number in range(draw(st.integers(1, 5))):
        new_layer = layer(f"layer{number}", draw(st.sampled_from(["Conv2D", "DepthwiseConv2dNative"])), names[-1])
        shape = draw(st.sampled_from(SHAPES))
        values = np.random.default_rng(number).standard_normal(shape).astype(np.float32)
        inputs = [
            Edge(new_layer[-1].name),
            Edge(f"b{number}") if draw(st.booleans()) else Edge(draw(st.sampled_from(names))),
        ]
        if draw(st.booleans()):
            inputs.reverse()
        kind = draw(st.sampled_from(["Add", "AddV2"]))
        added = Node(f"sum{number}", kind, tuple(inputs), attrs={"T": DType.FLOAT})
        nodes += [*new_layer, constant(f"b{number}", values), added]
        names.append(added.name)
    return Graph.of(nodes, ["x"], dict.fromkeys([names[-1], draw(st.sampled_from(names[1:]))]))


@given(sums())
def test_outputs_of_sums_stay_equal(graph: Graph) -> None:
    check_exact_transform(fold_biases, graph)


@st.composite
def sequences(draw: st.DrawFn) -> Graph:
    """Return a matrix product with a Reshape and a sum, which is a bias for some shapes."""
    columns = draw(st.sampled_from([(6,), (2, 3), (3, 2)]))
    shape = draw(st.sampled_from([(6,), (2, 3), (3, 2), (3,), (1,), (), (1, 6)]))
    bias = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    kind = draw(st.sampled_from(["Add", "AddV2", "BiasAdd"])) if shape == columns == (6,) else "AddV2"
    nodes = [
        placeholder((8, 5)),
        constant("w", np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)),
        constant("b", bias),
        constant("sizes", np.int32((2, 4, *columns))),
        Node("m", "MatMul", (Edge("x"), Edge("w")), attrs={"T": DType.FLOAT}),
        Node("r", "Reshape", (Edge("m"), Edge("sizes")), attrs={"T": DType.FLOAT, "Tshape": DType.INT32}),
    ]
    try:
        np.broadcast_shapes((2, 4, *columns), shape)
    except ValueError:
        nodes[2] = constant("b", bias.reshape(-1)[:1])
    nodes.append(Node("y", kind, (Edge("r"), Edge("b")), attrs={"T": DType.FLOAT}))
    return Graph.of(nodes, ["x"], ["y", *draw(st.sampled_from([[], ["r"], ["m"]]))])


@given(sequences())
def test_outputs_of_reshaped_products_stay_equal(graph: Graph) -> None:
    check_exact_transform(fold_biases, graph)


def test_fold_biases_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        nodes = [placeholder((1, 4, 4, CHANNELS)), constant("b", np.arange(CHANNELS, dtype=np.float32))]
        source = "x"
        for number in range(length):
            nodes += layer(f"layer{number}", "Conv2D", source)
            source = f"sum{number}"
            nodes.append(Node(source, "AddV2", (Edge(nodes[-1].name), Edge("b")), attrs={"T": DType.FLOAT}))
        return Graph.of(nodes, ["x"], [source])

    assert fold_biases(chain(3)).op_counts["BiasAdd"] == 3
    check_linear_work(fold_biases, chain)
