"""Measure models of TensorFlow Model Optimization (TF-MOT): quantization-aware training, pruning and clustering.

    python tests/bench/measure_tfmot.py BUILD [--speed]

Trains a small network with depthwise layers and batch norms on scikit-learn's digits (a fifth is held out), fine-tunes
it with TF-MOT, and writes `tfmot.json`:

- accuracy of the quantization-aware model in TF-MOT's simulation, in quantkit's files for every target and for each
  file form, and in the file of TensorFlow's own converter;
- zeros, distinct values and sizes of a pruned and of a clustered model, before and after ``transform`` and
  ``quantize``.

``--speed`` only adds the latency of the files in BUILD, which a first call without it has written: on a quiet machine,
about three minutes.
"""

import argparse
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import quantkit as qk
from quantkit.benchmark.host.machine import this_machine
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.ops.weights import find_weights

HERE = Path(__file__).parent
FORMS = (".h5", ".keras", "_saved_model")
RUNTIMES = {"onnx": "onnxruntime", "tensorflow": "tensorflow", "eightbit": "tensorflow", "litert": "litert"}
SUFFIXES = {"onnx": ".onnx", "tensorflow": ".tensorflow.pb", "eightbit": ".eightbit.pb", "litert": ".tflite"}
SEED = 7
EPOCHS, FINE_TUNING_EPOCHS = 30, 8
SPARSITY, CLUSTERS = 0.8, 16
# Smaller weight tensors are not counted.
MIN_ELEMENTS = 1024


def load_data() -> tuple[Array, Array, Array, Array]:
    """Return images (n, 16, 16, 1) and labels for training, and the same for the test."""
    digits = load_digits()
    images = np.kron(digits.images / 8 - 1, np.ones((1, 2, 2)))[..., None].astype(np.float32)
    train_images, images, train_labels, labels = train_test_split(
        images, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target
    )
    return train_images, train_labels, images, labels


