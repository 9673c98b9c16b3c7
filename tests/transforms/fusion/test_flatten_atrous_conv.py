"""All kinds of atrous convolutions with SpaceToBatchND."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, check_linear_work, compute_outputs, placeholder

from quantkit.errors import GraphError
from quantkit.formats import graphdef
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.transforms.fusion.flatten_atrous_conv import flatten_atrous_conv


@st.composite
def atrous(draw: st.DrawFn) -> Graph:
    """Return SpaceToBatchND, one or two convolutions, and BatchToSpaceND."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    is_first = draw(st.integers(0, 3)) == 0
    size = np.array([draw(st.integers(6, 11)), draw(st.integers(6, 11))])
    block = np.array([draw(st.integers(1, 3)), draw(st.integers(1, 3))])
    paddings = np.reshape(draw(st.lists(st.integers(0, 3), min_size=4, max_size=4)), (2, 2))
    paddings[:, 1] += -(size + paddings.sum(1)) % block
    crops = np.reshape(draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)), (2, 2))
    shape = (2, 2, *size) if is_first else (2, *size, 2)
    if is_first:
        block = np.array([1, *block])
        paddings, crops = (np.array([[0, 0], *widths]) for widths in (paddings, crops))
    nodes = [placeholder(tuple(int(size) for size in shape))]
    nodes += [constant("block", block.astype(np.int32)), constant("paddings", paddings.astype(np.int32))]
    nodes.append(constant("crops", crops.astype(np.int32)))
    nodes.append(
        Node("moved", "SpaceToBatchND", (Edge("x"), Edge("block"), Edge("paddings")), attrs={"T": DType.FLOAT})
    )
    outputs = []
    for number in range(draw(st.integers(1, 2))):
        kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), 2, draw(st.integers(1, 2)))
        nodes.append(constant(f"w{number}", random.uniform(-1, 1, kernel).astype(np.float32)))
        padding = draw(st.sampled_from([b"VALID", b"SAME", b"EXPLICIT"]))
        dilation = draw(st.sampled_from([1, 1, 2]))
        spatial = (2, 3) if is_first else (1, 2)
        attrs: dict[str, Attr] = {"T": DType.FLOAT, "strides": (1, 1, 1, 1), "padding": padding}
        attrs["data_format"] = b"NCHW" if is_first else b"NHWC"
        attrs["dilations"] = tuple(dilation if axis in spatial else 1 for axis in range(4))
        # Enough padding for all windows and crops.
        own = np.zeros((4, 2), int)
        own[spatial, :] = 6
        if padding == b"EXPLICIT":
            attrs["explicit_paddings"] = tuple(int(width) for width in own.reshape(-1))
        elif padding == b"VALID":
            attrs["dilations"] = (1, 1, 1, 1)
        kind = draw(st.sampled_from(["Conv2D", "DepthwiseConv2dNative"]))
        nodes.append(Node(f"conv{number}", kind, (Edge("moved"), Edge(f"w{number}")), attrs=attrs))
        edges = (Edge(f"conv{number}"), Edge("block"), Edge("crops"))
        nodes.append(Node(f"y{number}", "BatchToSpaceND", edges, attrs={"T": DType.FLOAT}))
        outputs.append(f"y{number}")
    return Graph.of(nodes, ["x"], outputs)


def is_valid(graph: Graph) -> bool:
    """Return True if windows and crops fit, and no output is empty."""
    try:
        return all(values.size for values in compute_outputs(graph).values())
    except GraphError:
        return False


@given(atrous().filter(is_valid))
def test_outputs_of_atrous_convolutions_stay_equal(graph: Graph) -> None:
    check_exact_transform(flatten_atrous_conv, graph)


@given(atrous())
def test_only_crops_beyond_the_padding_are_skipped(graph: Graph) -> None:
    outcome = flatten_atrous_conv.outcome(graph)
    for skip in outcome.skips:
        assert "crops more than" in skip.reason
    assert outcome.graph.op_counts.get("BatchToSpaceND", 0) == len(outcome.skips)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_graph_of_with_space_to_batch_becomes_dilated_convolution(padding: str) -> None:
    tf = pytest.importorskip("tensorflow")
    x = np.random.default_rng(0).standard_normal((2, 9, 10, 3)).astype(np.float32)
    weights = np.random.default_rng(1).standard_normal((3, 3, 3, 4)).astype(np.float32)
    with tf.Graph().as_default() as tf_graph:
        images = tf.compat.v1.placeholder(tf.float32, x.shape, "x")
        tf.nn.with_space_to_batch(
            images,
            [2, 3],
            padding,
            lambda moved, rates, pad: tf.nn.conv2d(moved, weights, 1, "VALID"),
            filter_shape=[3, 3],
        )
        before = graphdef.decode(tf_graph.as_graph_def().SerializeToString())
        last = tf_graph.get_operations()[-1].name
    before = before.with_endpoints(["x"], [last])
    after = flatten_atrous_conv(before)
    assert after[last].op == "Conv2D"
    assert after[last].attrs["padding"] == padding.encode()
    expected = tf.nn.conv2d(x, weights, 1, padding, dilations=[2, 3]).numpy()
    for graph in (before, after):
        definition = tf.compat.v1.GraphDef.FromString(graphdef.encode(graph))
        with tf.Graph().as_default() as tf_graph:
            tf.import_graph_def(definition, name="")
            with tf.compat.v1.Session(graph=tf_graph) as session:
                actual = session.run(f"{last}:0", {"x:0": x})
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_flatten_atrous_conv_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        nodes = [
            placeholder((1, 8, 8, 1)),
            constant("block", np.array([2, 2], np.int32)),
            constant("paddings", np.full((2, 2), 2, np.int32)),
            constant("crops", np.zeros((2, 2), np.int32)),
            constant("w", np.ones((3, 3, 1, 1), np.float32)),
        ]
        attrs: dict[str, Attr] = {"strides": (1, 1, 1, 1), "padding": b"VALID"}
        source = "x"
        for number in range(length):
            moved = Node(f"m{number}", "SpaceToBatchND", (Edge(source), Edge("block"), Edge("paddings")))
            conv = Node(f"c{number}", "Conv2D", (Edge(moved.name), Edge("w")), attrs=attrs)
            back = Node(f"b{number}", "BatchToSpaceND", (Edge(conv.name), Edge("block"), Edge("crops")))
            nodes += [moved, conv, back]
            source = back.name
        return Graph.of(nodes, ["x"], [source])

    assert flatten_atrous_conv(chain(3)).op_counts["Conv2D"] == 3
    check_linear_work(flatten_atrous_conv, chain)
