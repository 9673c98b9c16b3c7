"""Graphs of any number of nodes, with matches for every cleanup and folding transform."""

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape

CHANNELS = 4
T: dict[str, Attr] = {"T": DType.FLOAT}
LAYER: dict[str, Attr] = {**T, "strides": (1, 1, 1, 1), "padding": b"SAME"}


def many_nodes(count: int) -> Graph:
    """Return a chain of blocks: convolution, decomposed batch norm, clip, duplicate branch, residual.

    Args:
        count: maximum number of nodes; the graph is smaller by at most one block.
    """
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 8, 8, CHANNELS))}),
        constant("epsilon", np.float32(0.001)),
        constant("zero", np.float32(0)),
        constant("six", np.float32(6)),
    ]
    random = np.random.default_rng(count)
    last = "x"
    number = 0
    while len(nodes) + len(block := _block(f"block_{number}/", last, random)) < count:
        nodes.extend(block)
        last = block[-1].name
        number += 1
    return Graph.of([*nodes, Node("y", "Identity", (Edge(last),), attrs=T)], ["x"], ["y"])


def _block(scope: str, last: str, random: np.random.Generator) -> list[Node]:
    def op(name: str, kind: str, *inputs: str, **attrs: Attr) -> Node:
        edges = tuple(Edge(name if name in (last, "epsilon", "zero", "six") else f"{scope}{name}") for name in inputs)
        return Node(f"{scope}{name}", kind, edges, attrs={**T, **attrs})

    def vector(name: str, low: float, high: float) -> Node:
        return constant(f"{scope}{name}", random.uniform(low, high, CHANNELS).astype(np.float32))

    weights = (random.standard_normal((1, 1, CHANNELS, CHANNELS)) * 0.3).astype(np.float32)
    return [
        constant(f"{scope}weights", weights),
        op("read", "Identity", "weights"),
        vector("mean", -0.2, 0.2),
        vector("variance", 0.7, 1.3),
        vector("gamma", 0.7, 1.3),
        vector("beta", -0.2, 0.2),
        op("layer", "Conv2D", last, "read", **LAYER),
        op("add", "AddV2", "variance", "epsilon"),
        op("rsqrt", "Rsqrt", "add"),
        op("factor", "Mul", "rsqrt", "gamma"),
        op("shift", "Mul", "mean", "factor"),
        op("offset", "Sub", "beta", "shift"),
        op("scaled", "Mul", "layer", "factor"),
        op("normed", "AddV2", "scaled", "offset"),
        op("low", "Minimum", "normed", "six"),
        op("clipped", "Maximum", "low", "zero"),
        op("twin_a", "Tanh", "clipped"),
        op("twin_b", "Tanh", "clipped"),
        op("sum", "AddV2", "twin_a", "twin_b"),
        op("unread", "Neg", "sum"),
        op("check", "CheckNumerics", "sum", message=b"not finite"),
        op("out", "AddV2", "check", last),
    ]
