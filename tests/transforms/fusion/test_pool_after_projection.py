"""Pools and projections in random towers: outputs, names, saved operations."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import AVERAGE, CONVOLUTION, check_exact_transform, check_linear_work, placeholder

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text
from quantkit.ops.macs import count_macs
from quantkit.ops.shape_inference import infer_shapes
from quantkit.transforms.fusion.pool_after_projection import pool_after_projection


@st.composite
def towers(draw: st.DrawFn) -> Graph:
    """Return pools, projections, biases and activations in any order."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    nodes = [placeholder((1, 6, 6, 4))]
    channels = {"x": 4}
    names = ["x"]
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["AvgPool", "AvgPool", "Conv2D", "Conv2D", "BiasAdd", "AddV2", "Relu", "MaxPool"]))
        source = draw(st.sampled_from([names[-1], names[-1], names[-1], *names]))
        name, inputs = f"n{number}", [Edge(source)]
        attrs: dict[str, Attr] = {"T": DType.FLOAT}
        channels[name] = channels[source]
        if kind == "Conv2D":
            channels[name] = draw(st.integers(1, 4))
            shape = (*draw(st.sampled_from([(1, 1), (1, 1), (2, 2)])), channels[source], channels[name])
            nodes.append(constant(f"w{number}", random.uniform(-1, 1, shape).astype(np.float32)))
            inputs.append(Edge(f"w{number}"))
            attrs |= CONVOLUTION
        elif kind == "BiasAdd":
            nodes.append(constant(f"b{number}", random.uniform(-1, 1, channels[source]).astype(np.float32)))
            inputs.append(Edge(f"b{number}"))
        elif kind == "AddV2":
            sizes = draw(st.sampled_from([(), (channels[source],), (1, 1, 1, channels[source])]))
            nodes.append(constant(f"b{number}", random.uniform(-1, 1, sizes).astype(np.float32)))
            inputs.insert(draw(st.integers(0, 1)), Edge(f"b{number}"))
        elif kind != "Relu":
            stride = draw(st.sampled_from([1, 1, 2]))
            attrs |= {**AVERAGE, "strides": (1, stride, stride, 1), "ksize": (1, draw(st.integers(1, 3)), 2, 1)}
        nodes.append(Node(name, kind, tuple(inputs), attrs=attrs))
        names.append(name)
    return Graph.of(nodes, ["x"], dict.fromkeys([names[-1], draw(st.sampled_from(names[1:]))]))


@given(towers())
def test_outputs_of_towers_stay_equal(graph: Graph) -> None:
    check_exact_transform(pool_after_projection, graph)


@given(towers())
def test_number_of_operations_never_grows(graph: Graph) -> None:
    def count_operations(graph: Graph) -> int:
        shapes = infer_shapes(graph)
        total = 0
        for node in graph.nodes.values():
            total += count_macs(node, shapes) or 0
            if node.op == "AvgPool":
                total += int(np.prod(shapes[Edge(node.name)].sizes) * np.prod(node.attrs["ksize"]))
        return total

    outcome = pool_after_projection.outcome(graph)
    if outcome.changes:
        assert count_operations(outcome.graph) < count_operations(graph)
    else:
        assert outcome.graph == graph


def test_changes_report_saved_operations_and_bytes() -> None:
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[1x5x5x8]()
        w = Const[1x1x8x2]()
        pool = AvgPool(x, ksize=[1, 3, 3, 1], padding=SAME, strides=[1, 1, 1, 1])
        y = Conv2D(pool, w, padding=SAME, strides=[1, 1, 1, 1])
    """)
    assert pool_after_projection.outcome(graph).changes == (
        "y: pooled after the projection, 2 channels instead of 8;"
        " saves 1,350 operations and 1,200 bytes of memory traffic",
    )


def test_chain_of_pools_is_rewritten_in_linear_time() -> None:
    def row(length: int) -> Graph:
        nodes = [placeholder((1, 6, 6, 4)), constant("w", np.ones((1, 1, 4, 2), np.float32))]
        source = "x"
        for number in range(length):
            nodes.append(Node(f"p{number}", "AvgPool", (Edge(source),), attrs=AVERAGE))
            source = nodes[-1].name
        nodes.append(Node("y", "Conv2D", (Edge(source), Edge("w")), attrs=CONVOLUTION))
        return Graph.of(nodes, ["x"], ["y"])

    assert pool_after_projection(row(3000)).nodes["y/before_pool"].inputs[0] == Edge("x")
    check_linear_work(pool_after_projection, row)


def test_many_towers_are_rewritten_in_linear_time() -> None:
    def towers_of(count: int) -> Graph:
        nodes = [placeholder((1, 6, 6, 4)), constant("w", np.ones((1, 1, 4, 2), np.float32))]
        for number in range(count):
            nodes.append(Node(f"p{number}", "AvgPool", (Edge("x"),), attrs=AVERAGE))
            nodes.append(Node(f"c{number}", "Conv2D", (Edge(f"p{number}"), Edge("w")), attrs=CONVOLUTION))
        return Graph.of(nodes, ["x"], [f"c{number}" for number in range(count)])

    check_linear_work(pool_after_projection, towers_of)
