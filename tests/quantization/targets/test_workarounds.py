"""Workarounds: each is still needed by the installed runtime. The row of a failed test may go."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph
from quantkit.quantization.targets import workarounds
from quantkit.quantization.targets.onnx import native
from quantkit.quantization.targets.onnx.upsampling import gather_rows
from quantkit.quantization.targets.workarounds import (
    AVERAGE,
    CAPTURE,
    CHANNEL_SHUFFLE,
    EXTREME,
    FLAT_NORM,
    HIDDEN_SIZE,
    MAXIMUM,
    OUTPUT_LAYOUT,
    PAIR_SOFTMAX,
    PRODUCT,
    PRODUCT_CHAIN,
    REDUCTION,
    SHARED_BIAS,
    SHUFFLE,
    SILU,
    UPSAMPLING,
    WORKAROUNDS,
    Workaround,
    is_needed,
)
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.session import SessionOptions

pytestmark = pytest.mark.engine
onnx = pytest.importorskip("onnx", reason="pip install onnx")
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from small_onnx_networks import IMAGE, Network, load, quantize, run, samples, sqnr  # noqa: E402

ROWS = {row.name: row for row in WORKAROUNDS}


def quantize_both(
    network: Network, output: str, name: str, monkeypatch: pytest.MonkeyPatch, **scheme: object
) -> list[Graph]:
    """Return the quantized graph with all workarounds, and the one without a workaround."""
    if not find_runtime(ROWS[name].runtime).available().ok:
        pytest.skip(f"{ROWS[name].runtime} is not installed")
    graph, data = load(network.model(output)), samples(network)
    graphs = [quantize(graph, data, **scheme)[1]]
    monkeypatch.setattr(workarounds, "WORKAROUNDS", tuple(row for row in WORKAROUNDS if row.name != name))
    graphs.append(quantize(graph, data, **scheme)[1])
    assert len(graphs[0]) != len(graphs[1]), "the workaround is applied"
    return graphs


def optimized_ops(network: Network, graph: Graph, folder: Path) -> Counter[str]:
    """Return the number of nodes by op type after the rewrites of ONNX Runtime."""
    run(onnx_format.encode(graph), {"x": samples(network)[0]}, folder / "optimized.onnx")
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


def test_each_row_has_a_test() -> None:
    assert len(ROWS) == len(WORKAROUNDS)
    assert [row.test for row in WORKAROUNDS if row.test not in globals()] == []
    assert all(row.reason and row.op and row.first for row in WORKAROUNDS)


def test_a_workaround_is_for_a_runtime_and_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Workaround("w", "Identity", "onnxruntime", "1.0", "r", "t")
    fixed = Workaround("w", "Identity", "onnxruntime", "1.0", "r", "t", fixed="1.1")
    assert [row.is_needed(runtime) for runtime in (None, "onnxruntime", "openvino")] == [True, True, False]
    assert not fixed.is_needed("onnxruntime")
    assert is_needed(CAPTURE, "tensorrt"), "ONNX Runtime opens files for its TensorRT provider"
    monkeypatch.setattr(workarounds, "WORKAROUNDS", (fixed,))
    assert not is_needed("w", None)


@pytest.mark.parametrize(("runtime", "op"), [("openvino", "Concat"), ("onnxruntime", "LeakyRelu")])
def test_files_for_one_runtime_have_no_workaround_of_another(runtime: str, op: str) -> None:
    network = Network(4, 16)
    x = network.add("Mul", "x", np.float32(1))
    for _ in range(2):
        x = network.add("MatMul", x, network.weights(16, 16))
    y = network.add("Add", x, network.add("MatMul", "x", network.weights(16, 16)))
    counts = [
        qk.quantize(load(network.model(y)), samples(network), runtime=name, runs=0).model.graph.op_counts.get(op, 0)
        for name in ("auto", runtime)
    ]
    assert counts[0] > counts[1] == 0


def test_averages_stay_float(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(*IMAGE)
    y = network.conv(network.add("AveragePool", network.conv("x"), kernel_shape=[3, 3]))
    counts = [optimized_ops(network, each, tmp_path) for each in quantize_both(network, y, AVERAGE, monkeypatch)]
    assert [each["QLinearAveragePool"] for each in counts] == [0, 1]


def test_quantization_stays_after_a_float_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(*IMAGE)
    x = network.add("MaxPool", network.add("Tanh", "x"), kernel_shape=[2, 2], strides=[2, 2])
    sources = []
    for graph in quantize_both(network, network.conv(x), MAXIMUM, monkeypatch):
        optimized_ops(network, graph, tmp_path)
        nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
        producers = {name: node.op_type for node in nodes for name in node.output}
        (pool,) = (node for node in nodes if node.op_type == "MaxPool")
        sources.append(producers[pool.input[0]])
    assert sources == ["Tanh", "QuantizeLinear"]


def test_products_before_sums_stay_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(1, 16)
    left = network.add("MatMul", "x", network.weights(16, 10))
    right = network.add("MatMul", network.add("Tanh", "x"), network.weights(16, 10))
    y = network.add("Add", network.add("Add", left, right), network.weights(1, 10))
    counts = [optimized_ops(network, each, tmp_path) for each in quantize_both(network, y, PRODUCT, monkeypatch)]
    assert counts[0]["MatMulIntegerToFloat"] == 2 > counts[1]["MatMulIntegerToFloat"]


def test_float_silu_is_one_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(*IMAGE)
    x = network.conv("x")
    y = network.conv(network.add("Mul", network.add("Sigmoid", x), x))
    graphs = quantize_both(network, y, SILU, monkeypatch, keep_float=("Sigmoid",))
    assert [optimized_ops(network, each, tmp_path)["QuickGelu"] for each in graphs] == [1, 0]


@pytest.mark.parametrize("runtime", [None, "openvino"])
@pytest.mark.parametrize("op", ["Reshape", "Transpose", "MaxPool"])
def test_views_that_branches_capture_have_a_pair(
    op: str, runtime: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(*IMAGE)
    x = network.conv(network.conv("x"))
    options = {"Reshape": (np.array([-1]),), "Transpose": (), "MaxPool": ()}
    attrs = {"MaxPool": {"kernel_shape": [2, 2]}}.get(op, {})
    view = network.add("Transpose", network.add(op, x, *options[op], **attrs))
    flag = network.add("Greater", network.add("ReduceMax", "x", keepdims=0), np.float32(0))
    branches = {
        f"{name}_branch": onnx.helper.make_graph(
            [onnx.helper.make_node(branch, [view], [name])],
            name,
            [],
            [onnx.helper.make_tensor_value_info(name, 1, None)],
        )
        for name, branch in (("then", "Neg"), ("else", "Abs"))
    }
    graphs = quantize_both(network, network.add("If", flag, **branches), CAPTURE, monkeypatch, runtime=runtime)
    data, outputs = {"x": samples(network)[0]}, list[np.ndarray]()
    for is_optimized in (True, False):
        with open_session(graphs[0], "onnxruntime", SessionOptions(optimized=is_optimized)) as session:
            outputs.extend(session.run(data).values())
    np.testing.assert_allclose(outputs[0], outputs[1], atol=0.1)
    (tmp_path / "m.onnx").write_bytes(onnx_format.encode(graphs[1]))
    code = f"import onnxruntime; onnxruntime.InferenceSession({str(tmp_path / 'm.onnx')!r})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode < 0


def test_zero_points_are_subtracted_before_a_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install openvino")
    network = Network(*IMAGE)
    network.add("DepthToSpace", network.conv("x", channels=4), blocksize=2, name="y")
    shapes = []
    for graph in quantize_both(network, "y", SHUFFLE, monkeypatch):
        core = openvino.Core()
        model = core.compile_model(core.read_model(onnx_format.encode(graph)), "CPU").get_runtime_model()
        shapes.append(
            {
                str(op.get_output_partial_shape(0))
                for op in model.get_ordered_ops()
                if op.get_rt_info()["layerType"].astype(str) in ("Eltwise", "Subgraph")
            }
        )
    assert ["[1,1,24,24]" in each for each in shapes] == [False, True]


def test_outputs_are_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install openvino")
    network = Network(*IMAGE)
    y = network.conv(network.conv("x"), channels=32)
    results, reorders = [], []
    for graph in quantize_both(network, y, OUTPUT_LAYOUT, monkeypatch, runtime="openvino"):
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(onnx_format.encode(graph)), "CPU")
        results.append(compiled(samples(network)[0])[0])
        ops = {op.get_friendly_name(): op for op in compiled.get_runtime_model().get_ops()}
        (result,) = (op for op in ops.values() if op.get_rt_info()["layerType"].astype(str) == "Output")
        reorders.append(result.input_value(0).get_node().get_rt_info()["layerType"].astype(str))
    assert reorders[0] != reorders[1] == "Reorder"
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("runtime", [None, "openvino"])
def test_shared_biases_are_fused(runtime: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install openvino")
    network = Network(*IMAGE)
    bias, outputs = network.constant(network.weights(16)), list[str]()
    for _ in range(2):
        layer = network.add("Conv", "x", network.weights(16, 8, 3, 3), bias, pads=[1] * 4)
        outputs.append(network.add("HardSwish", layer))
    y = network.add("Add", *outputs)
    results, fused = [], []
    for graph in quantize_both(network, y, SHARED_BIAS, monkeypatch, runtime=runtime, keep_float=("Conv",)):
        core = openvino.Core()
        # bfloat16, which some processors compute float layers in, rounds fused layers less often.
        config = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(core.read_model(onnx_format.encode(graph)), "CPU", config)
        results.append(compiled(samples(network)[0])[0])
        infos = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
        layers = [each for each in infos if each["layerType"].astype(str) == "Convolution"]
        fused.append(sum("hardswish" in each["originalLayersNames"].astype(str) for each in layers))
    assert fused == [2, 0]
    np.testing.assert_allclose(results[0], results[1], atol=1e-5)


@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel", "align_corners"])
def test_upsampling_copies_rows(mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    network = Network(1, 8, 6, 5)
    scales = np.array([1, 1, 2, 3], np.float32)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": "floor"}
    wide = network.add("Conv", network.conv("x", 16), network.weights(16, 16, 1, 1), network.weights(16))
    resized = network.add("Resize", wide, "", scales, **attrs)
    y = network.add("Conv", resized, network.weights(4, 16, 1, 1), network.weights(4))
    feeds, results, ops = {"x": samples(network)[0]}, [], []
    for graph in quantize_both(network, y, UPSAMPLING, monkeypatch, runtime="onnxruntime"):
        results += run(onnx_format.encode(graph), feeds, tmp_path / "optimized.onnx")
        ops.append(Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node))
    assert [(each["Resize"], each["Gather"]) for each in ops] == [(0, 2), (1, 0)]
    assert ops[0]["Transpose"] == ops[1]["Transpose"]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("scale", [1, 2])
def test_upsampling_of_a_batch_copies_rows(scale: int) -> None:
    network = Network("batch", 8, 6, 5)
    wide = network.add("Conv", network.conv("x", 16), network.weights(16, 16, 1, 1), network.weights(16))
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    resized = network.add("Resize", wide, "", np.array([scale, 1, 2, 3], np.float32), **attrs)
    y = network.add("Conv", resized, network.weights(4, 16, 1, 1), network.weights(4))
    ops = quantize(load(network.model(y)), samples(network), runtime="onnxruntime")[1].op_counts
    assert (ops.get("Resize", 0), ops.get("Gather", 0)) == ((0, 2) if scale == 1 else (1, 0))


@pytest.mark.parametrize("zero", [np.zeros(1, np.uint8), np.ones(1, np.int8), None])
def test_upsampling_of_other_integers_is_not_a_copy(zero: np.ndarray | None) -> None:
    scale, scales, counts = np.ones(1, np.float32), np.array([1, 1, 2, 3], np.float32), []
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    before = [scale, np.zeros(1, np.int8)]
    for after in (before, [scale] if zero is None else [scale, zero]):
        network = Network(1, 16, 6, 5)
        x = network.add("DequantizeLinear", network.add("QuantizeLinear", "x", *before), *before)
        resized = network.add("Resize", x, "", scales, **attrs)
        y = network.add("DequantizeLinear", network.add("QuantizeLinear", resized, *after), *after)
        counts.append(gather_rows(load(network.model(y))).op_counts.get("Gather", 0))
    assert counts == [2, 0]


@pytest.mark.parametrize("runtime", [None, "openvino"])
def test_few_channels_are_normalized_as_rows(runtime: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install openvino")
    network = Network(1, 2, 12, 12)
    norm = network.add("InstanceNormalization", "x", network.weights(2), network.weights(2))
    y = network.add("Conv", norm, network.weights(8, 2, 3, 3), network.weights(8))
    results, layouts = [], []
    for graph in quantize_both(network, y, FLAT_NORM, monkeypatch, runtime=runtime):
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(onnx_format.encode(graph)), "CPU")
        results.append(compiled(samples(network)[0])[0])
        infos = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
        layouts += [each["outputLayouts"].astype(str) for each in infos if each["layerType"].astype(str) == "MVN"]
    assert layouts == ["abc", "acdb"]
    np.testing.assert_allclose(results[0], results[1], atol=0.05)


def test_images_of_dynamic_size_are_normalized_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(1, 2, "height", "width")
    norm = network.add("InstanceNormalization", "x", network.weights(2), network.weights(2))
    y = network.add("Conv", norm, network.weights(8, 2, 1, 1), network.weights(8))
    feeds = {"x": network.random.normal(0, 1, (1, 2, 5, 7)).astype(np.float32)}
    graphs = quantize_both(network, y, FLAT_NORM, monkeypatch)
    rows, images = (run(onnx_format.encode(graph), feeds)[0] for graph in graphs)
    np.testing.assert_allclose(rows, images, atol=0.05)


def test_sizes_of_flat_images_are_hidden() -> None:
    """OpenVINO takes the size of an image for the reshape back from a convolution."""
    network = Network(1, 8, "height", "width")
    norm = network.add("InstanceNormalization", network.conv("x", 2), network.weights(2), network.weights(2))
    y = network.add("Conv", norm, network.weights(8, 2, 1, 1), network.weights(8))
    data = [network.random.normal(0, 1, (1, 8, 5, 7)).astype(np.float32)]
    graph = quantize(load(network.model(y)), data)[1]
    shapes = [node.name for node in graph.nodes.values() if node.op == "Shape"]
    assert [node.op for name in shapes for node in graph.consumers(name)] == ["Max"]


def test_softmax_of_two_classes_is_a_sigmoid(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install openvino")
    network = Network(1, 8, 16, 32)
    network.add("Softmax", network.conv("x", channels=2), axis=1, name="y")
    results, ops = [], []
    for graph in quantize_both(network, "y", PAIR_SOFTMAX, monkeypatch, runtime="openvino"):
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(onnx_format.encode(graph)), "CPU")
        results.append(compiled(samples(network)[0])[0])
        ops.append({op.get_rt_info()["layerType"].astype(str) for op in compiled.get_runtime_model().get_ops()})
    assert ["Softmax" in each for each in ops] == [False, True]
    np.testing.assert_allclose(results[0], results[1], atol=1e-5)


@pytest.mark.parametrize("runtime", [None, "openvino", "onnxruntime"])
@pytest.mark.parametrize("halves", [False, True])
def test_shuffles_are_products(halves: bool, runtime: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install openvino")
    network = Network(1, 8, 6, 5)
    x = network.add("Relu", network.conv("x"))
    if halves:
        x = network.add("Transpose", network.add("Reshape", x, np.array([4, 2, 30])), perm=[1, 0, 2])
        x = network.add("Reshape", x, np.array([2, 1, 4, 6, 5]))
        parts = [network.add("Gather", x, np.array(index), axis=0) for index in (1, 0)]
        x = network.add("Concat", *parts, axis=1)
    else:
        x = network.add("Transpose", network.add("Reshape", x, np.array([1, 2, 4, 6, 5])), perm=[0, 2, 1, 3, 4])
        x = network.add("Reshape", x, np.array([1, 8, 6, 5]))
    results, ops = [], []
    for graph in quantize_both(network, network.conv(x), CHANNEL_SHUFFLE, monkeypatch, runtime=runtime):
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(onnx_format.encode(graph)), "CPU")
        results.append(compiled(samples(network)[0])[0])
        ops.append(Counter(node.op for node in graph.nodes.values()))
    assert ops[0]["Transpose"] == ops[0]["Reshape"] == ops[0]["Gather"] == 0 < ops[1]["Transpose"]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("ops", [("Mul", "Add"), ("Div", "Sub")])
def test_factors_after_reductions_are_correct(ops: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(1, 10, 16)
    mean = network.add("ReduceMean", "x", axes=[1], keepdims=0)
    factors = np.linspace(0.1, 3, 16, dtype=np.float32)
    values = network.add(ops[1], network.add(ops[0], mean, factors if ops[0] == "Mul" else 1 / factors), -factors)
    y = network.add("MatMul", values, network.weights(16, 10))
    assert_only_workaround_is_correct(network, y, REDUCTION, 30, monkeypatch)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("between", ["", "Abs"])
def test_quantized_extremes_are_correct(op: str, between: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(1, 10, 16)
    x = network.add(op, "x", axes=[1], keepdims=0)
    if between:
        x = network.add(between, x)
    y = network.add("MatMul", x, 3 * network.weights(16, 10))
    assert_only_workaround_is_correct(network, y, EXTREME, 25, monkeypatch)


@pytest.mark.parametrize("is_recurrent", [False, True])
def test_convolutions_before_sizes_keep_their_bias(is_recurrent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network("batch", 8, 6, "steps")
    x = network.add("Relu", network.conv(network.add("Relu", network.conv("x"))))
    x = network.add("Transpose", network.add("ReduceMean", network.conv(x), axes=[2], keepdims=0), perm=[2, 0, 1])
    if is_recurrent:
        weights = network.weights(1, 32, 8), network.weights(1, 32, 8)
        x, *_ = network.add("LSTM", x, *weights, hidden_size=8, outputs=3)
        y = network.add("Squeeze", x, np.array([1]))
    else:
        size = network.add("Gather", network.add("Shape", x), np.array([1]), axis=0)
        sizes = network.add("Concat", np.array([1]), size, np.array([8]), axis=0)
        y = network.add("Concat", x, network.add("Expand", network.weights(1, 1, 8), sizes), axis=0)
    assert_only_workaround_is_correct(network, y, HIDDEN_SIZE, 30, monkeypatch)


def test_shuffled_channels_are_quantized_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half that is concatenated with other values has the quantization parameters of the result."""
    network = Network(1, 8, 6, 5)
    x = network.add("Relu", network.conv("x"))
    x = network.add("Transpose", network.add("Reshape", x, np.array([4, 2, 30])), perm=[1, 0, 2])
    x = network.add("Reshape", x, np.array([2, 1, 4, 6, 5]))
    first, second = (network.add("Gather", x, np.array(index), axis=0) for index in (0, 1))
    weights = 4 * network.weights(4, 4, 1, 1)
    x = network.add("Concat", first, network.add("Conv", second, weights), axis=1)
    graphs = quantize_both(network, network.conv(x), CHANNEL_SHUFFLE, monkeypatch)
    results, counts = [], []
    for graph in graphs:
        quantized = [node for node in graph.nodes.values() if node.op == "QuantizeLinear"]
        counts.append(sum(graph[node.inputs[0].node].op == "DequantizeLinear" for node in quantized))
        results.append(run(onnx_format.encode(graph), {"x": samples(network)[0]})[0])
    assert counts == [0, 1]
    # The convolution of the second half has the moves in its weights.
    assert [graph.op_counts["Conv"] for graph in graphs] == [4, 3]
    assert sqnr(*results) > 35


