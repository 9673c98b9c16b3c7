"""Training of Keras models with fake quantization, zeros or clusters, and the export of these models."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit import training
from quantkit.distribution import install_command
from quantkit.errors import InputError, UnavailableError, UsageError
from quantkit.ir.tensor import Array
from quantkit.runtimes.availability import Availability
from quantkit.training import keras_models, tf_mot
from quantkit.training.batch_norms import split_batches
from quantkit.training.clusters import find_clusters

pytestmark = [
    pytest.mark.engine,
    # Keras converts variables to arrays so when it saves them.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]
RUNTIMES = {"onnx": "onnxruntime", "tensorflow": "tensorflow", "eightbit": "tensorflow", "litert": "litert"}
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(200, 6, 6, 2)).astype(np.float32)
CLASSES = (IMAGES[..., 0].mean((1, 2)) > IMAGES[..., 1].mean((1, 2))).astype(np.int64)


def build(keras: Any) -> Any:
    """Return a network of Keras 3 or tf-keras."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    x = keras.Input((6, 6, 2), name="image")
    y = layers.Conv2D(6, 3, name="conv", kernel_constraint=keras.constraints.MaxNorm(2.0))(x)
    y = layers.BatchNormalization(name="norm")(y)
    y = layers.ReLU(name="relu")(y)
    y = layers.DepthwiseConv2D(2, name="depthwise")(y)
    y = layers.Flatten(name="flat")(layers.Dropout(0.5)(y))
    return keras.Model(x, layers.Dense(2, name="scores")(y), name="tiny")


@cache
def network() -> Any:
    """Return a network of Keras 3."""
    import keras

    return build(keras)


@cache
def legacy_network() -> Any:
    """Return a network of tf-keras."""
    import tf_keras

    return build(tf_keras)


@cache
def aware(target: str) -> tuple[Any, Any]:
    """Return a trained quantization-aware model of `network`, and the history of its losses."""
    import keras

    model = training.quantization_aware(network(), calibration=IMAGES[:50], target=target)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model, model.fit(IMAGES, CLASSES, batch_size=50, epochs=3, verbose=0).history["loss"]


def run_file(path: Path, runtime: str) -> Array:
    with qk.open_session(path, runtime) as session:
        name = session.inputs[0].name
        return np.concatenate([next(iter(session.run({name: image[None]}).values())) for image in IMAGES])


def train(model: Any) -> Any:
    """Train a model with 8 batches, and return it."""
    model.compile("adam", "mse")
    return fit(model)


def fit(model: Any) -> Any:
    model.fit(IMAGES, np.eye(2)[CLASSES], batch_size=25, verbose=0, callbacks=training.callbacks(model))
    return model


def kernels(model: Any) -> dict[str, Array]:
    """Return the kernels of the convolution and the product by layer name."""
    return {name: model.get_layer(name).kernel.numpy() for name in ("conv", "scores")}


# Quantization


@pytest.mark.parametrize("target", RUNTIMES)
def test_int8_file_has_the_outputs_of_the_trained_simulation(target: str, tmp_path: Path) -> None:
    model, losses = aware(target)
    assert losses[-1] < losses[0]
    result = qk.quantize(model, held_out=IMAGES, runs=0)
    path = result.save(tmp_path / f"model{result.conversion.target.suffixes[0]}")
    simulated, computed = model(IMAGES).numpy(), run_file(path, RUNTIMES[target])
    assert np.mean(simulated.argmax(-1) == computed.argmax(-1)) >= 0.995
    untrained = network()(IMAGES).numpy()
    error, change = (np.sqrt(np.mean((values - computed) ** 2)) for values in (simulated, untrained))
    assert error < 0.1 * change, "the file has the trained weights, not those of the float model"
    assert result.report.accuracy.metrics is not None
    assert result.plan.scheme.target == target


def test_quantization_aware_model_has_the_interface_of_the_float_model() -> None:
    model, _ = aware("onnx")
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in model.inputs] == [
        (tensor.name, tensor.shape, tensor.dtype) for tensor in network().inputs
    ]
    assert model.output_names == ["scores"]
    assert model.name == "tiny"


def test_structures_of_inputs_and_outputs_stay() -> None:
    import keras

    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    dense = keras.layers.Dense(3, name="sum", activation="relu")(keras.layers.Add()([a, b]))
    original = keras.Model({"a": a, "b": b}, {"sum": dense, "logits": keras.layers.Dense(2, name="logits")(dense)})
    data = {name: RANDOM.normal(size=(40, 4)).astype(np.float32) for name in ("a", "b")}
    model = training.quantization_aware(original, calibration=data)
    expected, outputs = original.predict(data, verbose=0), model.predict(data, verbose=0)
    assert outputs.keys() == expected.keys() == {"sum", "logits"}
    for name in outputs:
        assert np.corrcoef(outputs[name].ravel(), expected[name].ravel())[0, 1] > 0.99


