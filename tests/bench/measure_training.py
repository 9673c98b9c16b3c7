"""Measure the training functions on a small Keras 3 network and scikit-learn's digits.

    python tests/bench/measure_training.py

Writes `training.json`: for each target and number format, the accuracy of the calibrated int8 file and of the
quantization-aware one, and the agreement of the latter with its simulation; for a pruned and a clustered network, the
accuracy in float and int8, the sparsity and the distinct values. All figures are counts, which do not
depend on the load of the machine. The script takes about 5 minutes and needs scikit-learn.
"""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import quantkit as qk
from quantkit import training
from quantkit.ops.weights import find_weights

OUTPUT = Path(__file__).parent / "training.json"
RUNTIMES = {"onnx": "onnxruntime", "tensorflow": "tensorflow", "eightbit": "tensorflow", "litert": "litert"}
COARSE = "qint8 symmetric reduce_range"
# Name, scheme.
SCHEMES: dict[str, dict[str, Any]] = {
    **{f"{target}, default": {"target": target} for target in RUNTIMES},
    "onnx, 7-bit weights with one scale": {"target": "onnx", "weights": COARSE},
    "tensorflow, 7-bit weights with one scale": {"target": "tensorflow", "weights": COARSE},
}
EPOCHS, TRAINED_EPOCHS, BATCH, CALIBRATION = 30, 15, 64, 100
# Epochs and learning rate of the float and the pruned network. Those of the pruned one were selected on a fourth of the
# training images, from 12 settings.
FLOAT_RATE = 1e-2
SPARSITY, CLUSTERS = 0.8, 16


def load_data() -> tuple[Any, Any, Any, Any]:
    """Return training images (n, 8, 8, 1) and classes, and those of the held-out fifth."""
    images, classes = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8, 1) / 8 - 1).astype(np.float32)
    train, held_out, train_classes, held_out_classes = train_test_split(
        images, classes, test_size=0.2, stratify=classes, random_state=0
    )
    return train, train_classes, held_out, held_out_classes


def build_network() -> Any:
    """Return a network of depthwise-separable blocks with ReLU6, in the style of MobileNet."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    x = y = keras.Input((8, 8, 1))
    for channels, strides in ((16, 1), (24, 2), (32, 1), (32, 2)):
        y = layers.ReLU(6.0)(layers.BatchNormalization()(layers.DepthwiseConv2D(3, strides, "same")(y)))
        y = layers.ReLU(6.0)(layers.BatchNormalization()(layers.Conv2D(channels, 1)(y)))
    y = layers.Dense(10, activation="softmax", name="digit")(layers.Flatten()(y))
    return keras.Model(x, y)


def fit(model: Any, data: tuple[Any, Any, Any, Any], epochs: int, rate: float) -> Any:
    """Train a model with Adam and a cosine schedule, and return it."""
    steps = epochs * -(-len(data[0]) // BATCH)
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(rate, steps))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(data[0], data[1], BATCH, epochs, verbose=0, callbacks=training.callbacks(model))
    return model


def predict(result: Any, images: Any) -> Any:
    """Return the classes of an int8 model, computed by a runtime of its target."""
    with qk.open_session(result.model, RUNTIMES[result.plan.scheme.target]) as session:
        name = session.inputs[0].name
        return np.array([next(iter(session.run({name: image[None]}).values())).argmax() for image in images])


def top1(model: Any, data: tuple[Any, Any, Any, Any]) -> float:
    return float(np.mean(model.predict(data[2], verbose=0).argmax(-1) == data[3]))


def measure_scheme(network: Any, scheme: dict[str, Any], data: tuple[Any, Any, Any, Any]) -> dict[str, float]:
    """Return the accuracies of one scheme."""
    calibration = data[0][:CALIBRATION]
    calibrated = predict(qk.quantize(network, calibration, scheme=scheme, runs=0), data[2])
    aware = fit(training.quantization_aware(network, scheme, calibration), data, TRAINED_EPOCHS, 1e-3)
    simulated = aware.predict(data[2], verbose=0).argmax(-1)
    computed = predict(qk.quantize(aware, runs=0), data[2])
    return {
        "calibrated_top1": float(np.mean(calibrated == data[3])),
        "trained_top1": float(np.mean(computed == data[3])),
        "simulation_top1": float(np.mean(simulated == data[3])),
        "agreement_with_simulation": float(np.mean(computed == simulated)),
    }


def measure_pruned(network: Any, data: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
    """Return the figures of a pruned network, and its accuracy with the moving averages of the training."""
    end = EPOCHS // 2 * -(-len(data[0]) // BATCH)
    pruned = training.prune(network, training.PruningSchedule(SPARSITY, end=end, frequency=10))
    stripped = training.strip(fit(pruned, data, EPOCHS, FLOAT_RATE))
    lagging = top1(stripped, data)
    training.update_batch_norms(stripped, data[0], batch=BATCH)
    return {"top1_without_update_batch_norms": lagging, **measure_weights(stripped, data)}


def measure_clustered(network: Any, data: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
    """Return the figures of a clustered network."""
    return measure_weights(training.strip(fit(training.cluster(network, CLUSTERS), data, TRAINED_EPOCHS, 1e-3)), data)


def measure_weights(model: Any, data: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
    """Return the accuracy in float and int8, the sparsity, and the distinct values of the kernels and of their int8."""
    kernels = [np.asarray(layer.kernel) for layer in model.layers if type(layer).__name__ in ("Conv2D", "Dense")]
    result = qk.quantize(model, data[0][:CALIBRATION], runs=0)
    quantized = [weights.value.array for weights in find_weights(result.model.graph)]
    quantized = [array for array in quantized if array.size in {kernel.size for kernel in kernels}]
    return {
        "top1": top1(model, data),
        "int8_top1": float(np.mean(predict(result, data[2]) == data[3])),
        "sparsity": sparsity(kernels),
        "int8_sparsity": sparsity(quantized),
        "distinct_values": max(len(np.unique(kernel)) for kernel in kernels),
        "int8_distinct_values": max(len(np.unique(array)) for array in quantized),
    }


def sparsity(arrays: list[Any]) -> float:
    return float(np.mean(np.concatenate([array.ravel() == 0 for array in arrays])))


def main() -> None:
    data = load_data()
    network = fit(build_network(), data, EPOCHS, FLOAT_RATE)
    document: dict[str, Any] = {
        "schema": "quantkit.training/1",
        "data": f"scikit-learn's digits, {len(data[2])} held-out images",
        "epochs": TRAINED_EPOCHS,
        "float_top1": top1(network, data),
        "schemes": {},
    }
    print(f"float: {document['float_top1']:.4f}")
    for name, scheme in SCHEMES.items():
        document["schemes"][name] = measure_scheme(network, scheme, data)
        print(f"{name}: {document['schemes'][name]}")
    for name, measure in (("pruned", measure_pruned), ("clustered", measure_clustered)):
        document[name] = measure(network, data)
        print(f"{name}: {document[name]}")
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
