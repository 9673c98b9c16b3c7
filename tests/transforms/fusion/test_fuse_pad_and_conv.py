"""MirrorPad before all kinds of convolutions."""

import numpy as np
from fused_graphs import fusible
from hypothesis import given
from rewritten_graphs import check_exact_transform, check_linear_work, placeholder

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.transforms.fusion.fuse_pad_and_conv import fuse_pad_and_conv


@given(fusible())
def test_outputs_of_fused_pads_stay_equal(graph: Graph) -> None:
    check_exact_transform(fuse_pad_and_conv, graph)


@given(fusible())
def test_every_remaining_pad_is_skipped_with_reason(graph: Graph) -> None:
    outcome = fuse_pad_and_conv.outcome(graph)
    skipped = {skip.node for skip in outcome.skips}
    for node in outcome.graph.nodes.values():
        if node.op == "Conv2D" and outcome.graph[node.inputs[0].node].op == "MirrorPad":
            assert node.name in skipped


def test_fuse_pad_and_conv_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        nodes = [
            placeholder((1, 8, 8, 1)),
            constant("widths", np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)),
            constant("w", np.ones((3, 3, 1, 1), np.float32)),
        ]
        attrs: dict[str, Attr] = {"T": DType.FLOAT, "strides": (1, 1, 1, 1), "padding": b"VALID"}
        for number in range(length):
            source = nodes[-1].name if number else "x"
            pad = Node(f"pad{number}", "MirrorPad", (Edge(source), Edge("widths")), attrs={"mode": b"REFLECT"})
            nodes += [pad, Node(f"conv{number}", "Conv2D", (Edge(pad.name), Edge("w")), attrs=attrs)]
        return Graph.of(nodes, ["x"], [nodes[-1].name])

    assert fuse_pad_and_conv(chain(3)).op_counts["FusedPadConv2D"] == 3
    check_linear_work(fuse_pad_and_conv, chain)
