"""Quantization of ONNX graphs for the target ``onnx``: each op compared with its float model in ONNX Runtime."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Edge
from quantkit.quantization import Plan, Scheme, annotate, convert, prepare
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.report.census import executed_int8_fractions
from quantkit.quantization.targets import onnx as target
from quantkit.runtimes import find_runtime

onnx = pytest.importorskip("onnx", reason="pip install onnx")
ort = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from small_onnx_networks import IMAGE, OPSET, ROWS, Network, load, quantize, run, samples, sqnr  # noqa: E402

pytestmark = pytest.mark.engine


def check(
    network: Network, *outputs: str, int8: dict[str, int], folder: Path, least: float = 28.0, **scheme: Any
) -> Plan:
    """Quantize, compare with float in ONNX Runtime, and check the ops of the optimized graph."""
    model = network.model(*outputs)
    plan, quantized = quantize(load(model), samples(network), **scheme)
    data = onnx_format.encode(quantized)
    if not network.domains:
        onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    assert [value.name for value in onnx.load_from_string(data).graph.output] == list(outputs)
    feeds = {"x": samples(network, 9)[-1]}
    expected, actual = run(model.SerializeToString(), feeds), run(data, feeds, folder / "optimized.onnx")
    for name, before, after in zip(outputs, expected, actual, strict=True):
        assert sqnr(before, after) > least, name
        assert before.shape == after.shape
    ops = Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)
    assert {op: ops[op] for op in int8} == int8, ops
    return plan


def compare_lowered(network: Network, output: str, runtime: str = "auto") -> None:
    """Check that the prepared float graph computes the same values."""
    model, feeds = network.model(output), {"x": samples(network)[0]}
    prepared = prepare(load(model), Scheme(), runtime=runtime)
    assert prepared[output].op not in ("ConvTranspose", "Einsum")
    (expected,), (actual,) = run(model.SerializeToString(), feeds), run(onnx_format.encode(prepared), feeds)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize("dims", [(1, 8, 30), IMAGE, (1, 8, 6, 6, 6)], ids=["1d", "2d", "3d"])
def test_convolution(dims: tuple[int, ...], tmp_path: Path) -> None:
    network = Network(*dims)
    y = network.conv(network.add("Relu", network.conv("x"), name="relu"))
    check(network, y, int8={"QLinearConv": 2, "Conv": 0, "Relu": 0}, folder=tmp_path)


def test_depthwise_convolution_and_convolution_without_bias(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.conv("x", group=8)
    y = network.add("Conv", x, network.weights(4, 8, 1, 1))
    check(network, y, int8={"QLinearConv": 2}, folder=tmp_path)


@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution(group: int, tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.conv("x")
    weights = network.weights(8, 6 // group, 3, 3)
    y = network.add("ConvTranspose", x, weights, network.weights(6), strides=[2, 2], group=group)
    plan = check(network, y, int8={"QLinearConv": 1, "ConvTranspose": 1}, folder=tmp_path)
    assert [pattern.layer for pattern in plan.patterns] == [x, y]


@pytest.mark.parametrize(
    "attrs",
    [
        {"group": 2, "pads": [1, 0, 2, 1], "dilations": [2, 1]},
        {"pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3]},
    ],
    ids=["dilated groups", "padded", "kernel shape"],
)
def test_transposed_convolution_of_stride_1_is_a_convolution(attrs: dict[str, Any], tmp_path: Path) -> None:
    network = Network(*IMAGE)
    weights = network.weights(8, 6 // attrs.get("group", 1), 3, 3)
    y = network.add("ConvTranspose", network.conv("x"), weights, network.weights(6), **attrs)
    compare_lowered(network, y)
    check(network, y, int8={"QLinearConv": 2, "ConvTranspose": 0}, folder=tmp_path)


@pytest.mark.parametrize("has_bias", [True, False])
def test_transposed_convolution_without_overlap_is_a_convolution(has_bias: bool, tmp_path: Path) -> None:
    network = Network(*IMAGE)
    bias, wide = [network.weights(6)] if has_bias else [], network.conv("x", channels=128)
    y = network.add("ConvTranspose", wide, network.weights(128, 6, 2, 2), *bias, strides=[2, 2])
    compare_lowered(network, y)
    check(network, y, int8={"QLinearConv": 2, "ConvTranspose": 0}, folder=tmp_path)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((3, 3), {"strides": [2, 2]}),
        ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((5, 2), {"strides": [3, 3], "pads": [0, 1, 2, 0]}),
        ((2, 2), {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
    ],
    ids=["multiple of the stride", "odd kernel", "output padding", "rectangular kernel", "padding without overlap"],
)
def test_transposed_convolution_with_overlap_is_a_convolution_for_onnx_runtime(
    kernel: tuple[int, int], attrs: dict[str, Any], tmp_path: Path
) -> None:
    """OpenVINO has an int8 kernel of the whole layer, and files for all runtimes keep it."""
    network = Network(*IMAGE)
    y = network.add("ConvTranspose", network.conv("x"), network.weights(8, 6, *kernel), network.weights(6), **attrs)
    assert prepare(load(network.model(y)), Scheme())[y].op == "ConvTranspose"
    compare_lowered(network, y, runtime="onnxruntime")
    output, model, feeds = tmp_path / "y.onnx", network.model(y), {"x": samples(network, 9)[-1]}
    result = qk.quantize(load(model), samples(network), runtime="onnxruntime", runs=0, output=output)
    assert len(result.plan.patterns) == 2
    (expected,), (actual,) = run(model.SerializeToString(), feeds), run(output.read_bytes(), feeds)
    assert expected.shape == actual.shape
    assert sqnr(expected, actual) > 28
    # A float ConvTranspose is faster than its divided form.
    layers = tuple(pattern.layer for pattern in result.plan.patterns)
    scheme = Scheme.for_target("onnx", runtime="onnxruntime", keep_float=layers)
    prepared = prepare(load(model), scheme, runtime="onnxruntime")
    restored = convert(prepared, annotate(prepared, scheme), Ranges({}))
    assert (prepared[y].op != "ConvTranspose", restored[y].op) == (True, "ConvTranspose")
    assert restored[restored[y].inputs[1].node].value.shape[2:] == kernel
    np.testing.assert_allclose(run(onnx_format.encode(restored), feeds)[0], expected, atol=2e-5)


def test_transposed_convolution_with_uncomputed_outputs_stays() -> None:
    """Rows of the output padding that no weight computes."""
    network = Network(*IMAGE)
    weights = network.weights(8, 6, 2, 2)
    y = network.add("ConvTranspose", network.conv("x"), weights, strides=[2, 2], output_padding=[1, 1])
    prepared = prepare(load(network.model(y)), Scheme(), runtime="onnxruntime")
    assert prepared[y].op == "ConvTranspose"


@pytest.mark.parametrize(
    ("equation", "shape"),
    [
        ("btd,de->bte", (16, 10)),
        ("btd,dhk->bthk", (16, 2, 5)),
        ("btd,ed->bte", (10, 16)),
        ("abc,bcd->ad", (6, 16, 4)),
        ("bid,bjd->bij", None),
        ("bid,bjd->bji", None),
        ("ibd,jbd->bij", None),
    ],
)
def test_einsum_is_a_matrix_product(equation: str, shape: tuple[int, ...] | None, tmp_path: Path) -> None:
    network = Network(*ROWS)
    operand = network.add("Tanh", "x") if shape is None else network.weights(*shape)
    y = network.add("Einsum", "x", operand, equation=equation)
    compare_lowered(network, y)
    check(network, y, int8={"MatMulIntegerToFloat": 1, "Einsum": 0}, folder=tmp_path)


@pytest.mark.parametrize("equation", ["btd,btd->bt", "btd,bte->btde", "btd,de->tbe", "...d,de->...e"])
def test_other_einsum_stays(equation: str) -> None:
    network = Network(*ROWS)
    operand = network.add("Tanh", "x") if "bt" in equation.split(",")[1] else network.weights(16, 4)
    y = network.add("Einsum", "x", operand, equation=equation)
    assert prepare(load(network.model(y)), Scheme())[y].op == "Einsum"


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int, tmp_path: Path) -> None:
    network = Network(4, 16)
    weights = network.weights(10, 16) if transposed else network.weights(16, 10)
    y = network.add("Gemm", "x", weights, network.weights(1, 10), transB=transposed)
    check(network, y, int8={"QGemm": 1}, folder=tmp_path)


def test_gemm_with_alpha_stays_float() -> None:
    network = Network(4, 16)
    y = network.add("Gemm", "x", network.weights(16, 10), alpha=0.5)
    plan = annotate(load(network.model(y)))
    assert dict(plan.float_fallbacks) == {y: "alpha or beta is not 1"}


@pytest.mark.parametrize("batch", [(), (1,)], ids=["matrix", "batched"])
def test_matrix_product_with_constant_weights(batch: tuple[int, ...], tmp_path: Path) -> None:
    network = Network(*ROWS)
    product = network.add("MatMul", "x", network.weights(*batch, 16, 10))
    y = network.add("Add", product, network.weights(10))
    plan = check(network, y, int8={"MatMulIntegerToFloat": 1} if batch else {"QGemm": 1}, folder=tmp_path)
    assert plan.patterns[0].bias == y


def test_product_of_two_activations(tmp_path: Path) -> None:
    """Attention: the projections and both products of activations are int8, the softmax is float."""
    network = Network(*ROWS)
    query, key, value = (network.add("MatMul", "x", network.weights(16, 16)) for _ in range(3))
    scores = network.add("MatMul", query, network.add("Transpose", key, perm=[0, 2, 1]))
    weights = network.add("Softmax", network.add("Mul", scores, np.float32(0.25)), axis=-1)
    y = network.add("MatMul", weights, value)
    plan = check(network, y, int8={"MatMul": 0, "Softmax": 1}, folder=tmp_path, least=25)
    assert sum(pattern.operand is not None for pattern in plan.patterns) == 2
    assert sum(bool(pattern.weights) for pattern in plan.patterns) == 3


@pytest.mark.parametrize("is_front_end", [True, False])
def test_spectrogram_stays_float(is_front_end: bool) -> None:
    """A logarithm before other layers amplifies the errors of small values; one at the end of a network does not."""
    network = Network(*ROWS)
    power = network.add("Abs", network.add("MatMul", "x", network.weights(16, 16), name="transform"))
    y = network.add("Log", network.add("Add", power, np.float32(1e-3)))
    y = network.add("MatMul", y, network.weights(16, 4), name="last") if is_front_end else y
    plan = annotate(load(network.model(y)))
    assert [pattern.layer for pattern in plan.patterns] == [("last" if is_front_end else "transform")]
    assert ("transform" in plan.float_fallbacks) == is_front_end


def test_bias_correction_removes_the_mean_error(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    grouped = network.add("Relu", network.conv(network.add("Relu", network.conv("x")), group=2))
    y = network.add("Conv", grouped, network.weights(4, 8, 1, 1), name="without_bias")
    rows = network.add("Reshape", y, np.array([144, 4], np.int64))
    y = network.add("Gemm", network.add("Relu", rows), network.weights(4, 6))
    graph, data = load(network.model(y)), samples(network, 16)
    errors = []
    for is_corrected in (False, True):
        _, quantized = quantize(graph, data, bias_correction=is_corrected)
        outputs = [
            np.mean([run(onnx_format.encode(each), {"x": x})[0] for x in data], axis=(0, 1))
            for each in (graph, quantized)
        ]
        errors.append(abs(outputs[0] - outputs[1]).max())
    assert errors[1] < 0.5 * errors[0]


def test_sum_of_two_products(tmp_path: Path) -> None:
    """A recurrent cell: ONNX Runtime must not compute the sum as a Gemm in float."""
    network = Network(1, 16)
    left = network.add("MatMul", "x", network.weights(16, 10))
    right = network.add("MatMul", network.add("Tanh", "x"), network.weights(16, 10))
    y = network.add("Add", network.add("Add", left, right), network.weights(1, 10))
    check(network, y, int8={"MatMulIntegerToFloat": 2, "Gemm": 0}, folder=tmp_path)


def test_values_may_have_the_names_of_output_indices(tmp_path: Path) -> None:
    """Values of models that were TensorFlow graphs are named ``relu:0``."""
    network = Network(*IMAGE)
    names = network.add("Split", network.conv("x"), np.array([4, 4], np.int64), outputs=2, axis=1)
    network.conv(network.add("Concat", network.add("Relu", names[0]), names[1], axis=1), name="y")
    data = network.model("y").SerializeToString()
    expected = qk.quantize(onnx_format.decode(data), samples(network), runs=0)

    values = onnx_format.decode(data).nodes
    renamed = rename_values(data, {name: f"v:{number}" for number, name in enumerate([*values, names[1]])})
    outputs = [edge.node for edge in onnx_format.decode(renamed).outputs]
    files = {"save_plan": tmp_path / "p.json", "save_ranges": tmp_path / "r.json"}
    result = qk.quantize(onnx_format.decode(renamed), samples(network), runs=0, **files)
    again = qk.quantize(
        qk.load(onnx_format.decode(renamed), outputs=outputs),
        plan=tmp_path / "p.json",
        ranges=tmp_path / "r.json",
        runs=0,
    )
    assert again.conversion.quantized == result.conversion.quantized
    assert result.conversion.quantized.op_counts == expected.conversion.quantized.op_counts
    assert sorted(result.ranges.ranges.values()) == sorted(expected.ranges.ranges.values())


def rename_values(data: bytes, names: dict[str, str]) -> bytes:
    model = onnx.load_from_string(data)
    for node in model.graph.node:
        node.input[:], node.output[:] = ([names.get(name, name) for name in part] for part in (node.input, node.output))
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer, *model.graph.value_info):
        value.name = names.get(value.name, value.name)
    return bytes(model.SerializeToString())


def test_sequences_of_several_lengths() -> None:
    """The axes of attention scores are positions, and not channels."""
    network = Network(1, "length", 16)
    y = network.add("MatMul", network.add("MatMul", "x", network.add("Transpose", "x", perm=[0, 2, 1])), "x")
    data = [np.ones((1, length, 16), np.float32) for length in (5, 7, 3)]
    _, quantized = quantize(load(network.model(y)), data)
    (result,) = run(onnx_format.encode(quantized), {"x": data[1]})
    np.testing.assert_allclose(result, np.full((1, 7, 16), 7 * 16), rtol=0.02)


def test_outputs_of_several_lengths_are_compared(tmp_path: Path) -> None:
    network = Network(1, "length", 16)
    onnx.save(network.model(network.add("MatMul", "x", network.weights(16, 4), name="y")), tmp_path / "float.onnx")
    data = [{"x": np.random.default_rng(length).random((1, length, 16), np.float32)} for length in (5, 7, 3)]
    result = qk.quantize(tmp_path / "float.onnx", data, target="onnx", runs=0)
    sqnr_of_outputs = result.report.accuracy.sqnr
    assert sqnr_of_outputs is not None
    assert sqnr_of_outputs.sqnr["y"] > 30


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize(
    ("op", "constants"),
    [
        ("Conv", [np.zeros((0, 8, 3, 3), np.float32)]),
        ("Conv", [np.float32(1)]),
        ("Conv", [np.ones((4, 8, 1, 1), np.float32), np.ones(3, np.float32)]),
        ("Gemm", [np.ones((2, 3, 4), np.float32)]),
        ("ConvTranspose", [np.ones((8, 4), np.float32)]),
        ("MatMul", [np.ones(12, np.float32)]),
        ("LSTM", [np.ones((1, 4), np.float32), np.float32(1)]),
        ("Upsample", []),
        ("Einsum", []),
    ],
)
def test_invalid_nodes_stay_float(op: str, constants: list[np.ndarray], weights_only: bool) -> None:
    """An invalid node stays float: the runtime names the error of the file."""
    network = Network(*IMAGE, opset=9)
    y = network.add(op, "x", *constants, name="y")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", y)]
    graph = helper.make_graph(network.nodes, "invalid", infos[:1], infos[1:], network.constants)
    scheme = Scheme(weights_only=weights_only)
    prepared = prepare(load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)])), scheme)
    plan = annotate(prepared, scheme)
    assert plan.patterns == ()
    assert onnx_format.encode(convert(prepared, plan, Ranges({})))


@pytest.mark.parametrize(
    "attrs",
    [{"strides": [2]}, {"strides": 2}, {"group": 3}, {"group": 0}, {"pads": [1, 1]}, {"dilations": [1, 1, 1]}],
)
def test_invalid_transposed_convolutions_stay(attrs: dict[str, Any]) -> None:
    network = Network(*IMAGE)
    network.add("ConvTranspose", "x", network.weights(8, 4, 2, 2), name="y", **attrs)
    graph = helper.make_graph(network.nodes, "invalid", [], [], network.constants)
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    graph.input.append(info[0])
    graph.output.append(info[1])
    prepared = prepare(load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), Scheme())
    assert prepared["y"].op == "ConvTranspose"


@pytest.mark.parametrize("equation", ["nchw,cd->ndhw", "nchw,cdk->ndhw", "nchw"])
def test_invalid_einsums_stay(equation: str) -> None:
    network = Network(*IMAGE)
    y = network.add("Einsum", "x", network.weights(8), equation=equation)
    graph = helper.make_graph(network.nodes, "invalid", [], [], network.constants)
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE))
    graph.output.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, None))
    prepared = prepare(load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), Scheme())
    assert prepared[y].op == "Einsum"


def test_second_operand_of_a_product_is_signed() -> None:
    network = Network(*ROWS)
    key = network.add("Transpose", network.add("Tanh", "x"), perm=[0, 2, 1])
    y = network.add("MatMul", "x", key)
    plan = annotate(load(network.model(y)))
    assert {str(edge): str(spec) for edge, spec in plan.activations.items()} == {
        "x": "quint8 affine",
        key: "qint8 symmetric reduce_range",
    }
    assert key in plan.float_fallbacks, "the transposition of a float tensor is float"


@pytest.mark.parametrize("has_other_consumer", [False, True])
def test_pool_of_a_float_tensor_is_float(has_other_consumer: bool) -> None:
    """Its output has fewer values to quantize, unless an int8 layer needs the input as well."""
    network = Network(*IMAGE)
    x = network.add("Tanh", "x", name="float")
    y = network.conv(network.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], name="pool"))
    outputs = [y, network.conv(x)] if has_other_consumer else [y]
    plan = annotate(load(network.model(*outputs)))
    assert (Edge("float") in plan.activations) == has_other_consumer
    assert plan.pass_through == (("pool",) if has_other_consumer else ())


def test_residual_of_convolutions(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.add("Relu", network.conv("x"))
    y = network.add("Add", network.conv(x), x)
    y = network.conv(network.add("Relu", y))
    check(network, y, int8={"QLinearConv": 3, "QLinearAdd": 1}, folder=tmp_path)


def test_product_of_convolutions(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    y = network.conv(network.add("Mul", network.conv("x"), network.conv("x")))
    # Both factors are one convolution.
    check(network, y, int8={"QLinearConv": 2, "Split": 1, "QLinearMul": 1}, folder=tmp_path)


def test_concatenated_tensors_with_other_consumers_have_ranges_of_their_own(tmp_path: Path) -> None:
    """Other consumers need the precision of a narrow tensor; the values that are only joined are rounded once."""
    network = Network(*IMAGE)
    wide = network.add("Conv", "x", 100 * network.weights(4, 8, 1, 1), name="wide")
    narrow = network.conv("x", 4)
    joined = network.add("Concat", wide, narrow, axis=1, name="joined")
    y, z = network.conv(joined), network.add("Conv", narrow, network.weights(4, 4, 1, 1))
    plan = check(network, y, z, int8={"QLinearConv": 4, "Concat": 1, "QuantizeLinear": 2}, folder=tmp_path)
    assert plan.groups == (frozenset({Edge("wide"), Edge("joined")}),)


@pytest.mark.parametrize(
    ("runtime", "channels", "op"),
    [("auto", 8, "ConvTranspose"), ("auto", 128, "DepthToSpace"), ("openvino", 128, "ConvTranspose")],
)
def test_transposed_convolution_is_concatenated_in_int8(runtime: str, channels: int, op: str, tmp_path: Path) -> None:
    """OpenVINO has an int8 kernel of transposed convolutions, ONNX Runtime one of their lowered form."""
    network = Network(*IMAGE)
    skip = network.add("Relu", network.conv("x"), name="skip")
    pool = network.add("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2])
    weights, wide = network.weights(channels, 8, 2, 2), network.conv(pool, channels)
    up = network.add("ConvTranspose", wide, weights, network.weights(8), strides=[2, 2], name="up")
    joined = network.add("Concat", up, skip, axis=1, name="joined")
    y = network.add("Conv", joined, network.weights(4, 16, 1, 1))
    output = tmp_path / "y.onnx"
    model = network.model(y)
    result = qk.quantize(load(model), samples(network), runtime=runtime, runs=0, output=output)
    assert {Edge("up"), Edge("joined")} <= result.plan.group_of(Edge("joined"))
    assert result.conversion.quantized["up"].op == op
    feeds = {"x": samples(network, 9)[-1]}
    (expected,), (actual,) = run(model.SerializeToString(), feeds), run(output.read_bytes(), feeds)
    assert sqnr(expected, actual) > 28


@pytest.mark.parametrize(("sizes", "count"), [((1, 4, 2), 1), ((1, 4, 16), 2), ((15, 15), 2)])
def test_branches_with_few_channels_are_one_convolution(sizes: tuple[int, ...], count: int, tmp_path: Path) -> None:
    """A block of 16 channels is computed together: two blocks for 1 + 4 and 16 channels, and for 15 + 15."""
    network = Network(*IMAGE)
    x, outputs = network.add("Relu", network.conv("x")), list[str]()
    for index, size in enumerate(sizes):
        # The ranges and zero points of the branches differ, and depthwise layers pad with them.
        shift = (index + network.weights(size)).astype(np.float32)
        branch = network.add("Conv", x, 4**index * network.weights(size, 8, 1, 1), shift)
        kernel, pads = network.weights(size, 1, 3, 3), [1, 1, 1, 1]
        outputs.append(network.add("Conv", branch, kernel, -shift, pads=pads, group=size))
    int8 = {"QLinearConv": 1 + 2 * count, "Conv": 0, "Split": int(count < len(sizes))}
    check(network, *outputs, int8=int8, folder=tmp_path)


@pytest.mark.parametrize("activation", ["", "Relu"])
def test_merged_branches_keep_their_integers(activation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No range changes without depthwise layers. A Relu with the zero point of the least integer has no effect."""
    network, results = Network(*IMAGE), []
    x = network.add("Relu", network.conv("x"))
    branches = [network.add("Conv", x, 2**i * network.weights(4, 8, 1, 1), network.weights(4)) for i in range(3)]
    if activation:
        branches = [network.add(activation, each) for each in branches]
    y = network.add("Conv", network.add("Concat", *branches, axis=1), network.weights(8, 12, 1, 1), network.weights(8))
    outputs = [network.add("Conv", each, network.weights(8, 4, 1, 1), network.weights(8)) for each in branches]
    model, feeds, path = network.model(y, *outputs), {"x": samples(network, 9)[-1]}, tmp_path / "y.onnx"
    for count in (1, 3):
        graph = quantize(load(model), samples(network))[1]
        results.append(run(onnx_format.encode(graph), feeds, path))
        ops = Counter(node.op_type for node in onnx.load(path).graph.node)
        assert (ops["QLinearConv"], ops["Relu"]) == (5 + count, 0)
        monkeypatch.setattr(target, "merge_branches", lambda graph: graph)
    for merged, separate in zip(*results, strict=True):
        np.testing.assert_array_equal(merged, separate)


