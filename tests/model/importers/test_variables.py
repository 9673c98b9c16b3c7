"""SavedModels and checkpoints: frozen, with the inputs and outputs of their signatures."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InputError, QuantkitError, UsageError
from quantkit.formats import graphdef, saved_model
from quantkit.ir.graph import Edge, Graph
from quantkit.recipes import rewrite
from quantkit.runtimes import tensorflow

TENSORFLOW = tensorflow.RUNTIME.available()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail),
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own
]
X = np.array([[1, 2, 3, 4], [0, -1, 0, 1]], np.float32)
W = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
EXPECTED = X @ W + np.array([1, 2, 3], np.float32)


def run_graph(graph: Graph, feeds: dict[str, Any] | None = None) -> np.ndarray:
    with qk.open_session(graph, "tensorflow") as session:
        (values,) = session.run(feeds or {session.inputs[0].name: X}).values()
    return values


def train(tf: Any, *, resource: bool = True) -> tuple[Any, Any]:
    """Build a small network as TensorFlow 1 does, with the nodes that training adds."""
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    target = v1.placeholder(tf.float32, [None, 3], name="target")
    weights = v1.get_variable("net/weights", initializer=W, use_resource=resource)
    bias = v1.get_variable("net/bias", initializer=np.array([1, 2, 3], np.float32), use_resource=resource)
    y = tf.identity(tf.matmul(x, weights) + bias, name="y")
    loss = tf.reduce_mean((y - target) ** 2, name="loss")
    v1.train.AdamOptimizer(0.5).minimize(loss)
    return x, y


@pytest.fixture(params=[True, False], ids=["resources", "references"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tf = tensorflow.import_tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        train(tf, resource=request.param)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        v1.train.write_graph(session.graph, str(tmp_path), "graph.pb", as_text=False)
    return tmp_path / "model.ckpt"


@pytest.mark.parametrize("ending", ["", ".meta", ".index", ".data-00000-of-00001"])
def test_a_checkpoint_with_its_graph_is_frozen(ending: str, checkpoint: Path) -> None:
    graph = qk.load(f"{checkpoint}{ending}", outputs=["y"]).graph
    assert graph.op_counts.keys() <= {"Placeholder", "Const", "Identity", "MatMul", "AddV2"}
    assert {"net/weights", "net/bias", "y"} <= graph.nodes.keys()
    assert not any(node.device for node in graph.nodes.values())
    assert [str(edge) for edge in graph.inputs] == ["x"]
    np.testing.assert_allclose(run_graph(graph), EXPECTED, rtol=1e-6)


def test_a_graph_is_filled_from_a_checkpoint(checkpoint: Path) -> None:
    graph = qk.load(checkpoint.with_name("graph.pb"), outputs=["y"], checkpoint=checkpoint).graph
    np.testing.assert_allclose(run_graph(graph), EXPECTED, rtol=1e-6)
    with pytest.raises(InputError, match="there is no checkpoint"):
        qk.load(checkpoint.with_name("graph.pb"), checkpoint=checkpoint.with_name("other"))


def test_error_names_missing_variables(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="not in the graph"):
        qk.load(checkpoint, outputs=["z"])
    graph = rewrite(
        qk.load(checkpoint.with_name("graph.pb")).graph, "rename_node(old_node_name=net/bias, new_node_name=net/base)"
    )
    graph = graph.with_nodes(node.with_attrs(shared_name=None) for node in graph.nodes.values())
    qk.save(graph, checkpoint.with_name("renamed.pb"))
    restored = qk.load(checkpoint.with_name("renamed.pb"), outputs=["y"], checkpoint=checkpoint).graph
    np.testing.assert_allclose(run_graph(restored), EXPECTED, rtol=1e-6)  # by the names in the saver
    qk.save(rewrite(graph.with_endpoints(["x"], ["y"]), "strip_unused_nodes"), checkpoint.with_name("renamed.pb"))
    with pytest.raises(InputError, match="no variable 'net/base'") as caught:
        qk.load(checkpoint.with_name("renamed.pb"), outputs=["y"], checkpoint=checkpoint)
    assert "net/bias" in caught.value.hint
    checkpoint.with_name("model.ckpt.meta").unlink()
    with pytest.raises(InputError, match="a checkpoint without its graph") as caught:
        qk.load(checkpoint)
    assert "--checkpoint" in caught.value.hint


def save_session(tf: Any, prefix: Path, saver: Any) -> None:
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        saver.save(session, str(prefix))


@pytest.mark.parametrize("form", ["V1", "V2"])
@pytest.mark.parametrize("resource", [True, False], ids=["resources", "references"])
def test_partitioned_variables_are_frozen_part_by_part(resource: bool, form: str, tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()
    v1 = tf.compat.v1

    def values(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        (first, *_), (count, *_) = partition_info.var_offset, shape
        return tf.constant(W[first : first + count])

    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        options = {"partitioner": v1.fixed_size_partitioner(3), "use_resource": resource}
        whole = v1.get_variable("net/weights", [4, 3], initializer=values, **options)
        rows = v1.get_variable("rows", [4, 3], initializer=values, **options)
        tf.add(tf.matmul(x, whole), tf.nn.embedding_lookup(rows, [3, 0])[0], name="y")
        version = getattr(v1.train.SaverDef, form)
        save_session(tf, tmp_path / "model.ckpt", v1.train.Saver(write_version=version))
        v1.train.write_graph(graph, str(tmp_path), "graph.pb", as_text=False)
    frozen = qk.load(tmp_path / "model.ckpt", outputs=["y"]).graph
    assert [frozen[f"net/weights/part_{number}"].value.shape for number in range(3)] == [(2, 3), (1, 3), (1, 3)]
    np.testing.assert_allclose(run_graph(frozen), X @ W + W[3], rtol=1e-6)
    filled = qk.load(tmp_path / "graph.pb", outputs=["y"], checkpoint=tmp_path / "model.ckpt").graph
    np.testing.assert_allclose(run_graph(filled), run_graph(frozen))


def test_partitions_require_the_saver(tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        parts = v1.get_variable("w", [4, 3], partitioner=v1.fixed_size_partitioner(2))
        tf.identity(tf.convert_to_tensor(parts), name="y")
        v1.train.write_graph(graph, str(tmp_path), "graph.pb", as_text=False)
        save_session(tf, tmp_path / "model.ckpt", v1.train.Saver())
    with pytest.raises(InputError, match="has no variable 'w/part_0'") as caught:
        qk.load(tmp_path / "graph.pb", outputs=["y"], checkpoint=tmp_path / "model.ckpt")
    assert "holds 'w' unpartitioned" in caught.value.hint


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "a file for each device"])
def test_checkpoints_of_the_first_years_are_frozen(sharded: bool, tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        with tf.device("/cpu:0"):
            weights = v1.get_variable("w", initializer=W)
        with tf.device("/cpu:1"):
            bias = v1.get_variable("b", initializer=np.array([1, 2, 3], np.float32))
        tf.add(tf.matmul(x, weights), bias, name="y")
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(write_version=v1.train.SaverDef.V1, sharded=sharded)
        saver.save(session, str(tmp_path / "model.ckpt"))
    endings = ("", ".meta", "-00001-of-00002") if sharded else ("", ".meta")
    for ending in endings:
        np.testing.assert_allclose(
            run_graph(qk.load(f"{tmp_path}/model.ckpt{ending}", outputs=["y"])), EXPECTED, rtol=1e-6
        )


def test_names_of_the_saver_select_the_variables(tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        weights, other = (v1.get_variable(name, initializer=values) for name, values in (("w", W), ("v", W + 1)))
        tf.matmul(x, weights, name="y")
        save_session(tf, tmp_path / "model.ckpt", v1.train.Saver({"w/average": weights, "w": other}))
    np.testing.assert_allclose(run_graph(qk.load(tmp_path / "model.ckpt", outputs=["y"]).graph), X @ W, rtol=1e-6)


def test_broken_checkpoint_is_an_error_of_one_line(checkpoint: Path) -> None:
    index, data = (checkpoint.with_name(f"model.ckpt.{end}") for end in ("index", "data-00000-of-00001"))
    whole = data.read_bytes()
    data.write_bytes(whole[:8])
    graph = qk.load(checkpoint, outputs=["y"]).graph  # values are read when they are needed
    with pytest.raises(InputError, match=r"the checkpoint .*model.ckpt cannot be read by TensorFlow: .*\w") as caught:
        qk.save(graph, checkpoint.with_name("out.pb"))
    assert caught.value.hint
    assert not checkpoint.with_name("out.pb").exists()
    index.write_bytes(index.read_bytes()[:50])
    with pytest.raises(InputError, match="cannot be read by TensorFlow"):
        qk.load(checkpoint, outputs=["y"])


def test_ambiguous_outputs_of_a_training_graph_are_an_error(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="may be the output") as caught:
        qk.load(checkpoint)
    assert "--outputs" in caught.value.hint


def save_first_kind(
    folder: Path, signatures: tuple[str, ...] = ("serving_default",), *, tags: Any = ("serve",)
) -> None:
    """A SavedModel of TensorFlow 1."""
    tf = tensorflow.import_tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = train(tf)
        twice = tf.multiply(y, 2, name="twice")
        session.run(v1.global_variables_initializer())
        signature_map = {
            name: v1.saved_model.predict_signature_def({"data": x}, {"scores": twice if name == "double" else y})
            for name in signatures
        }
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, list(tags), signature_def_map=signature_map)
        builder.save()


def save_second_kind(folder: Path, signatures: tuple[str, ...] = ("serving_default",)) -> None:
    """A SavedModel of TensorFlow 2."""
    tf = tensorflow.import_tensorflow()
    module = tf.Module()
    module.weights, module.bias = tf.Variable(W), tf.Variable(np.array([1, 2, 3], np.float32))
    spec = [tf.TensorSpec([None, 4], name="data")]
    run = tf.function(lambda data: {"scores": data @ module.weights + module.bias}, input_signature=spec)
    double = tf.function(lambda data: {"scores": 2 * (data @ module.weights + module.bias)}, input_signature=spec)
    functions = {name: (double if name == "double" else run).get_concrete_function() for name in signatures}
    tf.saved_model.save(module, str(folder), signatures=functions)


KINDS = pytest.mark.parametrize("save", [save_first_kind, save_second_kind])


@KINDS
def test_a_saved_model_is_frozen(save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path)
    graph = qk.load(tmp_path).graph
    assert not {"VarHandleOp", "ReadVariableOp", "StatefulPartitionedCall"} & graph.op_counts.keys()
    np.testing.assert_allclose(run_graph(graph), EXPECTED, rtol=1e-6)


def test_outputs_of_a_function_have_the_names_of_the_signature(tmp_path: Path) -> None:
    save_second_kind(tmp_path)
    model = qk.load(tmp_path)
    assert list(map(str, model.graph.outputs)) == ["scores"]
    assert model.signature is not None
    assert dict(model.signature.outputs) == {"scores": Edge("scores")}
    for name in ("scores", "Identity"):
        assert list(map(str, qk.load(tmp_path, outputs=[name]).graph.outputs)) == [name]


@KINDS
def test_the_signature_can_be_chosen(save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path, ("serving_default", "double"))
    np.testing.assert_allclose(run_graph(qk.load(tmp_path).graph), EXPECTED, rtol=1e-6)
    np.testing.assert_allclose(run_graph(qk.load(tmp_path, signature="double").graph), 2 * EXPECTED, rtol=1e-6)


@KINDS
@pytest.mark.parametrize(
    ("names", "signature", "message"),
    [
        (("one",), None, ""),
        (("a", "b"), None, "signature 'serving_default' does not exist; available: a, b"),
        (("a", "b"), "c", "signature 'c' does not exist; available: a, b"),
        (("double",), "duoble", "signature 'duoble' does not exist; available: double"),
    ],
)
def test_error_lists_signatures(
    save: Callable[..., None], names: tuple[str, ...], signature: str | None, message: str, tmp_path: Path
) -> None:
    save(tmp_path, names)
    if message:
        with pytest.raises(UsageError, match=message) as caught:
            qk.load(tmp_path, signature=signature)
        assert caught.value.hint
    else:
        assert len(qk.load(tmp_path, signature=signature).graph.outputs) == 1


def test_error_lists_tags(tmp_path: Path) -> None:
    save_first_kind(tmp_path, tags=("serve", "gpu"))
    assert qk.load(tmp_path).graph.op_counts == qk.load(tmp_path, tags=("gpu", "serve")).graph.op_counts
    with pytest.raises(UsageError, match="no graph with the tags train; available: gpu,serve"):
        qk.load(tmp_path, tags=["train"])


def test_a_tensorflow_2_model_without_signatures_is_an_error(tmp_path: Path) -> None:
    save_second_kind(tmp_path, ())
    with pytest.raises(InputError, match="has no signatures"):
        qk.load(tmp_path)


def as_text(file: Path, kind: str) -> None:
    """Write a file's message in protobuf's text form, as TensorFlow does."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

    module = saved_model_pb2 if kind == "SavedModel" else meta_graph_pb2
    text = text_format.MessageToString(getattr(module, kind).FromString(file.read_bytes()))
    file.unlink()
    (file if file.suffix == ".meta" else file.with_suffix(".pbtxt")).write_text(text)


