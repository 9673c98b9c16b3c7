"""Twenty networks in a folder: 16 ONNX files, Inception v3 and three networks of Keras, with calibration samples.

`tests/bench/measure_portability.py` and `tests/bench/measure_reproducibility.py` write the folder once, and quantize
the files of it in processes of their own, some of them emulated: these import neither Keras nor the data.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx_networks import NETWORKS, RECURRENT, SHARED, Feeds, open_onnxruntime, photographs, planes, read, resize

KERAS = ("MobileNetV3Small", "EfficientNetV2B0", "DenseNet121")
INCEPTION = "inception_v3"
NAMES = (*NETWORKS, INCEPTION, *KERAS)
MAX_SAMPLES = 32
# Every n-th photograph is a calibration sample of Inception v3.
INCEPTION_STEP = 16


@dataclass(frozen=True)
class SavedNetwork:
    """Float model of a file with samples.

    Attributes:
        path: ONNX or GraphDef file.
        samples: samples for the calibration.
        keep_float: nodes that stay float.
    """

    path: Path
    samples: list[Feeds]
    keep_float: tuple[str, ...]

    def options(self, target: str) -> dict[str, Any]:
        """Return the options of `quantkit.quantize` for the model."""
        scheme = {"scheme": {"target": target, "keep_float": list(self.keep_float)}} if self.keep_float else {}
        return {"limit": len(self.samples), "runs": 0, **scheme}


def load_saved(name: str, build: Path) -> SavedNetwork:
    """Return a network of a folder that `save_networks` has written."""
    path = next(build.glob(f"{name}.float.*"))
    feeds: dict[str, Feeds] = {}
    with np.load(build / f"{name}.samples.npz") as arrays:
        for key in arrays.files:
            index, _, edge = key.partition("/")
            feeds.setdefault(index, {})[edge] = arrays[key]
    keep_float = NETWORKS[name].keep_float if name in NETWORKS else ()
    return SavedNetwork(path, list(feeds.values()), keep_float)


def save_networks(build: Path) -> None:
    """Write the float models and the samples that are not in a folder yet."""
    build.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        path = build / f"{name}.samples.npz"
        if path.exists():
            continue
        samples = _save_onnx(name, build) if name in NETWORKS else _save_tensorflow(name, build)
        step = -(-len(samples) // MAX_SAMPLES)
        arrays: Mapping[str, Any] = {
            f"{index:03}/{edge}": array for index, feeds in enumerate(samples[::step]) for edge, array in feeds.items()
        }
        np.savez(path, **arrays)


def _save_onnx(name: str, build: Path) -> list[Feeds]:
    network = NETWORKS[name]
    shutil.copy(network.path, build / f"{name}.float.onnx")
    return network.calibration(open_onnxruntime(network.path))


def _save_tensorflow(name: str, build: Path) -> list[Feeds]:
    import quantkit as qk
    from quantkit import formats

    if name == INCEPTION:
        with TemporaryDirectory() as folder:
            script = SHARED / "inception_v3" / "make_graph.py"
            subprocess.run([sys.executable, str(script), folder], check=True, capture_output=True)
            file = next(Path(folder).rglob("*.pb"))
            model = qk.transform(qk.load(file, inputs="Mul", outputs="softmax"), "inference")
            formats.save(model.graph, build / f"{name}.float.pb")
        return _inception_feeds(photographs()[::INCEPTION_STEP])
    sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
    from measure_networks import load_network  # type: ignore[import-not-found]

    model = qk.transform(load_network(name, None), "inference")
    formats.save(model.graph, build / f"{name}.float.pb")
    return _seeded_feeds(name, model, 0)


def unseen_samples(name: str, build: Path) -> list[Feeds]:
    """Return samples of a network that are not in the folder: those of its metric, other photographs or other seeds."""
    import quantkit as qk

    if name == INCEPTION:
        return _inception_feeds([path for index, path in enumerate(photographs()) if index % INCEPTION_STEP])
    if name not in NETWORKS:
        return _seeded_feeds(name, qk.load(build / f"{name}.float.pb"), 1)
    run, held_out = open_onnxruntime(NETWORKS[name].path), list[Feeds]()

    def record(feeds: Feeds) -> Any:
        held_out.append(dict(feeds))
        return run(feeds)

    steps = len(NETWORKS[name].calibration(run)) if name in RECURRENT else 0
    NETWORKS[name].evaluate(record)
    return held_out[steps:]


def _inception_feeds(paths: Sequence[Path]) -> list[Feeds]:
    images = [planes(resize(read(path), 299, 299)).transpose(0, 2, 3, 1) for path in paths]
    return [{"Mul": (image - 128) / 128} for image in images]


def _seeded_feeds(name: str, model: Any, seed: int) -> list[Feeds]:
    from measure_networks import seeded_inputs

    values = seeded_inputs(name, model, 16, seed)
    return [{edge: array[index : index + 1] for edge, array in values.items()} for index in range(16)]
