"""Conversion of ONNX graphs to TensorFlow: equal outputs, and few transposes."""

import json
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import quantkit as qk
from quantkit.convert import tensorflow_to_onnx
from quantkit.convert.onnx_to_tensorflow import as_tensorflow, convert
from quantkit.convert.onnx_to_tensorflow.translator import OnnxTranslator
from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.recipes import rewrite
from quantkit.runtimes import find_runtime

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"),
]
RANDOM = np.random.default_rng(5)
IMAGE = RANDOM.normal(size=(2, 4, 9, 7)).astype(np.float32)
ROWS = RANDOM.normal(size=(3, 6)).astype(np.float32)


def weights(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def graph_of(x: Array, nodes: list[Node], constants: Mapping[str, Array]) -> Graph:
    """Return a graph with input ``x``, a dynamic batch, and the last node as output."""
    extra = onnx.header({nodes[-1].name: (DType.FLOAT, Shape(None))})
    absent = [onnx.ABSENT] if any(Edge("") in node.inputs for node in nodes) else []
    return Graph.of(
        [
            *absent,
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, *x.shape[1:]))}),
            *(Node(name, "Constant", attrs={"value": Tensor.of(values)}) for name, values in constants.items()),
            *nodes,
        ],
        ["x"],
        [nodes[-1].name],
        dialect="onnx",
        extra=extra,
    )


def node(name: str, op: str, *inputs: str, **attrs: Attr) -> Node:
    return Node(name, op, tuple(map(Edge, inputs)), attrs=attrs)


def run_both(graph: Graph, x: Array) -> tuple[Array, Array, Graph]:
    """Return the outputs of ONNX Runtime and of the converted graph, and the converted graph."""
    converted = convert(graph)
    assert converted.dialect == "tensorflow"
    runtime = "tensorflow" if find_runtime("tensorflow").available().ok else "reference"
    with qk.open_session(graph, "onnxruntime") as session:
        (expected,) = session.run({"x": x}).values()
    with qk.open_session(converted, runtime) as session:
        (result,) = session.run({"x": x}).values()
    return expected, result, converted


