"""Pads before all kinds of convolutions and pooling ops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import CONVOLUTION, check_exact_transform, check_linear_work, placeholder

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.transforms.folding.fold_pads import fold_pads


@st.composite
def pads(draw: st.DrawFn) -> Graph:
    """Return a graph with a Pad and several consumers."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    height, width = draw(st.integers(5, 8)), draw(st.integers(5, 8))
    is_first = draw(st.booleans())
    shape = (1, 2, height, width) if is_first else (1, height, width, 2)
    spatial = (2, 3) if is_first else (1, 2)
    widths = np.zeros((4, 2), np.int32)
    widths[spatial, :] = draw(
        st.lists(st.integers(0, 2), min_size=4, max_size=4).map(lambda flat: np.reshape(flat, (2, 2)))
    )
    value = draw(st.sampled_from([0.0, 0.0, 0.0, 1.0, -np.inf]))
    nodes = [placeholder(shape), Node("relu", "Relu", (Edge("x"),), attrs={"T": DType.FLOAT})]
    nodes += [constant("widths", widths), constant("value", np.float32(value))]
    inputs = [Edge(draw(st.sampled_from(["x", "relu"]))), Edge("widths")]
    pad = (
        Node("pad", "PadV2", (*inputs, Edge("value")))
        if value or draw(st.booleans())
        else Node("pad", "Pad", tuple(inputs))
    )
    nodes.append(pad.with_attrs(T=DType.FLOAT))
    outputs = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["Conv2D", "Conv2D", "DepthwiseConv2dNative", "MaxPool", "AvgPool", "Neg"]))
        stride = draw(st.integers(1, 2))
        own = np.zeros(8, int)
        own[[2 * axis + side for axis in spatial for side in (0, 1)]] = draw(st.integers(0, 1))
        padding = draw(
            st.sampled_from([b"VALID", b"VALID", b"SAME", b"EXPLICIT"] if np.isfinite(value) else [b"VALID"])
        )
        per_axis = [stride if axis in spatial else 1 for axis in range(4)]
        attrs: dict[str, Attr] = {"T": DType.FLOAT, "strides": tuple(per_axis), "padding": padding}
        edges = [Edge("pad")]
        if kind == "Neg":
            attrs = {"T": DType.FLOAT}
        else:
            attrs["data_format"] = b"NCHW" if is_first else b"NHWC"
            if padding == b"EXPLICIT" and kind != "AvgPool":
                attrs["explicit_paddings"] = tuple(int(size) for size in own)
            elif kind == "AvgPool" and padding == b"EXPLICIT":
                attrs["padding"] = b"SAME"
        if kind.endswith("Pool"):
            attrs["ksize"] = tuple(3 if axis in spatial else 1 for axis in range(4))
        elif kind != "Neg":
            size = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), 2, 2)
            nodes.append(constant(f"w{number}", random.uniform(-1, 1, size).astype(np.float32)))
            edges.append(Edge(f"w{number}"))
            if stride == 1:
                attrs["dilations"] = tuple(draw(st.integers(1, 2)) if axis in spatial else 1 for axis in range(4))
        nodes.append(Node(f"n{number}", kind, tuple(edges), attrs=attrs))
        outputs.append(f"n{number}")
    if value and np.isinf(value):
        outputs = [node.name for node in nodes if node.name in outputs and node.op == "MaxPool"]
    return Graph.of(nodes, ["x"], outputs or ["relu"])


@given(pads())
def test_outputs_of_padded_layers_stay_equal(graph: Graph) -> None:
    check_exact_transform(fold_pads, graph)


@given(pads())
def test_every_remaining_pad_is_skipped_with_reason(graph: Graph) -> None:
    outcome = fold_pads.outcome(graph)
    skipped = {skip.node for skip in outcome.skips}
    for node in outcome.graph.nodes.values():
        if node.op != "Neg" and node.inputs and outcome.graph[node.inputs[0].node].op in ("Pad", "PadV2"):
            assert node.name in skipped


def test_fold_pads_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        widths = np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)
        nodes = [
            placeholder((1, 4, 4, 1)),
            constant("widths", widths),
            constant("w", np.ones((3, 3, 1, 1), np.float32)),
        ]
        source = "x"
        for number in range(length):
            nodes.append(Node(f"pad{number}", "Pad", (Edge(source), Edge("widths"))))
            attrs = {**CONVOLUTION, "padding": b"VALID"}
            nodes.append(Node(f"conv{number}", "Conv2D", (Edge(f"pad{number}"), Edge("w")), attrs=attrs))
            source = nodes[-1].name
        return Graph.of(nodes, ["x"], [source])

    assert fold_pads(chain(3))["conv1"].attrs["padding"] == b"SAME"
    check_linear_work(fold_pads, chain)
