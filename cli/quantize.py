"""``quantkit quantize``: quantize a model to int8 with calibration, and report accuracy and latency."""

from argparse import ArgumentParser, Namespace

from quantkit.quantization.workflow import quantize
from quantkit.quantization.workflow.options import Options

from ._arguments import add_model_flags, add_options, options_of
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
    add_options(parser, Options, first=["output"], until="trace")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print the precision of each layer by reason, and the steps of the recipe",
    )
    add_options(parser, Options, since="trace")
    add_model_flags(parser)


def run(args: Namespace) -> int:
    """Quantize the model and print the report."""
    with show_progress(args) as on_progress:
        result = quantize(
            **options_of(quantize, args), on_progress=on_progress, on_message=lambda message: log(args, message)
        )
    emit(args, result, f"{result}\n\n{result.explain(verbose=args.verbose)}" if args.explain else None)
    result.report.require_max_drop()
    return 0
