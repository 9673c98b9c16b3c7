"""NumPy kernels, compared with TensorFlow's kernels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantkit.errors import GraphError, UnavailableError
from quantkit.ir.graph import Attr, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.kernels import KERNELS, evaluate, has_kernel
from quantkit.ops.kernels.elementwise import BINARY, UNARY
from quantkit.ops.kernels.reductions import REDUCTIONS
from quantkit.ops.tensorflow.signatures import find_op

Check = Callable[..., None]
F, D, I32, I64 = np.float32, np.float64, np.int32, np.int64


def real(*shape: int, low: float = -3, high: float = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(F)


def integers(*shape: int, low: int = -20, high: int = 20, seed: int = 0, dtype: Any = I32) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def test_every_kernel_has_a_known_op_type() -> None:
    assert [op for op in KERNELS if find_op(op) is None] == []


def test_error_names_op_without_kernel() -> None:
    assert not has_kernel("RandomUniform")
    with pytest.raises(UnavailableError, match=r"'dice'.*RandomUniform"):
        evaluate(Node("dice", "RandomUniform"), [])


@pytest.mark.parametrize(
    ("node", "inputs", "message"),
    [
        (Node("sum", "Add"), [real(2), real(3)], r"'sum' \(Add\), input shapes 2, 3: operands could not be broadcast"),
        (Node("sum", "Add"), [real(2)], r"'sum' \(Add\), input shapes 2: Add does not have 1 inputs"),
        (Node("q", "QuantizedMatMul"), [real(2, 2)] * 2, r"shapes 2x2, 2x2: QuantizedMatMul does not have 2 inputs"),
        (Node("q", "QuantizedConv2D"), [], r"input shapes none: QuantizedConv2D does not have 0 inputs"),
        (Node("p", "Pack", attrs={"N": 2}), [], r"input shapes none: Pack does not have 0 inputs"),
        (Node("p", "Pack", attrs={"axis": (0, 1)}), [real(2)] * 2, r"shapes 2, 2: int\(\) argument must be"),
        (Node("cat", "ConcatV2"), [real(2), real(2), np.array(3)], r"'cat' \(ConcatV2\).*axis 3 does not exist"),
        (Node("div", "FloorDiv"), [integers(2), np.zeros(2, I32)], r"'div' .*integer division by zero"),
        (Node("r", "Reshape"), [real(6), np.array([4, -1])], r"'r' .*6 elements do not fill the shape \[4, -1\]"),
        (Node("p", "Pack", attrs={"N": 2}), [real(2), real(3)], r"'p' \(Pack\), input shapes 2, 3"),
        (
            Node("c", "CheckNumerics", attrs={"message": b"layer 3"}),
            [np.array([1, np.nan], F)],
            r"'c' .*layer 3 : Tensor had NaN values",
        ),
        (Node("t", "Transpose"), [real(2, 3), np.array([0, 0])], r"'t' \(Transpose\)"),
        (Node("a", "Assert", attrs={"T": (DType.STRING,)}), [np.array(False), np.array(b"no")], "'a'.*failed: no"),
    ],
)
def test_invalid_inputs_raise_graph_errors(node: Node, inputs: list[Array], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        evaluate(node, inputs)


def test_inputs_are_not_changed(typed: Callable[..., Node]) -> None:
    x = real(3, 4)
    x.flags.writeable = False
    for op in ("Add", "Relu", "Identity", "Neg"):
        evaluate(typed(op, [x] * (2 if op == "Add" else 1)), [x] * (2 if op == "Add" else 1))


PAIRS = {
    F: (real(3, 4), real(4, seed=1)),
    I32: (integers(3, 4), np.where(integers(4, seed=1) == 0, 7, integers(4, seed=1)).astype(I32)),
}
INTEGER_ONLY = {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift"}
REAL_ONLY = {"RealDiv", "DivNoNan", "MulNoNan", "Xdivy", "Xlogy", "Xlog1py", "Atan2", "NextAfter"}
UNUSUAL = {"LogicalAnd", "LogicalOr", "Complex", "Pow"}


@pytest.mark.engine
@pytest.mark.parametrize("op", sorted(BINARY.keys() - UNUSUAL))
def test_binary(check: Check, op: str) -> None:
    if op not in INTEGER_ONLY and op != "TruncateDiv":
        check(op, PAIRS[F])
        check(op, [np.array([0, 1, -1], F), np.array([0, 0, 0], F)])
    if op not in REAL_ONLY:
        check(op, PAIRS[I32])


@pytest.mark.engine
def test_binary_with_special_inputs(check: Check) -> None:
    check("Pow", [real(5, low=0.1), real(5, seed=2)])
    check("Pow", [integers(5), integers(5, low=0, high=4)])
    check("Complex", [real(3), real(3, seed=1)])
    truth = np.array([True, False])
    for op in ("LogicalAnd", "LogicalOr"):
        check(op, [truth[:, None], truth])
    check("Div", [np.array([250], np.uint8), np.array([7], np.uint8)])
    check("Add", [np.array([250], np.uint8), np.array([7], np.uint8)])
    check("FloorDiv", [real(8), real(8, seed=4)])


@pytest.mark.engine
@pytest.mark.parametrize("op", sorted(UNARY))
def test_unary(check: Check, op: str) -> None:
    if op == "LogicalNot":
        inputs = [np.array([True, False])]
    elif op == "Invert":
        inputs = [integers(7)]
    elif op in ("Real", "Imag", "Conj", "Angle", "ComplexAbs"):
        inputs = [(real(5) + 1j * real(5, seed=1)).astype(np.complex64)]
    else:
        low, high = {"Acosh": (1, 5), "Asin": (-1, 1), "Acos": (-1, 1), "Atanh": (-0.9, 0.9)}.get(op, (-4, 7))
        inputs = [real(3, 5, low=low, high=high)]
        if op in ("Log", "Log1p", "Sqrt", "Rsqrt", "Lgamma"):
            inputs = [np.abs(inputs[0]) + F(0.1)]
    for each in (inputs, [np.asarray(x.flat[0]) for x in inputs]):  # an array, and a scalar
        check(op, each, rtol=1e-4 if op in ("Sinh", "Cosh", "Tan") else 1e-5)


@pytest.mark.engine
@pytest.mark.parametrize("op", ["Neg", "Abs", "Sign", "Square", "Relu"])
def test_unary_of_integers(check: Check, op: str) -> None:
    check(op, [integers(9)])


@pytest.mark.engine
def test_round_is_half_to_even(check: Check) -> None:
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], F)
    for op in ("Round", "Rint", "Floor", "Ceil"):
        check(op, [halves])


@pytest.mark.engine
@pytest.mark.parametrize("to", ["int32", "int64", "uint8", "int8", "half", "double", "bool", "float", "bfloat16"])
@pytest.mark.parametrize("x", [real(4, 5, low=-120, high=120), integers(9, low=-300, high=300), np.array([True])])
def test_cast(check: Check, x: Array, to: str) -> None:
    if x.dtype.kind == "f" and to == "uint8":
        x = np.abs(x)
    check("Cast", [x], SrcT=DType.of(x.dtype), DstT=DType(to), Truncate=False)


@pytest.mark.engine
def test_bitcast(check: Check) -> None:
    check("Bitcast", [real(3, 2)], type=DType.INT32)
    check("Bitcast", [real(3, 2)], type=DType.UINT8)
    check("Bitcast", [integers(3, 4, low=0, high=255, dtype=np.uint8)], type=DType.FLOAT)


@pytest.mark.engine
def test_select_and_where(check: Check) -> None:
    condition = np.array([True, False, True])
    check("Select", [condition, real(3, 4), real(3, 4, seed=1)])
    check("Select", [np.array(True), real(3, 4), real(3, 4, seed=1)])
    check("SelectV2", [condition, real(4, 3), real(1, 3, seed=1)])
    check("Where", [real(3, 4) > 0])
    check("ClipByValue", [real(9), np.array(-1, F), np.array(1, F)])
    check("AddN", [real(3), real(3, seed=1), real(3, seed=2)])
    check("LeakyRelu", [real(9)], alpha=0.1)
    check("Equal", [np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)])
    check("Equal", [real(2), real(3)], incompatible_shape_error=False)
    check("ApproximateEqual", [np.array([1, 1], F), np.array([1.05, 2], F)], tolerance=0.1)


SHAPES: list[tuple[str, list[Array], dict[str, Attr]]] = [
    ("Shape", [real(2, 3)], {}),
    ("Shape", [real()], {"out_type": DType.INT64}),
    ("ShapeN", [real(2, 3), real(4)], {"out_type": DType.INT32}),
    ("Rank", [real(2, 3)], {}),
    ("Size", [real(2, 3)], {"out_type": DType.INT64}),
    ("Reshape", [real(2, 6), np.array([3, -1], I32)], {}),
    ("Reshape", [real(1), np.array([], I32)], {}),
    ("Reshape", [real(0, 3), np.array([3, -1], I64)], {}),
    ("ExpandDims", [real(2, 3), np.array(-1, I32)], {}),
    ("Squeeze", [real(1, 2, 1)], {}),
    ("Squeeze", [real(1, 2, 1)], {"squeeze_dims": (-1,)}),
    ("Transpose", [real(2, 3, 4), np.array([2, 0, 1], I32)], {}),
    ("InvertPermutation", [np.array([2, 0, 1], I32)], {}),
    ("Pack", [real(2), real(2, seed=1)], {"axis": -1}),
    ("Unpack", [real(2, 3)], {"num": 3, "axis": 1}),
    ("Concat", [np.array(1, I32), real(2, 3), real(2, 1)], {}),
    ("ConcatV2", [real(2, 3), real(2, 1), np.array(-1, I32)], {}),
    ("ConcatOffset", [np.array(1, I32), np.array([2, 3], I32), np.array([2, 1], I32)], {}),
    ("Slice", [real(4, 5), np.array([1, 2], I32), np.array([2, -1], I32)], {}),
    ("Split", [np.array(1, I32), real(2, 6)], {"num_split": 3}),
    ("SplitV", [real(2, 6), np.array([1, -1, 2], I32), np.array(1, I32)], {"num_split": 3}),
    ("Tile", [real(2, 3), np.array([2, 1], I32)], {}),
    ("Pad", [real(2, 3), np.array([[1, 0], [0, 2]], I32)], {}),
    ("PadV2", [real(2, 3), np.array([[1, 0], [0, 2]], I32), np.array(7, F)], {}),
    ("MirrorPad", [real(3, 3), np.array([[1, 0], [0, 2]], I32)], {"mode": b"REFLECT"}),
    ("MirrorPad", [real(3, 3), np.array([[1, 0], [0, 2]], I32)], {"mode": b"SYMMETRIC"}),
    ("Fill", [np.array([2, 3], I32), np.array(7, F)], {}),
    ("ZerosLike", [integers(3)], {}),
    ("OnesLike", [real(3)], {}),
    ("Range", [np.array(3, I32), np.array(-7, I32), np.array(-3, I32)], {}),
    ("Range", [np.array(0, F), np.array(1, F), np.array(0.1, F)], {}),
    ("LinSpace", [np.array(0, F), np.array(3, F), np.array(7, I32)], {}),
    ("LinSpace", [np.array(2, F), np.array(3, F), np.array(1, I32)], {}),
    ("BroadcastTo", [real(3, 1), np.array([2, 3, 4], I32)], {}),
    ("BroadcastArgs", [np.array([3, 1], I32), np.array([2, 1, 4], I32)], {}),
    ("ReverseV2", [real(2, 3), np.array([-1], I32)], {}),
    ("Reverse", [real(2, 3), np.array([True, False])], {}),
    ("Roll", [real(2, 5), np.array([2], I32), np.array([1], I32)], {}),
    ("SpaceToBatchND", [real(2, 3, 4, 2), np.array([2, 2], I32), np.array([[1, 0], [0, 0]], I32)], {}),
    ("SpaceToBatchND", [real(2, 6, 2), np.array([3], I32), np.array([[0, 0]], I32)], {}),
    ("BatchToSpaceND", [real(8, 2, 2, 3), np.array([2, 2], I32), np.array([[1, 0], [0, 1]], I32)], {}),
    ("SpaceToBatch", [real(1, 4, 4, 1), np.array([[0, 0], [0, 0]], I32)], {"block_size": 2}),
    ("BatchToSpace", [real(4, 2, 2, 1), np.array([[0, 0], [0, 0]], I32)], {"block_size": 2}),
    ("SpaceToDepth", [real(2, 4, 6, 3)], {"block_size": 2}),
    ("DepthToSpace", [real(2, 2, 3, 12)], {"block_size": 2}),
    ("GatherV2", [real(4, 5), np.array([[3, 1]], I32), np.array(1, I32)], {}),
    ("GatherV2", [real(2, 4, 5), integers(2, 3, low=0, high=4), np.array(1, I32)], {"batch_dims": 1}),
    ("Gather", [real(4, 5), np.array([3, 1], I32)], {}),
    ("GatherNd", [real(4, 5), np.array([[3, 1], [0, 0]], I32)], {}),
    ("ScatterNd", [np.array([[1], [3], [1]], I32), real(3, 2), np.array([5, 2], I32)], {}),
    ("TensorScatterUpdate", [real(4), np.array([[1]], I32), np.array([9], F)], {}),
    ("TensorScatterAdd", [real(4), np.array([[1], [1]], I32), np.array([9, 1], F)], {}),
    ("DynamicStitch", [np.array([0, 2], I32), np.array([1], I32), real(2, 3), real(1, 3)], {"N": 2}),
    ("OneHot", [np.array([[0, 2], [-1, 1]], I32), np.array(3, I32), np.array(5, F), np.array(0, F)], {"axis": -1}),
    ("OneHot", [np.array([[0, 2], [-1, 1]], I32), np.array(3, I32), np.array(5, F), np.array(0, F)], {"axis": 0}),
    ("TopKV2", [np.array([[1, 3, 3, 2]], F), np.array(3, I32)], {}),
    ("TopKV2", [integers(2, 9, low=0, high=4), np.array(5, I32)], {}),
    ("ListDiff", [np.array([1, 2, 3, 2], I32), np.array([2], I32)], {}),
    ("Unique", [np.array([3, 1, 3, 2], I32)], {}),
    ("EnsureShape", [real(2, 3)], {"shape": Shape((None, 3))}),
    ("IdentityN", [real(2), integers(3)], {}),
    ("ArgMax", [real(3, 4), np.array(-1, I32)], {}),
    ("ArgMin", [real(3, 4), np.array(0, I32)], {"output_type": DType.INT32}),
    ("L2Loss", [real(3, 4)], {}),
    ("EuclideanNorm", [real(3, 4), np.array([0], I32)], {}),
]


@pytest.mark.engine
@pytest.mark.parametrize(("op", "inputs", "attrs"), SHAPES, ids=[f"{op}-{i}" for i, (op, _, _) in enumerate(SHAPES)])
def test_shapes_and_indexing(check: Check, op: str, inputs: list[Array], attrs: dict[str, Attr]) -> None:
    check(op, inputs, **attrs)


SLICES: list[tuple[list[int], list[int], list[int], dict[str, Attr]]] = [
    ([0, 1], [2, 3], [1, 1], {}),
    ([1, -1], [3, -9], [1, -2], {}),
    ([1, 0], [0, 0], [1, 1], {"end_mask": 3}),
    ([1, 2], [2, 0], [1, 1], {"shrink_axis_mask": 1, "end_mask": 2}),
    ([0, -2], [0, 0], [1, 1], {"ellipsis_mask": 1, "shrink_axis_mask": 2}),
    ([0, 0, 1], [0, 0, 3], [1, 1, 1], {"new_axis_mask": 2, "begin_mask": 1, "end_mask": 1}),
    ([9, 0], [-9, 9], [-1, 2], {"begin_mask": 3}),
    ([-9], [99], [3], {}),
]


@pytest.mark.engine
@pytest.mark.parametrize(("begin", "end", "strides", "masks"), SLICES)
def test_strided_slice(
    check: Check, begin: list[int], end: list[int], strides: list[int], masks: dict[str, Attr]
) -> None:
    check("StridedSlice", [real(4, 5, 3), *(np.array(x, I32) for x in (begin, end, strides))], **masks)


@pytest.mark.engine
@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_reductions(check: Check, op: str) -> None:
    x = real(3, 4, 5) > 0 if op in ("All", "Any") else real(3, 4, 5)
    for axes in (np.array([1, -1], I32), np.array(0, I32), np.array([], I32), np.array([0, 1, 2], I64)):
        for keep in (True, False):
            check(op, [x, axes], keep_dims=keep)
    if op not in ("All", "Any", "EuclideanNorm"):
        check(op, [integers(3, 5), np.array([1], I32)])
        check(op, [real(0, 2), np.array([0], I32)])


@pytest.mark.engine
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_sums_and_products(check: Check, exclusive: bool, reverse: bool) -> None:
    for op in ("Cumsum", "Cumprod"):
        check(op, [real(3, 5), np.array(1, I32)], exclusive=exclusive, reverse=reverse)


def test_output_has_declared_type_despite_promotion(typed: Callable[..., Node]) -> None:
    half = np.array([1, 2], np.float16)
    assert evaluate(typed("Mean", [half, np.array(0, I32)]), [half, np.array(0, I32)])[0].dtype == np.float16
    assert evaluate(typed("Sigmoid", [half]), [half])[0].dtype == np.float16
