"""Keras 2 files and the wrappers of TF-MOT: tf-keras loads them, and no code of the file runs."""

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.distribution import install_command
from quantkit.errors import InputError, UnavailableError
from quantkit.ir.tensor import Array
from quantkit.model.importers import keras2
from quantkit.runtimes import tensorflow
from quantkit.runtimes.tensorflow_library import import_tensorflow

TENSORFLOW = tensorflow.RUNTIME.available()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail),
    pytest.mark.filterwarnings("ignore"),  # Keras' own
]
FORMS = (".h5", ".keras", "_saved_model")
KINDS = ("plain", "trained", "pruned", "clustered")


@dataclass(frozen=True)
class Files:
    """Files of the models of one network, and the outputs of each model for ``samples``."""

    folder: Path
    samples: Array
    outputs: dict[str, Array]


def require_tfmot() -> None:
    """Skip the test without TF-MOT; an import here would make ``tf.keras`` Keras 2 in all later tests."""
    if find_spec("tensorflow_model_optimization") is None:
        pytest.skip("pip install 'quantkit-toolchain[training]'")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Save a network in all forms: plain, trained with quantization, pruned and clustered."""
    pytest.importorskip("tf_keras", reason="pip install 'quantkit-toolchain[training]'")
    require_tfmot()
    import_tensorflow()
    tfmot = keras2.import_tfmot("the test")
    keras = keras2.import_tf_keras("the test")
    folder, samples = tmp_path_factory.mktemp("keras2"), np.random.default_rng(0).normal(0, 1, (16, 8, 8, 3))
    keras.utils.set_random_seed(0)
    layers = keras.layers
    base = keras.Sequential(
        [
            layers.Input((8, 8, 3)),
            layers.Conv2D(8, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.DepthwiseConv2D(3, name="depthwise"),
            layers.ReLU(6.0),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )
    sparsity = tfmot.sparsity.keras
    schedule = sparsity.ConstantSparsity(0.8, 0, frequency=1)
    make: dict[str, Callable[[], Any]] = {
        "plain": lambda: base,
        "trained": lambda: tfmot.quantization.keras.quantize_model(base),
        "pruned": lambda: sparsity.prune_low_magnitude(base, schedule),
        "clustered": lambda: tfmot.clustering.keras.cluster_weights(
            base, 8, tfmot.clustering.keras.CentroidInitialization.LINEAR
        ),
    }
    outputs = {}
    for kind in KINDS:
        model = make[kind]()
        if kind == "trained":
            model(samples, training=True)  # observes the ranges
        if kind == "pruned":
            model.compile(keras.optimizers.SGD(1e-3), keras.losses.MeanSquaredError(), run_eagerly=True)
            model.fit(samples, np.zeros((16, 4)), verbose=0, callbacks=[sparsity.UpdatePruningStep()])
        model.save(folder / f"{kind}.h5")
        model.save(folder / f"{kind}.keras")
        if kind != "plain":
            model.save(folder / f"{kind}_saved_model", save_format="tf")
        outputs[kind] = np.asarray(model(samples, training=False))
    return Files(folder, samples.astype(np.float32), outputs)


def run(model: Any, samples: Array, runtime: str = "tensorflow") -> Array:
    with qk.open_session(model, runtime) as session:
        return next(iter(session.run({session.inputs[0].name: samples}).values()))


@pytest.mark.parametrize(
    ("kind", "form"), [(kind, form) for kind in KINDS for form in FORMS if (kind, form) != ("plain", FORMS[-1])]
)
def test_outputs_are_those_of_keras(kind: str, form: str, files: Files) -> None:
    model = qk.load(files.folder / f"{kind}{form}")
    np.testing.assert_allclose(run(model, files.samples), files.outputs[kind], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", [".h5", ".keras"])
@pytest.mark.parametrize("kind", ["pruned", "clustered"])
def test_wrappers_are_stripped(kind: str, form: str, files: Files) -> None:
    graph = qk.load(files.folder / f"{kind}{form}").graph
    assert not {"ArgMin", "GatherV2", "AssignVariableOp"} & graph.op_counts.keys()
    kernels = [node.value.array for node in graph.nodes.values() if node.is_constant and node.value.num_elements > 128]
    assert kernels
    for kernel in kernels:
        if kind == "pruned":
            assert np.mean(kernel == 0) >= 0.75
        else:
            assert len(np.unique(kernel)) <= 8


def test_a_model_object_is_accepted_and_unchanged(files: Files) -> None:
    tfmot = keras2.import_tfmot("the test")
    with keras2.tfmot_scopes(tfmot):
        model = keras2.import_tf_keras("the test").models.load_model(files.folder / "clustered.h5", compile=False)
    before = [layer.name for layer in model.layers]
    np.testing.assert_allclose(run(qk.load(model), files.samples), files.outputs["clustered"], rtol=1e-4, atol=1e-5)
    assert [layer.name for layer in model.layers] == before


def test_tfmot_does_not_replace_keras() -> None:
    require_tfmot()
    before = os.environ.get(keras2.LEGACY_KERAS)
    keras2.import_tfmot("the test")
    assert os.environ.get(keras2.LEGACY_KERAS) == before


@pytest.mark.parametrize("form", FORMS)
def test_trained_model_is_quantized_without_data(form: str, files: Files, tmp_path: Path) -> None:
    result = qk.quantize(files.folder / f"trained{form}", output=tmp_path / "int8.onnx", runs=0)
    assert result.report.provenance.trained == len(result.plan.activations)
    assert len(result.plan.patterns) == 3
    outputs = run(tmp_path / "int8.onnx", files.samples, "onnxruntime")
    step = max(high - low for low, high in result.ranges.values()) / 255
    np.testing.assert_allclose(outputs, files.outputs["trained"], atol=2 * step)


def test_zeros_and_clusters_survive_quantizing(files: Files) -> None:
    for kind in ("pruned", "clustered"):
        source = qk.load(files.folder / f"{kind}.h5")
        graph = qk.quantize(source, files.samples, runs=0).model.graph
        weights = [node.value.array for node in graph.nodes.values() if node.is_constant]
        kernels = [array for array in weights if array.dtype == np.int8 and array.size > 128]
        assert kernels, "a small first or last layer may stay float"
        for kernel in kernels:
            assert np.mean(kernel == 0) >= 0.75 if kind == "pruned" else len(np.unique(kernel)) <= 8


def edit_config(source: Path, target: Path, layer: dict[str, Any]) -> Path:
    """Write a Keras 2 file with one more layer, whose description may be wrong."""
    h5py = pytest.importorskip("h5py")

    def insert(text: str | bytes) -> str:
        config = json.loads(text)
        config["config"]["layers"].insert(1, layer)
        return json.dumps(config)

    if source.suffix == ".h5":
        target.write_bytes(source.read_bytes())
        with h5py.File(target, "r+") as file:
            file.attrs["model_config"] = insert(file.attrs["model_config"])
        return target
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as copy:
        for name in archive.namelist():
            content = archive.read(name)
            copy.writestr(name, insert(content) if name == "config.json" else content)
    return target


@pytest.mark.parametrize("form", [".h5", ".keras"])
@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"class_name": "Lambda", "config": {"name": "l"}}, "has a Lambda 'l'"),
        ({"module": "os", "class_name": "system", "config": {"command": "false"}}, "needs 'os.system'"),
        ({"class_name": "TFOpLambda", "config": {"function": "io.write_file"}}, "needs 'keras.TFOpLambda'"),
        ({"class_name": "InstanceMethod", "config": {"method_name": "numpy"}}, "needs 'keras.InstanceMethod'"),
        ({"module": "keras.utils", "class_name": "get_file", "config": {}}, "needs 'keras.utils.get_file'"),
        (
            {"module": "os", "class_name": "QuantizeLayer", "config": {}},
            "needs 'os.QuantizeLayer', which is not a layer or function of Keras",
        ),
        ({"class_name": "MyQuantizer", "config": {}}, "needs 'keras.MyQuantizer'"),
    ],
)
def test_other_classes_are_rejected(
    layer: dict[str, Any],
    message: str,
    form: str,
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = edit_config(files.folder / f"trained{form}", tmp_path / f"model{form}", layer)
    monkeypatch.setattr("tf_keras.models.load_model", lambda *_, **__: pytest.fail("Keras was asked"))
    with pytest.raises(InputError, match=message) as caught:
        qk.load(path)
    assert caught.value.hint


@pytest.mark.parametrize(("missing", "kind"), [("tf_keras", "plain"), ("tensorflow_model_optimization", "pruned")])
def test_missing_package_is_named(missing: str, kind: str, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    find = keras2.find_spec
    monkeypatch.setattr(keras2, "find_spec", lambda name: None if name == missing else find(name))
    for form in (".keras", ".h5"):
        with pytest.raises(UnavailableError, match=missing.replace("_", "-")) as caught:
            qk.load(files.folder / f"{kind}{form}")
        assert caught.value.hint == install_command("training")
