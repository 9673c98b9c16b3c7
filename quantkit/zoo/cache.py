"""Download cache: its folder, the lock between processes, and a receipt for each model.

QUANTKIT_CACHE or ~/.cache/quantkit/
    NAME/               a complete, verified model and its receipt.json
    NAME.lock           lock of the process that changes NAME
    NAME-1a2b3c4d.part  an interrupted download, which the next fetch resumes
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from quantkit.arguments import expand_user
from quantkit.errors import InputError
from quantkit.progress import OnMessage

RECEIPT = "receipt.json"
SCHEMA = "quantkit.receipt/1"


class SourceError(InputError):
    """Failure of one source; another source may succeed."""


@dataclass(frozen=True)
class FileDigest:
    """Size and digest of a file in the cache."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Receipt:
    """Origin of a model in the cache.

    Attributes:
        url: source of the download.
        num_bytes, sha256: size and digest of the downloaded file.
        verified: checksums that were verified: ``archive`` or ``members`` (the card's), ``given``
            (the caller's), or ``nothing``.
        members: files in the cache.
        warnings: warnings for the user.
    """

    url: str
    num_bytes: int
    sha256: str
    verified: str
    members: Mapping[str, FileDigest]
    warnings: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        with translate_write_errors(folder):
            text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)
            (folder / RECEIPT).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Receipt | None":
        """Read the receipt of a folder; None if the receipt or a file is missing or incomplete."""
        try:
            table = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
            if table.pop("schema") != SCHEMA:
                return None
            members = {name: FileDigest(**stored) for name, stored in table.pop("members").items()}
            receipt = cls(members=members, warnings=tuple(table.pop("warnings")), **table)
            is_whole = all((folder / name).stat().st_size == stored.num_bytes for name, stored in members.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return receipt if is_whole else None


def cache_folder() -> Path:
    """Return the folder of downloads: ``QUANTKIT_CACHE``, or ``~/.cache/quantkit``.

    Raises:
        InputError: ``QUANTKIT_CACHE`` names the home of an unknown user.
    """
    folder = os.environ.get("QUANTKIT_CACHE")
    path = expand_user(folder or "~/.cache/quantkit")
    if str(path).startswith("~"):
        name = f"QUANTKIT_CACHE is {folder!r}" if folder else "the cache is ~/.cache/quantkit"
        raise InputError(f"{name}, the home of an unknown user", hint="set QUANTKIT_CACHE to a full path")
    return path.absolute()


def part_path(name: str, url: str) -> Path:
    """Return the path of the unfinished download of a model from a URL."""
    return cache_folder() / f"{name}-{sha256(url.encode()).hexdigest()[:8]}.part"


def lock(descriptor: int, reason: str, on_message: OnMessage) -> None:
    """Lock an open file or folder against other processes; block until the lock is free.

    Args:
        descriptor: the open file.
        reason: clause that names the other process, for the message.
        on_message: receives the message if the lock is not free.
    """
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_message(f"{reason}; waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextmanager
def lock_model(name: str, on_message: OnMessage) -> Iterator[None]:
    """Lock a model of the cache against other processes; block until the lock is free."""
    path = cache_folder() / f"{name}.lock"
    with translate_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        lock(file.fileno(), f"another process is fetching {name}", on_message)
        yield


@contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """Create a folder that becomes the model's, or is removed if the block fails."""
    root = cache_folder()
    for left in root.glob(f".{name}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    folder, aside = (root / f".{name}.{role}.tmp" for role in ("new", "old"))
    try:
        with translate_write_errors(folder):
            folder.mkdir(parents=True)
        yield folder
        target = root / name
        with translate_write_errors(target):
            if target.exists():
                target.rename(aside)
            folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def drop_parts(name: str) -> None:
    """Remove unfinished downloads of a model."""
    for path in cache_folder().glob(f"{name}-*.part*"):
        path.unlink(missing_ok=True)


@contextmanager
def open_for_writing(path: Path, mode: Literal["wb", "ab"]) -> Iterator[Callable[[bytes], None]]:
    """Open a file for writing block by block, with a flush after each block.

    Only errors of the file system become an `InputError`; other errors of the block propagate.
    """
    with translate_write_errors(path):
        file = path.open(mode)

    def write(block: bytes) -> None:
        with translate_write_errors(path):
            file.write(block)
            file.flush()

    try:
        yield write
    finally:
        with translate_write_errors(path):  # closing retries a write that failed on a full disk
            file.close()


@contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """Convert errors of the file system to `InputError`."""
    try:
        yield
    except OSError as error:
        elsewhere = "set QUANTKIT_CACHE to a folder elsewhere"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"free some space, or {elsewhere}; the partial download is kept, and the next fetch resumes it"
            raise InputError(f"the disk is full: {path} cannot be written", hint) from None
        raise InputError(f"{path} cannot be written: {error.strerror or error}", hint=elsewhere) from None
