"""``quantkit classify``: label images."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from quantkit.arguments import expand_user
from quantkit.data import find_images
from quantkit.errors import UsageError
from quantkit.evaluation import Classification, EvaluationInterrupted, ImagePredictions, classify_images
from quantkit.evaluation.classification import DEFAULT_MODEL, ClassifyKeywords
from quantkit.evaluation.classifier import RejectedImage

from ._arguments import add_model_flags, add_options, options_of
from ._loading import named_model
from ._render import console, emit, log

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = (
    "quantkit classify assets --model digits --top 3",
    "quantkit classify panda.jpg holiday_images/ --json",
    "quantkit classify --image=panda.jpg --graph=graph.pb --labels=labels.txt --input_layer=Mul --output_layer=softmax",
    "quantkit classify panda.jpg --input-layer DecodeJpeg/contents --runtime tensorflow",
)
BAR_CELLS = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command and those of label_image."""
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="JPEG, PNG, BMP, GIF or WebP file, or a folder")
    parser.add_argument("--model", help=f"model file, SavedModel folder, or model card (default: {DEFAULT_MODEL})")
    add_options(parser, ClassifyKeywords, until="on_image")
    parser.add_argument("--image", action="append", default=[], help="image file; the spelling of label_image")
    parser.add_argument("--graph", help="same as --model; the spelling of label_image")
    parser.add_argument("--classic", action="store_true", help="print the output of label_image")
    add_options(parser, ClassifyKeywords, since="on_image")
    add_model_flags(parser)


def run(args: Namespace) -> int:
    """Classify the images and print the predictions of each as soon as they are computed."""
    classify_and_print(args)
    return 0


def classify_and_print(args: Namespace) -> Classification:
    """Run the command.

    Raises:
        InputError: an image cannot be decoded; the predictions of the others are printed.
    """
    images = [image if "://" in image else expand_user(image) for image in (*args.images, *args.image)]
    if not images:
        raise UsageError("no image is given", hint="quantkit classify IMAGE..., or --image IMAGE")
    find_images(images)  # rejects a missing image before a model is downloaded
    if args.model and args.graph:
        raise UsageError("--model and --graph name two models", hint="pass one of them")
    model = named_model(args, args.model or args.graph or DEFAULT_MODEL)
    page = console()
    print_image = _print_classic if args.classic else _print_image
    try:
        result = classify_images(
            images,
            model,
            **options_of(classify_images, args, "images", "model", "random_weights"),
            on_image=lambda result: None if args.json else print_image(page, result),
            on_message=lambda message: log(args, message),
        )
    except EvaluationInterrupted as interrupted:
        _print_result(args, interrupted.result)
        raise
    _print_result(args, result)
    result.check()
    return result


def _print_result(args: Namespace, result: Classification) -> None:
    """Print the document; or the lines after the images, whose predictions are printed already."""
    if args.verbose:
        log(args, f"preprocessing: {result.preprocessing}; labels: {result.labels.source or 'none'}")
        for skipped in result.skipped_runtimes:
            log(args, f"skipped runtime {skipped}")
    lines = [] if args.classic or not result.images else [result.summary, *result.notes]
    if lines or args.json:
        emit(args, result, "\n".join(lines))


def _print_classic(page: "Console", result: ImagePredictions | RejectedImage) -> None:
    for prediction in result if isinstance(result, ImagePredictions) else ():
        page.print(f"{prediction.label} ({prediction.index}): {prediction.score:g}", markup=False)


def _print_image(page: "Console", result: ImagePredictions | RejectedImage) -> None:
    if isinstance(result, RejectedImage):
        return
    from rich.text import Text

    page.print(Text(result.image, "bold"), Text(f"{result.seconds.total * 1e3:.1f} ms", "dim"))
    cell = "█" if "utf" in page.encoding.lower() else "#"
    for prediction in result:
        bar = ""
        if result.are_probabilities:
            cells = round(min(max(prediction.score, 0.0), 1.0) * BAR_CELLS)
            bar = f"  {cell * cells:<{BAR_CELLS}}"
        score = Text(f"{result.score_text(prediction)}{bar}", "cyan")
        page.print(score + Text(f"  {prediction.label}", "default") + Text(prediction.index_text, "dim"))
