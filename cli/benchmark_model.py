"""``quantkit benchmark_model``: latency in TensorFlow per node, with the flags of TensorFlow's tool."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.errors import UsageError
from quantkit.formats.files import check_target, write_whole
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.macs import count_macs
from quantkit.ops.shape_inference import infer_shapes
from quantkit.runtimes.session import SessionOptions
from quantkit.runtimes.tensorflow_trace import TracedSession, benchmark_entry

from ._arguments import add_boolean, add_offline, parse_natural, parse_positive
from ._loading import named_model
from ._render import emit, log

if TYPE_CHECKING:
    from quantkit.compat.benchmark_tables import NodeTable

EXAMPLES = (
    "quantkit benchmark_model --graph=graph.pb --input_layer=Mul --input_layer_shape=1,299,299,3 "
    "--input_layer_type=float --output_layer=softmax --show_flops",
)
TYPES = {name: DType(name) for name in ("float", "int32", "uint8", "quint8", "bool", "string")}
# Time limit of one phase, as in later releases of the tool.
SECONDS = 10.0


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of TensorFlow's tool, with its defaults."""
    parser.add_argument("--graph", default="", help="GraphDef file, SavedModel folder, or name of a known model")
    parser.add_argument("--input-layer", default="input:0", help="comma-separated input names (default: input:0)")
    parser.add_argument(
        "--input-layer-shape", default="1,224,224,3", help="input shapes, separated by : (default: 1,224,224,3)"
    )
    parser.add_argument(
        "--input-layer-type", default="float", help=f"comma-separated input types: {', '.join(TYPES)} (default: float)"
    )
    parser.add_argument(
        "--input-layer-values",
        default="",
        help="comma-separated input values, separated by : between inputs (default: zeros)",
    )
    parser.add_argument("--output-layer", default="output:0", help="comma-separated output names (default: output:0)")
    parser.add_argument(
        "--num-runs", type=parse_positive, default=50, help="maximum number of timed runs of each phase (default: 50)"
    )
    parser.add_argument(
        "--max-time", type=float, default=SECONDS, help="time limit of each phase in seconds (default: 10)"
    )
    parser.add_argument("--warmup-runs", type=parse_natural, default=2, help="warm-up iterations (default: 2)")
    parser.add_argument("--run-delay", type=float, default=-1.0, help="pause between runs in seconds (default: none)")
    parser.add_argument(
        "--num-threads", type=int, default=-1, help="number of threads within one op (default: TensorFlow's choice)"
    )
    parser.add_argument("--benchmark-name", default="", help="name of the result in the file of --output-prefix")
    parser.add_argument("--output-prefix", default="", help="prefix of the file for the result")
    add_boolean(parser, "--show-sizes", "list the output shapes of nodes (default: false)")
    add_boolean(parser, "--show-run-order", "list nodes in the order of execution (default: true)", default=True)
    parser.add_argument(
        "--run-order-limit", type=parse_natural, default=0, help="maximum number of nodes in this list (default: all)"
    )
    add_boolean(parser, "--show-time", "list the nodes with the longest time (default: true)", default=True)
    parser.add_argument(
        "--time-limit",
        type=parse_natural,
        default=10,
        help="maximum number of nodes in this list; 0 for all (default: 10)",
    )
    add_boolean(parser, "--show-memory", "list the nodes with the largest memory (default: true)", default=True)
    parser.add_argument(
        "--memory-limit",
        type=parse_natural,
        default=10,
        help="maximum number of nodes in this list; 0 for all (default: 10)",
    )
    add_boolean(parser, "--show-type", "list the time of each op type (default: true)", default=True)
    add_boolean(parser, "--show-summary", "print the variation of the runs (default: true)", default=True)
    add_boolean(parser, "--show-flops", "estimate floating-point operations (default: false)")
    add_offline(parser)


def run(args: Namespace) -> int:
    """Warm up, measure without and with a trace, and print the tables."""
    from quantkit.compat.benchmark_tables import NodeTable

    feeds = _feeds(args)
    graph = _graph(args, feeds)
    report = Path(args.output_prefix + args.benchmark_name.replace("/", "__")).expanduser()
    if args.output_prefix:
        check_target(report)
    _echo(args)
    table = NodeTable()
    with TracedSession(graph, SessionOptions(intra_op=args.num_threads if args.num_threads > 0 else None)) as session:
        phases = [_measure(lambda: session.run(feeds), args.warmup_runs, args.max_time)]
        phases += [
            _measure(work, args.num_runs, args.max_time, args.run_delay)
            for work in (lambda: session.run(feeds), lambda: table.add(session.trace(feeds)))
        ]
    if args.output_prefix:
        entry = benchmark_entry(args.benchmark_name, len(phases[1]), sum(phases[1]))
        write_whole(report, lambda file: file.write(entry))
    flops = _flops(graph, feeds) if args.show_flops else None
    text = "\n".join(_lines(args, table, phases, flops))
    document = {
        "graph": args.graph,
        "seconds": dict(zip(("warmup", "no_stats", "with_stats"), phases, strict=True)),
        "flops": flops,
        "nodes": [
            {"name": node.name, "op": node.op, "milliseconds": node.mean, "kilobytes": node.kilobytes[-1]}
            for node in table.nodes.values()
        ],
    }
    emit(args, "quantkit.benchmark_model/1", document, lambda page: page.print(text, markup=False, soft_wrap=True))
    return 0


