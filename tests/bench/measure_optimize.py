"""Compare the file and settings of `optimize` with those of a search without limits, and with the peers' int8 files.

    python tests/bench/measure_optimize.py BUILD --nncf PYTHON [NETWORK ...] [--time-budget 10m] [--max-drop 0.05]
    python tests/bench/measure_optimize.py --limits

Each network of `support/portable_networks.py` is searched with its calibration samples; the samples of its evaluation
are held out, other seeded samples for the networks of Keras, and three quarters of the calibration samples for
Inception v3. The search is then made again without
its limits: it builds every form for every runtime, measures the drop of every candidate in the order of the speed, and
searches the settings of six of them instead of two. ONNX Runtime's `quantize_static` and NNCF get all samples, with the
settings of `onnx_networks.py`, and each number of threads; if the network has dynamic sizes, they also get it with the
sizes of the samples. The rows of a network are measured in alternation in new processes after the searches. PYTHON is
the interpreter of an environment with NNCF.

``kernels`` is the fraction of the latency of NNCF's file in int8 kernels of convolutions and matrix products. A file
with the same kernels is at most ``1 / kernels`` times as fast, if all other ops take no time. ``--limits`` prints the
speed-up over the better peer that each saved file reached, and its limits: that of the better of both searches, that
of the fastest candidate of the search without limits, of any drop, and that of NNCF's int8 kernels alone.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from onnx_networks import NETWORKS, Feeds, open_onnxruntime  # noqa: E402
from portable_networks import INCEPTION, KERAS, NAMES, load_saved, save_networks  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit import formats  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.benchmark.profiling.tracing import trace_calls  # noqa: E402
from quantkit.benchmark.results.speedup import Speedup  # noqa: E402
from quantkit.benchmark.sampling.candidate import Candidate, Settings  # noqa: E402
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure  # noqa: E402
from quantkit.convert.to_onnx import to_onnx_graph  # noqa: E402
from quantkit.ir.tensor import Array  # noqa: E402
from quantkit.optimize import search  # noqa: E402
from quantkit.optimize.forms import has_dynamic_sizes  # noqa: E402
from quantkit.runtimes.session import INT8, SessionOptions  # noqa: E402

# Without a task, the outputs of these networks are class scores.
CLASSIFIERS = ("kwt1", "pplcnet_orientation", INCEPTION, *KERAS)
SCHEMA = "quantkit.optimize_measurement/2"
# Limits of a search, and their values for a search without limits.
LIMITS: dict[str, Any] = {"MOST_GAIN": 1e9, "MOST_DROPS": 100, "LEAST_FRACTION": 0.5, "FINALISTS": 8, "TUNED": 6}
# Number of held-out samples.
MOST_SAMPLES = 200
# Number and seed of the held-out samples of the networks of Keras: about 86 show a drop of 0.05 of the agreement.
KERAS_SAMPLES, KERAS_SEED = 100, 1
# Prefix of the peers' files with the sizes of the samples.
FIXED = "fixed_"
# Parts of the names of ops and kernels that compute convolutions and matrix products.
PRODUCTS = ("conv", "matmul", "fullyconnected", "gemm", "brgemm")


@dataclass(frozen=True)
class PeerNetwork:
    """Float ONNX file that a peer quantizes, and the prefix of the int8 files."""

    name: str
    path: Path
    prefix: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, nargs="?")
    parser.add_argument("networks", nargs="*", default=list(NAMES))
    parser.add_argument("--nncf", help="Python interpreter of an environment with NNCF")
    parser.add_argument("--limits", action="store_true", help="print the limits of the saved speed-ups")
    parser.add_argument("--time-budget", default="10m")
    parser.add_argument("--max-drop", type=float, default=0.05)
    parser.add_argument("--save", type=Path, default=HERE / "optimize.json")
    arguments = parser.parse_intermixed_args()
    saved = json.loads(arguments.save.read_text()) if arguments.save.exists() else {}
    rows = saved["rows"] if saved.get("schema") == SCHEMA else {}
    if arguments.limits:
        print_limits(rows)
        return
    if arguments.build is None or arguments.nncf is None:
        parser.error("BUILD and --nncf are required, or --limits")
    save_networks(arguments.build)
    for name in arguments.networks:
        rows[name] = measure_network(name, arguments)
        print(name, rows[name]["answer"], json.dumps(rows[name]["over"]), rows[name]["kernels"], flush=True)
        document = {"schema": SCHEMA, "machine": this_machine().to_json(), "rows": rows}
        arguments.save.write_text(json.dumps(document, indent=1) + "\n")


def print_limits(rows: Mapping[str, Any]) -> None:
    """Print the speed-ups of the saved files over the better peer next to their limits, and geometric means."""
    columns = ("network", "reached", "search", "any drop", "kernels", "reached, fixed", "kernels, fixed")
    print("".join(f"{column:>{22 if not index else 16}}" for index, column in enumerate(columns)))
    table = {name: find_limits(row) for name, row in rows.items()}
    for index in range(len(columns) - 1):
        values = [limits[index] for name, limits in table.items() if name in rows]
        table.setdefault("geometric mean", []).append(geometric_mean(values))
    for name, limits in table.items():
        print(f"{name:>22}{''.join(f'{value:16.3f}' for value in limits)}")


def find_limits(row: Mapping[str, Any]) -> list[float]:
    """Return the speed-up of a file over the better peer, and its limits, in the order of `print_limits`."""
    over = row["over"]
    plain, fixed = (
        min(ratio for name, ratio in over.items() if name.removeprefix(prefix) in ("quantize_static", "nncf"))
        for prefix in ("", FIXED)
    )
    best = max(1.0, 1 / over["search without limits"])
    # The later stages measure a candidate for longer.
    ratios = {each["candidate"]: each["ratio"] for each in row["search"]["candidates"] if each["ratio"]}
    fastest = max(1.0, max(ratios.values()) / ratios.get(row["best"]["name"], max(ratios.values())))
    # Speed-up of NNCF's int8 kernels alone over the file.
    kernels = 1 / (row["kernels"] * over["nncf"])
    return [plain, plain * best, plain * fastest, plain * kernels, fixed, fixed * kernels]


def measure_network(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the results of both searches, and the speed-ups of the file of the first search over the other files."""
    build, network = arguments.build, load_saved(name, arguments.build)
    options = {"time_budget": arguments.time_budget, "max_drop": arguments.max_drop}
    data = {"held_out": held_out_samples(name, network.path), "task": None if name in CLASSIFIERS else "regression"}
    result = qk.optimize(network.path, network.samples, output=build / f"{name}.optimized", **data, **options)
    with patch.multiple(search, **LIMITS):
        whole = qk.optimize(network.path, network.samples, output=build / f"{name}.searched", **data, **options)
    default = build / f"{name}.default.onnx"
    qk.quantize(network.path, network.samples, output=default, **network.options("onnx"))
    sizes = {edge: array.shape for edge, array in network.samples[0].items()}
    peer_files = {
        f"{kind}{peer}": path
        for kind, source in float_files(name, network.path, sizes, build).items()
        for peer, path in peers(PeerNetwork(name, source, kind), network.samples, build, arguments.nncf).items()
    }
    ours = Candidate("optimize", result.file, result.best.candidate.settings)
    candidates = [
        ours,
        Candidate("search without limits", whole.file, whole.best.candidate.settings),
        *settings_of("default", default, sizes),
        *(each for peer, path in peer_files.items() for each in settings_of(peer, path, sizes)),
    ]
    limits = SamplingOptions(time_budget=180.0, further_budget=15.0, process_seconds=0.2, warmup_seconds=0.5)
    benchmark = measure(candidates, limits)
    speedups: dict[str, Any] = {}
    base = benchmark.rows[0].measurement
    for candidate, row in zip(candidates[1:], benchmark.rows[1:], strict=True):
        if row.measurement is not None and base is not None:
            speedups[candidate.label] = Speedup.of(row.measurement, base).to_json()
    groups = ("search without limits", "default", *peer_files)
    over = {
        group: min((row["ratio"] for label, row in speedups.items() if label.startswith(group)), default=None)
        for group in groups
    }
    document = result.to_json()
    facts = {key: document[key] for key in ("answer", "best", "baseline", "front", "candidates", "reasons", "seconds")}
    facts["best"] = facts["best"] | {"file": Path(document["best"]["file"]).name}
    unlimited = {key: whole.to_json()[key] for key in ("answer", "candidates", "seconds")}
    nncf = peer_files.get("nncf")
    kernels = None if nncf is None else int8_fraction(Candidate("nncf", nncf, Settings("openvino", input_shapes=sizes)))
    return {**facts, **options, "search": unlimited, "speedups": speedups, "over": over, "kernels": kernels}


