"""Compare the outputs of int8 models on processors with and without VNNI, and the cost of portable weights.

    python tests/bench/measure_portability.py BUILD [NETWORK ...] [--targets TARGET ...] [--save FILE]
    python tests/bench/measure_portability.py BUILD --speed [--save FILE]

The first form quantizes the 20 networks of `support/portable_networks.py` and measures the SQNR of the outputs to those
of the float model: of the target ``onnx`` in OpenVINO and of the target ``tensorflow`` in TensorFlow, with the kernels
of this processor and held to AVX-512 without VNNI and to AVX2; of some networks also in ONNX Runtime, native and on an
emulated Haswell (`qemu-user`). The cost is the SQNR of ``saturation = "ignore"`` minus that of ``pair_safe``, both with
the same observer, on this processor, in OpenVINO or else in ONNX Runtime. No figure depends on the load of the machine.
Files and outputs that exist in BUILD are not made again. The second form adds the ratio of the latencies of the two
kinds, in OpenVINO: run it on a quiet machine.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from measure_networks import pair_outputs  # type: ignore[import-not-found]  # noqa: E402
from portable_networks import NAMES, SavedNetwork, load_saved, save_networks  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.benchmark.results.speedup import Speedup  # noqa: E402
from quantkit.errors import QuantkitError  # noqa: E402
from quantkit.ir.tensor import Array  # noqa: E402
from quantkit.quantization import Scheme  # noqa: E402
from quantkit.quantization.portability import certify  # noqa: E402

# Time limit of a comparison of latencies in seconds.
SECONDS = 20
KINDS = ("ignore", "pair_safe")
# Runtime and suffix of each target.
TARGETS = {"onnx": ("openvino", ".onnx"), "tensorflow": ("tensorflow", ".pb")}
LIMITS: Mapping[str, Mapping[str, str]] = {
    "native": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
}
QEMU = ("qemu-x86_64", "-cpu", "Haswell")
# For each arm: the runtime, the environment variables of its process, and its emulator.
ARMS: Mapping[str, tuple[str, Mapping[str, str], tuple[str, ...]]] = {
    **{
        f"{runtime} {limit}": (runtime, environment, ())
        for runtime, _ in TARGETS.values()
        for limit, environment in LIMITS.items()
    },
    "onnxruntime native": ("onnxruntime", {}, ()),
    "onnxruntime Haswell": ("onnxruntime", {}, QEMU),
}
EMULATED = (
    "ultraface_rfb320",
    "yunet_n_320",
    "kwt1",
    "dtln_1",
    "pplcnet_orientation",
    "sediment_unet",
    "silero_vad_op15",
)
# Samples whose outputs are compared, and those of emulated runs.
NUM_SAMPLES, NUM_EMULATED = 32, 2
Outputs = list[dict[str, Array]]
# Environment variable with the number of samples of a process.
COUNT = "QUANTKIT_BENCH_SAMPLES"


def model_path(build: Path, name: str, target: str, kind: str) -> Path:
    """Return the file of an int8 model."""
    return build / f"{name}.{kind}{TARGETS[target][1]}"


def quantize(network: SavedNetwork, name: str, target: str, build: Path) -> dict[str, Any]:
    """Write the int8 models that are missing: the default one, and for the cost two with other kinds of weights."""
    path = model_path(build, name, target, "default")
    if not path.exists():
        qk.quantize(network.path, network.samples, target=target, output=path, **network.options(target))
    portability = certify(qk.load(path).graph)
    for saturation in KINDS if target == "onnx" else ():
        output = model_path(build, name, target, saturation)
        if not output.exists():
            scheme = (qk.receipt(path).receipt or {})["scheme"]
            changes = {key: scheme[key] for key in ("observer", "bias_correction")}
            same = Scheme.for_target(target, keep_float=network.keep_float, saturation=saturation, **changes)
            options = {**network.options(target), "scheme": same}
            qk.quantize(network.path, network.samples, target=target, output=output, **options)
    return {"certified": None if portability is None else portability.is_certified}


def run_models(runtime: str, folder: Path, build: Path, files: list[str]) -> None:
    """Save the outputs of models, or the error message, in a folder; outputs that are newer than the model are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        path, output = build / file, folder / f"{file}.npz"
        if not path.exists() or (output.exists() and output.stat().st_mtime > path.stat().st_mtime):
            continue
        samples = load_saved(file.split(".")[0], build).samples[: int(os.environ[COUNT])]
        arrays: dict[str, Any] = {}
        try:
            with qk.open_session(path, runtime) as session:
                names = [info.name for info in session.inputs]
                for index, feeds in enumerate(samples):
                    inputs = feeds if set(names) == set(feeds) else dict(zip(names, feeds.values(), strict=True))
                    arrays |= {f"{index}/{edge}": value for edge, value in session.run(inputs).items()}
        except Exception as error:
            arrays = {"error": np.array(f"{type(error).__name__}: {error}"[:200])}
        np.savez(output, **arrays)


