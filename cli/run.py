"""``quantkit run``: batch inference over many files, on several processes, GPUs or machines."""

from argparse import ArgumentParser, Namespace

from quantkit.batch_inference import FORMATS, ROWS
from quantkit.batch_inference import run as run_model
from quantkit.batch_inference.workflow import RETRIES, SHARD_SIZE
from quantkit.workers import CLUSTERS, DEVICES

from ._arguments import (
    add_classifier_flags,
    add_dataset,
    add_model_flags,
    add_precision,
    options_of,
    parse_natural,
    parse_positive,
)
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
    add_dataset(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="folder of the result files")
    parser.add_argument("--workers", type=parse_positive, default=1, help="number of worker processes (default: 1)")
    parser.add_argument(
        "--threads", type=parse_positive, help="threads of each worker (default: the cores, divided among the workers)"
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="device of the workers; gpu: one GPU each (default: cpu)",
    )
    parser.add_argument(
        "--cluster", choices=CLUSTERS, default="local", help="processes on this machine, or Ray (default: local)"
    )
    parser.add_argument("--address", default="", help="address of a running Ray cluster (default: Ray on this machine)")
    parser.add_argument("--format", choices=tuple(FORMATS), default="jsonl", help="form of the files (default: jsonl)")
    parser.add_argument(
        "--rows",
        choices=ROWS,
        default="auto",
        help="content of the rows: the most probable class, or all outputs (default: classes for class scores)",
    )
    parser.add_argument(
        "--shard-size",
        type=parse_positive,
        default=SHARD_SIZE,
        help=f"samples per result file (default: {SHARD_SIZE})",
    )
    parser.add_argument(
        "--retries",
        type=parse_natural,
        default=RETRIES,
        help=f"attempts after the first one, for each shard (default: {RETRIES})",
    )
    add_classifier_flags(parser)
    add_precision(parser)
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
