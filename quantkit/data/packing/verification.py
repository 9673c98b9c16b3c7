"""Verification of shards: every byte against the checksums of the index, or of the records."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from pathlib import Path
from time import monotonic

from quantkit.arguments import expand_user, public, require_path, require_positive, without_none
from quantkit.cores import available_cores
from quantkit.data.packing.index import read_index
from quantkit.data.packing.report import VerificationResult
from quantkit.data.packing.writer import Shard
from quantkit.errors import InputError
from quantkit.formats.tfrecord import find_damaged_record, is_tfrecord
from quantkit.progress import OnProgress, Progress, ignore_progress

_INDEX_SUFFIX = ".index.json"


@public
def verify(
    path: str | os.PathLike[str], *, workers: int | None = None, on_progress: OnProgress = ignore_progress
) -> VerificationResult:
    """Verify TFRecord files: each byte against the index in the same folder, or else each record against its checksum.

    Args:
        path: folder with one or several indexes or TFRecord files, an index file, or a TFRecord file.
        workers: number of threads (default: one per core).
        on_progress: receives the number of finished files.

    Raises:
        InputError: the path does not exist, contains neither an index nor TFRecord files, or cannot be read.
    """
    require_path(path=path)
    require_positive(**without_none(workers=workers))
    started = monotonic()
    checks = _list_checks(expand_user(path))
    problems: dict[str, str] = {}
    with ThreadPoolExecutor(workers or available_cores()) as pool:
        for (file, _), problem in zip(checks, pool.map(_describe_damage, checks), strict=True):
            problems[file.name] = problem
            on_progress(Progress("verifying", len(problems), len(checks)))
    num_bytes = sum(map(_file_size, {file for file, _ in checks}))
    packed = frozenset(file.name for file, shard in checks if shard)
    return VerificationResult(problems, num_bytes, monotonic() - started, packed)


def _list_checks(path: Path) -> list[tuple[Path, Shard | None]]:
    """Return the files to verify, each with its entry of the index, if any."""
    if not path.exists():
        raise InputError(f"{path} does not exist", hint="give the folder of the shards")
    if path.is_dir():
        indexes = sorted(path.glob(f"*{_INDEX_SUFFIX}"))
        checks = [check for index in indexes for check in _read_index_checks(index)]
        indexed_files = {file for file, _ in checks}
        others = sorted(file for file in path.iterdir() if file.is_file() and is_tfrecord(file))
        checks += [(file, None) for file in others if file not in indexed_files and not file.name.startswith(".")]
    else:
        checks = _read_index_checks(path) if path.name.endswith(_INDEX_SUFFIX) else [_single(path)]
    if not checks:
        raise InputError(f"{path} contains neither an index nor TFRecord files", hint="give the folder of the shards")
    return checks


def _read_index_checks(index: Path) -> list[tuple[Path, Shard | None]]:
    return [(index.with_name(shard.file), shard) for shard in read_index(index).shards]


def _single(path: Path) -> tuple[Path, Shard | None]:
    shards: Sequence[Shard] = ()
    name = path.name.partition("-0")[0]
    if (index := path.with_name(f"{name}{_INDEX_SUFFIX}")).exists():
        shards = read_index(index).shards
    shard = next((shard for shard in shards if shard.file == path.name), None)
    if shard is None and not is_tfrecord(path):
        raise InputError(f"{path} is not a TFRecord file, or its first record is damaged", hint="give another file")
    return path, shard


def _file_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _describe_damage(check: tuple[Path, Shard | None]) -> str:
    """Return a description of the damage of a file; empty if the file is intact."""
    file, shard = check
    try:
        if not file.is_file():
            return "the file is missing"
        if shard is None:
            return find_damaged_record(file)
        size = file.stat().st_size
        if size != shard.num_bytes:
            return f"the file has {size:,} bytes, not {shard.num_bytes:,}"
        with file.open("rb") as content:
            if file_digest(content, "sha256").hexdigest() == shard.sha256:
                return ""
        return find_damaged_record(file) or "the content differs from the index, with intact records"
    except InputError as error:
        return error.message
    except PermissionError:
        raise InputError(f"{file} cannot be read: permission denied", hint="change its permissions") from None
    except OSError as error:
        return f"the file cannot be read: {(error.strerror or 'unknown error').lower()}"
