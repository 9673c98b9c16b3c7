"""Networks of many kinds after the `inference` recipe, beside TensorFlow's own `optimize_for_inference`.

    python tests/bench/measure_zoo.py BUILD [MODEL ...] [--nodes-only] [--openings 6] [--runs 100] [--intra-op 2]

Makes each frozen graph of `zoo_graphs.BUILDERS` once (in the folder BUILD), rewrites it with both tools, holds the
answers of both against those of the graph in TensorFlow, counts nodes (those of library functions included) and what
TensorFlow's own optimizer leaves to be run of them, measures the three side by side in TensorFlow, and writes
`zoo.json`. A graph takes a few percent more or less in each process that opens it, however often it then runs, and
the one that is opened last takes least: so each is opened several times, at every place in turn, and a speed is that
of all openings.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from zoo_graphs import BUILDERS  # noqa: E402

from quantkit import formats  # noqa: E402
from quantkit.benchmark import Benchmark, benchmark  # noqa: E402
from quantkit.benchmark.machine import this_machine  # noqa: E402
from quantkit.benchmark.speedup import Speedup  # noqa: E402
from quantkit.errors import GraphError  # noqa: E402
from quantkit.formats import graphdef  # noqa: E402
from quantkit.ir.graph import Graph  # noqa: E402
from quantkit.recipes import run  # noqa: E402
from quantkit.recipes.named import find_recipe  # noqa: E402
from quantkit.recipes.verify import seeded_feeds  # noqa: E402
from quantkit.runtimes import tensorflow  # noqa: E402


def made(name: str, build: Path) -> Graph:
    """The frozen graph of a model, from its file or newly built."""
    ends = build / f"{name}.json"
    file = build / f"{name}.pb"
    if not ends.exists():
        graph = BUILDERS[name]()
        formats.save(graph, file)
        ends.write_text(json.dumps([list(map(str, graph.inputs)), list(map(str, graph.outputs))]))
    inputs, outputs = json.loads(ends.read_text())
    return formats.load(file, inputs, outputs)


def theirs(graph: Graph) -> Graph:
    """What TensorFlow's `optimize_for_inference` leaves."""
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.python.tools.optimize_for_inference_lib import optimize_for_inference

    given = GraphDef.FromString(graphdef.encode(graph))
    kinds = {node.name: node.attr["dtype"].type for node in given.node if node.op == "Placeholder"}
    inputs, outputs = ([edge.node for edge in edges] for edges in (graph.inputs, graph.outputs))
    found = optimize_for_inference(given, inputs, outputs, [kinds[name] for name in inputs])
    return graphdef.decode(found.SerializeToString()).with_endpoints(graph.inputs, graph.outputs)


def num_nodes(graph: Graph) -> int:
    """Nodes of the graph and of its functions."""
    bodies = (function.graph.nodes.values() for function in graph.library.values())
    return len(graph) + sum(node.op != "_Arg" for body in bodies for node in body)


def num_run(graph: Graph) -> int:
    """Nodes but constants that TensorFlow runs, after all that it does to a graph when it loads it."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tensorflow.RUNTIME.open(graph) as session:
        feeds = {f"{info.name}:0": seeded_feeds([info])[info.name] for info in session.inputs}
    ran = v1.RunMetadata()
    with tf.Graph().as_default() as target, v1.Session(graph=target) as session:
        tf.import_graph_def(v1.GraphDef.FromString(graphdef.encode(graph)), name="")
        wanted = [f"{edge.node}:{edge.port}" for edge in graph.outputs]
        session.run(wanted, feeds, options=v1.RunOptions(output_partition_graphs=True), run_metadata=ran)
    return sum(node.op != "Const" for part in ran.partition_graphs for node in part.node)


def difference(before: Graph, after: Graph) -> float:
    """The largest change of an output for seeded inputs, as a part of its largest number."""
    with tensorflow.RUNTIME.open(before) as session:
        feeds = seeded_feeds(session.inputs)
        want = session.run(feeds)
    with tensorflow.RUNTIME.open(after) as session:
        found = session.run(feeds)
    changes = [np.abs(found[name].astype(float) - values).max() / np.abs(values).max() for name, values in want.items()]
    return float(max(changes))


def measured(name: str, build: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one model."""
    graph = made(name, build)
    start = perf_counter()
    ours, _ = run(find_recipe("inference"), graph)
    row: dict[str, Any] = {"model": name, "recipe_seconds": round(perf_counter() - start, 3)}
    graphs = {"given": graph, "quantkit": ours, "optimize_for_inference": theirs(graph)}
    row["nodes"] = {tool: num_nodes(one) for tool, one in graphs.items()}
    row["difference"] = {"quantkit": difference(graph, ours)}
    try:
        row["difference"]["optimize_for_inference"] = difference(graph, graphs["optimize_for_inference"])
    except GraphError as error:  # it drops the functions that nodes call
        row["refused"] = {"optimize_for_inference": error.message}
        del graphs["optimize_for_inference"]
    row["nodes_run"] = {tool: num_run(one) for tool, one in graphs.items()}
    if not options.nodes_only:
        files = []
        for tool, one in graphs.items():
            files.append(build / f"{name}.{tool}.pb")
            formats.save(one, files[-1])
        turns = (number % len(files) for number in range(options.openings))
        orders = (files[turn:] + files[:turn] for turn in turns)
        found = [side_by_side(graph, order, options) for order in orders]
        row["benchmarks"] = [one.to_json() for one in found]
        row["times_as_fast"] = {tool: speed_up(found, tool) for tool in graphs if tool != "quantkit"}
    return row


def speed_up(found: list[Benchmark], tool: str) -> dict[str, float]:
    """How many times as fast as another tool's graph ours is: the openings' median, least and most."""
    ratios = []
    for one in found:
        of_tool = {found.context.model.split(".")[-2]: found for found in one.measurements}
        ratios.append(Speedup.of(of_tool[tool], of_tool["quantkit"]).ratio)
    return {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def side_by_side(graph: Graph, files: list[Path], options: argparse.Namespace) -> Benchmark:
    """The benchmark of files with the ends of a graph, each in a new process."""
    return benchmark(
        files,
        "tensorflow",
        inputs=list(map(str, graph.inputs)),
        outputs=list(map(str, graph.outputs)),
        runs=options.runs,
        intra_op=options.intra_op,
    )


def main() -> None:
    """Measure, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(BUILDERS))
    parser.add_argument("--nodes-only", action="store_true", help="measure no times, and write no file")
    parser.add_argument("--openings", type=int, default=6)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--intra-op", type=int, default=2)
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.models or BUILDERS:
        rows.append(measured(name, options.build, options))
        print(json.dumps({key: value for key, value in rows[-1].items() if key != "benchmarks"}), flush=True)
    if not options.nodes_only:
        (HERE / "zoo.json").write_text(written(rows))


def written(rows: list[dict[str, Any]]) -> str:
    """The document, a network a line; samples to a tenth of a microsecond."""
    for row in rows:
        for found in row["benchmarks"]:
            for one in found["rows"]:
                one["measurement"]["seconds"] = [round(seconds, 7) for seconds in one["measurement"]["seconds"]]
    machine = json.dumps(this_machine().to_json())
    lines = ",\n".join(map(json.dumps, rows))
    return f'{{"schema": "quantkit.zoo/2", "machine": {machine}, "rows": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    main()
