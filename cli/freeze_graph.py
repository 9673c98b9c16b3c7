"""``quantkit freeze_graph``: TensorFlow's tool of that name, called as it was."""

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
# What the tool's function takes, but for the file to write.
PASSED_ON = (
    *("input_graph", "input_saver", "input_binary", "input_checkpoint", "checkpoint_version", "output_node_names"),
    *("restore_op_name", "filename_tensor_name", "clear_devices", "initializer_nodes", "variable_names_whitelist"),
    *("variable_names_denylist", "input_meta_graph", "input_saved_model_dir", "saved_model_tags"),
)


def add_arguments(parser: ArgumentParser) -> None:
    """The tool's flags, and their defaults."""
    parser.add_argument("--input-graph", default="", help="GraphDef file to read, binary or text")
    parser.add_argument("--input-saver", default="", help="SaverDef file to read (none)")
    parser.add_argument("--input-checkpoint", default="", help="what the checkpoint's files begin with")
    parser.add_argument("--checkpoint-version", type=int, choices=(1, 2), default=2, help="of its format (2)")
    parser.add_argument("--output-graph", default="", help="GraphDef file to write")
    add_boolean(parser, "--input-binary", "whether the files are binary; it is seen, too (false)")
    parser.add_argument("--output-node-names", default="", help="names of what is asked for, separated by commas")
    parser.add_argument("--restore-op-name", default="save/restore_all", help="of no use any more")
    parser.add_argument("--filename-tensor-name", default="save/Const:0", help="of no use any more")
    add_boolean(parser, "--clear-devices", "forget where nodes were placed (true)", default=True)
    parser.add_argument("--initializer-nodes", default="", help="nodes to run before, separated by commas")
    parser.add_argument("--variable-names-whitelist", default="", help="only variables to freeze (all)")
    parser.add_argument("--variable-names-denylist", default="", help="variables that stay variables (none)")
    parser.add_argument("--input-meta-graph", default="", help="MetaGraphDef file to read instead of a GraphDef")
    parser.add_argument("--input-saved-model-dir", default="", help="SavedModel folder to read instead")
    parser.add_argument("--saved-model-tags", default="serve", help="which of its graphs (serve)")
    add_offline(parser)


def run(args: Namespace) -> int:
    """Freeze and write."""
    if not args.output_node_names:
        raise UsageError("You need to supply the name of a node to --output_node_names.", hint="separate several by ,")
    if not args.output_graph:
        raise UsageError("no file to write is named", hint="give --output_graph=FILE.pb")
    if not (args.input_graph or args.input_meta_graph or args.input_saved_model_dir):
        raise UsageError("no graph is named", hint="give --input_graph, --input_meta_graph or --input_saved_model_dir")
    target = Path(args.output_graph).expanduser()
    formats.check_target(target)
    graph = _frozen_by_tensorflow(args) if _is_special(args) else _frozen(args)
    formats.files.save_graphdef(graph, target)
    num_bytes = target.stat().st_size
    document = {"output": str(target), "nodes": len(graph), "num_bytes": num_bytes}
    text = f"{target}: {len(graph)} nodes, {format_size(num_bytes)}"
    emit(args, "quantkit.freeze_graph/1", document, lambda console: console.print(text, markup=False))
    return 0


def _is_special(args: Namespace) -> bool:
    """Whether a flag asks for what TensorFlow's own tool does alone."""
    has_own_meta = args.input_meta_graph not in ("", f"{args.input_checkpoint}.meta")
    lists = args.initializer_nodes or args.variable_names_whitelist or args.variable_names_denylist
    return bool(lists or args.input_saver or has_own_meta)


def _frozen(args: Namespace) -> Graph:
    """As `transform` reads such a graph."""
    word = args.input_saved_model_dir or args.input_graph or args.input_meta_graph
    args.tags = parse_names(args.saved_model_tags) if args.input_saved_model_dir else None
    args.checkpoint = args.input_checkpoint if word == args.input_graph else None
    graph = named_model(args, word, outputs=parse_names(args.output_node_names)).graph
    return rewrite(graph, "remove_device") if args.clear_devices else graph


def _frozen_by_tensorflow(args: Namespace) -> Graph:
    from quantkit.compat.freeze_graph import freeze_graph
    from quantkit.formats import graphdef

    return graphdef.decode(freeze_graph({name: getattr(args, name) for name in PASSED_ON}))
