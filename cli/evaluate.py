"""``quantkit evaluate``: accuracy of a model and agreement with a reference model."""

from argparse import ArgumentParser, Namespace

from quantkit.evaluation import Evaluation, EvaluationInterrupted, evaluate
from quantkit.evaluation.accuracy import EvaluateOptions, require_reference
from quantkit.evaluation.options import MetricLimits
from quantkit.options import names_of

from ._app import INTERRUPTED
from ._arguments import add_model_flags, add_options, options_of
from ._loading import check_models, model_and_runtime
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit evaluate digits --data assets/digits_heldout.npz",
    "quantkit evaluate digits@reference --data assets --reference digits --json",
    "quantkit evaluate small.onnx --data images/ --reference graph.pb --limit 500 --min-agreement 0.985",
)
# Limits of the metrics, which are checked after the metrics are printed.
LIMITS = names_of(MetricLimits)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("model", metavar="MODEL", help="model file or model card; FILE@RUNTIME selects its runtime")
    add_options(parser, EvaluateOptions, first=("data", "limit", "batch", "runtime"))
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
