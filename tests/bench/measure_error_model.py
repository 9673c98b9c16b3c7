"""Compare predicted with measured SQNR for random choices of float layers, on 20 networks.

    python tests/bench/measure_error_model.py BUILD [NETWORK ...] [--choices 50] [--samples 64] [--save FILE]

The networks are those of `support/portable_networks.py`. For each, the error model of `quantkit.quantization.precision`
predicts the noise of random choices of float layers, of few to almost all layers. The same choices are measured in the
switched float graph: the model is not fitted to them. The table has the deviation of the SQNR in
dB, the deviation that the model itself states, and the fraction of the choices within its 90 % interval. No figure
depends on the load of the machine.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from onnx_networks import Feeds  # noqa: E402
from portable_networks import NAMES, load_saved, save_networks, unseen_samples  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit.ir.graph import Graph  # noqa: E402
from quantkit.progress import ignore_progress  # noqa: E402
from quantkit.quantization import Scheme  # noqa: E402
from quantkit.quantization.precision.error import ErrorProbe, decibels, tap_outputs  # noqa: E402
from quantkit.quantization.precision.switches import switch_quantization  # noqa: E402
from quantkit.quantization.states import find_states  # noqa: E402
from quantkit.quantization.workflow.error_signals import count_runs, draw_choices, find_search  # noqa: E402

# Largest deviation that meets the aim, and fraction of the choices that the interval shall contain.
MAX_RMS, COVERAGE = 1.0, 0.9


def run_float(graph: Graph, samples: list[Feeds]) -> tuple[list[Feeds], list[Feeds]]:
    """Return the feeds of the samples by the names of the inputs of a graph, and its outputs."""
    names = [edge.node for edge in graph.inputs]
    feeds = [each if set(each) == set(names) else dict(zip(names, each.values(), strict=True)) for each in samples]
    with qk.open_session(graph, "onnxruntime", threads=1) as session:
        return feeds, [{name: np.array(array) for name, array in session.run(each).items()} for each in feeds]


def measure(name: str, build: Path, count: int, limit: int) -> dict[str, Any]:
    """Return the deviation of the predictions for a network, with at most a number of samples for the errors.

    Networks with fewer calibration samples than `count_runs` use unseen samples, too.
    """
    network = load_saved(name, build)
    # A scheme of the caller excludes alternatives: all layers are int8.
    scheme = Scheme.for_target("onnx", keep_float=network.keep_float)
    result = qk.quantize(network.path, network.samples, scheme=scheme, runs=0, limit=len(network.samples))
    conversion = result.conversion
    if not conversion.plan.patterns:
        return {"layers": 0}
    feeds, outputs = run_float(conversion.graph, network.samples)
    states = find_states(feeds, outputs)
    runs = min(count_runs(outputs, states), limit)
    if runs > len(feeds) and not states:
        unseen = run_float(conversion.graph, unseen_samples(name, build)[: runs - len(feeds)])
        feeds, outputs = feeds + unseen[0], outputs + unseen[1]
    runs = min(runs, len(feeds))
    switched = switch_quantization(conversion.graph, conversion.plan, conversion.ranges)
    with qk.open_session(tap_outputs(switched.graph), "onnxruntime", threads=1) as session:
        probe = ErrorProbe(switched, session, feeds[:runs], outputs[:runs], states)
        search = find_search(conversion, probe, feeds[0], ignore_progress)
        choices = {frozenset(choice): search.switches(choice) for choice in draw_choices(search.layers, count, seed=1)}
        pairs = [(search.errors.noise(row), probe.noise(row.astype(bool))) for row in choices.values() if row.any()]
    pairs = [(predicted, noise) for predicted, noise in pairs if noise > 0]
    measured = [noise for _, noise in pairs]
    deviations = np.array([decibels(predicted) - decibels(noise) for predicted, noise in pairs])
    errors = search.errors
    return {
        "layers": len(search.layers),
        "samples": probe.num_runs,
        "choices": len(deviations),
        "sqnr": [round(decibels(noise), 1) for noise in (max(measured), min(measured))],
        "coherent": errors.is_coherent,
        "rms_db": round(float(np.sqrt(np.mean(deviations**2))), 2),
        "stated_rms_db": round(errors.rms_db, 2),
        "interval_db": round(errors.interval_db, 2),
        "coverage": round(float(np.mean(np.abs(deviations) <= errors.interval_db)), 2),
        "holds": errors.holds,
    }


def main() -> None:
    """Measure all networks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("build", type=Path, help="folder of the networks")
    parser.add_argument("networks", nargs="*", default=list(NAMES), metavar="NETWORK")
    parser.add_argument("--choices", type=int, default=50, help="random choices of each network (default: 50)")
    parser.add_argument("--samples", type=int, default=64, help="largest number of samples of the errors (default: 64)")
    parser.add_argument("--save", type=Path, help="JSON file with the table; rows of other networks are kept")
    arguments = parser.parse_args()
    save_networks(arguments.build)
    rows: dict[str, Any] = {}
    if arguments.save and arguments.save.exists():
        rows = json.loads(arguments.save.read_text())["networks"]
    for name in arguments.networks:
        rows[name] = measure(name, arguments.build, arguments.choices, arguments.samples)
        print(name, rows[name], flush=True)
        if arguments.save:
            document = {"schema": "quantkit.error_model_table/1", "networks": {key: rows[key] for key in sorted(rows)}}
            arguments.save.write_text(json.dumps(document, indent=1) + "\n")
    measured = [row for row in rows.values() if row["layers"]]
    near = sum(row["rms_db"] <= MAX_RMS for row in measured)
    covered = sum(row["coverage"] >= COVERAGE for row in measured)
    right = sum(row["holds"] == (row["rms_db"] <= MAX_RMS) for row in measured)
    print(f"{near} of {len(measured)} within {MAX_RMS} dB rms, {right} state it; the interval holds for {covered}")


if __name__ == "__main__":
    main()
