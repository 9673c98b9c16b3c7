"""``quantkit summarize``: inputs, outputs, op counts, size and the next step."""

from argparse import ArgumentParser, Namespace

from quantkit.errors import UsageError
from quantkit.model.options import ShapeOptions

from ._arguments import add_model_flags, add_options
from ._loading import named_model
from ._render import emit

EXAMPLES = (
    "quantkit summarize digits",
    "quantkit summarize graph.pb --json",
    "quantkit summarize digits --for tensorrt",
    "quantkit summarize --in_graph=graph.pb --classic --print_structure",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command and those of summarize_graph."""
    parser.add_argument("model", nargs="?", help="model file, SavedModel folder, or model card")
    parser.add_argument("--in-graph", help="same as MODEL; the spelling of summarize_graph")
    parser.add_argument("--classic", action="store_true", help="print the output of summarize_graph")
    parser.add_argument(
        "--print-structure",
        nargs="?",
        const="true",
        default="false",
        choices=("true", "false"),
        help="with --classic: list all nodes in topological order (default: false)",
    )
    parser.add_argument(
        "--for",
        dest="for_target",
        metavar="TARGET",
        help="examine a quantized file of any tool for the runtimes of a target, for example tensorrt; exit code 1 for "
        "refused nodes and wrong values",
    )
    parser.add_argument(
        "--check-build", action="store_true", help="with --for: build the file with TensorRT-RTX, which needs no GPU"
    )
    add_options(parser, ShapeOptions)
    add_model_flags(parser)


def run(args: Namespace) -> int:
    """Load the model and print its summary."""
    name = args.model or args.in_graph
    if not name:
        raise UsageError("no model is given", hint="quantkit summarize FILE.pb, or the name of a model card")
    model = named_model(args, name)
    if args.classic or args.print_structure == "true":
        from quantkit.compat.summarize_graph import classic_summary

        classic = classic_summary(model.graph, model.name, print_structure=args.print_structure == "true")
        emit(args, classic)
        classic.check()
    else:
        from quantkit.summary import summarize

        summary = summarize(model, target=args.for_target, check_build=args.check_build)
        emit(args, summary)
        summary.check()
    return 0
