"""Tests of remove_dropout with all versions of the dropout pattern."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from work import check_work_is_linear

from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.text import from_text
from quantkit.runtimes import open_session
from quantkit.transforms.cleanup.remove_dropout import remove_dropout

HEAD = """inputs: x
outputs: y
x = Placeholder[2]()
size = Const[int32]([2])
u = RandomUniform(size, T=int32, dtype=float)
zero = Const(0.0)
one = Const(1.0)
quarter = Const(0.25)
most = Const(0.75)
factor = Const(1.3333334)
"""


def input_of_output(lines: str) -> str:
    """Return the input of the graph output after the transform."""
    after = remove_dropout(from_text(f"{HEAD}{lines}\ny = Neg(d)"))
    return str(after["y"].inputs[0])


@pytest.mark.parametrize(
    "lines",
    [
        "s = RealDiv(x, most)\na = Add(most, u)\nm = Floor(a)\nd = Mul(s, m)",
        "s = Div(x, most)\na = AddV2(u, most)\nm = Floor(a)\nd = Mul(m, s)",
        "s = Mul(x, factor)\ng = GreaterEqual(u, quarter)\nd = SelectV2(g, s, zero)",
        "s = Mul(factor, x)\ng = Less(quarter, u)\nd = SelectV2(g, s, zero)",
        "s = Mul(x, factor)\ng = Less(u, most)\nz = ZerosLike(x)\nd = Select(g, s, z)",
        "s = Mul(x, factor)\ng = GreaterEqual(u, quarter)\nm = Cast(g, SrcT=bool, DstT=float)\nd = Mul(s, m)",
        "g = GreaterEqual(u, quarter)\nm = Cast(g, SrcT=bool, DstT=float)\np = Mul(x, m)\nd = RealDiv(p, most)",
        "k = Sub(one, quarter)\ni = RealDiv(one, k)\n"
        "s = Mul(x, i)\ng = GreaterEqual(u, quarter)\nd = SelectV2(g, s, zero)",
        "w = Sub(one, zero)\nv = Mul(u, w)\nr = AddV2(v, zero)\ns = Mul(x, factor)\ng = GreaterEqual(r, quarter)\n"
        "d = SelectV2(g, s, zero)",
        "g = GreaterEqual(u, zero)\nd = SelectV2(g, x, zero)",
        "k = Placeholder()\ns = RealDiv(x, k)\na = Add(u, k)\nm = Floor(a)\nd = Mul(s, m)",
        "k = Placeholder()\nr = Sub(one, k)\nl = Sub(one, r)\n"
        "s = RealDiv(x, l)\ng = GreaterEqual(u, r)\nd = SelectV2(g, s, zero)",
        "k = Placeholder()\ni = Reciprocal(k)\ns = Mul(x, i)\ng = Less(u, k)\nd = SelectV2(g, s, zero)",
    ],
)
def test_dropout_pattern_is_removed(lines: str) -> None:
    assert input_of_output(lines) == "x"


@pytest.mark.parametrize(
    "lines",
    [
        "g = GreaterEqual(u, quarter)\nd = SelectV2(g, x, zero)",
        "s = Mul(x, factor)\ng = GreaterEqual(u, most)\nd = SelectV2(g, s, zero)",
        "s = Mul(x, factor)\ng = GreaterEqual(u, quarter)\nd = SelectV2(g, s, one)",
        "s = Mul(x, factor)\ng = GreaterEqual(x, quarter)\nd = SelectV2(g, s, zero)",
        "s = RealDiv(x, most)\na = Add(most, x)\nm = Floor(a)\nd = Mul(s, m)",
        "v = Mul(u, factor)\ns = Mul(x, factor)\ng = GreaterEqual(v, quarter)\nd = SelectV2(g, s, zero)",
        "k = Placeholder()\nl = Placeholder()\ns = RealDiv(x, k)\na = Add(u, l)\nm = Floor(a)\nd = Mul(s, m)",
    ],
)
def test_similar_pattern_stays(lines: str) -> None:
    graph = from_text(f"{HEAD}{lines}\ny = Neg(d)")
    assert remove_dropout(graph) == graph


def test_remaining_random_op_is_skipped() -> None:
    outcome = remove_dropout.outcome(from_text(f"{HEAD}d = Add(x, u)\ny = Neg(d)"))
    assert [str(skip) for skip in outcome.skips] == [
        "u: RandomUniform returns random values and is not part of a known dropout pattern"
    ]


def test_graph_inputs_and_outputs_stay() -> None:
    graph = from_text(
        "inputs: x, k\noutputs: y, all\nx = Placeholder[2]()\nk = Placeholder[]()\nstop = StopGradient(x)\n"
        'tag = Const[string]("t")\nloss = ScalarSummary(tag, k)\nall = MergeSummary(loss)\ny = Neg(stop)'
    )
    assert set(remove_dropout(graph).nodes) == {"x", "k", "tag", "loss", "all", "y"}
    assert "stop" in remove_dropout(Graph.of([*graph.nodes.values()], ["stop"], ["y"]))


def test_remove_dropout_is_idempotent() -> None:
    lines = "s = RealDiv(x, most)\na = Add(most, u)\nm = Floor(a)\nd = Mul(s, m)\ny = Neg(d)"
    once = remove_dropout(from_text(HEAD + lines))
    assert set(once.nodes) == {"x", "zero", "one", "quarter", "factor", "y"}
    outcome = remove_dropout.outcome(once)
    assert (outcome.graph, outcome.changes) == (once, ())


def test_remove_dropout_runs_in_linear_time() -> None:
    def chain(count: int) -> Callable[[], object]:
        nodes = [Node("x", "Placeholder"), constant("size", np.array([2], np.int32)), constant("keep", np.float32(0.5))]
        last = "x"
        for number in range(count):
            mask = (("u", "RandomUniform", "size"), ("a", "Add", f"u{number} keep"), ("m", "Floor", f"a{number}"))
            product = (("s", "RealDiv", f"{last} keep"), ("d", "Mul", f"s{number} m{number}"))
            nodes.extend(
                Node(f"{name}{number}", op, tuple(map(Edge, inputs.split()))) for name, op, inputs in (*mask, *product)
            )
            last = f"d{number}"
        graph = Graph.of(nodes, ["x"], [last])
        return lambda: remove_dropout(graph)

    check_work_is_linear(chain, 25)


@pytest.mark.engine
def test_dropout_of_tensorflow_is_recognized() -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    v1 = tf.compat.v1
    with tf.Graph().as_default() as tf_graph:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        keep = v1.placeholder(tf.float32, [], "keep")
        y = v1.nn.dropout(x, keep_prob=keep)
        y = v1.nn.dropout(y, keep_prob=0.9)
        y = tf.nn.dropout(y, rate=0.2)
        y = tf.nn.dropout(y, rate=0.3, noise_shape=[1, 3])
        y = tf.nn.experimental.stateless_dropout(y, 0.4, [1, 2])
        v1.identity(y, "y")
    graph = graphdef.decode(tf_graph.as_graph_def().SerializeToString()).with_endpoints(["x"], ["y"])
    outcome = remove_dropout.outcome(graph)
    assert outcome.graph["y"].inputs == (Edge("x"),)
    assert outcome.skips == ()
    values = np.array([[1, 2, 3]], np.float32)
    with open_session(outcome.graph, "tensorflow") as session:
        np.testing.assert_array_equal(session.run({"x": values})["y"], values)


@pytest.mark.engine
def test_dropout_of_keras_is_recognized() -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    layers: list[Any] = [tf.keras.Input((4, 4, 3)), tf.keras.layers.Dropout(0.3), tf.keras.layers.SpatialDropout2D(0.1)]
    model = tf.keras.Sequential(layers)
    function = tf.function(lambda x: model(x, training=True)).get_concrete_function(tf.TensorSpec([2, 4, 4, 3]))
    graph = graphdef.decode(function.graph.as_graph_def().SerializeToString()).with_endpoints(["x"], ["Identity"])
    assert remove_dropout(graph)["Identity"].inputs == (Edge("x"),)
