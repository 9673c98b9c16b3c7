"""Tests of the transforms for ONNX graphs: value names and the references of subgraphs stay valid."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import GraphError
from quantkit.formats import onnx
from quantkit.formats.onnx.schema import message_class
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.recipes import parse, rewrite, run
from quantkit.recipes.verify import make_verifier
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import Session
from quantkit.transforms.registry import REGISTRY, names_for

X = np.array([[1, -2, 3, -4]], np.float32)
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
    """Return a model with duplicates, no-ops, a Split, an omitted input, and branches that use outer values."""
    message = message_class("ModelProto")(ir_version=8, producer_name="exporter")
    message.opset_import.add(domain="", version=17)
    graph = message.graph
    graph.name = "g"
    info(graph.input.add(), "x", 1, 1, 4)
    info(graph.input.add(), "flag", 9)
    info(graph.output.add(), "y", 1, 1, 2)
    info(graph.output.add(), "selected", 1, 1, 4)
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
        ("Identity", ["sum"], ["outer"]),
        ("Resize", ["x", "", "", "sizes"], ["resized"]),
    ]:
        node = graph.node.add(op_type=op, input=inputs, output=outputs, name=f"secret_{outputs[0]}")
        if op == "Split":
            node.attribute.add(name="axis", type=2, i=1)
    conditional = graph.node.add(op_type="If", input=["flag"], output=["selected"])
    for name, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        branch = conditional.attribute.add(name=name, type=5).g
        branch.name = name
        branch.node.add(op_type=op, input=["outer"], output=[f"{name}/y"])
        info(branch.output.add(), f"{name}/y", 1, 1, 4)
    return qk.load(message).graph


RECIPE = (
    "strip_unused_nodes remove_nodes(op=Identity) merge_duplicate_nodes merge_duplicate_nodes "
    "obfuscate_names sort_by_execution_order strip_unused_nodes"
)


def test_recipe_keeps_needed_nodes() -> None:
    graph = rewrite(model(), RECIPE)
    counts = {"Add": 2, "Clip": 1, "Constant": 2, "Identity": 1, "If": 1, "Placeholder": 2, "Relu": 1, "Split": 1}
    assert dict(sorted(graph.op_counts.items())) == counts
    assert {"x", "flag", "y", "selected", "outer"} <= graph.nodes.keys()
    data = onnx.encode(graph)
    for name in (b"secret", b"clipped", b"other"):
        assert name not in data


@needs_onnxruntime
@pytest.mark.engine
@pytest.mark.parametrize("name", [*names_for("onnx"), "all"])
def test_outputs_stay(name: str, tmp_path: Path) -> None:
    options = {
        "rename_node": "(old_node_name=sum, new_node_name=total)",
        "rename_op": "(old_op_name=Absent, new_op_name=New)",
        "rename_attribute": "(old_attribute_name=absent, new_attribute_name=new)",
        "remove_attribute": "(attribute_name=absent)",
        "remove_nodes": "(op=Identity)",
    }
    recipe = RECIPE if name == "all" else f"{name}{options.get(name, '')}"
    rtol = 0.0 if name == "all" or REGISTRY[name].is_exact else 1e-2
    before = rewrite(model(), "strip_unused_nodes")
    after = rewrite(before, recipe)
    qk.save(after, tmp_path / "after.onnx")
    for flag in (True, False):
        feeds = {"x": X, "flag": np.bool_(flag)}
        with _open(before) as session, _open(tmp_path / "after.onnx") as session_after:
            expected, actual = session.run(feeds), session_after.run(feeds)
        assert expected.keys() == actual.keys()
        for key, values in expected.items():
            np.testing.assert_allclose(values, actual[key], rtol=rtol)


def _open(graph: Graph | Path) -> Session:
    return qk.open_session(graph, "onnxruntime")


def test_node_used_in_branch_keeps_its_name() -> None:
    with pytest.raises(GraphError, match="cannot rename 'outer': a loop or branch refers to the node"):
        rewrite(model(), "rename_node(old_node_name=outer, new_node_name=other)")
    outcome = REGISTRY["remove_nodes"].outcome(model(), op=("Identity",))
    assert [str(skip) for skip in outcome.skips] == ["outer: a loop or branch refers to the node by name"]


def test_renamed_output_keeps_its_type(tmp_path: Path) -> None:
    graph = rewrite(model(), "strip_unused_nodes rename_node(old_node_name=y, new_node_name=scores)")
    assert graph.outputs[0] == Edge("scores")
    assert onnx.value_infos(graph)[Edge("scores")] == onnx.value_infos(model())[Edge("y")]


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - set(names_for("onnx"))))
def test_transform_without_onnx_dialect_is_rejected(name: str) -> None:
    with pytest.raises(
        GraphError, match=f"{name} rewrites TensorFlow graphs, and the dialect of this graph is ONNX"
    ) as caught:
        REGISTRY[name].outcome(model())
    assert "merge_duplicate_nodes" in caught.value.hint


def test_verification_chooses_sizes_that_the_graph_accepts() -> None:
    graph = from_text("""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x2x?x?]()
        pooled = AveragePool(x, kernel_shape=[40, 40], strides=[1, 1])
        same = Identity(pooled)
        y = Relu(same)
    """)
    check = make_verifier(qk.load(graph), graph, runtime="reference")
    _, trace = run(parse("remove_nodes(op=Identity)"), graph, check=check)
    assert trace.records[0].check
    assert check.feeds
    assert min(check.feeds[0]["x"].shape[2:]) >= 40


def test_onnx_graphs_are_verified_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr("quantkit.recipes.verify.open_session", lambda graph, runtime: opened.append(runtime))
    make_verifier(qk.load(model()), model()).open_session(model())
    assert opened == ["onnxruntime" if find_runtime("onnxruntime").available().ok else "reference"]


def test_chosen_input_sizes_make_shape_arithmetic_constant(tmp_path: Path) -> None:
    graph = from_text("""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[?x2x?]()
        sizes = Shape(x)
        first = Constant[int64]([0])
        begin = Constant[int64]([1])
        rest = Constant[int64]([-1])
        n = Slice(sizes, first, begin)
        target = Concat(n, rest, axis=0)
        flat = Reshape(x, target)
        y = Relu(flat)
    """)
    qk.save(graph.with_(extra=onnx.header({"y": (DType.FLOAT, Shape((None, None)))})), tmp_path / "in.onnx")
    model = qk.transform(tmp_path / "in.onnx", "inference", input_shapes={"x": (3, 2, 5)}, verify=True)
    assert set(model.graph.op_counts) == {"Placeholder", "Constant", "Reshape", "Relu"}
    (shape,) = [node.value.array.tolist() for node in model.graph.nodes.values() if node.is_constant]
    assert shape == [3, -1]


@pytest.mark.parametrize("first", ["Gather(sizes, zero, axis=0)", "Slice(sizes, zero, one)"])
@pytest.mark.parametrize("second", ["Gather(sizes, one, axis=0)", "Slice(sizes, one, two)"])
def test_copied_sizes_of_a_reshape_become_constant(first: str, second: str) -> None:
    text = f"""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[?x?x4x2]()
        sizes = Shape(x)
        zero = Constant[int64]([0])
        one = Constant[int64]([1])
        two = Constant[int64]([2])
        rest = Constant[int64]([8])
        n = {first}
        m = {second}
        target = Concat(n, m, rest, axis=0)
        flat = Reshape(x, target)
        y = Relu(flat)
    """
    graph = rewrite(from_text(text), "inference")
    assert [node.value.array.tolist() for node in graph.nodes.values() if node.is_constant] == [[0, 0, 8]]
    assert set(graph.op_counts) == {"Placeholder", "Constant", "Reshape", "Relu"}
    exchanged = rewrite(from_text(text.replace("n, m", "m, n")), "inference")
    assert "Concat" in exchanged.op_counts, "the sizes are those of other axes"
