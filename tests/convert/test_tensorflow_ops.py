"""Each op that the conversion to ONNX supports, in TensorFlow and in ONNX Runtime."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.convert.tensorflow_to_onnx.lists import LIST_OPS
from quantkit.convert.tensorflow_to_onnx.translator import HANDLERS
from quantkit.formats.onnx import OPSET
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.semantics import IF_OPS, LOOP_OPS
from quantkit.ops.tensorflow.signatures import find_op, output_dtypes
from quantkit.runtimes import find_runtime

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Const:
    """Constant input; other arrays are inputs of the graph."""

    values: Any
    dtype: Any = np.int32

    @property
    def array(self) -> Array:
        return np.asarray(self.values, self.dtype)


@dataclass(frozen=True)
class Open:
    """Input whose sizes are unknown."""

    array: Array


def random(*shape: int, low: float = -2, high: float = 2) -> Array:
    return np.random.default_rng(shape).uniform(low, high, shape).astype(np.float32)


def ints(*values: int, dtype: Any = np.int32) -> Array:
    return np.array(values, dtype)


ROWS, IMAGE, VOLUME = random(3, 5), random(2, 6, 8, 4), random(1, 4, 5, 6, 2)
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0, -1.5], np.float32)
BOXES = np.array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1]], np.float32)
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5], np.float32)
SIGNED = (ints(7, -7, 7, -7, 6), ints(3, 3, -3, -3, 3))
IDS = Const([0, 0, 1, 3])
WINDOW = {"ksize": (1, 2, 3, 2, 1), "strides": (1, 2, 2, 1, 1), "padding": b"SAME"}
NMS = (BOXES, SCORES, Const(4), Const(0.5, np.float32), Const(0.55, np.float32))

UNARY = (
    "Abs Asinh Atan Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor Neg Rint Round Selu "
    "Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh"
)
COMPARISONS = "Equal Greater GreaterEqual Less LessEqual Maximum Minimum NotEqual"
COPIES = "CheckNumerics Identity PlaceholderWithDefault PreventGradient Snapshot StopGradient"
FLAGS = (np.array([True, False, True, False]), np.array([True, True, False, False]))
NORM = tuple(random(4, low=0.5, high=1 + scale) for scale in range(4))
# (op type, inputs, attributes)
CASES: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = [
    *((op, (ROWS,), {}) for op in UNARY.split()),
    *((op, (ROWS,), {"message": b"", "shape": Shape((3, 5))}) for op in COPIES.split()),
    *((op, (np.round(ROWS), np.round(random(5))), {}) for op in COMPARISONS.split()),
    *((op, (ROWS,), {}) for op in ("Inv", "LogSoftmax", "OnesLike", "Softmax", "Square", "ZerosLike")),
    *((op, (ROWS, Const([1])), {}) for op in ("Max", "Mean", "Min", "Prod", "Sum", "ReverseV2")),
    *((op, (ROWS > 0, Const([0])), {"keep_dims": True}) for op in ("All", "Any")),
    *((op, FLAGS, {}) for op in ("LogicalAnd", "LogicalOr")),
    *((op, (IMAGE, *NORM), {"is_training": False}) for op in ("FusedBatchNorm", "FusedBatchNormV2")),
    *((op, (random(2, 3, 4), random(2, 4, 2)), {"Tout": DType.FLOAT}) for op in ("BatchMatMul", "BatchMatMulV3")),
    ("Pow", (random(4, low=0.5, high=3), ROWS[:, :1]), {}),
    ("LogicalNot", FLAGS[:1], {}),
    ("LeakyRelu", (ROWS,), {"alpha": 0.3}),
    ("EnsureShape", (Open(ROWS),), {"shape": Shape((3, None))}),
    ("Concat", (Const(1), ROWS, random(3, 2)), {"N": 2}),
    ("Gather", (ROWS, ints(2, 0)), {}),
    ("BroadcastTo", (random(3, 1), Const([2, 3, 4])), {}),
    ("BroadcastArgs", (ints(3, 1), ints(2, 1, 4)), {}),
    ("BroadcastArgs", (np.zeros(0, np.int64), np.array([2, 4], np.int64)), {}),
    ("Tile", (ROWS, ints(2, 1)), {}),
    ("MirrorPad", (ROWS, Const([[1, 2], [0, 3]])), {"mode": b"REFLECT"}),
    ("PadV2", (ROWS, Const([[1, 2], [0, 3]]), Const(7, np.float32)), {}),
    ("Range", tuple(np.array(number, np.int32) for number in (1, 9, 3)), {}),
    ("ReverseSequence", (random(3, 4, 2), ints(1, 3, 2)), {"seq_dim": 1, "batch_dim": 0}),
    ("Select", (np.array([True, False, True]), ROWS, -ROWS), {}),
    ("Slice", (ROWS, ints(1, 0), ints(-1, 2)), {}),
    ("Size", (Open(ROWS),), {"out_type": DType.INT32}),
    ("Transpose", (IMAGE, Const([0, 3, 2, 1])), {}),
    ("TruncateMod", SIGNED, {}),
    *((op, (random(4, low=-0.9, high=0.9),), {}) for op in ("Acos", "Asin", "Atanh")),
    *((op, (random(4, low=1, high=3),), {}) for op in ("Acosh", "Log", "Log1p", "Rsqrt", "Reciprocal", "Sqrt")),
    *((op, (SPECIAL,), {}) for op in ("IsFinite", "IsInf", "IsNan")),
    *((op, SIGNED, {}) for op in ("FloorDiv", "FloorMod", "TruncateDiv", "Mod", "Div")),
    *((op, (random(6), random(6) + 3), {}) for op in ("FloorDiv", "FloorMod", "Mod", "RealDiv")),
    *(
        (op, (np.array([1, 0, 2], np.float32), np.array([0, 0, 4], np.float32)), {})
        for op in ("DivNoNan", "MulNoNan", "Xdivy")
    ),
    (
        "Atan2",
        (np.array([1, -1, 1, -1, 0, 0, 1, -1, 0], np.float32), np.array([1, 1, -1, -1, 1, -1, 0, 0, 0], np.float32)),
        {},
    ),
    ("AddN", (ROWS, -2 * ROWS, ROWS**2), {"N": 3}),
    ("AddN", (ROWS,), {"N": 1}),
    ("BiasAddV1", (ROWS, random(5)), {}),
    ("IdentityN", (ROWS, ints(1, 2)), {"T": (DType.FLOAT, DType.INT32)}),
    ("ClipByValue", (ROWS, Const(-0.5, np.float32), Const(1, np.float32)), {}),
    ("Cumsum", (ROWS, Const(1)), {"exclusive": True}),
    ("Cumsum", (ROWS, Const(0)), {"reverse": True}),
    ("LeftShift", (ints(1, 2, 3, dtype=np.uint32), ints(3, 2, 1, dtype=np.uint32)), {}),
    ("RightShift", (ints(64, 9, dtype=np.uint8), ints(3, 2, dtype=np.uint8)), {}),
    ("FakeQuantWithMinMaxArgs", (ROWS,), {"min": -1.0, "max": 1.5}),
    ("FakeQuantWithMinMaxVars", (ROWS, Const(-1, np.float32), Const(1.5, np.float32)), {}),
    ("ArgMax", (ROWS, Const(1)), {"output_type": DType.INT64}),
    ("ArgMin", (Open(ROWS), Const(0)), {"output_type": DType.INT32}),
    ("TopKV2", (ROWS, Const(2)), {"sorted": True}),
    ("OneHot", (ints(2, -1, 0, 5), Const(3), Const(1, np.float32), Const(0, np.float32)), {"axis": -1}),
    ("OneHot", (ints(2, 1), Const(3), Const(True, bool), Const(False, bool)), {"axis": 0}),
    ("Where", (ROWS > 0,), {}),
    ("InvertPermutation", (ints(2, 0, 3, 1),), {}),
    ("Roll", (ROWS, Const([1, -2]), Const([0, 1])), {}),
    ("GatherNd", (ROWS, Const([[0, 1], [2, 4]])), {}),
    ("GatherV2", (IMAGE, ints(1, 5, 0, 2).reshape(2, 2), Const(1)), {"batch_dims": 1}),
    ("ScatterNd", (Const([[1], [3], [1]]), random(3, 2), Const([5, 2])), {}),
    ("TensorScatterAdd", (ROWS, Const([[0], [2], [0]]), random(3, 5)), {}),
    ("TensorScatterSub", (ROWS, Const([[0], [2], [0]]), random(3, 5)), {}),
    ("TensorScatterUpdate", (ROWS, Const([[2], [0]]), random(2, 5)), {}),
    *((f"Segment{name}", (random(4, 2), IDS), {}) for name in ("Sum", "Prod", "Mean")),
    *((f"UnsortedSegment{name}", (random(4, 2), ints(2, 0, -1, 2), Const(4)), {}) for name in ("Sum", "Prod")),
    ("Unique", (ints(5, 2, 5, 3, 2),), {"out_idx": DType.INT32}),
    ("UniqueWithCounts", (ints(5, 2, 5, 3, 2),), {"out_idx": DType.INT64}),
    ("DynamicStitch", (Const(2), Const([0, 1]), random(3), random(2, 3)), {"N": 2}),
    ("ParallelDynamicStitch", (ints(2, 0), ints(1), random(2, 3), random(1, 3)), {"N": 2}),
    ("DynamicPartition", (ROWS, ints(1, 0, 1)), {"num_partitions": 2}),
    ("Bincount", (ints(1, 3, 1, 7), Const(5), Const([], np.float32)), {}),
    ("DenseBincount", (ints(1, 3, 1), Const(4), Const([], np.float32)), {"binary_output": True}),
    ("MatrixDeterminant", (random(2, 3, 3),), {}),
    ("MatrixBandPart", (random(2, 4, 5), Const(1), Const(2)), {}),
    ("MatrixBandPart", (random(4, 4), Const(-1), Const(0)), {}),
    ("MatrixDiag", (SPECIAL,), {}),
    *((f"MatrixDiag{v}", (ROWS, *map(Const, (0, -1, -1)), Const(3, np.float32)), {}) for v in ("V2", "V3")),
    ("MatrixDiagPart", (random(2, 3, 4),), {}),
    *((f"MatrixDiagPart{v}", (random(3, 2), Const(0), Const(0, np.float32)), {}) for v in ("V2", "V3")),
    ("MatrixSetDiag", (random(2, 3, 3), random(2, 3)), {}),
    *((f"MatrixSetDiag{v}", (random(3, 3), random(3), Const(0)), {}) for v in ("V2", "V3")),
    ("LRN", (IMAGE,), {"depth_radius": 1, "alpha": 0.5, "beta": 0.75, "bias": 2.0}),
    ("DepthToSpace", (IMAGE,), {"block_size": 2}),
    ("SpaceToDepth", (IMAGE,), {"block_size": 2}),
    ("SpaceToBatchND", (IMAGE, Const([2, 3]), Const([[0, 0], [1, 0]])), {}),
    ("SpaceToBatchND", (random(2, 6, 3), Const([2]), Const([[1, 1]])), {}),
    ("BatchToSpaceND", (random(12, 3, 2, 4), Const([2, 3]), Const([[1, 0], [0, 2]])), {}),
    ("BatchToSpaceND", (random(4, 3, 2), Const([2]), Const([[0, 0]])), {}),
    ("ResizeBicubic", (IMAGE, Const([9, 5])), {"half_pixel_centers": True}),
    ("ResizeBilinear", (IMAGE, Const([9, 5])), {"half_pixel_centers": True}),
    ("ResizeNearestNeighbor", (IMAGE, Const([3, 16])), {"half_pixel_centers": True}),
    ("MaxPoolV2", (IMAGE, Const([1, 2, 2, 1]), Const([1, 2, 2, 1])), {"padding": b"SAME"}),
    (
        "ExtractImagePatches",
        (IMAGE,),
        {"ksizes": (1, 2, 3, 1), "strides": (1, 2, 1, 1), "rates": (1, 1, 2, 1), "padding": b"SAME"},
    ),
    ("Conv3D", (VOLUME, Const(random(2, 3, 2, 2, 5), np.float32)), {"strides": (1, 2, 1, 1, 1), "padding": b"SAME"}),
    (
        "Conv3DBackpropInputV2",
        (Const([1, 8, 10, 6, 3]), Const(random(3, 2, 2, 3, 2), np.float32), VOLUME),
        {"strides": (1, 2, 2, 1, 1), "padding": b"SAME"},
    ),
    ("MaxPool3D", (VOLUME,), WINDOW),
    ("AvgPool3D", (VOLUME,), WINDOW),
    ("NonMaxSuppressionV2", (BOXES, SCORES, Const(3), Const(0.5, np.float32)), {}),
    ("NonMaxSuppressionV3", NMS, {}),
    ("NonMaxSuppressionV4", NMS, {"pad_to_max_output_size": True}),
    ("NonMaxSuppressionV5", (*NMS, Const(0, np.float32)), {"pad_to_max_output_size": True}),
]


def graph_of(number: int, case: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> tuple[Graph, dict[str, Array]]:
    """Return the graph of a case and the feeds of its inputs."""
    op, inputs, attrs = case
    prefix = f"c{number}"
    nodes: list[Node] = []
    feeds: dict[str, Array] = {}
    arrays = [value if isinstance(value, np.ndarray) else value.array for value in inputs]
    for slot, (value, array) in enumerate(zip(inputs, arrays, strict=True)):
        name = f"{prefix}/x{slot}"
        if isinstance(value, Const):
            nodes.append(constant(name, array))
        else:
            dims = [None] * array.ndim if isinstance(value, Open) else array.shape
            nodes.append(Node(name, "Placeholder", attrs={"dtype": dtype_of(array), "shape": Shape(dims)}))
            feeds[name] = array
    node = Node(
        f"{prefix}/y", op, tuple(Edge(node.name) for node in nodes), attrs=attributes_with_types(op, arrays, attrs)
    )
    count = 1 if op.startswith("FusedBatchNorm") else len(output_dtypes(node))  # the others are for training
    outputs = [Edge(node.name, port) for port in range(count)]
    return Graph.of([*nodes, node], list(feeds), outputs), feeds


def dtype_of(array: Array) -> DType:
    return next(dtype for dtype in DType if dtype.numpy == array.dtype)


def attributes_with_types(op: str, arrays: list[Array], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with the types of the inputs."""
    definition = find_op(op)
    assert definition is not None, op
    types: dict[str, Any] = {}
    slot = 0
    for arg in definition.inputs:
        if arg.type_attr:
            types[arg.type_attr] = dtype_of(arrays[slot])
        slot += attrs.get(arg.number_attr, 1) if arg.number_attr else 1
    return {**types, **{name: value for name, value in attrs.items() if name in definition.attrs}}


