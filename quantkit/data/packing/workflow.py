"""Packing of a source into shards: the whole of it."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

from quantkit.arguments import expand_user, public, require_callable, require_path, require_positive, require_text
from quantkit.cores import available_cores
from quantkit.data.packing.cifar import SPLITS
from quantkit.data.packing.examples import ImageOptions
from quantkit.data.packing.index import Index, Journal, index_path
from quantkit.data.packing.items import Source
from quantkit.data.packing.plan import ShardTask, divide
from quantkit.data.packing.pool import write_all
from quantkit.data.packing.report import PackResult
from quantkit.data.packing.sources import find_source
from quantkit.data.packing.writer import Shard
from quantkit.errors import InputError, UsageError
from quantkit.formats.paths import make_folder
from quantkit.options import Declaration, option, takes
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.zoo.cache import lock
from quantkit.zoo.datasets import data_cards, obtain_data

DEFAULT_SHARD_SIZE = "100MB"
ENCODINGS = ("jpeg", "png")
_SUFFIX_BYTES = {"": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


@dataclass(frozen=True)
class PackOptions:
    """The arguments of `pack`."""

    source: Annotated[
        str | os.PathLike[str],
        Declaration(
            require_path,
            doc="folder of images, list file, ``.npz`` or ``.npy`` file, TFRecord files, tar file of images, archive "
            "or folder of CIFAR-10 or CIFAR-100 (python or binary version), or the name of a data card: ``cifar10``",
        ),
    ]
    output: Annotated[
        str | os.PathLike[str],
        Declaration(
            require_path,
            metavar="FOLDER",
            help="folder of the shards",
            doc="folder of the shards, which is created if necessary",
        ),
    ]
    _: KW_ONLY
    shard_size: str | int = option(
        DEFAULT_SHARD_SIZE,
        help=f"approximate size of a shard (default: {DEFAULT_SHARD_SIZE})",
        doc=f"approximate size of a shard, in bytes or as text (default: ``{DEFAULT_SHARD_SIZE}``)",
    )
    name: str | None = option(
        None,
        require_text,
        help="first part of the file names (default: from the source)",
        doc="first part of the file names ``NAME-00000-of-00012.tfrecord`` (default: from the source)",
    )
    split: str | None = option(None, choices=SPLITS, help="part of a CIFAR archive (default: train)")
    keep_order: bool = option(
        False, help="keep the order of the source (default: a fixed random order, which mixes the classes)"
    )
    encode: str | None = option(None, choices=ENCODINGS, help="encode every image again (default: keep the files)")
    quality: int = option(95, require_positive, help="JPEG quality of encoded images, 1 to 100 (default: 95)")
    resize: int | None = option(
        None, require_positive, metavar="PIXELS", help="reduce larger images to this size of the shorter side"
    )
    check_pixels: bool = option(False, help="decode every image to find damaged ones (default: headers only)")
    workers: int | None = option(None, require_positive, help="number of processes (default: one per core)")
    url: str | None = option(None, require_text, help="URL of another archive for a data card: http, https or file")
    sha256: str | None = option(None, require_text, help="SHA-256 digest of the file at --url")
    offline: bool = option(False, help="never download; fail if the archive is not cached")
    on_progress: OnProgress = option(
        ignore_progress, require_callable, doc="receives the number of samples that were read; the step has the rate"
    )
    on_message: OnMessage = option(
        ignore_message, require_callable, doc="receives messages about downloads and about work that is resumed"
    )


@public
@takes(PackOptions)
def pack(options: PackOptions) -> PackResult:
    """Pack samples into TFRecord shards with an index and a label file.

    An interrupted call is resumed by the same call; the bytes of the shards do not depend on interruptions or on the
    number of workers. Damaged images are listed in the result and in the index.

    Raises:
        UsageError: an argument is wrong, or the folder has shards of another packing.
        InputError: the source does not exist, is damaged or changes during the work, or the folder is not writable.
    """
    shard_bytes, workers = parse_size(options.shard_size), options.workers or available_cores()
    if options.quality > 100:
        raise UsageError(f"quality is {options.quality}, and must be at most 100", hint="for example quality=95")
    started = monotonic()
    path, title = _locate(options)
    name = _check_name(options.name or (f"{title}-{options.split}" if options.split else title))
    folder = make_folder(expand_user(options.output))
    images = ImageOptions(options.encode or "", options.quality, options.resize, options.check_pixels)
    with _lock(folder, options.on_message):
        work = folder / f".{name}.source.tar"
        options.on_progress(Progress("listing", 0))
        samples = find_source(path, options.split or "", work)
        _check_classes(samples.classes)
        if samples.kind == "record" and (options.encode or options.resize):
            raise UsageError(f"{path} has records, which are copied unchanged", hint="remove --encode and --resize")
        samples = samples if options.keep_order else samples.shuffle()
        tasks = divide(samples, name, shard_bytes, images)
        _check_folder(folder, name, tasks)
        index, pending = _write_missing(folder, name, samples, tasks, images, workers, options)
        work.unlink(missing_ok=True)
    return PackResult(
        folder,
        index,
        tuple(task.file for task in pending),
        sum(task.num_bytes for task in pending),
        monotonic() - started,
        min(workers, max(len(pending), 1)),
        samples.notes,
    )


def _write_missing(
    folder: Path,
    name: str,
    samples: Source,
    tasks: Sequence[ShardTask],
    images: ImageOptions,
    workers: int,
    options: PackOptions,
) -> tuple[Index, list[ShardTask]]:
    """Write the shards that earlier calls have not finished, and the index; return the index and the new shards."""
    journal = Journal(folder, name)
    finished = journal.find_finished(tasks)
    pending = [task for task in tasks if task.file not in finished]
    if finished and pending:
        options.on_message(f"resuming: {len(finished)} of {len(tasks)} shards are complete")
    if pending or not index_path(folder, name).exists():
        journal.begin(finished)
    report = _rate_reporter(samples, finished.keys(), tasks, options.on_progress)

    def finish(shard: Shard) -> None:
        finished[shard.file] = shard
        journal.add(shard)

    write_all(folder, pending, samples, images, workers, finish, report)
    shards = tuple(finished[task.file] for task in tasks)
    index = Index(name, samples.name, samples.classes, shards, images.to_json())
    if journal.path.exists():
        index.write(folder)
        journal.path.unlink()
    return index, pending


def parse_size(value: str | int) -> int:
    """Return a size in bytes.

    Args:
        value: number of bytes, or a text such as ``100MB`` or ``64MiB``.

    Raises:
        UsageError: the value is not a positive size.

    >>> parse_size("100MB")
    100000000
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", str(value).strip())
    multiplier = _SUFFIX_BYTES.get(match[2].upper().removesuffix("B") + "B" if match[2] else "") if match else None
    size = int(float(match[1]) * multiplier) if match and multiplier else 0
    if size < 1:
        raise UsageError(
            f"shard_size is {value!r}, and must be a size such as 100MB", hint="the suffixes are kB, MB and GB"
        )
    return size


