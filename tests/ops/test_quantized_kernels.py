"""Kernels of quantized ops, compared with TensorFlow's kernels and with their formulas."""

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


def random_values(*shape: int, dtype: DType = Q8, seed: int = 0) -> Array:
    limits = np.iinfo(dtype.numpy)
    return np.random.default_rng(seed).integers(limits.min, int(limits.max) + 1, shape).astype(dtype.numpy)


def node(op: str, **attrs: Attr) -> Node:
    return Node("node", op, attrs=attrs)


def compare(in_tensorflow: Compute, op: str, inputs: list[Array], *, off_by: int = 0, **attrs: Attr) -> None:
    """Compare all outputs: quantized values may differ by ``off_by``, ranges must be equal."""
    results, expected = evaluate(node(op, **attrs), inputs), in_tensorflow(node(op, **attrs), inputs)
    for result, reference in zip(results, expected, strict=True):
        assert result.dtype == reference.dtype
        assert result.shape == reference.shape
        if result.dtype.kind in "iu":
            assert np.abs(result.astype(np.int64) - reference.astype(np.int64)).max(initial=0) <= off_by
        else:
            np.testing.assert_allclose(result, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_quantize_and_dequantize(in_tensorflow: Compute, low: float, high: float) -> None:
    x = np.random.default_rng(0).uniform(1.2 * low - 1, 1.2 * high, 999).astype(F)
    bounds = [real(low), real(high)]
    # With oneDNN, TensorFlow rounds once where its portable kernel rounds twice.
    compare(in_tensorflow, "QuantizeV2", [x, *bounds], off_by=1, T=Q8, mode=b"MIN_FIRST")
    compare(in_tensorflow, "QuantizeV2", [x, *bounds], T=QI8, mode=b"MIN_FIRST")
    for dtype in (Q8, QI8, DType.QUINT16, DType.QINT16):
        compare(in_tensorflow, "QuantizeV2", [x, *bounds], T=dtype, mode=b"MIN_COMBINED")
        for mode in (b"MIN_FIRST", b"MIN_COMBINED", b"SCALED"):
            compare(in_tensorflow, "Dequantize", [random_values(99, dtype=dtype), *bounds], T=dtype, mode=mode)
    compare(in_tensorflow, "Dequantize", [random_values(99, dtype=Q32), *bounds], T=Q32, mode=b"MIN_FIRST")
    compare(in_tensorflow, "QuantizeV2", [x, *bounds], T=Q8, mode=b"SCALED")
    scaled: dict[str, Attr] = {"T": QI8, "mode": b"SCALED", "narrow_range": True}
    compare(in_tensorflow, "QuantizeV2", [x, *bounds], **scaled, round_mode=b"HALF_TO_EVEN")
    compare(in_tensorflow, "Dequantize", [random_values(99, dtype=QI8), *bounds], **scaled)


@pytest.mark.engine
def test_bias_add_with_zero_point_not_at_zero(in_tensorflow: Compute) -> None:
    bounds = [real(-16.581689834594727), real(7.093461513519287), real(-2.9874937534332275), real(13.318258285522461)]
    compare(
        in_tensorflow, "QuantizedBiasAdd", [random_values(9, 7), random_values(7), *bounds], T1=Q8, T2=Q8, out_type=Q32
    )


@pytest.mark.engine
def test_ranges_per_channel(in_tensorflow: Compute) -> None:
    x = np.random.default_rng(0).uniform(-2, 2, (4, 5, 3)).astype(F)
    bounds = [np.array([-1, -2, -0.5], F), np.array([1, 0.5, 2], F)]
    for mode in (b"MIN_COMBINED", b"SCALED"):
        for axis in range(3):
            attrs: dict[str, Attr] = {"T": QI8, "mode": mode, "axis": axis, "narrow_range": mode == b"SCALED"}
            values = np.ascontiguousarray(np.moveaxis(x, 2, axis))
            compare(in_tensorflow, "QuantizeV2", [values, *bounds], **attrs)
            compare(in_tensorflow, "Dequantize", [random_values(*values.shape, dtype=QI8), *bounds], **attrs)


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), [*RANGES, (-3.0, -1.0), (0.0, 0.0)])
def test_requantize(in_tensorflow: Compute, low: float, high: float) -> None:
    sums = random_values(999, dtype=Q32) >> 9
    wide = [real(-700), real(900)]
    compare(in_tensorflow, "RequantizationRange", [sums, *wide], Tinput=Q32)
    compare(in_tensorflow, "RequantizationRange", [np.abs(sums), *wide], Tinput=Q32)
    for dtype in (Q8, QI8):
        compare(in_tensorflow, "Requantize", [sums, *wide, real(low), real(high)], Tinput=Q32, out_type=dtype)


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize("other", [(-0.3, 0.4), (-2.0, 0.1)])
def test_arithmetic(in_tensorflow: Compute, low: float, high: float, other: tuple[float, float]) -> None:
    bounds = [real(low), real(high), real(other[0]), real(other[1])]
    types: dict[str, Attr] = {"T1": Q8, "T2": Q8}
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((6, 7), (6, 7)),
        ((6, 7), (7,)),
        ((), (6, 7)),
        ((1,), (5,)),
    ]
    for op in ("QuantizedAdd", "QuantizedMul"):
        for x, y in shapes:
            compare(in_tensorflow, op, [random_values(*x), random_values(*y, seed=1), *bounds], **types, Toutput=Q32)
    compare(in_tensorflow, "QuantizedBiasAdd", [random_values(9, 7), random_values(7), *bounds], **types, out_type=Q32)
    matrices: dict[str, Attr] = {**types, "Toutput": Q32, "Tactivation": Q8}
    compare(in_tensorflow, "QuantizedMatMul", [random_values(5, 70), random_values(70, 6), *bounds], **matrices)
    transposed: dict[str, Attr] = {"transpose_a": True, "transpose_b": True}
    compare(
        in_tensorflow,
        "QuantizedMatMul",
        [random_values(70, 5), random_values(6, 70), *bounds],
        **matrices,
        **transposed,
    )
    for padding in (b"SAME", b"VALID"):
        for stride in (1, 2):
            compare(
                in_tensorflow,
                "QuantizedConv2D",
                [random_values(2, 9, 8, 5), random_values(3, 3, 5, 4, seed=1), *bounds],
                Tinput=Q8,
                Tfilter=Q8,
                out_type=Q32,
                strides=(1, stride, stride, 1),
                padding=padding,
            )


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_pass_through_ops(in_tensorflow: Compute, low: float, high: float) -> None:
    bounds = [real(low), real(high)]
    for op in ("QuantizedRelu", "QuantizedRelu6"):
        for dtype in (Q8, Q32):
            compare(in_tensorflow, op, [random_values(99, dtype=dtype), *bounds], Tinput=dtype, out_type=dtype)
    ranges = [real(low), real(-1), real(low), real(high), real(1.3), real(high)]
    parts = [random_values(4, 8), random_values(4, 8, seed=1), random_values(4, 2, seed=2)]
    compare(in_tensorflow, "QuantizedConcat", [np.array(1, I32), *parts, *ranges], N=3, T=Q8)
    compare(
        in_tensorflow,
        "QuantizedReshape",
        [random_values(4, 6), np.array([3, -1], I32), *bounds],
        T=Q8,
        Tshape=DType.INT32,
    )
    for align, half in ((False, False), (True, False), (False, True)):
        flags: dict[str, Attr] = {"align_corners": align, "half_pixel_centers": half}
        size = np.array([7, 9], I32)
        compare(in_tensorflow, "QuantizedResizeBilinear", [random_values(1, 5, 6, 2), size, *bounds], T=Q8, **flags)


