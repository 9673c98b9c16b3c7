"""Load, summarize, rewrite, verify and quantize networks of Keras and of keras-hub.

    python tests/bench/measure_keras_networks.py BUILD [NETWORK ...] [--limit 900] [--save FILE]
    python tests/bench/measure_keras_networks.py BUILD [NETWORK ...] --speed [--save FILE]

The networks of ``keras.applications`` have their full size, those of keras-hub a small configuration; all have random
weights, because the weights are not part of the packages. Batch norms have random statistics. keras-hub is not a
dependency. Each network is measured in a process of its own, and its row is saved at once: without names, the first
form measures the networks that have no row yet.

The rows of `keras_networks.json` have the nodes before and after the recipe `inference` with ``--verify``, the largest
error of a conversion to ONNX and back, and for each target the fraction of the MACs in int8, as planned and as ONNX
Runtime and OpenVINO execute it, with the SQNR of the outputs on random inputs other than those of the calibration. The
second form adds the speed-ups of the int8 ONNX models in BUILD over the float ONNX models, in the same runtime.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

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
from quantkit.ir.tensor import Array  # noqa: E402

TARGETS = {"onnx": (".onnx", "onnxruntime"), "tensorflow": (".pb", "tensorflow"), "litert": (".tflite", "litert")}
RUNTIMES = ("onnxruntime", "openvino")
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
    "MobileNetV3Small": application("MobileNetV3Small"),
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


def random_inputs(model: qk.Model, count: int, seed: int) -> dict[str, Array]:
    """Return seeded samples for each input: token ids for integers, noise for others."""
    random = np.random.default_rng(seed)
    samples: dict[str, Array] = {}
    for edge in model.graph.inputs:
        attrs: Mapping[str, Any] = model.graph[edge.node].attrs
        dims = (count, *(size or 16 for size in attrs["shape"].dims[1:]))
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


def sqnr(expected: Mapping[str, Array], actual: Mapping[str, Array]) -> float:
    """Return the lowest SQNR of an output in dB."""
    ratios = []
    for values, others in zip(expected.values(), actual.values(), strict=True):
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
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


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


def measure(name: str, build: Path) -> dict[str, Any]:
    """Return the row of one network, and write its models to a folder."""
    model = qk.load(NETWORKS[name]())
    summary = qk.summarize(model)
    row: dict[str, Any] = {"name": name, "parameters": summary.num_parameters, "macs": summary.macs}
    folded: list[qk.Model] = []

    def rewrite() -> dict[str, Any]:
        folded.append(qk.transform(model, "inference", verify=True))
        return {"nodes_before": len(model.graph), "nodes_after": len(folded[0].graph)}

    row["transform"] = attempt(rewrite)
    if not folded:
        return row
    feeds = random_inputs(model, HELD_OUT, 1)
    expected = run_model(folded[0], "tensorflow", feeds)

    def round_trip() -> dict[str, Any]:
        converted = to_onnx_graph(folded[0].graph)
        formats.save(converted, build_path(build, name, ".float.onnx"))
        sample = {key: values[:1] for key, values in feeds.items()}
        np.savez(build_path(build, name, ".inputs.npz"), **sample)  # type: ignore[arg-type]
        actual = run_model(as_tensorflow(converted), "tensorflow", feeds)
        pairs = zip(expected.values(), actual.values(), strict=True)
        return {"error": max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)}

    row["round_trip"] = attempt(round_trip)
    calibration = build_path(build, name, ".calibration.npz")
    np.savez(calibration, **random_inputs(model, CALIBRATION, 0))  # type: ignore[arg-type]

    def quantize(target: str) -> dict[str, Any]:
        suffix, runtime = TARGETS[target]
        path = build_path(build, name, f".int8{suffix}")
        report = qk.quantize(folded[0], calibration, target=target, runs=0, output=path).report
        macs = report.census.int8_macs + report.census.float_macs
        return {
            "planned": round(report.census.int8_fraction, 4) if macs else None,
            "unknown_macs": dict(report.census.unknown_macs),
            "executed": {key: round(value, 4) for key, value in report.census.executed.items()},
            "sqnr": sqnr(expected, run_model(path, runtime, feeds)),
        }

    row["targets"] = {target: attempt(lambda target=target: quantize(target)) for target in TARGETS}  # type: ignore[misc]
    return row


def measure_in_process(name: str, build: Path, limit: float) -> dict[str, Any]:
    """Return the row of one network, which a process of its own measures."""
    command = [sys.executable, __file__, str(build), "--row", name]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"not finished after {limit:.0f} s"}
    if result.returncode:
        return {"name": name, "error": (result.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    row: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return row


def measure_speed(name: str, build: Path) -> dict[str, Any]:
    """Return the speed-up of the int8 ONNX model of a network in each runtime."""
    files = [build_path(build, name, suffix) for suffix in (".float.onnx", ".int8.onnx")]
    speed_ups: dict[str, Any] = {}
    for runtime in RUNTIMES:
        data = build_path(build, name, ".inputs.npz")
        benchmark = qk.benchmark(list(map(str, files)), runtime, data=data, time_budget=SECONDS)
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
    """Measure the networks, print the table, and write `keras_networks.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the models")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--speed", action="store_true", help="measure only the speed-ups of the models in BUILD")
    parser.add_argument("--limit", type=float, default=900, help="maximum seconds of a network (default: 900)")
    parser.add_argument("--save", type=Path, default=HERE / "keras_networks.json", help="file to write")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.row, options.build)))
        return
    options.build.mkdir(parents=True, exist_ok=True)
    document = {"schema": "quantkit.keras_networks/2", "machine": this_machine().to_json(), "rows": []}
    rows = {row["name"]: row for row in json.loads(options.save.read_text())["rows"]} if options.save.exists() else {}
    names = options.networks or [name for name in NETWORKS if options.speed or name not in rows]
    for name in names:
        if options.speed:
            rows[name]["speed"] = measure_speed(name, options.build)
        else:
            rows[name] = measure_in_process(name, options.build, options.limit)
        print(describe(rows[name]), flush=True)
        document["rows"] = [rows[name] for name in NETWORKS if name in rows]
        options.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
