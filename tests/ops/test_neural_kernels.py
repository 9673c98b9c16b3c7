"""Kernels of layers, compared with TensorFlow's kernels and between both layouts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.kernels import convolution, evaluate

Check = Callable[..., None]
Compute = Callable[[Node, Sequence[Array]], list[Array]]
F, I32 = np.float32, np.int32
# The order of summation differs: the tolerance is relative to the largest output.
SUMS = {"rtol": 1e-4}


def real(*shape: int, low: float = -1, high: float = 1, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(F)


def layer(op: str, **attrs: Attr) -> Node:
    return Node("layer", op, attrs=attrs)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 7, 6, 3), (1, 1, 3, 5), {}),
    ((2, 7, 6, 3), (3, 3, 3, 5), {}),
    ((2, 7, 6, 3), (3, 3, 3, 5), {"strides": (1, 2, 2, 1)}),
    ((1, 8, 9, 2), (2, 3, 2, 4), {"strides": (1, 2, 3, 1)}),
    ((1, 9, 9, 2), (3, 3, 2, 4), {"dilations": (1, 2, 2, 1)}),
    ((1, 7, 7, 2), (1, 7, 2, 3), {}),
    ((1, 5, 5, 4), (3, 3, 2, 6), {}),
]


@pytest.mark.engine
@pytest.mark.parametrize("padding", [b"SAME", b"VALID"])
@pytest.mark.parametrize(("shape", "weights", "attrs"), CONVOLUTIONS)
def test_conv2d(
    check: Check, shape: tuple[int, ...], weights: tuple[int, ...], attrs: dict[str, Any], padding: bytes
) -> None:
    conv_attrs = {"strides": (1, 1, 1, 1), "padding": padding, **attrs}
    check("Conv2D", [real(*shape), real(*weights, seed=1)], **SUMS, **conv_attrs)


@pytest.mark.engine
def test_conv2d_explicit_padding(check: Check) -> None:
    padding: dict[str, Attr] = {"padding": b"EXPLICIT", "explicit_paddings": (0, 0, 1, 2, 0, 1, 0, 0)}
    check("Conv2D", [real(1, 5, 5, 2), real(3, 3, 2, 4)], strides=(1, 2, 2, 1), **SUMS, **padding)


@pytest.mark.engine
@pytest.mark.parametrize("padding", [b"SAME", b"VALID"])
@pytest.mark.parametrize("strides", [(1, 1, 1, 1), (1, 2, 3, 1)])
@pytest.mark.parametrize("mode", [b"REFLECT", b"SYMMETRIC"])
def test_fused_convolutions(check: Check, mode: bytes, strides: tuple[int, ...], padding: bytes) -> None:
    widths = np.array([[0, 0], [1, 2], [3, 0], [0, 0]], I32)
    attrs: dict[str, Any] = {"mode": mode, "strides": strides, "padding": padding, **SUMS}
    check("FusedPadConv2D", [real(1, 5, 6, 3), widths, real(3, 2, 3, 4, seed=1)], **attrs)
    for corners in (False, True):
        inputs = [real(1, 5, 6, 3), np.array([7, 9], I32), widths, real(3, 2, 3, 4, seed=1)]
        check("FusedResizeAndPadConv2D", inputs, resize_align_corners=corners, **attrs)


@pytest.mark.engine
def test_tensorflow_computes_only_first_image_of_fused_convolution_correctly(in_tensorflow: Compute) -> None:
    widths = np.array([[0, 0], [1, 1], [1, 1], [0, 0]], I32)
    attrs: dict[str, Attr] = {"strides": (1, 1, 1, 1), "padding": b"VALID"}
    node = layer("FusedPadConv2D", T=DType.FLOAT, mode=b"REFLECT", **attrs)
    inputs = [real(2, 6, 6, 3), widths, real(3, 3, 3, 4, seed=1)]
    result, tensorflow_result = evaluate(node, inputs)[0], in_tensorflow(node, inputs)[0]
    padded = np.pad(inputs[0], widths, mode="reflect")
    expected = evaluate(layer("Conv2D", T=DType.FLOAT, **attrs), [padded, inputs[2]])[0]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tensorflow_result[0], expected[0], rtol=1e-5, atol=1e-5)
    assert np.abs(tensorflow_result[1] - expected[1]).max() > 0.1, "the fuse_ transforms can accept batches"


def test_fused_convolutions_pad_height_and_width_only() -> None:
    node = layer("FusedPadConv2D", mode=b"REFLECT", strides=(1, 1, 1, 1), padding=b"VALID")
    with pytest.raises(GraphError, match="only height and width can be padded"):
        evaluate(node, [real(1, 5, 5, 3), np.full((4, 2), 1, I32), real(3, 3, 5, 4)])


@pytest.mark.engine
@pytest.mark.parametrize("padding", [b"SAME", b"VALID"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise(check: Check, padding: bytes, stride: int, multiplier: int) -> None:
    strides = (1, stride, stride, 1)
    inputs = [real(2, 7, 7, 4), real(3, 3, 4, multiplier, seed=1)]
    check("DepthwiseConv2dNative", inputs, strides=strides, padding=padding, **SUMS)


@pytest.mark.engine
@pytest.mark.parametrize("padding", [b"SAME", b"VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_convolution(check: Check, padding: bytes, stride: int) -> None:
    rows = -(-9 // stride) if padding == b"SAME" else (9 - 3) // stride + 1
    inputs = [np.array([2, 9, 9, 3], I32), real(3, 3, 3, 5), real(2, rows, rows, 5, seed=2)]
    check("Conv2DBackpropInput", inputs, strides=(1, stride, stride, 1), padding=padding, **SUMS)


@pytest.mark.engine
@pytest.mark.parametrize("padding", [b"SAME", b"VALID"])
@pytest.mark.parametrize("op", ["MaxPool", "AvgPool"])
@pytest.mark.parametrize(("ksize", "stride"), [(3, 1), (3, 2), (2, 2), (8, 1)])
def test_pools(check: Check, op: str, ksize: int, stride: int, padding: bytes) -> None:
    attrs: dict[str, Attr] = {"ksize": (1, ksize, ksize, 1), "strides": (1, stride, stride, 1), "padding": padding}
    check(op, [real(2, 9, 8, 3, low=-5, high=-1)], **attrs)


@pytest.mark.engine
def test_max_pool_v2(check: Check) -> None:
    window = np.array([1, 2, 2, 1], I32)
    check("MaxPoolV2", [real(1, 6, 6, 2), window, window], padding=b"VALID")


TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


@pytest.mark.parametrize("op", ["Conv2D", "DepthwiseConv2dNative", "MaxPool", "AvgPool", "BiasAdd", "FusedBatchNormV3"])
def test_both_layouts_agree(op: str) -> None:
    x = real(2, 6, 5, 4)
    others = {
        "Conv2D": [real(3, 3, 4, 5)],
        "DepthwiseConv2dNative": [real(3, 3, 4, 1)],
        "BiasAdd": [real(4)],
        "FusedBatchNormV3": [real(4), real(4), real(4), real(4, low=0.1)],
    }.get(op, [])
    attrs: dict[str, Attr] = {"is_training": False, "padding": b"SAME"}
    last = {"strides": (1, 2, 1, 1), "ksize": (1, 2, 3, 1), "data_format": b"NHWC"}
    first = {"strides": (1, 1, 2, 1), "ksize": (1, 1, 2, 3), "data_format": b"NCHW"}
    expected = evaluate(layer(op, **attrs, **last), [x, *others])[0]
    result = evaluate(layer(op, **attrs, **first), [x.transpose(TO_NCHW), *others])[0]
    np.testing.assert_array_equal(result.transpose(TO_NHWC), expected)


def test_large_batch_is_convolved_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = layer("Conv2D", strides=(1, 1, 1, 1), padding=b"SAME")
    inputs = [real(5, 4, 4, 3), real(3, 3, 3, 2)]
    expected = evaluate(conv, inputs)[0]
    monkeypatch.setattr(convolution, "MATRIX_BYTES", 4000)
    np.testing.assert_allclose(evaluate(conv, inputs)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.engine
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_matrix_products(check: Check, flags: tuple[bool, bool]) -> None:
    a = real(*((5, 3) if flags[0] else (3, 5)))
    b = real(*((4, 5) if flags[1] else (5, 4)), seed=1)
    check("MatMul", [a, b], transpose_a=flags[0], transpose_b=flags[1])
    check("BatchMatMulV2", [np.stack([a, a])[:, None], b], adj_x=flags[0], adj_y=flags[1])
    check("BatchMatMul", [np.stack([a, a]), np.stack([b, b])], adj_x=flags[0], adj_y=flags[1])


@pytest.mark.engine
def test_integer_products_and_einsum(check: Check) -> None:
    integers = np.arange(-6, 6).astype(np.int8)
    check("BatchMatMulV3", [integers.reshape(3, 4), integers.reshape(4, 3)], Tout=DType.INT32)
    check("Einsum", [real(2, 3, 4), real(4, 5)], equation=b"bij,jk->bik")
    check("MatMul", [integers.reshape(3, 4).astype(I32), integers.reshape(4, 3).astype(I32)])
    check("MatMul", [real(3, 4).astype(np.float16), real(4, 3).astype(np.float16)], rtol=2e-3)  # half has 11 bits


@pytest.mark.engine
@pytest.mark.parametrize("op", ["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"])
@pytest.mark.parametrize("is_training", [False, True])
def test_batch_norm(check: Check, op: str, is_training: bool) -> None:
    statistics = [real(0), real(0)] if is_training else [real(4, seed=3), real(4, low=0.1, seed=4)]
    inputs = [real(2, 3, 3, 4), real(4, seed=1), real(4, seed=2), *statistics]
    check(op, inputs, is_training=is_training, epsilon=0.001, **SUMS)


def test_batch_norm_with_global_normalization() -> None:
    # Current TensorFlow rejects this op: compare with the formula in float64.
    x, mean, variance, beta, gamma = real(2, 3, 3, 4), real(4), real(4, low=0.1), real(4, seed=2), real(4, seed=3)
    for scaled in (True, False):
        node = layer("BatchNormWithGlobalNormalization", variance_epsilon=0.001, scale_after_normalization=scaled)
        expected = (x - mean.astype(float)) / np.sqrt(variance + 0.001) * (gamma if scaled else 1) + beta
        np.testing.assert_allclose(evaluate(node, [x, mean, variance, beta, gamma])[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.engine
def test_layers(check: Check) -> None:
    check("BiasAdd", [real(2, 3, 4), real(4)])
    check("Softmax", [real(3, 9, low=-30, high=30)])
    check("LogSoftmax", [real(3, 9, low=-30, high=30)])
    check("LRN", [real(1, 2, 2, 9)], depth_radius=2, bias=1.0, alpha=0.5, beta=0.75)
    check("LRN", [real(1, 2, 2, 3)], **SUMS)


@pytest.mark.engine
@pytest.mark.parametrize(("low", "high"), [(-6.0, 6.0), (-1.0, 3.0), (0.0, 6.0), (0.5, 2.0), (-3.0, -1.0)])
@pytest.mark.parametrize("narrow", [False, True])
def test_fake_quantization(check: Check, low: float, high: float, narrow: bool) -> None:
    x = real(64, low=-7, high=7)
    check("FakeQuantWithMinMaxArgs", [x], min=low, max=high, num_bits=8, narrow_range=narrow)
    check("FakeQuantWithMinMaxVars", [x, np.array(low, F), np.array(high, F)], num_bits=4, narrow_range=narrow)
    ranges = [np.array([low, -2], F), np.array([high, 2], F)]
    check("FakeQuantWithMinMaxVarsPerChannel", [x.reshape(-1, 2), *ranges], narrow_range=narrow)


@pytest.mark.engine
@pytest.mark.parametrize(("align", "half"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("size", [(3, 4), (13, 11), (7, 5), (1, 1), (299, 299)])
@pytest.mark.parametrize("op", ["ResizeBilinear", "ResizeNearestNeighbor"])
def test_resize(check: Check, op: str, size: tuple[int, int], align: bool, half: bool) -> None:
    attrs = {"align_corners": align, "half_pixel_centers": half}
    check(op, [real(1, 7, 5, 2), np.array(size, I32)], **attrs)
    if op == "ResizeBilinear":
        check(op, [np.arange(70, dtype=np.uint8).reshape(1, 7, 5, 2), np.array(size, I32)], **attrs)


@pytest.mark.parametrize(
    ("node", "inputs", "message"),
    [
        (layer("Conv2D", strides=(1, 1, 1, 1), padding=b"SAME"), [real(1, 4, 4, 3), real(3, 3, 2, 4)], "2 channels"),
        (
            layer("Conv2D", strides=(1, 1, 1, 1), padding=b"VALID"),
            [real(1, 2, 2, 3), real(3, 3, 3, 4)],
            "is larger than the size 2",
        ),
        (
            layer("Conv2D", strides=(1, 1, 1, 2), padding=b"SAME"),
            [real(1, 4, 4, 3), real(3, 3, 3, 4)],
            "batch and channels must be 1",
        ),
        (layer("Conv2D", padding=b"SAME"), [real(1, 4, 4, 3), real(3, 3, 3, 4)], "has no attribute 'strides'"),
        (layer("Conv2D", strides=(1, 1, 1, 1), padding=b"SAME"), [real(4, 3), real(3, 3, 3, 4)], "four dimensions"),
        (layer("BiasAdd"), [real(2, 3), real(2)], "the bias must have 3 elements"),
        (layer("MatMul"), [real(2, 3), real(2, 3)], r"'layer' \(MatMul\), input shapes 2x3, 2x3"),
    ],
)
def test_error_names_node_and_inputs(node: Node, inputs: list[Array], message: str) -> None:
    with pytest.raises(GraphError, match=message) as error:
        evaluate(node, inputs)
    assert "'layer'" in str(error.value)
