"""``quantkit evaluate``: accuracy of a model and agreement with a reference model."""

from argparse import ArgumentParser, Namespace

from quantkit.evaluation import Evaluation, EvaluationInterrupted, evaluate
from quantkit.evaluation.accuracy import require_reference
from quantkit.evaluation.tasks import TASKS

from ._app import INTERRUPTED
from ._arguments import (
    add_classifier_flags,
    add_dataset,
    add_isa,
    add_model_flags,
    add_precision,
    add_threads,
    options_of,
    parse_fraction,
    parse_positive,
    parse_ratio,
)
from ._loading import check_models, model_and_runtime
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit evaluate digits --data assets/digits_heldout.npz",
    "quantkit evaluate digits@reference --data assets --reference digits --json",
    "quantkit evaluate small.onnx --data images/ --reference graph.pb --limit 500 --min-agreement 0.985",
)
# Limits of the metrics, which are checked after the metrics are printed.
LIMITS = ("min_top1", "min_agreement", "max_kl")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("model", metavar="MODEL", help="model file or model card; FILE@RUNTIME selects its runtime")
    add_dataset(parser)
    parser.add_argument("--reference", help="reference model, for example the float model; FILE@RUNTIME too")
    parser.add_argument(
        "--task",
        metavar=f"{{{','.join(TASKS)}}}",
        help="metric of all outputs with the reference model (default: metrics of class scores)",
    )
    parser.add_argument(
        "--workers", type=parse_positive, default=1, help="processes that share the data and the cores (default: 1)"
    )
    add_classifier_flags(parser)
    add_threads(parser)
    add_isa(parser)
    add_precision(parser, " for MODEL; the reference runs in float32")
    parser.add_argument("--min-top1", type=parse_fraction, help="exit 1 if top-1 is below this, for example 0.75")
    parser.add_argument(
        "--min-agreement",
        type=parse_fraction,
        help="exit 1 if the agreement of class scores, or the metric of --task (text or language for tokens), is "
        "below this, for example 0.985",
    )
    parser.add_argument(
        "--max-kl", type=parse_ratio, help="exit 1 if the KL divergence is above this, for example 0.02"
    )
    add_model_flags(parser)


def run(args: Namespace) -> int:
    """Evaluate, print the metrics, and check the limits."""
    if args.reference is None:
        require_reference(**options_of(require_reference, args))
    check_models(args, args.model, args.reference)
    model, runtime = model_and_runtime(args, args.model)
    reference, reference_runtime = model_and_runtime(args, args.reference) if args.reference else (None, "auto")
    try:
        with show_progress(args) as on_progress:
            evaluation = evaluate(
                model,
                reference=reference,
                runtime=runtime,
                reference_runtime=reference_runtime,
                **options_of(evaluate, args, "model", "reference", "runtime", *LIMITS),
                on_progress=on_progress,
                on_message=lambda message: log(args, message),
            )
    except EvaluationInterrupted as interrupted:
        _print_result(args, interrupted.result)
        return INTERRUPTED
    _print_result(args, evaluation)
    evaluation.check(**options_of(evaluation.check, args))
    return 0


def _print_result(args: Namespace, evaluation: Evaluation) -> None:
    if args.verbose:
        log(args, f"preprocessing: {evaluation.preprocessing}")
    emit(args, evaluation)
