"""Inlining of ONNX branches: names, captured values, nested branches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats.onnx.schema import message_class
from quantkit.ir.graph import Graph
from quantkit.recipes import rewrite
from quantkit.runtimes import find_runtime
from quantkit.transforms.cleanup.remove_dead_branches import remove_dead_branches

X = np.array([1, -2], np.float32)


def add_info(message: Any, name: str, kind: int = 1, *dims: int) -> None:
    value = message.add(name=name)
    value.type.tensor_type.elem_type = kind
    value.type.tensor_type.shape.SetInParent()
    for size in dims:
        value.type.tensor_type.shape.dim.add(dim_value=size)


def add_if(graph: Any, condition: str, output: str, then: str, other: str) -> Any:
    """Add an If whose branches apply an op each to the outer value x, as the value ``inner``."""
    node = graph.node.add(op_type="If", input=[condition], output=[output], name=f"node_{output}")
    for name, op in (("then_branch", then), ("else_branch", other)):
        branch = node.attribute.add(name=name, type=5).g
        branch.name = name
        branch.node.add(op_type=op, input=["x"], output=["inner"])
        branch.node.add(op_type="Exp", input=["inner"], output=["result"])
        add_info(branch.output, "result", 1, 2)
    return node


def model() -> Any:
    """Return a model whose first two conditions follow from the shape of x; the third is an input."""
    message = message_class("ModelProto")(ir_version=8)
    message.opset_import.add(domain="", version=17)
    graph = message.graph
    graph.name = "g"
    add_info(graph.input, "x", 1, 2)
    add_info(graph.input, "flag", 9)
    graph.initializer.add(name="two", data_type=7, int64_data=[2])
    graph.node.add(op_type="Size", input=["x"], output=["size"])
    graph.node.add(op_type="Equal", input=["size", "two"], output=["is_two"])
    graph.node.add(op_type="Less", input=["size", "two"], output=["is_less"])
    for condition, output in (("is_two", "a"), ("is_less", "b"), ("flag", "c")):
        add_if(graph, condition, output, "Neg", "Abs")
        add_info(graph.output, output, 1, 2)
    return message


def test_constant_conditions_are_inlined() -> None:
    graph = qk.load(model()).graph
    outcome = remove_dead_branches.outcome(graph)
    assert outcome.changes == ("a (If) always runs then_branch", "b (If) always runs else_branch")
    assert [str(skip) for skip in outcome.skips] == ["c: condition flag is not constant"]
    counts = rewrite(outcome.graph, "strip_unused_nodes").op_counts
    assert {op: counts[op] for op in ("Neg", "Abs", "Exp", "If")} == {"Neg": 1, "Abs": 1, "Exp": 2, "If": 1}
    assert [edge.node for edge in outcome.graph.outputs] == ["a", "b", "c"]


@pytest.mark.engine
@pytest.mark.skipif(not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed")
@pytest.mark.parametrize("is_nested", [False, True])
def test_outputs_stay(is_nested: bool, tmp_path: Path) -> None:
    message = model()
    if is_nested:
        branch = next(node for node in message.graph.node if node.op_type == "If").attribute[0].g
        branch.node.pop()
        inner = add_if(branch, "is_less", "result", "Neg", "Sqrt")
        for attribute in inner.attribute:  # the nested branches use a value of the branch around them
            attribute.g.node[0].input[0] = "inner"
            attribute.g.node[0].output[0] = "innermost"
            attribute.g.node[1].input[0] = "innermost"
            attribute.g.node[1].output[0] = attribute.g.output[0].name = f"{attribute.name}/result"
    before = qk.load(message).graph
    after = rewrite(before, "inference")
    assert after.op_counts["If"] == 1
    for flag in (True, False):
        expected, actual = (_run(graph, flag) for graph in (before, after))
        for name, values in expected.items():
            np.testing.assert_array_equal(actual[name], values)


def _run(graph: Graph, flag: bool) -> Any:
    with qk.open_session(graph, "onnxruntime") as session:
        return session.run({"x": X, "flag": np.array(flag)})


def test_a_branch_without_condition_is_skipped() -> None:
    message = model()
    for node in message.graph.node:
        if node.op_type == "If":
            del node.input[:]
    outcome = remove_dead_branches.outcome(qk.load(message).graph)
    assert {skip.reason for skip in outcome.skips} == {"the node has no condition"}
    assert not outcome.changes
