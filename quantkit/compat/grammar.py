"""The transforms string as the original tool read it, its guesses and silences included.

A last transform that the text leaves open is dropped, a stray quote behind a value is swallowed, and a comma may stand
before a first option; spaces around ``=`` or before ``)`` are errors.
"""

import re

from quantkit.errors import RecipeError
from quantkit.recipes.grammar import Step
from quantkit.recipes.recipe import Recipe

WORD = re.compile(r"[A-Za-z0-9_]+")
BARE = re.compile(r"[A-Za-z0-9\-./_]+")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
SPACE = re.compile(r"[ \t\n\v\f\r]*")
COMMA = re.compile(r",?[ \t\n\v\f\r]*")
STRAY_QUOTES = re.compile(r"\"?'?")


def parse_classic(text: str) -> Recipe:
    """Parse a transforms string as the original tool did; names are looked up only when a step runs.

    Raises:
        RecipeError: it found an error, too; the message is its own.
    """
    reader = _TextReader(text)
    steps: list[Step] = []
    while True:
        reader.take(SPACE)
        if reader.is_done():
            return Recipe(tuple(steps))
        name = reader.need(WORD, "Looking for transform name")
        options = reader.options() if reader.takes("(") else {}
        if options is None:
            return Recipe(tuple(steps))
        steps.append(Step(name, options))


class _TextReader:
    """What is left of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def is_done(self) -> bool:
        return self.at == len(self.text)

    def options(self) -> dict[str, tuple[str, ...]] | None:
        """The options up to the closing parenthesis; None where the text ends first."""
        found: dict[str, tuple[str, ...]] = {}
        while not self.is_done():
            if self.takes(")"):
                return found
            self.take(COMMA)
            name = self.need(WORD, "Looking for parameter name")
            if not self.takes("="):
                raise self.error("Looking for =")
            if self.is_done():
                return None
            found[name] = (*found.get(name, ()), self.value())
            self.take(STRAY_QUOTES)
        return None

    def value(self) -> str:
        quoted = QUOTED.match(self.text, self.at)
        if quoted:
            self.at = quoted.end()
            return quoted[1]
        if self.takes('"'):
            raise self.error("Looking for parameter name")
        return self.need(BARE, "Looking for parameter name")

    def takes(self, character: str) -> bool:
        found = self.text.startswith(character, self.at)
        self.at += found
        return found

    def take(self, what: re.Pattern[str]) -> str:
        found = what.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0]

    def need(self, what: re.Pattern[str], message: str) -> str:
        found = self.take(what)
        if not found:
            raise self.error(message)
        return found

    def error(self, message: str) -> RecipeError:
        return RecipeError(
            f"{message}, but found {self.text[self.at :]}",
            hint="without --classic the column is marked, and more is understood",
        )
