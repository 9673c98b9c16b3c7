"""``quantkit compare``: two versions of one model, layer by layer."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from quantkit import formats
from quantkit.data import Data, find_data
from quantkit.data.choices import choose_ends, matching_card
from quantkit.data.feeders import Feeder, Feeds
from quantkit.data.images import FORMATS
from quantkit.data.preparation import Preparation, prepared_samples
from quantkit.errors import CheckError, InputError, UnavailableError
from quantkit.evaluation.compare import SAMPLES, compare
from quantkit.evaluation.layer_comparison import FLOOR, SHOWN, UNPROVEN, Comparison, Interrupted
from quantkit.ir.difference import EQUAL, differences
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.model import RANDOM_WEIGHTS_NOTE, Model
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo import ModelCard, list_cards

from ._app import INTERRUPTED
from ._arguments import (
    add_endpoints,
    add_normalization,
    add_offline,
    add_precision,
    add_threads,
    describe_assumption,
    parse_positive,
    preprocessing_flags,
    session_options,
)
from ._loading import model_and_runtime
from ._render import counting, emit, log

EXAMPLES = (
    "quantkit compare graph.pb small.pb --data pictures/ --limit 20",
    "quantkit compare digits@tensorflow digits@reference --data assets --min-sqnr 40",
    "quantkit compare float.pb small.onnx --json",
    "quantkit compare before.pb after.pb --structure",
)
# Layers are much alike from picture to picture: few show which one is wrong.
PICTURES = 16


def add_arguments(parser: ArgumentParser) -> None:
    """Which versions, on what, and what is good enough."""
    parser.add_argument("first", metavar="A", help="the version that is right; FILE@RUNTIME chooses its engine")
    parser.add_argument("second", metavar="B", help="the other version, of the same or another format")
    parser.add_argument("--data", help=f"pictures, as evaluate takes them ({SAMPLES} seeded random inputs)")
    parser.add_argument(
        "--limit", type=parse_positive, help=f"samples at most ({PICTURES} pictures, {SAMPLES} random inputs)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (0)")
    parser.add_argument("--runtime", default="auto", help="engine of both (tensorflow or reference; onnxruntime)")
    add_endpoints(parser)
    parser.add_argument("--floor", type=float, default=FLOOR, help=f"decibels below which a layer is bad ({FLOOR:g})")
    parser.add_argument("--show", type=parse_positive, default=SHOWN, help=f"how many to show, worst first ({SHOWN})")
    parser.add_argument("--min-sqnr", type=float, help="exit 1 if a tensor has fewer decibels, or is broken")
    parser.add_argument("--structure", action="store_true", help="compare nodes, not numbers: exit 1 where they differ")
    parser.set_defaults(classic=False)
    add_normalization(parser)
    add_threads(parser)
    add_precision(parser, " for B; A has float32")
    add_offline(parser)


def run(args: Namespace) -> int:
    """Compare, print, check."""
    (first, engine), (second, other_engine) = (model_and_runtime(args, word) for word in (args.first, args.second))
    if args.structure:
        return _structure(args, _graph(args, first, raw=True), _graph(args, second, raw=True))
    for model in (first, second):
        if model.has_random_weights:
            log(args, f"{model.name}: {RANDOM_WEIGHTS_NOTE}")
    graphs = _graph(args, first), _graph(args, second)
    refused: dict[str, str] = {}
    data = find_data(args.data, args.limit or PICTURES) if args.data else None
    feeder = None if data is None else _feeder(args, data, (first, second), graphs, refused)
    total = len(data) if data is not None else args.limit or SAMPLES
    try:
        with counting(args, "comparing") as shown:
            found = compare(
                *graphs,
                feeder,
                names=(first.name, second.name),
                runtimes=(engine, other_engine),
                options=session_options(args),
                samples=total,
                seed=args.seed,
                floor=args.floor,
                progress=lambda done: shown(done, total),
            )
    except Interrupted as interrupted:
        _deliver(args, interrupted.comparison)
        return INTERRUPTED
    for name, message in refused.items():
        log(args, f"left out {name}: {message}")
    _deliver(args, found)
    _check(args, found)
    return 0


def _graph(args: Namespace, model: Model, *, raw: bool = False) -> Graph:
    """The graph of a model, with what is fed and what is asked for.

    Raises:
        UnavailableError: it is in a format whose inside is not read.
    """
    if isinstance(model.runnable, Path) and not model.has_readable_graph:
        raise UnavailableError(
            f"{model.name} is {formats.KINDS[formats.kind_of(model.runnable)]}, whose layers can not be read",
            hint="quantkit evaluate compares what such models answer; .pb and .onnx are compared layer by layer",
        )
    graph = model.graph
    if raw:
        return graph
    if args.inputs or args.outputs:
        return graph.with_endpoints(args.inputs, args.outputs)
    if graph.inputs and graph.outputs:
        return graph
    return choose_ends(graph, model.card, list_cards())


def _feeder(
    args: Namespace, data: Data, models: tuple[Model, Model], graphs: tuple[Graph, Graph], refused: dict[str, str]
) -> Feeder:
    """Makes of each sample what both versions take; who has no card takes what the other's card says."""

    def feeder(mine: Sequence[TensorInfo], theirs: Sequence[TensorInfo]) -> Iterator[tuple[Feeds, Feeds]]:
        found = [
            model.card or _matching(graph, inputs)
            for model, graph, inputs in zip(models, graphs, (mine, theirs), strict=True)
        ]
        card = found[0] or found[1]
        preparations = [
            Preparation.of(infos, data, own or card, preprocessing_flags(args))
            for infos, own in zip((mine, theirs), found, strict=True)
        ]
        if preparations[0].is_assumed:
            log(args, describe_assumption(preparations[0]))
        for _, prepared in prepared_samples(data, data.samples, preparations, refused):
            one, other = (
                preparation.feeds([sample]) for preparation, sample in zip(preparations, prepared, strict=True)
            )
            yield one, other
        if len(refused) == len(data):
            name, why = next(iter(refused.items()))
            raise InputError(
                f"none of {len(refused)} pictures can be read; {name}: {why}", hint=f"pictures are {', '.join(FORMATS)}"
            )

    return feeder