# Ops of `test_tensorflow_to_onnx.py` and of the test of Fourier transforms.
TESTED_ELSEWHERE = (
    "Add AddV2 AvgPool BatchMatMulV2 BiasAdd Cast ComplexAbs ConcatV2 Conv2D Conv2DBackpropInput Erfc "
    "DepthwiseConv2dNative Einsum ExpandDims Fill FusedBatchNormV3 Imag MatMul MaxPool Mul Pack Pad RFFT Real Relu "
    "Relu6 Reshape SelectV2 Shape Slice Split SplitV SquaredDifference Squeeze StridedSlice Sub Unpack"
)
# TensorFlow rounds the positions of a bicubic resize to 1/1024 pixel.
TOLERANCES = {"ResizeBicubic": 2e-3}
GRAPHS = [graph_of(number, case) for number, case in enumerate(CASES)]


@pytest.fixture(scope="module")
def expected() -> Mapping[str, Array]:
    """Outputs of all cases in one session of TensorFlow."""
    runtime = find_runtime("tensorflow")
    if not runtime.available().ok:
        pytest.skip(runtime.available().detail)
    nodes = [node for graph, _ in GRAPHS for node in graph.nodes.values()]
    inputs, outputs = ([edge for graph, _ in GRAPHS for edge in getattr(graph, name)] for name in ("inputs", "outputs"))
    with runtime.open(Graph.of(nodes, inputs, outputs)) as session:
        return session.run({name: array for _, feeds in GRAPHS for name, array in feeds.items()})


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_outputs_equal_those_of_tensorflow(number: int, expected: Mapping[str, Array]) -> None:
    graph, feeds = GRAPHS[number]
    with find_runtime("onnxruntime").open(convert(graph)) as session:
        results = session.run(feeds)
    for edge in graph.outputs:
        values = expected[str(edge)]
        assert results[str(edge)].dtype == values.dtype
        tolerance = TOLERANCES.get(CASES[number][0], 1e-5)
        np.testing.assert_allclose(results[str(edge)], values, rtol=tolerance, atol=tolerance, err_msg=str(edge))


