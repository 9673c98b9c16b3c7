"""Random networks of layers followed by factors, sums and batch norms: inputs for folding."""

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes import find_runtime
from quantkit.transforms.registry import Transform

CHANNELS = 4
ROWS = 3
EPSILON = float(np.float32(0.001))
FUSED: Mapping[str, Attr] = {"is_training": False, "epsilon": EPSILON}
LAYER: Mapping[str, Attr] = {"strides": (1, 1, 1, 1), "padding": b"SAME"}
ATTRS: Mapping[str, Mapping[str, Attr]] = {
    "Conv2D": LAYER,
    "DepthwiseConv2dNative": LAYER,
    "ConcatV2": {"N": 2, "Tidx": DType.INT32},
    "BatchNormWithGlobalNormalization": {"variance_epsilon": EPSILON, "scale_after_normalization": True},
    "FusedBatchNorm": FUSED,
    "FusedBatchNormV2": FUSED,
    "FusedBatchNormV3": FUSED,
}
VECTOR_SHAPES = [(CHANNELS,), (CHANNELS,), (CHANNELS,), (), (1,), (1, 1, 1, CHANNELS), (ROWS, 1, CHANNELS)]
OPERANDS: Mapping[str, list[list[tuple[int, ...]]]] = {
    "Conv2D": [[(1, 1, CHANNELS, CHANNELS)]],
    "DepthwiseConv2dNative": [[(3, 3, CHANNELS, 1)]],
    "BiasAdd": [[(CHANNELS,)]],
    **{kind: [VECTOR_SHAPES] for kind in ("Mul", "RealDiv", "Add", "AddV2", "Sub")},
    **{kind: [[(CHANNELS,)]] * 4 for kind in ATTRS if "BatchNorm" in kind},
}
LAYERS = ("Conv2D", "DepthwiseConv2dNative")
# Op types that usually follow a layer, and the op types that follow any node.
FOLLOWING_LAYERS = sorted({*OPERANDS} - {*LAYERS})
KINDS = [*LAYERS, *LAYERS, *LAYERS, *FOLLOWING_LAYERS, "Relu", "Identity", "ConcatV2"]
COMMUTATIVE = ("Mul", "Add", "AddV2")


@st.composite
def layered_graphs(draw: st.DrawFn) -> Graph:
    """Return a chain of random nodes with some branches and shared constants."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, ROWS, 3, CHANNELS))}),
        constant("batch", np.int32(0)),
    ]
    tensors = ["x"]
    operands: dict[tuple[int, ...], list[str]] = {}

    def operand(shapes: list[tuple[int, ...]]) -> str:
        shape = draw(st.sampled_from(shapes))
        others = operands.setdefault(shape, [])
        if not others or draw(st.integers(0, 7)) < 7:
            others.append(f"c{len(nodes)}")
            nodes.append(constant(others[-1], random.uniform(0.5, 2, shape).astype(np.float32)))
        return others[-1]

    kind = ""
    for number in range(draw(st.integers(2, 12))):
        follows_layer = kind in (*LAYERS, *FOLLOWING_LAYERS) and draw(st.integers(0, 3)) < 3
        kind = draw(st.sampled_from(FOLLOWING_LAYERS if follows_layer else KINDS))
        inputs = [draw(st.sampled_from([tensors[-1]] * 20 + tensors))]
        inputs += [operand(shapes) for shapes in OPERANDS.get(kind, [])]
        if kind == "ConcatV2":
            inputs += [draw(st.sampled_from(tensors)), "batch"]
        if kind in COMMUTATIVE and draw(st.booleans()):
            inputs.reverse()
        tensors.append(f"n{number}")
        nodes.append(Node(tensors[-1], kind, tuple(map(Edge, inputs)), attrs={"T": DType.FLOAT, **ATTRS.get(kind, {})}))
    return Graph.of(nodes, ["x"], dict.fromkeys([tensors[-1], draw(st.sampled_from(tensors[:0:-1]))]))


def compute_outputs(graph: Graph) -> dict[str, Array]:
    """Return the outputs for one seeded input."""
    x = np.random.default_rng(0).uniform(-1, 1, (1, ROWS, 3, CHANNELS)).astype(np.float32)
    with find_runtime("reference").open(graph) as session:
        return session.run({"x": x})


def check_promises(transform: Transform, graph: Graph) -> None:
    """Check that folding keeps endpoints, outputs and its argument, and is idempotent."""
    copy = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs)
    outcome = transform.outcome(graph)
    verify(outcome.graph, blame=transform.name)
    assert graph == copy
    assert (outcome.graph.inputs, outcome.graph.outputs) == (graph.inputs, graph.outputs)
    expected, actual = compute_outputs(graph), compute_outputs(outcome.graph)
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-5 * np.abs(values).max())
    again = transform.outcome(outcome.graph)
    assert (again.graph, again.changes) == (outcome.graph, ())
    assert [skip.node for skip in again.skips] == [skip.node for skip in outcome.skips]