@KINDS
def test_saved_models_in_text_form_are_the_same(save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path, ("serving_default", "double"))
    signature = [qk.load(tmp_path, signature=name).graph for name in (None, "double")]
    as_text(tmp_path / "saved_model.pb", "SavedModel")
    for name, graph in zip((None, "double"), signature, strict=True):
        read = qk.load(tmp_path, signature=name).graph
        assert read.op_counts == graph.op_counts
        np.testing.assert_array_equal(run_graph(read), run_graph(graph))
    (tmp_path / "saved_model.pbtxt").write_text("meta_graphs {\n  graph_def {\n    nod")
    with pytest.raises(InputError, match=r"saved_model.pbtxt is truncated or broken: line 3, column 8"):
        qk.load(tmp_path)
    (tmp_path / "saved_model.pbtxt").write_text("")
    with pytest.raises(InputError, match=r"saved_model.pbtxt is truncated or broken: the file is empty"):
        qk.load(tmp_path)


def test_the_graph_of_a_checkpoint_may_be_text(checkpoint: Path) -> None:
    as_text(checkpoint.with_name("model.ckpt.meta"), "MetaGraphDef")
    np.testing.assert_allclose(run_graph(qk.load(checkpoint, outputs=["y"]).graph), EXPECTED, rtol=1e-6)


