from pathlib import Path

import pytest

from quantkit.errors import GraphError, InputError, UsageError
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text
from quantkit.model import load
from quantkit.quantization import Plan, Range, Ranges, Scheme, annotate
from quantkit.quantization.annotation.float_graph import FloatGraph
from quantkit.recipes import parse, run

# A target for TensorFlow graphs: their nodes have the names of the tests.
TENSORFLOW = Scheme.for_target("tensorflow")
HEAD = "inputs: x\noutputs: {out}\nx = Placeholder[<1x8x8x4>]()\nw = Const[1x1x4x4]()\nb = Const[4]()\n"


def graph_of(body: str, out: str = "y") -> Graph:
    conv = "Conv2D({}, {}, strides=[1, 1, 1, 1], padding=SAME)"
    for layer in ("x", "a", "r", "s", "p", "c"):
        body = body.replace(f"conv({layer})", conv.format(layer, "w"))
    return from_text(HEAD.format(out=out) + body)


def digits() -> Graph:
    graph = load("digits", ["Mul"], ["softmax"]).graph
    fold = "remove_nodes(op=Identity, op=CheckNumerics) fold_old_batch_norms"
    folded, _ = run(parse(f'strip_unused_nodes(type=float, shape="1,16,16,1") {fold}'), graph)
    return folded


def test_chain_of_layer_bias_and_activation_is_one_pattern() -> None:
    plan = annotate(graph_of("a = conv(x)\ns = BiasAdd(a, b)\ny = Relu(s)"), TENSORFLOW)
    (pattern,) = plan.patterns
    assert pattern.nodes == ("a", "s", "y")
    assert (pattern.input, pattern.output) == (Edge("x"), Edge("y"))
    assert list(plan.activations) == [Edge("x")], "y has no quantized consumer"
    assert str(plan.weights["w"]) == "qint8 symmetric per_channel axes=3 pairs=0,1,2"
    assert plan.float_fallbacks == {}


def test_layer_whose_values_no_output_needs_stays_float() -> None:
    """A masked recurrent layer of Keras computes its first step for the shape of the result."""
    plan = annotate(graph_of("a = conv(x)\nz = ZerosLike(a)\nr = Relu(x)\nc = conv(r)\ny = AddV2(c, z)"), TENSORFLOW)
    assert [pattern.layer for pattern in plan.patterns] == ["c"]
    assert plan.float_fallbacks["a"] == "only the shape of its result is used"


def test_layer_before_a_loop_is_int8() -> None:
    """The value that a body adds reaches the output by the next iteration only."""
    graph = from_text("""
    inputs: x
    outputs: y
    x = Placeholder[1x4x4x2]()
    k = Const[3x3x2x2]()
    c = Conv2D(x, k, T=float, padding=SAME, strides=[1, 1, 1, 1])
    limit = Const(3.0)
    zero = Const(0.0)
    step = Const(1.0)
    i0 = Enter(zero, T=float, frame_name=loop)
    v0 = Enter(x, T=float, frame_name=loop)
    c0 = Enter(c, T=float, frame_name=loop, is_constant=true)
    n0 = Enter(limit, T=float, frame_name=loop, is_constant=true)
    i = Merge(i0, i2, T=float, N=2)
    v = Merge(v0, v2, T=float, N=2)
    less = Less(i, n0, T=float)
    cond = LoopCond(less)
    i1 = Switch(i, cond, T=float)
    v1 = Switch(v, cond, T=float)
    one = Identity(i1:1, T=float)
    more = AddV2(one, step, T=float)
    added = AddV2(v1:1, c0, T=float)
    i2 = NextIteration(more, T=float)
    v2 = NextIteration(added, T=float)
    y = Exit(v1, T=float)
    """)
    assert [pattern.layer for pattern in annotate(graph, Scheme.for_target("tensorflow")).patterns] == ["c"]


def test_nodes_after_a_shared_output_are_not_fused() -> None:
    plan = annotate(graph_of("a = conv(x)\nr = Relu(a)\ny = Neg(a)\nz = Neg(r)", out="y, z"), TENSORFLOW)
    assert plan.patterns[0].nodes == ("a",)
    assert plan.float_fallbacks["r"] == "no quantized consumer"
    assert "Neg has no int8 form" in plan.float_fallbacks["y"]


def test_residual_is_fused_with_the_later_layer() -> None:
    body = "a = conv(x)\nr = Relu(a)\np = conv(r)\ns = AddV2(p, r)\nc = Relu6(s)\ny = conv(c)"
    plan = annotate(graph_of(body), TENSORFLOW)
    assert [pattern.nodes for pattern in plan.patterns] == [("a", "r"), ("p", "s", "c"), ("y",)]
    residual = plan.patterns[1]
    assert (residual.summand, residual.inner) == (Edge("r"), Edge("p"))
    assert set(plan.activations) == {Edge("x"), Edge("r"), Edge("p"), Edge("c")}