IMAGE_OPS: dict[str, tuple[list[Node], dict[str, Array]]] = {
    "conv": ([node("y", "Conv", "x", "w")], {"w": weights(5, 4, 3, 3)}),
    "conv_half_weights": (
        [node("f", "Cast", "w", to=1), node("y", "Conv", "x", "f")],
        {"w": weights(5, 4, 3, 3).astype(np.float16)},
    ),
    "conv_transpose_half_weights": (
        [node("f", "Cast", "w", to=1), node("y", "ConvTranspose", "x", "f")],
        {"w": weights(4, 5, 3, 3).astype(np.float16)},
    ),
    "conv_same": ([node("y", "Conv", "x", "w", "b", pads=(1, 1, 1, 1))], {"w": weights(5, 4, 3, 3), "b": weights(5)}),
    "conv_stride": (
        [node("y", "Conv", "x", "w", "b", pads=(1, 1, 1, 1), strides=(2, 2))],
        {"w": weights(5, 4, 3, 3), "b": weights(5)},
    ),
    "conv_odd_pads": (
        [node("y", "Conv", "x", "w", pads=(0, 2, 1, 0), dilations=(2, 1))],
        {"w": weights(5, 4, 3, 2)},
    ),
    "conv_same_upper": (
        [node("y", "Conv", "x", "w", auto_pad=b"SAME_UPPER", strides=(2, 2))],
        {"w": weights(5, 4, 4, 2)},
    ),
    "conv_same_lower": (
        [node("y", "Conv", "x", "w", auto_pad=b"SAME_LOWER", strides=(2, 2))],
        {"w": weights(5, 4, 4, 2)},
    ),
    "depthwise": ([node("y", "Conv", "x", "w", group=4, pads=(1, 1, 1, 1))], {"w": weights(8, 1, 3, 3)}),
    "max_pool": ([node("y", "MaxPool", "x", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))], {}),
    "max_pool_of_relu": (
        [
            node("r", "Relu", "x"),
            node("y", "MaxPool", "r", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 0, 0)),
        ],
        {},
    ),
    "max_pool_up": ([node("y", "MaxPool", "x", kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1)], {}),
    "average_pool": ([node("y", "AveragePool", "x", kernel_shape=(3, 3), pads=(1, 1, 1, 1))], {}),
    "average_with_pads": (
        [node("y", "AveragePool", "x", kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1)],
        {},
    ),
    "global_average": ([node("y", "GlobalAveragePool", "x")], {}),
    "selu": ([node("y", "Selu", "x")], {}),
    "global_then_flat": (
        [node("p", "GlobalAveragePool", "x"), node("f", "Flatten", "p"), node("y", "Gemm", "f", "w", "b", transB=1)],
        {"w": weights(3, 4), "b": weights(3)},
    ),
    "flat_image": (
        [node("c", "Relu", "x"), node("f", "Flatten", "c"), node("y", "MatMul", "f", "w")],
        {"w": weights(252, 3)},
    ),
    "reduced": (
        [node("c", "Conv", "x", "w"), node("y", "ReduceMean", "c", axes=(2, 3), keepdims=0)],
        {"w": weights(5, 4, 1, 1)},
    ),
    "batch_norm": (
        [node("y", "BatchNormalization", "x", "s", "b", "m", "v", epsilon=0.25)],
        {"s": weights(4), "b": weights(4), "m": weights(4), "v": np.abs(weights(4))},
    ),
    "per_channel": (
        [node("c", "Conv", "x", "w"), node("m", "Mul", "c", "s"), node("y", "Add", "t", "m")],
        {"w": weights(5, 4, 1, 1), "s": weights(5, 1, 1), "t": weights(1, 5, 9, 7)},
    ),
    "residual": (
        [node("c", "Conv", "x", "w", pads=(1, 1, 1, 1)), node("a", "Add", "c", "x"), node("y", "Relu", "a")],
        {"w": weights(4, 4, 3, 3)},
    ),
    "concat": (
        [node("c", "Conv", "x", "w"), node("p", "Relu", "x"), node("y", "Concat", "c", "p", "x", axis=1)],
        {"w": weights(5, 4, 1, 1)},
    ),
    "softmax": ([node("c", "Conv", "x", "w"), node("y", "Softmax", "c", axis=1)], {"w": weights(5, 4, 1, 1)}),
    "pads": (
        [node("c", "Relu", "x"), node("y", "Pad", "c", "p", "v")],
        {"p": integers(0, 0, 1, 2, 0, 0, 0, 1), "v": np.array(3, np.float32)},
    ),
    "reflected": ([node("y", "Pad", "x", "p", mode=b"reflect")], {"p": integers(0, 0, 1, 2, 0, 0, 0, 1)}),
    "split": (
        [
            node("c", "Conv", "x", "w"),
            Node("s", "Split", (Edge("c"),), attrs={"axis": 1, "_outputs": (b"s", b"t")}),
            Node("y", "Sub", (Edge("s", 1), Edge("s"))),
        ],
        {"w": weights(6, 4, 1, 1)},
    ),
    "lrn": ([node("y", "LRN", "x", size=3, alpha=0.5, bias=2.0)], {}),
    "clips": (
        [
            node("a", "Clip", "x", "zero", "six"),
            node("b", "Clip", "x", "low"),
            node("c", "Clip", "x", "low", "six"),
            node("d", "Clip", "x", "", "six"),
            node("y", "Sum", "a", "b", "c", "d"),
        ],
        {name: np.asarray(value, np.float32) for name, value in (("zero", 0), ("six", 6), ("low", -0.5))},
    ),
    "hard": (
        [
            node("a", "HardSigmoid", "x", alpha=0.25),
            node("b", "HardSwish", "x"),
            node("c", "LeakyRelu", "x", alpha=0.125),
            node("s", "Sub", "a", "b"),
            node("y", "Max", "s", "c"),
        ],
        {},
    ),
    # With oneDNN, TensorFlow replaces scales near 1/6 after a convolution by 1/6.
    "scaled_swishes": (
        [
            node("c", "Conv", "x", "w", "b"),
            node("h", "HardSwish", "c"),
            node("m", "Mul", "h", "scale"),
            node("d", "Conv", "m", "w", "b"),
            node("g", "HardSigmoid", "d", alpha=1 / 6),
            node("p", "Mul", "d", "g"),
            node("q", "Mul", "scale", "p"),
            node("y", "Add", "q", "scale"),
        ],
        {"w": weights(4, 4, 1, 1), "b": weights(4), "scale": np.full((1,), 0.95, np.float32)},
    ),
    # A product of two Relu6 is not a HardSwish.
    "scaled_products": (
        [
            node("a", "Clip", "x", "zero", "six"),
            node("n", "Add", "x", "six"),
            node("b", "Clip", "n", "zero", "six"),
            node("p", "Mul", "a", "b"),
            node("y", "Mul", "p", "scale"),
        ],
        {name: np.asarray(value, np.float32) for name, value in (("zero", 0), ("six", 6), ("scale", 0.16))},
    ),
    "shapes": (
        [
            node("t", "Transpose", "x", perm=(0, 2, 3, 1)),
            node("r", "Reshape", "t", "s"),
            node("u", "Unsqueeze", "r", "one"),
            node("y", "Squeeze", "u", "one"),
        ],
        {"s": integers(0, -1, 4), "one": integers(1)},
    ),
}


