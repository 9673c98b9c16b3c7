"""Check the bound of `optimize` on fresh samples: the drop of the best file on samples that its search never saw.

    python tests/bench/measure_bound.py BUILD [NETWORK ...] [--seeds 3] [--max-drop 0.01] [--time-budget 60]

Eight networks of `support/onnx_networks.py`, the bundled one, and three Keras classifiers that this script trains.
Photographs, recordings and digits are split by a seed into halves: random crops, shifts and gains of one half are the
samples of the search, and those of the other half are fresh. A run breaks the bound if the drop on the fresh samples
is above it with a probability of 95 %, by the exact interval of a fraction or Student's interval of a mean. The result
float32, whose drop is 0, is excluded: without a file within the bound, there is no result. Latencies decide which file
is the best one, and are not reported: the machine may be busy. Writes `bound.json` after each run; runs that it has are
not repeated.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from onnx_networks import (  # noqa: E402
    FOLDER,
    MEAN,
    STD,
    Feeds,
    photographs,
    planes,
    read,
    read_recordings,
    resize,
)

import quantkit as qk  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.evaluation.tasks import TASKS  # noqa: E402
from quantkit.ir.tensor import Array  # noqa: E402
from quantkit.optimize.drop import mean_limit, proportion_limit  # noqa: E402
from quantkit.runtimes.session import SessionOptions  # noqa: E402

Random = np.random.Generator
DIGITS = HERE.parents[1] / "assets/digits_heldout.npz"
# Samples of a search and fresh ones, for fractions and for means.
CLASSIFIED, COMPARED = (700, 1200), (40, 80)
ALPHA = 0.05
KINDS = ("conv", "separable", "residual")


@dataclass(frozen=True)
class Source:
    """Samples of a network: a random variation of each of some originals.

    Attributes:
        originals: number of originals.
        vary: function that returns the feeds and the label of a variation of an original.
        is_classifier: True if the output has class scores.
    """

    originals: int
    vary: Callable[[Random, int], tuple[Feeds, int | None]]
    is_classifier: bool = False

    def draw(self, random: Random, originals: Array, count: int) -> dict[str, Array]:
        """Return samples by input name, with the labels if they are known."""
        rows = [self.vary(random, int(random.choice(originals))) for _ in range(count)]
        arrays = {name: np.concatenate([feeds[name] for feeds, _ in rows]) for name in rows[0][0]}
        labels = [label for _, label in rows if label is not None]
        return arrays | ({"labels": np.array(labels)} if labels else {})


def crop(random: Random, index: int, width: int, height: int) -> Array:
    """Return a random part of a photograph, (height, width, 3), mirrored or not."""
    image = read(photographs()[index])
    scale = random.uniform(0.6, 1)
    size = [int(side * scale) for side in image.size]
    left, top = (int(random.integers(0, side - part + 1)) for side, part in zip(image.size, size, strict=True))
    pixels = resize(image.crop((left, top, left + size[0], top + size[1])), width, height)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def photograph_source(
    name: str, width: int, height: int, prepare: Callable[[Array], Array], *, is_classifier: bool = False
) -> Source:
    def vary(random: Random, index: int) -> tuple[Feeds, int | None]:
        return {name: planes(prepare(crop(random, index, width, height)).astype(np.float32))}, None

    return Source(len(photographs()), vary, is_classifier)


def luminance(pixels: Array) -> Array:
    result: Array = (pixels @ np.array([0.299, 0.587, 0.114], np.float32))[..., None] / 255
    return result


def vary_recording(random: Random, index: int) -> tuple[Feeds, int | None]:
    audio, labels = read_recordings(slice(None))
    noise = random.normal(0, 0.003, audio.shape[1])
    shifted = random.uniform(0.5, 1.2) * np.roll(audio[index], int(random.integers(-1600, 1600))) + noise
    return {"input_1": shifted.astype(np.float32)[None]}, int(labels[index])


def digit_source(name: str, *, scale: bool) -> Source:
    with np.load(DIGITS) as arrays:
        images, labels = arrays["images"].astype(np.float32), arrays["labels"]

    def vary(random: Random, index: int) -> tuple[Feeds, int | None]:
        shift = tuple(random.integers(-1, 2, 2))
        image = np.roll(images[index], shift, (0, 1)) + random.normal(0, 20, images[index].shape)
        pixels = np.clip(image, 0, 255).astype(np.float32)
        return {name: ((pixels - 128) / 128 if scale else pixels)[None]}, int(labels[index])

    return Source(len(images), vary, True)


def train(kind: str, path: Path) -> None:
    """Train a small classifier of digits, on variations of all originals: fresh samples are other variations."""
    import keras

    source, random = digit_source("images", scale=True), np.random.default_rng(0)
    data = source.draw(random, np.arange(source.originals), 4000)
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 16, 1), name="images")
    for filters in (16, 32):
        before = keras.layers.Conv2D(filters, 1, strides=2)(x)
        if kind == "separable":
            x = keras.layers.Conv2D(filters, 1)(keras.layers.DepthwiseConv2D(3, 2, "same")(x))
        else:
            x = keras.layers.Conv2D(filters, 3, 2, "same")(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        if kind == "residual":
            x = keras.layers.ReLU()(keras.layers.Conv2D(filters, 3, padding="same")(x) + before)
    scores = keras.layers.Dense(10, "softmax")(keras.layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, scores)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(data["images"], data["labels"], epochs=4, batch_size=64, verbose=0)
    model.save(path)


def sources() -> Mapping[str, Source]:
    """Return the samples of each network."""
    return {
        "conv": digit_source("images", scale=True),
        "separable": digit_source("images", scale=True),
        "residual": digit_source("images", scale=True),
        "digits": digit_source("Mul", scale=True),
        "kwt1": Source(80, vary_recording, True),
        "pplcnet_orientation": photograph_source(
            "x", 224, 224, lambda pixels: (pixels / 255 - MEAN) / STD, is_classifier=True
        ),
        "ultraface_rfb320": photograph_source("input", 320, 240, lambda pixels: (pixels - 127) / 128),
        "yunet_n_320": photograph_source("input", 320, 320, lambda pixels: pixels[..., ::-1]),
        "super_resolution_10": photograph_source("input", 224, 224, luminance),
        "sediment_unet": photograph_source("input", 224, 224, luminance),
        "xfeat": photograph_source("input", 256, 256, lambda pixels: pixels / 255),
        "fastestdet": photograph_source("input.1", 352, 352, lambda pixels: pixels[..., ::-1] / 255),
    }


def find_model(name: str, build: Path) -> str | Path:
    """Return the file of a network, which is trained if it is one of this script, or its card."""
    if name == "digits":
        return name
    if name in KINDS:
        path = build / f"{name}.keras"
        if not path.exists():
            train(name, path)
        return path
    return FOLDER / f"{name}.onnx"


def run_model(model: Any, feeds: dict[str, Array], runtime: str, options: SessionOptions) -> list[dict[str, Array]]:
    """Return the outputs of each sample."""
    with qk.open_session(model, runtime, options) as session:
        names = [info.name for info in session.inputs]
        count = len(next(iter(feeds.values())))
        values = dict(zip(names, feeds.values(), strict=True)) if set(names) != feeds.keys() else feeds
        return [dict(session.run({name: values[name][index : index + 1] for name in names})) for index in range(count)]


def measure_fresh(
    expected: list[dict[str, Array]], actual: list[dict[str, Array]], labels: Array | None, *, is_classifier: bool
) -> dict[str, Any]:
    """Return the drop on fresh samples, with its lower limit at 95 %."""
    if not is_classifier:
        drops = [
            1 - TASKS["regression"].compute(first, dict(zip(first, other.values(), strict=True)), {})
            for first, other in zip(expected, actual, strict=True)
        ]
        return {"drop": fmean(drops), "low": 2 * fmean(drops) - mean_limit(drops, ALPHA)}
    first, other = (np.array([next(iter(row.values())).argmax() for row in rows]) for rows in (expected, actual))
    count = len(first)
    right, other_right = (first == first, other == first) if labels is None else (first == labels, other == labels)
    lost, gained = int((right & ~other_right).sum()), int((~right & other_right).sum())
    low = 1 - proportion_limit(count - lost, count, ALPHA / 2) - proportion_limit(gained, count, ALPHA / 2)
    return {"drop": (lost - gained) / count, "low": low, "lost": lost, "gained": gained}


def measure_run(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the result of a search, and the drop of its file on fresh samples."""
    source, model, random = sources()[name], find_model(name, arguments.build), np.random.default_rng(seed)
    order = random.permutation(source.originals)
    halves = order[: source.originals // 2], order[source.originals // 2 :]
    counts = CLASSIFIED if source.is_classifier else COMPARED
    data, fresh = (source.draw(random, half, count) for half, count in zip(halves, counts, strict=True))
    file = arguments.build / f"{name}_{seed}.npz"
    np.savez(file, **data)  # type: ignore[arg-type]
    try:
        result = qk.optimize(
            model,
            file,
            max_drop=arguments.max_drop,
            task=None if source.is_classifier else "regression",
            runtimes=arguments.runtime,
            precisions=("bfloat16", "int8"),
            time_budget=arguments.time_budget,
            seed=seed,
            output=arguments.build / f"{name}_{seed}.best",
        )
    except qk.UsageError as error:
        return {
            "network": name,
            "seed": seed,
            "best": None,
            "reason": error.message,
            "is_above": False,
            "is_broken": False,
        }
    labels = fresh.pop("labels", None)
    expected = run_model(model, fresh, arguments.runtime, SessionOptions())
    actual = run_model(result.file, fresh, arguments.runtime, result.best.candidate.settings.options)
    drop = measure_fresh(expected, actual, labels, is_classifier=source.is_classifier)
    stated = None if result.best.drop is None else result.best.drop.to_json()
    return {
        "network": name,
        "seed": seed,
        "best": result.best.name,
        "stated": stated,
        "fresh": drop | {"samples": counts[1]},
        "is_above": drop["drop"] > arguments.max_drop,
        "is_broken": drop["low"] > arguments.max_drop,
        "seconds": round(result.seconds, 1),
    }


def main() -> None:
    """Search and check all networks, and write `bound.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("networks", nargs="*", default=list(sources()))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-drop", type=float, default=0.01)
    parser.add_argument("--time-budget", type=float, default=60.0)
    parser.add_argument("--runtime", default="openvino")
    parser.add_argument("--save", type=Path, default=HERE / "bound.json")
    arguments = parser.parse_args()
    arguments.build.mkdir(parents=True, exist_ok=True)
    rows = json.loads(arguments.save.read_text())["rows"] if arguments.save.exists() else []
    finished = {(row["network"], row["seed"]) for row in rows}
    for seed in range(arguments.seeds):
        for name in arguments.networks:
            if (name, seed) in finished:
                continue
            rows.append(measure_run(name, seed, arguments))
            print(json.dumps(rows[-1]), flush=True)
            document = {
                "schema": "quantkit.bench.bound/1",
                "machine": this_machine().to_json(),
                "max_drop": arguments.max_drop,
                "runs": len(rows),
                "results": sum(row["best"] is not None for row in rows),
                "above": sum(row["is_above"] for row in rows),
                "broken": sum(row["is_broken"] for row in rows),
                "above_stated_limit": sum(
                    row["best"] is not None and row["fresh"]["drop"] > row["stated"]["high"] for row in rows
                ),
                "rows": rows,
            }
            arguments.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
