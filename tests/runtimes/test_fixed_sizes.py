"""Sizes that are dynamic by declaration only are named in place of the reason of the runtime."""

from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import GraphError
from quantkit.formats.files import save
from quantkit.ir.text import from_text
from quantkit.recipes.verify import make_verifier
from quantkit.runtimes import open_session
from quantkit.transforms.registry import REGISTRY

# The attention of an exported transformer, whose Reshape states the length of the example.
GRAPH = from_text(
    """
    dialect: onnx
    inputs: ids
    outputs: y
    ids = Placeholder[?x?](dtype=int64)
    table = Constant[50x32]()
    x = Gather(table, ids)
    heads = Constant[int64]([-1, 16, 4, 8])
    r = Reshape(x, heads)
    flat = Constant[int64]([-1, 16, 32])
    a = Reshape(r, flat)
    y = Add(a, x)
    """
)
SENTENCE = "input 'ids' is dynamic by declaration, but the graph fixes its length to 16"
RUNTIMES = ["reference", *(pytest.param(name, marks=pytest.mark.engine) for name in ("onnxruntime", "openvino"))]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_error_names_the_size_that_the_graph_fixes(runtime: str) -> None:
    with open_session(GRAPH, runtime) as session:
        assert session.run({"ids": np.zeros((3, 16), np.int64)})["y"].shape == (3, 16, 32)
        with pytest.raises(GraphError) as caught:
            session.run({"ids": np.zeros((3, 8), np.int64)})
    assert caught.value.message == f"{SENTENCE}, and the samples have the shape 3x8"
    assert "dynamo=True" in caught.value.hint
    assert "--input-shape" not in caught.value.hint  # the batch is dynamic


def test_hint_for_sizes_that_weights_require_names_no_export() -> None:
    graph = from_text(
        "dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[?x?]()\nw = Constant[32x4]()\ny = MatMul(x, w)"
    )
    with open_session(graph, "reference") as session, pytest.raises(GraphError, match="length to 32") as caught:
        session.run({"x": np.zeros((3, 8), np.float32)})
    assert caught.value.hint == "pass samples of shape ?x32"
    check = make_verifier(qk.load(graph), graph)
    check(graph, graph, REGISTRY["sort_by_execution_order"])
    assert "dynamo" not in check.warning


def test_hint_states_a_fixed_batch() -> None:
    graph = GRAPH.with_nodes(
        from_text("flat = Constant[int64]([2, 16, 32])")["flat"] if node.name == "flat" else node
        for node in GRAPH.nodes.values()
    )
    with (
        open_session(graph, "reference") as session,
        pytest.raises(GraphError, match="fixes its sizes to 2x16") as caught,
    ):
        session.run({"ids": np.zeros((3, 8), np.int64)})
    assert "--input-shape ids:2x16" in caught.value.hint


@pytest.mark.engine
def test_verification_and_benchmark_use_the_size(tmp_path: Path) -> None:
    check = make_verifier(qk.load(GRAPH), GRAPH)
    check(GRAPH, GRAPH, REGISTRY["sort_by_execution_order"])
    assert check.feeds[0]["ids"].shape == (2, 16)
    assert check.warning.startswith(SENTENCE)
    save(GRAPH, tmp_path / "model.onnx")
    report = qk.benchmark([tmp_path / "model.onnx"], runs=2, runtime="onnxruntime")
    assert report.rows[0].measurement is not None


@pytest.mark.engine
@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        ("onnxruntime", "a node of type Add: ONNX Runtime rejects it: Attempting to broadcast"),
        ("openvino", "OpenVINO rejects the graph: Add node with name 'y': "),
    ],
)
def test_reasons_of_runtimes_have_no_source_text(runtime: str, reason: str) -> None:
    graph = from_text(
        "dialect: onnx\ninputs: a, b\noutputs: y\na = Placeholder[?x?]()\nb = Placeholder[?x?]()\ny = Add(a, b)"
    )
    with open_session(graph, runtime) as session, pytest.raises(GraphError) as caught:
        session.run({name: np.zeros((2, size), np.float32) for name, size in (("a", 3), ("b", 5))})
    assert caught.value.message.startswith(reason)
    assert "::" not in caught.value.message
    assert ".cpp" not in caught.value.message
