"""ONNX files with every feature of the format, and real networks: fields and ops that no transform rewrites survive."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.formats import load, onnx, save
from quantkit.formats.onnx.schema import message_class
from quantkit.recipes import rewrite
from quantkit.runtimes import find_runtime, open_session

pytestmark = pytest.mark.engine
NETWORKS = sorted((Path(__file__).parents[2].parent / "shared" / "onnx_models").glob("*.onnx"))
needs_onnxruntime = pytest.mark.skipif(
    not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"
)


def full_model(folder: Path) -> Path:
    """Write a model with a custom op, If, Loop, a function, packed types, external data, metadata, opset 25."""
    package = pytest.importorskip("onnx", reason="pip install onnx")
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str, kind: int = TensorProto.FLOAT, shape: Any = (2, 4)) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    weights = np.linspace(-1, 1, 2048 * 4, dtype=np.float32).reshape(4, 2048)
    half = helper.make_tensor("half", TensorProto.FLOAT16, [4], np.array([1, 2, 3, 4], np.float16).tobytes(), raw=True)
    brain = helper.make_tensor("brain", TensorProto.BFLOAT16, [2], b"\x80\x3f\x00\x40", raw=True)
    quarter = helper.make_tensor("quarter", TensorProto.INT4, [4], b"\x21\xf3", raw=True)
    initializers = [
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(np.float32(0.5), "scale"),
        numpy_helper.from_array(np.array(3), "count"),
        numpy_helper.from_array(np.array(True), "yes"),
        *(half, brain, quarter),
    ]
    then_branch = helper.make_graph(
        [helper.make_node("Neg", ["same"], ["then/y"], doc_string="captures a value")], "then", [], [info("then/y")]
    )
    else_branch = helper.make_graph([helper.make_node("Abs", ["same"], ["else/y"])], "else", [], [info("else/y")])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["going_out"]),
            helper.make_node("Add", ["state", "same"], ["state_out"]),
        ],
        "body",
        [info("step", TensorProto.INT64, []), info("going", TensorProto.BOOL, []), info("state")],
        [info("going_out", TensorProto.BOOL, []), info("state_out")],
    )
    double = helper.make_function(
        "local", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 25)]
    )
    nodes = [
        helper.make_node("Identity", ["x"], ["same"], name="first", doc_string="kept"),
        helper.make_node("If", ["flag"], ["chosen"], then_branch=then_branch, else_branch=else_branch),
        helper.make_node("Loop", ["count", "yes", "x"], ["looped"], body=body),
        helper.make_node("Double", ["chosen"], ["doubled"], domain="local"),
        helper.make_node("DequantizeLinear", ["quarter", "scale"], ["fourth"]),
        helper.make_node("Cast", ["half"], ["halves"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["fourth", "halves"], ["row"]),
        helper.make_node("Add", ["doubled", "row"], ["sum"]),
        helper.make_node("Add", ["sum", "looped"], ["total"]),
        helper.make_node("Identity", ["total"], ["again"]),
        helper.make_node("MatMul", ["again", "weights"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "everything",
        [info("x"), info("flag", TensorProto.BOOL, [])],
        [info("y", shape=(2, 2048))],
        initializers,
        doc_string="a graph",
        value_info=[info("total")],
    )
    opsets = [helper.make_opsetid("", 25), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, functions=[double], opset_imports=opsets, ir_version=11, doc_string="a model")
    helper.set_model_props(model, {"author": "somebody"})
    model.graph.node[0].metadata_props.add(key="stack", value="line 1")
    path = folder / "everything.onnx"
    package.save(model, path, save_as_external_data=True, size_threshold=1024, location="everything.data")
    return path


def with_custom_op(path: Path) -> Path:
    """Write the model with a node of an unknown domain, which no runtime here has."""
    package = pytest.importorskip("onnx", reason="pip install onnx")
    model = package.load(path)
    node = model.graph.node.add(op_type="Mystery", domain="com.example", input=["same", ""], output=["m", "", "n"])
    node.attribute.add(name="setting", type=package.AttributeProto.STRING, s=b"\xff\x00")
    model.graph.output.add(name="n").CopyFrom(package.helper.make_tensor_value_info("n", 1, None))
    model.opset_import.add(domain="com.example", version=7)
    custom = path.with_name("custom.onnx")
    package.save(model, custom)
    return custom


def parts(path: Path) -> dict[str, Any]:
    """Return the parts of a file that no transform concerns, serialized."""
    message = message_class("ModelProto").FromString(path.read_bytes())
    nodes = {node.op_type: node.SerializeToString() for node in message.graph.node}
    tensors = {tensor.name: tensor.raw_data for tensor in message.graph.initializer}
    texts = message.doc_string, message.graph.doc_string, message.graph.name, message.producer_name
    imports = [(opset.domain, opset.version) for opset in message.opset_import if opset.domain != "local"]
    properties = [(entry.key, entry.value) for entry in message.metadata_props]
    message.ClearField("graph")
    return {
        "nodes": {op: nodes[op] for op in ("If", "Loop", "Mystery") if op in nodes},
        "tensors": {name: tensors[name] for name in ("quarter", "brain") if name in tensors},
        "texts": (*texts, imports, properties, message.ir_version),
    }


def test_all_features_survive_a_round_trip(tmp_path: Path) -> None:
    path = with_custom_op(full_model(tmp_path))
    save(load(path), tmp_path / "saved.onnx")
    expected, actual = parts(path), parts(tmp_path / "saved.onnx")
    assert actual == expected
    assert len(expected["nodes"]) == 3
    data = (tmp_path / "saved.onnx").read_bytes()
    for text in (b"captures a value", b"kept", b"stack", b"line 1", b"\xff\x00"):
        assert text in data


def test_unknown_nodes_survive_the_inference_recipe(tmp_path: Path) -> None:
    path = with_custom_op(full_model(tmp_path))
    save(rewrite(load(path), "inference"), tmp_path / "saved.onnx")
    save(rewrite(load(path), "remove_metadata"), path)
    expected, actual = parts(path), parts(tmp_path / "saved.onnx")
    del expected["tensors"]["brain"]  # no node uses it
    assert actual == expected


@needs_onnxruntime
def test_inference_recipe_keeps_the_outputs(tmp_path: Path) -> None:
    before = load(full_model(tmp_path))
    after = rewrite(before, "inference")
    assert after.op_counts.get("Identity", 0) < before.op_counts["Identity"]
    assert "Cast" not in after.op_counts
    save(after, tmp_path / "after.onnx")
    for flag in (True, False):
        feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "flag": np.bool_(flag)}
        with open_session(tmp_path / "everything.onnx", "onnxruntime") as session:
            expected = session.run(feeds)["y"]
        with open_session(tmp_path / "after.onnx", "onnxruntime") as session:
            np.testing.assert_allclose(session.run(feeds)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.models
@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_networks_survive_a_round_trip(path: Path) -> None:
    """Explicit zeros and missing fields are equal; constants with a tensor become initializers."""
    graph = load(path)
    before, after = (message_class("ModelProto").FromString(data) for data in (path.read_bytes(), onnx.encode(graph)))
    nodes = [node for node in before.graph.node if not _has_tensor(node)]
    assert list(after.graph.node) == nodes
    # Initializers that are also inputs come last; their order has no meaning.
    by_name = [sorted(model.graph.input, key=lambda info: info.name) for model in (after, before)]
    assert by_name[0] == by_name[1]
    assert [info.name for info in after.graph.input][: len(graph.inputs)] == [edge.node for edge in graph.inputs]
    assert list(after.graph.output) == list(before.graph.output)
    assert after.opset_import == before.opset_import
    assert {info.name for info in after.graph.value_info} == {info.name for info in before.graph.value_info}
    tensors = {tensor.name: tensor for tensor in after.graph.initializer}
    assert len(tensors) == len(before.graph.initializer) + len(before.graph.node) - len(nodes)
    for tensor in before.graph.initializer:
        assert (tensors[tensor.name].data_type, tensors[tensor.name].dims) == (tensor.data_type, tensor.dims)
        assert tensors[tensor.name].raw_data == tensor.raw_data or not tensor.raw_data


def _has_tensor(node: Any) -> bool:
    return bool(node.op_type == "Constant" and node.attribute[0].HasField("t"))
