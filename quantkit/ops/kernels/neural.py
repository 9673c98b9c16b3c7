"""Kernels of bias, batch norm, softmax, response normalization and fake quantization."""

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.windows import channels_last, is_nchw, node_layout
from quantkit.ops.tensorflow.signatures import attribute


@kernel("BiasAdd", "BiasAddV1")
def _bias_add(node: Node, x: Array, bias: Array) -> Array:
    axis = 1 if is_nchw(node) else x.ndim - 1
    if bias.shape != x.shape[axis : axis + 1]:
        raise ValueError(f"the bias must have {x.shape[axis] if axis < x.ndim else 0} elements")
    return x + bias.reshape(-1, *[1] * (x.ndim - 1 - axis))


@kernel("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _fused_batch_norm(
    node: Node, features: Array, scale: Array, offset: Array, mean: Array, variance: Array
) -> tuple[Array, ...]:
    """Compute (x - mean) * scale / sqrt(variance + epsilon) + offset, with the batch statistics in training.

    Outputs: y, mean, variance, and the inputs of the gradient op: mean and variance (population variance in
    training), and in V3 an empty tensor.
    """
    x = channels_last(node, features).astype(np.float32, copy=False)
    for vector in (scale, offset):
        if vector.shape != x.shape[-1:]:
            raise ValueError(f"scale and offset must have {x.shape[-1]} elements")
    used_mean, used_variance = mean, variance
    reported_mean, reported_variance = mean, variance
    if attribute(node, "is_training"):
        count = x.size // max(1, x.shape[-1])
        used_mean, used_variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        rate = attribute(node, "exponential_avg_factor") if node.op == "FusedBatchNormV3" else 1.0
        unbiased = used_variance * np.float32(count / max(1, count - 1))
        reported_mean, reported_variance = used_mean, unbiased
        if rate != 1.0:
            reported_mean = (1 - rate) * mean + rate * used_mean
            reported_variance = (1 - rate) * variance + rate * unbiased
    elif mean.shape != scale.shape or variance.shape != scale.shape:
        raise ValueError(f"mean and variance must have {x.shape[-1]} elements")
    factor = scale / np.sqrt(used_variance + np.float32(attribute(node, "epsilon")))
    y = x - used_mean
    y *= factor
    y += offset
    extra = (np.zeros(0, np.float32),) if node.op == "FusedBatchNormV3" else ()
    return (node_layout(node, y), reported_mean, reported_variance, used_mean, used_variance, *extra)


@kernel("BatchNormWithGlobalNormalization")
def _old_batch_norm(node: Node, x: Array, mean: Array, variance: Array, beta: Array, gamma: Array) -> Array:
    """Compute (t - mean) * gamma / sqrt(variance + epsilon) + beta; gamma only if scale_after_normalization."""
    if not mean.shape == variance.shape == beta.shape == gamma.shape == x.shape[-1:]:
        raise ValueError(f"mean, variance, beta and gamma must have {x.shape[-1] if x.ndim else 0} elements")
    factor = 1 / np.sqrt(variance + np.asarray(attribute(node, "variance_epsilon"), x.dtype))
    if attribute(node, "scale_after_normalization"):
        factor = factor * gamma
    y = x - mean
    y *= factor
    y += beta
    return y


def softmax(x: Array) -> Array:
    """Compute exp(x) / sum(exp(x)) along the last axis; any shape."""
    powers = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


@kernel("Softmax")
def _softmax(_: Node, x: Array) -> Array:
    return softmax(x.astype(np.float32) if x.dtype.itemsize < 4 else x)


@kernel("LogSoftmax")
def _log_softmax(_: Node, x: Array) -> Array:
    x = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    shifted = x - x.max(-1, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


@kernel("LRN")
def _lrn(node: Node, x: Array) -> Array:
    """Compute x / (bias + alpha * sum of squares over the channels within the radius) ** beta."""
    radius, depth = attribute(node, "depth_radius"), x.shape[-1]
    squares = np.square(x)
    total = np.zeros_like(x)
    for shift in range(-min(radius, depth - 1), min(radius, depth - 1) + 1):
        total[..., max(0, -shift) : depth - max(0, shift)] += squares[..., max(0, shift) : depth - max(0, -shift)]
    bias, alpha, beta = (np.asarray(attribute(node, name), x.dtype) for name in ("bias", "alpha", "beta"))
    return np.asarray(x * np.power(bias + alpha * total, -beta))


def simulate_quantization(x: Array, low: Array, high: Array, num_bits: int, narrow_range: bool) -> Array:
    """Quantize and dequantize, after shifting the range such that real 0 is represented exactly.

    Args:
        x: (..., c) float32.
        low, high: range, () or (c,); usually low <= 0 <= high.
        num_bits: bit width of the quantized values.
        narrow_range: omit the lowest quantized value.

    Returns:
        float32 array of the shape of ``x``.
    """
    first, last = np.float32(narrow_range), np.float32((1 << num_bits) - 1)
    scale = ((high - low) / (last - first)).astype(np.float32)
    zero = first - low / scale
    zero = np.where(zero < first, first, np.where(zero > last, last, np.floor(zero + np.float32(0.5))))
    nudged_low, nudged_high = (first - zero) * scale, (last - zero) * scale
    clamped = np.clip(x, nudged_low, nudged_high)
    inverse = np.float32(1) / scale
    # Rounding relative to the zero point keeps real 0 exact.
    quantized = np.floor(clamped * inverse - nudged_low * inverse + np.float32(0.5))
    return np.where((low == 0) & (high == 0), np.float32(0), (quantized + first - zero) * scale)


@kernel("FakeQuantWithMinMaxArgs")
def _fake_quant_args(node: Node, x: Array) -> Array:
    low, high = np.array(attribute(node, "min"), np.float32), np.array(attribute(node, "max"), np.float32)
    return simulate_quantization(x, low, high, attribute(node, "num_bits"), attribute(node, "narrow_range"))


@kernel("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def _fake_quant_vars(node: Node, x: Array, low: Array, high: Array) -> Array:
    shape = x.shape[-1:] if node.op.endswith("PerChannel") else ()
    if low.shape != shape or high.shape != shape:
        raise ValueError(f"the range must have the shape {shape}")
    return simulate_quantization(x, low, high, attribute(node, "num_bits"), attribute(node, "narrow_range"))
