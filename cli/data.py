"""``quantkit data``: shards of datasets, and input pipelines."""

from argparse import ArgumentParser, Namespace

from quantkit import data
from quantkit.data.packing.workflow import PackOptions
from quantkit.data.profiling import DataProfileOptions
from quantkit.formats import check_distinct
from quantkit.pipelines.loading import run_function
from quantkit.pipelines.optimization import PipelineOptions

from ._arguments import add_options, options_of, parse_positive
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit data pack images/ -o shards/ --shard-size 100MB",
    "quantkit data pack cifar10 -o shards/ --url file:///tmp/cifar-10-python.tar.gz --sha256 DIGEST",
    "quantkit data verify shards/",
    "quantkit data profile pipeline.py:make_dataset --step-time 0.05",
    "quantkit data optimize pipeline.py:make_dataset --explain",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="pack|verify|profile|optimize")
    _add_pack(actions.add_parser("pack", help="pack samples into TFRecord shards with an index; resumes after a kill"))
    verify = actions.add_parser("verify", help="verify each byte of shards against their checksums")
    verify.add_argument("path", help="folder of shards, index file or TFRecord file")
    verify.add_argument("--workers", type=parse_positive, help="number of threads (default: one per core)")
    _add_profile(actions.add_parser("profile", help="measure the stages of a tf.data pipeline, and find the limit"))
    _add_optimize(
        actions.add_parser("optimize", help="rewrite a tf.data pipeline; each rewrite is verified and measured")
    )


def _add_profile(parser: ArgumentParser) -> None:
    parser.add_argument(
        "data",
        metavar="FILE.py:FUNCTION|DATA",
        help="function that returns a tf.data.Dataset; or image folder, list file or TFRecord files",
    )
    add_options(parser, DataProfileOptions)


def _add_optimize(parser: ArgumentParser) -> None:
    parser.add_argument("function", metavar="FILE.py:FUNCTION", help="function that returns a tf.data.Dataset")
    add_options(parser, PipelineOptions)
    parser.add_argument("--explain", action="store_true", help="print the changes and skips of each rewrite")


def _add_pack(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help="image folder, list file, .npz or .npy, TFRecord files, tar file, CIFAR archive, or a data card: cifar10",
    )
    add_options(parser, PackOptions)


def run(args: Namespace) -> int:
    """Run the subcommand."""
    return {"pack": _pack, "verify": _verify, "profile": _profile, "optimize": _optimize}[args.action](args)


def _pack(args: Namespace) -> int:
    with show_progress(args) as show:
        try:
            result = data.pack(
                **options_of(data.pack, args), on_progress=show, on_message=lambda message: log(args, message)
            )
        except KeyboardInterrupt:
            log(args, "complete shards are kept: run the same command to resume")
            raise
    emit(args, result)
    return 0


def _verify(args: Namespace) -> int:
    with show_progress(args) as show:
        result = data.verify(args.path, workers=args.workers, on_progress=show)
    emit(args, result)
    result.check()
    return 0


def _profile(args: Namespace) -> int:
    source = run_function(args.data) if ".py:" in args.data else args.data
    result = data.profile(source, **options_of(data.profile, args, "data"))
    emit(args, result)
    return 0


def _optimize(args: Namespace) -> int:
    check_distinct({"--output": args.output}, {"the pipeline": args.function.rpartition(":")[0]})
    dataset = run_function(args.function)
    with show_progress(args) as show:
        result = data.optimize(dataset, **options_of(data.optimize, args), on_progress=show)
    emit(args, result, "\n".join(result.lines(explain=args.explain)))
    return 0
