"""Transforms that need no knowledge of ops, on ONNX graphs: values keep their names, and subgraphs what they read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import GraphError
from quantkit.formats import onnx
from quantkit.formats.onnx.schema import message_class
from quantkit.ir.graph import Edge, Graph
from quantkit.recipes import rewrite
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import Session
from quantkit.transforms.registry import REGISTRY, names_for

X = np.float32([[1, -2, 3, -4]])
needs_onnxruntime = pytest.mark.skipif(
    not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"
)


def info(message: Any, name: str, kind: int, *dims: int) -> None:
    message.name = name
    message.type.tensor_type.elem_type = kind
    message.type.tensor_type.shape.SetInParent()
    for size in dims:
        message.type.tensor_type.shape.dim.add(dim_value=size)


def model() -> Graph:
    """Duplicates, passing nodes, an op of two values, an input that is left out, and a branch that reads by name."""
    message = message_class("ModelProto")(ir_version=8, producer_name="somebody")
    message.opset_import.add(domain="", version=17)
    graph = message.graph
    graph.name = "g"
    info(graph.input.add(), "x", 1, 1, 4)
    info(graph.input.add(), "flag", 9)
    info(graph.output.add(), "y", 1, 1, 2)
    info(graph.output.add(), "chosen", 1, 1, 4)
    graph.initializer.add(name="low", data_type=1, float_data=[-1.0])
    graph.initializer.add(name="sizes", data_type=7, dims=[2], int64_data=[2, 2])
    graph.initializer.add(name="unused", data_type=1, float_data=[5.0])
    for op, inputs, outputs in [
        ("Identity", ["x"], ["same"]),
        ("Relu", ["same"], ["first"]),
        ("Relu", ["x"], ["second"]),
        ("Add", ["first", "second"], ["sum"]),
        ("Clip", ["sum", "low"], ["clipped"]),
        ("Split", ["clipped", "sizes"], ["left", "right"]),
        ("Split", ["clipped", "sizes"], ["other_left", "other_right"]),
        ("Add", ["right", "other_right"], ["y"]),
        ("Identity", ["sum"], ["kept"]),
        ("Resize", ["x", "", "", "sizes"], ["never"]),
    ]:
        node = graph.node.add(op_type=op, input=inputs, output=outputs, name=f"secret_{outputs[0]}")
        if op == "Split":
            node.attribute.add(name="axis", type=2, i=1)
    choice = graph.node.add(op_type="If", input=["flag"], output=["chosen"])
    for name, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        branch = choice.attribute.add(name=name, type=5).g
        branch.name = name
        branch.node.add(op_type=op, input=["kept"], output=[f"{name}/y"])
        info(branch.output.add(), f"{name}/y", 1, 1, 4)
    return qk.load(message).graph


RECIPE = (
    "strip_unused_nodes remove_nodes(op=Identity) merge_duplicate_nodes merge_duplicate_nodes "
    "obfuscate_names sort_by_execution_order strip_unused_nodes"
)


def test_the_recipe_leaves_what_is_needed() -> None:
    graph = rewrite(model(), RECIPE)
    counts = {"Add": 2, "Clip": 1, "Constant": 2, "Identity": 1, "If": 1, "Placeholder": 2, "Relu": 1, "Split": 1}
    assert dict(sorted(graph.op_counts.items())) == counts
    assert {"x", "flag", "y", "chosen", "kept"} <= graph.nodes.keys()
    data = onnx.encode(graph)
    for name in (b"secret", b"clipped", b"other"):
        assert name not in data


@needs_onnxruntime
@pytest.mark.engine
@pytest.mark.parametrize("name", [*names_for("onnx"), "all"])
def test_answers_stay(name: str, tmp_path: Path) -> None:
    options = {
        "rename_node": "(old_node_name=sum, new_node_name=total)",
        "rename_op": "(old_op_name=Never, new_op_name=Again)",
        "rename_attribute": "(old_attribute_name=never, new_attribute_name=again)",
        "remove_attribute": "(attribute_name=never)",
        "remove_nodes": "(op=Identity)",
    }
    recipe = RECIPE if name == "all" else f"{name}{options.get(name, '')}"
    loose = {"rtol": 0.0 if name == "all" or REGISTRY[name].is_exact else 1e-2}
    before = rewrite(model(), "strip_unused_nodes")
    after = rewrite(before, recipe)
    qk.save(after, tmp_path / "after.onnx")
    for flag in (True, False):
        feeds = {"x": X, "flag": np.bool_(flag)}
        with _opened(before) as one, _opened(tmp_path / "after.onnx") as other:
            wanted, found = one.run(feeds), other.run(feeds)
        assert wanted.keys() == found.keys()
        for key, values in wanted.items():
            np.testing.assert_allclose(values, found[key], **loose)


def _opened(graph: Graph | Path) -> Session:
    return qk.open_session(graph, "onnxruntime")


def test_what_a_branch_reads_by_name_stays() -> None:
    with pytest.raises(GraphError, match="kept can not be renamed: a loop or branch refers to it"):
        rewrite(model(), "rename_node(old_node_name=kept, new_node_name=other)")
    outcome = REGISTRY["remove_nodes"].outcome(model(), op=("Identity",))
    assert [str(skip) for skip in outcome.skips] == ["kept: a loop or branch refers to the node by name"]


def test_a_renamed_output_keeps_its_type(tmp_path: Path) -> None:
    graph = rewrite(model(), "strip_unused_nodes rename_node(old_node_name=y, new_node_name=answer)")
    assert graph.outputs[0] == Edge("answer")
    assert onnx.value_infos(graph)[Edge("answer")] == onnx.value_infos(model())[Edge("y")]


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - set(names_for("onnx"))))
def test_others_refuse_with_a_sentence(name: str) -> None:
    with pytest.raises(
        GraphError, match=f"{name} rewrites TensorFlow graphs, and the dialect of this graph is ONNX"
    ) as caught:
        REGISTRY[name].outcome(model())
    assert "merge_duplicate_nodes" in caught.value.hint
