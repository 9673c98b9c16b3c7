"""``quantkit models``: model cards and the download cache."""

from argparse import ArgumentParser, Namespace

from quantkit.zoo.fetch import FetchedModel, obtain
from quantkit.zoo.report import SCHEMA, find_model, list_models

from ._arguments import options_of
from ._render import emit, log, show_download

EXAMPLES = (
    "quantkit models list",
    "quantkit models show inception_v3",
    "quantkit models fetch inception_v3",
    "quantkit models fetch inception_v3 --url file:///tmp/inception-2015-12-05.tgz --sha256 DIGEST",
    "quantkit models path digits",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the four subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|fetch|path")
    parsers = {
        "list": actions.add_parser("list", help="list the cards and the state of their models"),
        "show": actions.add_parser("show", help="show one card"),
        "fetch": actions.add_parser("fetch", help="download and verify a model, unless it is cached"),
        "path": actions.add_parser("path", help="print the path of a model's graph"),
    }
    for action, subparser in parsers.items():
        if action != "list":
            subparser.add_argument("name", help="name of the card; see quantkit models list")
        subparser.add_argument(
            "--offline",
            action="store_true",
            help="never download; fail if not cached" if action == "fetch" else "never download, as without this flag",
        )
    fetch = parsers["fetch"]
    fetch.add_argument("--url", help="URL of another archive or graph: http, https or file")
    fetch.add_argument("--sha256", help="SHA-256 digest of the file at --url")
    fetch.add_argument("--force", action="store_true", help="download again even if the model is cached")


def run(args: Namespace) -> int:
    """List the cards, or show, fetch or locate one model."""
    if args.action == "list":
        emit(args, list_models())
    elif args.action == "show":
        emit(args, find_model(args.name))
    elif args.action == "fetch":
        model = _obtain(args)
        for warning in model.warnings:
            log(args, f"warning: {warning}")
        emit(args, model)
    else:
        path = str(find_model(args.name).require_path())
        emit(args, {"schema": SCHEMA, "name": args.name, "path": path}, path)
    return 0


def _obtain(args: Namespace) -> FetchedModel:
    """Download the model with a progress bar."""
    with show_download(args, args.name) as show:
        try:
            return obtain(
                args.name,
                **options_of(obtain, args),
                on_progress=show,
                on_message=lambda sentence: log(args, sentence),
            )
        except KeyboardInterrupt:
            log(args, "the partial download is kept: run the same command to resume")
            raise