def load_outputs(output: Path) -> Outputs | str:
    """Return the outputs of each sample, or the error message."""
    if not output.exists():
        return "the process has failed"
    rows: dict[int, dict[str, Array]] = {}
    with np.load(output) as arrays:
        if "error" in arrays.files:
            return str(arrays["error"])
        for key in arrays.files:
            index, _, edge = key.partition("/")
            rows.setdefault(int(index), {})[edge] = arrays[key]
    return list(rows.values())


def sqnr(expected: Outputs, actual: Outputs) -> float:
    """Return the lowest SQNR of an output in dB; the actual outputs may be those of the first samples."""
    totals: dict[int, Array] = {}
    for signals, others in zip(expected, actual, strict=False):
        for order, (signal, other) in enumerate(pair_outputs(signals, others)):
            exact = signal.astype(np.float64)
            sums = np.array([(exact**2).sum(), ((exact - other) ** 2).sum()])
            totals[order] = totals.get(order, np.zeros(2)) + sums
    ratios = [10 * np.log10(signal / max(noise, 1e-10 * signal)) for signal, noise in totals.values() if signal]
    return round(float(min(ratios)), 3)


def measure(names: list[str], build: Path, options: argparse.Namespace, rows: dict[str, dict[str, Any]]) -> None:
    """Add the results of networks to the rows."""
    files: dict[str, list[str]] = {arm: [] for arm in ARMS}
    for name in names:
        network = load_saved(name, build)
        is_onnx = network.path.suffix == ".onnx"
        files[f"{'onnxruntime' if is_onnx else 'tensorflow'} native"].append(network.path.name)
        row = rows.setdefault(name, {})
        row |= {"name": name, "samples": min(len(network.samples), NUM_SAMPLES)}
        for target in options.targets:
            try:
                row[target] = quantize(network, name, target, build)
            except Exception as error:
                row[target] = {"error": f"{type(error).__name__}: {error}"[:200]}
                continue
            print(name, target, row[target], flush=True)
            default = model_path(build, name, target, "default").name
            for limit in LIMITS:
                files[f"{TARGETS[target][0]} {limit}"].append(default)
            if target == "onnx":
                kinds = [model_path(build, name, target, kind).name for kind in KINDS]
                files["openvino native"] += kinds
                files["onnxruntime native"] += kinds
            if target == "onnx" and name in options.emulated and shutil.which(QEMU[0]):
                files["onnxruntime native"].append(default)
                files["onnxruntime Haswell"].append(default)
    for arm, (runtime, environment, emulator) in ARMS.items():
        count = NUM_EMULATED if emulator else NUM_SAMPLES
        command = [*emulator, sys.executable, __file__, str(build), *files[arm], "--run", runtime, arm]
        if files[arm]:
            subprocess.run(command, env={**os.environ, **environment, COUNT: str(count)}, check=False)
    for name in names:
        compare(rows[name], load_saved(name, build), build, options)


