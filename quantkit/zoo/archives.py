"""Taking files out of an archive that nobody has vouched for.

An archive is refused as a whole when any entry is absolute, climbs with ``..``, or is neither a regular file nor a
folder. Only wanted entries are written; sizes are counted while decompressing, never believed.
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

from quantkit.zoo.cache import SourceError, Stored, opened, writing

MAX_MEMBER_BYTES = 2 << 30
MAX_TOTAL_BYTES = 8 << 30
MAX_READ_BYTES = 16 << 20
MAX_ENTRIES = 10_000
CHUNK_BYTES = 1 << 20

Kind = Literal["gzip", "tar", "zip", "other"]


@dataclass(frozen=True)
class _Entry:
    """One thing in an archive."""

    name: str
    is_file: bool
    is_folder: bool
    open: Callable[[], IO[bytes]]


def kind_of(path: Path) -> Kind:
    """What a file is, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(265)
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    return "tar" if head[257:262] == b"ustar" else "other"


def extract(archive: Path, wanted: Collection[str], folder: Path) -> dict[str, Stored]:
    """Write the wanted entries of an archive into a folder.

    Args:
        archive: tar, tar.gz or zip.
        wanted: names of entries; those that are not there are not an error here.
        folder: exists; gets sub-folders as names have them.

    Returns:
        What was written, by name.

    Raises:
        SourceError: the archive is damaged, unsafe or too large.
        InputError: the folder can not be written.
    """
    written: dict[str, Stored] = {}
    with _damage(archive), _opened(archive) as entries:
        for count, entry in enumerate(entries):
            if count >= MAX_ENTRIES:
                raise SourceError(f"the archive has more than {MAX_ENTRIES:,} entries")
            name = safe_name(entry.name)
            if not (entry.is_file or entry.is_folder):
                raise SourceError(f"the archive is refused: {entry.name!r} is a link or a device")
            if not entry.is_file or name not in wanted:
                continue
            if name in written:
                raise SourceError(f"the archive is refused: it has {name!r} twice")
            with entry.open() as source:
                written[name] = copy(source, folder / name)
    return written


def safe_name(name: str) -> str:
    """An entry's name without ``./``.

    Raises:
        SourceError: following it could leave the folder, or the name is not printable.

    >>> safe_name("./models/graph.pb")
    'models/graph.pb'
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    climbs = ".." in parts or name.startswith("/") or "\\" in name or re.match("[A-Za-z]:", "/".join(parts))
    if climbs or not name.isprintable() or any(len(part.encode()) > 255 for part in parts):
        raise SourceError(f"the archive is refused: an entry is called {name[:200]!r}")
    return "/".join(parts)


def copy(source: IO[bytes], target: Path) -> Stored:
    """Copy a stream to a new file.

    Raises:
        SourceError: it is longer than any model.
    """
    digest, num_bytes = sha256(), 0
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with opened(target, "wb") as write:
        while block := source.read(CHUNK_BYTES):
            num_bytes += len(block)
            if num_bytes > MAX_MEMBER_BYTES:
                raise SourceError(f"{target.name} has more than {MAX_MEMBER_BYTES:,} bytes")
            digest.update(block)
            write(block)
    return Stored(num_bytes, digest.hexdigest())


@contextmanager
def _opened(archive: Path) -> Iterator[Iterator[_Entry]]:
    kind = kind_of(archive)
    if kind == "zip":
        with zipfile.ZipFile(archive) as packed:
            yield _zip_entries(packed)
        return
    with gzip.open(archive) if kind == "gzip" else archive.open("rb") as raw:
        stream = _Bounded(raw)  # type: ignore[arg-type]
        with tarfile.open(fileobj=stream, mode="r:") as tape:  # type: ignore[call-overload]
            yield _tar_entries(tape)
            stream.drain()


def _zip_entries(packed: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in packed.infolist():
        file_type = stat.S_IFMT(info.external_attr >> 16)
        is_folder = info.filename.endswith("/")
        is_file = not is_folder and file_type in (0, stat.S_IFREG)
        # filename is cut at a NUL and has other systems' separators turned: judge what is in the file.
        yield _Entry(info.orig_filename, is_file, is_folder, partial(packed.open, info))


def _tar_entries(tape: tarfile.TarFile) -> Iterator[_Entry]:
    for info in tape:
        yield _Entry(info.name, info.isreg(), info.isdir(), partial(_tar_file, tape, info))


def _tar_file(tape: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = tape.extractfile(info)
    if file is None:
        raise tarfile.TarError(f"{info.name!r} has no contents")
    return file


class _Bounded:
    """A decompressed tar that refuses to grow beyond what models need, or to be read in one gulp."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise SourceError("the archive is refused: it has a header of unreasonable length")
        self._check(self._raw.tell() + size)
        return self._raw.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._check(offset)
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def drain(self) -> None:
        """Read to the end: only there is the checksum of the compressed stream."""
        while self.read(CHUNK_BYTES):
            pass

    def _check(self, offset: int) -> None:
        if offset > MAX_TOTAL_BYTES:
            raise SourceError(f"the archive is refused: it unpacks to more than {MAX_TOTAL_BYTES:,} bytes")


@contextmanager
def _damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, zipfile.BadZipFile, ValueError) as error:
        reason = "it ends too early" if isinstance(error, EOFError) else str(error)
        raise SourceError(f"the archive is damaged: {reason}", hint="download it again") from None
    except (RuntimeError, NotImplementedError) as error:  # zipfile: encrypted, or packed in an unknown way
        raise SourceError(f"the archive can not be read: {error}") from None
