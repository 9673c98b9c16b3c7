"""Members of a tar file, as parts of the file; a compressed file is first decompressed to the folder of the output."""

import bz2
import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Any

from quantkit.data.packing.cifar import ArchiveMember
from quantkit.errors import InputError, one_line

_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
SUFFIXES = (".tar", ".tgz", ".tbz", ".tbz2", ".txz")


def is_tar(path: Path) -> bool:
    """Return True if the name of a file is that of a tar file."""
    suffixes = path.suffixes[-2:]
    return path.suffix in SUFFIXES or suffixes[:1] == [".tar"]


def list_members(path: Path, work: Path) -> list[ArchiveMember]:
    """List the regular files of a tar file.

    Args:
        path: tar file.
        work: path of the decompressed copy, which is written if `path` is compressed; a copy with the same
            modification time is used again.

    Raises:
        InputError: the file is damaged, or is not a tar file.
    """
    plain = _decompress(path, work)
    try:
        with tarfile.open(plain, "r:") as archive:
            files = [entry for entry in archive if entry.isreg() and not entry.issparse()]
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path} is not a tar file, or is damaged: {one_line(str(error))}") from None
    return [ArchiveMember(entry.name.removeprefix("./"), str(plain), entry.offset_data, entry.size) for entry in files]


def _decompress(path: Path, work: Path) -> Path:
    try:
        with path.open("rb") as file:
            head = file.read(6)
        opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
        if opener is None:
            return path
        status = path.stat()
        if not work.exists() or work.stat().st_mtime_ns != status.st_mtime_ns:
            part = work.with_name(f"{work.name}.part")
            with opener(path, "rb") as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.utime(part, ns=(status.st_mtime_ns, status.st_mtime_ns))
            part.replace(work)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} cannot be decompressed: {one_line(str(error))}") from None
    return work
