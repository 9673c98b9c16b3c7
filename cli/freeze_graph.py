"""``quantkit freeze_graph``: freeze variables into constants, with the flags of TensorFlow's tool."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from quantkit import formats
from quantkit.errors import UsageError
from quantkit.formats.sizes import format_size
from quantkit.ir.graph import Graph
from quantkit.recipes import rewrite

from ._arguments import add_boolean, add_offline, parse_names
from ._loading import named_model
from ._render import emit

EXAMPLES = (
    "quantkit freeze_graph --input_graph=graph.pbtxt --input_checkpoint=model.ckpt-1000 --output_graph=frozen.pb "
    "--output_node_names=softmax",
    "quantkit freeze_graph --input_saved_model_dir=exported --output_graph=frozen.pb --output_node_names=softmax",
)
# Arguments of the function of TensorFlow's tool, except the output file.
TOOL_ARGUMENTS = (
    *("input_graph", "input_saver", "input_binary", "input_checkpoint", "checkpoint_version", "output_node_names"),
    *("restore_op_name", "filename_tensor_name", "clear_devices", "initializer_nodes", "variable_names_whitelist"),
    *("variable_names_denylist", "input_meta_graph", "input_saved_model_dir", "saved_model_tags"),
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
    if not args.output_node_names:
        raise UsageError("You need to supply the name of a node to --output_node_names.", hint="separate several by ,")
    if not args.output_graph:
        raise UsageError("no output file is given", hint="give --output_graph=FILE.pb")
    if not (args.input_graph or args.input_meta_graph or args.input_saved_model_dir):
        raise UsageError("no graph is given", hint="give --input_graph, --input_meta_graph or --input_saved_model_dir")
    target = Path(args.output_graph).expanduser()
    formats.check_target(target)
    graph = _freeze_with_tensorflow(args) if _needs_tensorflow(args) else _freeze(args)
    formats.files.save_graphdef(graph, target)
    num_bytes = target.stat().st_size
    document = {"output": str(target), "nodes": len(graph), "num_bytes": num_bytes}
    text = f"{target}: {len(graph)} nodes, {format_size(num_bytes)}"
    emit(args, "quantkit.freeze_graph/1", document, lambda console: console.print(text, markup=False))
    return 0


def _needs_tensorflow(args: Namespace) -> bool:
    """Return True if a flag needs TensorFlow's own tool."""
    has_own_meta = args.input_meta_graph not in ("", f"{args.input_checkpoint}.meta")
    lists = args.initializer_nodes or args.variable_names_whitelist or args.variable_names_denylist
    return bool(lists or args.input_saver or has_own_meta)


def _freeze(args: Namespace) -> Graph:
    """Return the graph as `transform` loads it."""
    name = args.input_saved_model_dir or args.input_graph or args.input_meta_graph
    args.tags = parse_names(args.saved_model_tags) if args.input_saved_model_dir else None
    args.checkpoint = args.input_checkpoint if name == args.input_graph else None
    graph = named_model(args, name, outputs=parse_names(args.output_node_names)).graph
    return rewrite(graph, "remove_device") if args.clear_devices else graph


def _freeze_with_tensorflow(args: Namespace) -> Graph:
    from quantkit.compat.freeze_graph import freeze_graph
    from quantkit.formats import graphdef

    return graphdef.decode(freeze_graph({name: getattr(args, name) for name in TOOL_ARGUMENTS}))
