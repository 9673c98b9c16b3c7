"""Convert the TensorFlow networks of the tests to ONNX and back, and compare the outputs.

    python tests/bench/measure_round_trips.py [NETWORK ...] [--save FILE]

The networks are those of `zoo_graphs`, the bundled one, and the small ones of the tests. The rows of
`round_trips.json` have the nodes of the three graphs and the largest change of an output for seeded inputs in
TensorFlow, relative to the largest absolute output: at most 1e-5.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from zoo_graphs import BUILDERS, lstm, small_network, ssd  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.convert.onnx_to_tensorflow import as_tensorflow  # noqa: E402
from quantkit.convert.to_onnx import to_onnx_graph  # noqa: E402
from quantkit.ir.graph import Graph  # noqa: E402
from quantkit.runtimes import tensorflow  # noqa: E402
from quantkit.runtimes.random_inputs import random_arrays  # noqa: E402

LARGEST_ERROR = 1e-5
NETWORKS: Mapping[str, Callable[[], Graph]] = {
    "digits": lambda: qk.load("digits").graph,
    "small_network": small_network,
    "small_lstm": lstm,
    "small_lstm_lowered": partial(lstm, lower=True),
    "small_lstm_unrolled": partial(lstm, unroll=True),
    "small_ssd": ssd,
    **BUILDERS,
}


def measure(name: str) -> dict[str, Any]:
    """Return the row of one network."""
    graph = NETWORKS[name]()
    start = perf_counter()
    converted = to_onnx_graph(graph)
    returned = as_tensorflow(converted)
    seconds = round(perf_counter() - start, 2)
    nodes = {"tensorflow": len(graph), "onnx": len(converted), "round_trip": len(returned)}
    error = largest_error(graph, returned)
    return {"network": name, "nodes": nodes, "seconds": seconds, "error": error, "is_equal": error <= LARGEST_ERROR}


def largest_error(before: Graph, after: Graph) -> float:
    """Return the largest change of an output, relative to its largest absolute value; outputs have the same order."""
    with tensorflow.RUNTIME.open(before) as session:
        feeds = random_arrays(session.inputs)
        expected = session.run(feeds)
    with tensorflow.RUNTIME.open(after) as session:
        renamed = {info.name: array for info, array in zip(session.inputs, feeds.values(), strict=True)}
        actual = session.run(renamed)
    errors = []
    for values, others in zip(expected.values(), actual.values(), strict=True):
        scale = float(np.abs(values).max(initial=0)) or 1.0
        errors.append(float(np.abs(others.astype(float) - values).max(initial=0)) / scale)
    return max(errors)


def main() -> None:
    """Measure all networks, print the table, and write `round_trips.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--save", type=Path, default=HERE / "round_trips.json", help="file to write")
    options = parser.parse_args()
    document: dict[str, Any] = {"schema": "quantkit.round_trips/1", "machine": this_machine().to_json(), "rows": []}
    if options.save.exists():
        document["rows"] = json.loads(options.save.read_text())["rows"]
    for name in options.networks or NETWORKS:
        try:
            row = measure(name)
        except Exception as error:
            row = {"network": name, "refused": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(row), flush=True)
        document["rows"] = [other for other in document["rows"] if other["network"] != name] + [row]
        options.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
