"""Coverage of the speed-up intervals: comparisons of equal models, and of a model that is 3 % slower.

    python tests/bench/measure_aa.py [--comparisons 50] [--slower 10] [--time-budget 7] [--load] [--out FILE]

Compares the bundled network with itself, each time in new processes, and then with a copy whose extra op costs 3 %.
A 95 % interval must contain 1.0 in 46 to 50 of 50 comparisons of equal models, and the slower model must be `slower` or
`undecided`, never `same` or `faster`: ``is_honest`` states it. ``--load`` keeps the last CPU busy meanwhile. Writes
`equal_models.json` after each comparison. Takes 8 minutes at most: 7 s for each comparison.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import quantkit as qk
from quantkit import formats
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.feeds import seeded_feeds
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure
from quantkit.convert.to_onnx import to_onnx_graph
from quantkit.formats.temporary import temporary_folder
from quantkit.ir.graph import Edge, Graph
from quantkit.rewriting import constant
from quantkit.runtimes import open_session
from quantkit.runtimes.session import Session

HERE = Path(__file__).parent
RUNTIME = "onnxruntime"
SLOWDOWN = 1.03
# Pairs of calls that calibrate the extra op.
PAIRS = 3000


def with_extra_op(graph: Graph, size: int) -> Graph:
    """Return the graph with a second output of ``size`` times as many elements as its input."""
    source = graph.inputs[0]
    factors = constant("extra/factors", np.linspace(0.5, 1.5, size, dtype=np.float32).reshape(1, 1, 1, size))
    extra = graph[graph.outputs[0].node].with_(name="extra", op="Mul", inputs=(source, Edge(factors.name)), attrs={})
    extra = extra.with_(attrs={"T": graph[source.node].attrs["dtype"]})
    nodes = [*graph.nodes.values(), factors, extra]
    return Graph.of(nodes).with_endpoints(graph.inputs, (*graph.outputs, Edge("extra")))


def latency_ratio(first: Session, other: Session) -> float:
    """Return the latency of the other session over that of the first, in alternating calls of one process."""
    feeds = seeded_feeds(first.inputs)
    ratios = []
    for _ in range(PAIRS):
        seconds = []
        for session in (first, other):
            start = perf_counter()
            session.run(feeds)
            seconds.append(perf_counter() - start)
        ratios.append(seconds[1] / seconds[0])
    return median(ratios)


def slower_graph(graph: Graph) -> tuple[Graph, float]:
    """Return the graph with the smallest extra op that costs 3 %, and its latency ratio."""
    with open_session(graph, RUNTIME) as first:
        for size in count(1):
            slower = with_extra_op(graph, size)
            with open_session(slower, RUNTIME) as other:
                ratio = latency_ratio(first, other)
            if ratio >= SLOWDOWN:
                return slower, ratio
    raise AssertionError


@contextmanager
def busy_cpu() -> Iterator[None]:
    """Keep the last CPU busy."""
    code = f"import os; os.sched_setaffinity(0, [{max(os.sched_getaffinity(0))}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield
        finally:
            process.kill()


def compare(files: list[Path], seed: int, budget: float) -> dict[str, object]:
    """Return the speed-up of the second file over the first, in three processes or more, with its outcome."""
    candidates = [Candidate(file.name, file, Settings(RUNTIME)) for file in files]
    first, other = measure(candidates, SamplingOptions(seed=seed, further_budget=budget)).measurements
    return Speedup.of(first, other).to_json() | {"load": first.context.machine.load}


def is_honest(document: dict[str, Any]) -> bool:
    """Return True if 92 % of the intervals of equal models contain 1, and no slower model is `same` or `faster`."""
    equal = document["equal"]
    covered = sum(row["low"] <= 1 <= row["high"] for row in equal)
    return covered >= 0.92 * len(equal) and not {"same", "faster"} & {row["outcome"] for row in document["slower"]}


def main() -> None:
    """Run all comparisons and write `equal_models.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=50, help="comparisons of equal models (default: 50)")
    parser.add_argument("--slower", type=int, default=10, help="comparisons with the slower model (default: 10)")
    parser.add_argument(
        "--time-budget",
        type=float,
        default=7.0,
        help="limit of more than three processes in seconds (default: 7)",
    )
    parser.add_argument("--load", action="store_true", help="keep the last CPU busy")
    parser.add_argument("--out", type=Path, default=HERE / "equal_models.json")
    options = parser.parse_args()
    graph = qk.transform("digits", "inference").graph
    document: dict[str, Any] = {"schema": "quantkit.equal_models/1", "machine": this_machine().to_json()}
    document["busy_cpu"] = options.load
    with temporary_folder() as folder, ExitStack() as stack:
        slower, ratio = slower_graph(graph)
        files = [folder / "model.onnx", folder / "slower.onnx"]
        for file, model in zip(files, (graph, slower), strict=True):
            formats.save(to_onnx_graph(model), file)
        document |= {"extra_op": ratio, "equal": [], "slower": [], "is_honest": None}
        if options.load:
            stack.enter_context(busy_cpu())
        for kind, pair, number in (("equal", [files[0]] * 2, options.comparisons), ("slower", files, options.slower)):
            rows = document[kind]
            for seed in range(number):
                rows.append(compare(pair, seed, options.time_budget))
                covered = sum(row["low"] <= 1 <= row["high"] for row in rows)
                outcomes = sorted(row["outcome"] for row in rows)
                document[f"{kind}_summary"] = {"contain_1": covered, "of": len(rows), "outcomes": outcomes}
                document["is_honest"] = is_honest(document)
                options.out.write_text(json.dumps(document, indent=1))
                print(kind, covered, "of", len(rows), json.dumps(rows[-1]), flush=True)
        print(f"is_honest: {document['is_honest']}")


if __name__ == "__main__":
    main()
