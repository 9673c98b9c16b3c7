"""``quantkit summarize``: what a graph is, before anything is done to it."""

from argparse import ArgumentParser, Namespace

from quantkit.errors import GraphError, UsageError
from quantkit.ir.graph import Graph
from quantkit.model import RANDOM_WEIGHTS_NOTE
from quantkit.summary import summarize

from ._arguments import add_endpoints, add_offline, add_random_weights, add_saved_model
from ._loading import named_model
from ._render import emit

EXAMPLES = (
    "quantkit summarize digits",
    "quantkit summarize graph.pb --json",
    "quantkit summarize --in_graph=graph.pb --classic --print_structure",
)


def add_arguments(parser: ArgumentParser) -> None:
    """What to look at."""
    parser.add_argument("model", nargs="?", help="model file, SavedModel folder, or name of a card")
    parser.add_argument("--in-graph", help="the same, as the classic tool calls it")
    parser.add_argument("--classic", action="store_true", help="print what the original summarize_graph printed")
    parser.add_argument(
        "--print-structure",
        nargs="?",
        const="true",
        default="false",
        choices=("true", "false"),
        help="with --classic: list every node, in execution order (false)",
    )
    add_endpoints(parser)
    add_saved_model(parser)
    add_random_weights(parser)
    add_offline(parser)


def run(args: Namespace) -> int:
    """Load and summarize."""
    word = args.model or args.in_graph
    if not word:
        raise UsageError("no model is named", hint="quantkit summarize FILE.pb, or the name of a card")
    model = named_model(args, word, inputs=args.inputs, outputs=args.outputs, random_weights=args.random_weights)
    graph = model.graph
    if args.classic or args.print_structure == "true":
        return _classic(args, word, graph)
    from quantkit.quantization.estimate import estimate_quantization

    summary = summarize(graph, name=word)
    estimate = estimate_quantization(graph)
    num_bytes = model.path.stat().st_size if model.path is not None and model.path.is_file() else None
    document = {
        "model": word,
        "random_weights": model.has_random_weights,
        "file_bytes": num_bytes,
        **summary.to_json(),
        "int8": estimate.to_json(),
    }
    rows = [("file", f"{num_bytes / 1e6:,.2f} MB")] if num_bytes else []
    rows += [*summary.rows, ("int8", str(estimate)), ("next", summary.next_step)]
    rows += [("note", RANDOM_WEIGHTS_NOTE)] if model.has_random_weights else []
    text = "\n".join(f"{label:<14} {said}" for label, said in rows)
    emit(args, "quantkit.summarize/1", document, lambda console: console.print(text, markup=False))
    return 0


def _classic(args: Namespace, word: str, graph: Graph) -> int:
    from quantkit.compat.summarize_graph import classic_summary

    text, is_valid = classic_summary(graph, word, print_structure=args.print_structure == "true")
    emit(args, "quantkit.summarize/1", {"model": word, "classic": text}, lambda c: c.print(text, end="", markup=False))
    if not is_valid:
        raise GraphError(
            "Invalid graph with inputs referring to nonexistent nodes",
            hint="restore the nodes that the lines above name, or name outputs that do not need them",
        )
    return 0
