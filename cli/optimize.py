"""``quantkit optimize``: the fastest file, runtime and settings of a model inside an accuracy bound."""

from argparse import ArgumentParser, Namespace

from quantkit.data import DATA_KINDS
from quantkit.evaluation.tasks import TASKS
from quantkit.formats import check_outputs
from quantkit.optimize import Optimization, OptimizationInterrupted, optimize
from quantkit.optimize.deployment import SERVERS
from quantkit.optimize.page import save_page
from quantkit.optimize.verb import DEFAULT_PRECISIONS, MAX_DROP, OBJECTIVES, PRECISIONS, TIME_BUDGET
from quantkit.quantization.workflow.options import CALIBRATION_LIMIT

from ._app import INTERRUPTED
from ._arguments import (
    add_input_shape,
    add_model_flags,
    add_normalization,
    add_size,
    options_of,
    parse_fraction,
    parse_names,
    parse_natural,
    parse_positive,
    parse_seconds,
)
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit optimize digits -o digits.best --data assets/digits_heldout.npz --time-budget 1m",
    "quantkit optimize graph.pb -o graph.best.onnx --data images/ --held-out validation/ --max-drop 0.005",
    "quantkit optimize graph.pb -o graph.best --data images/ --objective throughput --runtimes onnxruntime,openvino",
    "quantkit optimize graph.pb -o graph.best --data images/ --resume graph.search.json --html graph.html",
    "quantkit optimize graph.pb -o graph.best.onnx --data images/ --deploy served --server triton",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("model", metavar="MODEL", help="model file, SavedModel folder, or name of a known model")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="file to write; a suffix (.onnx, .pb, .tflite) limits the formats; without one, that of the best "
        "file is added",
    )
    parser.add_argument("--data", required=True, metavar="DATA", help=f"samples that calibrate: {DATA_KINDS}")
    parser.add_argument(
        "--held-out",
        metavar="DATA",
        help="samples that the drop is measured on (default: those of --data that do not calibrate, at least half)",
    )
    _add_goal(parser)
    _add_search(parser)
    parser.add_argument(
        "--labels", help="label file: one label per line, or the 2015 label map (default: the model's own)"
    )
    add_size(parser)
    add_normalization(parser)
    add_input_shape(parser)
    add_model_flags(parser)


def _add_goal(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--max-drop",
        type=parse_fraction,
        default=MAX_DROP,
        help="limit of the drop at 95 %% confidence, a fraction: of top-1 if samples have labels, else of the "
        f"agreement with the float model, or of the metric of --task (default: {MAX_DROP:g})",
    )
    parser.add_argument(
        "--task",
        metavar=f"{{{','.join(TASKS)}}}",
        help="metric of the outputs with the float model as reference (default: agreement for class scores, else R2)",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default=OBJECTIVES[0],
        help="quantity to improve: the latency of a call, the throughput, or the size of the file (default: latency)",
    )
    parser.add_argument(
        "--runtimes", type=parse_names, metavar="LIST", help="runtimes that may be used (default: all installed ones)"
    )
    parser.add_argument(
        "--precisions",
        type=parse_names,
        default=list(DEFAULT_PRECISIONS),
        metavar="LIST",
        help=f"precisions that may be used, of {','.join(PRECISIONS)} (default: {','.join(DEFAULT_PRECISIONS)})",
    )


def _add_search(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--time-budget",
        type=parse_seconds,
        default=TIME_BUDGET,
        help="time limit, for example 2m (default: 10m); after it, the best file so far is written",
    )
    parser.add_argument(
        "--resume", metavar="FILE", help="file for the finished work; the same command resumes an interrupted search"
    )
    parser.add_argument(
        "--limit",
        type=parse_positive,
        default=CALIBRATION_LIMIT,
        help=f"maximum number of samples that calibrate (default: {CALIBRATION_LIMIT})",
    )
    parser.add_argument(
        "--from-receipt",
        metavar="FILE",
        help="repeat the search that wrote this file: its objective, bound, runtimes, precisions, time budget and seed",
    )
    parser.add_argument("--seed", type=parse_natural, default=0, help="seed of the measurements (default: 0)")
    parser.add_argument(
        "--deploy", metavar="FOLDER", help="write a folder that serves the best file, with a client that checks it"
    )
    parser.add_argument(
        "--server",
        metavar=f"{{{','.join(SERVERS.objects())}}}",
        default="python",
        help="server of --deploy, which limits runtimes and formats (default: python)",
    )
    parser.add_argument("--html", metavar="PAGE", help="write a page with the front, all candidates, and the reasons")


def run(args: Namespace) -> int:
    """Search, write the best file, and print the report."""
    check_outputs({"--html": args.html, "--output": args.output, "--resume": args.resume})
    try:
        with show_progress(args) as on_progress:
            result = optimize(
                **options_of(optimize, args), on_progress=on_progress, on_message=lambda message: log(args, message)
            )
    except OptimizationInterrupted as interrupted:
        _write(args, interrupted.optimization)
        return INTERRUPTED
    _write(args, result)
    return 0


def _write(args: Namespace, result: Optimization) -> None:
    if args.html is not None:
        save_page(args.html, result)
    emit(args, result)