@pytest.mark.parametrize("name", IMAGE_OPS)
def test_image_ops_have_equal_outputs(name: str) -> None:
    nodes, constants = IMAGE_OPS[name]
    expected, result, converted = run_both(graph_of(IMAGE, nodes, constants), IMAGE)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert converted.op_counts.get("Transpose", 0) <= 3


def test_upsample_of_an_old_opset_is_a_resize() -> None:
    upsample = node("y", "Upsample", "x", mode=b"nearest", scales=(1.0, 1.0, 2.0, 2.0))
    graph = graph_of(IMAGE, [upsample], {}).with_(extra=onnx.header({"y": (DType.FLOAT, Shape(None))}, opset=8))
    expected, result, _ = run_both(graph, IMAGE)
    assert np.array_equal(result, expected)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("y", "Gemm", "x", "w")], {"w": weights(6, 4)}),
        ([node("m", "MatMul", "x", "w"), node("y", "Softmax", "m")], {"w": weights(6, 4)}),
        (
            [node("s", "Sigmoid", "x"), node("t", "Tanh", "s"), node("y", "Div", "t", "d")],
            {"d": np.abs(weights(6)) + 1},
        ),
        ([node("d", "Dropout", "x"), node("y", "Identity", "d")], {}),
        ([node("y", "ReduceMax", "x", axes=(-1,))], {}),
    ],
)
def test_matrix_ops_have_equal_outputs(nodes: list[Node], constants: dict[str, Array]) -> None:
    expected, result, _ = run_both(graph_of(ROWS, nodes, constants), ROWS)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        ([node("y", "NonZero", "x")], {}, "the op is not supported"),
        ([node("y", "Elu", "x", alpha=0.5)], {}, "Elu requires alpha = 1"),
        ([node("y", "Selu", "x", gamma=1.0)], {}, "Selu requires gamma = 1.050701"),
        ([node("y", "AveragePool", "x", kernel_shape=(3, 3), pads=(0, 0, 2, 2))], {}, "excludes its padding"),
        ([node("a", "Abs", "x"), node("y", "Conv", "x", "a")], {}, "the weights must be constant"),
        ([node("y", "Split", "x", axis=0)], {}, "the sizes of the outputs are unknown"),
    ],
)
def test_error_names_unsupported_node(nodes: list[Node], constants: dict[str, Array], reason: str) -> None:
    with pytest.raises(UnavailableError, match=rf"node 'y' \({nodes[-1].op}\) cannot be converted .*{reason}") as error:
        convert(graph_of(IMAGE, nodes, constants))
    assert error.value.hint


@pytest.mark.parametrize(("before", "pad"), [("Relu", "Pad"), ("Tanh", "PadV2")])
def test_max_pool_of_values_that_are_never_negative_pads_with_zeros(before: str, pad: str) -> None:
    pool = node("y", "MaxPool", "r", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 0, 0))
    *_, graph = run_both(graph_of(IMAGE, [node("r", before, "x"), pool], {}), IMAGE)
    assert {"Pad", "PadV2"} & graph.op_counts.keys() == {pad}


def test_names_are_valid_in_tensorflow() -> None:
    nodes = [node("/layer 1/Relu:0", "Relu", "x"), node("/layer_1/Relu", "Neg", "/layer 1/Relu:0")]
    converted = convert(graph_of(ROWS, nodes, {}))
    assert [str(edge) for edge in converted.outputs] == ["layer_1/Relu"]
    assert len(converted) == 3


