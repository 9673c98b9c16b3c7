"""``quantkit optimize``: the fastest file, runtime and settings of a model inside an accuracy bound."""

from argparse import ArgumentParser, Namespace

from quantkit.formats import check_outputs
from quantkit.optimize import Optimization, OptimizationInterrupted, optimize
from quantkit.optimize.page import save_page
from quantkit.optimize.verb import OptimizeOptions

from ._app import INTERRUPTED
from ._arguments import add_model_flags, add_options, options_of
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
    add_options(parser, OptimizeOptions, first=["output"], until="labels")
    parser.add_argument("--html", metavar="PAGE", help="write a page with the front, all candidates, and the reasons")
    add_options(parser, OptimizeOptions, since="labels")
    add_model_flags(parser)


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
