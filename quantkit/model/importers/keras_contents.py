"""What a Keras file holds, told by a process of its own: over a broken file, HDF5's library may never come to an end.

    stdin: [path of the file, seconds of a processor that it may take, bytes of values that are read at most]
    stdout: `Contents`, as JSON

All that Keras will read is read here first, so that a file which ends this process ends no other. This file imports
nothing of quantkit: it is run by its path.
"""

import io
import json
import stat
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
_OPTIMIZERS = ("optimizer", "optimizer_weights")
# Fixed part of what precedes each member of an archive; it ends with the lengths of a name and of what follows that.
_MEMBER_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True)
class Contents:
    """What is known of a Keras file without making its layers.

    Attributes:
        config: JSON that says which layers to make; None where there is none.
        num_bytes: of the values of the layers.
        escaping: the member of the archive that would lie outside of it; nothing where all are inside.
        elsewhere: the values that would be read from another file, likewise.
        error: why it can not be read.
    """

    config: str | None = None
    num_bytes: int = 0
    escaping: str = ""
    elsewhere: str = ""
    error: str = ""


def contents(path: Path, most_bytes: int) -> Contents:
    """Look through a file, and read its values if they are not more than ``most_bytes``."""
    import h5py

    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            with h5py.File(file, "r") as weights:
                return _with_weights(weights, weights.attrs.get("model_config"), most_bytes)
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if _escapes(info):
                    return Contents(escaping=info.filename)
            with _member(archive, WEIGHTS, file, most_bytes) as member, h5py.File(member, "r") as weights:
                return _with_weights(weights, archive.read(CONFIG), most_bytes)


def _escapes(info: zipfile.ZipInfo) -> bool:
    place = PurePosixPath(info.filename.replace("\\", "/"))
    is_link = stat.S_ISLNK(info.external_attr >> 16)
    return is_link or place.is_absolute() or ".." in place.parts or ":" in info.filename


def _with_weights(weights: Any, config: bytes | str | None, most_bytes: int) -> Contents:
    """What an open HDF5 file holds beside what to make; values are read as Keras will read them, and forgotten."""
    import h5py

    found: list[Any] = []

    def visit(name: str, link: Any) -> str | None:
        """Collect what is there; the name of what is in another file ends the visit."""
        if isinstance(link, h5py.ExternalLink):
            return name
        one = weights[name] if isinstance(link, h5py.HardLink) else None
        if isinstance(one, h5py.Dataset) and (one.external or one.is_virtual):
            return name
        if one is not None:
            found.append(one)
        return None

    text = config.decode() if isinstance(config, bytes) else config
    if elsewhere := weights.visititems_links(visit):
        return Contents(text, elsewhere=elsewhere)
    values = [one for one in found if isinstance(one, h5py.Dataset)]
    size = sum(one.nbytes for one in values if not one.name.lstrip("/").startswith(_OPTIMIZERS))
    if size <= most_bytes:
        for one in (weights, *found):
            dict(one.attrs)
        for one in values:
            if one.nbytes <= most_bytes:
                one[()]
    return Contents(text, size)


@contextmanager
def _member(archive: zipfile.ZipFile, name: str, file: BinaryIO, most_bytes: int) -> Iterator[BinaryIO]:
    """A member of an archive to seek in: it stays where it is unless it is compressed."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        if info.file_size > most_bytes:
            raise ValueError(f"{name} in it is compressed, and would take {info.file_size / 1e9:.2f} GB")
        yield io.BytesIO(archive.read(info))
        return
    file.seek(info.header_offset)
    header = file.read(_MEMBER_HEADER.size)
    start = info.header_offset + len(header) + sum(_MEMBER_HEADER.unpack(header))
    with io.BufferedReader(_Part(file, start, info.file_size)) as part:
        yield part


class _Part(io.RawIOBase):
    """Bytes of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._place = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._place)
        data = self._file.read(max(0, min(len(buffer), self._size - self._place)))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def main() -> None:
    """Say what `contents` finds; the system ends the process that takes longer."""
    path, most_seconds, most_bytes = json.load(sys.stdin)
    with suppress(ImportError):  # there is none on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds + 1))
    try:
        found = contents(Path(path), most_bytes)
    except Exception as error:  # of a broken file, zipfile and h5py may say anything
        found = Contents(error=str(error) or type(error).__name__)
    json.dump(asdict(found), sys.stdout)


if __name__ == "__main__":
    main()
