"""Values that `load` accepts: files, folders, serialized models, messages and objects."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InputError, UsageError
from quantkit.formats import graphdef, onnx
from quantkit.formats.graphdef.schema import parse
from quantkit.formats.onnx.schema import message_class
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.model import load
from quantkit.runtimes import find_runtime

W = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
X = np.array([[1, 2, 3, 4], [0, -1, 0, 1]], np.float32)
GRAPH = Graph.of(
    [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 4))}),
        constant("w", W),
        Node("y", "MatMul", (Edge("x"), Edge("w")), attrs={"T": DType.FLOAT}),
    ],
    ["x"],
    ["y"],
)
ONNX_GRAPH = Graph.of(
    [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 4))}),
        Node("w", "Constant", attrs={"value": Tensor.of(W)}),
        Node("y", "MatMul", (Edge("x"), Edge("w"))),
        Node("z", "Relu", (Edge("y"),)),
    ],
    ["x"],
    ["z"],
    dialect="onnx",
    extra=onnx.header({"z": (DType.FLOAT, Shape((None, 3)))}),
)
needs_tensorflow = pytest.mark.skipif(
    not find_runtime("tensorflow").available().ok, reason="TensorFlow is not installed"
)


def run_graph(graph: Graph) -> Any:
    with qk.open_session(graph) as session:
        (values,) = session.run({session.inputs[0].name: X}).values()
    return values


def test_serialized_models_are_recognized() -> None:
    assert qk.load(graphdef.encode(GRAPH)).graph == GRAPH
    loaded = qk.load(onnx.encode(ONNX_GRAPH), outputs=["y"]).graph
    assert (loaded.dialect, loaded.outputs) == ("onnx", (Edge("y"),))
    with pytest.raises(InputError):
        qk.load(b"a letter")


def test_messages_are_accepted() -> None:
    assert qk.load(parse("GraphDef", graphdef.encode(GRAPH))).graph == GRAPH
    model = message_class("ModelProto").FromString(onnx.encode(ONNX_GRAPH))
    assert qk.load(model).graph.op_counts == ONNX_GRAPH.op_counts


def test_onnx_file_has_a_graph_and_runtimes_open_the_file(tmp_path: Path) -> None:
    qk.save(ONNX_GRAPH, tmp_path / "model.onnx")
    assert qk.load(tmp_path / "model.onnx").graph.op_counts == ONNX_GRAPH.op_counts
    assert load(tmp_path / "model.onnx").runnable == tmp_path / "model.onnx"
    model = load(tmp_path / "model.onnx", outputs=["y"])
    assert model.graph.outputs == (Edge("y"),)
    with pytest.raises(UsageError, match="not in the graph"):
        _ = qk.load(tmp_path / "model.onnx", outputs=["nothing"]).graph


def test_error_names_format_without_reader(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(20))
    with pytest.raises(UsageError, match="is a LiteRT model: it can be run and benchmarked, but not read") as caught:
        _ = qk.load(tmp_path / "model.tflite").graph
    assert caught.value.hint


def test_options_of_saved_models_are_rejected_for_other_files(tmp_path: Path) -> None:
    qk.save(GRAPH, tmp_path / "model.pb")
    with pytest.raises(UsageError, match="only a SavedModel folder has signatures"):
        qk.load(tmp_path / "model.pb", signature="serving_default")
    with pytest.raises(UsageError, match="apply to files and cards, not to a Graph"):
        qk.load(GRAPH, tags=["serve"])
    qk.save(ONNX_GRAPH, tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="a checkpoint fills the variables of a GraphDef"):
        qk.load(tmp_path / "model.onnx", checkpoint="model.ckpt")


def test_broken_saved_model_is_an_error_of_one_line(tmp_path: Path) -> None:
    for content in (b"", b"\x12\x05ab", b"\x08\x01"):
        (tmp_path / "saved_model.pb").write_bytes(content)
        with pytest.raises(InputError, match=r"saved_model.pb is truncated or broken") as caught:
            qk.load(tmp_path)
        assert caught.value.hint


@needs_tensorflow
@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
class TestTensorFlow:
    def test_graph_def_message_is_loaded(self) -> None:
        tf = _tensorflow()
        loaded = qk.load(tf.compat.v1.GraphDef.FromString(graphdef.encode(GRAPH)), ["x"], ["y"]).graph
        np.testing.assert_allclose(run_graph(loaded), X @ W)

    def test_a_function_with_a_signature(self) -> None:
        tf = _tensorflow()
        weights = tf.Variable(W)
        function = tf.function(lambda x: x @ weights, input_signature=[tf.TensorSpec([None, 4], name="x")])
        for value in (function, function.get_concrete_function()):
            np.testing.assert_allclose(run_graph(qk.load(value).graph), X @ W)

    def test_a_function_without_a_signature_is_an_error(self) -> None:
        with pytest.raises(InputError, match="has no input signature") as caught:
            qk.load(_tensorflow().function(lambda x: x + 1))
        assert "input_signature" in caught.value.hint

    def test_a_keras_model(self) -> None:
        np.testing.assert_allclose(run_graph(qk.load(_keras_model()).graph), X @ W + 1)

    @pytest.mark.parametrize("ending", [".keras", ".h5"])
    def test_keras_files(self, ending: str, tmp_path: Path) -> None:
        _keras_model().save(tmp_path / f"model{ending}")
        np.testing.assert_allclose(run_graph(qk.load(tmp_path / f"model{ending}").graph), X @ W + 1)

    def test_a_file_of_keras_2(self, tmp_path: Path) -> None:
        h5py = pytest.importorskip("h5py")
        dense = {"name": "dense", "trainable": True, "dtype": "float32", "units": 3, "activation": "linear"}
        layers = [
            {
                "class_name": "InputLayer",
                "config": {"batch_input_shape": [None, 4], "dtype": "float32", "sparse": False, "name": "x"},
            },
            {"class_name": "Dense", "config": {**dense, "use_bias": True}},
        ]
        with h5py.File(tmp_path / "old.h5", "w") as file:
            config = {"class_name": "Sequential", "config": {"name": "old", "layers": layers}}
            file.attrs["model_config"] = json.dumps(config)
            file.attrs["keras_version"], file.attrs["backend"] = "2.4.0", "tensorflow"
            weights = file.create_group("model_weights")
            weights.attrs["layer_names"] = [b"dense"]
            names = {"dense/kernel:0": W, "dense/bias:0": np.ones(3, np.float32)}
            group = weights.create_group("dense")
            group.attrs["weight_names"] = [name.encode() for name in names]
            for name, values in names.items():
                group[name] = values
        np.testing.assert_allclose(run_graph(qk.load(tmp_path / "old.h5").graph), X @ W + 1)


@pytest.mark.engine
def test_onnx_model_proto_is_loaded() -> None:
    package = pytest.importorskip("onnx")
    loaded = qk.load(package.load_from_string(onnx.encode(ONNX_GRAPH))).graph
    assert (loaded.dialect, loaded.op_counts) == ("onnx", ONNX_GRAPH.op_counts)


def _tensorflow() -> Any:
    from quantkit.runtimes.tensorflow_library import import_tensorflow

    return import_tensorflow()


def _keras_model() -> Any:
    keras = _tensorflow().keras
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    model.layers[0].set_weights([W, np.ones(3, np.float32)])
    return model
