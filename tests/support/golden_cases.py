"""Golden files: a graph as text, a recipe, and the resulting graph.

A file of ``tests/golden/<transform>/`` has sections. Each begins with its name at the start of a line and may continue
in indented lines. Lines that start with ``#`` describe the case:

    # A factor after a convolution is folded into its weights.
    recipe:  fold_batch_norms
    before:  inputs: x
             outputs: b
             x = Placeholder[1x4x4x3]()
             ...
    after:   unchanged
    skips:   b: w is shared: c is a consumer too

`before` has the notation of `quantkit.ir.text`. Attributes that TensorFlow requires but the case does not depend on may
be missing: `quantkit.recipes.example` adds them before the outputs are compared. If the recipe fails,
``error: message`` replaces `after`; ``numbers: reason`` states why outputs cannot be compared.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text, to_text
from quantkit.recipes import parse, run

FOLDER = Path(__file__).parent.parent / "golden"
SECTIONS = ("recipe", "before", "after", "error", "skips", "numbers")
RESULTS = ("after", "error", "skips")

_SECTION = re.compile(rf"({'|'.join(SECTIONS)}):\s*(.*)")
_INDENT = 9


@dataclass(frozen=True)
class Case:
    """Golden file.

    Attributes:
        path: path of the file.
        comments: comment lines.
        sections: lines by section name.
    """

    path: Path
    comments: tuple[str, ...]
    sections: dict[str, tuple[str, ...]]

    @classmethod
    def read(cls, path: Path) -> "Case":
        comments: list[str] = []
        sections: dict[str, list[str]] = {}
        current: list[str] = comments
        for line in path.read_text().splitlines():
            match = _SECTION.fullmatch(line)
            if match:
                current = sections.setdefault(match[1], [])
                line = match[2]
            if line.strip():
                current.append(line.strip())
        return cls(path, tuple(comments), {name: tuple(lines) for name, lines in sections.items()})

    @property
    def before(self) -> Graph:
        return from_text("\n".join(self.sections["before"]))

    def with_results(self, results: dict[str, tuple[str, ...]]) -> str:
        """Return the text of the file with other results."""
        inputs = {name: lines for name, lines in self.sections.items() if name not in RESULTS}
        sections = {**inputs, **results}
        lines = [*self.comments]
        for name in SECTIONS:
            for number, line in enumerate(sections.get(name, ())):
                lines.append(f"{f'{name}:' if not number else '':<{_INDENT}}{line}")
        return "\n".join(lines) + "\n"


def golden_cases(transform: str = "*") -> list[Path]:
    """Return the golden files of a transform (default: all)."""
    return sorted(FOLDER.glob(f"{transform}/*.txt"))


def results(case: Case) -> tuple[dict[str, tuple[str, ...]], Graph | None]:
    """Return the result of the recipe as sections, and the new graph or None if the recipe fails."""
    before = case.before
    try:
        after, trace = run(parse(" ".join(case.sections["recipe"])), before)
    except QuantkitError as error:
        return {"error": tuple(error.message.splitlines())}, None
    is_same = list(after.nodes.values()) == list(before.nodes.values()) and (
        (after.inputs, after.outputs, after.library) == (before.inputs, before.outputs, before.library)
    )
    sections = {"after": ("unchanged",) if is_same else tuple(to_text(after).splitlines())}
    skips = tuple(str(skip) for record in trace.records for skip in record.skips)
    return sections | ({"skips": skips} if skips else {}), after
