"""Errors of quantkit, each with the exit code of the command line.

Every error is one sentence that names the node, file or flag, and a hint with the next step.
Library code raises only these classes; any other exception that reaches the user is a bug.
"""

import errno
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches

# Keras appends the whole configuration of a layer that it cannot create.
_MAX_LINE_LENGTH = 200
# A line of code that a message quotes: AutoGraph and TensorFlow's calls of Python functions quote the code of the user.
_FRAME = re.compile(r'File "([^"]+)", (line \d+, in \S+)')
_LIBRARY = re.compile("^<|[/\\\\](site|dist)-packages[/\\\\]")
_PASSWORD = re.compile(r"(://[^\s/?#:@]*:)[^\s/?#]*(@)")


class QuantkitError(Exception):
    """Error that the user can correct.

    Args:
        message: one sentence that names the offending node, op, file or flag.
        hint: next step; empty if the message states it.
    """

    exit_code = 3

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = printable(message), printable(hint)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[type["QuantkitError"], tuple[str, str]]:
        return type(self), (self.message, self.hint)


class CheckError(QuantkitError):
    """Failure of a requested check (``--verify``, ``--max-drop``, ``--fail-below``)."""

    exit_code = 1


class UsageError(QuantkitError):
    """Invalid command line or function argument."""

    exit_code = 2


class RecipeError(UsageError):
    """Recipe that cannot be parsed, or that names an unknown transform or option."""


class InputError(QuantkitError):
    """Missing or broken file, image, label list or download."""


class GraphError(InputError):
    """Malformed graph: a missing node, a cycle, or an op with invalid inputs or attributes."""


class FallbackWarning(UserWarning):
    """Warning that another tool does the work, because quantkit does not support a part of the model."""


class UnavailableError(QuantkitError):
    """Feature that this machine or installation does not support."""

    exit_code = 4


class UnknownOpError(UnavailableError):
    """Op type that a runtime does not have; the hint names a library that may add it."""


def as_input_error(error: OSError) -> InputError | None:
    """Return the error of a full disk, or of a file name that the system rejects; None for other errors."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"the disk is full: cannot write {error.filename or 'the output'}"
        return InputError(message, hint="free some space, or write to another disk")
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        message = f"{str(error.filename)[:80]!r}: {os.strerror(error.errno).lower()}"
        return InputError(message, hint="name another file")
    return None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a hint with the nearest known names, or an empty string.

    >>> did_you_mean("remove_node", ["fold_constants", "remove_nodes"])
    "did you mean 'remove_nodes'?"
    """
    near = get_close_matches(name, list(candidates), n=3, cutoff=0.65)
    return f"did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def one_line(text: str) -> str:
    r"""Return the first line of another program's message, printable and at most 200 characters long.

    >>> one_line("bad byte \x00 at 7.\nmore")
    'bad byte \\x00 at 7'
    """
    if quoted := quoted_error(text):
        return printable(quoted)
    line = (text.strip().splitlines() or [""])[0][:_MAX_LINE_LENGTH]
    return printable(line).rstrip(". ")


def quoted_error(text: str) -> str:
    r"""Return the innermost error of a message that quotes the code of the user, with its line; empty without a quote.

    >>> quoted_error('in user code:\n\n  File "pipe.py", line 5, in parse\n    x + y\n\n  TypeError: wrong type\n')
    'pipe.py, line 5, in parse: TypeError: wrong type'
    """
    frames = list(_FRAME.finditer(text))
    if not frames:
        return ""
    _, *rest = re.split(r"\n\s*\n\s*", text[frames[-1].end() :].strip(), maxsplit=1)
    error = one_line(rest[0]) if rest else ""
    own = [f"{frame[1]}, {frame[2]}" for frame in frames if not _LIBRARY.search(frame[1])]
    return ": ".join([*own[-1:], error]) if error else ""


def hide_password(text: str) -> str:
    """Replace the password of each URL in a text by ``***``.

    >>> hide_password("https://ann:secret@host/model.pb: not found")
    'https://ann:***@host/model.pb: not found'
    """
    return _PASSWORD.sub(r"\1***\2", text) if "://" in text else text


def printable(text: str) -> str:
    r"""Escape control characters, which a terminal would execute, and hide the passwords of URLs.

    Names come from untrusted files.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    text = hide_password(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
