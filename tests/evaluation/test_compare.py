"""Comparison of two versions of a model: pairs of tensors, SQNR and the first bad layer."""

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.errors import CheckError, GraphError, InputError, UsageError
from quantkit.evaluation import EvaluationInterrupted, LayerComparison, compare
from quantkit.evaluation.comparison_samples import RandomSamples
from quantkit.evaluation.graph_tensors import GraphTensors
from quantkit.evaluation.layer_comparison import LEGEND, LayerRow
from quantkit.evaluation.tensor_matching import match_tensors
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ir.text import from_text
from quantkit.progress import Progress
from quantkit.quantization import Scheme, annotate, convert
from quantkit.recipes import rewrite
from quantkit.runtimes.session import RuntimeVersion

ASSETS = Path(__file__).parent.parent.parent / "assets"
FLOAT = {"T": DType.FLOAT}
CONVOLUTION = {"strides": (1, 1, 1, 1), "padding": b"SAME", **FLOAT}
RANDOM = np.random.default_rng(5)
WEIGHTS = [RANDOM.normal(size=shape).astype(np.float32) for shape in ((3, 3, 3, 4), (1, 1, 4, 5), (3, 3, 5, 6))]

DATA = RANDOM.uniform(-1, 1, size=(2, 8, 8, 3)).astype(np.float32)


def build_graph(weights: list[Array] = WEIGHTS, prefix: str = "", **attrs: Any) -> Graph:
    """Build three convolutions with bias and Relu."""
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 8, 8, 3))})]
    at = Edge("x")
    for number, values in enumerate(weights):
        name = f"{prefix}layer_{number}"
        nodes += [
            constant(f"{name}/weights", values),
            constant(f"{name}/offsets", np.linspace(0.1, 0.5, values.shape[3], dtype=np.float32)),
            Node(f"{name}/conv", "Conv2D", (at, Edge(f"{name}/weights")), attrs=CONVOLUTION),
            Node(f"{name}/biased", "BiasAdd", (Edge(f"{name}/conv"), Edge(f"{name}/offsets")), attrs=FLOAT),
            Node(name, "Relu", (Edge(f"{name}/biased"),), attrs=FLOAT),
        ]
        at = Edge(name)
    return Graph.of(nodes, ["x"], [at])


def run(first: Graph, second: Graph, **options: Any) -> LayerComparison:
    limit: dict[str, Any] = {} if "data" in options else {"limit": 2}
    result: LayerComparison = compare(first, second, runtimes=("reference", "reference"), **limit, **options)
    return result


def replace_weights(index: int, values: Array) -> Graph:
    return build_graph([values if number == index else weights for number, weights in enumerate(WEIGHTS)])


def test_equal_graphs_are_equal() -> None:
    result = run(build_graph(), build_graph())
    assert [row.name for row in result.rows if row.op == "Relu"] == ["layer_0", "layer_1", "layer_2"]
    assert all(row.sqnr == inf and row.cosine == pytest.approx(1) and not row.problems for row in result.rows)
    assert result.first_bad is None
    assert result.only_first == ()
    assert "no layer is below 10 dB" in str(result)


def test_models_may_be_names_and_files(tmp_path: Path) -> None:
    path = tmp_path / "folded.pb"
    qk.save(rewrite(qk.load("digits").graph, "strip_unused_nodes fold_old_batch_norms"), path)
    result = qk.compare("digits", path, limit=1, runtimes=("reference", "reference"))
    assert result.models == ("digits", str(path))
    assert result.first_bad is None


def test_missing_data_file_is_rejected() -> None:
    graph = build_graph()
    with pytest.raises(InputError, match=r"x\.npy does not exist"):
        compare(graph, graph, "x.npy")


def test_sqnr_and_cosine_equal_the_formulas() -> None:
    batch = RANDOM.normal(size=(3, 8, 8, 3)).astype(np.float32)
    first, second = build_graph(), replace_weights(1, (WEIGHTS[1] * 1.05).astype(np.float32))
    result = run(first, second, data=[batch[:2], batch[2:]])
    assert result.samples == 3
    rows = {row.name: row for row in result.rows}
    assert rows["layer_0"].sqnr == inf
    with (
        qk.open_session(first.with_endpoints(None, ["layer_1"]), "reference") as session,
        qk.open_session(second.with_endpoints(None, ["layer_1"]), "reference") as other_session,
    ):
        a, b = (
            np.stack([opened.run({"x": row[None]})["layer_1"] for row in batch]).astype(np.float64)
            for opened in (session, other_session)
        )
    noise = (a - b) ** 2
    cosine = (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())
    assert rows["layer_1"].sqnr == pytest.approx(10 * np.log10((a**2).sum() / noise.sum()))
    assert rows["layer_1"].cosine == pytest.approx(cosine)
    by_channel = 10 * np.log10((a**2).sum((0, 1, 2, 3)) / noise.sum((0, 1, 2, 3)))
    assert rows["layer_1"].channel_sqnr == pytest.approx(np.median(by_channel))