@pytest.mark.parametrize("op", ["ComplexAbs", "Real", "Imag"])
def test_fourier_transforms_equal_those_of_numpy(op: str) -> None:
    signal = random(2, 3, 16)
    placeholder = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 3, 16))})
    transform = Node("f", "RFFT", (Edge("x"), Edge("n")), attrs={"Treal": DType.FLOAT, "Tcomplex": DType.COMPLEX64})
    part = Node("y", op, (Edge("f"),), attrs={"T": DType.COMPLEX64, "Tout": DType.FLOAT})
    graph = Graph.of([placeholder, constant("n", np.array([16], np.int32)), transform, part], ["x"], ["y"])
    with find_runtime("onnxruntime").open(convert(graph)) as session:
        (result,) = session.run({"x": signal}).values()
    spectrum = np.fft.rfft(signal)
    expected = {"ComplexAbs": np.abs(spectrum), "Real": spectrum.real, "Imag": spectrum.imag}[op]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_ops_of_tf2onnx_are_covered() -> None:
    pytest.importorskip("tf2onnx", reason="pip install tf2onnx")
    from tf2onnx import tfonnx  # noqa: F401  (its import registers the handlers)
    from tf2onnx.handler import tf_op

    supported = HANDLERS.keys() | LOOP_OPS | IF_OPS | LIST_OPS.keys()
    assert len(supported & tf_op.create_mapping(OPSET, []).keys()) >= 185


def test_each_handler_has_a_case() -> None:
    others = set(TESTED_ELSEWHERE.split())
    assert sorted(op for op in HANDLERS.keys() - {op for op, _, _ in CASES} - others if not op.startswith("_")) == []
