"""The classic transforms string: ``remove_nodes(op=Identity, op=CheckNumerics) fold_constants``.

    string    := { transform }
    transform := NAME [ "(" [ NAME "=" value { [","] NAME "=" value } ] ")" ]
    value     := '"' anything, a backslash protects the next character '"'  |  letters, digits, - . / _

White space, line breaks included, separates and means nothing else. Where the classic parser guessed or dropped
(an unclosed parenthesis, a stray quote), this one stops and marks the column.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from quantkit.errors import RecipeError

NAME = re.compile(r"[A-Za-z0-9_]+")
BARE = re.compile(r"[A-Za-z0-9\-./_]+")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
SPACE = re.compile(r"\s*")
EXAMPLE = "remove_nodes(op=Identity, op=CheckNumerics) fold_constants"
# Typographic characters that word processors put in the place of plain ones.
SMART = (
    dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"')
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u2032`", "'")
    | {"\u2013": "-", "\u2014": "-", "\u00a0": " "}
)


@dataclass(frozen=True)
class Step:
    """One transform of a recipe, with its options as written.

    Attributes:
        name: the transform.
        options: for each option the words given, in order.
        places: where the text they were read from names the transform, and each option last; for messages only.
    """

    name: str
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        words = [f"{key}={_quoted(word)}" for key, given in self.options.items() for word in given]
        return f"{self.name}({', '.join(words)})" if words else self.name


def parse_steps(text: str) -> tuple[Step, ...]:
    """The steps that a transforms string lists.

    Raises:
        RecipeError: the string does not follow the grammar; the message marks the column.
    """
    return _Reader(text).steps()


def pointed(message: str, text: str, at: int) -> str:
    """The message, the line of a text that it is about, and a mark below the place.

    >>> print(pointed("no such option", "fold_constants(x=1)", 15))
    no such option (line 1, column 16)
        fold_constants(x=1)
                       ^
    """
    start = text.rfind("\n", 0, at) + 1
    line = text[start:].splitlines()[0] if text[start:].strip("\n") else ""
    first = max(0, at - start - 50)
    where = f"line {text.count(chr(10), 0, at) + 1}, column {at - start + 1}"
    return f"{message} ({where})\n    {line[first : first + 90]}\n    {' ' * (at - start - first)}^"


def _quoted(word: str) -> str:
    return word if BARE.fullmatch(word) else f'"{word}"'


class _Reader:
    """A position in a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def steps(self) -> tuple[Step, ...]:
        found = []
        self.skip(SPACE)
        while self.at < len(self.text):
            places = {"": self.at}
            name = self.take(NAME, "Looking for transform name")
            found.append(Step(name, self.options(places) if self.peek() == "(" else {}, places))
            self.skip(SPACE)
        return tuple(found)

    def options(self, places: dict[str, int]) -> dict[str, tuple[str, ...]]:
        opened = self.at
        self.at += 1
        found: dict[str, tuple[str, ...]] = {}
        while True:
            self.skip(SPACE)
            if self.peek() == "":
                raise self.error("the parenthesis opened here is never closed", at=opened)
            if self.peek() == ")":
                self.at += 1
                return found
            at = self.at
            name = self.take(NAME, "Looking for parameter name")
            places[name] = at
            self.skip(SPACE)
            if self.peek() != "=":
                raise self.error("Looking for =")
            self.at += 1
            self.skip(SPACE)
            found[name] = (*found.get(name, ()), self.value())
            self.skip(SPACE)
            if self.peek() == ",":
                self.at += 1

    def value(self) -> str:
        if self.peek() == '"':
            quoted = QUOTED.match(self.text, self.at)
            if quoted is None:
                raise self.error("the quote opened here is never closed")
            self.at = quoted.end()
            return quoted[1]
        return self.take(BARE, "Looking for a value")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self, what: re.Pattern[str]) -> None:
        found = what.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def take(self, what: re.Pattern[str], message: str) -> str:
        found = what.match(self.text, self.at)
        if found is None:
            raise self.error(message)
        self.at = found.end()
        return found[0]

    def error(self, message: str, at: int | None = None) -> RecipeError:
        at = self.at if at is None else at
        rest = self.text[at:]
        found = f", but found {rest.splitlines()[0][:40]}" if message.startswith("Looking") and rest.strip() else ""
        if message.startswith("Looking") and not found:
            found = ", but the text ends"
        hint = _advice(rest[:1]) or f"the form is {EXAMPLE}"
        return RecipeError(pointed(f"{message}{found}", self.text, at), hint)


def _advice(character: str) -> str:
    if character in SMART:
        return f"{character} is a typographic character: type a plain {SMART[character]} instead"
    if character == ",":
        return "transforms are separated by spaces, options by single commas"
    if character in ("'", '"'):
        return 'quotes stand around a whole value only, and must be double: shape="1,299,299,3"'
    if character == ":":
        return "put a value with such characters in double quotes"
    return ""