def test_first_bad_layer_is_the_changed_layer() -> None:
    result = run(build_graph(), replace_weights(1, WEIGHTS[1][..., ::-1].copy()), data=[DATA])
    assert result.first_bad is not None
    assert result.first_bad.name == "layer_1"
    assert {row.name for row in result.bad} == {"layer_1", "layer_2/conv", "layer_2/biased", "layer_2"}
    assert [row.name for row in result.worst_first][-1].startswith("layer_0")
    document = json.loads(json.dumps(result.to_json()))
    assert document["first_bad"] == "layer_1"
    assert document["layers"][-1]["sqnr"] is None


def test_nan_dead_and_constant_layers_are_reported() -> None:
    broken = WEIGHTS[1].copy()
    broken[0, 0, 1, 2] = np.nan
    result = run(replace_weights(1, broken), replace_weights(1, broken), data=[DATA])
    assert result.first_bad is not None
    assert result.first_bad.name == "layer_1/conv"
    assert result.first_bad.problems == ("NaN in both",)
    result = run(build_graph(), replace_weights(1, broken), data=[DATA])
    assert result.first_bad is not None
    assert result.first_bad.problems == ("NaN in the second",)
    graph = build_graph()
    offsets = constant("layer_1/offsets", np.full(5, -1e6, np.float32))
    silent = graph.with_nodes(offsets if node.name == offsets.name else node for node in graph.nodes.values())
    dead = run(graph, silent.with_endpoints(None, ["layer_1"]), data=[DATA])
    assert dead.first_bad is not None
    assert dead.first_bad.name == "layer_1/biased"
    assert dead.bad[-1].problems == ("dead (all zero) in the second",)
    both = run(silent, silent, data=[DATA])
    assert both.first_bad is None
    assert "layer_1 (Relu): dead (all zero) in both" in both.text(0)


def test_noisy_channels_are_reported() -> None:
    """Rounding to the range of one large channel leaves one quantized value for the others."""
    large = WEIGHTS[2].copy()
    large[..., 0] = np.abs(large[..., 0]) * 2000
    rounded = large.copy()
    rounded[..., 1:] = 0
    result = run(replace_weights(2, large), replace_weights(2, rounded), data=[DATA])
    (row,) = [row for row in result.rows if row.name == "layer_2"]
    assert row.sqnr > 30
    assert row.noisy_channels == 5
    assert result.first_outlier is not None
    assert result.first_outlier.name.startswith("layer_2")
    assert "channel 0 is" in str(result)
    assert result.first_bad is not None
    assert result.first_bad.name.startswith("layer_2")


def test_layers_without_a_common_name_are_matched_by_weights() -> None:
    result = run(build_graph(), build_graph(prefix="tower/"))
    assert [(row.name, row.other) for row in result.rows if row.op == "Relu"] == [
        (f"layer_{number}", f"tower/layer_{number}") for number in range(3)
    ]
    assert all(row.sqnr == inf for row in result.rows)


def test_unrelated_graphs_have_no_tensor_in_common() -> None:
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 3))}),
        Node("y", "Cast", (Edge("x"),), attrs={"SrcT": DType.FLOAT, "DstT": DType.INT32}),
    ]
    with pytest.raises(GraphError, match="no tensor in common"):
        run(build_graph(), Graph.of(nodes, ["x"], ["y"]))


def test_inner_tensors_of_folded_layers_are_not_compared() -> None:
    """A convolution with scaled weights keeps its name but has other outputs."""
    raw = qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph
    recipe = 'strip_unused_nodes(shape="1,16,16,1") fold_constants fold_batch_norms fold_old_batch_norms'
    result = run(raw, rewrite(raw, recipe))
    assert result.first_bad is None
    assert min(row.sqnr for row in result.rows) > 90
    assert "conv/Conv2D" in result.only_first
    assert {"conv", "softmax", "mixed/join"} <= {row.name for row in result.rows}


