"""Convolutions after resizes and mirror padding, in all forms."""

import numpy as np
from hypothesis import strategies as st
from rewritten_graphs import placeholder

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType


@st.composite
def fusible(draw: st.DrawFn) -> Graph:
    """Return convolutions of images that are resized, mirror-padded, or both."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    batch = draw(st.sampled_from([1, 1, 1, 2]))
    nodes = [placeholder((batch, draw(st.integers(5, 7)), draw(st.integers(5, 7)), 2))]
    nodes.append(constant("size", np.array([draw(st.integers(5, 9)), draw(st.integers(5, 9))], np.int32)))
    widths = np.zeros((4, 2), np.int32)
    widths[1:3] = np.reshape(draw(st.lists(st.integers(0, 3), min_size=4, max_size=4)), (2, 2))
    nodes.append(constant("widths", widths))
    source, outputs = "x", []
    if draw(st.booleans()):
        attrs: dict[str, Attr] = {"align_corners": draw(st.booleans())}
        attrs["half_pixel_centers"] = not attrs["align_corners"] and draw(st.integers(0, 3)) == 0
        nodes.append(Node("resize", "ResizeBilinear", (Edge(source), Edge("size")), attrs={"T": DType.FLOAT, **attrs}))
        source = "resize"
    if draw(st.booleans()):
        attrs = {"T": DType.FLOAT, "mode": draw(st.sampled_from([b"REFLECT", b"SYMMETRIC"]))}
        nodes.append(Node("pad", "MirrorPad", (Edge(source), Edge("widths")), attrs=attrs))
        source = "pad"
    for number in range(draw(st.sampled_from([1, 1, 1, 2]))):
        size = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), 2, 2)
        nodes.append(constant(f"w{number}", random.uniform(-1, 1, size).astype(np.float32)))
        stride, dilation = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 1, 2]))
        padding = draw(st.sampled_from([b"SAME", b"VALID", b"SAME", b"VALID", b"EXPLICIT"]))
        attrs = {"T": DType.FLOAT, "strides": (1, stride, stride, 1), "padding": padding}
        if stride == 1:
            attrs["dilations"] = (1, dilation, dilation, 1)
        if padding == b"EXPLICIT":
            attrs["explicit_paddings"] = (0, 0, 1, 0, 0, 2, 0, 0)
        nodes.append(Node(f"y{number}", "Conv2D", (Edge(source), Edge(f"w{number}")), attrs=attrs))
        outputs.append(f"y{number}")
    if draw(st.integers(0, 4)) == 0:
        outputs.append(source)
    return Graph.of(nodes, ["x"], outputs)
