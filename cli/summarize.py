"""``quantkit summarize``: what a graph is, before anything is done to it."""

from argparse import ArgumentParser, Namespace

from quantkit.errors import UsageError
from quantkit.loading import MEANINGLESS
from quantkit.summary import summarize

from ._arguments import add_ends, add_offline, add_random_weights, add_saved_model
from ._loading import named_model
from ._render import emit

EXAMPLES = ("quantkit summarize digits", "quantkit summarize graph.pb --json")


def add_arguments(parser: ArgumentParser) -> None:
    """What to look at."""
    parser.add_argument("model", nargs="?", help="model file, SavedModel folder, or name of a card")
    parser.add_argument("--in-graph", help="the same, as the classic tool calls it")
    add_ends(parser)
    add_saved_model(parser)
    add_random_weights(parser)
    add_offline(parser)


def run(args: Namespace) -> int:
    """Load and summarize."""
    word = args.model or args.in_graph
    if not word:
        raise UsageError("no model is named", hint="quantkit summarize FILE.pb, or the name of a card")
    model = named_model(args, word, inputs=args.inputs, outputs=args.outputs, random_weights=args.random_weights)
    summary = summarize(model.rewritable, name=word)
    remark = f"\n{'note':<14} {MEANINGLESS}" if model.has_random_weights else ""
    document = {"model": word, "random_weights": model.has_random_weights, **summary.to_json()}
    emit(args, "quantkit.summarize/1", document, lambda console: console.print(f"{summary}{remark}", markup=False))
    return 0