def test_classic_quantized_tensors_are_dequantized() -> None:
    raw = qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph
    recipe = 'strip_unused_nodes(shape="1,16,16,1") fold_constants fold_batch_norms fold_old_batch_norms'
    folded = rewrite(raw, recipe)
    small = rewrite(folded, "quantize_weights quantize_nodes")
    with np.load(ASSETS / "digits_heldout.npz") as file:
        pixels = file["images"][:2]
    result = run(folded, small, data=[pixels])
    layers = [row for row in result.rows if row.op == "Relu"]
    assert len(layers) == len([node for node in folded.nodes.values() if node.op == "Relu"])
    assert all(15 < row.sqnr < 60 for row in layers)
    assert result.first_bad is None


@pytest.mark.engine
def test_qdq_model_with_channels_first_is_compared() -> None:
    """In a QDQ model the quantized range, which begins at 0, replaces the Relu."""
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    weights = WEIGHTS[0].transpose(3, 2, 0, 1)
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 3, 8, 8))}),
        *(
            Node(name, "Constant", attrs={"value": Tensor.of(values)})
            for name, values in (
                ("w", np.ascontiguousarray(weights)),
                ("b", np.linspace(0.1, 0.5, 4, dtype=np.float32)),
                ("scale", np.float32(0.05)),
                ("zero", np.uint8(0)),
            )
        ),
        Node("layer_0/conv", "Conv", (Edge("x"), Edge("w"), Edge("b")), attrs={"pads": (1, 1, 1, 1)}),
        Node("layer_0/codes", "QuantizeLinear", (Edge("layer_0/conv"), Edge("scale"), Edge("zero"))),
        Node("layer_0/values", "DequantizeLinear", (Edge("layer_0/codes"), Edge("scale"), Edge("zero"))),
    ]
    info = {"layer_0/values": (DType.FLOAT, Shape((1, 4, 8, 8)))}
    small = Graph.of(nodes, ["x"], ["layer_0/values"], dialect="onnx", extra=onnx.header(info))
    first = build_graph(WEIGHTS[:1])
    pairs = {pair.name: str(pair.second.edge) for pair in match_tensors(GraphTensors(first), GraphTensors(small))}
    assert pairs["layer_0"] == "layer_0/values"
    result = compare(first, small, runtimes=("reference", "onnxruntime"), limit=2)
    (row,) = [row for row in result.rows if row.name == "layer_0"]
    assert 30 < row.sqnr < 60
    assert row.channels == 4


def test_different_inputs_are_rejected() -> None:
    result = build_graph()
    both = Graph.of(
        [*result.nodes.values(), Node("z", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1,))})],
        ["x", "z"],
        result.outputs,
    )
    with pytest.raises(UsageError, match="has 1 inputs and the other 2"):
        run(result, both)
    with pytest.raises(UsageError, match="no elements"):
        run(result, result, data=[])