def compare(row: dict[str, Any], network: SavedNetwork, build: Path, options: argparse.Namespace) -> None:
    """Add the SQNR of each arm to the row of a network."""
    float_runtime = "onnxruntime" if network.path.suffix == ".onnx" else "tensorflow"
    expected = load_outputs(build / "outputs" / f"{float_runtime} native" / f"{network.path.name}.npz")

    def find_sqnr(target: str, kind: str, arm: str, count: int = NUM_SAMPLES) -> Any:
        path = model_path(build, row["name"], target, kind)
        actual = load_outputs(build / "outputs" / arm / f"{path.name}.npz")
        messages = [each for each in (expected, actual) if isinstance(each, str)]
        return messages[0] if messages else sqnr(expected[:count], actual[:count])

    for target in (each for each in options.targets if "error" not in row[each]):
        runtime, _ = TARGETS[target]
        row[target][runtime] = {limit: find_sqnr(target, "default", f"{runtime} {limit}") for limit in LIMITS}
        if target == "onnx":
            arm = f"{runtime if isinstance(row[target][runtime]['native'], float) else 'onnxruntime'} native"
            row[target]["cost"] = {kind: find_sqnr(target, kind, arm) for kind in KINDS}
            if row["name"] in options.emulated and shutil.which(QEMU[0]):
                arms = {"native": "onnxruntime native", "Haswell": "onnxruntime Haswell"}
                row[target]["onnxruntime"] = {
                    key: find_sqnr(target, "default", each, NUM_EMULATED) for key, each in arms.items()
                }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the largest difference of each runtime, and the cost of portable weights."""
    differences: dict[str, dict[str, float]] = {}
    for row in rows:
        for target in TARGETS:
            for runtime in ("openvino", "tensorflow", "onnxruntime"):
                cells = {
                    key: value
                    for key, value in row.get(target, {}).get(runtime, {}).items()
                    if isinstance(value, float)
                }
                if len(cells) > 1:
                    difference = max(abs(value - cells["native"]) for value in cells.values())
                    differences.setdefault(runtime, {})[row["name"]] = round(difference, 3)
    pairs = {row["name"]: row["onnx"]["cost"] for row in rows if "cost" in row.get("onnx", {})}
    costs = {
        name: round(pair["ignore"] - pair["pair_safe"], 3)
        for name, pair in pairs.items()
        if all(isinstance(value, float) for value in pair.values())
    }
    summary: dict[str, Any] = {
        "largest_difference": {runtime: max(each.values()) for runtime, each in differences.items()},
        "networks": {runtime: len(each) for runtime, each in differences.items()},
    }
    if costs:
        median_cost = round(median(costs.values()), 3)
        summary["cost"] = {"median": median_cost, "largest": max(costs.values()), "networks": len(costs)}
    return summary


def measure_speed(row: dict[str, Any], build: Path) -> None:
    """Add the ratio of the latencies of both kinds of weights in OpenVINO to a row."""
    files = [str(model_path(build, row["name"], "onnx", kind)) for kind in KINDS]
    if not all(map(os.path.exists, files)):
        return
    sizes = {name: array.shape for name, array in load_saved(row["name"], build).samples[0].items()}
    try:
        benchmark = qk.benchmark(files, "openvino", input_shapes=sizes, time_budget=SECONDS)
    except QuantkitError as error:
        row["onnx"]["speed"] = {"error": error.message}
        return
    speedup = benchmark.speedups[1]
    row["onnx"]["speed"] = speedup.to_json() if isinstance(speedup, Speedup) else {"error": str(benchmark.failures)}


def main() -> None:
    """Measure the networks and write `portability.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the models")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NAMES))
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS, help="targets")
    parser.add_argument("--emulated", nargs="*", default=list(EMULATED), help="networks that also run emulated")
    parser.add_argument("--speed", action="store_true", help="measure only the latencies of the models in BUILD")
    parser.add_argument("--save", type=Path, default=HERE / "portability.json", help="file to write")
    parser.add_argument("--run", nargs=2, metavar=("RUNTIME", "ARM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    build = options.build
    if options.run:
        runtime, arm = options.run
        run_models(runtime, build / "outputs" / arm, build, options.networks)
        return
    saved = json.loads(options.save.read_text()) if options.save.exists() else {"rows": []}
    rows = {row["name"]: row for row in saved["rows"]}
    save_networks(build)
    names = options.networks or list(NAMES)
    if options.speed:
        for name in names:
            measure_speed(rows[name], build)
    else:
        measure(names, build, options, rows)
    ordered = [rows[each] for each in NAMES if each in rows]
    document = {"schema": "quantkit.bench.portability/1", "machine": this_machine().to_json()}
    document |= {"summary": summarize(ordered), "rows": ordered}
    options.save.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"]))


if __name__ == "__main__":
    main()
