"""Files with the state of interrupted work: a digest, and named arrays.

The digest detects a damaged file before its content is used: zipfile and NumPy raise errors of many types on such a
file, and arrays of a wrong shape fail only later.
"""

from collections.abc import Mapping
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import numpy as np

from quantkit.formats.files import write_whole
from quantkit.ir.tensor import Array

# Size of the digest in bytes.
DIGEST_SIZE = 16


def write_state(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a file, which appears complete or not at all; arrays of objects cannot be read again."""
    buffer = BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    content = buffer.getbuffer()
    write_whole(path, lambda file: (file.write(_digest(content)), file.write(content)))


def read_state(path: Path) -> dict[str, Array] | None:
    """Return the arrays of `write_state`; None if the file is missing, unreadable or damaged."""
    try:
        content = memoryview(path.read_bytes() if path.is_file() else b"")
    except OSError:
        return None
    if _digest(content[DIGEST_SIZE:]) != content[:DIGEST_SIZE]:
        return None
    with np.load(BytesIO(content[DIGEST_SIZE:]), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _digest(content: memoryview) -> bytes:
    return blake2b(content, digest_size=DIGEST_SIZE).digest()