def test_layers_in_float_and_layers_without_gradient_are_reported() -> None:
    import keras

    class Steps(keras.layers.Layer):  # type: ignore[misc]
        """Layer without a gradient."""

        def call(self, x: Any) -> Any:
            return keras.ops.floor(x)

    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Dense(2)(Steps()(keras.layers.Dense(3, name="before")(x))))
    messages: list[str] = []
    training.quantization_aware(model, calibration=np.eye(4, dtype=np.float32), on_message=messages.append)
    assert any("(Floor) stays float: " in message for message in messages)
    assert any("before" in message and "no gradient reaches it" in message for message in messages)


def test_weights_are_saved_and_the_whole_model_is_not(tmp_path: Path) -> None:
    model, _ = aware("onnx")
    model.save_weights(tmp_path / "model.weights.h5")
    restored = training.quantization_aware(network(), calibration=IMAGES[:50])
    restored.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(restored(IMAGES).numpy(), model(IMAGES).numpy())
    with pytest.raises(UsageError, match="saved by its weights"):
        model.save(tmp_path / "model.keras")
    restored.weights[0].assign(np.full(restored.weights[0].shape, np.nan))
    with pytest.raises(InputError, match="the trained weights are NaN or infinite"):
        qk.quantize(restored)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "litert"}, "quantization-aware for target 'onnx', not 'litert'"),
        ({"calibration": IMAGES}, "calibration has no effect on a quantization-aware model"),
        ({"finetune": 3}, "finetune has no effect"),
        ({"float_parts": "float32"}, "float_parts has no effect"),
        ({"max_drop": 0.1}, "--max-drop needs data"),
        ({"output": "model.pb"}, "cannot write target 'onnx' to model.pb"),
    ],
)
def test_options_that_contradict_the_training_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        qk.quantize(aware("onnx")[0], **options)


# Zeros and clusters