def test_inputs_of_a_float_global_average_are_quantized_with_separate_ranges() -> None:
    body = "a = conv(x)\nr = Relu(a)\np = conv(x)\ns = Relu(p)\naxis = Const[int32](3)\nc = ConcatV2(r, s, axis)\n"
    pool = "AvgPool(c, ksize=[1, {0}, {0}, 1], strides=[1, 1, 1, 1], padding=VALID)"
    scheme = Scheme.for_target("tensorflow")
    plan = annotate(graph_of(f"{body}y = {pool.format(8)}"), scheme)
    assert set(plan.activations) == {Edge("x"), Edge("r"), Edge("s")}
    assert plan.groups == ()
    assert {"c", "y"} <= set(plan.float_fallbacks)
    for tail, out in ((pool.format(4), "y"), (f"{pool.format(8)}\nalso = Neg(r)", "y, also")):
        assert Edge("r") not in annotate(graph_of(f"{body}y = {tail}", out), scheme).activations


def test_inputs_of_a_concat_share_a_range() -> None:
    body = "a = conv(x)\nr = Relu(a)\np = MaxPool(r, ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1], padding=SAME)\n"
    body += "axis = Const[int32](3)\nc = ConcatV2(r, p, x, axis)\nw2 = Const[1x1x12x4]()\n"
    body += "y = Conv2D(c, w2, strides=[1, 1, 1, 1], padding=SAME)"
    plan = annotate(graph_of(body), TENSORFLOW)
    assert plan.groups == (frozenset({Edge("x"), Edge("r"), Edge("p"), Edge("c")}),)
    assert plan.edges == (Edge("x"), Edge("r")), "pool and concat copy observed edges"
    assert plan.pass_through == ("p", "c")
    assert plan.mean_edges == (Edge("x"), Edge("c")), "bias correction needs their means"
    separate = annotate(graph_of(body), TENSORFLOW.with_(share_concat_ranges=False))
    assert separate.groups == (frozenset({Edge("r"), Edge("p")}),)


def test_edge_before_an_activation_takes_its_range() -> None:
    body = (
        "a = conv(x)\np = AvgPool(a, ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1], padding=SAME)\nr = Relu(p)\ny = conv(r)"
    )
    plan = annotate(graph_of(body), TENSORFLOW)
    assert plan.groups == (frozenset({Edge("p"), Edge("r")}),), "the pool's input keeps its negative values"
    assert plan.edges == (Edge("x"), Edge("a"), Edge("r"))
    assert str(plan.activations[Edge("p")]) == "quint8 symmetric"


def test_a_sum_of_float_layers_is_quantized_after_its_activation() -> None:
    graph = graph_of("a = conv(x)\np = conv(x)\ns = AddV2(a, p)\nr = Relu(s)\ny = conv(r)")
    graph = graph.with_nodes(node.with_attrs(T=DType.FLOAT, dtype=DType.FLOAT) for node in graph.nodes.values())
    plan = annotate(graph, float_nodes={"a": "kept", "p": "kept"})
    assert plan.float_fallbacks["r"] == "the input is float"
    assert Edge("s") not in plan.activations
    assert set(plan.activations) <= set(annotate(graph).activations), "the calibration observes all edges of this plan"


def test_tensors_with_negative_values_are_signed() -> None:
    graph = graph_of("a = conv(x)\nr = Relu(a)\np = conv(r)\ny = conv(p)")
    plan = annotate(graph, TENSORFLOW)
    assert {str(edge): str(spec) for edge, spec in plan.activations.items()} == {
        "x": "quint8 affine",
        "r": "quint8 symmetric",
        "p": "quint8 affine",
    }


@pytest.mark.parametrize(
    ("body", "node", "reason"),
    [
        ("y = Conv2D(x, x, strides=[1, 1, 1, 1], padding=SAME)", "y", "computed, not constant"),
        ("y = Conv2D(x, w, strides=[1, 1, 1, 1], padding=SAME, data_format=NCHW)", "y", "NCHW is not NHWC"),
        ("bad = Const[4x4](nan)\ny = MatMul(x, bad)", "y", "the weights bad hold NaN"),
        ("a = conv(x)\ny = Softmax(a)", "y", "small probabilities"),
        ("a = conv(x)\ny = FusedBatchNormV3(a, b, b, b, b)", "y", "run fold_batch_norms first"),
        ("y = AddV2(x, x)", "y", "neither operand is a single-consumer layer output"),
        ("y = MatMul(x)", "y", "a required input is missing"),
    ],
)
def test_float_fallback_has_a_reason(body: str, node: str, reason: str) -> None:
    body = body.replace("Const[4x4](nan)", "Const([[nan, 1.0], [1.0, 1.0]])")
    assert reason in annotate(graph_of(body), TENSORFLOW).float_fallbacks[node]


