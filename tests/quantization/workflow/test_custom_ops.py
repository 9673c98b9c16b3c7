"""Custom ops without a kernel: the part of the graph before them is calibrated, quantized and measured."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from varying_sizes import CONSTANTS, FLOAT, IMAGES, NODE, STEM

import quantkit as qk
from quantkit.errors import UnavailableError
from quantkit.ir.graph import Edge
from quantkit.quantization.workflow import custom_ops
from quantkit.quantization.workflow.custom_ops import cut_custom_ops
from quantkit.runtimes import find_runtime

pytest.importorskip("onnx", reason="pip install onnx")
import onnx

pytestmark = pytest.mark.engine
CONVOLUTION = NODE("Conv", ["r", "v"], ["c"])
# Nodes after the stem, and the outputs of the part before the custom op.
TAILS = {
    "end": ([CONVOLUTION, NODE("Acme", ["c"], ["y"], domain="com.acme")], ["c"]),
    "two inputs": ([CONVOLUTION, NODE("Acme", ["c", "r"], ["y"], domain="com.acme")], ["c", "r"]),
    "before a layer": ([NODE("Acme", ["r"], ["a"], domain="com.acme"), NODE("Conv", ["a", "v"], ["y"])], ["r"]),
    "constant": ([CONVOLUTION, NODE("Acme", ["c", "half"], ["y"], domain="com.acme")], ["c"]),
    "omitted input": ([CONVOLUTION, NODE("Acme", ["c", "", "half"], ["y"], domain="com.acme")], ["c"]),
    "beside layers": (
        [CONVOLUTION, NODE("Acme", ["x"], ["a"], domain="com.acme"), NODE("Add", ["c", "a"], ["y"])],
        ["c"],
    ),
}


def write(name: str, folder: Path) -> Path:
    return save(TAILS[name][0], ["y"], folder)


def save(nodes: Sequence[Any], outputs: Sequence[str], folder: Path) -> Path:
    used = {edge for node in (*STEM, *nodes) for edge in node.input}
    arrays = {edge: np.asarray(CONSTANTS[edge], np.float32) for edge in sorted(used & CONSTANTS.keys())}
    graph = onnx.helper.make_graph(
        [*STEM, *nodes],
        "network",
        [onnx.helper.make_tensor_value_info("x", FLOAT, [1, 3, 16, 16])],
        [onnx.helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(array, edge) for edge, array in arrays.items()],
    )
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.acme", 1)]
    path = folder / "acme.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=domains, ir_version=8), path)
    return path


@pytest.mark.parametrize("name", TAILS)
def test_the_part_before_a_custom_op_is_quantized(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    messages: list[str] = []
    result = qk.quantize(path, IMAGES, runs=0, output=tmp_path / "q.onnx", on_message=messages.append)
    assert any("com.acme.Acme" in message for message in messages)
    assert cut_custom_ops(qk.load(path).graph).outputs == tuple(map(Edge, TAILS[name][1]))
    assert result.report.accuracy.sqnr is not None
    assert result.report.accuracy.sqnr.worst > 20
    assert result.report.next_step is not None
    assert result.report.next_step.command.endswith("q.onnx --custom-op-library LIBRARY")
    written = onnx.load(tmp_path / "q.onnx").graph
    assert [output.name for output in written.output] == ["y"]
    (custom,) = [node for node in written.node if node.domain == "com.acme"]
    produced = {edge for node in written.node for edge in node.output} | {t.name for t in written.initializer} | {"x"}
    assert all(edge in produced for node in written.node for edge in node.input if edge)
    (tail,) = [node for node in TAILS[name][0] if node.domain]
    assert len(custom.input) == len(tail.input)
    assert any(node.op_type == "QuantizeLinear" for node in written.node)
    assert "com.acme.Acme" in result.model.graph.op_counts


def branch(name: str, op: str) -> Any:
    info = onnx.helper.make_tensor_value_info(name, FLOAT, None)
    return onnx.helper.make_graph(
        [NODE(op, ["c"], [name], domain="com.acme" if op == "Acme" else "")], name, [], [info]
    )


@pytest.mark.parametrize("name", ["two outputs", "two custom ops", "another output", "branch"])
def test_files_keep_all_outputs_around_custom_ops(name: str, tmp_path: Path) -> None:
    nodes, outputs = {
        "two outputs": ([CONVOLUTION, NODE("Acme", ["c"], ["y", "z"], domain="com.acme")], ["y", "z"]),
        "two custom ops": (
            [
                NODE("Acme", ["r"], ["a"], domain="com.acme"),
                NODE("Conv", ["a", "v"], ["d"]),
                NODE("Acme", ["d"], ["y"], domain="com.acme"),
            ],
            ["y"],
        ),
        "another output": (
            [CONVOLUTION, NODE("Acme", ["r"], ["z"], domain="com.acme"), NODE("Relu", ["c"], ["y"])],
            ["y", "z"],
        ),
        "branch": (
            [
                *(CONVOLUTION, NODE("ReduceMax", ["c"], ["m"], keepdims=0), NODE("Greater", ["m", "half"], ["flag"])),
                NODE("If", ["flag"], ["y"], then_branch=branch("t", "Acme"), else_branch=branch("e", "Neg")),
            ],
            ["y"],
        ),
    }[name]
    path = save(nodes, outputs, tmp_path)
    report = qk.quantize(path, IMAGES[:6], runs=0, output=tmp_path / "q.onnx").report
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 20
    written = onnx.load(tmp_path / "q.onnx").graph
    assert [output.name for output in written.output] == outputs
    with pytest.raises(UnavailableError) as caught:
        qk.run(path, IMAGES[:2], tmp_path / "out")
    assert "--custom-op-library" in caught.value.hint


def test_custom_ops_of_nested_branches_are_found(tmp_path: Path) -> None:
    """The inner branch uses values of the main graph, which the outer branch does not have."""
    outer = onnx.helper.make_graph(
        [NODE("If", ["flag"], ["o"], then_branch=branch("t", "Acme"), else_branch=branch("e", "Neg"))],
        *("outer", [], [onnx.helper.make_tensor_value_info("o", FLOAT, None)]),
    )
    nodes = [
        *(CONVOLUTION, NODE("ReduceMax", ["c"], ["m"], keepdims=0), NODE("Greater", ["m", "half"], ["flag"])),
        NODE("If", ["flag"], ["y"], then_branch=outer, else_branch=branch("n", "Neg")),
    ]
    assert custom_ops.find_custom_ops(qk.load(save(nodes, ["y"], tmp_path)).graph) == ["y"]


def test_a_custom_op_at_the_start_leaves_no_part(tmp_path: Path) -> None:
    graph = onnx.load(write("end", tmp_path))
    graph.graph.node[0].domain, graph.graph.node[0].op_type = "com.acme", "Acme"
    onnx.save(graph, tmp_path / "first.onnx")
    with pytest.raises(UnavailableError, match="com.acme"):
        qk.quantize(tmp_path / "first.onnx", IMAGES, runs=0)


def test_custom_ops_of_a_library_are_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = qk.load(write("before a layer", tmp_path)).graph
    assert cut_custom_ops(graph) is not graph
    with_library = replace(find_runtime("onnxruntime"), has_custom_op=lambda op: op == "com.acme.Acme")
    monkeypatch.setattr(custom_ops, "runtimes", lambda: {"onnxruntime": with_library})
    assert cut_custom_ops(graph) is graph
    other = replace(with_library, has_custom_op=lambda op: op == "com.acme.Other")
    monkeypatch.setattr(custom_ops, "runtimes", lambda: {"onnxruntime": other})
    assert cut_custom_ops(graph) is not graph
