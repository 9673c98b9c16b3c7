"""``quantkit evaluate``: how right a model is, and how near to its reference."""

from argparse import ArgumentParser, Namespace

from quantkit.data import KINDS
from quantkit.errors import CheckError
from quantkit.evaluation.accuracy import BATCH, Evaluation, Interrupted, evaluate
from quantkit.model import RANDOM_WEIGHTS_NOTE

from ._app import INTERRUPTED
from ._arguments import (
    add_classifier_flags,
    add_offline,
    add_precision,
    add_threads,
    describe_assumption,
    parse_fraction,
    parse_positive,
    preprocessing_flags,
    session_options,
)
from ._loading import model_and_runtime
from ._render import counting, emit, log

EXAMPLES = (
    "quantkit evaluate digits --data assets/digits_heldout.npz",
    "quantkit evaluate digits@reference --data assets --reference digits --json",
    "quantkit evaluate small.onnx --data pictures/ --reference graph.pb --limit 500 --min-agreement 0.985",
)
UNLABELLED = "no picture has a label that is one of the model's classes"
REFERENCE = "give --reference MODEL, the version whose answers are right"


def add_arguments(parser: ArgumentParser) -> None:
    """What to evaluate, on what, against what, and what is good enough."""
    parser.add_argument("model", metavar="MODEL", help="model file or name of a card; FILE@RUNTIME chooses its engine")
    parser.add_argument("--data", required=True, help=f"pictures: {KINDS}")
    parser.add_argument("--reference", help="the version whose answers are right, e.g. the float one; FILE@RUNTIME too")
    parser.add_argument("--runtime", default="auto", help="engine of models that name none (the fastest that can)")
    parser.add_argument("--limit", type=parse_positive, help="pictures at most, the same ones every time (all)")
    parser.add_argument(
        "--batch",
        type=parse_positive,
        default=BATCH,
        help=f"pictures that run together where the graph lets them ({BATCH})",
    )
    add_classifier_flags(parser)
    add_threads(parser)
    add_precision(parser, " for MODEL; the reference has float32")
    parser.add_argument("--min-top1", type=parse_fraction, help="exit 1 if fewer answers are right, e.g. 0.75")
    parser.add_argument(
        "--min-agreement", type=parse_fraction, help="exit 1 if fewer answers are the reference's, e.g. 0.985"
    )
    parser.add_argument(
        "--max-kl", type=float, help="exit 1 if the answers are further from the reference's, e.g. 0.02"
    )
    add_offline(parser)


def run(args: Namespace) -> int:
    """Evaluate, print, check."""
    model, runtime = model_and_runtime(args, args.model)
    reference, reference_runtime = model_and_runtime(args, args.reference) if args.reference else (None, args.runtime)
    for one in (model, reference):
        if one is not None and one.has_random_weights:
            log(args, f"{one.name}: {RANDOM_WEIGHTS_NOTE}")
    try:
        with counting(args, "evaluating") as shown:
            found = evaluate(
                model,
                args.data,
                reference=reference,
                runtime=runtime,
                reference_runtime=reference_runtime,
                labels=args.labels,
                limit=args.limit,
                batch=args.batch,
                options=session_options(args),
                flags=preprocessing_flags(args),
                input_layer=args.input_layer,
                output_layer=args.output_layer,
                progress=shown,
            )
    except Interrupted as interrupted:
        _deliver(args, interrupted.evaluation)
        return INTERRUPTED
    _deliver(args, found)
    _check(args, found)
    return 0


def _deliver(args: Namespace, found: Evaluation) -> None:
    if found.is_assumed:
        log(args, describe_assumption(found.preprocessing))
    elif args.verbose:
        log(args, f"preprocessing: {found.preprocessing}")
    emit(
        args, "quantkit.evaluate/1", found.to_json(), lambda page: page.print(str(found), markup=False, soft_wrap=True)
    )


def _check(args: Namespace, found: Evaluation) -> None:
    """Hold the answers to what was asked of them.

    Raises:
        CheckError: they fall short, or there is nothing to tell by.
    """
    quality = found.quality
    for flag, reached, wanted, missing, advice in (
        ("--min-top1", quality.top1, args.min_top1, UNLABELLED, "give --labels, or label the data"),
        ("--min-agreement", quality.agreement, args.min_agreement, "there is no --reference", REFERENCE),
    ):
        if wanted is not None and reached is None:
            raise CheckError(f"{flag} {wanted:g} can not be told: {missing}", hint=advice)
        if wanted is not None and reached is not None and reached.value < wanted:
            raise CheckError(f"{flag} {wanted:g}: it is {reached}", hint="quantkit compare names the layers to blame")
    if args.max_kl is not None:
        if quality.kl_divergence is None:
            raise CheckError(
                f"--max-kl {args.max_kl:g} can not be told: there is no --reference that gives numbers",
                hint=REFERENCE,
            )
        if quality.kl_divergence > args.max_kl or quality.not_finite:
            raise CheckError(
                f"--max-kl {args.max_kl:g}: it is {quality.kl_divergence:.3g}"
                + (f", and {quality.not_finite} answers hold NaN or infinity" if quality.not_finite else ""),
                hint="quantkit compare names the layers to blame",
            )