def _matching(graph: Graph, inputs: Sequence[TensorInfo]) -> ModelCard | None:
    """The card that knows such an input and output."""
    if len(inputs) != 1:
        return None
    return matching_card(inputs[0], TensorInfo(_output(graph), DType.FLOAT, Shape(None)), list_cards())


def _output(graph: Graph) -> str:
    """The name of the first output, as TensorFlow has it."""
    return str(Edge.parse(graph.outputs[0].node.removesuffix(":0")))


def _structure(args: Namespace, actual: Graph, expected: Graph) -> int:
    found = list(differences(actual, expected))
    shown = found[:1] if args.classic else found if args.verbose else found[: args.show]
    is_cut = len(shown) < len(found) and not args.classic
    more = [f"{len(found) - len(shown)} more (--verbose lists them)"] if is_cut else []
    emit(
        args,
        "quantkit.compare/1",
        {"equal": not found, "difference": next(iter(found), None), "differences": found},
        lambda page: page.print("\n".join([*shown, *more] or [EQUAL]), markup=False, soft_wrap=True),
    )
    return 1 if found else 0


def _deliver(args: Namespace, found: Comparison) -> None:
    text = found.text(None if args.verbose else args.show)
    emit(args, "quantkit.compare/1", found.to_json(), lambda page: page.print(text, markup=False, soft_wrap=True))


def _check(args: Namespace, found: Comparison) -> None:
    """Hold every tensor to ``--min-sqnr``.

    Raises:
        CheckError: one is below it, or broken.
    """
    if args.min_sqnr is None:
        return
    below = [row for row in found.rows if row.is_broken or row.sqnr < args.min_sqnr]
    if below:
        first = below[0]
        what = ", ".join(first.problems) if first.is_broken else f"{first.sqnr:.1f} dB"
        raise CheckError(
            f"--min-sqnr {args.min_sqnr:g}: {len(below)} of {len(found.rows)} tensors fall short, "
            f"the first is {first.name} ({first.op}): {what}",
            hint=UNPROVEN
            if found.is_random
            else "keep such layers in float: keep_float in a --scheme of quantkit quantize, or its --max-drop",
        )
