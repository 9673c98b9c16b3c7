"""Train the bundled network and write it, its model card, and its held-out images.

    python assets/train_digits.py

A small Inception for handwritten digits, in the idioms of the 2015 release. The data are scikit-learn's digits: 1797
images of 8x8 from UCI's test set of handwritten digits. A fifth, stratified by class with a fixed seed, is
held out and not used before the network is written. Needs scikit-learn; takes about two
minutes on two cores. Seeds and thread counts are fixed: the same machine writes the same file again.

Writes models/digits.pb, models/digits.toml, assets/digits_heldout.npz and assets/digit_*.png.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from quantkit.formats import load, save
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, Tensor
from quantkit.runtimes import open_session
from quantkit.zoo.architectures.release_2015 import EPSILON, VERSIONS, ReleaseWriter

ROOT = Path(__file__).resolve().parents[1]
MODEL, CARD = ROOT / "models/digits.pb", ROOT / "models/digits.toml"
HELDOUT = ROOT / "assets/digits_heldout.npz"

SEED = 2015
SIZE = 16
CLASSES = 10
EPOCHS = 120
BATCH = 96
LEARNING_RATE = 4e-3
WEIGHT_DECAY = 3e-4
LABEL_SMOOTHING = 0.05
MOMENTUM = 0.98


class Layers(Protocol):
    """Builders of layers; the type of `x` depends on the implementation."""

    def conv(
        self, name: str, x: Any, filters: int, kernel: tuple[int, int] = (1, 1), stride: int = 1, padding: str = "SAME"
    ) -> Any: ...
    def pool(self, name: str, x: Any, op: str, stride: int = 1, padding: str = "SAME") -> Any: ...
    def join(self, module: str, branches: list[Any]) -> Any: ...
    def head(self, x: Any, size: int) -> Any: ...


def network(layers: Layers, x: Any) -> Any:
    """Build a small network with the three module types of Inception v3: (n, 16, 16, 1) to (n, 10)."""
    conv, pool = layers.conv, layers.pool
    x = conv("conv", x, 16, (3, 3))
    x = conv("conv_1", x, 24, (3, 3))
    x = pool("pool", x, "MaxPool", 2, "VALID")

    tower = conv("mixed/tower/conv_1", conv("mixed/tower/conv", x, 12), 16, (5, 5))
    tower_1 = conv("mixed/tower_1/conv_1", conv("mixed/tower_1/conv", x, 12), 24, (3, 3))
    tower_1 = conv("mixed/tower_1/conv_2", tower_1, 24, (3, 3))
    tower_2 = conv("mixed/tower_2/conv", pool("mixed/tower_2/pool", x, "AvgPool"), 16)
    x = layers.join("mixed", [conv("mixed/conv", x, 16), tower, tower_1, tower_2])

    tower = conv("mixed_1/tower/conv_1", conv("mixed_1/tower/conv", x, 16), 24, (3, 3))
    tower = conv("mixed_1/tower/conv_2", tower, 32, (3, 3), 2, "VALID")
    wide = conv("mixed_1/conv", x, 32, (3, 3), 2, "VALID")
    x = layers.join("mixed_1", [wide, tower, pool("mixed_1/pool", x, "MaxPool", 2, "VALID")])

    tower = conv("mixed_2/tower/conv", x, 24)
    fork = [conv("mixed_2/tower/mixed/conv", tower, 32, (1, 3)), conv("mixed_2/tower/mixed/conv_1", tower, 32, (3, 1))]
    tower_1 = conv("mixed_2/tower_1/conv_1", conv("mixed_2/tower_1/conv", x, 24), 32, (3, 3))
    tower_2 = conv("mixed_2/tower_2/conv", pool("mixed_2/tower_2/pool", x, "MaxPool"), 24)
    x = layers.join("mixed_2", [conv("mixed_2/conv", x, 32), *fork, tower_1, tower_2])
    return layers.head(x, 3)


class Training:
    """Layers that learn: variables by name, batch norm over the batch, moving statistics on the side."""

    def __init__(self) -> None:
        self.trained: dict[str, tf.Variable] = {}
        self.moving: dict[str, tf.Variable] = {}
        self.random = np.random.default_rng(SEED)

    def conv(
        self, name: str, x: Any, filters: int, kernel: tuple[int, int] = (1, 1), stride: int = 1, padding: str = "SAME"
    ) -> Any:
        x = tf.nn.conv2d(x, self._weights(f"{name}/kernel", (*kernel, x.shape[-1], filters)), stride, padding)
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        self._follow(f"{name}/moving_mean", mean, 0.0)
        self._follow(f"{name}/moving_variance", variance, 1.0)
        gamma = self._variable(self.trained, f"{name}/gamma", np.ones(filters, np.float32))
        beta = self._variable(self.trained, f"{name}/beta", np.zeros(filters, np.float32))
        return tf.nn.relu(tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON))

    def pool(self, name: str, x: Any, op: str, stride: int = 1, padding: str = "SAME") -> Any:
        return tf.nn.pool(x, (3, 3), op.removesuffix("Pool").upper(), strides=(stride, stride), padding=padding)

    def join(self, module: str, branches: list[Any]) -> Any:
        return tf.concat(branches, 3)

    def head(self, x: Any, size: int) -> Any:
        x = tf.reduce_mean(x, [1, 2])
        weights = self._weights("softmax/weights", (x.shape[-1], CLASSES))
        return x @ weights + self._variable(self.trained, "softmax/biases", np.zeros(CLASSES, np.float32))

    @property
    def values(self) -> dict[str, Array]:
        """Every parameter, by name."""
        return {name: variable.numpy() for name, variable in {**self.trained, **self.moving}.items()}

    def _weights(self, name: str, shape: tuple[int, ...]) -> Any:
        deviation = np.sqrt(2 / np.prod(shape[:-1]))
        return self._variable(self.trained, name, deviation * self.random.standard_normal(shape, np.float32))

    def _follow(self, name: str, value: Any, start: float) -> None:
        moving = self._variable(self.moving, name, np.full(value.shape, start, np.float32))
        moving.assign(MOMENTUM * moving + (1 - MOMENTUM) * value)

    @staticmethod
    def _variable(variables: dict[str, tf.Variable], name: str, start: Array) -> Any:
        if name not in variables:
            variables[name] = tf.Variable(start.astype(np.float32), name=name)
        return variables[name]


class TrainedConv(NamedTuple):
    """One layer's parameters."""

    kernel: Tensor
    beta: Tensor
    gamma: Tensor
    moving_mean: Tensor
    moving_variance: Tensor


