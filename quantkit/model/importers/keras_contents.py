"""Inspection of a Keras file in a separate process: HDF5 may crash or hang on a broken file.

    stdin: [path of the file, CPU time limit in seconds, maximum number of bytes of weights to read]
    stdout: `Contents`, as JSON

The process reads all data that Keras will need, so that a file that crashes it crashes no other
process. This module is run by its path and does not import quantkit.
"""

import io
import json
import stat
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_OPTIMIZERS = ("optimizer", "optimizer_weights")
# Fixed part of the header of an archive member; it ends with the lengths of the name and of the
# extra field.
_MEMBER_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True)
class Contents:
    """Contents of a Keras file.

    Attributes:
        config: JSON description of the layers; None if the file has only weights.
        is_archive: True for a zip archive, False for an HDF5 file.
        version: version of Keras that wrote the file; empty if the file does not state it.
        num_bytes: size of the weights in bytes.
        escaping: archive member with a path outside the archive; empty if all are inside.
        external: weights that are stored in another file; empty if all are in this file.
        error: reason that the file cannot be read; empty if it can.
    """

    config: str | None = None
    is_archive: bool = False
    version: str = ""
    num_bytes: int = 0
    escaping: str = ""
    external: str = ""
    error: str = ""


def inspect_contents(path: Path, max_bytes: int) -> Contents:
    """Inspect a file, and read its weights if they have at most ``max_bytes``.

    Raises:
        ValueError: the file is an HDF5 file and a zip archive at once.
    """
    import h5py

    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            with h5py.File(file, "r") as weights:
                contents = _inspect_weights(weights, weights.attrs.get("model_config"), max_bytes)
                return replace(contents, version=_text(weights.attrs.get("keras_version")))
        with zipfile.ZipFile(file) as archive:
            members = [_data_range(info, file) for info in archive.infolist()]
            if any(all(offset not in member for member in members) for offset in _hdf5_offsets(file)):
                raise ValueError("the file is HDF5 and a zip archive at once")
            for info in archive.infolist():
                if _escapes(info):
                    return Contents(escaping=info.filename)
            with _member(archive, WEIGHTS, file, max_bytes) as member, h5py.File(member, "r") as weights:
                metadata = json.loads(archive.read(METADATA)) if METADATA in archive.namelist() else {}
                contents = _inspect_weights(weights, archive.read(CONFIG), max_bytes)
                return replace(contents, is_archive=True, version=_text(metadata.get("keras_version")))


def _text(value: object) -> str:
    """Return a text attribute of a file; empty for another type."""
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    return value if isinstance(value, str) else ""


def _hdf5_offsets(file: BinaryIO) -> list[int]:
    """Return the offsets at which an HDF5 reader would find the start of an HDF5 file: 0, 512, 1024, 2048, ..."""
    size = file.seek(0, io.SEEK_END)
    candidates = [0, *(1 << exponent for exponent in range(9, size.bit_length()))]
    offsets = []
    for offset in candidates:
        file.seek(offset)
        if file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE:
            offsets.append(offset)
    return offsets


def _data_range(info: zipfile.ZipInfo, file: BinaryIO) -> range:
    """Return the offsets of an archive member's bytes.

    Raises:
        struct.error: the file ends before the member does.
    """
    file.seek(info.header_offset)
    header = file.read(_MEMBER_HEADER.size)
    start = info.header_offset + len(header) + sum(_MEMBER_HEADER.unpack(header))
    return range(start, start + info.compress_size)


def _escapes(info: zipfile.ZipInfo) -> bool:
    member_path = PurePosixPath(info.filename.replace("\\", "/"))
    is_link = stat.S_ISLNK(info.external_attr >> 16)
    return is_link or member_path.is_absolute() or ".." in member_path.parts or ":" in info.filename


def _inspect_weights(weights: Any, config: bytes | str | None, max_bytes: int) -> Contents:
    """Inspect the weights of an open HDF5 file: read them as Keras will."""
    import h5py

    objects: list[Any] = []

    def visit(name: str, link: Any) -> str | None:
        """Collect an object; return the name of an object in another file, which ends the visit."""
        if isinstance(link, h5py.ExternalLink):
            return name
        member = weights[name] if isinstance(link, h5py.HardLink) else None
        if isinstance(member, h5py.Dataset) and (member.external or member.is_virtual):
            return name
        if member is not None:
            objects.append(member)
        return None

    text = config.decode() if isinstance(config, bytes) else config
    if external := weights.visititems_links(visit):
        return Contents(text, external=external)
    datasets = [member for member in objects if isinstance(member, h5py.Dataset)]
    size = sum(dataset.nbytes for dataset in datasets if not dataset.name.lstrip("/").startswith(_OPTIMIZERS))
    if size <= max_bytes:
        for member in (weights, *objects):
            dict(member.attrs)
        for dataset in datasets:
            if dataset.nbytes <= max_bytes:
                dataset[()]
    return Contents(text, num_bytes=size)


@contextmanager
def _member(archive: zipfile.ZipFile, name: str, file: BinaryIO, max_bytes: int) -> Iterator[BinaryIO]:
    """Open an archive member as a seekable file, without a copy unless it is compressed."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        if info.file_size > max_bytes:
            raise ValueError(f"archive member {name} is compressed, and would take {info.file_size / 1e9:.2f} GB")
        yield io.BytesIO(archive.read(info))
        return
    with archive.open(info):  # checks that header and directory agree, as the loader does
        data = _data_range(info, file)
    if len(data) != info.file_size:
        raise ValueError(f"archive member {name} has two sizes, {len(data)} and {info.file_size} bytes")
    with io.BufferedReader(_Part(file, data.start, info.file_size)) as part:
        yield part


class _Part(io.RawIOBase):
    """Range of bytes of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._position)
        data = self._file.read(max(0, min(len(buffer), self._size - self._position)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def main() -> None:
    """Print the contents of the file; the system ends the process at its time limit."""
    path, max_seconds, max_bytes = json.load(sys.stdin)
    with suppress(ImportError):  # Windows has no such module
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (max_seconds, max_seconds + 1))
    try:
        result = inspect_contents(Path(path), max_bytes)
    except Exception as error:  # zipfile and h5py raise many types on a broken file
        result = Contents(error=str(error) or type(error).__name__)
    json.dump(asdict(result), sys.stdout)


if __name__ == "__main__":
    main()
