"""Compare the outputs of int8 models on processors with and without VNNI, and the cost of portable weights.

    python tests/bench/measure_portability.py BUILD [NETWORK ...] [--targets TARGET ...] [--reuse] [--save FILE]
    python tests/bench/measure_portability.py BUILD --speed [--save FILE]

The first form quantizes the 20 networks of `support/portable_networks.py` and measures the SQNR of the outputs to those
of the float model: of the target ``onnx`` in OpenVINO and of the target ``tensorflow`` in TensorFlow, with the kernels
of this processor and held to AVX-512 without VNNI and to AVX2; of some networks also in ONNX Runtime, native and on an
emulated Haswell (`qemu-user`). The cost is the SQNR of ``saturation = "ignore"`` minus that of ``pair_safe``, both with
the same observer, on this processor. No figure depends on the load of the machine. The second form adds the ratio of
the latencies of the two, in OpenVINO: run it on a quiet machine.
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
from portable_networks import NAMES, Feeds, SavedNetwork, load_saved, save_networks  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.benchmark.results.speedup import Speedup  # noqa: E402
from quantkit.ir.tensor import Array  # noqa: E402
from quantkit.quantization import Scheme  # noqa: E402

# Time limit of a comparison of latencies in seconds.
SECONDS = 40
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


def model_path(build: Path, name: str, target: str, kind: str) -> Path:
    """Return the file of an int8 model."""
    return build / f"{name}.{kind}{TARGETS[target][1]}"


def quantize(network: SavedNetwork, name: str, target: str, build: Path) -> dict[str, Any]:
    """Write the int8 models: the default one, and for the cost two that differ only in the kind of weights."""
    path = model_path(build, name, target, "default")
    result = qk.quantize(network.path, network.samples, target=target, output=path, **network.options(target))
    portability = result.report.portability
    cell = {"certified": None if portability is None else portability.is_certified}
    scheme = result.plan.scheme
    for saturation in KINDS if target == "onnx" else ():
        changes = {"observer": scheme.observer, "bias_correction": scheme.bias_correction, "saturation": saturation}
        same = Scheme.for_target(target, keep_float=scheme.keep_float, **changes)
        options = {**network.options(target), "scheme": same}
        output = model_path(build, name, target, saturation)
        qk.quantize(network.path, network.samples, target=target, output=output, **options)
    return cell


def run_model(path: Path, runtime: str, samples: list[Feeds]) -> Outputs:
    """Return the outputs of each sample."""
    with qk.open_session(path, runtime) as session:
        names = [info.name for info in session.inputs]
        inputs = [
            feeds if set(names) == set(feeds) else dict(zip(names, feeds.values(), strict=True)) for feeds in samples
        ]
        return [{name: np.asarray(value) for name, value in session.run(feeds).items()} for feeds in inputs]


def run_apart(path: Path, arm: str, build: Path, name: str, count: int) -> Outputs:
    """Return the outputs of a model in a process of its own.

    Raises:
        RuntimeError: the process has failed.
    """
    runtime, environment, emulator = ARMS[arm]
    output = build / "outputs.npz"
    command = [*emulator, sys.executable, __file__, str(build), "--run", name, str(path), runtime, str(count)]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError((result.stderr.strip().splitlines() or ["no message"])[-1][:200])
    outputs: Outputs = [{} for _ in range(count)]
    with np.load(output) as arrays:
        for key in arrays.files:
            index, _, edge = key.partition("/")
            outputs[int(index)][edge] = arrays[key]
    return outputs


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


def measure(name: str, build: Path, options: argparse.Namespace, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a network; ``row`` is its saved row."""
    network = load_saved(name, build)
    float_runtime = "onnxruntime" if network.path.suffix == ".onnx" else "tensorflow"
    samples = network.samples[:NUM_SAMPLES]
    expected = run_model(network.path, float_runtime, samples)

    def compare(path: Path, arm: str, count: int = len(samples)) -> Any:
        try:
            return sqnr(expected, run_apart(path, arm, build, name, count))
        except RuntimeError as error:
            return str(error)

    result: dict[str, Any] = {**row, "name": name, "samples": len(samples)}
    for target in options.targets:
        path = model_path(build, name, target, "default")
        try:
            is_reused = options.reuse and "certified" in row.get(target, {})
            result[target] = dict(row[target]) if is_reused else quantize(network, name, target, build)
        except Exception as error:
            result[target] = {"error": f"{type(error).__name__}: {error}"[:200]}
            continue
        runtime, _ = TARGETS[target]
        result[target][runtime] = {limit: compare(path, f"{runtime} {limit}") for limit in LIMITS}
        if target == "onnx":
            result[target]["cost"] = {
                kind: compare(model_path(build, name, target, kind), "openvino native") for kind in KINDS
            }
        if target == "onnx" and name in options.emulated and shutil.which(QEMU[0]):
            arms = {"native": "onnxruntime native", "Haswell": "onnxruntime Haswell"}
            result[target]["onnxruntime"] = {key: compare(path, arm, NUM_EMULATED) for key, arm in arms.items()}
    return result


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
    benchmark = qk.benchmark(files, "openvino", data=load_saved(row["name"], build).samples[:1], time_budget=SECONDS)
    speedup = benchmark.speedups[1]
    row["onnx"]["speed"] = speedup.to_json() if isinstance(speedup, Speedup) else {"error": str(benchmark.failures)}


def main() -> None:
    """Measure the networks and write `portability.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the models")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NAMES))
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS, help="targets")
    parser.add_argument("--emulated", nargs="*", default=list(EMULATED), help="networks that also run emulated")
    parser.add_argument("--reuse", action="store_true", help="compare the models in BUILD again without quantizing")
    parser.add_argument("--speed", action="store_true", help="measure only the latencies of the models in BUILD")
    parser.add_argument("--save", type=Path, default=HERE / "portability.json", help="file to write")
    parser.add_argument("--run", nargs=4, metavar=("NETWORK", "FILE", "RUNTIME", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        name, path, runtime, count = options.run
        outputs = run_model(Path(path), runtime, load_saved(name, options.build).samples[: int(count)])
        arrays: dict[str, Any] = {
            f"{index}/{edge}": values for index, row in enumerate(outputs) for edge, values in row.items()
        }
        np.savez(options.build / "outputs.npz", **arrays)
        return
    saved = json.loads(options.save.read_text()) if options.save.exists() else {"rows": []}
    rows = {row["name"]: row for row in saved["rows"]}
    save_networks(options.build)
    for name in options.networks or NAMES:
        if options.speed:
            measure_speed(rows[name], options.build)
        else:
            rows[name] = measure(name, options.build, options, rows.get(name, {}))
        print(json.dumps(rows[name]), flush=True)
        ordered = [rows[each] for each in NAMES if each in rows]
        document = {"schema": "quantkit.bench.portability/1", "machine": this_machine().to_json()}
        document |= {"summary": summarize(ordered), "rows": ordered}
        options.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
