"""Conversion of loops, conditions and recurrent layers to ONNX."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from while_loops import images, loop_graph

import quantkit as qk
from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.convert.to_onnx import to_onnx_graph
from quantkit.errors import UnavailableError
from quantkit.formats import graphdef, onnx
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.quantization import Scheme, annotate, calibrate
from quantkit.quantization import convert as quantize
from quantkit.recipes import run
from quantkit.recipes.named import find_recipe
from quantkit.runtimes import find_runtime, open_session

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]  # TensorFlow's own

Build = Callable[..., Any]
SIZE = 4
X = np.array([[1, 2, 3], [0, 1, 2]], np.float32)
ROWS = np.random.default_rng(1).normal(0, 1, (2, 5, 3)).astype(np.float32)
LENGTHS = np.array([2, 4], np.int32)
REGIONS = ("Loop", "If", "LSTM", "GRU")
KERAS_REGIONS = {"LSTM": 4, "GRU": 2, "Loop": 3}


# Loops of one input, (2, 3)


def count(tf: Any, x: Any) -> Any:
    """Return a loop that x alone decides, and that may end before its first iteration."""
    return tf.compat.v1.while_loop(lambda y: tf.reduce_sum(y) < 50.0, lambda y: [y * 2.0 + 1.0], [x])


def swap(tf: Any, x: Any) -> Any:
    """Return variables that exchange their values, one that stays, and a body that captures x."""
    step: Any = lambda i, a, b, c: (i + 1, b, a + x, c)  # noqa: E731
    return tf.compat.v1.while_loop(lambda i, *_: i < 3, step, [tf.constant(0), x, x * 3.0, x - 1.0])[1:]


def grow(tf: Any, x: Any) -> Any:
    """Return a variable whose shape changes."""
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
    step: Any = lambda i, y: (i + 1, tf.concat([y, x], 0))  # noqa: E731
    return tf.compat.v1.while_loop(lambda i, _: i < 4, step, [tf.constant(0), x], shape_invariants=shapes)[1]


def chain(tf: Any, x: Any) -> Any:
    """Return a loop after a loop, with a limit that is computed outside."""
    last = tf.cast(tf.reduce_max(x), tf.int32)
    first = tf.compat.v1.while_loop(lambda i, _: i < last, lambda i, y: (i + 1, tf.tanh(y) * 2.0), [tf.constant(0), x])[
        1
    ]
    return count(tf, first)


def nest(tf: Any, x: Any) -> Any:
    """Return a loop in a loop, whose number of iterations depends on the outer one."""

    def outer(i: Any, y: Any) -> Any:
        return i + 1, tf.while_loop(lambda j, _: j < i, lambda j, z: (j + 1, tf.tanh(z) + x), [0, y])[1]

    return tf.while_loop(lambda i, _: i < 3, outer, [0, x])[1]


def branch(tf: Any, x: Any) -> Any:
    """Return a condition outside of a loop, and one in each iteration."""
    x = tf.cond(tf.reduce_sum(x) > 4.0, lambda: x * 2.0, lambda: x - 1.0)

    def step(i: Any, y: Any) -> Any:
        return i + 1, tf.cond(tf.reduce_sum(y) > 5.0, lambda: y - x, lambda: y + 1.0)

    return tf.while_loop(lambda i, _: i < 3, step, [0, x])[1]


# Lists of rows of x, (n, time, 3)


def map_rows(tf: Any, x: Any) -> Any:
    """Return a list that a loop reads, and one that it writes."""
    return tf.map_fn(lambda row: tf.reduce_sum(tf.tanh(row), -1) * 2.0, x)


def scan(tf: Any, x: Any) -> Any:
    """Return a list whose first element is written before the loop."""
    return tf.scan(lambda total, row: tf.tanh(total * 0.5 + row), x)


def stop_early(tf: Any, x: Any) -> Any:
    """Return a list of 5 elements of which a loop writes 3."""
    empty = tf.TensorArray(tf.float32, 5, element_shape=[2, 3])

    def step(i: Any, total: Any, rows: Any) -> Any:
        total = total + x[:, i]
        return i + 1, total, rows.write(i, total)

    return tf.while_loop(lambda i, *_: i < 3, step, [0, tf.zeros([2, 3]), empty])[2].stack()


# Recurrent layers of x


def cells() -> Any:
    return pytest.importorskip("tf_keras.src.layers.rnn.legacy_cells", reason="pip install tf-keras")


def lstm(tf: Any, x: Any) -> Any:
    return tf.compat.v1.nn.dynamic_rnn(cells().BasicLSTMCell(SIZE), x, dtype=tf.float32)


def two_directions(tf: Any, x: Any, lengths: Any) -> Any:
    return tf.compat.v1.nn.bidirectional_dynamic_rnn(
        cells().LSTMCell(SIZE), cells().LSTMCell(SIZE), x, sequence_length=lengths, dtype=tf.float32
    )


def gru(tf: Any, x: Any) -> Any:
    state = tf.reduce_sum(x, 1) @ tf.ones([3, SIZE])
    return tf.compat.v1.nn.dynamic_rnn(cells().GRUCell(SIZE), x, initial_state=state)


def peepholes(tf: Any, x: Any) -> Any:
    return tf.compat.v1.nn.dynamic_rnn(cells().LSTMCell(SIZE, use_peepholes=True), x, dtype=tf.float32)


def stack_cells(tf: Any, x: Any) -> Any:
    cell = cells().MultiRNNCell([cells().LSTMCell(SIZE), cells().GRUCell(3)])
    return tf.compat.v1.nn.dynamic_rnn(cell, x, dtype=tf.float32)


def unroll(tf: Any, x: Any) -> Any:
    return tf.compat.v1.nn.static_rnn(cells().BasicLSTMCell(SIZE), tf.unstack(x, axis=1), dtype=tf.float32)[0]


def nested_lstm(tf: Any, x: Any) -> Any:
    """Return a recurrent layer in each iteration of a loop."""
    cell = cells().BasicLSTMCell(SIZE)
    return tf.map_fn(lambda rows: tf.compat.v1.nn.dynamic_rnn(cell, rows, dtype=tf.float32)[0], x[:, None])


CASES: dict[Build, tuple[dict[str, Any], dict[str, int]]] = {
    count: ({"x": [2, 3]}, {"Loop": 1}),
    swap: ({"x": [2, 3]}, {"Loop": 1}),
    grow: ({"x": [2, 3]}, {"Loop": 1}),
    chain: ({"x": [2, 3]}, {"Loop": 2}),
    nest: ({"x": [None, 3]}, {"Loop": 1}),
    branch: ({"x": [None, 3]}, {"If": 1, "Loop": 1}),
    map_rows: ({"x": [None, None, 3]}, {"Loop": 1}),
    scan: ({"x": [2, None, 3]}, {"Loop": 1}),
    stop_early: ({"x": [2, 5, 3]}, {"Loop": 1}),
    lstm: ({"x": [None, None, 3]}, {"LSTM": 1}),
    two_directions: ({"x": [None, 5, 3], "lengths": [None]}, {"LSTM": 2}),
    gru: ({"x": [None, 5, 3]}, {"GRU": 1}),
    peepholes: ({"x": [None, 5, 3]}, {"Loop": 1}),
    stack_cells: ({"x": [None, 5, 3]}, {"Loop": 1}),
    unroll: ({"x": [None, 5, 3]}, {}),
    nested_lstm: ({"x": [2, 5, 3]}, {"Loop": 1}),
}


@cache
def frozen(build: Build, functions: bool) -> Graph:
    """Return the frozen graph of a case, with random variables.

    Args:
        functions: loops and conditions have functions, as in TensorFlow 2.
    """
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    v1 = tf.compat.v1
    was_v2 = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if functions else v1.disable_control_flow_v2)()
    shapes, _ = CASES[build]
    try:
        with tf.Graph().as_default() as graph, v1.Session() as session:
            inputs = [
                v1.placeholder(tf.int32 if len(dims) == 1 else tf.float32, dims, name) for name, dims in shapes.items()
            ]
            with v1.variable_scope("layer", initializer=v1.random_uniform_initializer(-1, 1, seed=1)):
                outputs = tf.nest.flatten(build(tf, *inputs))
            names = [tf.identity(value, name=f"y{port}").op.name for port, value in enumerate(outputs)]
            session.run(v1.global_variables_initializer())
            message = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), names)
    finally:
        (v1.enable_control_flow_v2 if was_v2 else v1.disable_control_flow_v2)()
    return graphdef.decode(message.SerializeToString()).with_endpoints(list(shapes), names)


@pytest.mark.parametrize("functions", [False, True], ids=["frames", "functions"])
@pytest.mark.parametrize("build", CASES)
def test_same_outputs_as_tensorflow(build: Build, functions: bool) -> None:
    graph = frozen(build, functions)
    shapes, regions = CASES[build]
    converted = onnx.decode(onnx.encode(convert(graph)))
    verify(converted)
    assert {op: converted.op_counts[op] for op in REGIONS if op in converted.op_counts} == regions
    for scale in (0.5, 3.0, 100.0) if len(shapes["x"]) == 2 else (1.0,):
        feeds = {"x": (X if len(shapes["x"]) == 2 else ROWS) * np.float32(scale), "lengths": LENGTHS}
        _compare(converted, graph, {name: feeds[name] for name in shapes})


def test_cleaned_graphs_have_the_same_recurrent_layers() -> None:
    for functions in (False, True):
        for build in (lstm, two_directions, gru):
            cleaned, _ = run(find_recipe("inference"), frozen(build, functions))
            counts = convert(cleaned).op_counts
            assert {op: counts[op] for op in REGIONS if op in counts} == CASES[build][1]


def test_empty_sequences_keep_the_initial_state() -> None:
    graph = frozen(two_directions, True)
    _compare(convert(graph), graph, {"x": ROWS, "lengths": np.array([0, 3], np.int32)})


@pytest.fixture(scope="module")
def keras_graph() -> Graph:
    """Graph of one recurrent layer of each kind between dense layers."""
    keras = pytest.importorskip("tensorflow", reason="pip install tensorflow").keras
    layers = keras.layers
    keras.utils.set_random_seed(3)
    x = keras.Input((5, 3), name="x")
    y = layers.Dense(16, activation="relu")(x)
    outputs = [
        layers.LSTM(SIZE)(layers.LSTM(SIZE, return_sequences=True)(y)),
        layers.GRU(SIZE)(y),
        layers.GRU(SIZE, reset_after=False)(y),
        layers.Bidirectional(layers.LSTM(SIZE))(y),
        layers.LSTM(SIZE)(layers.Masking()(y)),
        layers.LSTM(SIZE, recurrent_activation="hard_sigmoid")(y),
        layers.SimpleRNN(SIZE)(y),
    ]
    z = layers.Dense(8, name="z")(layers.Concatenate()(outputs))
    model = keras.Model(x, z)
    generator = np.random.default_rng(2)
    for weight in model.weights:
        weight.assign(generator.normal(0, 0.5, weight.shape))
    return qk.load(model).graph


def test_keras_layers_become_recurrent_layers(keras_graph: Graph) -> None:
    converted = convert(keras_graph)
    assert {op: converted.op_counts[op] for op in REGIONS if op in converted.op_counts} == KERAS_REGIONS
    _compare(converted, keras_graph, {"x": ROWS})


def test_dense_layers_around_recurrent_layers_become_int8(keras_graph: Graph) -> None:
    graph, _ = run(find_recipe("inference"), keras_graph)
    plan = annotate(graph, Scheme.for_target("onnx"))
    quantized = quantize(graph, plan, calibrate(graph, plan, [ROWS]))
    assert {op: quantized.op_counts[op] for op in REGIONS if op in quantized.op_counts} == KERAS_REGIONS
    layers = [pattern.layer for pattern in plan.patterns]
    assert any("/dense" in layer for layer in layers)
    assert any("/z" in layer for layer in layers)
    reasons = [reason for reason in plan.float_fallbacks.values() if "while/" in reason]
    assert reasons
    assert all(reason.startswith("the layers of its subgraphs stay float") for reason in reasons)
    with open_session(graph, "tensorflow") as expected, open_session(quantized, "onnxruntime") as session:
        [values], [outputs] = (opened.run({"x": ROWS}).values() for opened in (expected, session))
    np.testing.assert_allclose(outputs, values, atol=0.05 * np.ptp(values))


def test_recurrent_cell_computes_same_outputs() -> None:
    graph, _ = run(find_recipe("inference"), loop_graph("cell"))
    _compare(convert(graph), graph, {"x": images(3)})


def test_loop_that_no_output_needs_is_ignored() -> None:
    graph, _ = run(find_recipe("inference"), loop_graph("nested"))
    [layer] = [node.name for node in graph.nodes.values() if node.op == "Relu"]
    converted = convert(graph.with_endpoints(["x"], [layer]))
    assert "Conv" in converted.op_counts
    assert "Loop" not in converted.op_counts
    end = next(node.inputs[0] for node in graph.nodes.values() if node.name == "logits")
    assert "MatMul" in convert(graph.with_endpoints([end], ["y"])).op_counts


def test_error_names_all_nodes_of_all_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))  # failures are cached

    def build(tf: Any, x: Any) -> Any:
        def step(i: Any, y: Any) -> Any:
            return i + 1, tf.cond(y[0, 0] > 0.0, lambda: tf.math.lgamma(y, "a"), lambda: tf.math.digamma(y, "b"))

        return tf.while_loop(lambda i, _: i < 3, step, [0, tf.math.bessel_i0e(x, "c")])[1]

    monkeypatch.setitem(CASES, build, ({"x": [2, 3]}, {}))
    with pytest.raises(UnavailableError) as caught:
        to_onnx_graph(frozen(build, True))
    for name, op in (("a", "Lgamma"), ("b", "Digamma"), ("c", "BesselI0e")):
        assert re.search(rf"'[^' ]*{name}(_0)?(/\w+)?' \({op}\)", caught.value.message), caught.value.message


def _compare(converted: Graph, graph: Graph, feeds: Mapping[str, Array]) -> None:
    runtime = find_runtime("onnxruntime")
    if not runtime.available().ok:
        pytest.skip(runtime.available().detail)
    with open_session(graph, "tensorflow") as session:
        expected = session.run(feeds)
    with runtime.open(converted) as session:
        outputs = session.run(feeds)
    assert outputs.keys() == expected.keys()
    for name, values in outputs.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-5)


def test_lists_written_in_another_order_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def reverse(tf: Any, x: Any) -> Any:
        rows = tf.TensorArray(tf.float32, 5)
        step: Any = lambda i, rows: (i + 1, rows.write(4 - i, x[:, i]))  # noqa: E731
        return tf.while_loop(lambda i, *_: i < 5, step, [0, rows])[1].stack()

    monkeypatch.setitem(CASES, reverse, ({"x": [2, 5, 3]}, {}))
    with pytest.raises(UnavailableError, match="does not write element i of the list '.*' in iteration i") as caught:
        convert(frozen(reverse, False))
    assert "element_shape" in caught.value.hint
