"""Two versions of a model, tensor by tensor: what is joined, what is measured, and what is named."""

import json
from importlib.metadata import entry_points
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.data.feeders import random_feeder
from quantkit.errors import GraphError, UsageError
from quantkit.evaluation.compare import compare
from quantkit.evaluation.layer_comparison import Comparison, Interrupted
from quantkit.evaluation.matching import Places, match
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.quantization import Scheme, annotate, convert
from quantkit.runtimes.session import TensorInfo

ASSETS = Path(__file__).parent.parent.parent / "assets"
(ENTRY,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit"]
main = ENTRY.load()
FLOAT = {"T": DType.FLOAT}
CONVOLUTION = {"strides": (1, 1, 1, 1), "padding": b"SAME", **FLOAT}
RANDOM = np.random.default_rng(5)
WEIGHTS = [RANDOM.normal(size=shape).astype(np.float32) for shape in ((3, 3, 3, 4), (1, 1, 4, 5), (3, 3, 5, 6))]

DATA = RANDOM.uniform(-1, 1, size=(2, 8, 8, 3)).astype(np.float32)


def layered(weights: list[Array] = WEIGHTS, prefix: str = "", **attrs: Any) -> Graph:
    """Three convolutions with bias and Relu."""
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


def run(first: Graph, second: Graph, **options: Any) -> Comparison:
    return compare(first, second, runtimes=("reference", "reference"), **{"samples": 2, **options})


def changed(place: int, values: Array) -> Graph:
    return layered([values if number == place else one for number, one in enumerate(WEIGHTS)])


def test_equal_graphs_are_equal() -> None:
    found = run(layered(), layered())
    assert [row.name for row in found.rows if row.op == "Relu"] == ["layer_0", "layer_1", "layer_2"]
    assert all(row.sqnr == inf and row.cosine == pytest.approx(1) and not row.problems for row in found.rows)
    assert found.first_bad is None
    assert found.only_mine == ()
    assert "no layer is below 10 dB" in str(found)


def test_models_may_be_named_as_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "folded.pb"
    qk.save(qk.transform(qk.load("digits").graph, "strip_unused_nodes fold_old_batch_norms"), path)
    found = qk.compare("digits", path, samples=1, runtimes=("reference", "reference"))
    assert found.names == ("digits", str(path))
    assert found.first_bad is None


def test_the_name_of_a_file_is_no_batch() -> None:
    graph, name = layered(), "x.npy"
    said = "batches are arrays, and 'x.npy' names a file"
    with pytest.raises(UsageError, match=said):
        qk.compare(graph, graph, name)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said):
        qk.calibrate(graph, annotate(graph), name)  # type: ignore[arg-type]


def test_the_numbers_are_those_of_the_formulas() -> None:
    batch = RANDOM.normal(size=(3, 8, 8, 3)).astype(np.float32)
    first, second = layered(), changed(1, (WEIGHTS[1] * 1.05).astype(np.float32))
    found = run(first, second, batches=[batch[:2], batch[2:]])
    assert found.samples == 3
    rows = {row.name: row for row in found.rows}
    assert rows["layer_0"].sqnr == inf
    with (
        qk.open_session(first.with_endpoints(None, ["layer_1"]), "reference") as one,
        qk.open_session(second.with_endpoints(None, ["layer_1"]), "reference") as other,
    ):
        pairs = [(one.run({"x": row[None]})["layer_1"], other.run({"x": row[None]})["layer_1"]) for row in batch]
    mine, theirs = (np.stack(values).astype(np.float64) for values in zip(*pairs, strict=True))
    noise = ((mine - theirs) ** 2).sum()
    assert rows["layer_1"].sqnr == pytest.approx(10 * np.log10((mine**2).sum() / noise))
    assert rows["layer_1"].cosine == pytest.approx((mine * theirs).sum() / np.sqrt((mine**2).sum() * (theirs**2).sum()))
    by_channel = 10 * np.log10((mine**2).sum((0, 1, 2, 3)) / ((mine - theirs) ** 2).sum((0, 1, 2, 3)))
    assert rows["layer_1"].channel_sqnr == pytest.approx(np.median(by_channel))


def test_the_first_bad_layer_is_that_which_was_broken() -> None:
    found = run(layered(), changed(1, WEIGHTS[1][..., ::-1].copy()), batches=[DATA])
    assert found.first_bad is not None
    assert found.first_bad.name == "layer_1"
    assert {row.name for row in found.bad} == {"layer_1", "layer_2/conv", "layer_2/biased", "layer_2"}
    assert [row.name for row in found.worst_first][-1].startswith("layer_0")
    document = json.loads(json.dumps(found.to_json()))
    assert document["first_bad"] == "layer_1"
    assert document["layers"][-1]["sqnr"] is None


