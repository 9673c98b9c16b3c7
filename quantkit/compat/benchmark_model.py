"""TensorFlow's ``benchmark_model``: latency per node, with its flags, tables and report file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

import numpy as np

from quantkit.arguments import expand_user, require_natural, require_number, require_positive
from quantkit.compat.benchmark_tables import NodeTable
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import UsageError
from quantkit.formats import check_distinct, check_target, write_whole
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.model import as_model
from quantkit.ops.macs import count_macs
from quantkit.ops.shape_inference import infer_shapes
from quantkit.options import Declaration, option
from quantkit.progress import OnMessage, OnProgress, ignore_message, ignore_progress
from quantkit.runtimes.session import SessionOptions
from quantkit.runtimes.tensorflow_trace import TracedSession, benchmark_entry

TYPES = {name: DType(name) for name in ("float", "int32", "uint8", "quint8", "bool", "string")}
# Time limit of one phase in seconds, as in later releases of the tool.
MAX_TIME = 10.0
# Boolean flags in TensorFlow's spellings.
SPELLED = Declaration(metavar="true|false")
_TYPE_NAMES = f"{', '.join([*TYPES][:-1])} or {[*TYPES][-1]}"
_LIMIT = Declaration(require_natural, help="maximum number of nodes in this list; 0 for all (default: 10)")


@dataclass(frozen=True)
class BenchmarkModelFlags:
    """Flags of the tool, with its defaults."""

    graph: str = option("", help="GraphDef or ONNX file, SavedModel folder, or name of a known model")
    input_layer: str = option("input:0", help="comma-separated input names (default: input:0)")
    input_layer_shape: str = option("1,224,224,3", help="input shapes, separated by : (default: 1,224,224,3)")
    input_layer_type: str = option("float", help=f"comma-separated input types: {_TYPE_NAMES} (default: float)")
    input_layer_values: str = option(
        "", help="comma-separated input values, separated by : between inputs (default: zeros)"
    )
    output_layer: str = option("output:0", help="comma-separated output names (default: output:0)")
    num_runs: int = option(50, require_positive, help="maximum number of timed runs of each phase (default: 50)")
    max_time: float = option(MAX_TIME, require_number, help="time limit of each phase in seconds (default: 10)")
    warmup_runs: int = option(2, require_natural, help="warm-up iterations (default: 2)")
    run_delay: float = option(-1.0, require_number, help="pause between runs in seconds (default: none)")
    num_threads: int = option(-1, help="number of threads within one op (default: TensorFlow's choice)")
    benchmark_name: str = option("", help="name of the result in the file of --output-prefix")
    output_prefix: str = option("", help="prefix of the file for the result")
    show_sizes: bool = option(False, SPELLED, help="list the output shapes of nodes (default: false)")
    show_run_order: bool = option(True, SPELLED, help="list nodes in the order of execution (default: true)")
    run_order_limit: int = option(0, require_natural, help="maximum number of nodes in this list (default: all)")
    show_time: bool = option(True, SPELLED, help="list the nodes with the longest time (default: true)")
    time_limit: int = option(10, _LIMIT)
    show_memory: bool = option(True, SPELLED, help="list the nodes with the largest memory (default: true)")
    memory_limit: int = option(10, _LIMIT)
    show_type: bool = option(True, SPELLED, help="list the time of each op type (default: true)")
    show_summary: bool = option(True, SPELLED, help="print the variation of the runs (default: true)")
    show_flops: bool = option(False, SPELLED, help="estimate floating-point operations (default: false)")


@dataclass(frozen=True)
class BenchmarkModelResult:
    """Timings of a model in TensorFlow; as text, the output of the tool.

    Attributes:
        flags: flags of the call.
        warmup, without_stats, with_stats: seconds of each run of the three phases.
        table: trace of the third phase.
        flops: floating-point operations of one run; None without ``show_flops``.
    """

    flags: BenchmarkModelFlags
    warmup: Sequence[float]
    without_stats: Sequence[float]
    with_stats: Sequence[float]
    table: NodeTable
    flops: int | None = None

    def __str__(self) -> str:
        flags, table = self.flags, self.table
        phases = (self.warmup, self.without_stats, self.with_stats)
        means = [f"{sum(phase) / len(phase) * 1e6:.0f}" if phase else "0" for phase in phases]
        header = "Average inference timings in us: Warmup: {}, no stats: {}, with stats: {}"
        tables = (
            (flags.show_sizes, table.sizes),
            (flags.show_run_order, lambda: table.run_order(flags.run_order_limit)),
            (flags.show_time, lambda: table.by_time(flags.time_limit)),
            (flags.show_memory, lambda: table.by_memory(flags.memory_limit)),
            (flags.show_type, table.by_type),
            (flags.show_summary, table.summary),
        )
        lines = [header.format(*means), *(text() for is_shown, text in tables if is_shown)]
        if self.flops is not None:
            runs, seconds = len(self.without_stats), max(sum(self.without_stats), 1e-9)
            lines.append(f"FLOPs estimate: {_human(self.flops)}")
            lines.append(f"FLOPs/second: {_human(self.flops * runs / seconds)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "schema": "quantkit.benchmark_model/1",
            "graph": self.flags.graph,
            "seconds": {
                "warmup": self.warmup,
                "no_stats": self.without_stats,
                "with_stats": self.with_stats,
            },
            "flops": self.flops,
            "nodes": [
                {
                    "name": node.name,
                    "op": node.op,
                    "milliseconds": node.mean,
                    "kilobytes": node.kilobytes[-1],
                }
                for node in self.table.nodes.values()
            ],
        }


def benchmark_model(
    flags: BenchmarkModelFlags,
    *,
    offline: bool = False,
    on_message: OnMessage = ignore_message,
    on_progress: OnProgress = ignore_progress,
) -> BenchmarkModelResult:
    """Run a model in TensorFlow: warm-up, timed runs, and timed runs with a trace.

    Args:
        flags: flags of the tool.
        offline: never download a known model.
        on_message: receives the flags, one line each, before the first run.
        on_progress: receives the progress of a download.

    Raises:
        UsageError: a flag is missing or wrong.
        InputError: the graph cannot be read, or the report file cannot be written.
        UnavailableError: TensorFlow is not installed, or an ONNX node is not supported.
    """
    feeds = parse_feeds(flags)
    if not flags.graph:
        raise UsageError("no graph is given", hint="give --graph=FILE.pb")
    outputs = _split(flags.output_layer, ",")
    model = as_model(flags.graph, inputs=list(feeds), outputs=outputs, offline=offline, on_progress=on_progress)
    graph = as_tensorflow(model.graph)
    # TensorFlow rejects some characters of ONNX names.
    feeds = dict(zip(map(str, graph.inputs), feeds.values(), strict=True))
    report = expand_user(flags.output_prefix + flags.benchmark_name.replace("/", "__"))
    if flags.output_prefix:
        check_target(report)
        check_distinct({"the report": report}, {"the model": flags.graph})
    for line in _describe_flags(flags):
        on_message(line)
    table = NodeTable()
    options = SessionOptions(intra_op=flags.num_threads if flags.num_threads > 0 else None)
    with TracedSession(graph, options) as session:

        def measure(work: Callable[[], None], runs: int, delay: float = 0.0) -> list[float]:
            return _measure(work, runs, flags.max_time, delay)

        warmup = measure(lambda: session.run(feeds), flags.warmup_runs)
        without_stats = measure(lambda: session.run(feeds), flags.num_runs, flags.run_delay)
        with_stats = measure(lambda: table.add(session.trace(feeds)), flags.num_runs, flags.run_delay)
    if flags.output_prefix:
        entry = benchmark_entry(flags.benchmark_name, len(without_stats), sum(without_stats))
        write_whole(report, lambda file: file.write(entry))
    flops = estimate_flops(graph, feeds) if flags.show_flops else None
    return BenchmarkModelResult(flags, warmup, without_stats, with_stats, table, flops)


def parse_feeds(flags: BenchmarkModelFlags) -> dict[str, Array]:
    """Return zeros, or the values of the flags, for each input.

    Raises:
        UsageError: the lists have different lengths, or a shape, type or value is wrong.
    """
    names, types = _split(flags.input_layer, ","), _split(flags.input_layer_type, ",")
    shapes = flags.input_layer_shape.split(":")
    values = [""] * len(names)
    if flags.input_layer_values:
        values = flags.input_layer_values.split(":")
    if not len(names) == len(shapes) == len(types) == len(values):
        raise UsageError(
            "There must be the same number of items in --input_layer, --input_layer_shape, and "
            "--input_layer_type, for example --input_layer=input1,input2 "
            "--input_layer_type=float,float --input_layer_shape=1,224,224,4:1,20",
            hint=f"there are {len(names)} names, {len(shapes)} shapes, {len(types)} types and {len(values)} values",
        )
    return {
        str(Edge.parse(name)): _parse_array(*texts) for name, *texts in zip(names, shapes, types, values, strict=True)
    }


def _parse_array(shape: str, type_name: str, values: str) -> Array:
    """Return the array of one input.

    Args:
        shape: sizes, separated by commas.
        type_name: key of `TYPES`.
        values: comma-separated values; empty for zeros, or empty strings.

    Raises:
        UsageError: the shape, the type or a value is wrong, or the number of values does not match
            the shape.
    """
    if type_name not in TYPES:
        raise UsageError(f"--input_layer_type={type_name} is not a type", hint=f"use one of {', '.join(TYPES)}")
    is_string = type_name == "string"
    items = _split(values, ",")
    try:
        sizes = [int(size) for size in _split(shape, ",")]
        elements = [item.encode() if is_string else float(item) for item in items]
    except ValueError as error:
        raise UsageError(
            f"--input_layer_shape={shape} --input_layer_values={values}: {error}",
            hint="give numbers, separated by commas: 1,224,224,3",
        ) from None
    if any(size < 0 for size in sizes):
        raise UsageError(
            "Any unknown sizes in the shapes (-1's) must be replaced with the size you want to benchmark with.",
            hint=f"--input_layer_shape={shape.replace('-1', '1')}",
        )
    dtype = TYPES[type_name].numpy
    if not elements:
        return np.full(sizes, b"" if is_string else 0, dtype)
    array = np.array(elements, dtype)
    if array.size != np.prod(sizes, dtype=int):
        raise UsageError(
            f"--input_layer_values gives {array.size} values for a layer of shape {shape}",
            hint=f"give {np.prod(sizes, dtype=int)}, or omit the flag for zeros",
        )
    return array.reshape(sizes)


def estimate_flops(graph: Graph, feeds: Mapping[str, Array]) -> int:
    """Return twice the MACs; nodes of unknown shape count as zero, as in TensorFlow's tool.

    Args:
        graph: graph with inputs.
        feeds: arrays by input edge.
    """
    shapes = {edge.node: Shape(feeds[str(edge)].shape) for edge in graph.inputs if not edge.port}
    with_shapes = graph.with_nodes(
        Node(name, "Placeholder", attrs={"shape": shapes[name]}) if name in shapes else node
        for name, node in graph.nodes.items()
    )
    inferred = infer_shapes(with_shapes)
    macs = (count_macs(with_shapes[name], inferred) or 0 for name in with_shapes.reachable())
    return 2 * sum(macs)


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


def _describe_flags(flags: BenchmarkModelFlags) -> list[str]:
    names = ("graph", "input_layer", "input_layer_shape", "input_layer_type", "output_layer")
    return [
        *(f"{name.capitalize().replace('_', ' ')}: [{getattr(flags, name)}]" for name in names),
        f"Num runs: [{flags.num_runs}]",
        f"Num threads: [{flags.num_threads}]",
        f"Num warmup runs: [{flags.warmup_runs}]",
    ]


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
