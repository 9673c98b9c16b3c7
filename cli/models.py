"""``quantkit models``: model cards and the download cache."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit.errors import InputError
from quantkit.progress import Progress
from quantkit.zoo.cache import cache_folder
from quantkit.zoo.cards import KnownPrediction, ModelCard, find_card, list_cards
from quantkit.zoo.fetch import FetchedModel, locate, obtain

from ._render import emit, log, progress

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "quantkit.models/2"
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
    actions = {"list": _list, "show": _show, "fetch": _fetch, "path": _path}
    actions[args.action](args)
    return 0


def _list(args: Namespace) -> None:
    models = [(card, locate(card)) for card in list_cards()]
    document = {"cache": str(cache_folder()), "models": [_document(card, path) for card, path in models]}

    def text(console: "Console") -> None:
        width = max(len(card.name) for card, _ in models)
        for card, path in models:
            console.print(f"{card.name:<{width}}  {_state(card, path):<16}  {card.title}", markup=False)
        console.print(f"\ncache: {cache_folder()}", markup=False)

    emit(args, SCHEMA, document, text)


def _show(args: Namespace) -> None:
    card = find_card(args.name)
    path = locate(card)
    emit(args, SCHEMA, _document(card, path), lambda console: _print_card(console, card, path))


def _fetch(args: Namespace) -> None:
    fetched = _obtain(args)
    for warning in fetched.warnings:
        log(args, f"warning: {warning}")
    receipt = asdict(fetched.receipt) if fetched.receipt else None
    document = {
        "name": fetched.card.name,
        "path": str(fetched.path),
        "is_cached": fetched.is_cached,
        "receipt": receipt,
        "warnings": list(fetched.warnings),
    }
    emit(args, SCHEMA, document, str(fetched.path))


def _obtain(args: Namespace) -> FetchedModel:
    """Download the model with a progress bar."""
    bar = progress(args)
    with bar:
        task = bar.add_task(args.name, total=None, visible=False)

        def report(state: Progress) -> None:
            bar.update(task, completed=state.done, total=state.total, visible=True)

        try:
            return obtain(
                args.name,
                offline=args.offline,
                url=args.url,
                sha256=args.sha256,
                force=args.force,
                on_progress=report,
                on_message=lambda sentence: log(args, sentence),
            )
        except KeyboardInterrupt:
            log(args, "the partial download is kept: run the same command to resume")
            raise


def _path(args: Namespace) -> None:
    card = find_card(args.name)
    path = locate(card)
    if path is None:
        where = "the installation" if card.is_bundled else cache_folder() / card.name
        raise InputError(f"{card.name} is not in {where}", hint=f"quantkit models fetch {card.name}")
    document = {"name": card.name, "path": str(path)}
    emit(args, SCHEMA, document, str(path))


def _document(card: ModelCard, path: Path | None) -> dict[str, Any]:
    table = asdict(card, dict_factory=_plain)
    return {**table, "is_bundled": card.is_bundled, "path": str(path) if path else None}


def _plain(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value.value if isinstance(value, Enum) else value for key, value in pairs}


def _state(card: ModelCard, path: Path | None) -> str:
    if card.is_bundled:
        return "bundled" if path else "missing"
    if path:
        return "cached"
    size = card.archive.num_bytes if card.archive else None
    return f"{size / 1e6:.1f} MB to fetch" if size else "to fetch"


def _print_card(console: "Console", card: ModelCard, path: Path | None) -> None:
    steps = card.preprocessing
    mean, std = (", ".join(f"{number:g}" for number in numbers) for numbers in (steps.mean, steps.std))
    crop = "" if steps.crop == "none" else f"{steps.crop} crop, "
    lines = {
        "graph": f"{card.graph}, {_state(card, path)}",
        "path": str(path) if path else f"quantkit models fetch {card.name}",
        "input": _describe_tensors(card.inputs) + (f"; JPEG bytes: {card.jpeg_input}" if card.jpeg_input else ""),
        "pixels": f"{crop}{steps.resize} to {steps.height} x {steps.width}, (x - {mean}) / {std}",
        "output": _describe_tensors(card.outputs),
        "classes": f"{card.num_classes} scores, order {card.labels.order}",
        "license": card.license,
        "from": "\n".join(card.archive.urls) if card.archive else "the installation",
        "SHA-256": (card.archive.sha256 or "not published; the members are verified") if card.archive else "",
        "recipe": card.recipe.strip(),
        "known": "\n".join(map(_describe_prediction, card.predictions)),
        "accuracy": _accuracy(card),
        "more": card.homepage,
    }
    console.print(f"{card.name}: {card.title}\n{card.description.strip()}\n", markup=False)
    for name, value in lines.items():
        if value:
            first, *rest = value.splitlines()
            console.print(f"{name:<9} {first}", *(f"\n{'':<9} {line}" for line in rest), sep="", markup=False)


def _describe_tensors(tensors: Iterable[Any]) -> str:
    return ", ".join(f"{tensor.name} {tensor.dtype.value} {list(tensor.shape)}" for tensor in tensors)


def _describe_prediction(prediction: KnownPrediction) -> str:
    return f"{prediction.image}: {prediction.label} {prediction.probability or ''}".rstrip()


def _accuracy(card: ModelCard) -> str:
    accuracy = card.accuracy
    if accuracy is None:
        return ""
    top5 = f", top-5 {accuracy.top5:.2%}" if accuracy.top5 is not None else ""
    return f"top-1 {accuracy.top1:.2%}{top5} on {accuracy.data}"
