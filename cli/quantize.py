"""``quantkit quantize``: quantize a model to int8 with calibration, and report accuracy and latency."""

from argparse import ArgumentParser, Namespace

from quantkit.data import DATA_KINDS
from quantkit.evaluation.tasks import TASKS
from quantkit.quantization.targets import targets
from quantkit.quantization.targets.base import FLOAT
from quantkit.quantization.workflow import quantize
from quantkit.quantization.workflow.options import (
    CALIBRATION_LIMIT,
    FALLBACK_PRECISIONS,
    FLOAT_PARTS,
    ORIGINAL,
    TIME_BUDGET,
)

from ._arguments import (
    add_input_shape,
    add_model_flags,
    add_normalization,
    add_size,
    options_of,
    parse_fraction,
    parse_natural,
    parse_positive,
    parse_seconds,
)
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit quantize digits -o digits.int8.onnx --calibration assets/digits_heldout.npz --target onnx",
    "quantkit quantize graph.pb -o fast.pb --calibration images/ --target tensorflow --save-ranges graph.ranges.json",
    "quantkit quantize digits -o digits.small.onnx --weights-only",
    "quantkit quantize graph.pb -o again.onnx --ranges graph.ranges.json --scheme scheme.toml",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("model", metavar="MODEL", help="model file, SavedModel folder, or name of a known model")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        help="file to write, or a SavedModel folder without a suffix (targets tensorflow and eightbit)",
    )
    parser.add_argument("--calibration", metavar="DATA", help=f"calibration dataset: {DATA_KINDS}")
    parser.add_argument(
        "--target",
        metavar=f"{{{','.join(sorted(targets()))}}}",
        help="target format and runtime (default: the scheme's, else onnx)",
    )
    _add_scheme(parser)
    _add_data(parser)
    _add_search(parser)
    add_size(parser)
    add_normalization(parser)
    add_input_shape(parser)
    add_model_flags(parser)


def _add_scheme(parser: ArgumentParser) -> None:
    parser.add_argument("--scheme", metavar="FILE.toml", help="quantization scheme (default: the target's)")
    parser.add_argument(
        "--weights-only", action="store_true", help="quantize weights only and compute in float; needs no data"
    )
    parser.add_argument(
        "--uint8-input",
        action="store_true",
        help="accept uint8 images; preprocessing is folded into the first layer",
    )
    parser.add_argument(
        "--observer",
        help="range estimator, for example min_max or percentile(99.9) (default: the scheme's, or min_max if that is "
        "better on the data)",
    )
    parser.add_argument(
        "--reduce-range",
        action="store_true",
        help="use 7-bit weights (default: 8 bits whose sums of pairs cannot saturate without VNNI)",
    )
    parser.add_argument(
        "--plan", metavar="FILE", help="read the quantization plan from this file instead of computing it"
    )
    parser.add_argument(
        "--save-plan",
        metavar="FILE",
        help="write the quantization plan, with precision and reason of each layer",
    )
    parser.add_argument("--ranges", metavar="FILE", help="read the ranges from this file instead of calibrating")
    parser.add_argument("--save-ranges", metavar="FILE", help="write the calibrated ranges")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print the precision of each layer by reason, and the steps of the recipe",
    )
    parser.add_argument("--trace", metavar="FILE", help="write a trace of the recipe: .json, or .html with both graphs")
    parser.add_argument(
        "--verify", action="store_true", help="compare the float outputs before and after each step of the recipe"
    )
    parser.add_argument("--recipe", help="recipe that prepares the float graph (default: the card's, else inference)")


def _add_data(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        type=parse_positive,
        default=CALIBRATION_LIMIT,
        help=f"maximum number of calibration images (default: {CALIBRATION_LIMIT})",
    )
    parser.add_argument(
        "--held-out",
        metavar="DATA",
        help="held-out images for the accuracy check (default: the calibration images; with --max-drop, the ones "
        "after them)",
    )
    parser.add_argument(
        "--labels", help="label file: one label per line, or the 2015 label map (default: the model's own)"
    )
    parser.add_argument(
        "--runtime",
        default="auto",
        help="runtime of the float model, which the form of an ONNX model then suits (default: auto, the fastest "
        "available for the float model, a form for all runtimes)",
    )
    parser.add_argument(
        "--runs",
        type=parse_natural,
        help="samples of the latency of each model; 0 to skip the latency (default: until the comparison is clear)",
    )


def _add_search(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--finetune",
        metavar="STEPS|TIME|layerwise",
        help="train weights and ranges on the calibration images, for example 300 steps or 10m; layerwise fits each "
        "layer by itself; requires TensorFlow",
    )
    parser.add_argument(
        "--seed", type=parse_natural, default=0, help="seed of the order of the training images (default: 0)"
    )
    parser.add_argument(
        "--max-drop",
        type=parse_fraction,
        help="keep layers in float until the drop is at most this fraction, for example 0.01: the drop of top-1 if "
        "images have labels, else of the agreement with the float model",
    )
    parser.add_argument(
        "--task",
        metavar=f"{{{','.join(TASKS)}}}",
        help="metric of the accuracy with the float model as reference (default: agreement for class scores, else "
        "SQNR)",
    )
    parser.add_argument(
        "--fallback",
        choices=FALLBACK_PRECISIONS,
        default=FLOAT,
        help="precision of the layers that --max-drop keeps; bfloat16 requires --target tensorflow and a processor "
        "with bfloat16 arithmetic (default: float)",
    )
    parser.add_argument(
        "--float-parts",
        choices=FLOAT_PARTS,
        default=ORIGINAL,
        help="type of the ops that stay float; float16 requires --target tensorrt (default: original)",
    )
    parser.add_argument(
        "--time-budget",
        type=parse_seconds,
        default=TIME_BUDGET,
        help="time limit of the --max-drop search, for example 90s (default: 10m)",
    )


def run(args: Namespace) -> int:
    """Quantize the model and print the report."""
    with show_progress(args) as on_progress:
        result = quantize(
            **options_of(quantize, args), on_progress=on_progress, on_message=lambda message: log(args, message)
        )
    emit(args, result, f"{result}\n\n{result.explain(verbose=args.verbose)}" if args.explain else None)
    result.report.require_max_drop()
    return 0
