"""``quantkit benchmark_model``: latency in TensorFlow per node, with the flags of TensorFlow's tool."""

from argparse import ArgumentParser, Namespace

from quantkit.compat.benchmark_model import BenchmarkModelFlags, benchmark_model

from ._arguments import add_offline, add_options, options_of
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit benchmark_model --graph=graph.pb --input_layer=Mul --input_layer_shape=1,299,299,3 "
    "--input_layer_type=float --output_layer=softmax --show_flops",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of TensorFlow's tool, with its defaults."""
    add_options(parser, BenchmarkModelFlags)
    add_offline(parser)


def run(args: Namespace) -> int:
    """Run the benchmark and print its tables."""
    flags = BenchmarkModelFlags(**options_of(BenchmarkModelFlags, args))
    with show_progress(args) as on_progress:
        result = benchmark_model(
            flags, offline=args.offline, on_message=lambda line: log(args, line), on_progress=on_progress
        )
    emit(args, result)
    return 0