def test_the_original_names_stay(tmp_path: Path) -> None:
    save_first_kind(tmp_path)
    graph = qk.load(tmp_path).graph
    assert (tuple(map(str, graph.inputs)), tuple(map(str, graph.outputs))) == (("x",), ("y",))


def test_variables_of_more_than_2_gb_are_rejected_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_second_kind(tmp_path)
    monkeypatch.setattr(graphdef, "MAX_BYTES", 40)
    monkeypatch.setattr(saved_model.graphdef, "MAX_BYTES", 40)
    with pytest.raises(QuantkitError, match=r"GB") as caught:
        qk.load(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["saved_model.pb", "saved_model.pbtxt"])
def test_file_of_a_saved_model_selects_the_folder(name: str, tmp_path: Path) -> None:
    save_second_kind(tmp_path)
    signature = qk.load(tmp_path).graph
    if name.endswith("txt"):
        as_text(tmp_path / "saved_model.pb", "SavedModel")
    assert qk.load(tmp_path / name).graph.op_counts == signature.op_counts
    (tmp_path / "saved_model.pb").write_bytes(graphdef.encode(signature))  # as some programs call a frozen graph
    assert qk.load(tmp_path / "saved_model.pb").graph.op_counts == signature.op_counts


def test_a_folder_of_checkpoints_gets_a_hint(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="is a folder without saved_model.pb") as caught:
        qk.load(checkpoint.parent)
    assert caught.value.hint == f"name the checkpoint in the folder: {checkpoint}"


