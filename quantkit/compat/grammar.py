"""Grammar of the original's transforms string.

The original accepts some invalid strings. An unclosed last transform is dropped, a quote after a
value is skipped, and a comma is allowed before the first option. Spaces around ``=`` or before
``)`` are errors.
"""

import re

from quantkit.errors import RecipeError
from quantkit.recipes.grammar import BARE, NAME, QUOTED, Scanner, Step
from quantkit.recipes.recipe import Recipe

SPACE = re.compile(r"[ \t\n\v\f\r]*")
COMMA = re.compile(r",?[ \t\n\v\f\r]*")
STRAY_QUOTES = re.compile(r"\"?'?")


def parse_classic(text: str) -> Recipe:
    """Parse a transforms string like the original tool; names are resolved when a step runs.

    Raises:
        RecipeError: the original rejects the string; the message is the original's.
    """
    parser = _TextParser(text)
    steps: list[Step] = []
    while True:
        parser.skip(SPACE)
        if parser.is_done():
            return Recipe(tuple(steps))
        name = parser.take(NAME, "Looking for transform name")
        options = parser.parse_options() if parser.skip_character("(") else {}
        if options is None:
            return Recipe(tuple(steps))
        steps.append(Step(name, options))


class _TextParser(Scanner):
    """Parser of one text."""

    def is_done(self) -> bool:
        return self.position == len(self.text)

    def parse_options(self) -> dict[str, tuple[str, ...]] | None:
        """Parse the options up to the closing parenthesis; None if the text ends first."""
        options: dict[str, tuple[str, ...]] = {}
        while not self.is_done():
            if self.skip_character(")"):
                return options
            self.skip(COMMA)
            name = self.take(NAME, "Looking for parameter name")
            if not self.skip_character("="):
                raise self.error("Looking for =")
            if self.is_done():
                return None
            options[name] = (*options.get(name, ()), self.parse_value())
            self.skip(STRAY_QUOTES)
        return None

    def parse_value(self) -> str:
        quoted = QUOTED.match(self.text, self.position)
        if quoted:
            self.position = quoted.end()
            return quoted[1]
        if self.skip_character('"'):
            raise self.error("Looking for parameter name")
        return self.take(BARE, "Looking for parameter name")

    def skip_character(self, character: str) -> bool:
        """Skip a character; return False if the next character is another one."""
        is_next = self.text.startswith(character, self.position)
        self.position += is_next
        return is_next

    def error(self, message: str) -> RecipeError:
        return RecipeError(
            f"{message}, but found {self.text[self.position :]}",
            hint="run without --classic, which marks the column and accepts more spellings",
        )
