"""Count the evaluations of a search with ``max_drop``, next to a search that measures each layer by itself.

    python tests/bench/measure_max_drop.py BUILD [NETWORK ...] [--before TREE] [--searches KIND ...] [--save FILE]

The networks are those of `support/portable_networks.py`. Half of the samples calibrate, the other half limits the
drop. Other alternatives are excluded, so that the search alone decides. An evaluation converts, writes and opens a
model and runs it on the samples of the limit. ``each layer`` is the search without an error model, which measures each
layer by itself; ``ranked`` is that of this work tree; ``before`` that of TREE, the root of another work tree. Runs of
the switched float graph are the price of the error model: each runs one sample. No figure depends on the load of the
machine: the latency of a file follows from its int8 fraction and its boundaries. Writes `max_drop.json`; searches that
are not repeated stay in it.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from portable_networks import save_networks  # noqa: E402

from quantkit.benchmark.host.machine import this_machine  # noqa: E402

ROOT = HERE.parents[1]
# Largest drop of each network, of the error of its outputs: about half of the drop in int8.
NETWORKS = {
    "stories260k": 0.02,
    "vittrack": 0.02,
    "gtcrn_stream": 0.1,
    "dtln_2": 0.04,
    "silero_vad_op15": 0.05,
    "yunet_n_320": 0.07,
    "fastestdet": 0.1,
}
EACH_LAYER, RANKED, BEFORE = "each layer", "ranked", "before"
SECONDS = 3600.0

# Program for a process in one work tree: the folder of the networks, a network, the search, the limit and the output.
PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, "tests/support")
from portable_networks import load_saved
import quantkit as qk
from quantkit.quantization import Scheme
from quantkit.quantization.precision.error import ErrorProbe
from quantkit.quantization.workflow import accuracy_search

build, name, kind, max_drop, output, seconds = sys.argv[1:]
counts = {"evaluations": 0, "switched_runs": 0}
measure, outputs = accuracy_search.measure_loss, ErrorProbe._outputs

def count_evaluation(*arguments):
    counts["evaluations"] += 1
    return measure(*arguments)

def count_runs(probe, switches):
    counts["switched_runs"] += len(probe._feeds)
    return outputs(probe, switches)

accuracy_search.measure_loss, ErrorProbe._outputs = count_evaluation, count_runs
if kind == "each layer":
    accuracy_search.rank_layers = lambda *arguments: None
network = load_saved(name, Path(build))
scheme = Scheme.for_target("onnx", keep_float=network.keep_float)
result = qk.quantize(network.path, network.samples, scheme=scheme, runs=0, limit=len(network.samples) // 2,
                     max_drop=float(max_drop), output=output, time_budget=float(seconds))
fallback = result.report.fallback
print(json.dumps({
    **counts, "layers": len(fallback.layers), "float_layers": len(fallback.keep_float),
    "drop": fallback.loss.drop,
    "int8_fraction": result.report.to_json()["int8_fraction"], "boundaries": result.report.to_json()["boundaries"],
    "drop_int8": fallback.baseline.drop, "is_reached": fallback.is_reached, "is_complete": fallback.is_complete,
}))
"""


def search(tree: Path, arguments: list[str]) -> dict[str, Any]:
    """Return counts and result of a search in a work tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", PROGRAM, *arguments, str(SECONDS)]
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(result.stderr)
    row: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Count the evaluations of all networks, and write `max_drop.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the networks")
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--before", type=Path, help="root of another work tree")
    parser.add_argument("--searches", nargs="*", default=[EACH_LAYER, RANKED, BEFORE], help="searches (default: all)")
    parser.add_argument("--save", type=Path, default=HERE / "max_drop.json")
    options = parser.parse_args()
    save_networks(options.build)
    rows = json.loads(options.save.read_text())["networks"] if options.save.exists() else {}
    trees = {EACH_LAYER: ROOT, RANKED: ROOT, **({BEFORE: options.before.absolute()} if options.before else {})}
    for name in options.networks:
        max_drop = NETWORKS[name]
        row: dict[str, Any] = {**rows.get(name, {}), "max_drop": max_drop}
        for kind in (kind for kind in trees if kind in options.searches):
            with TemporaryDirectory() as folder:
                output = str(Path(folder) / "model.onnx")
                row[kind] = search(trees[kind], [str(options.build.absolute()), name, kind, str(max_drop), output])
            print(name, kind, row[kind], flush=True)
        if {EACH_LAYER, RANKED} <= row.keys():
            row["fewer"] = round(row[EACH_LAYER]["evaluations"] / row[RANKED]["evaluations"], 1)
        rows[name] = row
        document = {"schema": "quantkit.bench.max_drop/1", "machine": this_machine().to_json(), "networks": rows}
        options.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