def test_interrupt_keeps_the_finished_samples() -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(EvaluationInterrupted) as stop:
        run(build_graph(), build_graph(), on_progress=interrupt)
    assert stop.value.result.samples == 1


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.pb", tmp_path / "second.pb"
    qk.save(build_graph(), first)
    qk.save(replace_weights(1, -WEIGHTS[1]), second)
    np.save(tmp_path / "data.npy", DATA)
    arguments = ["compare", str(first), str(second), "--runtime", "reference", "--data", str(tmp_path / "data.npy")]
    assert main(arguments) == 0
    assert "first bad layer: layer_1" in capsys.readouterr().out
    assert main([*arguments, "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["samples"], document["random"]) == ("quantkit.compare/2", 2, False)
    assert main([*arguments, "--min-sqnr", "20"]) == 1
    captured = capsys.readouterr()
    assert "tensors are broken or below 20 dB" in captured.err
    assert "quantkit transform --verify finds the step" in captured.err
    assert main(["compare", str(first), str(first), "--structure"]) == 0
    assert capsys.readouterr().out == "Graphs are equal.\n"
    assert main(["compare", str(first), str(second), "--structure"]) == 1
    assert "has attr 'value' with value: float 1x1x4x5" in capsys.readouterr().out
    assert main(["compare", str(first), str(tmp_path / "none.pb"), "--structure"]) == 3
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "invalid",
    [
        Node("w", "Transpose", attrs={"perm": (1, 0)}),
        Node("w", "Transpose", (Edge("c"),), attrs={"perm": (0, 5)}),
        Node("w", "DequantizeLinear", (Edge("c"),)),
        Node("w", "Identity"),
    ],
)
def test_weights_of_invalid_nodes_are_unknown(invalid: Node) -> None:
    c = Node("c", "Constant", attrs={"value": Tensor.of(np.ones((2, 2), np.float32))})
    nodes = [Node("x", "Placeholder"), c, invalid, Node("y", "MatMul", (Edge("x"), Edge("w")))]
    (layer,) = GraphTensors(Graph.of(nodes, ["x"], ["y"], dialect="onnx")).layers
    assert layer.weights is None


def test_random_inputs_flag_only_values_that_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN is a defect for any input; a low SQNR on random inputs is not, and the command prints a warning."""
    result = run(build_graph(), replace_weights(1, -WEIGHTS[1]))
    assert result.is_random
    assert result.first_bad is None
    assert result.below_floor[0].name == "layer_1"
    assert "possibly because of the random inputs" in str(result)
    broken = WEIGHTS[1].copy()
    broken[0, 0, 1, 2] = np.nan
    assert "first bad layer: layer_1/conv (Conv2D): NaN in the second" in str(
        run(build_graph(), replace_weights(1, broken))
    )
    for name, graph in (("first", build_graph()), ("second", replace_weights(1, -WEIGHTS[1]))):
        qk.save(graph, tmp_path / f"{name}.pb")
    arguments = ["compare", str(tmp_path / "first.pb"), str(tmp_path / "second.pb"), "--runtime", "reference"]
    assert main([*arguments, "--limit", "2", "--min-sqnr", "20"]) == 1
    captured = capsys.readouterr()
    assert "random inputs prove little" in captured.out
    assert "hint: random inputs prove little" in captured.err
    assert main([*arguments, "--limit", str(10**14)]) == 2
    assert "at most 10,000 random inputs" in capsys.readouterr().err


def image_graph(dtype: DType) -> Graph:
    """Return a graph whose only input takes images of a dynamic batch."""
    attrs = {"dtype": dtype, "shape": Shape((None, 32, 48, 3))}
    return Graph.of([Node("x", "Placeholder", attrs=attrs), Node("y", "Identity", (Edge("x"),))], ["x"], ["y"])


def test_random_images_are_patches() -> None:
    floats = image_graph(DType.FLOAT)
    with (
        qk.open_session(floats, "reference") as first,
        qk.open_session(image_graph(DType.UINT8), "reference") as second,
    ):
        ((feeds, pixel_feeds),) = RandomSamples(floats, 1, 0).feeds(first, second)
    np.testing.assert_array_equal(feeds["x"], (pixel_feeds["x"].astype(np.float32) - 128) / 128)
    assert feeds["x"].shape == (1, 32, 48, 3)
    neighbours = np.abs(np.diff(feeds["x"], axis=2)).mean()
    assert neighbours < 0.3 * feeds["x"].std(), "most neighbours are alike"


def compare_random(nodes: list[Node], inputs: list[str], *others: Graph, **options: Any) -> LayerComparison:
    """Compare a TensorFlow graph with itself, or with another one, on two random inputs."""
    graph = Graph.of(nodes, inputs, [nodes[-1].name])
    return run(graph, *(others or (graph,)), **options)


def placeholder(name: str, dtype: DType, *sizes: int | None) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": Shape(sizes)})


@pytest.mark.parametrize("classes", [1, 2, 7])
def test_random_ids_are_rows_of_the_table(classes: int) -> None:
    nodes = [
        placeholder("ids", DType.INT64, None, 5),
        constant("table", RANDOM.normal(size=(classes, 4)).astype(np.float32)),
        constant("axis", np.int32(0)),
        Node("y", "GatherV2", (Edge("table"), Edge("ids"), Edge("axis")), attrs=FLOAT),
    ]
    assert [row.sqnr for row in compare_random(nodes, ["ids"]).rows] == [inf]


def test_random_sizes_are_those_of_the_weights() -> None:
    nodes = [
        placeholder("x", DType.FLOAT, None, None),
        placeholder("mask", DType.INT32, None, None),
        constant("w", RANDOM.normal(size=(6, 4)).astype(np.float32)),
        Node("real", "Cast", (Edge("mask"),), attrs={"SrcT": DType.INT32, "DstT": DType.FLOAT}),
        Node("masked", "Mul", (Edge("x"), Edge("real")), attrs=FLOAT),
        Node("y", "MatMul", (Edge("masked"), Edge("w")), attrs=FLOAT),
    ]
    rows = {row.name: row.sqnr for row in compare_random(nodes, ["x", "mask"]).rows}
    assert rows["y"] == inf


def test_random_sizes_of_images_are_those_of_the_other_version() -> None:
    def network(*sizes: int | None) -> list[Node]:
        return [placeholder("x", DType.FLOAT, *sizes), Node("y", "Relu", (Edge("x"),), attrs=FLOAT)]

    fixed = Graph.of(network(1, 40, 24, 3), ["x"], ["y"])
    assert [row.sqnr for row in compare_random(network(None, None, None, 3), ["x"], fixed).rows] == [inf]
    dynamic = Graph.of(network(None, None, None, None), ["x"], ["y"])
    assert [row.sqnr for row in compare_random(network(1, 40, 24, 3), ["x"], dynamic).rows] == [inf]


@pytest.mark.engine
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_random_divisors_are_not_zero(op: str) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    nodes = [
        placeholder("x", DType.INT64, 8),
        placeholder("by", DType.INT64, 8),
        Node("y", op, (Edge("x"), Edge("by"))),
    ]
    graph = Graph.of(nodes, ["x", "by"], ["y"], dialect="onnx", extra=onnx.header({"y": (DType.INT64, Shape((8,)))}))
    result = compare(graph, graph, runtimes=("onnxruntime", "onnxruntime"), limit=2)
    assert [row.sqnr for row in result.rows] == [inf]


def test_inputs_that_cannot_be_random_name_data() -> None:
    attrs = {"SrcT": DType.STRING, "DstT": DType.FLOAT}
    strings = [placeholder("x", DType.STRING, 2), Node("y", "Cast", (Edge("x"),), attrs=attrs)]
    with pytest.raises(UsageError, match="cannot generate random values for input 'x', which takes strings") as caught:
        compare_random(strings, ["x"])
    assert "--data" in caught.value.hint


def test_clamped_values_are_not_compared() -> None:
    """The quantized range before the Relu begins at 0 already, also if an Identity is between them."""
    graph = build_graph(WEIGHTS[:1])
    checked = Node("checked", "CheckNumerics", (Edge("layer_0/biased"),), attrs={**FLOAT, "message": b""})
    passed = Node("passed", "Identity", (Edge("layer_0/biased"),), ("checked",), attrs=FLOAT)
    nodes = [node.with_input(0, "passed") if node.name == "layer_0" else node for node in graph.nodes.values()]
    first = graph.with_nodes([*nodes, checked, passed])
    plan = annotate(graph, Scheme.for_target("eightbit"))
    quantized = convert(graph, plan, qk.calibrate(graph, plan, [DATA], runtime="reference"))
    result = run(first, quantized, data=[DATA])
    assert {row.name for row in result.rows} >= {"layer_0"}
    assert not [row.name for row in result.rows if row.sqnr < 20]


def test_command_compares_on_images(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "digits@reference", "digits@reference", "--data", str(ASSETS), "--limit", "2"]
    assert main([*arguments, "--min-sqnr", "100"]) == 0
    assert "2 samples" in capsys.readouterr().out


def test_probabilities_have_no_outlier_channel() -> None:
    bias = constant("bias", np.array([50, 0, 0, 0, 0, 0], np.float32))
    louder = Node("louder", "AddV2", (Edge("layer_2"), Edge("bias")), attrs={"T": DType.FLOAT})
    sure = Node("sure", "Softmax", (Edge("louder"),), attrs={"T": DType.FLOAT})
    graph = Graph.of([*build_graph().nodes.values(), bias, louder, sure], ["x"], ["sure"])
    result = run(graph, graph)
    assert [row.has_outlier_channel for row in result.rows if row.op == "Softmax"] == [False]


def test_order_of_the_table_is_that_of_its_sqnr_column() -> None:
    def row(name: str, sqnr: float, channel_sqnr: float, *, is_broken: bool = False) -> LayerRow:
        return LayerRow(name, "Relu", name, sqnr, channel_sqnr, 4, 0, 1.0, 0.0, is_broken=is_broken)

    rows = (row("a", 30, 2), row("b", 20, 25), row("c", 40, 40, is_broken=True), row("d", inf, inf))
    runtime = RuntimeVersion("reference", "1", "CPU")
    result = LayerComparison(("first", "second"), (runtime, runtime), rows, samples=1)
    assert [row.name for row in result.worst_first] == ["c", "b", "a", "d"]
    assert str(result).endswith(LEGEND)
    assert repr(result) == "LayerComparison('first' and 'second', 4 tensors, first bad: 'a')"
    assert all(f"{column}: " in LEGEND for column in ("SQNR", "channel", "drop"))


def test_help_explains_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--help"]) == 0
    assert "channel: SQNR of the median channel" in capsys.readouterr().out


def onnx_graph(nodes: list[Node], **constants: Array) -> Graph:
    """Return an ONNX graph with the input x of 4 rows and 4 columns."""
    stored = [Node(name, "Constant", attrs={"value": Tensor.of(values)}) for name, values in constants.items()]
    inputs = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((4, 4))})]
    return Graph.of([*inputs, *stored, *nodes], ["x"], [nodes[-1].name], dialect=onnx.DIALECT)


@pytest.mark.engine
def test_equal_infinities_of_a_mask_are_accepted() -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    nodes = [Node("masked", "Add", ("x", "mask")), Node("p", "Softmax", ("masked",))]
    graph = onnx_graph(nodes, mask=mask)
    result = compare(graph, graph)
    assert all(row.sqnr == inf and not row.is_broken and row.is_finite for row in result.rows)
    result.check(min_sqnr=10)
    wider = np.triu(np.full((4, 4), -np.inf, np.float32), 0)
    wider[0, 0] = 0
    other = onnx_graph(nodes, mask=wider)
    assert any(row.is_broken and "infinity in the second" in row.notes for row in compare(graph, other).rows)


def test_quantized_values_of_a_table_are_not_compared_with_its_rows() -> None:
    table = np.random.default_rng(0).normal(0, 1, (4, 4)).astype(np.float32)
    quantized = np.rint(table * 32).astype(np.int8)
    ids = Node("ids", "ArgMax", ("x",), attrs={"axis": 1, "keepdims": 0})
    first = onnx_graph([ids, Node("emb", "Gather", ("t", "ids")), Node("y", "Add", ("x", "emb"))], t=table)
    nodes = [ids, Node("emb/codes", "Gather", ("t", "ids"))]
    nodes += [Node("cast", "Cast", ("emb/codes",), attrs={"to": DType.FLOAT}), Node("emb", "Mul", ("cast", "step"))]
    second = onnx_graph([*nodes, Node("y", "Add", ("x", "emb"))], t=quantized, step=np.float32(1 / 32))
    names = {pair.name: pair.second.edge for pair in match_tensors(GraphTensors(first), GraphTensors(second))}
    assert names["emb"] == Edge("emb")


@pytest.mark.engine
def test_values_before_a_division_by_moved_scales_are_compared() -> None:
    weights = np.random.default_rng(0).normal(0, 1, (4, 4)).astype(np.float32)
    factors = np.array([0.5, 2, 1, 4], np.float32)
    first = onnx_graph([Node("h", "Tanh", ("x",)), Node("y", "MatMul", ("h", "w"))], w=weights)
    nodes = [
        Node("h/undivided", "Tanh", ("x",)),
        Node("h", "Mul", ("h/undivided", "f")),
        Node("y", "MatMul", ("h", "w")),
    ]
    second = onnx_graph(nodes, w=weights / factors[:, None], f=factors)
    assert all(row.sqnr > 100 for row in compare(first, second).rows)


@pytest.mark.parametrize(
    ("first", "second", "advice"),
    [
        (False, True, "keep_float in the --scheme"),
        (True, True, "quantkit compare FLOAT FILE"),
        (True, False, "name the float model first"),
        (False, False, "quantkit transform --verify"),
    ],
)
def test_hint_of_a_limit_fits_the_compared_versions(first: bool, second: bool, advice: str) -> None:
    text = "dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[2x2]()\n"
    plain = "v = Constant({0})\ny = Mul(x, v)"
    quantized = (
        "v = Constant({0})\nm = Mul(x, v)\ns = Constant(0.01)\nz = Constant[int8](0)\n"
        "q = QuantizeLinear(m, s, z)\ny = DequantizeLinear(q, s, z)"
    )
    graphs = [
        from_text(text + (quantized if is_int8 else plain).format(factor))
        for is_int8, factor in ((first, 1.0), (second, 0.5))
    ]
    data = {"x": np.ones((1, 2, 2), np.float32)}
    with pytest.raises(CheckError) as caught:
        compare(graphs[0], graphs[1], data, runtimes=("reference", "reference"), min_sqnr=20)
    assert advice in caught.value.hint
