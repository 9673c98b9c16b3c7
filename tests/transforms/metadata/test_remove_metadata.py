"""Notes of exporters are removed from nodes, values and subgraphs; the recipe `inference` removes them."""

from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx
from quantkit.formats.onnx.schema import GRAPH, message_class
from quantkit.transforms.metadata.remove_metadata import remove_metadata

NOTE = b"File model.py, line 1, in forward"


def annotate(message: Any) -> Any:
    message.doc_string = NOTE.decode()
    message.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=NOTE.decode())
    return message


def model_with_notes() -> bytes:
    """Return y = If(flag, -x, x) with notes at each node, value and graph, and properties of the model."""
    model = message_class("ModelProto")(ir_version=10, doc_string="a model")
    model.opset_import.add(version=18)
    model.metadata_props.add(key="labels", value="cat, dog")
    graph = annotate(model.graph)
    for name, kind in (("x", 1), ("flag", 9)):
        annotate(graph.input.add(name=name)).type.tensor_type.elem_type = kind
    annotate(graph.node.add(op_type="Neg", name="first", input=["x"], output=["n"]))
    annotate(graph.value_info.add(name="n")).type.tensor_type.elem_type = 1
    branch = annotate(graph.node.add(op_type="If", input=["flag"], output=["y"]))
    for name in ("then_branch", "else_branch"):
        inner = annotate(branch.attribute.add(name=name, type=GRAPH).g)
        inner.name = name
        annotate(inner.node.add(op_type="Abs" if name < "then" else "Neg", input=["n"], output=[name]))
        inner.output.add(name=name).type.tensor_type.elem_type = 1
    annotate(graph.output.add(name="y")).type.tensor_type.elem_type = 1
    return bytes(model.SerializeToString())


def test_notes_of_nodes_values_and_subgraphs_are_removed() -> None:
    data = model_with_notes()
    assert data.count(NOTE) == 22
    outcome = remove_metadata.outcome(onnx.decode(data))
    stripped = onnx.encode(outcome.graph)
    assert NOTE not in stripped
    for text in (b"a model", b"labels", b"cat, dog", b"first", b"then_branch"):
        assert text in stripped
    assert set(outcome.changes) == {"x", "flag", "n", "y", "the graph"}
    assert remove_metadata.outcome(outcome.graph).changes == ()


def test_only_recipes_with_the_transform_remove_notes() -> None:
    model = qk.load(model_with_notes())
    assert NOTE not in onnx.encode(qk.transform(model, "inference").graph)
    assert NOTE in onnx.encode(qk.transform(model, "strip_unused_nodes fold_constants").graph)
    assert NOTE in onnx.encode(onnx.decode(model_with_notes()))


@pytest.mark.engine
@pytest.mark.parametrize("recipe", [None, "strip_unused_nodes"])
def test_quantized_files_have_notes_only_if_the_recipe_keeps_them(recipe: str | None) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    model = message_class("ModelProto")(ir_version=10)
    model.opset_import.add(version=18)
    annotate(model.graph.node.add(op_type="MatMul", input=["x", "w"], output=["y"]))
    for info in (model.graph.input.add(name="x"), model.graph.output.add(name="y")):
        info.type.tensor_type.elem_type = 1
        for size in (8, 16):
            info.type.tensor_type.shape.dim.add().dim_value = size
    weights = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    model.graph.initializer.add(name="w", dims=[16, 16], data_type=1, raw_data=weights.tobytes())
    data = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    result = qk.quantize(model.SerializeToString(), [data], recipe=recipe, runs=0)
    assert (NOTE in onnx.encode(result.model.graph)) == (recipe is not None)