@pytest.mark.parametrize(
    ("build_network", "schedule"),
    [
        (network, training.PruningSchedule(0.75, end=5, frequency=3)),
        (legacy_network, training.PruningSchedule(0.75, end=5, frequency=3)),
        (legacy_network, 0.75),
    ],
)
def test_pruned_model_reaches_its_sparsity_and_keeps_it(build_network: Callable[[], Any], schedule: Any) -> None:
    original = build_network()
    before = original.get_weights()
    stripped = training.strip(train(training.prune(original, schedule)))
    assert [layer.name for layer in stripped.layers] == [layer.name for layer in original.layers]
    for name, kernel in kernels(stripped).items():
        assert np.mean(kernel == 0) == pytest.approx(0.75, abs=1 / kernel.size), name
    assert np.all(stripped.get_layer("depthwise").get_weights()[0] != 0)
    for first, second in zip(before, original.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("build_network", [network, legacy_network])
@pytest.mark.parametrize("is_dataset", [False, True])
def test_batch_norms_get_the_statistics_of_the_final_weights(
    build_network: Callable[[], Any], is_dataset: bool
) -> None:
    import tensorflow as tf

    model = training.strip(training.prune(build_network(), 0.5))
    model.get_layer("conv").set_weights([3 * array + 0.1 for array in model.get_layer("conv").get_weights()])
    samples = tf.data.Dataset.from_tensor_slices((IMAGES, CLASSES)).batch(50) if is_dataset else IMAGES
    norm = model.get_layer("norm")
    momentum = norm.momentum
    assert training.update_batch_norms(model, samples, batch=50) is model
    outputs = model.get_layer("conv")(IMAGES).numpy().reshape(4, -1, 6)
    np.testing.assert_allclose(np.array(norm.moving_mean), outputs.mean((0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.array(norm.moving_variance), outputs.var(1).mean(0), rtol=1e-2)
    assert norm.momentum == momentum
    with pytest.raises(InputError, match="samples is empty"):
        training.update_batch_norms(model, IMAGES[:0])
    norm.trainable = False
    with pytest.raises(UsageError, match="has no batch norm that is trained"):
        training.update_batch_norms(model, samples)


def test_batches_have_the_structure_of_the_samples() -> None:
    first, second = np.arange(5), np.arange(10).reshape(5, 2)
    pairs = list(split_batches([first, second], 2))
    assert [len(batch) for pair in pairs for batch in pair] == [2, 2, 2, 2, 1, 1]
    by_name = list(split_batches({"a": first, "b": second}, 2))
    np.testing.assert_array_equal(by_name[2]["b"], second[4:])
    np.testing.assert_array_equal(pairs[2][1], second[4:])


@pytest.mark.parametrize("build_network", [network, legacy_network])
def test_clustered_model_has_few_values_after_the_training(build_network: Callable[[], Any]) -> None:
    original = build_network()
    stripped = training.strip(train(training.cluster(original, 4)))
    for name, kernel in kernels(stripped).items():
        assert 1 < len(np.unique(kernel)) <= 4, name
        assert not np.isin(kernel, kernels(training_start(original))[name]).all(), "the shared values are trained"


def training_start(original: Any) -> Any:
    """Return a clustered network of Keras 3 before its training."""
    return training.cluster(network(), 4) if original is network() else original


def test_zeros_stay_and_constraints_of_the_model_apply() -> None:
    pruned = training.prune(network(), 0.5)
    train(pruned)
    zeros = {name: kernel == 0 for name, kernel in kernels(pruned).items()}
    fit(pruned)
    for name, kernel in kernels(pruned).items():
        np.testing.assert_array_equal(kernel == 0, zeros[name])
    norms = np.sqrt(np.sum(kernels(pruned)["conv"] ** 2, 0))
    assert norms.max() <= 2.0 + 1e-5


def test_layers_without_kernels_are_reported() -> None:
    import keras

    messages: list[str] = []
    training.prune(network(), 0.5, on_message=messages.append)
    assert messages == ["layer 'depthwise' (DepthwiseConv2D) is not pruned: it has a depthwise kernel"]
    table = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(5, 4, name="table")])
    with pytest.raises(UsageError, match="has no trainable kernel"):
        training.cluster(table, 4, on_message=messages.append)
    assert messages[1] == "layer 'table' (Embedding) is not clustered: it has no kernel"


def test_clusters_are_those_of_the_nearest_centroids() -> None:
    values = np.random.default_rng(3).normal(size=(40, 30)).astype(np.float32)
    clusters = find_clusters(values, 8)
    centroids = np.array([values[clusters == index].mean() for index in range(8)])
    np.testing.assert_array_equal(clusters, np.abs(values[..., None] - centroids).argmin(-1))
    assert set(np.unique(find_clusters(np.array([1.0, 1.0], np.float32), 4))) == {0}


def test_legacy_model_is_quantization_aware_with_tf_mot() -> None:
    messages: list[str] = []
    model = training.quantization_aware(legacy_network(), {"keep_float": ["scores"]}, on_message=messages.append)
    kinds = {layer.name: type(layer).__name__ for layer in model.layers}
    assert kinds["quant_conv"] == "QuantizeWrapperV2"
    assert "scores" in kinds, "keep_float names it"
    assert "TF_USE_LEGACY_KERAS" not in os.environ
    with pytest.raises(UsageError, match="is quantization-aware already"):
        training.quantization_aware(model)
    with pytest.raises(UsageError, match="neither pruned nor clustered"):
        training.strip(model)


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: training.quantization_aware("digits"), "model is a str, and must be a Keras model"),
        (lambda: training.quantization_aware(network()), "no calibration dataset is given"),
        (lambda: training.quantization_aware(network(), {"weights_only": True}, IMAGES), "quantizes weights only"),
        (lambda: training.quantization_aware(network(), {"weights": "int4"}, IMAGES), "unknown term 'int4'"),
        (lambda: training.quantization_aware(aware("onnx")[0], None, IMAGES), "is quantization-aware already"),
        (lambda: training.quantization_aware(legacy_network(), target="nothing"), "nothing"),
        (lambda: training.prune(network(), 1.5), "final is 1.5, and must be a number from 0 to 1"),
        (lambda: training.PruningSchedule(0.5, initial=0.7), "must stay below 1 and not fall"),
        (lambda: training.PruningSchedule(0.5, begin=9, end=3), "end is 3, and begin is 9"),
        (lambda: training.prune(training.cluster(network(), 4), 0.5), "is pruned or clustered already"),
        (lambda: training.cluster(network(), 1), "at least 2 clusters"),
        (lambda: training.strip(network()), "neither pruned nor clustered"),
        (lambda: training.strip(aware("onnx")[0]), "neither pruned nor clustered"),
        (lambda: training.callbacks(3), "model is an int, and must be a Keras model"),
    ],
)
def test_errors(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        call()
    assert caught.value.hint


def test_models_that_cannot_be_copied_are_errors() -> None:
    import keras

    class Own(keras.Model):  # type: ignore[misc]
        """Model without an input."""

        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(UsageError, match="is not built"):
        training.prune(Own(), 0.5)
    with pytest.raises(UsageError, match="has no inputs"):
        training.quantization_aware(Own(), calibration=IMAGES)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original, legacy = network(), legacy_network()
    monkeypatch.setattr(
        tf_mot, "find_package", lambda *names, extra: Availability.no(f"{names[0]} is missing: pip {extra}")
    )
    with pytest.raises(UnavailableError, match="TensorFlow Model Optimization") as caught:
        training.prune(legacy, 0.5)
    assert caught.value.hint == "pip training"
    monkeypatch.setattr(keras_models, "available", lambda: Availability.no("TensorFlow is missing"))
    with pytest.raises(UnavailableError, match="training needs TensorFlow") as caught:
        training.prune(original, 0.5)
    assert caught.value.exit_code == 4
    assert caught.value.hint == install_command("training")
