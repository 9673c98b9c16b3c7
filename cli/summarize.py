"""``quantkit summarize``: inputs, outputs, op counts, size and the next step."""

from argparse import ArgumentParser, Namespace

from quantkit.errors import GraphError, UsageError
from quantkit.model import Model

from ._arguments import add_model_flags
from ._loading import named_model
from ._render import emit

EXAMPLES = (
    "quantkit summarize digits",
    "quantkit summarize graph.pb --json",
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
    add_model_flags(parser)


def run(args: Namespace) -> int:
    """Load the model and print its summary."""
    name = args.model or args.in_graph
    if not name:
        raise UsageError("no model is given", hint="quantkit summarize FILE.pb, or the name of a model card")
    model = named_model(args, name, inputs=args.inputs, outputs=args.outputs, random_weights=args.random_weights)
    if args.classic or args.print_structure == "true":
        return _print_classic(args, model)
    from quantkit.summary import summarize

    emit(args, summarize(model))
    return 0


def _print_classic(args: Namespace, model: Model) -> int:
    """Print the output of summarize_graph.

    Raises:
        GraphError: an input of a node does not exist.
    """
    from quantkit.compat.summarize_graph import classic_summary

    text, is_valid = classic_summary(model.graph, model.name, print_structure=args.print_structure == "true")
    document = {"schema": "quantkit.summarize/2", "model": model.name, "classic": text}
    emit(args, document, text.removesuffix("\n"))
    if not is_valid:
        raise GraphError(
            "Invalid graph with inputs referring to nonexistent nodes",
            hint="restore the nodes that are named above, or name outputs that do not need them",
        )
    return 0
