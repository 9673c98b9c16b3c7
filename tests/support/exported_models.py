"""Small ONNX files as PyTorch's exporters and detector projects write them, under the names that the guides use."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="pip install onnx")
from onnx import ModelProto, StringStringEntryProto, TensorProto, helper, save
from varying_sizes import FLOAT, HEADS, NODE, lists, make_model

RANDOM = np.random.default_rng(3)
CLASSIFIER = {
    "stem.weight": RANDOM.normal(0, 0.3, (8, 3, 3, 3)),
    "stem.bias": RANDOM.normal(0, 0.3, 8),
    "body.weight": RANDOM.normal(0, 0.2, (16, 8, 3, 3)),
    "body.bias": RANDOM.normal(0, 0.2, 16),
    "head.weight": RANDOM.normal(0, 1, (10, 16 * 16)),
    "head.bias": RANDOM.normal(0, 0.3, 10),
}
# Columns of the raw output of a detector with two classes: center, size, scores.
COLUMNS = 6


def classifier(dtype: int = FLOAT) -> ModelProto:
    """Return a classifier of images 16x16 with a dynamic batch, as the exporter of TorchScript writes it."""
    nodes = [
        NODE("Conv", ["image", "stem.weight", "stem.bias"], ["stem"], name="/stem/Conv", strides=[2, 2], pads=[1] * 4),
        NODE("Relu", ["stem"], ["stem_relu"], name="/stem_act/Relu"),
        NODE(
            "Conv",
            ["stem_relu", "body.weight", "body.bias"],
            ["body"],
            name="/body/Conv",
            strides=[2, 2],
            pads=[1] * 4,
        ),
        NODE("Relu", ["body"], ["body_relu"], name="/body_act/Relu"),
        NODE("Flatten", ["body_relu"], ["flat"], name="/Flatten"),
        NODE("Gemm", ["flat", "head.weight", "head.bias"], ["logits"], name="/head/Gemm", transB=1),
    ]
    model = make_model(nodes, [("image", dtype, ["batch", 3, 16, 16])], [("logits", dtype, ["batch", 10])], CLASSIFIER)
    if dtype == TensorProto.FLOAT16:
        for tensor in model.graph.initializer:
            halves = np.frombuffer(tensor.raw_data, np.float32).astype(np.float16)
            tensor.data_type, tensor.raw_data = dtype, halves.tobytes()
    return model


def dynamo_classifier() -> ModelProto:
    """Return the classifier in opset 18 with the metadata of the newer exporter."""
    model = classifier()
    model.opset_import[0].version, model.ir_version, model.producer_name = 18, 10, "pytorch"
    for node in model.graph.node:
        node.name = "node_" + node.output[0]
        for key in ("pkg.torch.onnx.fx_node", "pkg.torch.onnx.stack_trace"):
            node.metadata_props.append(StringStringEntryProto(key=key, value=f"%{node.name} of model.py " * 4))
    return model


def raw_detector() -> ModelProto:
    """Return a detector of any batch that outputs center, size and class scores (n, 6, 256) before the selection."""
    nodes = [
        *HEADS[:-1],
        NODE("Split", ["boxes"], ["low", "high"], axis=2),
        NODE("Add", ["low", "high"], ["doubled"]),
        NODE("Mul", ["doubled", "half"], ["centers"]),
        NODE("Sub", ["high", "low"], ["sizes"]),
        NODE("Concat", ["centers", "sizes"], ["center_boxes"], axis=2),
        NODE("Transpose", ["center_boxes"], ["columns"], perm=[0, 2, 1]),
        NODE("Concat", ["columns", "scores"], ["output0"], axis=1),
    ]
    return make_model(nodes, [("x", FLOAT, ["batch", 3, 16, 16])], [("output0", FLOAT, ["batch", COLUMNS, 256])])


def custom_detector() -> ModelProto:
    """Return a detector whose last node is a custom op that no runtime has."""
    last = NODE("BatchedNMS", ["boxes", "scores"], ["detections"], domain="com.acme", name="nms")
    model = make_model([*HEADS[:-1], last], [("x", FLOAT, [1, 3, 16, 16])], [("detections", FLOAT, [1, "m", 6])])
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    return model


def write_exports(folder: Path) -> None:
    """Write the exported models of the guides."""
    save(classifier(), folder / "classifier.onnx")
    save(
        dynamo_classifier(),
        folder / "classifier.dynamo.onnx",
        save_as_external_data=True,
        location="classifier.dynamo.onnx.data",
        size_threshold=0,
    )
    save(classifier(TensorProto.FLOAT16), folder / "half.onnx")
    save(raw_detector(), folder / "detector.onnx")
    save(lists(), folder / "detector_nms.onnx")
    save(custom_detector(), folder / "detector_custom.onnx")