def _feeds(args: Namespace) -> dict[str, Array]:
    """Return zeros, or the values of the flags, for each input.

    Raises:
        UsageError: the lists have different lengths, or a shape or type is wrong.
    """
    names = _split(args.input_layer, ",")
    shapes, types = args.input_layer_shape.split(":"), _split(args.input_layer_type, ",")
    values = args.input_layer_values.split(":") if args.input_layer_values else [""] * len(names)
    if not len(names) == len(shapes) == len(types) == len(values):
        raise UsageError(
            "There must be the same number of items in --input_layer, --input_layer_shape, and --input_layer_type, "
            "for example --input_layer=input1,input2 --input_layer_type=float,float "
            "--input_layer_shape=1,224,224,4:1,20",
            hint=f"there are {len(names)} names, {len(shapes)} shapes, {len(types)} types and {len(values)} values",
        )
    return {str(Edge.parse(name)): _array(*texts) for name, *texts in zip(names, shapes, types, values, strict=True)}


def _array(shape: str, type_name: str, values: str) -> Array:
    """Return the array of one input.

    Args:
        shape: sizes, separated by commas.
        type_name: key of `TYPES`.
        values: comma-separated values; empty for zeros, or empty strings.

    Raises:
        UsageError: the shape, the type or a value is wrong, or the number of values does not match the shape.
    """
    if type_name not in TYPES:
        raise UsageError(f"--input_layer_type={type_name} is not a type", hint=f"use one of {', '.join(TYPES)}")
    try:
        sizes = [int(size) for size in _split(shape, ",")]
        numbers: Sequence[Any] = _split(values, ",")
        if type_name != "string":
            numbers = [float(number) for number in numbers]
    except ValueError as error:
        raise UsageError(
            f"--input_layer_shape={shape} --input_layer_values={values}: {error}",
            hint="give numbers, separated by commas: 1,224,224,3",
        ) from None
    if any(size < 0 for size in sizes):
        raise UsageError(
            "Any unknown sizes in the shapes (-1's) must be replaced with the sizes of the benchmark.",
            hint=f"--input_layer_shape={shape.replace('-1', '1')}",
        )
    kind = TYPES[type_name].numpy
    if not numbers:
        return np.full(sizes, b"" if type_name == "string" else 0, kind)
    array = np.array([str(number).encode() for number in numbers] if type_name == "string" else numbers, kind)
    if array.size != np.prod(sizes, dtype=int):
        raise UsageError(
            f"--input_layer_values gives {array.size} values for a layer of shape {shape}",
            hint=f"give {np.prod(sizes, dtype=int)}, or omit the flag for zeros",
        )
    return array.reshape(sizes)


def _graph(args: Namespace, feeds: dict[str, Array]) -> Graph:
    if not args.graph:
        raise UsageError("no graph is given", hint="give --graph=FILE.pb")
    model = named_model(args, args.graph, inputs=list(feeds), outputs=_split(args.output_layer, ","))
    return model.graph


def _measure(work: Callable[[], None], runs: int, max_time: float, delay: float = 0.0) -> list[float]:
    """Return the seconds of each run, until the number of runs or the time limit is reached."""
    seconds: list[float] = []
    while len(seconds) < runs and (not seconds or sum(seconds) < max_time):
        if seconds and delay > 0:
            sleep(delay)
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return seconds


def _flops(graph: Graph, feeds: dict[str, Array]) -> int:
    """Return twice the MACs; nodes of unknown shape count as zero, as in TensorFlow's tool."""
    feeds_of_node = {edge.node: feeds[str(edge)] for edge in graph.inputs if not edge.port}
    started = graph.with_nodes(
        Node(name, "Placeholder", attrs={"shape": Shape(feeds_of_node[name].shape)}) if name in feeds_of_node else node
        for name, node in graph.nodes.items()
    )
    shapes = infer_shapes(started)
    return 2 * sum(count_macs(started[name], shapes) or 0 for name in started.reachable())


def _echo(args: Namespace) -> None:
    for name in ("graph", "input_layer", "input_layer_shape", "input_layer_type", "output_layer"):
        log(args, f"{name.capitalize().replace('_', ' ')}: [{getattr(args, name)}]")
    log(args, f"Num runs: [{args.num_runs}]")
    log(args, f"Num threads: [{args.num_threads}]")
    log(args, f"Num warmup runs: [{args.warmup_runs}]")


def _lines(args: Namespace, table: "NodeTable", phases: Sequence[list[float]], flops: int | None) -> list[str]:
    means = [f"{sum(seconds) / len(seconds) * 1e6:.0f}" if seconds else "0" for seconds in phases]
    lines = ["Average inference timings in us: Warmup: {}, no stats: {}, with stats: {}".format(*means)]
    shown = (
        (args.show_sizes, table.sizes),
        (args.show_run_order, lambda: table.run_order(args.run_order_limit)),
        (args.show_time, lambda: table.by_time(args.time_limit)),
        (args.show_memory, lambda: table.by_memory(args.memory_limit)),
        (args.show_type, table.by_type),
        (args.show_summary, table.summary),
    )
    lines += [text() for is_shown, text in shown if is_shown]
    if flops is not None:
        per_second = flops * len(phases[1]) / max(sum(phases[1]), 1e-9)
        lines += [f"FLOPs estimate: {_human(flops)}", f"FLOPs/second: {_human(per_second)}"]
    return lines


def _human(number: float) -> str:
    """Format a number like TensorFlow's tools.

    >>> _human(11_426_473_936), _human(999)
    ('11.43B', '999')
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2f}{letter}"
    return f"{number:.0f}"


def _split(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator)] if text.strip() else []
