"""Keras models as objects, and the reasons of failures of their files."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import UnavailableError, UsageError
from quantkit.runtimes import tensorflow
from quantkit.runtimes.tensorflow_library import describe_error

TENSORFLOW = tensorflow.RUNTIME.available()
pytestmark = [pytest.mark.engine, pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail)]


@pytest.fixture
def keras() -> Any:
    return tensorflow.import_tensorflow().keras


def test_a_model_is_called_with_the_structure_of_its_inputs(keras: Any) -> None:
    ids = keras.Input((4,), name="ids", dtype="int32")
    mask = keras.Input((4,), name="mask")

    class MaskLayer(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return keras.ops.cast(inputs["ids"], "float32") * inputs["mask"]

    inputs = {"mask": mask, "ids": ids}
    model = keras.Model(inputs, MaskLayer()(inputs))
    feeds = {"ids": np.array([[1, 2, 3, 4]], np.int32), "mask": np.array([[1, 0, 0.5, 2]], np.float32)}
    with qk.open_session(qk.load(model), "reference") as session:
        (result,) = session.run(feeds).values()
    np.testing.assert_array_equal(result, [[1, 0, 1.5, 8]])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_outputs_keep_their_names(keras: Any, tmp_path: Path) -> None:
    x = keras.Input((4,), name="x")
    scores = keras.layers.Dense(3, activation="softmax", name="scores")(x)
    boxes = keras.layers.Dense(2, name="boxes")(x)
    several = keras.Model(x, [boxes, scores])
    assert list(map(str, qk.load(several).graph.outputs)) == ["boxes", "scores"]
    sequential = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="last")])
    sequential.save(tmp_path / "model.h5")
    assert list(map(str, qk.load(tmp_path / "model.h5").graph.outputs)) == ["last"]
    values = np.array([[1, 2, 3, 4]], np.float32)
    with qk.open_session(qk.load(several), "reference") as session:
        outputs = session.run(values)
    for name, expected in zip(("boxes", "scores"), several(values), strict=True):
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-5)


def test_a_model_without_keras_inputs_is_a_usage_error(keras: Any) -> None:
    class CustomModel(keras.Model):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(UsageError, match="has no inputs: it was not built from keras.Input"):
        qk.load(CustomModel())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_with_classes_of_a_missing_package_names_it(keras: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    dense = config["config"]["layers"][1]
    dense.update(module="keras_nlp.src.layers.dense", registered_name="keras_nlp>Dense")
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(UnavailableError, match="needs the package 'keras-nlp', which is not installed") as error:
        qk.load(path)
    assert error.value.hint == "pip install keras-nlp"


def test_the_reason_of_an_error_in_a_layer_is_complete(keras: Any) -> None:
    class Strict(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            raise ValueError(f"the last dimension must be 8, not {x.shape[-1]}")

    with pytest.raises(ValueError, match="Exception encountered") as error:
        Strict()(tensorflow.import_tensorflow().zeros((2, 4)))
    assert describe_error(error.value) == "Strict.call(): the last dimension must be 8, not 4"
