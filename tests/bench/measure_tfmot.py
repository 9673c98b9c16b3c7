"""Measure models of TensorFlow Model Optimization (TF-MOT): quantization-aware training, pruning and clustering.

    python tests/bench/measure_tfmot.py BUILD [--speed]

Trains a small network with depthwise layers and batch norms on the digits of scikit-learn, which must be installed
(a fifth is held out), fine-tunes it with TF-MOT, and writes `tfmot.json`:

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
from collections.abc import Iterator
from dataclasses import dataclass
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
from quantkit.benchmark.results.speedup import Speedup
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType
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
                "largest_difference_in_range": round(float(np.abs(clip(outputs, simulated) - simulated).max()), 4),
            }


def clip(outputs: Array, simulated: Array) -> Array:
    """Return outputs within the range of the simulation, which has a FakeQuant after the last layer."""
    return np.clip(outputs, simulated.min(), simulated.max())


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


@dataclass(frozen=True)
class StoredWeights:
    """Weights as a file stores them.

    Attributes:
        values: the stored array.
        axis: axis of the output channels.
        zero: stored value of a weight that is zero.
    """

    values: Array
    axis: int
    zero: int = 0

    @property
    def channels(self) -> Array:
        """Weights of each output channel, (c, n)."""
        return np.moveaxis(self.values, self.axis, 0).reshape(self.values.shape[self.axis], -1)


def weights_of(source: Graph | Path) -> list[StoredWeights]:
    """Return the large weight tensors of a graph or of a LiteRT file."""
    stored = graph_weights(source) if isinstance(source, Graph) else litert_weights(source)
    return [weights for weights in stored if weights.values.size >= MIN_ELEMENTS]


def graph_weights(graph: Graph) -> Iterator[StoredWeights]:
    """Yield the weights of the layers; those of quantized TensorFlow ops have their limits as inputs."""
    axis = 0 if graph.dialect == "onnx" else -1
    yield from (StoredWeights(weights.value.array, axis, weights.zero_point or 0) for weights in find_weights(graph))
    for node in graph.nodes.values():
        value = graph.constant_of(node.inputs[1]) if node.op.startswith(("Quantized", "_Quantized")) else None
        if value is not None and value.dtype is DType.QINT8:
            yield StoredWeights(value.array, -1)
        elif value is not None and value.dtype is DType.QUINT8:
            low, high = (float(graph[node.inputs[index].node].value.array) for index in (4, 5))
            yield StoredWeights(value.array, -1, round(-255 * low / (high - low)))


def litert_weights(path: Path) -> Iterator[StoredWeights]:
    interpreter = tf.lite.Interpreter(str(path))
    for detail in interpreter.get_tensor_details():
        if detail["dtype"] is np.int8:
            try:
                yield StoredWeights(interpreter.get_tensor(detail["index"]), 0)
            except ValueError:  # an activation has no data before a run
                continue


def describe_weights(source: Graph | Path) -> dict[str, Any]:
    """Return zeros, distinct values of a tensor and of an output channel, and sizes of the weights."""
    stored = weights_of(source)
    total = sum(weights.values.size for weights in stored)
    return {
        "tensors": len(stored),
        "sparsity": round(sum(int(np.sum(weights.values == weights.zero)) for weights in stored) / total, 4),
        "distinct_values": max(len(np.unique(weights.values)) for weights in stored),
        "distinct_values_of_a_channel": max(
            len(np.unique(channel)) for weights in stored for channel in weights.channels
        ),
        "bytes": sum(weights.values.nbytes for weights in stored),
        "zlib_bytes": sum(len(zlib.compress(weights.values.tobytes())) for weights in stored),
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
    """Return the latency of the float file and of each compressed one in each runtime, and the speed-ups over float."""
    measured = {}
    for target in ("onnx", "litert"):
        for runtime in ("openvino", "onnxruntime") if target == "onnx" else ("litert",):
            files = [folder / f"{kind}{SUFFIXES[target]}" for kind in ("trained.h5", "pruned", "clustered")]
            benchmark = qk.benchmark([f"{folder / 'float.h5'}@{runtime}", *(f"{file}@{runtime}" for file in files)])
            measured[f"{target} in {runtime}"] = [
                {
                    "label": row.label,
                    "summary": row.measurement.to_json()["summary"] if row.measurement else None,
                    "speed_up": speed_up.to_json() if isinstance(speed_up, Speedup) else None,
                }
                for row, speed_up in zip(benchmark.rows, benchmark.speedups, strict=True)
            ]
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
