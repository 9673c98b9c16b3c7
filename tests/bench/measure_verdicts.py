"""Seconds until a verdict, before and after a change, and the coverage of the intervals.

    python tests/bench/measure_verdicts.py BEFORE [--minutes 6] [--comparisons 100] [--save FILE]

BEFORE is the root of another work tree of this repository. `benchmark` of the float and the int8 file of a network, and
`quantize` with its report, run on five networks in both work trees in alternation, each in a new interpreter: as many
whole rounds as fit into the minutes, and one at least. Then the
bundled network is compared with itself, as in `measure_aa.py`, under any load. ``--minutes 0`` keeps the seconds that
the file has, ``--comparisons 0`` the coverage. Writes `verdicts.json`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from measure_aa import RUNTIME, compare  # type: ignore[import-not-found]  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit import formats  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.convert.to_litert import to_litert  # noqa: E402
from quantkit.convert.to_onnx import to_onnx_graph  # noqa: E402
from quantkit.formats.temporary import temporary_folder  # noqa: E402
from quantkit.model.model import tensor_info  # noqa: E402

ROOT = HERE.parents[1]
# Time limit of the processes of a comparison after the first three, as in `measure_aa.py`.
FURTHER_BUDGET = 7.0
NUM_SAMPLES = 16
# Model card, target and runtime of each network.
NETWORKS = {
    "digits": ("digits", "onnx", "onnxruntime"),
    "digits in TensorFlow": ("digits", "tensorflow", "tensorflow"),
    "digits in LiteRT": ("digits", "litert", "litert"),
    "mobilenet_v1": ("mobilenet_v1", "onnx", "openvino"),
    "mobilenet_v2 in TensorFlow": ("mobilenet_v2", "tensorflow", "tensorflow"),
}
SUFFIXES = {"onnx": ".onnx", "tensorflow": ".pb", "litert": ".tflite"}
PROGRAMS = {
    "benchmark": """
import sys, time
import quantkit as qk
start = time.monotonic()
result = qk.benchmark(sys.argv[1:])
print(time.monotonic() - start, result.speedups[1].outcome, result.stop.processes)
""",
    "quantize": """
import sys, time
import quantkit as qk
model, data, target, output = sys.argv[1:]
start = time.monotonic()
latency = qk.quantize(model, data, target=target, output=output).report.latency
print(time.monotonic() - start, latency.overall.outcome, latency.benchmark.stop.processes)
""",
}


def run(tree: Path, tool: str, arguments: list[str]) -> dict[str, Any]:
    """Return seconds, outcome and processes of a tool in a work tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    # Otherwise each process compiles the sources.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", PROGRAMS[tool], *arguments]
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(result.stderr)
    seconds, outcome, processes = result.stdout.splitlines()[-1].split()
    return {"seconds": float(seconds), "outcome": outcome, "processes": int(processes)}


def prepare(folder: Path) -> dict[tuple[str, str], list[str]]:
    """Write the files of each network; return the arguments of each tool."""
    arguments = {}
    for index, (name, (card, target, runtime)) in enumerate(NETWORKS.items()):
        model, data = folder / f"{index}.pb", folder / f"{index}.npz"
        graph = qk.transform(card, "inference", random_weights=card != "digits").graph
        formats.save(graph, model)
        (shape,) = (tensor_info(graph, edge).shape.dims or () for edge in graph.inputs)
        np.savez(data, np.random.default_rng(0).uniform(-1, 1, (NUM_SAMPLES, *shape[1:])).astype(np.float32))
        float_file, int8_file, again = (folder / f"{index}.{kind}{SUFFIXES[target]}" for kind in ("f", "int8", "again"))
        qk.quantize(model, data, target=target, output=int8_file, runs=0)
        if target == "litert":
            float_file.write_bytes(to_litert(graph))
        else:
            formats.save(to_onnx_graph(graph) if target == "onnx" else graph, float_file)
        arguments[name, "benchmark"] = [f"{file}@{runtime}" for file in (float_file, int8_file)]
        arguments[name, "quantize"] = [str(model), str(data), target, str(again)]
    return arguments


def measure_seconds(trees: dict[str, Path], minutes: float, folder: Path) -> list[dict[str, Any]]:
    """Return the seconds of each network, tool and work tree, in rounds."""
    arguments, rows = prepare(folder), list[dict[str, Any]]()
    for tree in trees.values():  # the first run writes the bytecode
        run(tree, "quantize", arguments["digits in LiteRT", "quantize"])
    start = begin = monotonic()
    while not rows or 2 * monotonic() - begin - start < 60 * minutes:
        begin = monotonic()
        for (name, tool), values in arguments.items():
            for version, tree in trees.items():
                rows.append({"network": name, "tool": tool, "version": version, **run(tree, tool, values)})
                print(json.dumps(rows[-1]), flush=True)
        trees = dict(reversed(trees.items()))
    return rows


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median seconds of each tool, network and work tree, and the medians of these over the networks."""
    summary: dict[str, Any] = {}
    for row in rows:
        seconds = summary.setdefault(row["tool"], {}).setdefault(row["network"], {})
        seconds.setdefault(row["version"], []).append(row["seconds"])
    for networks in summary.values():
        for versions in networks.values():
            versions |= {version: round(median(values), 2) for version, values in versions.items()}
        networks["all networks"] = {
            version: median(versions[version] for versions in networks.values()) for version in ("before", "after")
        }
    return summary


def main() -> None:
    """Measure seconds and coverage, and write `verdicts.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--save", type=Path, default=HERE / "verdicts.json")
    options = parser.parse_args()
    document = json.loads(options.save.read_text()) if options.save.exists() else {}
    document |= {"schema": "quantkit.bench.verdicts/1", "machine": this_machine().to_json()}
    with temporary_folder() as folder:
        if options.minutes:
            rows = measure_seconds({"before": options.before.absolute(), "after": ROOT}, options.minutes, folder)
            document |= {"seconds": summarize(rows), "rows": rows, "load": this_machine().load}
            options.save.write_text(json.dumps(document, indent=1) + "\n")
            print(json.dumps(document["seconds"], indent=1))
        file, equal = folder / "model.onnx", list[dict[str, Any]]()
        formats.save(to_onnx_graph(qk.transform("digits", "inference").graph), file)
        for seed in range(options.comparisons):
            equal.append(compare([file, file], seed, FURTHER_BUDGET))
            covered = sum(row["low"] <= 1 <= row["high"] for row in equal)
            document["equal"] = {"runtime": RUNTIME, "contain_1": covered, "of": len(equal), "rows": equal}
            options.save.write_text(json.dumps(document, indent=1) + "\n")
            print(f"{covered} of {len(equal)} intervals of equal models contain 1", flush=True)


if __name__ == "__main__":
    main()
