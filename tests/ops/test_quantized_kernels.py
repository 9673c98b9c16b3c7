"""The eight-bit ops, code for code against TensorFlow's kernels, and their formulas without it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.kernels import evaluate
from quantkit.ops.kernels.quantized import QuantizedRange, round_half_away
from quantkit.ops.tensorflow.signatures import find_op

Compute = Callable[[Node, list[Array]], list[Array]]
F, I32 = np.float32, np.int32
Q8, QI8, Q32 = DType.QUINT8, DType.QINT8, DType.QINT32
RANGES = [(-5.0, 300.0), (-1.0, 2.0), (0.0, 6.0), (-2.0, 2.0), (-0.37, 0.91)]


def real(value: float) -> Array:
    return np.array(value, F)


def codes(*shape: int, dtype: DType = Q8, seed: int = 0) -> Array:
    limits = np.iinfo(dtype.numpy)
    return np.random.default_rng(seed).integers(limits.min, int(limits.max) + 1, shape).astype(dtype.numpy)


def node(op: str, **attrs: Attr) -> Node:
    return Node("node", op, attrs=attrs)


def both(in_tensorflow: Compute, op: str, inputs: list[Array], *, off_by: int = 0, **attrs: Attr) -> None:
    """Compare all outputs: codes may differ by ``off_by``, ranges not at all."""
    ours, theirs = evaluate(node(op, **attrs), inputs), in_tensorflow(node(op, **attrs), inputs)
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.dtype == yours.dtype
        assert mine.shape == yours.shape
        if mine.dtype.kind in "iu":
            assert np.abs(mine.astype(np.int64) - yours.astype(np.int64)).max(initial=0) <= off_by
        else:
            np.testing.assert_allclose(mine, yours, rtol=1e-6, atol=1e-7)


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_into_codes_and_back(in_tensorflow: Compute, low: float, high: float) -> None:
    x = np.random.default_rng(0).uniform(1.2 * low - 1, 1.2 * high, 999).astype(F)
    ends = [real(low), real(high)]
    # With oneDNN, TensorFlow rounds once where its portable kernel rounds twice.
    both(in_tensorflow, "QuantizeV2", [x, *ends], off_by=1, T=Q8, mode=b"MIN_FIRST")
    both(in_tensorflow, "QuantizeV2", [x, *ends], T=QI8, mode=b"MIN_FIRST")
    for dtype in (Q8, QI8, DType.QUINT16, DType.QINT16):
        both(in_tensorflow, "QuantizeV2", [x, *ends], T=dtype, mode=b"MIN_COMBINED")
        for mode in (b"MIN_FIRST", b"MIN_COMBINED", b"SCALED"):
            both(in_tensorflow, "Dequantize", [codes(99, dtype=dtype), *ends], T=dtype, mode=mode)
    both(in_tensorflow, "Dequantize", [codes(99, dtype=Q32), *ends], T=Q32, mode=b"MIN_FIRST")
    both(in_tensorflow, "QuantizeV2", [x, *ends], T=Q8, mode=b"SCALED")
    scaled: dict[str, Attr] = {"T": QI8, "mode": b"SCALED", "narrow_range": True}
    both(in_tensorflow, "QuantizeV2", [x, *ends], **scaled, round_mode=b"HALF_TO_EVEN")
    both(in_tensorflow, "Dequantize", [codes(99, dtype=QI8), *ends], **scaled)


@pytest.mark.engine
def test_a_sum_whose_zero_lies_beside_code_0(in_tensorflow: Compute) -> None:
    ends = [real(-16.581689834594727), real(7.093461513519287), real(-2.9874937534332275), real(13.318258285522461)]
    both(in_tensorflow, "QuantizedBiasAdd", [codes(9, 7), codes(7), *ends], T1=Q8, T2=Q8, out_type=Q32)


@pytest.mark.engine
def test_ranges_of_slices(in_tensorflow: Compute) -> None:
    x = np.random.default_rng(0).uniform(-2, 2, (4, 5, 3)).astype(F)
    ends = [np.array([-1, -2, -0.5], F), np.array([1, 0.5, 2], F)]
    for mode in (b"MIN_COMBINED", b"SCALED"):
        attrs: dict[str, Attr] = {"T": QI8, "mode": mode, "axis": 2, "narrow_range": mode == b"SCALED"}
        both(in_tensorflow, "QuantizeV2", [x, *ends], **attrs)
        both(in_tensorflow, "Dequantize", [codes(4, 5, 3, dtype=QI8), *ends], **attrs)


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), [*RANGES, (-3.0, -1.0), (0.0, 0.0)])
def test_requantization(in_tensorflow: Compute, low: float, high: float) -> None:
    sums = codes(999, dtype=Q32) >> 9
    wide = [real(-700), real(900)]
    both(in_tensorflow, "RequantizationRange", [sums, *wide], Tinput=Q32)
    both(in_tensorflow, "RequantizationRange", [np.abs(sums), *wide], Tinput=Q32)
    for dtype in (Q8, QI8):
        both(in_tensorflow, "Requantize", [sums, *wide, real(low), real(high)], Tinput=Q32, out_type=dtype)


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize("other", [(-0.3, 0.4), (-2.0, 0.1)])
def test_arithmetic(in_tensorflow: Compute, low: float, high: float, other: tuple[float, float]) -> None:
    ends = [real(low), real(high), real(other[0]), real(other[1])]
    types: dict[str, Attr] = {"T1": Q8, "T2": Q8}
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((6, 7), (6, 7)),
        ((6, 7), (7,)),
        ((), (6, 7)),
        ((1,), (5,)),
    ]
    for op in ("QuantizedAdd", "QuantizedMul"):
        for x, y in shapes:
            both(in_tensorflow, op, [codes(*x), codes(*y, seed=1), *ends], **types, Toutput=Q32)
    both(in_tensorflow, "QuantizedBiasAdd", [codes(9, 7), codes(7), *ends], **types, out_type=Q32)
    matrices: dict[str, Attr] = {**types, "Toutput": Q32, "Tactivation": Q8}
    both(in_tensorflow, "QuantizedMatMul", [codes(5, 70), codes(70, 6), *ends], **matrices)
    turned: dict[str, Attr] = {"transpose_a": True, "transpose_b": True}
    both(in_tensorflow, "QuantizedMatMul", [codes(70, 5), codes(6, 70), *ends], **matrices, **turned)
    for padding in (b"SAME", b"VALID"):
        for stride in (1, 2):
            both(
                in_tensorflow,
                "QuantizedConv2D",
                [codes(2, 9, 8, 5), codes(3, 3, 5, 4, seed=1), *ends],
                Tinput=Q8,
                Tfilter=Q8,
                out_type=Q32,
                strides=(1, stride, stride, 1),
                padding=padding,
            )


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_ops_on_codes(in_tensorflow: Compute, low: float, high: float) -> None:
    ends = [real(low), real(high)]
    for op in ("QuantizedRelu", "QuantizedRelu6"):
        for dtype in (Q8, Q32):
            both(in_tensorflow, op, [codes(99, dtype=dtype), *ends], Tinput=dtype, out_type=dtype)
    ranges = [real(low), real(-1), real(low), real(high), real(1.3), real(high)]
    parts = [codes(4, 8), codes(4, 8, seed=1), codes(4, 2, seed=2)]
    both(in_tensorflow, "QuantizedConcat", [np.array(1, I32), *parts, *ranges], N=3, T=Q8)
    both(in_tensorflow, "QuantizedReshape", [codes(4, 6), np.array([3, -1], I32), *ends], T=Q8, Tshape=DType.INT32)
    for align, half in ((False, False), (True, False), (False, True)):
        flags: dict[str, Attr] = {"align_corners": align, "half_pixel_centers": half}
        size = np.array([7, 9], I32)
        both(in_tensorflow, "QuantizedResizeBilinear", [codes(1, 5, 6, 2), size, *ends], T=Q8, **flags)


@pytest.mark.engine
@pytest.mark.parametrize("padding", [b"SAME", b"VALID"])
def test_pools(in_tensorflow: Compute, padding: bytes) -> None:
    window: dict[str, Attr] = {"ksize": (1, 3, 3, 1), "strides": (1, 2, 2, 1), "padding": padding}
    both(in_tensorflow, "QuantizedMaxPool", [codes(2, 9, 8, 5), real(-1), real(2)], T=Q8, **window)
    # oneDNN rounds the mean where the portable kernel truncates it.
    both(in_tensorflow, "QuantizedAvgPool", [codes(2, 9, 8, 5), real(-1), real(2)], off_by=1, T=Q8, **window)


def test_stated_output_ranges() -> None:
    ends = [real(-1), real(2), real(-0.3), real(0.4)]
    added = evaluate(node("QuantizedBiasAdd", T1=Q8, T2=Q8, out_type=Q32), [codes(2, 3), codes(3), *ends])
    assert [float(end) for end in added[1:]] == [-262144, 262144]
    product = evaluate(node("QuantizedMul", T1=Q8, T2=Q8, Toutput=Q32), [codes(3), codes(3), *ends])
    np.testing.assert_allclose(product[2], 3 / 255 * 0.7 / 255 * (2**31 - 1), rtol=1e-6)


def test_too_narrow_ranges_are_widened() -> None:
    low, high = evaluate(node("QuantizeV2", T=Q8, mode=b"MIN_FIRST"), [np.zeros(1, F), real(0), real(0)])[1:]
    assert (float(low), float(high)) == (0, float(F(0.01)))


@given(st.floats(-100, 0, width=32), st.floats(np.float32(0.01), 100, width=32), st.sampled_from([Q8, QI8]))
def test_zero_is_exact_and_codes_survive(low: float, high: float, dtype: DType) -> None:
    span = QuantizedRange(real(low), real(high), dtype)
    every = np.arange(span.lowest, span.highest + 1).astype(dtype.numpy)
    # In the middle between two codes, float32 and float64 may round 0 to either, as in TensorFlow itself.
    assume(abs(-low / (high - low) * span.num_steps % 1 - 0.5) > 1e-4)
    assert abs(span.dequantize_in_float64(np.array(span.zero))) <= 1e-6 * (high - low)
    np.testing.assert_array_equal(span.quantize_in_float64(span.dequantize_in_float64(every)), every)


@given(st.floats(-1000, 1000, width=32))
def test_rounding_is_half_away_from_zero(x: float) -> None:
    want = np.sign(x) * np.floor(abs(x) + 0.5)
    assert round_half_away(np.array(x, np.float64)) == want


def test_signed_weights_follow_the_symmetric_contract() -> None:
    x, weights = codes(1, 4, 4, 3), codes(1, 1, 3, 2, dtype=QI8)
    ends = [real(0), real(2), real(-0.5), real(0.5)]
    conv = node("QuantizedConv2D", Tinput=Q8, Tfilter=QI8, out_type=Q32, strides=(1, 1, 1, 1), padding=b"SAME")
    made, _, high = evaluate(conv, [x, weights, *ends])
    want = (x * (2 / 255)) @ (weights[0, 0] * (0.5 / 127))
    np.testing.assert_allclose(made * (float(high) / 2**31), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "attrs", "inputs", "message"),
    [
        ("QuantizeV2", {"T": Q8}, [np.zeros(2, F), real(2), real(1)], "input_max_range must be larger"),
        (
            "Requantize",
            {"Tinput": Q32, "out_type": Q8},
            [codes(3, dtype=Q32), real(-1), real(1), real(0.5), real(1)],
            "requested_output_min must be <= 0, but got 0.5",
        ),
        (
            "QuantizedMatMul",
            {"T1": Q8, "T2": Q8, "Toutput": Q32},
            [codes(2, 3), codes(3, 2), real(1), real(1), real(0), real(1)],
            "max_a must be larger than min_a",
        ),
        (
            "QuantizedAdd",
            {"T1": Q8, "T2": Q8, "Toutput": Q32},
            [codes(2, 3), codes(2, 1), real(0), real(1), real(0), real(1)],
            r"Broadcast between \[2, 3\] and \[2, 1\] is not supported yet",
        ),
        (
            "QuantizedConcat",
            {"N": 1, "T": Q8},
            [np.array(-1, I32), codes(2, 3), real(0), real(1)],
            "must not be negative",
        ),
        (
            "QuantizedConv2D",
            {"Tinput": Q8, "Tfilter": Q8, "strides": (1, 1, 2, 1), "padding": b"SAME"},
            [codes(1, 4, 4, 1), codes(1, 1, 1, 1), real(0), real(1), real(0), real(1)],
            "only supports equal length strides",
        ),
        (
            "QuantizedReshape",
            {"T": Q8},
            [codes(4), np.array([2, 2], I32), np.zeros(2, F), np.zeros(2, F)],
            "a range must have one minimum and one maximum",
        ),
    ],
)
def test_refusals_name_the_node(op: str, attrs: dict[str, Any], inputs: list[Array], message: str) -> None:
    assert find_op(op) is not None
    with pytest.raises(GraphError, match=message) as caught:
        evaluate(node(op, **attrs), inputs)
    assert f"'node' ({op})" in str(caught.value)
