"""ONNX networks whose output size depends on the data, as in detectors with NonMaxSuppression inside."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.ir.tensor import Array

pytest.importorskip("onnx", reason="pip install onnx")
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, save

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
STRING = TensorProto.STRING
NODE = helper.make_node
Info = tuple[str, int, Sequence[int | str | None] | None]
RANDOM = np.random.default_rng(0)
IMAGES: Array = RANDOM.normal(size=(12, 3, 16, 16)).astype(np.float32)
WEIGHTS = {
    "w": RANDOM.normal(0, 0.3, (8, 3, 3, 3)),
    "b": RANDOM.normal(0, 1, 8),
    "v": RANDOM.normal(0, 0.3, (8, 8, 1, 1)),
    "box_weights": RANDOM.normal(0, 0.3, (4, 8, 1, 1)),
    "score_weights": RANDOM.normal(0, 0.3, (2, 8, 1, 1)),
}
STEM = [NODE("Conv", ["x", "w", "b"], ["h"], pads=[1] * 4), NODE("Relu", ["h"], ["r"])]
# Boxes (1, 256, 4) with their centers at the pixels, and probabilities (1, 2, 256).
HEADS = [
    *STEM,
    NODE("Conv", ["r", "box_weights"], ["p"]),
    NODE("Reshape", ["p", "s4"], ["p4"]),
    NODE("Transpose", ["p4"], ["pt"], perm=[0, 2, 1]),
    NODE("Add", ["pt", "grid"], ["boxes"]),
    NODE("Conv", ["r", "score_weights"], ["q"]),
    NODE("Sigmoid", ["q"], ["sigmoid"]),
    NODE("Reshape", ["sigmoid", "s2"], ["scores"]),
    NODE("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["selected"]),
]
ROWS, COLUMNS = np.divmod(np.arange(256), 16)
CONSTANTS: Mapping[str, Any] = {
    **WEIGHTS,
    "s4": np.array([0, 4, -1]),
    "s2": np.array([0, 2, -1]),
    "grid": np.stack([ROWS - 3, COLUMNS - 3, ROWS + 3, COLUMNS + 3], -1)[None].astype(np.float32),
    "most": np.array(100),
    "iou": np.float32(0.5),
    "least": np.float32(0.5),
    "flat": np.array([-1]),
    "one": np.array([1]),
    "two": np.array([2]),
    "zero": np.array([0]),
    "half": np.float32(0.5),
}


def make_model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Info],
    outputs: Sequence[Info],
    constants: Mapping[str, Any] = CONSTANTS,
) -> ModelProto:
    """Return a model with the constants that its nodes use; real ones become float32."""
    used = {name for node in nodes for name in node.input}
    arrays = {name: np.asarray(value) for name, value in constants.items() if name in used}
    tensors = [
        numpy_helper.from_array(array.astype(np.float32) if array.dtype.kind == "f" else array, name)
        for name, array in arrays.items()
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        *([helper.make_tensor_value_info(*info) for info in infos] for infos in (inputs, outputs)),
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def indices(batch: int | str = 1) -> ModelProto:
    """Return a detector that outputs the indices of NonMaxSuppression only."""
    return make_model(HEADS, [("x", FLOAT, [batch, 3, 16, 16])], [("selected", INT64, ["m", 3])])


def selected_boxes(batch: int | str = 1) -> ModelProto:
    """Return a detector that outputs boxes, scores, and the indices of NonMaxSuppression."""
    outputs: list[Info] = [
        ("boxes", FLOAT, [batch, 256, 4]),
        ("scores", FLOAT, [batch, 2, 256]),
        ("selected", INT64, ["m", 3]),
    ]
    return make_model(HEADS, [("x", FLOAT, [batch, 3, 16, 16])], outputs)


def lists() -> ModelProto:
    """Return a detector of one image that outputs boxes (m, 4), labels (m,) and scores (m,), as torchvision does."""
    nodes = [
        *HEADS,
        NODE("Split", ["selected"], ["image", "labels_2", "index"], axis=1),
        NODE("Squeeze", ["labels_2", "one"], ["labels"]),
        NODE("Squeeze", ["index", "one"], ["places"]),
        NODE("Squeeze", ["boxes", "zero"], ["all_boxes"]),
        NODE("Gather", ["all_boxes", "places"], ["out_boxes"], axis=0),
        NODE("Squeeze", ["scores", "zero"], ["all_scores"]),
        NODE("Concat", ["labels_2", "index"], ["pairs"], axis=1),
        NODE("GatherND", ["all_scores", "pairs"], ["out_scores"]),
    ]
    outputs: list[Info] = [("out_boxes", FLOAT, ["m", 4]), ("labels", INT64, ["m"]), ("out_scores", FLOAT, ["m"])]
    return make_model(nodes, [("x", FLOAT, [1, 3, 16, 16])], outputs)


def rows() -> ModelProto:
    """Return a detector of any batch that outputs rows of image, corners, class and score, as YOLOv7 does."""
    nodes = [
        *HEADS,
        NODE("Split", ["selected"], ["image", "label", "index"], axis=1),
        NODE("Concat", ["image", "index"], ["box_pairs"], axis=1),
        NODE("GatherND", ["boxes", "box_pairs"], ["corners"]),
        NODE("GatherND", ["scores", "selected"], ["score"]),
        NODE("Unsqueeze", ["score", "one"], ["score_2"]),
        NODE("Cast", ["image"], ["image_f"], to=FLOAT),
        NODE("Cast", ["label"], ["label_f"], to=FLOAT),
        NODE("Concat", ["image_f", "corners", "label_f", "score_2"], ["y"], axis=1),
    ]
    return make_model(nodes, [("x", FLOAT, ["batch", 3, 16, 16])], [("y", FLOAT, ["m", 7])])


def thresholds() -> ModelProto:
    """Return a network that outputs the values of a convolution above a threshold."""
    nodes = [
        *STEM,
        NODE("Conv", ["r", "v"], ["c"]),
        NODE("Reshape", ["c", "flat"], ["f"]),
        NODE("Greater", ["f", "half"], ["g"]),
        NODE("Compress", ["f", "g"], ["y"]),
    ]
    return make_model(nodes, [("x", FLOAT, [1, 3, 16, 16])], [("y", FLOAT, [None])])


def best() -> ModelProto:
    """Return a network that outputs the k largest values of a convolution, where k counts the positive ones."""
    nodes = [
        *STEM,
        NODE("Conv", ["r", "v"], ["c"]),
        NODE("Reshape", ["c", "flat"], ["f"]),
        NODE("Greater", ["f", "half"], ["g"]),
        NODE("NonZero", ["g"], ["positions"]),
        NODE("Shape", ["positions"], ["shape"]),
        NODE("Gather", ["shape", "one"], ["k"]),
        NODE("TopK", ["f", "k"], ["y", "places"]),
    ]
    return make_model(nodes, [("x", FLOAT, [1, 3, 16, 16])], [("y", FLOAT, ["k"]), ("places", INT64, ["k"])])


def decoder() -> ModelProto:
    """Return a recurrent decoder whose number of steps depends on the image, as in table recognition."""
    body = helper.make_graph(
        [
            NODE("Sub", ["state", "decay"], ["next"]),
            NODE("MatMul", ["next", "token_weights"], ["token"]),
            NODE("ReduceMax", ["next"], ["largest"], keepdims=0),
            NODE("Greater", ["largest", "end"], ["continues"]),
            NODE("Identity", ["continues"], ["condition_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", INT64, []),
            helper.make_tensor_value_info("condition", BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, [1, 8]),
        ],
        [
            helper.make_tensor_value_info("condition_out", BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, [1, 8]),
            helper.make_tensor_value_info("token", FLOAT, [1, 6]),
        ],
    )
    nodes = [
        *STEM,
        NODE("Conv", ["r", "v"], ["c"]),
        NODE("GlobalAveragePool", ["c"], ["pooled"]),
        NODE("Flatten", ["pooled"], ["first"]),
        NODE("Loop", ["limit", "true", "first"], ["last", "tokens"], body=body),
        NODE("Transpose", ["tokens"], ["y"], perm=[1, 0, 2]),
    ]
    random = np.random.default_rng(2)
    constants = {
        **CONSTANTS,
        "limit": np.array(40),
        "true": np.array(True),
        "decay": np.float32(0.05),
        "token_weights": random.normal(0, 1, (8, 6)),
        "end": np.float32(0.5),
    }
    used = {name: np.asarray(value) for name, value in constants.items()}
    model = make_model(nodes, [("x", FLOAT, [1, 3, 16, 16])], [("y", FLOAT, [1, "steps", 6])], constants)
    for name in ("decay", "token_weights", "end"):
        model.graph.initializer.append(numpy_helper.from_array(used[name].astype(np.float32), name))
    return model


# Nodes after a convolution with the values f (2048,), by the op whose size depends on the data: with the output y.
TAILS: Mapping[str, tuple[Sequence[NodeProto], int]] = {
    "Unique": ([NODE("Round", ["f"], ["q"]), NODE("Unique", ["q"], ["y"])], FLOAT),
    "NonZero": ([NODE("NonZero", ["g"], ["z"]), NODE("Transpose", ["z"], ["y"])], INT64),
    "nothing selected": ([NODE("Greater", ["f", "huge"], ["none"]), NODE("Compress", ["f", "none"], ["y"])], FLOAT),
    "layer on selected columns": (
        [
            NODE("ReduceMax", ["c"], ["m"], axes=[0, 1, 2], keepdims=0),
            NODE("Greater", ["m", "two_f"], ["columns"]),
            NODE("Compress", ["r", "columns"], ["k"], axis=3),
            NODE("Conv", ["k", "v"], ["y"]),
        ],
        FLOAT,
    ),
    "Resize": (
        [
            NODE("Concat", ["one", "eight", "size", "size"], ["sizes"], axis=0),
            NODE("Resize", ["r", "", "", "sizes"], ["u"], mode="linear"),
            NODE("Conv", ["u", "v"], ["y"]),
        ],
        FLOAT,
    ),
    "If": (
        [
            NODE("ReduceSum", ["f"], ["s"], keepdims=0),
            NODE("Greater", ["s", "forty"], ["condition"]),
            NODE(
                "If",
                ["condition"],
                ["y"],
                **{
                    f"{name}_branch": helper.make_graph(
                        [node], name, [], [helper.make_tensor_value_info(node.output[0], FLOAT, None)]
                    )
                    for name, node in (
                        ("then", NODE("Slice", ["f", "zero", "eight"], ["start"])),
                        ("else", NODE("Neg", ["f"], ["all"])),
                    )
                },
            ),
        ],
        FLOAT,
    ),
    "Sequence": (
        [
            NODE("Compress", ["f", "g"], ["p"]),
            NODE("SequenceConstruct", ["p", "f"], ["list"]),
            NODE("ConcatFromSequence", ["list"], ["y"], axis=0),
        ],
        FLOAT,
    ),
    "strings": ([NODE("Compress", ["f", "g"], ["p"]), NODE("Cast", ["p"], ["y"], to=TensorProto.STRING)], STRING),
}


def with_tail(name: str) -> ModelProto:
    """Return a convolutional network that ends with one of the tails."""
    tail, kind = TAILS[name]
    nodes = [
        *STEM,
        NODE("Conv", ["r", "v"], ["c"]),
        NODE("Reshape", ["c", "flat"], ["f"]),
        NODE("Greater", ["f", "half"], ["g"]),
        NODE("Abs", ["f"], ["a"]),
        NODE("ReduceMax", ["a"], ["largest"], keepdims=0),
        NODE("Cast", ["largest"], ["whole"], to=INT64),
        NODE("Reshape", ["whole", "flat"], ["size"]),
        *tail,
    ]
    numbers = {"huge": np.float32(1e9), "two_f": np.float32(2), "forty": np.float32(40), "eight": np.array([8])}
    model = make_model(nodes, [("x", FLOAT, [1, 3, 16, 16])], [("y", kind, None)], {**CONSTANTS, **numbers})
    names = {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray({**CONSTANTS, **numbers}[each]), each)
        for each in ("zero", "eight")
        if each not in names
    )
    return model


NETWORKS: Mapping[str, Callable[[], ModelProto]] = {
    function.__name__: function for function in (indices, selected_boxes, lists, rows, thresholds, best, decoder)
}
# Networks that output detections.
DETECTORS = ("indices", "selected_boxes", "lists", "rows")


def write(name: str, folder: Path) -> Path:
    """Write a network and return its path."""
    path = folder / f"{name}.onnx"
    save(NETWORKS[name](), path)
    return path