def held_out_samples(name: str, path: Path) -> list[Feeds] | None:
    """Return the samples that the evaluation of a network runs, at most `MOST_SAMPLES`; None for Inception v3."""
    if name in KERAS:
        from measure_networks import seeded_inputs  # type: ignore[import-not-found]

        values = seeded_inputs(name, qk.load(path), KERAS_SAMPLES, KERAS_SEED)
        return [{edge: each[index : index + 1] for edge, each in values.items()} for index in range(KERAS_SAMPLES)]
    if name not in NETWORKS:
        return None
    run, feeds = open_onnxruntime(NETWORKS[name].path), list[Feeds]()

    def record(sample: Feeds) -> Mapping[str, Array]:
        feeds.append(sample)
        return run(sample)

    NETWORKS[name].evaluate(record)
    return feeds[:: -(-len(feeds) // MOST_SAMPLES)]


def float_files(name: str, path: Path, sizes: Mapping[str, tuple[int, ...]], build: Path) -> dict[str, Path]:
    """Return the float ONNX file of a network by prefix of the peer, and one with fixed sizes if those are dynamic."""
    graph = qk.load(path).graph
    onnx_path = path
    if path.suffix != ".onnx":
        onnx_path = build / f"{name}.converted.onnx"
        formats.save(to_onnx_graph(graph), onnx_path)
    graph = qk.load(onnx_path).graph
    if not has_dynamic_sizes(graph):
        return {"": onnx_path}
    fixed = build / f"{name}.fixed.onnx"
    formats.save(qk.load(onnx_path, input_shapes=dict(sizes)).graph, fixed)
    return {"": onnx_path, FIXED: fixed}


def int8_fraction(candidate: Candidate) -> float:
    """Return the fraction of the time of the ops that int8 kernels take."""
    seconds, products = 0.0, 0.0
    for op in trace_calls(candidate).trace.ops:
        is_product = op.precision == INT8 and any(part in f"{op.op} {op.kernel}".lower() for part in PRODUCTS)
        seconds += sum(op.seconds)
        products += sum(op.seconds) if is_product else 0.0
    return products / seconds


def peers(network: PeerNetwork, samples: list[Feeds], build: Path, nncf: str) -> dict[str, Path]:
    """Return the int8 files of the peers that can quantize the network."""
    tools = load_tools()
    files = {}
    for name, suffix in (("quantize_static", ".onnx"), ("nncf", ".xml")):
        path = build / f"{network.prefix}{network.name}.{name}{suffix}"
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
    runtimes = {"nncf": ("openvino",), "quantize_static": ("onnxruntime",)}.get(
        name.removeprefix("fixed_"), ("openvino", "onnxruntime")
    )
    counts = (None, *sorted({1, os.cpu_count() or 1}))
    return [
        Candidate(f"{name} in {runtime}, intra_op={count}", path, Settings(runtime, options, input_shapes=sizes))
        for runtime in runtimes
        for count in counts
        for options in [SessionOptions(intra_op=count)]
    ]


if __name__ == "__main__":
    main()