def test_merged_branches_have_float_outputs(tmp_path: Path) -> None:
    """Float outputs in OpenVINO's file, and other outputs next to merged ones."""
    network = Network(*IMAGE)
    x = network.add("Relu", network.conv("x"))
    branches = [network.add("Conv", x, network.weights(2, 8, 1, 1), network.weights(2)) for _ in range(3)]
    outputs = [network.add("Sigmoid", branches[0]), network.add("Tanh", branches[1]), branches[2]]
    model, feeds, path = network.model(*outputs), {"x": samples(network, 9)[-1]}, tmp_path / "y.onnx"
    qk.quantize(load(model), samples(network), runtime="openvino", runs=0, output=path)
    ops = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert (ops["Conv"], ops["Split"]) == (3, 1)
    for expected, actual in zip(run(model.SerializeToString(), feeds), run(path.read_bytes(), feeds), strict=True):
        assert sqnr(expected, actual) > 28


def test_branches_with_a_fused_activation_are_not_merged(tmp_path: Path) -> None:
    """ONNX Runtime fuses a Clip between a convolution and a quantization, but not after a Split."""
    network, outputs = Network(*IMAGE), list[str]()
    x = network.add("Relu", network.conv("x"))
    for _ in range(3):
        branch = network.add("Conv", x, network.weights(4, 8, 1, 1), network.weights(4))
        clip = network.add("Clip", branch, np.float32(0), np.float32(6))
        outputs.append(network.add("Conv", clip, network.weights(8, 4, 1, 1), network.weights(8)))
    check(network, *outputs, int8={"QLinearConv": 7, "Clip": 0, "Split": 0}, folder=tmp_path)