class Writing:
    """Layers as graph nodes with trained parameters.

    Args:
        values: trained parameters by name.
    """

    def __init__(self, values: Mapping[str, Array]) -> None:
        self.values = values
        self.write = ReleaseWriter()

    def conv(
        self, name: str, x: str, filters: int, kernel: tuple[int, int] = (1, 1), stride: int = 1, padding: str = "SAME"
    ) -> str:
        layer = TrainedConv(*(Tensor.of(self.values[f"{name}/{field}"]) for field in TrainedConv._fields))
        return self.write.conv(name, x, layer, stride, padding)

    def pool(self, name: str, x: str, op: str, stride: int = 1, padding: str = "SAME") -> str:
        return self.write.pool(name, x, op, stride=stride, padding=padding)

    def join(self, module: str, branches: list[str]) -> str:
        return self.write.join(module, branches)

    def head(self, x: str, size: int) -> str:
        weights, biases = (Tensor.of(self.values[f"softmax/{name}"]) for name in ("weights", "biases"))
        return self.write.head(x, size, weights, biases)

    def graph(self) -> Graph:
        """Return the graph from an encoded image to probabilities."""
        network(self, self.write.preprocessing((SIZE, SIZE), 1))
        return Graph.of(self.write.nodes, ["Mul"], ["softmax"], versions=VERSIONS)


