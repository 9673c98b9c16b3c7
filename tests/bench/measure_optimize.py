"""Compare the file and settings of `optimize` with the peers' int8 files at their best thread settings.

    python tests/bench/measure_optimize.py BUILD --nncf PYTHON [NETWORK ...] [--time-budget 10m] [--max-drop 0.01]

Each network of `support/onnx_networks.py` is searched with its calibration samples, three quarters of which are held
out. ONNX Runtime's `quantize_static` and NNCF get all of them, with the settings of `onnx_networks.py`, and each number
of threads. The rows of a network are measured in alternation
in new processes after the search. PYTHON is the interpreter of an environment with NNCF.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from onnx_networks import NETWORKS, Feeds, OnnxNetwork, open_onnxruntime  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.benchmark.results.speedup import Speedup  # noqa: E402
from quantkit.benchmark.sampling.candidate import Candidate, Settings  # noqa: E402
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure  # noqa: E402
from quantkit.runtimes.session import SessionOptions  # noqa: E402

# Without a task, the outputs of these networks are class scores.
CLASSIFIERS = ("kwt1", "pplcnet_orientation")
SCHEMA = "quantkit.optimize_measurement/1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--nncf", required=True, help="Python interpreter of an environment with NNCF")
    parser.add_argument("--time-budget", default="10m")
    parser.add_argument("--max-drop", type=float, default=0.01)
    parser.add_argument("--save", type=Path, default=HERE / "optimize.json")
    arguments = parser.parse_args()
    arguments.build.mkdir(parents=True, exist_ok=True)
    rows = json.loads(arguments.save.read_text())["rows"] if arguments.save.exists() else {}
    for network in NETWORKS.values():
        if network.name in arguments.networks:
            row = measure_network(network, arguments)
            rows[network.name] = row
            print(network.name, row["answer"], json.dumps(row["over_peers"]), flush=True)
            document = {"schema": SCHEMA, "machine": this_machine().to_json(), "rows": rows}
            arguments.save.write_text(json.dumps(document, indent=1) + "\n")


def measure_network(network: OnnxNetwork, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the result of a search, and its speed-ups over the peers' files."""
    build, nncf, options = arguments.build, arguments.nncf, {"time_budget": arguments.time_budget}
    options |= {"max_drop": arguments.max_drop}
    samples = network.calibration(open_onnxruntime(network.path))
    task = None if network.name in CLASSIFIERS else "regression"
    output = build / f"{network.name}.optimized"
    result = qk.optimize(network.path, samples, task=task, output=output, **options)
    ours = Candidate("optimize", result.file, result.best.candidate.settings)
    default = qk.quantize(network.path, samples, runs=0, output=build / f"{network.name}.default.onnx")
    assert default.report.num_bytes
    others = {"default": build / f"{network.name}.default.onnx", **peers(network, samples, build, nncf)}
    sizes = {name: array.shape for name, array in samples[0].items()}
    candidates = [ours, *(each for name, path in others.items() for each in settings_of(name, path, sizes))]
    benchmark = measure(candidates, SamplingOptions(time_budget=240.0, further_budget=60.0, process_seconds=0.3))
    speedups: dict[str, Any] = {}
    base = benchmark.rows[0].measurement
    for candidate, row in zip(candidates[1:], benchmark.rows[1:], strict=True):
        if row.measurement is not None and base is not None:
            speedups[candidate.label] = Speedup.of(row.measurement, base).to_json()
    best_peers = {
        peer: min((row["ratio"] for name, row in speedups.items() if name.startswith(peer)), default=None)
        for peer in ("default", "quantize_static", "nncf")
    }
    document = result.to_json()
    facts = {key: document[key] for key in ("answer", "best", "baseline", "front", "candidates", "reasons", "seconds")}
    facts["best"] = facts["best"] | {"file": Path(document["best"]["file"]).name}
    return facts | options | {"speedups": speedups, "over_peers": best_peers}


def peers(network: OnnxNetwork, samples: list[Feeds], build: Path, nncf: str) -> dict[str, Path]:
    """Return the int8 files of the peers that can quantize the network."""
    tools = load_tools()
    files = {}
    for name, suffix in (("quantize_static", ".onnx"), ("nncf", ".xml")):
        path = build / f"{network.name}.{name}{suffix}"
        try:
            if name == "nncf":
                tools.quantize_with_nncf(nncf, network, samples, path)
            else:
                tools.quantize_static(network, samples, path)
        except Exception as error:
            print(f"  {name} failed: {error}")
        else:
            files[name] = path
    return files


def load_tools() -> Any:
    """Return the script `onnx_networks.py` of this folder, whose name is that of the support module."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("bench_onnx_networks", HERE / "onnx_networks.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def settings_of(name: str, path: Path, sizes: Mapping[str, tuple[int, ...]]) -> list[Candidate]:
    """Return a file in its runtimes with each number of threads, for calls with the sizes of a sample."""
    runtimes = {"nncf": ("openvino",), "quantize_static": ("onnxruntime",)}.get(name, ("openvino", "onnxruntime"))
    counts = (None, *sorted({1, os.cpu_count() or 1}))
    return [
        Candidate(f"{name} in {runtime}, intra_op={count}", path, Settings(runtime, options, input_shapes=sizes))
        for runtime in runtimes
        for count in counts
        for options in [SessionOptions(intra_op=count)]
    ]


if __name__ == "__main__":
    main()
