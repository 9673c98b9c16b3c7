"""stdout and stderr that may be closed, full, or pipes without a reader: a lost message does not stop the work."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TextIO, cast

# Errors of a closed pipe, a closed terminal and a closed file descriptor.
_CLOSED = frozenset({errno.EPIPE, errno.EIO, errno.EBADF})


class _Stream:
    """Text stream that discards its output after the first error that is not raised.

    Args:
        stream: the stream.
        raises_errors: raise errors other than those of a closed stream.

    Attributes:
        is_used: True after the first output.
    """

    def __init__(self, stream: TextIO, *, raises_errors: bool) -> None:
        self._stream, self._raises_errors = stream, raises_errors
        self.is_used = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self.is_used = True
        try:
            return self._stream.write(text)
        except OSError as error:
            self._handle(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._handle(error)

    def _handle(self, error: OSError) -> None:
        if self._raises_errors and error.errno not in _CLOSED:
            raise error
        discard(self._stream)


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Finish the work of the process when its output is lost.

    Output to a closed stdout or stderr is discarded, and so are messages that stderr cannot take for another reason.
    An error of an open stdout, for example a full disk, is raised: the result is lost.
    """
    _open_standard_streams()
    stdout, stderr = sys.stdout, sys.stderr
    if isinstance(stdout, TextIOWrapper) and stdout.errors == "strict":
        stdout.reconfigure(errors="backslashreplace")  # file names may have letters that the terminal lacks
    sys.stdout = cast("TextIO", _Stream(stdout, raises_errors=True))
    sys.stderr = cast("TextIO", _Stream(stderr, raises_errors=False))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr


def discard(stream: TextIO) -> None:
    """Redirect a stream to the null device: Python would flush it again at exit, and fail."""
    with suppress(OSError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), stream.fileno())


def _open_standard_streams() -> None:
    """Open the null device in place of each closed standard stream.

    A file that is opened later would get the file descriptor of the stream, and with it the output of libraries.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
        if getattr(sys, name) is None:
            stream = os.fdopen(descriptor, "w" if descriptor else "r", closefd=False)
            setattr(sys, name, stream)