def network() -> Any:
    """Return a network of depthwise separable convolutions with a residual."""
    layers = tf_keras.layers
    inputs = layers.Input((16, 16, 1))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(32, 3, padding="same", use_bias=False)(inputs)))
    for filters, stride in ((48, 1), (64, 2), (64, 1)):
        shortcut = x
        x = layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
        x = layers.BatchNormalization()(layers.Conv2D(filters, 1, use_bias=False)(x))
        x = layers.Add()([x, shortcut]) if x.shape == shortcut.shape else layers.ReLU()(x)
    return tf_keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def fit(model: Any, data: tuple[Array, Array], epochs: int, rate: float, callbacks: Any = ()) -> Any:
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.Adam(rate), loss)
    model.fit(*data, batch_size=32, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model


def save(model: Any, folder: Path, name: str) -> None:
    model.save(folder / f"{name}.h5")
    model.save(folder / f"{name}.keras")
    model.save(folder / f"{name}_saved_model", save_format="tf")


def predict(model: Any, runtime: str, images: Array) -> Array:
    """Return the outputs of a model, image by image."""
    with qk.open_session(model, runtime) as session:
        name = session.inputs[0].name
        return np.concatenate([next(iter(session.run({name: image[None]}).values())) for image in images])


def accuracy(outputs: Array, labels: Array) -> float:
    return round(float(np.mean(outputs.argmax(1) == labels)), 4)


def agreement(outputs: Array, expected: Array) -> float:
    return round(float(np.mean(outputs.argmax(1) == expected.argmax(1))), 4)


def measure_quantized(folder: Path, simulated: Array, images: Array, labels: Array) -> Iterator[dict[str, Any]]:
    """Yield accuracy and agreement with the simulation of each file form and target."""
    for form in FORMS:
        for target, runtime in RUNTIMES.items():
            path = folder / f"trained{form}{SUFFIXES[target]}"
            result = qk.quantize(folder / f"trained{form}", target=target, output=path, runs=0)
            outputs = predict(path, runtime, images)
            yield {
                "form": form,
                "target": target,
                "trained_ranges": result.ranges.provenance.trained,
                "int8_fraction": round(result.report.census.int8_fraction, 4),
                "accuracy": accuracy(outputs, labels),
                "agreement": agreement(outputs, simulated),
                "largest_difference": round(float(np.abs(outputs - simulated).max()), 4),
            }


def measure_converter(folder: Path, simulated: Array, images: Array, labels: Array) -> dict[str, Any]:
    """Return accuracy and agreement of the file that TensorFlow's converter makes by itself."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "trained_saved_model"))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    path = folder / "converter.tflite"
    path.write_bytes(converter.convert())
    outputs = predict(path, "litert", images)
    return {
        "accuracy": accuracy(outputs, labels),
        "agreement": agreement(outputs, simulated),
        "largest_difference": round(float(np.abs(outputs - simulated).max()), 4),
    }


def weights_of(source: Graph | Path) -> list[Array]:
    """Return the large weight tensors of a graph or of a LiteRT file."""
    if isinstance(source, Graph):
        arrays = select_large(weights.value.array for weights in find_weights(source))
        # `find_weights` finds layers of float graphs, not fused ops of oneDNN and classic ops.
        arrays = arrays or select_large(node.value.array for node in source.nodes.values() if node.is_constant)
    else:
        interpreter = tf.lite.Interpreter(str(source))
        details = [detail for detail in interpreter.get_tensor_details() if detail["dtype"] is np.int8]
        arrays = []
        for detail in details:
            try:
                arrays.append(interpreter.get_tensor(detail["index"]))
            except ValueError:  # an activation has no data before a run
                continue
    return select_large(arrays)


def select_large(arrays: Iterable[Array]) -> list[Array]:
    return [array for array in arrays if array.size >= MIN_ELEMENTS]


def describe_weights(source: Graph | Path) -> dict[str, Any]:
    """Return zeros, distinct values and sizes of the weights."""
    arrays = weights_of(source)
    total = sum(array.size for array in arrays)
    return {
        "tensors": len(arrays),
        "sparsity": round(sum(int(np.sum(array == 0)) for array in arrays) / total, 4),
        "distinct_values": max(len(np.unique(array)) for array in arrays),
        "bytes": sum(array.nbytes for array in arrays),
        "zlib_bytes": sum(len(zlib.compress(array.tobytes())) for array in arrays),
    }


def measure_compressed(folder: Path, kind: str, images: Array, labels: Array) -> Iterator[dict[str, Any]]:
    """Yield the weights and the accuracy of a pruned or clustered model in each step."""
    for form in FORMS:
        source = qk.load(folder / f"{kind}{form}")
        outputs = predict(source, "tensorflow", images)
        yield {"step": f"load {form}", "accuracy": accuracy(outputs, labels), **describe_weights(source.graph)}
    source = qk.load(folder / f"{kind}.h5")
    transformed = qk.transform(source, "inference")
    qk.save(transformed, folder / f"{kind}.transformed.pb")
    outputs = predict(transformed, "tensorflow", images)
    yield {"step": "transform", "accuracy": accuracy(outputs, labels), **describe_weights(transformed.graph)}
    for target, runtime in RUNTIMES.items():
        path = folder / f"{kind}{SUFFIXES[target]}"
        result = qk.quantize(source, images[:100], target=target, output=path, runs=0)
        row = {"step": f"quantize {target}", "accuracy": accuracy(predict(path, runtime, images), labels)}
        yield {**row, **describe_weights(path if target == "litert" else result.model.graph)}


def train(folder: Path, data: tuple[Array, Array]) -> None:
    """Train the network, fine-tune it in three ways, and save all models."""
    tf_keras.utils.set_random_seed(SEED)
    base = fit(network(), data, EPOCHS, 3e-3)
    base.save(folder / "float.h5")
    save(fit(tfmot.quantization.keras.quantize_model(base), data, FINE_TUNING_EPOCHS, 3e-4), folder, "trained")

    schedule = tfmot.sparsity.keras.ConstantSparsity(SPARSITY, 0, frequency=10)
    pruned = tfmot.sparsity.keras.prune_low_magnitude(base, schedule)
    fit(pruned, data, FINE_TUNING_EPOCHS, 1e-3, [tfmot.sparsity.keras.UpdatePruningStep()])
    save(pruned, folder, "pruned")

    base = tf_keras.models.load_model(folder / "float.h5", compile=False)
    clustered = tfmot.clustering.keras.cluster_weights(
        base, CLUSTERS, tfmot.clustering.keras.CentroidInitialization.KMEANS_PLUS_PLUS
    )
    save(fit(clustered, data, FINE_TUNING_EPOCHS, 3e-4), folder, "clustered")


def measure(folder: Path) -> dict[str, Any]:
    """Return accuracy, zeros, clusters and sizes; models that are in the folder are not trained again."""
    train_images, train_labels, images, labels = load_data()
    if not (folder / "clustered_saved_model").exists():
        train(folder, (train_images, train_labels))
    with tfmot.quantization.keras.quantize_scope():
        trained = tf_keras.models.load_model(folder / "trained.h5", compile=False)
    simulated = trained.predict(images, verbose=0)
    base = tf_keras.models.load_model(folder / "float.h5", compile=False)
    return {
        "schema": "quantkit.tfmot/1",
        "machine": this_machine().to_json(),
        "images": {"train": len(train_images), "test": len(images)},
        "float": accuracy(base.predict(images, verbose=0), labels),
        "simulation": accuracy(simulated, labels),
        "converter": measure_converter(folder, simulated, images, labels),
        "quantized": list(measure_quantized(folder, simulated, images, labels)),
        "pruned": list(measure_compressed(folder, "pruned", images, labels)),
        "clustered": list(measure_compressed(folder, "clustered", images, labels)),
    }


def measure_speed(folder: Path) -> dict[str, Any]:
    """Return the latency of the float file and of each compressed one, side by side in each runtime."""
    measured = {}
    for target in ("onnx", "litert"):
        for runtime in ("openvino", "onnxruntime") if target == "onnx" else ("litert",):
            files = [folder / f"{kind}{SUFFIXES[target]}" for kind in ("trained.h5", "pruned", "clustered")]
            benchmark = qk.benchmark([f"{folder / 'float.h5'}@{runtime}", *(f"{file}@{runtime}" for file in files)])
            measured[f"{target} in {runtime}"] = benchmark.to_json()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path, help="folder for the models")
    parser.add_argument("--speed", action="store_true", help="add the latency of the models in BUILD")
    arguments = parser.parse_args()
    arguments.build.mkdir(parents=True, exist_ok=True)
    output = HERE / "tfmot.json"
    if arguments.speed:
        document = {**json.loads(output.read_text()), "speed": measure_speed(arguments.build)}
    else:
        document = measure(arguments.build)
    output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