class Digits(NamedTuple):
    """Images (n, 8, 8) with ink values 0..16, and labels (n,)."""

    images: Array
    labels: Array

    def pixels(self, size: int) -> Array:
        """Return images (n, size, size, 1) uint8, white on black; each value is a square of equal pixels."""
        grey = np.round(self.images * (255 / 16)).astype(np.uint8)
        return grey.repeat(size // 8, 1).repeat(size // 8, 2)[..., None]


def load_split() -> tuple[Digits, Digits]:
    """Return the training data (four fifths) and the held-out data (one fifth)."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images.reshape(-1, 8, 8), labels, test_size=0.2, stratify=labels, random_state=SEED)
    return Digits(split[0], split[2]), Digits(split[1], split[3])


def normalize(pixels: Array) -> Array:
    """Normalize pixels 0..255 to -1..1 like the first nodes of the graph."""
    return (np.asarray(pixels, np.float32) - 128) / 128


def distort(pixels: Array, random: np.random.Generator) -> Any:
    """Rotate, stretch and shift images of twice the size slightly, and resize them to (n, 16, 16, 1)."""
    count, size = len(pixels), pixels.shape[1]
    angle, slant = random.normal(0, 0.12, (2, count))
    stretch = np.exp(random.normal(0, 0.08, (2, count)))
    a, b = stretch[0] * np.cos(angle), -np.sin(angle) + slant
    c, d = np.sin(angle), stretch[1] * np.cos(angle)
    middle = (size - 1) / 2
    shift = random.uniform(-3, 3, (2, count))
    zero = np.zeros(count)
    matrices = np.stack(
        [a, b, middle - (a + b) * middle + shift[0], c, d, middle - (c + d) * middle + shift[1], zero, zero], 1
    )
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=pixels.astype(np.float32),
        transforms=matrices.astype(np.float32),
        output_shape=(size, size),
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    method = "area" if random.random() < 0.5 else "bilinear"
    return normalize(tf.image.resize(moved, (SIZE, SIZE), method).numpy())


def train(digits: Digits) -> dict[str, Array]:
    """Train for `EPOCHS` epochs with Adam and a cosine learning rate schedule; return the parameters by name."""
    layers = Training()
    pixels = digits.pixels(2 * SIZE)
    steps = EPOCHS * (len(pixels) // BATCH)
    network(layers, tf.zeros((BATCH, SIZE, SIZE, 1)))
    variables = list(layers.trained.values())
    decayed = [variable for variable in variables if len(variable.shape) > 1]
    optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps))
    optimizer.build(variables)

    def step(batch: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = network(layers, batch)
            targets = tf.one_hot(labels, CLASSES, 1 - LABEL_SMOOTHING, LABEL_SMOOTHING / (CLASSES - 1))
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits))
            penalized = loss + WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(kernel) for kernel in decayed])
        optimizer.apply_gradients(zip(tape.gradient(penalized, variables), variables, strict=True))
        return loss

    compiled = tf.function(step)
    random = np.random.default_rng(SEED)
    for epoch in range(EPOCHS):
        order = random.permutation(len(pixels))
        losses = []
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            losses.append(compiled(tf.constant(distort(pixels[rows], random)), tf.constant(digits.labels[rows])))
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")
    return layers.values


def probabilities(pixels: Array) -> Array:
    """Return the outputs (n, 10) of the written file, one image at a time: its decoder has batch size 1."""
    with open_session(load(MODEL, ["Mul"], ["softmax"]), "tensorflow") as session:
        return np.concatenate([session.run({"Mul": image[None]})["softmax"] for image in normalize(pixels)])


def write_images(heldout: Digits, predicted: Array) -> None:
    """Write the first correctly classified held-out image of each class, enlarged eight times."""
    for digit in range(CLASSES):
        row = np.flatnonzero((heldout.labels == digit) & (predicted == digit))[0]
        Image.fromarray(heldout.pixels(64)[row, :, :, 0]).save(ROOT / f"assets/digit_{digit}.png", optimize=True)


def card(accuracy: float, count: int) -> str:
    """Return the model card in the format of models/README.md."""
    names = ", ".join(f'"{digit}"' for digit in range(CLASSES))
    contents = MODEL.read_bytes()
    return f'''\
# Written by assets/train_digits.py.
name = "digits"
title = "Handwritten digits"
description = """
A small Inception in the idioms of the 2015 release, for trying everything without a download: branches, average and
max pools, batch norms unfolded, numeric checks on control edges, a decoder inside. It reads white ink on black."""
license = "Apache-2.0"
graph = "digits.pb"
num_classes = {CLASSES}
jpeg_input = "DecodeJpeg/contents"
recipe = """
add_default_attributes
strip_unused_nodes(type=float, shape="1,{SIZE},{SIZE},1")
remove_nodes(op=Identity, op=CheckNumerics)
fold_constants(ignore_errors=true)
fold_batch_norms
fold_old_batch_norms
sort_by_execution_order"""

[[members]]
name = "digits.pb"
num_bytes = {len(contents)}
sha256 = "{sha256(contents).hexdigest()}"

[[inputs]]
name = "Mul"
dtype = "float"
shape = [1, {SIZE}, {SIZE}, 1]

[[outputs]]
name = "softmax"
dtype = "float"
shape = [1, {CLASSES}]

[preprocessing]
height = {SIZE}
width = {SIZE}
channels = 1
mean = 128
std = 128
resize = "bilinear"

[labels]
order = "own"
names = [{names}]

[accuracy]
data = "scikit-learn's digits, {count} held-out images"
top1 = {accuracy:.4f}
'''


def main() -> None:
    """Train the network, write it, and measure its accuracy."""
    tf.keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    training, heldout = load_split()
    save(Writing(train(training)).graph(), MODEL)
    pixels = heldout.pixels(SIZE)
    predicted = probabilities(pixels).argmax(1)
    accuracy = float(np.mean(predicted == heldout.labels))
    np.savez_compressed(HELDOUT, images=pixels, labels=heldout.labels.astype(np.uint8))
    write_images(heldout, predicted)
    CARD.write_text(card(accuracy, len(pixels)), encoding="utf-8")
    print(f"{MODEL.name}: {MODEL.stat().st_size} bytes, {accuracy:.4f} of {len(pixels)} held-out digits")


if __name__ == "__main__":
    main()