def test_a_new_name_visits_no_other_names() -> None:
    """The run time of the conversion is otherwise quadratic in the number of nodes."""

    class Names(dict[str, Any]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("all names are visited")

        values = __iter__  # type: ignore[assignment]

    translator = OnnxTranslator(graph_of(ROWS, [node("y", "Relu", "x")], {}))
    translator.nodes, translator.names = Names(), Names(translator.names)
    for name in ("y", "y_1"):
        translator.types[Edge(name)] = DType.FLOAT
        assert translator.add_node("y", "Relu", [Edge(name)]) == Edge(name)
    assert [translator.name(value) for value in ("y", "y:0", "z 1", "z_1", "x:0")] == [
        "y",
        "y_2",
        "z_1",
        "z_1_1",
        "x_1",
    ]


def test_all_outputs_of_a_node_keep_their_names() -> None:
    split = node("first", "Split", "x", axis=1, **{onnx.OUTPUTS: (b"first", b"second")})
    graph = graph_of(ROWS[:, :4], [split], {}).with_endpoints(None, ["first", "first:1"])
    converted = convert(graph)
    assert [str(edge) for edge in converted.outputs] == ["first", "second"]
    assert all(not converted.node_uses.get(edge.node) for edge in converted.outputs)


@pytest.mark.parametrize("is_quantized", [False, True])
def test_outputs_that_other_nodes_consume_stay_outputs_of_the_file(is_quantized: bool, tmp_path: Path) -> None:
    body = [node("h", "MatMul", "x", "w"), node("logits", "Relu", "h"), node("y", "MatMul", "logits", "v")]
    graph = graph_of(ROWS, body, {"w": weights(6, 8), "v": weights(8, 4)})
    graph = graph.with_endpoints(None, ["logits", "y"]).with_(
        extra=onnx.header({name: (DType.FLOAT, Shape(None)) for name in ("logits", "y")})
    )
    file = tmp_path / "model.pb"
    if is_quantized:
        qk.quantize(graph, [{"x": ROWS}], target="tensorflow", output=file, runs=0)
    else:
        qk.save(convert(graph), file)
    model = qk.load(file)
    assert sorted(map(str, model.graph.outputs)) == ["logits", "y"]
    with qk.open_session(graph, "onnxruntime") as session:
        expected = session.run({"x": ROWS})
    with qk.open_session(
        model.graph, "reference" if not find_runtime("tensorflow").available().ok else "tensorflow"
    ) as session:
        result = session.run({"x": ROWS})
    for name, values in expected.items():
        assert np.abs(result[name] - values).max() < 0.05 * np.abs(values).max()


def test_outputs_of_one_node_stay_outputs_if_one_is_consumed() -> None:
    package = pytest.importorskip("onnx")
    make, info = package.helper.make_node, package.helper.make_tensor_value_info
    nodes = [make("Split", ["x"], ["a", "a:1"], name="a", axis=1), make("Relu", ["a"], ["r"], name="r")]
    outputs = [info(name, 1, (3, 3)) for name in ("a", "a:1", "r")]
    model = package.helper.make_model(
        package.helper.make_graph(nodes, "g", [info("x", 1, (3, 6))], outputs),
        opset_imports=[package.helper.make_opsetid("", 13)],
        ir_version=8,
    )
    converted = convert(onnx.decode(model.SerializeToString()))
    with qk.open_session(converted, "reference") as session:
        first, second, positive = session.run({"x": ROWS}).values()
    assert np.array_equal(first, ROWS[:, :3])
    assert np.array_equal(second, ROWS[:, 3:])
    assert np.array_equal(positive, np.maximum(ROWS[:, :3], 0))


def test_round_trip_adds_no_transposes() -> None:
    before = rewrite(qk.load("digits").graph, "strip_unused_nodes fold_constants fold_old_batch_norms fold_batch_norms")
    after = as_tensorflow(tensorflow_to_onnx.convert(before))
    assert after.op_counts["Conv2D"] == before.op_counts["Conv2D"]
    assert "Transpose" not in after.op_counts
    assert as_tensorflow(after) is after


def test_onnx_model_is_quantized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = [script for script in entry_points(group="console_scripts") if script.name == "quantkit"]
    images = Path(__file__).parents[2] / "assets" / "digits_heldout.npz"
    qk.save(rewrite(qk.load("digits").graph, "fold_constants fold_old_batch_norms"), tmp_path / "float.onnx")
    arguments = ["quantize", str(tmp_path / "float.onnx"), "-o", str(tmp_path / "small.onnx")]
    assert entry.load()([*arguments, "--calibration", str(images), "--limit", "50", "--runs", "0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["quality"]["agreement"]["value"] >= 0.9
    assert {"QuantizeLinear", "DequantizeLinear"} <= qk.load(tmp_path / "small.onnx").graph.op_counts.keys()