@pytest.mark.engine
@pytest.mark.parametrize("padding", [b"SAME", b"VALID"])
def test_pools(in_tensorflow: Compute, padding: bytes) -> None:
    window: dict[str, Attr] = {"ksize": (1, 3, 3, 1), "strides": (1, 2, 2, 1), "padding": padding}
    compare(in_tensorflow, "QuantizedMaxPool", [random_values(2, 9, 8, 5), real(-1), real(2)], T=Q8, **window)
    # oneDNN rounds the mean where the portable kernel truncates it.
    compare(in_tensorflow, "QuantizedAvgPool", [random_values(2, 9, 8, 5), real(-1), real(2)], off_by=1, T=Q8, **window)


def test_output_ranges() -> None:
    bounds = [real(-1), real(2), real(-0.3), real(0.4)]
    total = evaluate(
        node("QuantizedBiasAdd", T1=Q8, T2=Q8, out_type=Q32), [random_values(2, 3), random_values(3), *bounds]
    )
    assert [float(bound) for bound in total[1:]] == [-262144, 262144]
    product = evaluate(node("QuantizedMul", T1=Q8, T2=Q8, Toutput=Q32), [random_values(3), random_values(3), *bounds])
    np.testing.assert_allclose(product[2], 3 / 255 * 0.7 / 255 * (2**31 - 1), rtol=1e-6)


