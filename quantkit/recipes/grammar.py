"""Transforms strings: ``remove_nodes(op=Identity, op=CheckNumerics) fold_constants``.

    string    := { transform }
    transform := NAME [ "(" [ NAME "=" value { [","] NAME "=" value } ] ")" ]
    value     := '"' text, in which a backslash escapes the next character '"'  |  letters, digits, - . / _

White space, line breaks included, only separates. Where the parser of the 2016 tool guessed or dropped text (an
unclosed parenthesis, a stray quote), this parser raises an error and marks the column.
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
# Typographic characters that word processors substitute for plain ones.
TYPOGRAPHIC = (
    dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"')
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u2032`", "'")
    | {"\u2013": "-", "\u2014": "-", "\u00a0": " "}
)


@dataclass(frozen=True)
class Step:
    """One transform of a recipe, with its options as written.

    Attributes:
        name: name of the transform.
        options: texts of each option, in order.
        positions: character positions of the transform (key ``""``) and of the last use of each option in the text
            that was parsed; for messages only.
    """

    name: str
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        values = [f"{key}={_quote(text)}" for key, texts in self.options.items() for text in texts]
        return f"{self.name}({', '.join(values)})" if values else self.name


def parse_steps(text: str) -> tuple[Step, ...]:
    """Parse the steps of a transforms string.

    Raises:
        RecipeError: the string does not follow the grammar; the message marks the column.
    """
    return _Parser(text).steps()


def point_at(message: str, text: str, position: int) -> str:
    """Return the message with the line of the text and a mark below the position.

    >>> print(point_at("no such option", "fold_constants(x=1)", 15))
    no such option (line 1, column 16)
        fold_constants(x=1)
                       ^
    """
    start = text.rfind("\n", 0, position) + 1
    line = text[start:].splitlines()[0] if text[start:].strip("\n") else ""
    first = max(0, position - start - 50)
    location = f"line {text.count(chr(10), 0, position) + 1}, column {position - start + 1}"
    return f"{message} ({location})\n    {line[first : first + 90]}\n    {' ' * (position - start - first)}^"


def _quote(text: str) -> str:
    return text if BARE.fullmatch(text) else f'"{text}"'


class Scanner:
    """Text with the position of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def take(self, pattern: re.Pattern[str], message: str) -> str:
        match = pattern.match(self.text, self.position)
        if match is None:
            raise self.error(message)
        self.position = match.end()
        return match[0]

    def error(self, message: str) -> RecipeError:
        """Return the error at the present position."""
        raise NotImplementedError


class _Parser(Scanner):
    """Recursive-descent parser of one text."""

    def steps(self) -> tuple[Step, ...]:
        steps = []
        self.skip(SPACE)
        while self.position < len(self.text):
            positions = {"": self.position}
            name = self.take(NAME, "Looking for transform name")
            steps.append(Step(name, self.options(positions) if self.peek() == "(" else {}, positions))
            self.skip(SPACE)
        return tuple(steps)

    def options(self, positions: dict[str, int]) -> dict[str, tuple[str, ...]]:
        start = self.position
        self.position += 1
        options: dict[str, tuple[str, ...]] = {}
        while True:
            self.skip(SPACE)
            if self.peek() == "":
                raise self.error("the parenthesis opened here is never closed", position=start)
            if self.peek() == ")":
                self.position += 1
                return options
            position = self.position
            name = self.take(NAME, "Looking for parameter name")
            positions[name] = position
            self.skip(SPACE)
            if self.peek() != "=":
                raise self.error("Looking for =")
            self.position += 1
            self.skip(SPACE)
            options[name] = (*options.get(name, ()), self.value())
            self.skip(SPACE)
            if self.peek() == ",":
                self.position += 1

    def value(self) -> str:
        if self.peek() == '"':
            match = QUOTED.match(self.text, self.position)
            if match is None:
                raise self.error("the quote opened here is never closed")
            self.position = match.end()
            return match[1]
        return self.take(BARE, "Looking for a value")

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def error(self, message: str, position: int | None = None) -> RecipeError:
        position = self.position if position is None else position
        rest = self.text[position:]
        if message.startswith("Looking"):
            message += f", but found {rest.splitlines()[0][:40]}" if rest.strip() else ", but the text ends"
        hint = _advise(rest[:1]) or f"the form is {EXAMPLE}"
        return RecipeError(point_at(message, self.text, position), hint)


def _advise(character: str) -> str:
    """Return the hint for an unexpected character; empty if no hint applies."""
    if character in TYPOGRAPHIC:
        return f"{character} is a typographic character: type a plain {TYPOGRAPHIC[character]} instead"
    if character == ",":
        return "transforms are separated by spaces, options by single commas"
    if character in ("'", '"'):
        return 'quotes enclose a whole value, and must be double: shape="1,299,299,3"'
    if character == ":":
        return "put a value with such characters in double quotes"
    return ""