def test_nan_and_dead_and_constant_layers_are_named() -> None:
    broken = WEIGHTS[1].copy()
    broken[0, 0, 1, 2] = np.nan
    found = run(changed(1, broken), changed(1, broken), batches=[DATA])
    assert found.first_bad is not None
    assert found.first_bad.name == "layer_1/conv"
    assert found.first_bad.problems == ("NaN in both",)
    found = run(layered(), changed(1, broken), batches=[DATA])
    assert found.first_bad is not None
    assert found.first_bad.problems == ("NaN in the second",)
    graph = layered()
    offsets = constant("layer_1/offsets", np.full(5, -1e6, np.float32))
    silent = graph.with_nodes(offsets if node.name == offsets.name else node for node in graph.nodes.values())
    dead = run(graph, silent.with_endpoints(None, ["layer_1"]), batches=[DATA])
    assert dead.first_bad is not None
    assert dead.first_bad.name == "layer_1/biased"
    assert dead.bad[-1].problems == ("dead (all zero) in the second",)
    both = run(silent, silent, batches=[DATA])
    assert both.first_bad is None
    assert "layer_1 (Relu): dead (all zero) in both" in both.text(0)


def test_small_channels_beside_a_large_one_are_seen() -> None:
    """Rounding to the range of one large channel leaves the others without a code."""
    large = WEIGHTS[2].copy()
    large[..., 0] = np.abs(large[..., 0]) * 2000
    rounded = large.copy()
    rounded[..., 1:] = 0
    found = run(changed(2, large), changed(2, rounded), batches=[DATA])
    (row,) = [row for row in found.rows if row.name == "layer_2"]
    assert row.sqnr > 30
    assert row.lost_channels == 5
    assert found.first_uneven is not None
    assert found.first_uneven.name.startswith("layer_2")
    assert "channel 0 is" in str(found)
    assert found.first_bad is not None
    assert found.first_bad.name.startswith("layer_2")


def test_layers_without_a_common_name_are_joined_by_their_weights() -> None:
    found = run(layered(), layered(prefix="tower/"))
    assert [(row.name, row.other) for row in found.rows if row.op == "Relu"] == [
        (f"layer_{number}", f"tower/layer_{number}") for number in range(3)
    ]
    assert all(row.sqnr == inf for row in found.rows)
    stranger = layered([RANDOM.normal(size=values.shape).astype(np.float32) for values in WEIGHTS], prefix="other/")
    stranger = stranger.with_(outputs=())
    with pytest.raises(UsageError, match="what is asked for"):
        run(layered(), stranger)


def test_strangers_have_nothing_in_common() -> None:
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 3))}),
        Node("y", "Cast", (Edge("x"),), attrs={"SrcT": DType.FLOAT, "DstT": DType.INT32}),
    ]
    with pytest.raises(GraphError, match="no tensor in common"):
        run(layered(), Graph.of(nodes, ["x"], ["y"]))


def test_folded_batch_norms_hide_what_is_inside_a_layer() -> None:
    """A convolution whose weights were scaled keeps its name, and makes other numbers."""
    raw = qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph
    recipe = 'strip_unused_nodes(shape="1,16,16,1") fold_constants fold_batch_norms fold_old_batch_norms'
    found = run(raw, qk.transform(raw, recipe))
    assert found.first_bad is None
    assert min(row.sqnr for row in found.rows) > 90
    assert "conv/Conv2D" in found.only_mine
    assert {"conv", "softmax", "mixed/join"} <= {row.name for row in found.rows}


def test_the_classic_eight_bits_are_read_as_numbers() -> None:
    raw = qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph
    recipe = 'strip_unused_nodes(shape="1,16,16,1") fold_constants fold_batch_norms fold_old_batch_norms'
    folded = qk.transform(raw, recipe)
    small = qk.transform(folded, "quantize_weights quantize_nodes")
    with np.load(ASSETS / "digits_heldout.npz") as file:
        pixels = file["images"][:2]
    found = run(folded, small, batches=[pixels])
    layers = [row for row in found.rows if row.op == "Relu"]
    assert len(layers) == len([node for node in folded.nodes.values() if node.op == "Relu"])
    assert all(15 < row.sqnr < 60 for row in layers)
    assert found.first_bad is None


@pytest.mark.engine
def test_channels_first_and_codes_of_onnx() -> None:
    """A QDQ model: the Relu is left to the codes, whose numbers are those of the float Relu."""
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
    first = layered(WEIGHTS[:1])
    pairs = {pair.name: str(pair.theirs.edge) for pair in match(Places(first), Places(small))}
    assert pairs["layer_0"] == "layer_0/values"
    found = compare(first, small, runtimes=("reference", "onnxruntime"), samples=2)
    (row,) = [row for row in found.rows if row.name == "layer_0"]
    assert 30 < row.sqnr < 60
    assert row.channels == 4


def test_other_inputs_are_refused() -> None:
    found = layered()
    both = Graph.of(
        [*found.nodes.values(), Node("z", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1,))})],
        ["x", "z"],
        found.outputs,
    )
    with pytest.raises(UsageError, match="takes 1 inputs and the other 2"):
        run(found, both)
    with pytest.raises(UsageError, match="no sample"):
        run(found, found, batches=[])


