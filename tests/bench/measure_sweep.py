"""Sweep the settings of float and int8 networks in TensorFlow, ONNX Runtime and OpenVINO.

    python tests/bench/measure_sweep.py FLOAT.pb INT8.pb INT8.onnx [--time-budget 5m] [--out FILE]

One sweep of the float graph in all three runtimes, and one of the int8 graph in TensorFlow and of the int8 ONNX model
in ONNX Runtime and OpenVINO; each sweep has the time budget. A result holds if the best settings are faster than the
default with their whole interval, or are the default. Then measures the int8 graph in TensorFlow with each pair of 1
and 2 threads inside and across ops, whose fastest pair the sweep should have found. Writes `sweep.json` after each.
Takes 13 minutes with the default budget.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import quantkit as qk
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure
from quantkit.benchmark.sweep import Sweep
from quantkit.runtimes.session import SessionOptions

HERE = Path(__file__).parent
RUNTIMES = ("tensorflow", "onnxruntime", "openvino")
# Pairs of threads inside one op and of ops in parallel.
THREADS = ((1, 2), (1, 1), (2, 1), (2, 2))
PAIR_BUDGET = 120.0


def sweep_facts(result: Sweep) -> list[dict[str, Any]]:
    """Return the result for each model, and the reason to accept it."""
    rows = []
    for model in result.models:
        print(model.verdict, flush=True)
        speedup = model.best.speedup
        holds = speedup is None or speedup.low > 1
        rows.append({**model.to_json(), "verdict": model.verdict, "holds": holds})
    return rows


def thread_facts(model: str) -> list[dict[str, Any]]:
    """Return the speed-up of each pair of threads over the default of TensorFlow, measured in the same rounds."""
    options = [SessionOptions(), *(SessionOptions(intra, inter) for intra, inter in THREADS)]
    candidates = [Candidate(Path(model).name, Path(model), Settings("tensorflow", option)) for option in options]
    result = measure(candidates, SamplingOptions(processes=5, time_budget=PAIR_BUDGET))
    rows = []
    for (intra, inter), speedup in zip(THREADS, result.speedups[1:], strict=True):
        assert isinstance(speedup, Speedup)
        rows.append({"intra_op": intra, "inter_op": inter, "speedup": speedup.to_json()})
        print(f"int8 tensorflow intra {intra} inter {inter}: {speedup.verdict}", flush=True)
    return rows


def main() -> None:
    """Run the sweeps and write `sweep.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("float_graph", help="frozen float graph")
    parser.add_argument("int8_graph", help="int8 graph of the target tensorflow")
    parser.add_argument("int8_onnx", help="int8 model of the target onnx")
    parser.add_argument("--time-budget", default="5m", help="time limit of each of the two sweeps (default: 5m)")
    parser.add_argument("--out", type=Path, default=HERE / "sweep.json")
    options = parser.parse_args()
    sweeps = {
        "float": [f"{options.float_graph}@{name}" for name in RUNTIMES],
        "int8": [
            f"{options.int8_graph}@tensorflow",
            f"{options.int8_onnx}@onnxruntime",
            f"{options.int8_onnx}@openvino",
        ],
    }
    document: dict[str, Any] = {"schema": "quantkit.bench.sweep/1", "machine": this_machine().to_json()}
    document["time_budget"] = options.time_budget
    for name, models in sweeps.items():
        print(f"{name}: {', '.join(models)}", flush=True)
        document[name] = sweep_facts(qk.sweep(models, time_budget=options.time_budget))
        options.out.write_text(json.dumps(document, indent=1))
    document["int8 tensorflow threads"] = thread_facts(options.int8_graph)
    options.out.write_text(json.dumps(document, indent=1))
    print("all hold:", all(row["holds"] for name in sweeps for row in document[name]))


if __name__ == "__main__":
    main()
