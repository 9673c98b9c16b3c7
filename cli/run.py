"""``quantkit run``: batch inference over many files, on several processes, GPUs or machines."""

from argparse import ArgumentParser, Namespace

from quantkit.batch_inference import run as run_model
from quantkit.batch_inference.workflow import RunOptions

from ._arguments import add_model_flags, add_options, options_of
from ._loading import check_models, model_and_runtime
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit run digits --data assets/digits_heldout.npz -o results/ --workers 2 --limit 100",
    "quantkit run digits@reference --data assets -o tensors/ --rows tensors --format npz",
    "quantkit run inception_v3 --data images/ -o results/ --workers 8 --threads 4",
    "quantkit run small.onnx --data 'shards/train-*' -o results/ --cluster ray --address auto --workers 16",
)
DETAILS = """Each shard of the data has one result file, which appears complete or not at all. The same command runs the
missing shards only, for example after Ctrl-C.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("model", metavar="MODEL", help="model file or model card; FILE@RUNTIME selects its runtime")
    first = ("data", "limit", "batch", "runtime", "output")
    add_options(parser, RunOptions, first=first)
    add_model_flags(parser)


def run(args: Namespace) -> int:
    """Run the model, write the results, and print the report."""
    check_models(args, args.model)
    model, runtime = model_and_runtime(args, args.model)
    with show_progress(args) as on_progress:
        result = run_model(
            model,
            runtime=runtime,
            **options_of(run_model, args, "model", "runtime"),
            on_progress=on_progress,
            on_message=lambda message: log(args, message),
        )
    emit(args, result)
    return 0
