"""Measure the effect of each rewrite alone on outputs and latency, in float, in every runtime.

    python tests/bench/measure_rewrites.py [--runs 40] [--runtimes tensorflow onnxruntime openvino litert]

The networks are the folded architectures of model cards with random weights. If a network has no match for a rewrite,
`tests/support/spread_graphs.py` first writes it as exporters do: with Pad nodes, with Minimum and Maximum instead of
Relu6, with decomposed batch norms, or with preprocessing in the graph. The graphs before and after the rewrite are
measured in alternation, each in its own process. Writes `rewrites.json` in about five minutes on two quiet cores. The
exit code is 1 if a rewrite changes an output by more than 1e-5.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantkit import formats
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure
from quantkit.ir.graph import Graph
from quantkit.model import load
from quantkit.recipes import parse, run
from quantkit.runtimes import open_session

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from spread_graphs import REWRITES  # noqa: E402

CARDS = ("inception_v3", "mobilenet_v2")
RUNTIMES = ("tensorflow", "onnxruntime", "openvino", "litert")
TOLERANCE = 1e-5
INPUTS = 2


@dataclass(frozen=True)
class Trial:
    """One rewrite of one network.

    Attributes:
        name: name of the rewrite with its options.
        before, after: graph before and after the rewrite.
    """

    name: str
    before: Graph
    after: Graph


def create_trials(card: str) -> list[Trial]:
    """Return the rewrites that have a match in a network."""
    model = load(card, random_weights=True)
    assert model.graph is not None
    assert model.card is not None
    folded, _ = run(parse(model.card.recipe), model.graph)
    trials = []
    for name, prepare in REWRITES.items():
        before = prepare(folded)
        after, trace = run(parse(name), before)
        if trace.records[0].changes:
            trials.append(Trial(name, before, after))
    return trials


def compute_outputs(graph: Graph, runtime: str) -> np.ndarray[Any, Any]:
    """Return the outputs for seeded images, normalized unless the graph has the preprocessing."""
    with open_session(graph, runtime) as session:
        (source,), (result,) = session.inputs, session.outputs
        shape = [size or 1 for size in source.shape.dims or ()]
        images = np.random.default_rng(0).integers(0, 256, (INPUTS, *shape)).astype(np.float32)
        has_preprocessing = source.name == "pixels"
        inputs = images if has_preprocessing else (images - 128) / 128
        rows = [session.run({source.name: image.astype(source.dtype.numpy)})[result.name] for image in inputs]
    return np.stack(rows).astype(np.float64)


def measure_trials(card: str, trials: list[Trial], runtime: str, runs: int, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all rewrites of a network in one runtime."""
    graphs = {f"{trial.name} {side}": getattr(trial, side) for trial in trials for side in ("before", "after")}
    candidates = []
    for number, (label, graph) in enumerate(graphs.items()):
        path = folder / f"{card}_{number}.pb"
        if not path.exists():
            formats.save(graph, path)
        inputs, outputs = tuple(map(str, graph.inputs)), tuple(map(str, graph.outputs))
        candidates.append(Candidate(label, path, Settings(runtime, inputs=inputs, outputs=outputs)))
    benchmark = measure(candidates, SamplingOptions(runs))
    measurements = {row.label: row.measurement for row in benchmark.rows}
    for failure in benchmark.failures:
        print(f"{card} in {runtime}: {failure.reason}", file=sys.stderr)
    pairs = [(trial, measurements[f"{trial.name} before"], measurements[f"{trial.name} after"]) for trial in trials]
    return [create_row(card, trial, runtime, first, second) for trial, first, second in pairs if first and second]


def create_row(card: str, trial: Trial, runtime: str, before: Measurement, after: Measurement) -> dict[str, Any]:
    """Return the effect of one rewrite in one runtime."""
    outputs = compute_outputs(trial.before, runtime), compute_outputs(trial.after, runtime)
    speed = Speedup.of(before, after)
    return {
        "model": card,
        "rewrite": trial.name,
        "engine": runtime,
        "version": before.context.version,
        "difference": float(np.abs(outputs[0] - outputs[1]).max()),
        "largest_answer": float(np.abs(outputs[0]).max()),
        "before_ms": before.summary.median * 1e3,
        "after_ms": after.summary.median * 1e3,
        "speed_up": speed.to_json(),
        "before_seconds": [round(seconds, 6) for seconds in before.seconds],
        "after_seconds": [round(seconds, 6) for seconds in after.seconds],
    }


def main() -> int:
    """Measure all rewrites, write `rewrites.json`, and check the outputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--runtimes", nargs="+", default=RUNTIMES)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for card in CARDS:
        with tempfile.TemporaryDirectory() as folder:
            trials = create_trials(card)
            for runtime in options.runtimes:
                print(f"{card} in {runtime}", file=sys.stderr)
                rows += measure_trials(card, trials, runtime, options.runs, Path(folder))
    machine = json.dumps(this_machine().to_json())
    lines = ",\n  ".join(map(json.dumps, rows))
    text = f'{{"schema": "quantkit.rewrites/1",\n "machine": {machine},\n "rows": [\n  {lines}\n]}}\n'
    (HERE / "rewrites.json").write_text(text)
    failures = [row for row in rows if not row["difference"] <= TOLERANCE]
    for row in failures:
        title = f"{row['rewrite']} of {row['model']} in {row['engine']}"
        print(f"{title}: outputs differ by {row['difference']:.2g}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