def test_the_scheme_keeps_nodes_and_ops_in_float() -> None:
    graph = graph_of("a = conv(x)\nr = Relu(a)\ny = conv(r)")
    plan = annotate(graph, TENSORFLOW.with_(keep_float=("a",)))
    assert [pattern.layer for pattern in plan.patterns] == ["y"]
    assert plan.float_fallbacks["a"] == "the scheme keeps it in float"
    assert plan.float_fallbacks["r"] == "the input is float"
    assert list(plan.activations) == [Edge("r")], "the activation's output is quantized"
    assert not annotate(graph, TENSORFLOW.with_(keep_float=("Conv2D",))).patterns
    with pytest.raises(UsageError, match="keep_float names 'q'"):
        annotate(graph, TENSORFLOW.with_(keep_float=("q",)))


def test_the_scheme_keeps_layers_of_keras_in_float() -> None:
    """A Keras layer is the scope of its nodes; a node of that name comes first."""
    body = "n/conv2d/convolution = conv(x)\nn/conv2d/Bias = BiasAdd(n/conv2d/convolution, b)\n"
    second = "Conv2D(n/conv2d/Bias, w, strides=[1, 1, 1, 1], padding=SAME)"
    body += f"n/conv2d_1/convolution = {second}\nn/conv2d_1/Bias = BiasAdd(n/conv2d_1/convolution, b)"
    graph = graph_of(body, out="n/conv2d_1/Bias")
    plan = annotate(graph, TENSORFLOW.with_(keep_float=("conv2d_1",)))
    assert [pattern.layer for pattern in plan.patterns] == ["n/conv2d/convolution"]
    assert plan.float_fallbacks["n/conv2d_1/convolution"] == "the scheme keeps it in float"
    assert annotate(graph, TENSORFLOW.with_(keep_float=("n/conv2d_1",))).patterns == plan.patterns
    numbered = body.replace("conv2d_1/", "conv2d_1_2/").replace("conv2d/", "conv2d_1/")
    plan = annotate(graph_of(numbered, out="n/conv2d_1_2/Bias"), TENSORFLOW.with_(keep_float=("conv2d",)))
    assert [pattern.layer for pattern in plan.patterns] == ["n/conv2d_1_2/convolution"]
    plan = annotate(graph_of(numbered, out="n/conv2d_1_2/Bias"), TENSORFLOW.with_(keep_float=("conv2d_1",)))
    assert [pattern.layer for pattern in plan.patterns] == ["n/conv2d_1/convolution"]
    assert not annotate(graph, TENSORFLOW.with_(keep_float=("n",))).patterns
    with pytest.raises(UsageError, match="keep_float names 'conv2d_3', which is not a node, layer or op type") as error:
        annotate(graph, TENSORFLOW.with_(keep_float=("conv2d_3",)))
    assert "conv2d_1" in error.value.hint


def test_unsupported_graph_is_an_error() -> None:
    graph = graph_of("y = conv(x)")
    with pytest.raises(GraphError, match="no outputs"):
        annotate(graph.with_(outputs=()))


@pytest.mark.parametrize(
    ("target", "fallbacks"),
    [
        ("onnx", ["mixed_2/join", "pool_3", "pool_3/_reshape", "softmax"]),
        ("tensorflow", ["mixed_2/join", "pool_3", "softmax"]),
        ("eightbit", ["softmax"]),
    ],
)
def test_layers_of_the_bundled_network_are_quantized(target: str, fallbacks: list[str]) -> None:
    plan = annotate(digits(), Scheme.for_target(target))
    assert len(plan.patterns) == 21
    assert list(plan.float_fallbacks) == fallbacks


def test_every_computing_node_has_a_decision() -> None:
    graph = digits()
    plan = annotate(graph, TENSORFLOW)
    decided = {*plan.pattern_of, *plan.pass_through, *plan.float_fallbacks}
    assert decided == {name for name, node in graph.nodes.items() if node.op not in ("Const", "Placeholder")}


def test_plans_of_one_graph_share_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of each float layer, for layers with common weights too, is that of a new graph."""
    body = "a = conv(x)\ns = BiasAdd(a, b)\nr = Relu(s)\nc = conv(r)\np = conv(c)\ny = conv(p)"
    graph = graph_of(body)
    plans = {layer: annotate(graph, TENSORFLOW, float_nodes={layer: "measured"}) for layer in ("a", "c", "p", "y")}
    for layer, plan in plans.items():
        assert plan == annotate(graph_of(body), TENSORFLOW, float_nodes={layer: "measured"})
        assert plan.pattern_of.keys().isdisjoint({layer})
    eightbit = annotate(graph, Scheme.for_target("eightbit"))
    assert eightbit == annotate(graph_of(body), Scheme.for_target("eightbit"))
    monkeypatch.setattr(FloatGraph, "__init__", None)
    assert annotate(graph, Scheme.for_target("eightbit")) == eightbit


def test_plans_round_trip_and_require_ranges(tmp_path: Path) -> None:
    plan = annotate(digits())
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    ranges = Ranges(dict.fromkeys(plan.activations, Range(0.0, 1.0)))
    plan.require_ranges(ranges)
    with pytest.raises(InputError, match="there is no range of edge 'Mul'"):
        plan.require_ranges(Ranges({edge: limits for edge, limits in ranges.items() if edge != Edge("Mul")}))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="does not contain a plan"):
        Plan.load(tmp_path / "other.json")
