"""``quantkit benchmark_model``: latency in TensorFlow per node, with the flags of TensorFlow's tool."""

from argparse import ArgumentParser, Namespace

from ._arguments import add_boolean, add_offline, options_of, parse_natural, parse_positive
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit benchmark_model --graph=graph.pb --input_layer=Mul --input_layer_shape=1,299,299,3 "
    "--input_layer_type=float --output_layer=softmax --show_flops",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of TensorFlow's tool, with its defaults."""
    parser.add_argument(
        "--graph", default="", help="GraphDef or ONNX file, SavedModel folder, or name of a known model"
    )
    parser.add_argument("--input-layer", default="input:0", help="comma-separated input names (default: input:0)")
    parser.add_argument(
        "--input-layer-shape", default="1,224,224,3", help="input shapes, separated by : (default: 1,224,224,3)"
    )
    parser.add_argument(
        "--input-layer-type",
        default="float",
        help="comma-separated input types: float, int32, uint8, quint8, bool or string (default: float)",
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
        "--max-time", type=float, default=10.0, help="time limit of each phase in seconds (default: 10)"
    )
    parser.add_argument("--warmup-runs", type=parse_natural, default=2, help="warm-up iterations (default: 2)")
    parser.add_argument("--run-delay", type=float, default=-1.0, help="pause between runs in seconds (default: none)")
    parser.add_argument(
        "--num-threads", type=int, default=-1, help="number of threads within one op (default: TensorFlow's choice)"
    )
    parser.add_argument("--benchmark-name", default="", help="name of the result in the file of --output-prefix")
    parser.add_argument("--output-prefix", default="", help="prefix of the file for the result")
    _add_tables(parser)
    add_offline(parser)


def _add_tables(parser: ArgumentParser) -> None:
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


def run(args: Namespace) -> int:
    """Run the benchmark and print its tables."""
    from quantkit.compat.benchmark_model import BenchmarkModelFlags, benchmark_model

    flags = BenchmarkModelFlags(**options_of(BenchmarkModelFlags, args))
    with show_progress(args) as on_progress:
        result = benchmark_model(
            flags, offline=args.offline, on_message=lambda line: log(args, line), on_progress=on_progress
        )
    emit(args, result)
    return 0
