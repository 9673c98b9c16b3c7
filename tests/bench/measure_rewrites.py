"""Each rewrite alone, in float: what it does to answers and to latency, in every engine.

    python tests/bench/measure_rewrites.py [--runs 40] [--engines tensorflow onnxruntime openvino litert]

The networks are architectures of cards with random weights, folded. Where a network holds nothing to rewrite, it is
first written as exporters write it (`tests/support/spread_graphs.py`): padded by nodes of its own, clamped by maximum
and minimum, with decomposed batch norms, with the preprocessing of pixels in the graph. Before and after take turns,
each in its own process. Writes `rewrites.json`; takes about five minutes on two quiet cores. Ends with 1 where a
rewrite changes an answer by more than 1e-5.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantkit import formats
from quantkit.benchmark.candidate import Candidate, Settings
from quantkit.benchmark.machine import this_machine
from quantkit.benchmark.measurement import Measurement
from quantkit.benchmark.rounds import SamplingOptions, measure
from quantkit.benchmark.speedup import Speedup
from quantkit.ir.graph import Graph
from quantkit.model import load
from quantkit.recipes import parse, run
from quantkit.runtimes import open_session

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from spread_graphs import with_batch_norms, with_clamps, with_pads, with_preprocessing  # noqa: E402

CARDS = ("inception_v3", "mobilenet_v2")
ENGINES = ("tensorflow", "onnxruntime", "openvino", "litert")
# What each rewrite is given: the folded network, or a form in which there is something to rewrite.
REWRITES: Mapping[str, Callable[[Graph], Graph]] = {
    "pool_after_projection": lambda graph: graph,
    "merge_sibling_convolutions(gain=0)": lambda graph: graph,
    "absorb_preprocessing": with_preprocessing,
    "fold_pads": with_pads,
    "fold_clamps": with_clamps,
    "fold_batch_norms": with_batch_norms,
}
TOLERANCE = 1e-5
INPUTS = 2


@dataclass(frozen=True)
class Trial:
    """A rewrite of one network.

    Attributes:
        name: of the rewrite, with its options.
        before, after: graphs.
    """

    name: str
    before: Graph
    after: Graph


def trials(card: str) -> list[Trial]:
    """The rewrites that find something in a network."""
    model = load(card, random_weights=True)
    assert model.graph is not None
    assert model.card is not None
    folded, _ = run(parse(model.card.recipe), model.graph)
    found = []
    for name, spread in REWRITES.items():
        before = spread(folded)
        after, trace = run(parse(name), before)
        if trace.records[0].changes:
            found.append(Trial(name, before, after))
    return found


def answers(graph: Graph, engine: str) -> np.ndarray[Any, Any]:
    """What a graph says to seeded inputs: numbers as its network takes them, or the pixels they are made of."""
    with open_session(graph, engine) as session:
        (source,), (result,) = session.inputs, session.outputs
        shape = [size or 1 for size in source.shape.dims or ()]
        pixels = np.random.default_rng(0).integers(0, 256, (INPUTS, *shape)).astype(np.float32)
        takes_pixels = source.name == "pixels"
        fed = pixels if takes_pixels else (pixels - 128) / 128
        rows = [session.run({source.name: one.astype(source.dtype.numpy)})[result.name] for one in fed]
    return np.stack(rows).astype(np.float64)


def rows(card: str, found: list[Trial], engine: str, runs: int, folder: Path) -> list[dict[str, Any]]:
    """All rewrites of a network in one engine."""
    graphs = {f"{one.name} {side}": getattr(one, side) for one in found for side in ("before", "after")}
    candidates = []
    for number, (label, graph) in enumerate(graphs.items()):
        path = folder / f"{card}_{number}.pb"
        if not path.exists():
            formats.save(graph, path)
        ends = (tuple(map(str, graph.inputs)), tuple(map(str, graph.outputs)))
        candidates.append(Candidate(label, path, Settings(engine, inputs=ends[0], outputs=ends[1])))
    made = measure(candidates, SamplingOptions(runs))
    measured = {one.label: one.measurement for one in made.rows}
    for failure in made.failures:
        print(f"{card} in {engine}: {failure.reason}", file=sys.stderr)
    pairs = [(one, measured[f"{one.name} before"], measured[f"{one.name} after"]) for one in found]
    return [row(card, one, engine, first, second) for one, first, second in pairs if first and second]


def row(card: str, one: Trial, engine: str, before: Measurement, after: Measurement) -> dict[str, Any]:
    """What one rewrite did in one engine."""
    said = answers(one.before, engine), answers(one.after, engine)
    speed = Speedup.of(before, after)
    return {
        "model": card,
        "rewrite": one.name,
        "engine": engine,
        "version": before.context.version,
        "difference": float(np.abs(said[0] - said[1]).max()),
        "largest_answer": float(np.abs(said[0]).max()),
        "before_ms": before.summary.median * 1e3,
        "after_ms": after.summary.median * 1e3,
        "speed_up": speed.to_json(),
        "before_seconds": [round(seconds, 6) for seconds in before.seconds],
        "after_seconds": [round(seconds, 6) for seconds in after.seconds],
    }


def main() -> int:
    """Measure, write, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for card in CARDS:
        with tempfile.TemporaryDirectory() as folder:
            of_card = trials(card)
            for engine in options.engines:
                print(f"{card} in {engine}", file=sys.stderr)
                found += rows(card, of_card, engine, options.runs, Path(folder))
    machine = json.dumps(this_machine().to_json())
    lines = ",\n  ".join(map(json.dumps, found))
    text = f'{{"schema": "quantkit.rewrites/1",\n "machine": {machine},\n "rows": [\n  {lines}\n]}}\n'
    (HERE / "rewrites.json").write_text(text)
    wrong = [one for one in found if not one["difference"] <= TOLERANCE]
    for one in wrong:
        print(f"{one['rewrite']} of {one['model']} in {one['engine']}: off by {one['difference']:.2g}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
