"""Kernels of layers, pooling, normalization and attention-free sequence ops.

Images have the layout (n, c, ...spatial).
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from quantkit.ir.tensor import Array
from quantkit.ops.kernels.elementwise import sigmoid
from quantkit.ops.layers import same_padding
from quantkit.ops.onnx.kernels.registry import Call, kernel

Pairs = list[tuple[int, int]]


def _spatial(call: Call, name: str, count: int, default: int = 1) -> list[int]:
    return list(call.attr(name) or (default,) * count)


def _padding(call: Call, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]) -> Pairs:
    """Return the padding before and after each spatial axis."""
    automatic, count = call.attr("auto_pad", b"NOTSET"), len(sizes)
    if automatic == b"VALID":
        return [(0, 0)] * count
    if automatic.startswith(b"SAME"):
        pairs = [same_padding(*axis) or (0, 0) for axis in zip(sizes, spans, strides, strict=True)]
        return [pair[::-1] for pair in pairs] if automatic == b"SAME_LOWER" else pairs
    pads = _spatial(call, "pads", 2 * count, 0)
    return list(zip(pads[:count], pads[count:], strict=True))


def _windows(x: Array, kernel_shape: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Return the windows of a padded tensor: (n, c, ...positions, ...kernel)."""
    axes = tuple(range(2, x.ndim))
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel_shape, dilations, strict=True)]
    view = sliding_window_view(x, spans, axes)
    steps = (*(slice(None, None, step) for step in strides), *(slice(None, None, step) for step in dilations))
    return np.asarray(view[(slice(None), slice(None), *steps)])


kernel("Conv")(lambda call: _convolve(call, call.array(0), call.array(1), call.optional(2)))


@kernel("ConvInteger")
def _conv_integer(call: Call) -> Array:
    x, weights = call.array(0).astype(np.int32), call.array(1).astype(np.int32)
    zero, weights_zero = call.optional(2), call.optional(3)
    x = x if zero is None else x - zero.astype(np.int32)
    if weights_zero is not None:
        weights = weights - weights_zero.astype(np.int32).reshape(-1, *(1,) * (weights.ndim - 1))
    return _convolve(call, x, weights, None)


def _convolve(call: Call, x: Array, weights: Array, bias: Array | None) -> Array:
    kernel_shape, count = weights.shape[2:], x.ndim - 2
    strides, dilations = _spatial(call, "strides", count), _spatial(call, "dilations", count)
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel_shape, dilations, strict=True)]
    widths = _padding(call, x.shape[2:], spans, strides)
    windows = _windows(np.pad(x, [(0, 0), (0, 0), *widths]), kernel_shape, strides, dilations)
    groups, positions = call.attr("group", 1), windows.shape[2 : 2 + count]
    channels = weights.shape[1]
    outputs = []
    for group in range(groups):
        part = windows[:, group * channels : (group + 1) * channels]
        columns = np.moveaxis(part, 1, 1 + count).reshape(x.shape[0], int(np.prod(positions)), -1)
        rows = weights.reshape(groups, -1, int(np.prod(weights.shape[1:])))[group]
        outputs.append(columns @ rows.T)
    result = np.concatenate(outputs, -1).transpose(0, 2, 1).reshape(x.shape[0], -1, *positions)
    return result if bias is None else result + bias.reshape(-1, *(1,) * count)


