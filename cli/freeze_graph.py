"""``quantkit freeze_graph``: freeze variables into constants, with the flags of TensorFlow's tool."""

from argparse import ArgumentParser, Namespace

from quantkit.compat.freeze_graph import FreezeGraphFlags, write_frozen_graph

from ._arguments import add_offline, add_options, options_of
from ._render import emit, show_progress

EXAMPLES = (
    "quantkit freeze_graph --input_graph=graph.pbtxt --input_checkpoint=model.ckpt-1000 --output_graph=frozen.pb "
    "--output_node_names=softmax",
    "quantkit freeze_graph --input_saved_model_dir=exported --output_graph=frozen.pb --output_node_names=softmax",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of TensorFlow's tool, with its defaults."""
    add_options(parser, FreezeGraphFlags, until="input_binary")
    parser.add_argument("--output-graph", default="", help="GraphDef file to write")
    add_options(parser, FreezeGraphFlags, since="input_binary")
    add_offline(parser)


def run(args: Namespace) -> int:
    """Freeze the graph and write it."""
    flags = options_of(FreezeGraphFlags, args)
    with show_progress(args) as on_progress:
        result = write_frozen_graph(flags, args.output_graph, offline=args.offline, on_progress=on_progress)
    emit(args, result)
    return 0
