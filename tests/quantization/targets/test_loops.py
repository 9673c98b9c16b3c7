"""While loops of TensorFlow 1: loops stay float, the layers outside become int8."""

from pathlib import Path

import numpy as np
import pytest
from while_loops import LOOPS, images, loop_graph

from quantkit.convert.to_litert import to_litert
from quantkit.errors import UnavailableError
from quantkit.ops.tensorflow.frames import find_loop_nodes
from quantkit.quantization import Scheme, annotate, calibrate, convert
from quantkit.quantization.targets import find_target
from quantkit.recipes import run
from quantkit.recipes.named import find_recipe
from quantkit.runtimes import open_session
from quantkit.runtimes.tensorflow import RUNTIME

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail),
]
REASON = "while loops of TensorFlow 1 stay float"
LOOP_OPS = ("Enter", "Exit", "NextIteration", "Merge", "Switch", "LoopCond", "Tanh")
# Largest error of a probability.
NOISE = 0.05


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("target", ["tensorflow", "eightbit"])
def test_loops_stay_float_and_other_layers_become_int8(kind: str, target: str) -> None:
    graph, _ = run(find_recipe("inference"), loop_graph(kind))
    loop_nodes = find_loop_nodes(graph)
    plan = annotate(graph, Scheme.for_target(target))
    assert {plan.float_fallbacks[name] for name in loop_nodes & plan.float_fallbacks.keys()} == {REASON}
    assert all(graph[edge.node].op == "Exit" for edge in plan.edges if edge.node in loop_nodes)
    assert {"Conv2D", "logits"} <= {pattern.layer for pattern in plan.patterns}

    quantized = convert(graph, plan, calibrate(graph, plan, [images()], runtime="tensorflow"))
    assert {op: quantized.op_counts.get(op) for op in LOOP_OPS} == {op: graph.op_counts.get(op) for op in LOOP_OPS}
    assert any("Quantized" in op and "Conv2D" in op for op in quantized.op_counts)
    with open_session(graph, "tensorflow") as session:
        expected = session.run({"x": images()})["y"]
    with open_session(quantized, "tensorflow") as session:
        np.testing.assert_allclose(session.run({"x": images()})["y"], expected, atol=NOISE)
    assert np.ptp(expected, axis=0).max() > 2 * NOISE


def test_onnx_target_has_float_loop_and_int8_layers() -> None:
    graph, _ = run(find_recipe("inference"), loop_graph("cell"))
    scheme = Scheme.for_target("onnx")
    plan = annotate(graph, scheme)
    quantized = convert(graph, plan, calibrate(graph, plan, [images()]))
    assert quantized.op_counts["Loop"] == 1
    assert {"BiasAdd", "logits"} <= {pattern.layer for pattern in plan.patterns}
    assert quantized.op_counts["QuantizeLinear"] > 1
    with open_session(graph, "tensorflow") as session:
        expected = session.run({"x": images()})["y"]
    with open_session(quantized, "onnxruntime") as session:
        np.testing.assert_allclose(session.run({"x": images()})["y"], expected, atol=NOISE)


@pytest.mark.parametrize("kind", ["cell", "nested"])
def test_litert_target_has_float_loop_and_int8_layers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pytest.importorskip("tensorflow.lite.python.schema_py_generated", reason="pip install tensorflow")
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    graph, _ = run(find_recipe("inference"), loop_graph(kind))
    plan = annotate(graph, Scheme.for_target("litert"))
    quantized = convert(graph, plan, calibrate(graph, plan, [images()], runtime="tensorflow"))
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(to_litert(quantized), 0))
    outside, *loops = ({tensor.type for tensor in subgraph.tensors} for subgraph in model.subgraphs)
    assert schema.TensorType.INT8 in outside
    assert set.union(*loops) == {schema.TensorType.FLOAT32, schema.TensorType.INT32, schema.TensorType.BOOL}
    with open_session(graph, "tensorflow") as session:
        expected = session.run({"x": images()})["y"]
    with open_session(quantized, "litert") as session:
        np.testing.assert_allclose(session.run({"x": images()})["y"], expected, atol=NOISE)


def test_litert_target_rejects_end_of_loop_as_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))  # failures are cached
    graph = loop_graph("cell")
    end = next(node.name for node in graph.nodes.values() if node.op == "Exit")
    with pytest.raises(UnavailableError, match=f"output is the end of a loop, '{end}'"):
        find_target("litert").check_form(graph.with_endpoints(["x"], [end]))
