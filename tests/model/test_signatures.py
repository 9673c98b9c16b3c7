"""Signatures of SavedModels survive a round trip, and TensorFlow's loaders open the result."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_loader
from command_line import main

import quantkit as qk
from quantkit.formats import meta_graphs
from quantkit.formats.saved_model import Signature
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.model import load
from quantkit.recipes import rewrite
from quantkit.runtimes import tensorflow

TENSORFLOW = tensorflow.RUNTIME.available()
requires_tensorflow = [
    pytest.mark.engine,
    pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail),
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own
]
W = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
X = np.array([[1, 2, 3, 4], [0, -1, 0, 1]], np.float32)
FEEDS: Mapping[str, Mapping[str, Any]] = {
    "predict": {"zebra": X, "apple": np.float32(2)},
    "texts": {"text": np.array([b"one", b"three"], object)},
    "single": {"image": X[:1]},
}
EXPECTED: Mapping[str, Mapping[str, Any]] = {
    "predict": {"scores": X @ W * 2, "best": np.argmax(X @ W, -1), "sizes": [2, 4]},
    "texts": {"length": [3, 5], "joined": b"onethree"},
    "single": {"output_0": X[:1] @ W},
}


def graph() -> Graph:
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 4))}),
            constant("w", W),
            Node("y", "MatMul", (Edge("x"), Edge("w")), attrs={"T": DType.FLOAT}),
            Node("z", "Relu", (Edge("y"),), attrs={"T": DType.FLOAT}),
        ],
        ["x"],
        ["y", "z"],
    )


def save_model(folder: Path) -> Signature:
    (meta,) = meta_graphs(folder)
    (signature,) = meta.signatures.values()
    return signature


def test_names_are_written_and_read(tmp_path: Path) -> None:
    signature = Signature("mine", {"pixels": Edge("x")}, {"scores": Edge("y"), "same": Edge("y"), "gone": Edge("w")})
    qk.save(graph(), f"{tmp_path}/out/", signature=signature)
    names = save_model(tmp_path / "out")
    assert names == Signature("mine", {"pixels": Edge("x")}, {"same": Edge("y"), "scores": Edge("y"), "z": Edge("z")})
    model = load(tmp_path / "out", outputs=["scores"])
    assert model.signature == names
    assert model.graph.outputs == (Edge("y"),)


def test_endpoints_get_distinct_names(tmp_path: Path) -> None:
    qk.save(graph(), f"{tmp_path}/out/", signature=Signature(outputs={"z": Edge("y")}))
    assert save_model(tmp_path / "out").outputs == {"z": Edge("y"), "z:0": Edge("z")}


def test_names_follow_the_endpoints_of_a_rewritten_graph() -> None:
    before = graph()
    after = rewrite(
        before, "rename_node(old_node_name=y, new_node_name=a) rename_node(old_node_name=x, new_node_name=b)"
    )
    signature = Signature("mine", {"pixels": Edge("x")}, {"scores": Edge("y"), "positive": Edge("z")})
    assert signature.following(before, after) == Signature(
        "mine", {"pixels": Edge("b")}, {"scores": Edge("a"), "positive": Edge("z")}
    )
    assert signature.following(before, after.with_endpoints(None, ["z"])).outputs["positive"] == Edge("z")


def save_second_kind(folder: Path) -> None:
    """Save a model with three signatures, none of them the default: dicts, strings, one tensor."""
    tf = tensorflow.import_tensorflow()
    module = tf.Module()
    module.w = tf.Variable(W)
    module.predict = tf.function(
        lambda zebra, apple: {
            "scores": zebra @ module.w * apple,
            "best": tf.argmax(zebra @ module.w, -1),
            "sizes": tf.shape(zebra),
        },
        input_signature=[tf.TensorSpec([None, 4], name="zebra"), tf.TensorSpec([], name="apple")],
    )
    module.texts = tf.function(
        lambda text: {"length": tf.strings.length(text), "joined": tf.strings.reduce_join(text)},
        input_signature=[tf.TensorSpec([None], tf.string, name="text")],
    )
    module.single = tf.function(lambda image: image @ module.w, input_signature=[tf.TensorSpec([1, 4], name="image")])
    tf.saved_model.save(module, str(folder), signatures={name: getattr(module, name) for name in FEEDS})


def save_first_kind(folder: Path) -> None:
    tf = tensorflow.import_tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        image = v1.placeholder(tf.float32, [None, 4], name="in/image")
        apple = v1.placeholder(tf.float32, [], name="in/apple")
        text = v1.placeholder(tf.string, [None], name="in/text")
        scores = tf.matmul(image, v1.get_variable("w", initializer=W))
        session.run(v1.global_variables_initializer())
        uses = {
            "predict": (
                {"zebra": image, "apple": apple},
                {"scores": scores * apple, "best": tf.argmax(scores, -1), "sizes": tf.shape(image)},
            ),
            "texts": ({"text": text}, {"length": tf.strings.length(text), "joined": tf.strings.reduce_join(text)}),
            "single": ({"image": image}, {"output_0": scores}),
        }
        builder = v1.saved_model.Builder(str(folder))
        signature_map = {name: v1.saved_model.predict_signature_def(*use) for name, use in uses.items()}
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=signature_map)
        builder.save()


class TestTensorFlow:
    pytestmark = requires_tensorflow

    @pytest.mark.parametrize("save", [save_first_kind, save_second_kind])
    @pytest.mark.parametrize("recipe", [None, "inference", "obfuscate_names"])
    def test_each_signature_is_called_as_before(self, save: Any, recipe: str | None, tmp_path: Path) -> None:
        tf = tensorflow.import_tensorflow()
        save(tmp_path / "in")
        for name, feeds in FEEDS.items():
            out = tmp_path / name
            arguments = ["transform", f"{tmp_path}/in", "-o", f"{out}/", "--signature", name, "-q"]
            arguments += [] if recipe is None else ["--transforms", recipe] if "_" in recipe else ["--recipe", recipe]
            assert main(arguments) == 0
            self.check_python(tf, out, name, feeds)
            self.check_session(tf, out, name, feeds)
            if serving_loader.LIBRARY.exists():  # it is called otherwise where TensorFlow is packed otherwise
                assert serving_loaded(out) > 100

    def check_python(self, tf: Any, folder: Path, name: str, feeds: Mapping[str, Any]) -> None:
        loaded = tf.saved_model.load(str(folder))
        assert set(loaded.signatures) == {name}
        outputs = loaded.signatures[name](**{key: tf.constant(value) for key, value in feeds.items()})
        assert outputs.keys() == EXPECTED[name].keys()
        for key, expected in EXPECTED[name].items():
            same(outputs[key].numpy(), expected)

    def check_session(self, tf: Any, folder: Path, name: str, feeds: Mapping[str, Any]) -> None:
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            meta = v1.saved_model.load(session, ["serve"], str(folder))
            use = meta.signature_def[name]
            assert use.method_name == "tensorflow/serving/predict"
            fetches = {key: info.name for key, info in use.outputs.items()}
            outputs = session.run(fetches, {use.inputs[key].name: value for key, value in feeds.items()})
        for key, expected in EXPECTED[name].items():
            same(outputs[key], expected)
            assert use.outputs[key].dtype == tf.as_dtype(
                np.asarray(outputs[key]).dtype if key != "joined" else "string"
            )

    def test_outputs_have_the_names_of_the_signature(self, tmp_path: Path) -> None:
        save_second_kind(tmp_path / "in")
        arguments = ["transform", f"{tmp_path}/in", "-o", f"{tmp_path}/out/", "--signature", "predict", "-q"]
        assert main([*arguments, "--outputs", "best"]) == 0
        assert save_model(tmp_path / "out").outputs.keys() == {"best"}

    def test_signatures_are_listed_without_a_default(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save_second_kind(tmp_path / "in")
        assert main(["transform", f"{tmp_path}/in", "-o", f"{tmp_path}/out/"]) == 2
        error, hint = capsys.readouterr().err.strip().splitlines()[-2:]
        assert "signature 'serving_default' does not exist; available: predict, single, texts" in error
        assert hint == "hint: select a signature with --signature NAME"
        assert main(["transform", f"{tmp_path}/in", "-o", f"{tmp_path}/out/", "--signature", "text"]) == 2
        assert "did you mean 'texts'?" in capsys.readouterr().err


def serving_loaded(folder: Path) -> int:
    """Return the result of TensorFlow Serving's loader, in a process without TensorFlow."""
    script = [sys.executable, str(Path(serving_loader.__file__)), str(folder), "serve"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return int(done.stdout)


def same(names: Any, expected: Any) -> None:
    if isinstance(expected, bytes):
        assert names == expected
    else:
        np.testing.assert_allclose(names, expected, rtol=1e-6)