def _locate(options: PackOptions) -> tuple[Path, str]:
    """Return the path of the source, downloaded if it is a data card, and the name of the shards."""
    source, path = os.fspath(options.source), expand_user(options.source)
    cards = {card.name: card for card in data_cards()}
    if not path.exists() and source in cards:
        names = ("url", "sha256", "offline", "on_progress", "on_message")
        return obtain_data(cards[source], **{name: getattr(options, name) for name in names}), source
    if options.url or options.sha256:
        raise UsageError(f"{source} is not a data card: it has no url", hint=f"cards: {', '.join(cards)}")
    stem = os.path.basename(os.path.realpath(path))
    stem = stem.partition(".")[0] if path.is_file() else stem
    return path, re.sub(r"[^\w-]+", "_", stem) or "data"


def _check_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w-]*", name):
        raise UsageError(f"name is {name!r}, and must consist of letters, digits, '-' and '_'", hint="--name train")
    return name


def _check_classes(names: Sequence[str]) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(f"the class name {name!r} is not UTF-8", hint="rename its folder") from None


@contextmanager
def _lock(folder: Path, on_message: OnMessage) -> Iterator[None]:
    """Lock a folder against other packings; block until it is free."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, f"another process is packing into {folder}", on_message)
        yield
    finally:
        os.close(descriptor)


def _check_folder(folder: Path, name: str, tasks: Sequence[ShardTask]) -> None:
    """Check that the folder has no shards of another division of the samples.

    Raises:
        UsageError: the folder has such shards.
    """
    expected = {task.file for task in tasks}
    pattern = re.compile(rf"{re.escape(name)}-\d{{5}}-of-\d{{5}}\.tfrecord")
    others = sorted(
        file.name for file in folder.iterdir() if pattern.fullmatch(file.name) and file.name not in expected
    )
    if others:
        raise UsageError(
            f"{folder} has shards of another packing: {others[0]}",
            hint="the source or the shard size differs: remove the shards, or choose another folder or --name",
        )


def _rate_reporter(
    samples: Source, finished: object, tasks: Sequence[ShardTask], on_progress: OnProgress
) -> Callable[[int, int], None]:
    """Return a function that adds samples and bytes to the progress, and shows the rate."""
    assert hasattr(finished, "__contains__")
    done = sum(len(task.items) for task in tasks if task.file in finished)
    read_bytes, started = 0, monotonic()

    def report(count: int, num_bytes: int) -> None:
        nonlocal done, read_bytes
        done += count
        read_bytes += num_bytes
        rate = read_bytes / 1e6 / max(monotonic() - started, 1e-3)
        on_progress(Progress("packing", done, len(samples.items), f"{rate:.1f} MB/s"))

    return report
