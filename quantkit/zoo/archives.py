"""Extraction of files from an untrusted archive.

The whole archive is rejected if an entry has an absolute path or ``..``, or is neither a regular
file nor a folder. Only requested entries are written; sizes are counted during decompression,
because headers are not trusted.
"""

import gzip
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Literal

from quantkit.zoo.cache import FileDigest, SourceError, open_for_writing, translate_write_errors

MAX_MEMBER_BYTES = 2 << 30
MAX_TOTAL_BYTES = 8 << 30
MAX_READ_BYTES = 16 << 20
MAX_ENTRIES = 10_000
CHUNK_BYTES = 1 << 20

Kind = Literal["gzip", "tar", "zip", "other"]


@dataclass(frozen=True)
class _Entry:
    """Entry of an archive."""

    name: str
    is_file: bool
    is_folder: bool
    open: Callable[[], IO[bytes]]


def kind_of(path: Path) -> Kind:
    """Return the kind of a file from its first bytes."""
    with path.open("rb") as file:
        head = file.read(265)
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    return "tar" if head[257:262] == b"ustar" else "other"


def extract(archive: Path, names: Collection[str], folder: Path) -> dict[str, FileDigest]:
    """Extract entries of an archive to a folder.

    Args:
        archive: tar, tar.gz or zip file.
        names: names of the entries to extract; missing entries are not an error.
        folder: an existing folder; sub-folders are created.

    Returns:
        Size and digest of the extracted files by name.

    Raises:
        SourceError: the archive is damaged, unsafe or too large.
        InputError: the folder is not writable.
    """
    written: dict[str, FileDigest] = {}
    with _translate_archive_errors(archive), _open_archive(archive) as entries:
        for count, entry in enumerate(entries):
            if count >= MAX_ENTRIES:
                raise SourceError(f"the archive has more than {MAX_ENTRIES:,} entries")
            name = safe_name(entry.name)
            if not (entry.is_file or entry.is_folder):
                raise SourceError(f"the archive is rejected: {entry.name!r} is a link or a device")
            if not entry.is_file or name not in names:
                continue
            if name in written:
                raise SourceError(f"the archive is rejected: it has {name!r} twice")
            with entry.open() as source:
                written[name] = copy(source, folder / name)
    return written


def safe_name(name: str) -> str:
    """Return an entry's name without ``./``.

    Raises:
        SourceError: the path leaves the folder, or the name is not printable.

    >>> safe_name("./models/graph.pb")
    'models/graph.pb'
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    climbs = ".." in parts or name.startswith("/") or "\\" in name or re.match("[A-Za-z]:", "/".join(parts))
    if climbs or not name.isprintable() or any(len(part.encode()) > 255 for part in parts):
        raise SourceError(f"the archive is rejected: an entry has the name {name[:200]!r}")
    return "/".join(parts)


def copy(source: IO[bytes], target: Path) -> FileDigest:
    """Copy a stream to a new file.

    Raises:
        SourceError: the stream exceeds `MAX_MEMBER_BYTES`.
    """
    digest, num_bytes = sha256(), 0
    with translate_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with open_for_writing(target, "wb") as write:
        while block := source.read(CHUNK_BYTES):
            num_bytes += len(block)
            if num_bytes > MAX_MEMBER_BYTES:
                raise SourceError(f"{target.name} has more than {MAX_MEMBER_BYTES:,} bytes")
            digest.update(block)
            write(block)
    return FileDigest(num_bytes, digest.hexdigest())


@contextmanager
def _open_archive(archive: Path) -> Iterator[Iterator[_Entry]]:
    kind = kind_of(archive)
    if kind == "zip":
        with zipfile.ZipFile(archive) as packed:
            yield _zip_entries(packed)
        return
    with gzip.open(archive) if kind == "gzip" else archive.open("rb") as raw:
        stream = _BoundedStream(raw)  # type: ignore[arg-type]
        with tarfile.open(fileobj=stream, mode="r:") as tape:  # type: ignore[call-overload]
            yield _tar_entries(tape)
            stream.drain()


def _zip_entries(packed: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in packed.infolist():
        file_type = stat.S_IFMT(info.external_attr >> 16)
        is_folder = info.filename.endswith("/")
        is_file = not is_folder and file_type in (0, stat.S_IFREG)
        # `filename` is cut at a NUL and has converted separators: the original name is checked.
        yield _Entry(info.orig_filename, is_file, is_folder, partial(packed.open, info))


def _tar_entries(tape: tarfile.TarFile) -> Iterator[_Entry]:
    for info in tape:
        yield _Entry(info.name, info.isreg(), info.isdir(), partial(_tar_file, tape, info))


def _tar_file(tape: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = tape.extractfile(info)
    if file is None:
        raise tarfile.TarError(f"{info.name!r} has no contents")
    return file


class _BoundedStream:
    """Decompressed tar with a maximum size, and a maximum size of each read."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise SourceError("the archive is rejected: it has a header of unreasonable length")
        self._check(self._raw.tell() + size)
        return self._raw.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._check(offset)
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def drain(self) -> None:
        """Read to the end, where the checksum of the compressed stream is verified."""
        while self.read(CHUNK_BYTES):
            pass

    def _check(self, offset: int) -> None:
        if offset > MAX_TOTAL_BYTES:
            raise SourceError(f"the archive is rejected: it unpacks to more than {MAX_TOTAL_BYTES:,} bytes")


@contextmanager
def _translate_archive_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, zipfile.BadZipFile, ValueError) as error:
        reason = "unexpected end of file" if isinstance(error, EOFError) else str(error)
        raise SourceError(f"the archive is damaged: {reason}", hint="download it again") from None
    except (RuntimeError, NotImplementedError) as error:  # zipfile: encryption or an unknown compression
        raise SourceError(f"the archive cannot be read: {error}") from None