@kernel("ConvTranspose")
def _conv_transpose(call: Call) -> Array:
    x, weights, bias = call.array(0), call.array(1), call.optional(2)
    kernel_shape, count, groups = weights.shape[2:], x.ndim - 2, call.attr("group", 1)
    strides, dilations = _spatial(call, "strides", count), _spatial(call, "dilations", count)
    extra = _spatial(call, "output_padding", count, 0)
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel_shape, dilations, strict=True)]
    full = [
        (size - 1) * step + span + more
        for size, step, span, more in zip(x.shape[2:], strides, spans, extra, strict=True)
    ]
    depth, width = x.shape[1] // groups, weights.shape[1]
    result = np.zeros((x.shape[0], groups * width, *full), x.dtype)
    for offset in product(*map(range, kernel_shape)):
        positions = tuple(
            slice(at * dilation, at * dilation + (size - 1) * step + 1, step)
            for at, dilation, size, step in zip(offset, dilations, x.shape[2:], strides, strict=True)
        )
        for group in range(groups):
            inputs = slice(group * depth, (group + 1) * depth)
            index: tuple[Any, ...] = (inputs, slice(None), *offset)
            tap = weights[index]
            values = np.einsum("nc...,co->no...", x[:, inputs], tap)
            result[(slice(None), slice(group * width, (group + 1) * width), *positions)] += values
    sizes = call.attr("output_shape")
    if sizes or call.attr("auto_pad", b"NOTSET").startswith(b"SAME"):
        targets = list(sizes or [size * step for size, step in zip(x.shape[2:], strides, strict=True)])[-count:]
        totals = [size - target for size, target in zip(full, targets, strict=True)]
        if min(totals) < 0:
            raise ValueError(f"the output shape {targets} exceeds {full}")
        pairs = [(total // 2, total - total // 2) for total in totals]
        if call.attr("auto_pad") == b"SAME_LOWER":
            pairs = [pair[::-1] for pair in pairs]
    else:
        pairs = _padding(call, full, [1] * count, [1] * count)
    parts = tuple(slice(begin, size - end) for (begin, end), size in zip(pairs, full, strict=True))
    result = result[(slice(None), slice(None), *parts)]
    return result if bias is None else result + bias.reshape(-1, *(1,) * count)


@kernel("MaxPool AveragePool LpPool")
def _pool(call: Call) -> Array:
    x, kernel_shape = call.array(0), list(call.attr("kernel_shape"))
    if len(call.attr("_outputs", ())) > 1:
        raise ValueError("the positions of the largest values are not computed")
    if call.attr("ceil_mode", 0) and call.attr("count_include_pad", 0):
        raise ValueError("the padding that a window at the end counts depends on the runtime")
    count = len(kernel_shape)
    strides, dilations = _spatial(call, "strides", count), _spatial(call, "dilations", count)
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel_shape, dilations, strict=True)]
    widths = _padding(call, x.shape[2:], spans, strides)
    is_max = call.node.op == "MaxPool"
    fill = np.nan if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    before = [(0, 0), (0, 0), *widths]
    # Windows that exceed the padded tensor exist with ceil_mode only; their outside is never counted.
    tails = _tails(call, x.shape[2:], widths, spans, strides)
    padded = np.pad(x, before, constant_values=fill if is_max else 0)
    weight = np.pad(np.ones_like(x), before, constant_values=1 if call.attr("count_include_pad", 0) else 0)
    end = [(0, 0), (0, 0), *((0, tail) for tail in tails)]
    windows = _windows(np.pad(padded, end, constant_values=fill if is_max else 0), kernel_shape, strides, dilations)
    axes = tuple(range(-count, 0))
    if is_max:
        return np.asarray(np.nanmax(windows, axes) if x.dtype.kind == "f" else np.max(windows, axes))
    if call.node.op == "LpPool":
        power = call.attr("p", 2)
        return np.asarray(np.sum(np.abs(windows) ** power, axes) ** (1 / power)).astype(x.dtype)
    counts = _windows(np.pad(weight, end), kernel_shape, strides, dilations)
    return np.asarray(np.sum(windows, axes) / np.sum(counts, axes)).astype(x.dtype)


