"""Ops that the conversion of ONNX graphs to TensorFlow supports, in ONNX Runtime and in TensorFlow."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx_networks import FOLDER

import quantkit as qk
from quantkit.convert.onnx_to_tensorflow import convert
from quantkit.convert.onnx_to_tensorflow.translator import HANDLERS
from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.ir.functions import Library
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.onnx.types import infer_types
from quantkit.runtimes import find_runtime

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"),
]


class Const(tuple[Any, ...]):
    """Constant input of int64; other arrays are inputs of the graph."""


class Open:
    """Input whose sizes are unknown."""

    def __init__(self, array: Array) -> None:
        self.array = array


class Weights(Open):
    """Constant input of float32."""


def random(*shape: int, low: float = -2, high: float = 2) -> Array:
    return np.random.default_rng(shape).uniform(low, high, shape).astype(np.float32)


ROWS, IMAGE, SIGNAL = random(3, 5), random(2, 4, 6, 8), random(5, 2, 3)
# Indices of the last axis of IMAGE with repetitions, from -8 to 7.
REPEATED = np.random.default_rng(0).integers(-8, 8, (2, 4, 6, 3))
FLAGS = np.array([True, False, True]), np.array([True, True, False])
ABSENT = None
LSTM = (Weights(random(1, 16, 3)), Weights(random(1, 16, 4)), Weights(random(1, 32)))
BOTH = tuple(Weights(np.concatenate([part.array, -part.array])) for part in LSTM)
GRU = (Weights(random(1, 12, 3)), Weights(random(1, 12, 4)), Weights(random(1, 24)))
TWO_GRU = tuple(Weights(np.concatenate([part.array, -part.array])) for part in GRU)
TWO = {"hidden_size": 4, "outputs": 2, "direction": b"bidirectional"}
NEAREST = {"mode": b"nearest", "coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
SCALES = Weights(np.array([1, 1, 2, 3], np.float32))

# (op type, inputs, attributes); attribute "outputs" is the number of outputs
CASES: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = [
    *((op, (np.round(ROWS), np.round(random(5))), {}) for op in ("Equal", "Greater", "GreaterOrEqual")),
    *((op, (np.round(ROWS), np.round(random(5))), {}) for op in ("Less", "LessOrEqual")),
    *((op, FLAGS, {}) for op in ("And", "Or", "Xor")),
    *((op, (np.array([np.inf, np.nan, 1], np.float32),), {}) for op in ("IsInf", "IsNaN")),
    *((op, (ROWS,), {}) for op in ("Asinh", "Atan", "Cos", "Cosh", "Sin", "Sinh", "Tan", "Erf", "Round", "Sign")),
    *((op, (random(4, low=-0.9, high=0.9),), {}) for op in ("Acos", "Asin", "Atanh")),
    *((op, (ROWS, Const([0])), {"keepdims": 0}) for op in ("ReduceL2", "ReduceProd", "ReduceSumSquare")),
    ("Acosh", (random(4, low=1, high=3),), {}),
    ("Not", FLAGS[:1], {}),
    ("Where", (ROWS > 0, ROWS, random(5)), {}),
    ("Mean", (ROWS, random(5), random(3, 1)), {}),
    ("Div", (np.array([7, -7, 6], np.int64), np.array([2, 2, -4], np.int64)), {}),
    ("Mod", (np.array([7, -7, 6], np.int64), np.array([3, 3, -4], np.int64)), {}),
    ("Mod", (random(6), random(6) + 3), {"fmod": 1}),
    ("Pow", (random(4, low=0.5), np.array([2, 3, 0, 1], np.int64)), {}),
    ("PRelu", (IMAGE, Weights(random(4, 1, 1))), {}),
    *((op, (4 * IMAGE,), attrs) for op, attrs in (("Mish", {}), ("Celu", {}), ("Celu", {"alpha": 0.3}))),
    ("Clip", (np.array([-3, 2, 9], np.int64), Const([0]), Const([5])), {}),
    ("Softmax", (IMAGE,), {"axis": 2}),
    ("Softmax", (SIGNAL,), {"axis": 0}),
    ("Cast", (ROWS,), {"to": 7}),
    ("CastLike", (ROWS, Open(np.array([1], np.int64))), {}),
    ("CastLike", (Const([1, 2]), Open(ROWS)), {}),
    ("Shape", (Open(IMAGE),), {}),
    ("Shape", (Open(IMAGE),), {"start": 1, "end": 3}),
    ("Size", (Open(IMAGE),), {}),
    ("ConstantOfShape", (np.array([2, 3], np.int64),), {"value": Tensor.of(np.array([1.5], np.float32))}),
    ("Expand", (Open(random(3, 1)), np.array([2, 1, 4], np.int64)), {}),
    ("Expand", (random(3, 1), Const([2, 3, 4])), {}),
    ("Expand", (np.array([3], np.float32), np.array([2, 4], np.int64)), {}),
    ("Range", (np.array(1, np.int64), np.array(9, np.int64), np.array(3, np.int64)), {}),
    ("Tile", (Open(ROWS), np.array([2, 1], np.int64)), {}),
    ("Gather", (ROWS, Const([-1, 0])), {"axis": 1}),
    ("Gather", (Open(ROWS), np.array([[2, -3], [-1, 0]], np.int64)), {"axis": 0}),
    ("GatherND", (ROWS, np.array([[0, 1], [2, 4]], np.int64)), {}),
    ("ScatterND", (ROWS, np.array([[2], [0]], np.int64), random(2, 5)), {}),
    ("ScatterND", (ROWS, np.array([[2], [2]], np.int64), random(2, 5)), {"reduction": b"add"}),
    ("Gather", (Open(ROWS), Const([-1, 0])), {"axis": -1}),
    ("GatherND", (Open(ROWS), np.array([[0, -1], [-2, 4]], np.int64)), {}),
    ("GatherND", (IMAGE, np.array([[[0, -1], [2, 4]], [[1, 2], [-4, -6]]], np.int64)), {"batch_dims": 1}),
    ("GatherND", (Open(IMAGE), np.array([[[[1]] * 4] * 2], np.int64)[0]), {"batch_dims": 2}),
    *(
        ("GatherElements", (kind(IMAGE), np.argsort(IMAGE, axis) - offset), {"axis": axis})
        for kind in (Open, np.array)
        for axis, offset in ((0, 0), (1, 4), (-2, 3), (3, 8))
    ),
    ("GatherElements", (ROWS, Const([[-1, 0], [2, 1]])), {}),
    ("GatherElements", (Open(ROWS), Const([[-1, 0], [2, 1]])), {"axis": 1}),
    ("GatherElements", (np.arange(4) > 1, np.array([3, -4, 0], np.int32)), {}),
    (
        "GatherElements",
        (np.arange(24).reshape(1, 2, 3, 1, 4), np.array([[[[[1, -4]]], [[[0, 3]]]]], np.int64)),
        {"axis": 4},
    ),
    *(
        ("ScatterElements", (kind(array), kind(REPEATED), kind((4 * random(2, 4, 6, 3)).astype(array.dtype))), attrs)
        for kind in (Open, np.array)
        for array in (IMAGE, IMAGE.astype(np.int32), IMAGE.astype(np.int64), IMAGE.astype(np.double))
        for attrs in ({"axis": 3, "reduction": name} for name in (b"add", b"mul", b"min", b"max"))
    ),
    ("ScatterElements", (IMAGE, Const(np.argsort(IMAGE, 1)[:1] - 4), random(1, 4, 6, 8)), {"axis": 1}),
    ("ScatterElements", (Open(IMAGE), np.argsort(IMAGE, 2)[:, :, :4], random(2, 4, 4, 8)), {"axis": -2}),
    ("ScatterElements", (np.arange(4) > 1, np.array([3, -4], np.int32), np.array([False, True])), {}),
    ("ScatterND", (ROWS, np.array([[2, -1], [-3, 0]], np.int64), random(2)), {}),
    ("ScatterND", (ROWS, Const([[-1], [0]]), random(2, 5)), {"reduction": b"min"}),
    ("ScatterND", (ROWS, np.array([[2], [2]], np.int64), random(2, 5)), {"reduction": b"mul"}),
    ("ScatterND", (Open(ROWS), np.array([[2, 0], [2, 0]], np.int64), random(2)), {"reduction": b"mul"}),
    ("Slice", (Open(ROWS), Const([1]), Const([9]), Const([1]), Const([2])), {}),
    ("Slice", (ROWS, Const([-1, 4]), Const([-99, 0]), Const([0, 1]), Const([-1, -2])), {}),
    ("Slice", (ROWS, np.array([1], np.int64), np.array([-1], np.int64), Const([1])), {}),
    ("Slice", (Open(ROWS), Const([1]), Const([1_000_000_000]), Const([0])), {}),
    ("Slice", (Open(ROWS), Const([-(2**63), -(2**63)]), Const([-1, 2**63 - 1])), {}),
    ("ArgMax", (ROWS,), {"axis": 1, "keepdims": 0}),
    ("ArgMin", (ROWS,), {"axis": 0}),
    ("CumSum", (ROWS, Const([1])), {"reverse": 1}),
    ("TopK", (ROWS, Const([2])), {"outputs": 2}),
    ("Trilu", (random(4, 4), Const([-1])), {"upper": 1}),
    ("Trilu", (random(4, 4),), {"upper": 0}),
    ("Einsum", (ROWS, random(5, 2)), {"equation": b"ij,jk->ki"}),
    ("DepthToSpace", (IMAGE,), {"blocksize": 2, "mode": b"CRD"}),
    ("SpaceToDepth", (IMAGE,), {"blocksize": 2}),
    ("Resize", (Open(IMAGE), ABSENT, SCALES), NEAREST),
    ("Resize", (IMAGE, ABSENT, SCALES), {"mode": b"linear"}),
    ("Resize", (IMAGE, ABSENT, ABSENT, Const([2, 4, 5, 3])), {"mode": b"linear"}),
    ("InstanceNormalization", (IMAGE, Weights(random(4)), Weights(random(4))), {"epsilon": 0.1}),
    ("LayerNormalization", (SIGNAL, Weights(random(3)), Weights(random(3))), {"outputs": 1}),
    ("LayerNormalization", (SIGNAL, Weights(random(2, 3))), {"axis": 1}),
    ("BatchNormalization", (SIGNAL, *(Weights(random(2, low=0.5)) for _ in range(4))), {}),
    ("Gemm", (ROWS, random(5, 2), Weights(random(2))), {"alpha": 0.5, "beta": 2.0}),
    ("GlobalAveragePool", (SIGNAL,), {}),
    ("Conv", (SIGNAL, Weights(random(4, 2, 2)), Weights(random(4))), {"pads": (1, 0), "strides": (2,)}),
    ("Conv", (IMAGE, Weights(random(6, 2, 3, 3))), {"group": 2}),
    ("ConvTranspose", (IMAGE, Weights(random(4, 3, 3, 2)), Weights(random(3))), {"strides": (2, 2)}),
    (
        "ConvTranspose",
        (IMAGE, Weights(random(4, 3, 3, 3))),
        {"strides": (2, 2), "pads": (1, 0, 2, 1), "output_padding": (1, 0), "group": 2},
    ),
    ("ConvTranspose", (Open(IMAGE), Weights(random(4, 3, 3, 2)), Weights(random(3))), {"strides": (2, 2)}),
    (
        "ConvTranspose",
        (Open(IMAGE), Weights(random(4, 3, 3, 3))),
        {"strides": (3, 2), "pads": (1, 0, 0, 2), "output_padding": (2, 0), "group": 2},
    ),
    (
        "ConvTranspose",
        (Open(IMAGE), Weights(random(4, 2, 2, 3)), Weights(random(8))),
        {"dilations": (2, 1), "pads": (1, 0, 2, 1), "group": 4},
    ),
    ("ConvTranspose", (IMAGE, Weights(random(4, 3, 2, 3))), {"pads": (0, 1, 1, 2)}),
    ("ConvTranspose", (IMAGE, Weights(random(4, 3, 1, 1))), {"pads": (0, 1, 0, 0)}),
    ("ConvTranspose", (SIGNAL, Weights(random(2, 4, 3)), Weights(random(4))), {"pads": (1, 0)}),
    (
        "ConvTranspose",
        (Open(SIGNAL), Weights(random(2, 3, 3))),
        {"strides": (2,), "pads": (1, 0), "output_padding": (1,), "group": 2},
    ),
    ("Pad", (IMAGE, Const([0, 0, 1, 2, 0, 0, 3, 0])), {"mode": b"edge"}),
    ("Pad", (Open(ROWS), Const([2, 0, 1, 3])), {"mode": b"edge"}),
    ("LSTM", (SIGNAL, *LSTM), {"hidden_size": 4, "outputs": 3}),
    ("LSTM", (Open(SIGNAL), *LSTM), {"hidden_size": 4, "outputs": 3, "direction": b"reverse"}),
    ("LSTM", (Open(SIGNAL), *LSTM, ABSENT, random(1, 2, 4), random(1, 2, 4) / 2), {"hidden_size": 4, "outputs": 3}),
    ("GRU", (Open(SIGNAL), *TWO_GRU, ABSENT, random(2, 2, 4)), {**TWO, "linear_before_reset": 1}),
    ("GRU", (Open(SIGNAL), *TWO_GRU), TWO),
    ("LSTM", (SIGNAL, *BOTH), {"hidden_size": 4, "outputs": 3, "direction": b"bidirectional"}),
    ("LSTM", (SIGNAL, *LSTM, ABSENT, random(1, 2, 4), random(1, 2, 4) / 2), {"hidden_size": 4, "outputs": 3}),
    ("GRU", (SIGNAL, *GRU), {"hidden_size": 4, "outputs": 2, "linear_before_reset": 1}),
    ("GRU", (random(70, 2, 3), *GRU), {"hidden_size": 4, "outputs": 2}),
    ("GRU", (SIGNAL, *GRU, ABSENT, random(1, 2, 4)), {"hidden_size": 4, "outputs": 2, "direction": b"reverse"}),
    ("Squeeze", (Open(random(2, 1, 3, 1)), Const([1, 3])), {}),
    ("Squeeze", (Open(random(2, 1, 3, 1)),), {}),
    ("Unsqueeze", (Open(ROWS), Const([0, -1])), {}),
    ("Reshape", (Open(SIGNAL), Const([0, -1, 1, 3])), {}),
    ("Reshape", (Open(SIGNAL), np.array([3, -1], np.int64)), {}),
]


def dtype_of(array: Array) -> DType:
    return next(dtype for dtype in DType if dtype.numpy == array.dtype)


def graph_of(number: int, case: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> tuple[Graph, dict[str, Array]]:
    """Return the graph of a case and the feeds of its inputs."""
    op, inputs, attrs = case
    nodes: list[Node] = [onnx.ABSENT]
    feeds: dict[str, Array] = {}
    edges: list[Edge] = []
    for slot, value in enumerate(inputs):
        name = "" if value is ABSENT else f"c{number}/x{slot}"
        edges.append(Edge(name))
        if isinstance(value, Weights | Const):
            array = (
                value.array if isinstance(value, Weights) else np.array(value[0] if op in SCALARS else value, np.int64)
            )
            nodes.append(Node(name, "Constant", attrs={"value": Tensor.of(array)}))
        elif value is not ABSENT:
            array = value.array if isinstance(value, Open) else value
            dims = [None] * array.ndim if isinstance(value, Open) else array.shape
            nodes.append(Node(name, "Placeholder", attrs={"dtype": dtype_of(array), "shape": Shape(dims)}))
            feeds[name] = array
    outputs = [Edge(f"c{number}/y", port) for port in range(attrs.get("outputs", 1))]
    names = tuple(str(edge).encode() for edge in outputs)
    attrs = {name: value for name, value in attrs.items() if name != "outputs"}
    node = Node(f"c{number}/y", op, tuple(edges), attrs={**attrs, **({onnx.OUTPUTS: names} if len(names) > 1 else {})})
    graph = Graph.of([*nodes, node], list(feeds), outputs, dialect="onnx", extra=onnx.header({}, opset=18))
    types = infer_types(graph)
    infos = {str(edge): (types[edge], Shape(None)) for edge in outputs}
    return graph.with_(extra=onnx.header(infos, opset=18)), feeds


# Ops whose constant is a scalar.
SCALARS = frozenset({"CumSum", "Trilu", "Clip"})
GRAPHS = [graph_of(number, case) for number, case in enumerate(CASES)]


@pytest.fixture(scope="module")
def results() -> Mapping[int, list[Array]]:
    """Outputs of all converted graphs in one session of TensorFlow."""
    if not find_runtime("tensorflow").available().ok:
        pytest.skip("TensorFlow is not installed")
    converted = [convert(graph) for graph, _ in GRAPHS]
    nodes = [node for graph in converted for node in graph.nodes.values()]
    inputs, outputs = ([edge for graph in converted for edge in getattr(graph, name)] for name in ("inputs", "outputs"))
    feeds = {name: array for _, feeds in GRAPHS for name, array in feeds.items()}
    library = Library[Graph]().with_(*(graph.library[name] for graph in converted for name in graph.library))
    with qk.open_session(Graph.of(nodes, inputs, outputs, library=library), "tensorflow") as session:
        values = session.run(feeds)
    return {number: [values[str(edge)] for edge in graph.outputs] for number, graph in enumerate(converted)}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_outputs_equal_those_of_onnxruntime(number: int, results: Mapping[int, list[Array]]) -> None:
    graph, feeds = GRAPHS[number]
    with find_runtime("onnxruntime").open(graph) as session:
        expected = session.run(feeds)
    assert len(expected) == len(results[number])
    for values, result in zip(expected.values(), results[number], strict=True):
        assert result.dtype == values.dtype
        np.testing.assert_allclose(result, values, rtol=1e-5, atol=1e-5)


def test_all_unsupported_nodes_are_listed() -> None:
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((3,))}),
        Node("a", "NonZero", (Edge("x"),)),
        Node("b", "Hardmax", (Edge("x"),)),
        Node("y", "Concat", (Edge("b"), Edge("b")), attrs={"axis": 0}),
    ]
    graph = Graph.of(nodes, ["x"], ["a", "y"], dialect="onnx", extra=onnx.header({}))
    with pytest.raises(UnavailableError, match=r"2 nodes: 'b' \(Hardmax\) .*; 'a' \(NonZero\) cannot be converted"):
        convert(graph)


NETWORKS = sorted(FOLDER.glob("*.onnx"))


@pytest.mark.models
@pytest.mark.skipif(not NETWORKS, reason="the networks are not installed")
def test_ops_of_the_networks_are_supported() -> None:
    ops = {node.op for path in NETWORKS for node in qk.load(path).graph.nodes.values()}
    assert ops - HANDLERS.keys() == {"Absent", "Constant", "Placeholder"}
    assert len(HANDLERS) >= 110


@pytest.mark.models
@pytest.mark.parametrize("name", ["silero_vad_op15", "dtln_1", "super_resolution_10"])
def test_networks_have_equal_outputs(name: str) -> None:
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip("the networks are not installed")
    shapes = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}
    graph = qk.load(path).graph
    nodes = [
        node.with_attrs(shape=Shape(shapes[node.name])) if name.startswith("silero") and node.name in shapes else node
        for node in graph.nodes.values()
    ]
    graph = graph.with_nodes(nodes)
    feeds = {}
    for edge in graph.inputs:
        attrs: Mapping[str, Any] = graph[edge.node].attrs
        dims = [size or 1 for size in attrs["shape"].dims]
        feeds[str(edge)] = np.array(16000) if edge.node == "sr" else random(*dims)
    converted = convert(graph)
    with qk.open_session(graph, "onnxruntime") as session:
        expected = list(session.run(feeds).values())
    with qk.open_session(converted, "tensorflow") as session:
        result = list(session.run(dict(zip(map(str, converted.inputs), feeds.values(), strict=True))).values())
    for values, other in zip(expected, result, strict=True):
        np.testing.assert_allclose(other, values, rtol=1e-5, atol=1e-5)