def test_interrupting_keeps_what_was_summed() -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        run(layered(), layered(), progress=interrupt)
    assert stopped.value.comparison.samples == 1


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.pb", tmp_path / "second.pb"
    qk.save(layered(), first)
    qk.save(changed(1, -WEIGHTS[1]), second)
    np.save(tmp_path / "data.npy", DATA)
    words = ["compare", str(first), str(second), "--runtime", "reference", "--data", str(tmp_path / "data.npy")]
    assert main(words) == 0
    assert "first bad layer: layer_1" in capsys.readouterr().out
    assert main([*words, "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["samples"], document["random"]) == ("quantkit.compare/1", 2, False)
    assert main([*words, "--min-sqnr", "20"]) == 1
    captured = capsys.readouterr()
    assert "tensors fall short" in captured.err
    assert "keep such layers in float" in captured.err
    assert main(["compare", str(first), str(first), "--structure"]) == 0
    assert capsys.readouterr().out == "Graphs are equal.\n"
    assert main(["compare", str(first), str(second), "--structure"]) == 1
    assert "has attr 'value' with value: float 1x1x4x5" in capsys.readouterr().out
    assert main(["compare", str(first), str(tmp_path / "none.pb"), "--structure"]) == 3
    assert "does not exist" in capsys.readouterr().err


def test_random_inputs_accuse_no_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no number is a fact on any inputs; that numbers part is not, and the command says so."""
    found = run(layered(), changed(1, -WEIGHTS[1]))
    assert found.is_random
    assert found.first_bad is None
    assert found.below[0].name == "layer_1"
    assert "random inputs may be to blame" in str(found)
    broken = WEIGHTS[1].copy()
    broken[0, 0, 1, 2] = np.nan
    assert "first bad layer: layer_1/conv (Conv2D): NaN in the second" in str(run(layered(), changed(1, broken)))
    for name, graph in (("first", layered()), ("second", changed(1, -WEIGHTS[1]))):
        qk.save(graph, tmp_path / f"{name}.pb")
    words = ["compare", str(tmp_path / "first.pb"), str(tmp_path / "second.pb"), "--runtime", "reference"]
    assert main([*words, "--limit", "2", "--min-sqnr", "20"]) == 1
    captured = capsys.readouterr()
    assert "random inputs prove little" in captured.out
    assert "hint: random inputs prove little" in captured.err


def test_random_pictures_are_patches_and_their_pixels() -> None:
    floats, pixels = (TensorInfo("x", dtype, Shape((None, 32, 48, 3))) for dtype in (DType.FLOAT, DType.UINT8))
    ((one, other),) = random_feeder(1, 0)([floats], [pixels])
    np.testing.assert_array_equal(one["x"], (other["x"].astype(np.float32) - 128) / 128)
    assert one["x"].shape == (1, 32, 48, 3)
    neighbours = np.abs(np.diff(one["x"], axis=2)).mean()
    assert neighbours < 0.3 * one["x"].std(), "most neighbours are alike"


def test_what_an_activation_cuts_off_is_no_difference() -> None:
    """Classic codes begin at 0 before the Relu already; a layer whose Relu is read past an Identity is such, too."""
    graph = layered(WEIGHTS[:1])
    checked = Node("checked", "CheckNumerics", (Edge("layer_0/biased"),), attrs={**FLOAT, "message": b""})
    passed = Node("passed", "Identity", (Edge("layer_0/biased"),), ("checked",), attrs=FLOAT)
    nodes = [node.with_input(0, "passed") if node.name == "layer_0" else node for node in graph.nodes.values()]
    first = graph.with_nodes([*nodes, checked, passed])
    plan = annotate(graph, Scheme.for_target("eightbit"))
    quantized = convert(graph, plan, qk.calibrate(graph, plan, [DATA], runtime="reference"))
    found = run(first, quantized, batches=[DATA])
    assert {row.name for row in found.rows} >= {"layer_0"}
    assert not [row.name for row in found.rows if row.sqnr < 20]


def test_the_command_feeds_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "digits@reference", "digits@reference", "--data", str(ASSETS), "--limit", "2"]
    assert main([*words, "--min-sqnr", "100"]) == 0
    assert "2 samples" in capsys.readouterr().out


def test_probabilities_are_no_uneven_layer() -> None:
    bias = constant("bias", np.float32([50, 0, 0, 0, 0, 0]))
    louder = Node("louder", "AddV2", (Edge("layer_2"), Edge("bias")), attrs={"T": DType.FLOAT})
    sure = Node("sure", "Softmax", (Edge("louder"),), attrs={"T": DType.FLOAT})
    graph = Graph.of([*layered().nodes.values(), bias, louder, sure], ["x"], ["sure"])
    found = run(graph, graph)
    assert [row.is_uneven for row in found.rows if row.op == "Softmax"] == [False]