def test_graphs_without_variables_are_read_without_tensorflow(tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        tf.matmul(x, W, name="y")
    qk.save(qk.load(graph.as_graph_def(), ["x"], ["y"]).graph, f"{tmp_path / 'saved'}/")
    script = (
        f"import sys, quantkit as qk; graph = qk.load({str(tmp_path / 'saved')!r}); "
        "assert [*map(str, graph.graph.outputs)] == ['y'] and not {'tensorflow', 'onnx'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_functions_without_variables_are_inlined_without_tensorflow(tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()
    module = tf.Module()
    scores = tf.function(lambda data: {"scores": tf.nn.relu(data @ W)})
    module.run = tf.function(lambda data: scores(data), input_signature=[tf.TensorSpec([None, 4], name="data")])
    tf.saved_model.save(module, str(tmp_path), signatures=module.run.get_concrete_function())
    script = (
        f"import sys, quantkit as qk; graph = qk.load({str(tmp_path)!r}); assert 'tensorflow' not in sys.modules; "
        f"qk.save(graph, {str(tmp_path / 'frozen.pb')!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    graph = qk.load(tmp_path).graph
    assert not graph.library
    assert "StatefulPartitionedCall" not in graph.op_counts
    np.testing.assert_allclose(run_graph(graph), np.maximum(X @ W, 0), rtol=1e-6)
    np.testing.assert_allclose(
        run_graph(qk.load(tmp_path / "frozen.pb", outputs=graph.outputs).graph), run_graph(graph)
    )


def test_objects_that_cannot_be_restored_do_not_hide_the_graph(tmp_path: Path) -> None:
    save_second_kind(tmp_path / "whole")
    save_second_kind(tmp_path / "optimizer")
    give_optimizer(tmp_path / "optimizer" / saved_model.FILE)
    with pytest.raises(AttributeError, match="add_slot"):
        tensorflow.import_tensorflow().saved_model.load(str(tmp_path / "optimizer"))

    whole, other = (qk.load(tmp_path / name) for name in ("whole", "optimizer"))

    assert other.signature is not None
    assert whole.signature is not None
    assert list(other.signature.inputs) == list(whole.signature.inputs)
    assert list(other.signature.outputs) == list(whole.signature.outputs)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    results = [qk.open_session(model, "reference").run(x) for model in (whole, other)]
    np.testing.assert_array_equal(*(next(iter(outputs.values())) for outputs in results))


def give_optimizer(file: Path) -> None:
    """Add an optimizer with a slot variable to the objects of a SavedModel, as Keras 2 writes it."""
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    nodes = message.meta_graphs[0].object_graph_def.nodes
    variable, slot = (index for index, node in enumerate(nodes) if node.HasField("variable"))
    optimizer = nodes.add()
    optimizer.user_object.identifier = "unknown_optimizer"  # tf-keras registers "optimizer"
    optimizer.user_object.version.producer = 1
    optimizer.slot_variables.add(original_variable_node_id=variable, slot_name="m", slot_variable_node_id=slot)
    nodes[0].children.add(node_id=len(nodes) - 1, local_name="optimizer")
    file.write_bytes(message.SerializeToString())
