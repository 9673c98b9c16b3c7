"""Commands of pages and their output."""

import re

# A command, and the output that the page shows for it; a quoted argument may go over several lines.
COMMAND = re.compile(r"^\$ (.*?(?:'\n(?:[^$].*\n)*?.*')?)\n((?:[^$\n].*\n|\n)*)", re.MULTILINE)


def lines_without_digits(text: str) -> list[str]:
    """Return the lines with each number replaced by 0: times, sizes and versions vary."""
    return [re.sub(r"\d+(\.\d+)*(e-\d+)?", "0", line).rstrip() for line in text.splitlines() if line.strip()]
