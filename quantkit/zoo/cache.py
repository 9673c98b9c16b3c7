"""The folder where downloads live, who may change it, and what is known of each download.

QUANTKIT_CACHE or ~/.cache/quantkit/
    NAME/               a complete, verified model and its receipt.json
    NAME.lock           held by the one process that changes NAME
    NAME-1a2b3c4d.part  a download that was interrupted, and goes on at the next fetch
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

from quantkit.errors import InputError
from quantkit.progress import OnMessage

RECEIPT = "receipt.json"
SCHEMA = "quantkit.receipt/1"


class SourceError(InputError):
    """This source can not give what is wanted; another one may."""


@dataclass(frozen=True)
class Stored:
    """Size and digest of a file in the cache."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Receipt:
    """Where a model in the cache came from.

    Attributes:
        url: its source.
        num_bytes, sha256: of the file that was downloaded.
        verified: what vouched for it: ``archive`` or ``members`` (the card's checksums), ``given`` (the caller's)
            or ``nothing``.
        members: the files that were kept.
        warnings: what its user should know.
    """

    url: str
    num_bytes: int
    sha256: str
    verified: str
    members: Mapping[str, Stored]
    warnings: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        with writing(folder):
            text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)
            (folder / RECEIPT).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Receipt | None":
        """The receipt of a folder; None where there is none, or its files are not all there in full size."""
        try:
            table = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
            if table.pop("schema") != SCHEMA:
                return None
            members = {name: Stored(**stored) for name, stored in table.pop("members").items()}
            receipt = cls(members=members, warnings=tuple(table.pop("warnings")), **table)
            is_whole = all((folder / name).stat().st_size == stored.num_bytes for name, stored in members.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return receipt if is_whole else None


def cache_folder() -> Path:
    """Where downloads live: ``QUANTKIT_CACHE``, or ``~/.cache/quantkit``. It need not exist yet."""
    chosen = os.environ.get("QUANTKIT_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "quantkit"


def part_of(name: str, url: str) -> Path:
    """The unfinished download of a model from a URL."""
    return cache_folder() / f"{name}-{sha256(url.encode()).hexdigest()[:8]}.part"


@contextmanager
def locked(name: str, on_message: OnMessage) -> Iterator[None]:
    """Hold the right to change a model of the cache; waits while another process has it."""
    import fcntl

    path = cache_folder() / f"{name}.lock"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_message(f"another process is fetching {name}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """A folder to fill, which then becomes the model's; gone when an error or an interrupt leaves the block."""
    root = cache_folder()
    for left in root.glob(f".{name}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    folder, aside = (root / f".{name}.{role}.tmp" for role in ("new", "old"))
    try:
        with writing(folder):
            folder.mkdir(parents=True)
        yield folder
        target = root / name
        with writing(target):
            if target.exists():
                target.rename(aside)
            folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def drop_parts(name: str) -> None:
    """Forget unfinished downloads of a model."""
    for path in cache_folder().glob(f"{name}-*.part*"):
        path.unlink(missing_ok=True)


@contextmanager
def opened(path: Path, mode: Literal["wb", "ab"]) -> Iterator[Callable[[bytes], None]]:
    """A file to write block by block, each on the disk before the next one comes.

    Only what the file system refuses becomes an `InputError`; errors of whoever reads the blocks pass as they are.
    """
    with writing(path):
        file = path.open(mode)

    def write(block: bytes) -> None:
        with writing(path):
            file.write(block)
            file.flush()

    try:
        yield write
    finally:
        with writing(path):  # what a full disk refused is tried once more
            file.close()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into a sentence."""
    try:
        yield
    except OSError as error:
        elsewhere = "set QUANTKIT_CACHE to a folder elsewhere"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"free some space, or {elsewhere}; what was downloaded is kept and the next fetch goes on from there"
            raise InputError(f"the disk is full: {path} can not be written", hint) from None
        raise InputError(f"{path} can not be written: {error.strerror or error}", hint=elsewhere) from None
