"""One ONNX file with a custom domain, an If, a Loop, opset 25 and external data: transformed and quantized."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit import formats

onnx = pytest.importorskip("onnx", reason="pip install onnx")
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.engine
OPSET, DOMAIN = 25, "example.domain"
ROWS = (4, 16)
RANDOM = np.random.default_rng(3)


def tensor(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(RANDOM.normal(0, 0.3, shape).astype(np.float32), name)


def value(name: str, dtype: int = TensorProto.FLOAT, shape: tuple[int, ...] | None = ROWS) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def branch(op: str) -> Any:
    """Return a branch with a layer of its own."""
    nodes = [
        helper.make_node("MatMul", ["first", f"{op}_w"], [f"{op}_product"]),
        helper.make_node(op, [f"{op}_product"], [f"{op}_out"]),
    ]
    return helper.make_graph(nodes, op, [], [value(f"{op}_out")], [tensor(f"{op}_w", 16, 16)])


def body() -> Any:
    """Return the body of a loop with a layer."""
    nodes = [
        helper.make_node("MatMul", ["state", "loop_w"], ["next"]),
        helper.make_node("Identity", ["go"], ["go_on"]),
    ]
    inputs = [value("turn", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("state")]
    outputs = [value("go_on", TensorProto.BOOL, ()), value("next")]
    return helper.make_graph(nodes, "body", inputs, outputs, [tensor("loop_w", 16, 16)])


def write(folder: Path) -> Path:
    """Write the model, with its large tensors in a second file.

    The function of the custom domain makes the file run in ONNX Runtime.
    """
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("MatMul", ["same", "w"], ["first"], name="first"),
        helper.make_node("If", ["flag"], ["chosen"], name="if", then_branch=branch("Relu"), else_branch=branch("Neg")),
        helper.make_node("Loop", ["count", "", "chosen"], ["looped"], name="loop", body=body()),
        helper.make_node("Twice", ["looped"], ["custom"], name="custom", domain=DOMAIN),
        helper.make_node("MatMul", ["custom", "v"], ["y"], name="last"),
    ]
    initializers = [tensor("w", 16, 16), tensor("v", 16, 512), numpy_helper.from_array(np.int64(2), "count")]
    inputs = [value("x"), value("flag", TensorProto.BOOL, ())]
    graph = helper.make_graph(nodes, "network", inputs, [value("y", shape=(4, 512))], initializers)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    twice = helper.make_function(
        DOMAIN, "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets[:1]
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=[twice], ir_version=10)
    path = folder / "everything.onnx"
    onnx.save(model, path, save_as_external_data=True, location="everything.data", size_threshold=4096)
    return path


def read(path: Path) -> tuple[Any, dict[str, Any]]:
    model = onnx.load(path)
    return model, {node.output[0]: node for node in model.graph.node}


def test_everything_unknown_stays_byte_for_byte(tmp_path: Path) -> None:
    source = write(tmp_path)
    assert (tmp_path / "everything.data").is_file()
    before, nodes = read(source)
    random = np.random.default_rng(4)
    feeds = [{"x": random.normal(0, 1, ROWS).astype(np.float32), "flag": np.array(n % 2 == 0)} for n in range(6)]
    transformed, quantized = tmp_path / "transformed.onnx", tmp_path / "int8.onnx"
    qk.transform(source, "inference", output=transformed, verify=True)
    result = qk.quantize(source, feeds, runs=0, output=quantized)
    assert {pattern.layer for pattern in result.plan.patterns} == {"first", "y"}
    census = result.report.census
    # 16 * 16 MACs for each of 4 rows: one branch runs, and two iterations.
    fallbacks = {node.name: (node.macs, node.reason) for node in census.float_fallbacks}
    stay = "the layers of its subgraphs stay float"
    assert fallbacks["chosen"] == (1024, f"{stay}: Relu_product (MatMul), Neg_product (MatMul)")
    assert fallbacks["looped"] == (2048, f"{stay}: next (MatMul)")
    assert (census.int8_macs, census.float_macs) == (1024 + 4 * 16 * 512, 3072)
    assert not census.unknown_macs
    with qk.open_session(source, "onnxruntime") as session:
        expected = session.run(feeds[0])["y"]
    for path, least in ((transformed, 100), (quantized, 25)):
        after, others = read(path)
        assert {entry.domain: entry.version for entry in after.opset_import} == {"": OPSET}, "functions are inlined"
        assert not after.functions
        for name in ("chosen", "looped"):
            assert others[name].attribute == nodes[name].attribute, name
        assert (after.graph.input, after.graph.output) == (before.graph.input, before.graph.output)
        with qk.open_session(path, "onnxruntime") as session:
            error = session.run(feeds[0])["y"] - expected
        assert 10 * np.log10((expected**2).mean() / max((error**2).mean(), 1e-20)) > least
    assert "first" in formats.load(quantized)
