"""Compare the `inference` recipe with TensorFlow's own `optimize_for_inference` on networks of many kinds.

    python tests/bench/measure_zoo.py BUILD [MODEL ...] [--nodes-only] [--openings 6] [--runs 100] [--intra-op 2]

Builds each frozen graph of `zoo_graphs.BUILDERS` once (in the folder BUILD), rewrites it with both tools, compares the
outputs in TensorFlow, counts the nodes (including those of library functions) before and after TensorFlow's own
optimizer, measures the latency of the three graphs in TensorFlow, and writes `zoo.json`. The latency of a graph varies
by a few percent between processes and depends on the order in which the graphs are opened. Each graph is therefore
opened in several processes with rotated order, and the speed-up is the median over the processes.
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
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.benchmark.results.speedup import Speedup  # noqa: E402
from quantkit.errors import GraphError  # noqa: E402
from quantkit.formats import graphdef  # noqa: E402
from quantkit.ir.graph import Graph  # noqa: E402
from quantkit.recipes import run  # noqa: E402
from quantkit.recipes.named import find_recipe  # noqa: E402
from quantkit.runtimes import tensorflow  # noqa: E402
from quantkit.runtimes.random_inputs import random_arrays  # noqa: E402


def build_graph(name: str, build: Path) -> Graph:
    """Return the frozen graph of a model, read from its file or newly built."""
    endpoints = build / f"{name}.json"
    file = build / f"{name}.pb"
    if not endpoints.exists():
        graph = BUILDERS[name]()
        formats.save(graph, file)
        endpoints.write_text(json.dumps([list(map(str, graph.inputs)), list(map(str, graph.outputs))]))
    inputs, outputs = json.loads(endpoints.read_text())
    return formats.load(file, inputs, outputs)


def apply_optimize_for_inference(graph: Graph) -> Graph:
    """Return the result of TensorFlow's `optimize_for_inference`."""
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.python.tools.optimize_for_inference_lib import optimize_for_inference

    message = GraphDef.FromString(graphdef.encode(graph))
    dtypes = {node.name: node.attr["dtype"].type for node in message.node if node.op == "Placeholder"}
    inputs, outputs = ([edge.node for edge in edges] for edges in (graph.inputs, graph.outputs))
    result = optimize_for_inference(message, inputs, outputs, [dtypes[name] for name in inputs])
    return graphdef.decode(result.SerializeToString()).with_endpoints(graph.inputs, graph.outputs)


def count_nodes(graph: Graph) -> int:
    """Return the number of nodes of the graph and of its functions."""
    bodies = (function.graph.nodes.values() for function in graph.library.values())
    return len(graph) + sum(node.op != "_Arg" for body in bodies for node in body)


def count_executed_nodes(graph: Graph) -> int:
    """Return the number of nodes without constants that TensorFlow executes after its own optimizer."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tensorflow.RUNTIME.open(graph) as session:
        feeds = {f"{info.name}:0": random_arrays([info])[info.name] for info in session.inputs}
    metadata = v1.RunMetadata()
    with tf.Graph().as_default() as target, v1.Session(graph=target) as session:
        tf.import_graph_def(v1.GraphDef.FromString(graphdef.encode(graph)), name="")
        fetches = [f"{edge.node}:{edge.port}" for edge in graph.outputs]
        session.run(fetches, feeds, options=v1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return sum(node.op != "Const" for part in metadata.partition_graphs for node in part.node)


def difference(before: Graph, after: Graph) -> float:
    """Return the largest change of an output for seeded inputs, relative to the largest absolute output."""
    with tensorflow.RUNTIME.open(before) as session:
        feeds = random_arrays(session.inputs)
        expected = session.run(feeds)
    with tensorflow.RUNTIME.open(after) as session:
        actual = session.run(feeds)
    changes = [
        np.abs(actual[name].astype(float) - array).max() / np.abs(array).max() for name, array in expected.items()
    ]
    return float(max(changes))


def measure_model(name: str, build: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one model."""
    graph = build_graph(name, build)
    start = perf_counter()
    rewritten, _ = run(find_recipe("inference"), graph)
    row: dict[str, Any] = {"model": name, "recipe_seconds": round(perf_counter() - start, 3)}
    reference = apply_optimize_for_inference(graph)
    graphs = {"given": graph, "quantkit": rewritten, "optimize_for_inference": reference}
    row["nodes"] = {tool: count_nodes(result) for tool, result in graphs.items()}
    row["difference"] = {"quantkit": difference(graph, rewritten)}
    try:
        row["difference"]["optimize_for_inference"] = difference(graph, reference)
    except GraphError as error:  # it drops the functions that nodes call
        row["refused"] = {"optimize_for_inference": error.message}
        del graphs["optimize_for_inference"]
    row["nodes_run"] = {tool: count_executed_nodes(result) for tool, result in graphs.items()}
    if not options.nodes_only:
        files = []
        for tool, result in graphs.items():
            files.append(build / f"{name}.{tool}.pb")
            formats.save(result, files[-1])
        offsets = (number % len(files) for number in range(options.openings))
        orders = (files[offset:] + files[:offset] for offset in offsets)
        benchmarks = [benchmark_files(graph, order, options) for order in orders]
        row["benchmarks"] = [result.to_json() for result in benchmarks]
        row["times_as_fast"] = {tool: speed_up(benchmarks, tool) for tool in graphs if tool != "quantkit"}
    return row


def speed_up(benchmarks: list[Benchmark], tool: str) -> dict[str, float]:
    """Return median, minimum and maximum of the speed-up over another tool's graph."""
    ratios = []
    for result in benchmarks:
        by_tool = {measurement.context.model.split(".")[-2]: measurement for measurement in result.measurements}
        ratios.append(Speedup.of(by_tool[tool], by_tool["quantkit"]).ratio)
    return {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def benchmark_files(graph: Graph, files: list[Path], options: argparse.Namespace) -> Benchmark:
    """Benchmark files with the inputs and outputs of a graph, each in a new process."""
    return benchmark(
        files,
        "tensorflow",
        inputs=list(map(str, graph.inputs)),
        outputs=list(map(str, graph.outputs)),
        runs=options.runs,
        intra_op=options.intra_op,
    )


def main() -> None:
    """Measure all models and write `zoo.json`."""
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
        rows.append(measure_model(name, options.build, options))
        print(json.dumps({key: value for key, value in rows[-1].items() if key != "benchmarks"}), flush=True)
    if not options.nodes_only:
        (HERE / "zoo.json").write_text(format_document(rows))


def format_document(rows: list[dict[str, Any]]) -> str:
    """Return the document with one network per line; samples are rounded to 0.1 microseconds."""
    for row in rows:
        for result in row["benchmarks"]:
            for candidate in result["rows"]:
                measurement = candidate["measurement"]
                measurement["seconds"] = [round(seconds, 7) for seconds in measurement["seconds"]]
    machine = json.dumps(this_machine().to_json())
    lines = ",\n".join(map(json.dumps, rows))
    return f'{{"schema": "quantkit.zoo/2", "machine": {machine}, "rows": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    main()