@pytest.mark.parametrize("op", ["Conv", "InstanceNormalization"])
def test_layers_whose_values_subgraphs_capture_keep_their_names(op: str, tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.add("Relu", network.conv("x"))
    values = [network.add("Conv", x, network.weights(4, 8, 1, 1), network.weights(4)) for _ in range(3)]
    if op == "InstanceNormalization":
        values = [network.add(op, each, network.weights(4), network.weights(4)) for each in values]
    outputs = [network.add("Conv", each, network.weights(8, 4, 1, 1), network.weights(8)) for each in values]
    flag = network.add("Greater", network.add("ReduceMax", x, keepdims=0), np.float32(0))
    info = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branches = {
        name: helper.make_graph([helper.make_node(inner, [values[-1]], ["z"])], name, [], [info])
        for name, inner in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    outputs.append(network.add("If", flag, **branches))
    model, feeds, path = network.model(*outputs), {"x": samples(network, 9)[-1]}, tmp_path / "y.onnx"
    qk.quantize(load(model), samples(network), runs=0, output=path)
    for expected, actual in zip(run(model.SerializeToString(), feeds), run(path.read_bytes(), feeds), strict=True):
        assert sqnr(expected, actual) > 28


def test_elementwise_ops_between_convolutions(tmp_path: Path) -> None:
    """SiLU, HardSwish and LeakyRelu are int8 between convolutions; an op of another domain is float."""
    network = Network(*IMAGE, domains=("com.microsoft",))
    x = network.conv("x")
    x = network.conv(network.add("Mul", network.add("Sigmoid", x), x))
    x = network.conv(network.add("HardSwish", x))
    x = network.conv(network.add("Gelu", x, domain="com.microsoft"))
    y = network.conv(network.add("LeakyRelu", x, alpha=0.1))
    int8 = {"QLinearConv": 5, "QLinearSigmoid": 1, "QLinearMul": 2, "Clip": 1, "QLinearLeakyRelu": 1}
    plan = check(network, y, int8=int8, folder=tmp_path)
    assert "com.microsoft.Gelu has no int8 form" in plan.float_fallbacks.values()


@pytest.mark.parametrize("target", ["onnx", "tensorflow", "litert"])
@pytest.mark.parametrize("op", ["Celu", "Mish"])
def test_activations_without_int8_kernel_are_float_between_int8_layers(op: str, target: str) -> None:
    network = Network(*IMAGE, opset=18)
    y = network.conv(network.add(op, network.conv("x")))
    result = qk.quantize(load(network.model(y)), samples(network), target=target, runs=0)
    ops = result.report.to_json()["ops"]
    assert ops["Conv" if target == "onnx" else "Conv2D"] == {"int8": 2, "float": 0}
    assert result.report.accuracy.sqnr is not None
    assert result.report.accuracy.sqnr.error < 0.05


def test_float_silu_is_fused(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.conv("x")
    y = network.conv(network.add("Mul", network.add("Sigmoid", x), x))
    check(network, y, int8={"QLinearConv": 2, "QuickGelu": 1}, folder=tmp_path, keep_float=("Sigmoid",))


def test_runtime_chooses_the_form_of_silu(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.conv("x")
    x = network.conv(network.add("Mul", network.add("Sigmoid", x, name="gate"), x))
    network.conv(network.add("HardSwish", x, name="swish"), name="y")
    graph = load(network.model("y"))
    for runtime, is_float in (("openvino", True), ("auto", False)):
        plan = qk.quantize(graph, samples(network), runtime=runtime, runs=0, output=tmp_path / "y.onnx").plan
        assert {"gate", "swish"}.isdisjoint(plan.float_fallbacks) != is_float, runtime
        # OpenVINO's int8 convolution has a float output, too.
        assert {pattern.output for pattern in plan.patterns}.isdisjoint(plan.activations) == is_float, runtime


def test_outputs_are_dequantized_before_a_pixel_shuffle() -> None:
    """OpenVINO would subtract the zero point in images of one channel."""
    network = Network(*IMAGE)
    network.add("DepthToSpace", network.conv("x"), blocksize=2, name="y")
    graph = load(network.model("y"))
    for float_outputs, count in ((False, 1), (True, 0)):
        _, quantized = quantize(graph, samples(network), float_outputs=float_outputs)
        assert quantized.op_counts.get("Max", 0) == count


@pytest.mark.parametrize("is_view", [False, True])
def test_blocks_of_channels_in_the_form_for_onnx_runtime(is_view: bool, tmp_path: Path) -> None:
    network = Network(*IMAGE)
    if is_view:
        parts = network.add("Reshape", network.conv("x"), np.array([1, 2, 2, 2, 12, 12]))
        parts = network.add("Transpose", parts, perm=[0, 1, 4, 2, 5, 3])
        x, least = network.add("Reshape", parts, np.array([1, 2, 24, 24]), name="image"), {"DepthToSpace": 1}
    else:
        weights = network.weights(8, 16, 2, 2)
        x = network.add("ConvTranspose", network.conv("x"), weights, strides=[2, 2], name="image")
        least = {"DepthToSpace": 0, "Transpose": 3}
    network.add("Conv", x, network.weights(4, 2 if is_view else 16, 1, 1), name="y")
    model, output = network.model("y"), tmp_path / "y.onnx"
    result = qk.quantize(load(model), samples(network), runtime="onnxruntime", runs=0, output=output)
    quantized = result.conversion.quantized
    assert {op: quantized.op_counts.get(op, 0) for op in least} == least
    assert "Transpose" not in quantized.op_counts or not is_view
    feeds = {"x": samples(network, 9)[-1]}
    (expected,), (actual,) = run(model.SerializeToString(), feeds), run(output.read_bytes(), feeds)
    assert sqnr(expected, actual) > 28


def test_silu_is_one_float_op_in_the_form_for_onnx_runtime(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.conv("x")
    network.conv(network.add("Mul", network.add("Sigmoid", x, name="gate"), x, name="silu"), name="y")
    graph, plan, feeds = load(network.model("y")), tmp_path / "plan.json", samples(network)
    result = qk.quantize(graph, feeds, runtime="onnxruntime", runs=0, save_plan=plan, output=tmp_path / "y.onnx")
    assert result.plan.float_fallbacks == {"silu": "ONNX Runtime computes SiLU faster in float"}
    quantized = result.conversion.quantized
    assert quantized["silu"].op == "com.microsoft.QuickGelu"
    assert "gate" not in quantized
    assert result.report.census.executed["onnxruntime"] == 1
    assert qk.quantize(graph, feeds, runtime="onnxruntime", runs=0, plan=plan).conversion.quantized == quantized
    qk.quantize(graph, feeds, runs=0, save_plan=plan)
    assert "gate" in qk.quantize(graph, feeds, runtime="onnxruntime", runs=0, plan=plan).conversion.quantized


@pytest.mark.parametrize("size", [0.2, 1.0, 20.0])
def test_gate_of_hard_swish_is_exact(size: float) -> None:
    """Input 3/k (q - k) has the gate clip(q, 0, 2k) / 2k: the output has the errors of the input only."""
    network = Network(*IMAGE)
    network.add("Conv", "x", size * network.weights(8, 8, 3, 3), pads=[1] * 4, name="wide")
    network.conv(network.add("HardSwish", "wide", name="swish"), name="y")
    _, quantized = quantize(load(network.model("y")), samples(network), observer="min_max")
    feeds = {"x": samples(network, 9)[-1]}
    with_inner_outputs = quantized.with_endpoints(None, [Edge("wide/values"), Edge("swish")])
    wide, swish = run(onnx_format.encode(with_inner_outputs), feeds)
    np.testing.assert_allclose(swish, wide * np.clip(wide / 6 + 0.5, 0, 1), atol=1e-5 * size)
    expected, actual = (find_runtime(name).open(quantized).run(feeds)["y"] for name in ("onnxruntime", "openvino"))
    assert sqnr(expected, actual) > 35


def test_part_of_a_float_tensor_has_a_range_of_its_own() -> None:
    network = Network(1, 4, 1, 16)
    part = network.add("Slice", "x", np.array([0], np.int64), np.array([1], np.int64), np.array([1], np.int64))
    network.add("MatMul", part, network.weights(16, 8), name="y")
    graph = prepare(load(network.model("y")), Scheme())
    plan = annotate(graph, Scheme())
    assert list(map(str, plan.activations)) == [part]
    assert plan.float_fallbacks[part] == "the input is float, and may have a wider range than this part"


def test_input_of_hard_swish_has_no_range_below_minus_3() -> None:
    """HardSwish is 0 below -3: the quantized values stand for larger numbers."""
    network = Network(*IMAGE)
    x = network.add("Conv", "x", 20 * network.weights(8, 8, 3, 3), pads=[1] * 4, name="wide")
    y = network.conv(network.add("HardSwish", x))
    _, quantized = quantize(load(network.model(y)), samples(network), observer="min_max")
    scale, zero = (float(quantized[f"wide/{name}"].value.array) for name in ("scale", "zero"))
    assert -zero * scale == pytest.approx(-3, abs=scale)
    assert (255 - zero) * scale > 30


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.5), (-0.5, 0.5)])
def test_clip(low: float, high: float, tmp_path: Path) -> None:
    network = Network(*IMAGE)
    clipped = network.add("Clip", network.conv("x"), np.float32(low), np.float32(high))
    check(network, network.conv(clipped), int8={"QLinearConv": 2}, folder=tmp_path)


def test_pass_through_ops(tmp_path: Path) -> None:
    """Pools and shape ops between layers compute on quantized values: no pair is left between the layers."""
    network = Network(*IMAGE)
    x = network.add("MaxPool", network.conv("x"), kernel_shape=[2, 2], strides=[2, 2])
    x = network.add("Resize", x, "", np.array([1, 1, 2, 2], np.float32), mode="nearest", nearest_mode="floor")
    x = network.add("Slice", x, np.array([0], np.int64), np.array([8], np.int64), np.array([2], np.int64))
    x = network.add("Transpose", x, perm=[0, 2, 3, 1])
    x = network.add("Reshape", x, np.array([1, 96, 8], np.int64))
    left, right = network.add("Split", x, axis=1, outputs=2)
    x = network.add("Concat", left, right, axis=2)
    x = network.add("Unsqueeze", x, np.array([1], np.int64))
    x = network.add("Squeeze", x, np.array([1], np.int64))
    x = network.add("Gather", x, np.array([0, 3, 5], np.int64), axis=1)
    y = network.add("MatMul", x, network.weights(16, 4))
    plan = check(network, y, int8={"QLinearConv": 1, "MatMulIntegerToFloat": 1, "DequantizeLinear": 0}, folder=tmp_path)
    assert len(plan.pass_through) == 10


def test_average_pools_are_float_in_onnx_runtime_except_global_ones(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.conv(network.add("AveragePool", network.conv("x"), kernel_shape=[3, 3]))
    y = network.conv(network.add("GlobalAveragePool", x), size=1)
    check(network, y, int8={"QLinearConv": 3, "AveragePool": 1, "QLinearGlobalAveragePool": 1}, folder=tmp_path)


def test_float_consumers_of_a_float_tensor_keep_it() -> None:
    network = Network(*ROWS)
    x = network.add("Tanh", "x", name="tanh")
    y, z = network.add("MatMul", x, network.weights(16, 4)), network.add("Exp", x, name="exp")
    _, quantized = quantize(load(network.model(y, z)), samples(network))
    assert quantized["exp"].inputs == (("tanh", 0),)
    assert quantized[quantized[y].inputs[0].node].op == "DequantizeLinear"


def test_quantized_output_keeps_its_name_and_its_other_consumers(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.conv("x", name="inner")
    y = network.conv(x, name="last")
    plan = check(network, "inner", "last", int8={"QLinearConv": 2}, folder=tmp_path)
    assert {"inner", "last"} <= {edge.node for edge in plan.activations}
    assert y == "last"


def test_everything_else_of_the_file_stays() -> None:
    network = Network("n", 8, "h", "w", domains=("com.microsoft",))
    y = network.add("Gelu", network.conv("x"), domain="com.microsoft", name="y")
    model = network.model(y)
    model.metadata_props.add(key="task", value="a test")
    model.graph.node[0].doc_string = "the first layer"
    _, quantized = quantize(load(model), [np.ones((1, 8, 5, 7), np.float32)])
    after = onnx.load_from_string(onnx_format.encode(quantized))
    assert after.metadata_props == model.metadata_props
    assert onnx_format.opsets(quantized) == {"": OPSET, "com.microsoft": 1}
    assert (after.producer_name, after.doc_string) == ("test", "network")
    assert after.graph.input == model.graph.input
    assert after.graph.output == model.graph.output
    nodes = {node.name: node for node in after.graph.node}
    assert nodes["node_y"] in after.graph.node
    assert nodes[model.graph.node[0].name].doc_string == "the first layer"
    assert nodes[model.graph.node[0].name].output == model.graph.node[0].output


def test_layers_below_subgraphs_stay_float(tmp_path: Path) -> None:
    network = Network(*ROWS)
    x = network.add("MatMul", "x", network.weights(16, 16), name="first")
    branches = []
    for op in ("Relu", "Neg"):
        node = helper.make_node("MatMul", ["first", "w"], ["product"])
        result = helper.make_node(op, ["product"], [f"{op}_out"])
        output = helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, None)
        weights = numpy_helper.from_array(network.weights(16, 16), "w")
        branches.append(helper.make_graph([node, result], op, [], [output], [weights]))
    y = network.add("If", np.array(True), then_branch=branches[0], else_branch=branches[1])
    plan = check(network, y, int8={"MatMulIntegerToFloat": 1}, folder=tmp_path)
    reason = "the layers of its subgraphs stay float: product (MatMul), product (MatMul)"
    assert plan.float_fallbacks[y] == reason
    assert x == "first"


def test_opset_is_raised_for_scales_per_channel(tmp_path: Path) -> None:
    """Opset 9: Upsample, Clip, Pad, Slice, Split, Squeeze and Softmax have other forms in opset 13."""
    network = Network(*IMAGE, opset=9)
    x = network.conv("x")
    x = network.conv(network.add("Upsample", x, np.array([1, 1, 2, 2], np.float32), mode="nearest"))
    x = network.conv(network.add("Clip", x, min=-1.0, max=1.0))
    x = network.conv(network.add("Pad", x, pads=[0, 0, 1, 0, 0, 0, 0, 1], mode="constant", value=0.5))
    x = network.conv(network.add("Slice", x, starts=[1, 0], ends=[20, 9], axes=[2, 3]))
    x, _ = network.add("Split", x, axis=2, split=[9, 10], outputs=2)
    x = network.conv(network.add("Unsqueeze", network.add("Squeeze", x, axes=[0]), axes=[0]))
    y = network.add("Softmax", x, axis=1)
    check(network, y, int8={"QLinearConv": 6}, folder=tmp_path)
    _, quantized = quantize(load(network.model(y)), samples(network))
    assert onnx_format.opsets(quantized)[""] == 13


def test_report_states_what_the_runtime_computes_in_int8() -> None:
    """ONNX Runtime has no int8 kernel of transposed convolutions."""
    network = Network(*IMAGE)
    y = network.add("ConvTranspose", network.conv("x"), network.weights(8, 8, 4, 4), pads=[1] * 4, strides=[2, 2])
    _, quantized = quantize(load(network.model(y)), samples(network))
    macs = 12 * 12 * 8 * 8 * np.array([9, 16])
    expected = pytest.approx(macs[0] / macs.sum())
    assert executed_int8_fractions(quantized, ["onnxruntime"]) == {"onnxruntime": expected}


def test_openvino_computes_convolutions_and_products_in_int8() -> None:
    if not find_runtime("openvino").available().ok:
        pytest.skip(find_runtime("openvino").available().detail)
    network = Network(*IMAGE)
    x = network.conv(network.add("HardSwish", network.conv("x")))
    y = network.add("MatMul", network.add("Reshape", x, np.array([8, 144], np.int64)), network.weights(144, 10))
    _, quantized = quantize(load(network.model(y)), samples(network))
    assert executed_int8_fractions(quantized, ["openvino"]) == {"openvino": 1.0}


def test_weights_alone(tmp_path: Path) -> None:
    network = Network(*IMAGE)
    x = network.conv("x")
    x = network.add("Reshape", x, np.array([12, 1, 96], np.int64))
    weights = (np.stack([network.weights(4 * 5, size)]) for size in (96, 5))
    x, _, _ = network.add("LSTM", x, *weights, hidden_size=5, outputs=3)
    y = network.add("MatMul", x, network.weights(5, 7))
    model = network.model(y)
    onnx.save(model, tmp_path / "float.onnx")
    output = tmp_path / "int8.onnx"
    result = qk.quantize(tmp_path / "float.onnx", target="onnx", weights_only=True, runs=0, output=output)
    stored = onnx.load(output)
    assert sum(tensor.data_type == TensorProto.INT8 for tensor in stored.graph.initializer) == 4
    assert len(result.plan.weights) == 4
    feeds = {"x": samples(network)[0]}
    (expected,), (actual,) = run(model.SerializeToString(), feeds), run(stored.SerializeToString(), feeds)
    assert sqnr(expected, actual) > 30


@pytest.mark.parametrize("runtime", ["auto", "reference"])
def test_onnx_models_stay_onnx_models_in_every_runtime(runtime: str, tmp_path: Path) -> None:
    network = Network(*IMAGE)
    onnx.save(network.model(network.conv("x", name="y")), tmp_path / "float.onnx")
    samples_ = np.concatenate(samples(network))
    result = qk.quantize(tmp_path / "float.onnx", samples_, target="onnx", runs=0, runtime=runtime)
    assert result.conversion.graph.dialect == "onnx"
    assert [str(edge) for edge in result.conversion.graph.outputs] == ["y"]


def test_macs_are_those_of_a_sample(tmp_path: Path) -> None:
    """Unknown sizes of the inputs are those of the data."""
    network = Network("n", 8, "h", "w")
    network.inputs["factor"] = ()
    y = network.add("Mul", network.conv("x"), "factor", name="y")
    onnx.save(network.model(y), tmp_path / "float.onnx")
    image = np.random.default_rng(0).random((1, 8, 5, 7), np.float32)
    data = [{"x": image, "factor": np.float32(2)}]
    result = qk.quantize(tmp_path / "float.onnx", data, target="onnx", runs=0)
    assert result.report.census.int8_macs == 9 * 8 * 8 * 5 * 7


@pytest.mark.parametrize("batch", [1, 4, 8, "rows"])
@pytest.mark.parametrize("form", ["products", "relu", "relu6", "equal biases", "gemm", "biases"])
def test_chains_of_matrix_products_agree_in_all_runtimes(batch: int | str, form: str) -> None:
    """Regression: OpenVINO quantized the int32 sums of a fused chain as if they were floats, with errors of 1e10."""
    network = Network(batch, 16)
    x = "x"
    for size, outputs in ((16, 24), (24, 8), (8, 10)):
        weights = network.weights(size, outputs)
        bias = network.weights(1, outputs)[0] if form == "biases" else np.full(outputs, 0.3, np.float32)
        x = network.add("Gemm" if form == "gemm" else "MatMul", x, weights)
        if "biases" in form:
            x = network.add("Add", x, bias)
        if form in ("relu", "equal biases", "biases") and outputs != 10:
            x = network.add("Relu", x)
        if form == "relu6" and outputs != 10:
            x = network.add("Clip", x, np.float32(0), np.float32(6))
    graph = load(network.model(x))
    rows = 8 if batch == "rows" else batch
    data = [np.random.default_rng(seed).normal(0, 1, (rows, 16)).astype(np.float32) for seed in range(8)]
    for dialect in (graph, as_tensorflow(graph)):
        _, quantized = quantize(dialect, data)
        ((_, expected),) = find_runtime("onnxruntime").open(graph).run({"x": data[0]}).items()
        for name in ("onnxruntime", "openvino"):
            if find_runtime(name).available().ok:
                ((_, actual),) = find_runtime(name).open(quantized).run({"x": data[0]}).items()
                assert sqnr(expected, actual) > 24, (name, dialect.dialect)


def test_only_chains_of_two_matrix_products_are_separated() -> None:
    single, chain, batches = Network(4, 16), Network(4, 16), Network(2, 4, 16)
    cases = [(single, 1, 0), (chain, 3, 2), (batches, 3, 0)]
    for network, count, separated in cases:
        x = "x"
        for _ in range(count):
            x = network.add("MatMul", x, network.weights(16, 16))
        _, quantized = quantize(load(network.model(x)), samples(network))
        assert quantized.op_counts.get("LeakyRelu", 0) == separated


@pytest.mark.engine
def test_negative_values_have_a_zero_point_in_tensorflow(tmp_path: Path) -> None:
    """A symmetric range that suits the large values of a SiLU would clip its small negative ones."""
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    network = Network(*IMAGE)
    x = network.conv("x")
    silu = network.add("Mul", x, network.add("Sigmoid", x))
    graph, plan = load(network.model(network.conv(silu))), tmp_path / "plan.json"
    result = qk.quantize(graph, samples(network), target="tensorflow", runs=0, save_plan=plan)
    spec = result.plan.activations[result.plan.patterns[-1].input]
    assert str(spec) == "quint8 affine"
    again = qk.quantize(graph, samples(network), target="tensorflow", runs=0, plan=plan)
    assert again.conversion.quantized == result.conversion.quantized
