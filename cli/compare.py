"""``quantkit compare``: layer-by-layer difference of two versions of a model."""

from argparse import ArgumentParser, Namespace

from quantkit.evaluation import (
    EvaluationInterrupted,
    LayerComparison,
    compare,
    compare_structure,
)
from quantkit.evaluation.comparison import CompareOptions
from quantkit.evaluation.layer_comparison import LEGEND, MAX_ROWS

from ._app import INTERRUPTED
from ._arguments import add_model_flags, add_options, options_of, parse_positive
from ._loading import check_models, model_and_runtime
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit compare graph.pb small.pb --data images/ --limit 20",
    "quantkit compare digits@tensorflow digits@reference --data assets --min-sqnr 40",
    "quantkit compare float.pb small.onnx --json",
    "quantkit compare before.pb after.pb --structure",
)
# Explanation of the table, below the flags of the help.
DETAILS = LEGEND.replace(". ", ".\n")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("first", metavar="A", help="reference model; FILE@RUNTIME selects its runtime")
    parser.add_argument("second", metavar="B", help="other version of the model, in the same or another format")
    add_options(parser, CompareOptions, until="floor")
    parser.add_argument(
        "--runtime", default="auto", help="runtime for models without @RUNTIME (default: one that keeps all tensors)"
    )
    add_options(parser, CompareOptions, since="floor", until="min_sqnr")
    parser.add_argument(
        "--show", type=parse_positive, default=MAX_ROWS, help=f"number of rows, lowest SQNR first (default: {MAX_ROWS})"
    )
    add_options(parser, CompareOptions, since="min_sqnr")
    add_model_flags(parser)


def run(args: Namespace) -> int:
    """Compare, print the report, and check the limit."""
    check_models(args, args.first, args.second, reads_layers=True)
    (first, runtime), (second, other_runtime) = (model_and_runtime(args, name) for name in (args.first, args.second))
    if args.structure:
        structure = compare_structure(first, second)
        emit(args, structure, structure.text(None if args.verbose else args.show))
        return 0 if structure.are_equal else 1
    try:
        with show_progress(args) as on_progress:
            comparison = compare(
                first,
                second,
                runtimes=(runtime, other_runtime),
                **options_of(compare, args, "first", "second", "inputs", "outputs", "structure", "min_sqnr"),
                on_progress=on_progress,
                on_message=lambda message: log(args, message),
            )
    except EvaluationInterrupted as interrupted:
        _print_result(args, interrupted.result)
        return INTERRUPTED
    _print_result(args, comparison)
    comparison.check(min_sqnr=args.min_sqnr)
    return 0


def _print_result(args: Namespace, comparison: LayerComparison) -> None:
    for name, message in comparison.rejected:
        log(args, f"rejected {name}: {message}")
    emit(args, comparison, comparison.text(None if args.verbose else args.show))
