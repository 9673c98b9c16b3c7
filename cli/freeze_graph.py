"""``quantkit freeze_graph``: freeze variables into constants, with the flags of TensorFlow's tool."""

from argparse import ArgumentParser, Namespace

from ._arguments import add_boolean, add_offline
from ._render import emit, show_progress

EXAMPLES = (
    "quantkit freeze_graph --input_graph=graph.pbtxt --input_checkpoint=model.ckpt-1000 --output_graph=frozen.pb "
    "--output_node_names=softmax",
    "quantkit freeze_graph --input_saved_model_dir=exported --output_graph=frozen.pb --output_node_names=softmax",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of TensorFlow's tool, with its defaults."""
    parser.add_argument("--input-graph", default="", help="GraphDef file to read, binary or text")
    parser.add_argument("--input-saver", default="", help="SaverDef file to read (default: none)")
    parser.add_argument("--input-checkpoint", default="", help="prefix of the checkpoint files")
    parser.add_argument(
        "--checkpoint-version",
        type=int,
        choices=(1, 2),
        default=2,
        help="version of the checkpoint format (default: 2)",
    )
    parser.add_argument("--output-graph", default="", help="GraphDef file to write")
    add_boolean(parser, "--input-binary", "input is binary (default: auto-detected)")
    parser.add_argument("--output-node-names", default="", help="comma-separated output names")
    parser.add_argument("--restore-op-name", default="save/restore_all", help="ignored; kept for compatibility")
    parser.add_argument("--filename-tensor-name", default="save/Const:0", help="ignored; kept for compatibility")
    add_boolean(parser, "--clear-devices", "remove the device strings of nodes (default: true)", default=True)
    parser.add_argument(
        "--initializer-nodes", default="", help="comma-separated names of nodes that run before the variables are read"
    )
    parser.add_argument(
        "--variable-names-whitelist", default="", help="comma-separated names of the variables to freeze (default: all)"
    )
    parser.add_argument(
        "--variable-names-denylist", default="", help="comma-separated names of the variables to keep (default: none)"
    )
    parser.add_argument("--input-meta-graph", default="", help="MetaGraphDef file to read instead of a GraphDef")
    parser.add_argument("--input-saved-model-dir", default="", help="SavedModel folder to read instead of a GraphDef")
    parser.add_argument(
        "--saved-model-tags", default="serve", help="comma-separated tags of a SavedModel graph (default: serve)"
    )
    add_offline(parser)


def run(args: Namespace) -> int:
    """Freeze the graph and write it."""
    from quantkit.compat.freeze_graph import FLAGS, write_frozen_graph

    flags = {name: getattr(args, name) for name in FLAGS}
    with show_progress(args) as on_progress:
        result = write_frozen_graph(flags, args.output_graph, offline=args.offline, on_progress=on_progress)
    emit(args, result)
    return 0
