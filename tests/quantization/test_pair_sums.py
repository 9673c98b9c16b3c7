"""Weights whose products are exact in kernels that add pairs of products in 16 bits."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.quantization.pair_sums import MAX_SUM, find_pair_sums, limit_pair_sums
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.portability import certify
from quantkit.quantization.spec import Spec
from quantkit.runtimes import open_session

LAYOUTS = {
    "Conv": ((8, 6, 3, 3), (0,), (2, 3, 1)),
    "first Conv": ((8, 3, 3, 3), (0,), (2, 3, 1)),
    "Conv of TensorFlow": ((3, 3, 5, 8), (3,), (0, 1, 2)),
    "MatMul": ((9, 8), (1,), (0,)),
    "transposed MatMul": ((8, 10), (0,), (1,)),
    "long MatMul": ((258, 2), (1,), (0,)),
    "Conv of 1 channel in each group": ((8, 1, 3, 3), (0,), (2, 3, 1)),
}


def naive_sums(levels: np.ndarray, outputs: int, pair_axes: tuple[int, ...]) -> int:
    """Return the largest sum of weights of one sign in a pair, weight by weight."""
    rest = [axis for axis in range(levels.ndim) if axis != outputs and axis not in pair_axes]
    assert not rest, "the layouts have one dimension of outputs"
    largest = 0
    for channel in range(levels.shape[outputs]):
        kernel = np.moveaxis(levels.take(channel, outputs), 0, 0)
        order = [axis - (axis > outputs) for axis in pair_axes]
        rows = kernel.transpose(order).reshape(-1, kernel.shape[order[-1]]).astype(int)
        flat = rows.reshape(-1)
        is_odd = len(rows) > 1 and rows.shape[1] % 2 == 1
        step = 1 if is_odd or (len(pair_axes) == 1 and len(flat) > 256) else 2
        pairs = [tuple(flat[index : index + 2]) for index in range(0, len(flat) - 1, step)]
        if is_odd and len(order) == 3:
            columns = kernel.transpose(order[1], order[0], order[2]).reshape(-1).astype(int)
            pairs += [tuple(columns[index : index + 2]) for index in range(len(columns) - 1)]
        for pair in pairs:
            for sign in (1, -1):
                largest = max(largest, sum(max(sign * value, 0) for value in pair))
    return largest


@given(st.sampled_from(sorted(LAYOUTS)), st.integers(0, 2**32 - 1), st.floats(0.01, 3))
def test_no_pair_of_quantized_weights_exceeds_the_limit(layout: str, seed: int, shape: float) -> None:
    sizes, axes, pair_axes = LAYOUTS[layout]
    random = np.random.default_rng(seed)
    weights = (random.choice((-1, 1), sizes) * random.gamma(shape, 1, sizes)).astype(np.float32)
    spec = Spec(DType.QINT8, symmetric=True, per_channel=True, axes=axes, pair_axes=pair_axes)
    quantized = QuantizationParameters.of_weights(spec, weights).quantize(weights)
    assert naive_sums(quantized, axes[0], pair_axes) <= MAX_SUM
    assert find_pair_sums(quantized.astype(int), pair_axes).max() == naive_sums(quantized, axes[0], pair_axes)


def test_safe_weights_stay() -> None:
    levels = np.array([[127, 1, -64, -64, 5]], np.int8)
    np.testing.assert_array_equal(limit_pair_sums(levels, (1,)), levels)


def test_both_weights_of_an_unsafe_pair_lose_half_of_the_excess() -> None:
    levels = np.array([[127, 127, -127, -2, 127, 2, 100]], np.int8)
    expected = np.array([[64, 64, -126, -2, 126, 2, 100]], np.int8)
    np.testing.assert_array_equal(limit_pair_sums(levels, (1,)), expected)


def test_weights_in_float_cost_little_precision() -> None:
    random = np.random.default_rng(0)
    weights = (random.standard_normal((32, 16, 3, 3)) * random.gamma(1, 1, (32, 16, 3, 3))).astype(np.float32)

    def decibels(text: str) -> float:
        parameters = QuantizationParameters.of_weights(Spec.parse(text), weights)
        return float(
            -10 * np.log10(np.square(parameters.fake_quantize(weights) - weights).sum() / np.square(weights).sum())
        )

    plain = decibels("qint8 symmetric per_channel axes=0")
    limited = decibels("qint8 symmetric per_channel axes=0 pairs=2,3,1")
    reduced = decibels("qint8 symmetric per_channel reduce_range axes=0")
    assert plain - 1.0 < limited < plain
    assert limited > reduced + 3


@pytest.mark.parametrize(("sizes", "pair_axes"), [((32, 64), "1"), ((32, 16, 3, 3), "2,3,1")])
def test_sums_of_inputs_that_vary_together_cost_no_precision(sizes: tuple[int, ...], pair_axes: str) -> None:
    random = np.random.default_rng(1)
    weights = random.standard_normal(sizes).astype(np.float32)
    rows = weights.reshape(len(weights), -1)
    inputs = random.gamma(4, 0.25, (500, 1)) * (1 + 0.3 * random.standard_normal((500, rows.shape[1])))

    def noise(text: str) -> float:
        parameters = QuantizationParameters.of_weights(Spec.parse(text), weights)
        return float(np.square(inputs @ (parameters.fake_quantize(weights).reshape(rows.shape) - rows).T).sum())

    plain = "qint8 symmetric per_channel axes=0"
    assert noise(f"{plain} pairs={pair_axes}") < noise(plain)


def quantized_convolution(levels: np.ndarray, group: int = 1) -> Graph:
    """Return a QDQ convolution of uint8 images whose values are the quantized ones.

    Args:
        levels: (c_out, c_in / group, h, w) int8.
        group: number of groups.
    """
    channels = levels.shape[1] * group
    values = {
        "one": np.float32(1), "zero": np.uint8(0), "step": np.float32(256), "levels": levels,
        "ones": np.ones(len(levels), np.float32), "zeros": np.zeros(len(levels), np.int8),
    }  # fmt: skip
    nodes = [Node(name, "Constant", attrs={"value": Tensor.of(value)}) for name, value in values.items()]
    shape = Shape((1, channels, 5, 5))
    nodes += [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": shape}),
        Node("x_levels", "QuantizeLinear", ("x", "one", "zero")),
        Node("x_values", "DequantizeLinear", ("x_levels", "one", "zero")),
        Node("weights", "DequantizeLinear", ("levels", "ones", "zeros"), attrs={"axis": 0}),
        Node("conv", "Conv", ("x_values", "weights"), attrs={"group": group, "kernel_shape": levels.shape[2:]}),
        Node("y_levels", "QuantizeLinear", ("conv", "step", "zero")),
        Node("y", "DequantizeLinear", ("y_levels", "step", "zero")),
    ]
    return Graph.of(nodes, [Edge("x")], [Edge("y")], dialect="onnx")


def exact_outputs(levels: np.ndarray, group: int) -> np.ndarray:
    """Return the outputs of `quantized_convolution` for images of 255 everywhere, (c_out,)."""
    sums = 255.0 * levels.astype(np.float64).sum((1, 2, 3))
    outputs: np.ndarray = np.clip(np.rint(sums / 256), 0, 255) * 256
    return outputs


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_certified_layers_are_exact_in_the_kernels_of_this_processor(runtime: str) -> None:
    pytest.importorskip(runtime)
    random = np.random.default_rng(3)
    count = 0
    for channels, size, group in ((2, 1, 1), (3, 3, 1), (5, 3, 1), (16, 1, 1), (12, 3, 4), (6, 2, 2)):
        weights = random.choice((1, 20, 127), (24, channels // group, size, size)) * random.choice(
            (1, 1, 1, -1), (24, 1, 1, 1)
        )
        levels = limit_pair_sums(weights.astype(np.int8), (2, 3, 1))
        graph = quantized_convolution(levels, group)
        certificate = certify(graph)
        assert certificate is not None
        assert certificate.is_certified
        with open_session(graph, runtime) as session:
            image = np.full((1, channels, 5, 5), 255, np.float32)
            outputs = next(iter(session.run({"x": image}).values()))[0, :, 0, 0]
        np.testing.assert_allclose(outputs, exact_outputs(levels, group), atol=256)
        count += 1
    assert count == 6


@pytest.mark.parametrize(("channels", "size"), [(2, 1), (3, 1), (3, 3), (5, 3), (4, 2), (1, 3)])
def test_each_unsafe_pair_is_found(channels: int, size: int) -> None:
    count = 0
    for first in range(channels * size * size - 1):
        flat = np.ones((1, channels * size * size), np.int8)
        flat[0, first : first + 2] = 100
        levels = np.ascontiguousarray(flat.reshape(1, size, size, channels).transpose(0, 3, 1, 2))
        certificate = certify(quantized_convolution(levels))
        assert certificate is not None
        is_adjacent = first % 2 == 0 or (size > 1 and channels % 2 == 1)
        assert certificate.is_certified == (not is_adjacent), first
        if is_adjacent:
            assert certificate.unsafe[0].layer == "conv"
            assert certificate.unsafe[0].pair_sum == 200
            assert "conv" in str(certificate)
            count += 1
    assert count > 0


def test_depthwise_convolutions_are_safe() -> None:
    levels = np.full((4, 1, 3, 3), 127, np.int8)
    certificate = certify(quantized_convolution(levels, group=4))
    assert certificate is not None
    assert certificate.is_certified


def test_float_graphs_have_no_certificate() -> None:
    graph = Graph.of([Node("x", "Placeholder"), Node("y", "Relu", ("x",))], [Edge("x")], [Edge("y")], dialect="onnx")
    assert certify(graph) is None


@pytest.mark.parametrize(("channels", "outputs", "is_certified"), [(4, 1, True), (4, 2, False), (1, 1, False)])
def test_tensorflow_computes_only_plain_depthwise_convolutions_without_pairs(
    channels: int, outputs: int, is_certified: bool
) -> None:
    levels = Tensor.of(np.full((3, 3, channels, outputs), 127, np.int8), DType.QINT8)
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.QUINT8}),
        Node("weights", "Const", attrs={"value": levels, "dtype": DType.QINT8}),
        Node("depthwise", "_FusedQuantizedDepthwiseConv2D", ("x", "weights")),
    ]
    certificate = certify(Graph.of(nodes, [Edge("x")], [Edge("depthwise")], dialect="tensorflow"))
    assert certificate is not None
    assert certificate.is_certified == is_certified


@pytest.mark.engine
def test_certified_layers_are_exact_in_the_kernels_without_vnni(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    save, script = tmp_path / "saturation.json", Path(__file__).parents[1] / "bench" / "measure_saturation.py"
    command = [sys.executable, str(script), str(tmp_path), "--models=10", "--emulated=0", f"--save={save}"]
    subprocess.run(command, check=True, capture_output=True)
    document = json.loads(save.read_text())
    assert document["unsafe_not_named"] == []
    assert document["constructed_unsafe"] > 50
    arms = [arm for arm in document["arms"].values() if arm.get("certified")]
    assert len(arms) == 5
    assert [arm["certified_that_differ"] for arm in arms] == [[]] * 5
