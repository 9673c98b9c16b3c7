"""``quantkit data``: shards of datasets."""

from argparse import ArgumentParser, Namespace

from quantkit import data
from quantkit.data.packing.cifar import SPLITS
from quantkit.data.packing.workflow import DEFAULT_SHARD_SIZE, ENCODINGS

from ._arguments import add_offline, parse_positive
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit data pack images/ -o shards/ --shard-size 100MB",
    "quantkit data pack cifar10 -o shards/ --url file:///tmp/cifar-10-python.tar.gz --sha256 DIGEST",
    "quantkit data verify shards/",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="pack|verify")
    _add_pack(actions.add_parser("pack", help="pack samples into TFRecord shards with an index; resumes after a kill"))
    verify = actions.add_parser("verify", help="verify each byte of shards against their checksums")
    verify.add_argument("path", help="folder of shards, index file or TFRecord file")
    for action in actions.choices.values():
        action.add_argument(
            "--workers", type=parse_positive, help="number of processes or threads (default: one per core)"
        )


def _add_pack(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help="image folder, list file, .npz or .npy, TFRecord files, tar file, CIFAR archive, or a data card: cifar10",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="folder of the shards")
    parser.add_argument(
        "--shard-size", default=DEFAULT_SHARD_SIZE, help=f"approximate size of a shard (default: {DEFAULT_SHARD_SIZE})"
    )
    parser.add_argument("--name", help="first part of the file names (default: from the source)")
    parser.add_argument("--split", choices=SPLITS, help="part of a CIFAR archive (default: train)")
    parser.add_argument(
        "--keep-order",
        action="store_true",
        help="keep the order of the source (default: a fixed random order, which mixes the classes)",
    )
    parser.add_argument("--encode", choices=ENCODINGS, help="encode every image again (default: keep the files)")
    parser.add_argument(
        "--quality", type=parse_positive, default=95, help="JPEG quality of encoded images, 1 to 100 (default: 95)"
    )
    parser.add_argument(
        "--resize", type=parse_positive, metavar="PIXELS", help="reduce larger images to this size of the shorter side"
    )
    parser.add_argument(
        "--check-pixels", action="store_true", help="decode every image to find damaged ones (default: headers only)"
    )
    parser.add_argument("--url", help="URL of another archive for a data card: http, https or file")
    parser.add_argument("--sha256", help="SHA-256 digest of the file at --url")
    add_offline(parser)


def run(args: Namespace) -> int:
    """Pack or verify."""
    return {"pack": _pack, "verify": _verify}[args.action](args)


def _pack(args: Namespace) -> int:
    names = ("shard_size", "name", "split", "keep_order", "encode", "quality", "resize", "check_pixels", "workers")
    options = {name: getattr(args, name) for name in (*names, "url", "sha256", "offline")}
    with show_progress(args) as show:
        try:
            result = data.pack(
                args.source,
                args.output,
                **options,
                on_progress=show,
                on_message=lambda message: log(args, message),
            )
        except KeyboardInterrupt:
            log(args, "complete shards are kept: run the same command to resume")
            raise
    document = result.to_json()
    emit(args, document["schema"], document, str(result))
    return 0


def _verify(args: Namespace) -> int:
    with show_progress(args) as show:
        result = data.verify(args.path, workers=args.workers, on_progress=show)
    document = result.to_json()
    emit(args, document["schema"], document, str(result))
    result.check()
    return 0
