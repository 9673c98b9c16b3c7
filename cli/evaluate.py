"""``quantkit evaluate``: how right a model is, and how near to its reference."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from quantkit.classify.choices import Flags
from quantkit.classify.evaluation import BATCH, Evaluation, Interrupted, evaluate
from quantkit.errors import CheckError
from quantkit.loading import MEANINGLESS
from quantkit.runtimes.session import SessionOptions

from ._app import INTERRUPTED
from ._loading import model_and_runtime
from ._render import counting, emit, log

EXAMPLES = (
    "quantkit evaluate digits --data assets/digits_heldout.npz",
    "quantkit evaluate digits@reference --data assets --reference digits --json",
    "quantkit evaluate small.onnx --data pictures/ --reference graph.pb --limit 500 --min-agreement 0.985",
)


def add_arguments(parser: ArgumentParser) -> None:
    """What to evaluate, on what, against what, and what is good enough."""
    parser.add_argument("model", metavar="MODEL", help="model file or name of a card; FILE@RUNTIME chooses its engine")
    parser.add_argument(
        "--data", required=True, help="pictures: a folder, flat or one for each class, a list file, .npz or .npy"
    )
    parser.add_argument("--reference", help="the version whose answers are right, e.g. the float one; FILE@RUNTIME too")
    parser.add_argument("--runtime", default="auto", help="engine of models that name none (the fastest that can)")
    parser.add_argument("--limit", type=_count, help="pictures at most, the same ones every time (all)")
    parser.add_argument(
        "--batch", type=_count, default=BATCH, help=f"pictures that run together where the graph lets them ({BATCH})"
    )
    parser.add_argument("--labels", help="what the numbers mean: a list, or a file of the 2015 pair (the model's own)")
    parser.add_argument("--input-layer", default="", help="what to feed (the card's, or what takes pictures)")
    parser.add_argument("--output-layer", default="", help="what gives a number for each class (the card's)")
    parser.add_argument("--input-width", type=_count, help="pixels of the resized picture (the graph's)")
    parser.add_argument("--input-height", type=_count, help="pixels of the resized picture (the graph's)")
    parser.add_argument("--input-mean", type=float, help="subtracted from the pixels (the card's, or 128)")
    parser.add_argument("--input-std", type=float, help="what they are then divided by (the card's, or 128)")
    parser.add_argument("--intra-op", type=_count, help="threads inside one operation (the engine's default)")
    parser.add_argument("--inter-op", type=_count, help="operations run side by side (the engine's default)")
    parser.add_argument("--min-top1", type=_share, help="exit 1 if fewer answers are right, e.g. 0.75")
    parser.add_argument("--min-agreement", type=_share, help="exit 1 if fewer answers are the reference's, e.g. 0.985")
    parser.add_argument(
        "--max-kl", type=float, help="exit 1 if the answers are further from the reference's, e.g. 0.02"
    )
    parser.add_argument("--offline", action="store_true", help="never fetch a model")


def run(args: Namespace) -> int:
    """Evaluate, print, check."""
    model, runtime = model_and_runtime(args, args.model)
    reference, reference_runtime = model_and_runtime(args, args.reference) if args.reference else (None, args.runtime)
    for one in (model, reference):
        if one is not None and one.has_random_weights:
            log(args, f"{one.name}: {MEANINGLESS}")
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
                options=SessionOptions(args.intra_op, args.inter_op),
                flags=Flags(args.input_height, args.input_width, args.input_mean, args.input_std),
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
    if args.verbose:
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
    for flag, share, wanted, missing in (
        ("--min-top1", quality.top1, args.min_top1, "no picture has a label that is one of the model's classes"),
        ("--min-agreement", quality.agreement, args.min_agreement, "there is no --reference"),
    ):
        if wanted is not None and share is None:
            raise CheckError(f"{flag} {wanted:g} can not be told: {missing}")
        if wanted is not None and share is not None and share.value < wanted:
            raise CheckError(f"{flag} {wanted:g}: it is {share}", hint="quantkit compare names the layers to blame")
    if args.max_kl is not None:
        if quality.divergence is None:
            raise CheckError(f"--max-kl {args.max_kl:g} can not be told: there is no --reference that gives numbers")
        if quality.divergence > args.max_kl or quality.not_finite:
            raise CheckError(
                f"--max-kl {args.max_kl:g}: it is {quality.divergence:.3g}"
                + (f", and {quality.not_finite} answers hold NaN or infinity" if quality.not_finite else ""),
                hint="quantkit compare names the layers to blame",
            )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ArgumentTypeError(f"{text!r} is not a part of one such as 0.985")
    return share