def _tails(call: Call, sizes: Sequence[int], widths: Pairs, spans: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return by how much the last window exceeds the padded tensor along each axis."""
    if not call.attr("ceil_mode", 0):
        return [0] * len(sizes)
    tails = []
    for size, (begin, end), span, stride in zip(sizes, widths, spans, strides, strict=True):
        rest = size + begin + end - span
        count = rest // stride + 1
        has_more = rest % stride and count * stride < size + begin
        tails.append(count * stride - rest if has_more else 0)
    return tails


@kernel("GlobalAveragePool GlobalMaxPool")
def _global_pool(call: Call) -> Array:
    x = call.array(0)
    axes = tuple(range(2, x.ndim))
    return np.asarray((np.mean if call.node.op == "GlobalAveragePool" else np.max)(x, axis=axes, keepdims=True))


def _matmul_size(call: Call) -> int:
    a, b = call.array(0), call.array(1)
    if a.ndim < 2 or b.ndim < 2:
        return max(a.size, b.size)
    return math.prod((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))


kernel("MatMul", _matmul_size)(lambda call: np.asarray(np.matmul(call.array(0), call.array(1))))


def _gemm_size(call: Call) -> int:
    a, b = call.array(0), call.array(1)
    return math.prod((a.shape[1 if call.attr("transA", 0) else 0], b.shape[0 if call.attr("transB", 0) else 1]))


@kernel("Gemm", _gemm_size)
def _gemm(call: Call) -> Array:
    a, b, c = call.array(0), call.array(1), call.optional(2)
    a = a.T if call.attr("transA", 0) else a
    b = b.T if call.attr("transB", 0) else b
    result = a.dtype.type(call.attr("alpha", 1.0)) * (a @ b)
    return np.asarray(result if c is None else result + a.dtype.type(call.attr("beta", 1.0)) * c)


@kernel("Einsum")
def _einsum(call: Call) -> Array:
    arrays = [call.array(slot) for slot in range(len(call.inputs))]
    return np.asarray(np.einsum(call.attr("equation").decode(), *arrays))


@kernel("Softmax LogSoftmax Hardmax")
def _softmax(call: Call) -> Array:
    x = call.array(0)
    if call.opset < 13:
        axis = call.attr("axis", 1) % max(x.ndim, 1)
        flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
        return _normalize(call.node.op, flat, -1).reshape(x.shape)
    return _normalize(call.node.op, x, call.attr("axis", -1))


def _normalize(op: str, x: Array, axis: int) -> Array:
    if op == "Hardmax":
        result = np.zeros_like(x)
        np.put_along_axis(result, np.expand_dims(np.argmax(x, axis), axis), 1, axis)
        return result
    shifted = x - np.max(x, axis=axis, keepdims=True)
    total = np.sum(np.exp(shifted), axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(total) if op == "LogSoftmax" else np.exp(shifted) / total)


@kernel("BatchNormalization")
def _batch_normalization(call: Call) -> Array:
    if call.attr("training_mode", 0):
        raise ValueError("statistics of a batch are not computed")
    x = call.array(0)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    scale, offset, mean, variance = (call.array(slot).reshape(shape) for slot in range(1, 5))
    return np.asarray((x - mean) / np.sqrt(variance + call.attr("epsilon", 1e-5)) * scale + offset).astype(x.dtype)


@kernel("InstanceNormalization")
def _instance_normalization(call: Call) -> Array:
    x = call.array(0)
    axes, shape = tuple(range(2, x.ndim)), (1, -1, *(1,) * (x.ndim - 2))
    result = _standardize(x, axes, call.attr("epsilon", 1e-5))
    return np.asarray(result * call.array(1).reshape(shape) + call.array(2).reshape(shape)).astype(x.dtype)


@kernel("LayerNormalization")
def _layer_normalization(call: Call) -> tuple[Array, ...]:
    x, bias = call.array(0), call.optional(2)
    axes = tuple(range(call.attr("axis", -1) % x.ndim, x.ndim))
    epsilon = call.attr("epsilon", 1e-5)
    result = _standardize(x, axes, epsilon) * call.array(1)
    mean = np.mean(x, axis=axes, keepdims=True)
    deviation = 1 / np.sqrt(np.var(x, axis=axes, keepdims=True) + epsilon)
    return np.asarray(result if bias is None else result + bias).astype(x.dtype), mean, deviation.astype(x.dtype)


@kernel("RMSNormalization")
def _rms_normalization(call: Call) -> Array:
    x = call.array(0)
    axes = tuple(range(call.attr("axis", -1) % x.ndim, x.ndim))
    square = np.mean(np.square(x.astype(np.float32)), axis=axes, keepdims=True)
    normalized = (x / np.sqrt(square + call.attr("epsilon", 1e-5))).astype(x.dtype)
    return np.asarray(normalized * call.array(1)).astype(x.dtype)


@kernel("GroupNormalization")
def _group_normalization(call: Call) -> Array:
    x, groups = call.array(0), call.attr("num_groups")
    n, c, *rest = x.shape
    grouped = _standardize(x.reshape(n, groups, -1), (2,), call.attr("epsilon", 1e-5)).reshape(x.shape)
    scale, bias = call.array(1), call.array(2)
    if scale.size == groups and groups != c:  # opset 18 has parameters for each group
        scale, bias = (np.repeat(values, c // groups) for values in (scale, bias))
    shape = (1, -1, *(1,) * len(rest))
    return np.asarray(grouped * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype)


def _standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    mean = np.mean(x, axis=axes, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(np.var(x, axis=axes, keepdims=True) + epsilon))


@kernel("LRN")
def _local_response_normalization(call: Call) -> Array:
    x, size = call.array(0), call.attr("size")
    before = (size - 1) // 2
    square = np.pad(np.square(x), [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    total = sliding_window_view(square, size, 1).sum(-1)
    alpha, beta, bias = call.attr("alpha", 1e-4), call.attr("beta", 0.75), call.attr("bias", 1.0)
    return np.asarray(x / (bias + alpha / size * total) ** beta).astype(x.dtype)


@kernel("Dropout")
def _dropout(call: Call) -> tuple[Array, ...]:
    mode = call.optional(2)
    if mode is not None and mode.any():
        raise ValueError("dropout of training is random")
    x = call.array(0)
    return x, np.ones(x.shape, bool)


@kernel("LSTM GRU")
def _recurrent(call: Call) -> tuple[Array, ...]:
    unusual = ("activation_alpha", "activation_beta", "clip", "input_forget", "layout")
    usual = (b"sigmoid", b"tanh", b"tanh") if call.node.op == "LSTM" else (b"sigmoid", b"tanh")
    activations = tuple(name.lower() for name in call.attr("activations", ()))
    has_usual = activations in ((), usual, usual * 2)
    if (
        not has_usual
        or any(call.attr(name) for name in unusual)
        or call.optional(4) is not None
        or call.optional(7) is not None
    ):
        raise ValueError("only the default activations without sequence lengths and peepholes are computed")
    x, weights, recurrence = call.array(0), call.array(1), call.array(2)
    directions, size = recurrence.shape[0], recurrence.shape[2]
    gates = 4 if call.node.op == "LSTM" else 3
    bias = call.optional(3)
    biases = np.zeros((directions, 2 * gates * size), x.dtype) if bias is None else bias
    initial = call.optional(5)
    cells = call.optional(6 if gates == 4 else 5)
    outputs, lasts, last_cells = [], [], []
    for direction in range(directions):
        is_reverse = call.attr("direction", b"forward") == b"reverse" or direction == 1
        steps: Array = x[::-1] if is_reverse else x
        hidden = np.zeros((x.shape[1], size), x.dtype) if initial is None else initial[direction]
        cell = np.zeros_like(hidden) if cells is None else cells[direction]
        from_input, from_hidden = np.split(biases[direction], 2)
        sequence = []
        for step in steps:
            a, r = step @ weights[direction].T + from_input, recurrence[direction]
            if gates == 4:
                hidden, cell = _lstm_step(a + hidden @ r.T + from_hidden, cell)
            else:
                hidden = _gru_step(a, hidden, r, from_hidden, bool(call.attr("linear_before_reset", 0)))
            sequence.append(hidden)
        outputs.append(np.stack(sequence[::-1] if is_reverse else sequence))
        lasts.append(hidden)
        last_cells.append(cell)
    results: tuple[Array, ...] = (np.stack(outputs, 1), np.stack(lasts))
    return (*results, np.stack(last_cells)) if gates == 4 else results


def _lstm_step(gates: Array, cell: Array) -> tuple[Array, Array]:
    """Return the next hidden state and cell; the gates are input, output, forget, cell."""
    i, o, f, c = np.split(gates, 4, -1)
    cell = np.asarray(sigmoid(f) * cell + sigmoid(i) * np.tanh(c))
    return np.asarray(sigmoid(o) * np.tanh(cell)), cell


def _gru_step(a: Array, hidden: Array, recurrence: Array, bias: Array, is_linear: bool) -> Array:
    """Return the next hidden state; the gates are update, reset, hidden."""
    (az, ar, ah), (bz, br, bh) = np.split(a, 3, -1), np.split(bias, 3)
    rz, rr, rh = np.split(recurrence, 3)
    z, r = sigmoid(az + hidden @ rz.T + bz), sigmoid(ar + hidden @ rr.T + br)
    from_hidden = r * (hidden @ rh.T + bh) if is_linear else (r * hidden) @ rh.T + bh
    return np.asarray((1 - z) * np.tanh(ah + from_hidden) + z * hidden)


def _resize_size(call: Call) -> int:
    sizes = call.integers("sizes", 3)
    if sizes:
        return math.prod(sizes)
    return math.prod(int(size * scale) for size, scale in zip(call.array(0).shape, _scales(call), strict=True))


@kernel("Resize Upsample", _resize_size)
def _resize(call: Call) -> Array:
    x: Any = call.array(0)
    if (
        call.attr("antialias", 0)
        or call.attr("axes")
        or call.attr("keep_aspect_ratio_policy", b"stretch") != b"stretch"
    ):
        raise ValueError("antialiasing, axes and other policies than stretch are not computed")
    mode, scales = call.attr("mode", b"nearest"), _scales(call)
    sizes = call.integers("sizes", 3) or [
        int(np.floor(size * scale)) for size, scale in zip(x.shape, scales, strict=True)
    ]
    default = b"half_pixel" if call.node.op == "Resize" and len(call.inputs) > 2 else b"asymmetric"
    transformation = call.attr("coordinate_transformation_mode", default)
    if mode == b"cubic" or transformation in (b"tf_crop_and_resize", b"half_pixel_symmetric"):
        raise ValueError(f"mode {mode.decode()} with {transformation.decode()} is not computed")
    dtype = x.dtype
    for axis, (before, after, scale) in enumerate(zip(x.shape, sizes, scales, strict=True)):
        if before != after or scale != 1:
            x = _resize_axis(x, axis, _positions(transformation, before, after, scale), call, mode)
    return np.asarray(x).astype(dtype)


def _scales(call: Call) -> list[float]:
    values = call.optional(1 if len(call.inputs) == 2 else 2)
    if values is None or not values.size:
        values = call.attr("scales")
    if values is not None:
        return [float(np.float32(value)) for value in values]
    sizes = call.integers("sizes", 3) or []
    return [after / before for after, before in zip(sizes, call.array(0).shape, strict=True)]


def _positions(transformation: bytes, before: int, after: int, scale: float) -> Array:
    """Return the positions in the input of the elements of one output axis, in float32 as the runtimes compute them."""
    index: Any = np.arange(after, dtype=np.float32)
    step: Any = np.float32(scale)
    if transformation == b"align_corners":
        if before * scale % 1:
            raise ValueError("the positions of a scale that gives no whole size depend on the runtime")
        return np.asarray(index * ((before - 1) / (after - 1) if after > 1 else 0))
    if transformation == b"asymmetric":
        return np.asarray(index / step)
    if transformation == b"pytorch_half_pixel" and after <= 1:
        return np.zeros(after)
    return np.asarray((index + 0.5) / step - 0.5)


def _resize_axis(x: Array, axis: int, positions: Array, call: Call, mode: bytes) -> Array:
    last = x.shape[axis] - 1
    if mode == b"nearest":
        rounding = call.attr("nearest_mode", b"round_prefer_floor" if len(call.inputs) > 2 else b"floor")
        nearest: Any = {
            b"floor": np.floor,
            b"ceil": np.ceil,
            b"round_prefer_floor": lambda p: np.ceil(p - 0.5),
            b"round_prefer_ceil": lambda p: np.floor(p + 0.5),
        }[rounding]
        return np.asarray(np.take(x, np.clip(nearest(positions), 0, last).astype(np.int64), axis))
    positions = np.clip(positions, 0, last)
    low = np.floor(positions).astype(np.int64)
    weight = (positions - low).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return np.asarray(np.take(x, low, axis) * (1 - weight) + np.take(x, np.minimum(low + 1, last), axis) * weight)
