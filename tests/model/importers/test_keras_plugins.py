"""`--plugin` accepts a module that registers Keras objects: layers, functions, and functions of Lambda layers."""

import json
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.errors import InputError, RecipeError
from quantkit.transforms.plugins import load_file

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

PLUGIN = """import keras


@keras.saving.register_keras_serializable("{package}")
class Scale(keras.layers.Layer):
    def __init__(self, factor=2.0, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def get_config(self):
        return {{**super().get_config(), "factor": self.factor}}


@keras.saving.register_keras_serializable("{package}")
def halve(x):
    return x / 2
"""
KINDS = ("layer.keras", "layer.h5", "lambda.keras", "lambda.h5", "activation.keras")
X = np.random.default_rng(0).normal(0, 1, (4, 6, 6, 3)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a folder with a plugin, whose package no other test registers, and models of its objects."""
    keras = import_module("keras")
    package = request.node.name
    (tmp_path / "objects.py").write_text(PLUGIN.format(package=package))
    before = dict(keras.utils.get_custom_objects())
    scope: dict[str, Any] = {"__name__": "objects"}
    exec((tmp_path / "objects.py").read_text(), scope)
    layers = {"layer": scope["Scale"](3.0), "activation": keras.layers.Activation(scope["halve"])}
    for name in KINDS:
        kind = name.partition(".")[0]
        layer = keras.layers.Lambda(scope["halve"]) if kind == "lambda" else layers[kind]
        inner = [keras.layers.Conv2D(4, 3), layer, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.layers.Input((6, 6, 3)), *inner])
        model.save(tmp_path / name)
        np.savez(tmp_path / f"{name}.npz", model(X))
    keras.utils.get_custom_objects().clear()
    keras.utils.get_custom_objects().update(before)
    return tmp_path


@pytest.mark.parametrize("name", KINDS)
def test_models_with_registered_objects_load(name: str, folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        qk.load(folder / name)
    assert "--plugin MODULE.py" in caught.value.hint
    assert load_file(folder / "objects.py") == ()
    with qk.open_session(folder / name, "reference") as session:
        (outputs,) = session.run(X).values()
    np.testing.assert_allclose(outputs, np.load(folder / f"{name}.npz")["arr_0"], rtol=1e-4, atol=1e-5)


def test_every_command_takes_the_plugin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(folder / "x.npz", x=X)
    model, data = str(folder / "layer.keras"), str(folder / "x.npz")
    plugin = ["--plugin", str(folder / "objects.py"), "-q"]
    for command in (
        ["quantize", model, "-o", str(folder / "q.onnx"), "--calibration", data, "--runs", "0"],
        ["evaluate", f"{model}@reference", "--data", data],
        ["transform", model, "-o", str(folder / "m.pb")],
        ["benchmark", f"{model}@reference", "--runs", "2", "--warmup", "1", "--processes", "1"],
    ):
        assert main([*command, *plugin]) == 0, command
    assert "candidate could not be measured" not in capsys.readouterr().err


def test_code_in_a_file_is_refused_with_a_plugin_as_well(folder: Path) -> None:
    keras = import_module("keras")
    load_file(folder / "objects.py")
    marker = str(folder / "ran")
    layer = keras.layers.Lambda(lambda x: (Path(marker).write_text("!"), x)[1], output_shape=(3,))
    keras.Sequential([keras.layers.Input((3,)), layer]).save(folder / "code.keras")
    Path(marker).unlink(missing_ok=True)
    with pytest.raises(InputError, match="has a Lambda 'lambda.*': quantkit does not run code") as caught:
        qk.load(folder / "code.keras")
    assert "register the function" in caught.value.hint
    assert not Path(marker).exists()


@pytest.mark.parametrize(
    "function",
    [
        {"class_name": "function", "config": "load_model", "module": "keras.models", "registered_name": "load_model"},
        {"class_name": "function", "config": "relu", "module": "keras.activations", "registered_name": "relu"},
        {"class_name": "function", "config": "system", "module": "os", "registered_name": "function"},
        {"class_name": "__lambda__", "config": {"code": "", "defaults": None, "closure": None}},
        {"class_name": "Dense", "config": {"units": 3}, "module": "keras.layers", "registered_name": None},
        "os.system",
        ["code", None, None],
        None,
    ],
)
def test_lambda_layers_call_registered_functions_only(function: Any, folder: Path) -> None:
    load_file(folder / "objects.py")
    with zipfile.ZipFile(folder / "lambda.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    for layer in config["config"]["layers"]:
        if layer["class_name"] == "Lambda":
            layer["config"]["function"] = function
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(folder / "changed.keras", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(InputError, match="does not run code from a model file"):
        qk.load(folder / "changed.keras")


def test_a_plugin_without_transform_and_object_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("import keras\n")
    with pytest.raises(RecipeError, match="registers no transform and no Keras object") as caught:
        load_file(tmp_path / "empty.py")
    assert "register_keras_serializable" in caught.value.hint
    assert not any("empty.py" in name for name in sys.modules if name.startswith("keras"))