def test_chains_of_products_are_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(8, 16)
    x = "x"
    for size, outputs in ((16, 24), (24, 8), (8, 10)):
        x = network.add("MatMul", x, network.weights(size, outputs))
    assert_only_workaround_is_correct(network, x, PRODUCT_CHAIN, 24, monkeypatch)


def assert_only_workaround_is_correct(
    network: Network, output: str, name: str, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the SQNR in OpenVINO with and without a workaround with a limit in dB."""
    data = {"x": samples(network)[0]}
    graph = load(network.model(output))
    ((_, expected),) = find_runtime("onnxruntime").open(graph).run(data).items()
    errors = []
    for quantized in quantize_both(network, output, name, monkeypatch):
        with open_session(quantized, "openvino") as session:
            ((_, actual),) = session.run(data).items()
        errors.append(sqnr(expected, actual))
    assert errors[0] > least > errors[1]


def test_all_rows_are_used() -> None:
    names = {
        AVERAGE,
        CAPTURE,
        MAXIMUM,
        PRODUCT,
        SILU,
        SHUFFLE,
        REDUCTION,
        PRODUCT_CHAIN,
        OUTPUT_LAYOUT,
        PAIR_SOFTMAX,
        CHANNEL_SHUFFLE,
        EXTREME,
        HIDDEN_SIZE,
        FLAT_NORM,
        UPSAMPLING,
        SHARED_BIAS,
    }
    assert ROWS.keys() == names
    assert native.is_needed is is_needed