def test_narrow_range_is_widened() -> None:
    low, high = evaluate(node("QuantizeV2", T=Q8, mode=b"MIN_FIRST"), [np.zeros(1, F), real(0), real(0)])[1:]
    assert (float(low), float(high)) == (0, float(F(0.01)))


@given(st.floats(-100, 0, width=32), st.floats(np.float32(0.01), 100, width=32), st.sampled_from([Q8, QI8]))
def test_zero_is_exact_and_round_trip_keeps_quantized_values(low: float, high: float, dtype: DType) -> None:
    quantized_range = QuantizedRange(real(low), real(high), dtype)
    values = np.arange(quantized_range.lowest, quantized_range.highest + 1).astype(dtype.numpy)
    # Halfway between two quantized values, float32 and float64 may round 0 differently, as in TensorFlow.
    assume(abs(-low / (high - low) * quantized_range.num_steps % 1 - 0.5) > 1e-4)
    assert abs(quantized_range.dequantize_in_float64(np.array(quantized_range.zero))) <= 1e-6 * (high - low)
    np.testing.assert_array_equal(
        quantized_range.quantize_in_float64(quantized_range.dequantize_in_float64(values)), values
    )


@given(st.floats(-1000, 1000, width=32))
def test_rounding_is_half_away_from_zero(x: float) -> None:
    expected = np.sign(x) * np.floor(abs(x) + 0.5)
    assert round_half_away(np.array(x, np.float64)) == expected


def test_signed_weights_use_symmetric_range() -> None:
    x, weights = random_values(1, 4, 4, 3), random_values(1, 1, 3, 2, dtype=QI8)
    bounds = [real(0), real(2), real(-0.5), real(0.5)]
    conv = node("QuantizedConv2D", Tinput=Q8, Tfilter=QI8, out_type=Q32, strides=(1, 1, 1, 1), padding=b"SAME")
    sums, _, high = evaluate(conv, [x, weights, *bounds])
    expected = (x * (2 / 255)) @ (weights[0, 0] * (0.5 / 127))
    np.testing.assert_allclose(sums * (float(high) / 2**31), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "attrs", "inputs", "message"),
    [
        ("QuantizeV2", {"T": Q8}, [np.zeros(2, F), real(2), real(1)], "input_max_range must be larger"),
        (
            "Requantize",
            {"Tinput": Q32, "out_type": Q8},
            [random_values(3, dtype=Q32), real(-1), real(1), real(0.5), real(1)],
            "requested_output_min must be <= 0, but got 0.5",
        ),
        (
            "QuantizedMatMul",
            {"T1": Q8, "T2": Q8, "Toutput": Q32},
            [random_values(2, 3), random_values(3, 2), real(1), real(1), real(0), real(1)],
            "max_a must be larger than min_a",
        ),
        (
            "QuantizedAdd",
            {"T1": Q8, "T2": Q8, "Toutput": Q32},
            [random_values(2, 3), random_values(2, 1), real(0), real(1), real(0), real(1)],
            r"Broadcast between \[2, 3\] and \[2, 1\] is not supported yet",
        ),
        (
            "QuantizedConcat",
            {"N": 1, "T": Q8},
            [np.array(-1, I32), random_values(2, 3), real(0), real(1)],
            "must not be negative",
        ),
        (
            "QuantizedConv2D",
            {"Tinput": Q8, "Tfilter": Q8, "strides": (1, 1, 2, 1), "padding": b"SAME"},
            [random_values(1, 4, 4, 1), random_values(1, 1, 1, 1), real(0), real(1), real(0), real(1)],
            "only supports equal length strides",
        ),
        (
            "QuantizedReshape",
            {"T": Q8},
            [random_values(4), np.array([2, 2], I32), np.zeros(2, F), np.zeros(2, F)],
            "a range must have one minimum and one maximum",
        ),
    ],
)
def test_error_names_node(op: str, attrs: dict[str, Any], inputs: list[Array], message: str) -> None:
    assert find_op(op) is not None
    with pytest.raises(GraphError, match=message) as error:
        evaluate(node(op, **attrs), inputs)
    assert f"'node' ({op})" in str(error.value)
