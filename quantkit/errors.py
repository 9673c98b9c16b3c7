"""What can go wrong, as values the command line can turn into an exit code.

Every error is one sentence that names the node, file or flag, and a hint that says what to do next.
Library code raises these only; anything else that escapes is a bug.
"""

from collections.abc import Iterable
from difflib import get_close_matches

# Keras appends the whole configuration of what it can not make.
_LONGEST_LINE = 200


class QuantkitError(Exception):
    """Something the user can mend.

    Args:
        message: one sentence naming the offending node, op, file or flag.
        hint: the next step, or nothing where the message already says it.
    """

    exit_code = 3

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = printable(message), printable(hint)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[type["QuantkitError"], tuple[str, str]]:
        return type(self), (self.message, self.hint)


class CheckError(QuantkitError):
    """A check that was asked for failed (``--verify``, ``--max-drop``, ``--fail-below``)."""

    exit_code = 1


class UsageError(QuantkitError):
    """The command line, or an argument of a function, is wrong."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe can not be read, or names a transform or option that does not exist."""


class InputError(QuantkitError):
    """A file, picture, label list or download is missing or broken."""


class GraphError(InputError):
    """A graph is not well formed: a missing node, a cycle, an op used wrongly."""


class UnavailableError(QuantkitError):
    """This machine or installation can not run what was asked."""

    exit_code = 4


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint naming the nearest known words, or an empty string.

    >>> did_you_mean("remove_node", ["fold_constants", "remove_nodes"])
    "did you mean 'remove_nodes'?"
    """
    near = get_close_matches(word, list(known), n=3, cutoff=0.65)
    return f"did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def one_line(text: str) -> str:
    r"""What another program says, as part of a sentence: its first line, printable, and not endless.

    >>> one_line("bad byte \x00 at 7.\nmore")
    'bad byte \\x00 at 7'
    """
    line = (text.strip().splitlines() or [""])[0][:_LONGEST_LINE]
    return printable(line).rstrip(". ")


def printable(text: str) -> str:
    r"""A text whose characters do nothing to a terminal: names come from files, and files from anybody.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
