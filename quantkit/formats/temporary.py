"""Temporary files and folders, and the removal of those that a killed process left."""

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "quantkit-tmp-"
# Age from which a temporary file or folder is stale: no process writes for so long.
STALE_SECONDS = 24 * 3600


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a temporary folder, which is removed at the end; stale folders of this user are removed as well."""
    remove_stale(Path(tempfile.gettempdir()).glob(f"{PREFIX}????????"))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        yield Path(folder)


class OwnedFolder:
    """Temporary folder that is removed with the last reference to this object.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def remove_stale(paths: Iterable[Path]) -> None:
    """Remove the files and folders of this user that have not changed for `STALE_SECONDS`."""
    owner = os.getuid() if hasattr(os, "getuid") else 0  # Windows reports 0 for every file
    for path in paths:
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid != owner or time.time() - status.st_mtime < STALE_SECONDS:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
