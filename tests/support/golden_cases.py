"""Golden files: a graph as text, a recipe, and what becomes of it.

A file of ``tests/golden/<transform>/`` holds sections, each a word at the start of a line; what follows it may
go on in indented lines, and lines that start with ``#`` tell what the case is about:

    # A factor behind a convolution goes into its weights.
    recipe:  fold_batch_norms
    before:  inputs: x
             outputs: b
             x = Placeholder[1x4x4x3]()
             ...
    after:   unchanged
    skips:   b: w is shared: c reads it too

`before` is written as `quantkit.ir.text` reads it; op attributes that TensorFlow demands but the case does not care
about may be left out (`runnable` of `quantkit.recipes.example` fills them in for the numbers). ``error: message``
stands in place of `after` where the recipe fails, and ``numbers: why not`` where answers can not be compared.
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
WRITTEN = ("after", "error", "skips")

_SECTION = re.compile(rf"({'|'.join(SECTIONS)}):\s*(.*)")
_INDENT = 9


@dataclass(frozen=True)
class Case:
    """One golden file.

    Attributes:
        path: where it is.
        story: its comment lines.
        sections: their lines, by name.
    """

    path: Path
    story: tuple[str, ...]
    sections: dict[str, tuple[str, ...]]

    @classmethod
    def read(cls, path: Path) -> "Case":
        story: list[str] = []
        sections: dict[str, list[str]] = {}
        current: list[str] = story
        for line in path.read_text().splitlines():
            found = _SECTION.fullmatch(line)
            if found:
                current = sections.setdefault(found[1], [])
                line = found[2]
            if line.strip():
                current.append(line.strip())
        return cls(path, tuple(story), {name: tuple(lines) for name, lines in sections.items()})

    @property
    def before(self) -> Graph:
        return from_text("\n".join(self.sections["before"]))

    def written(self, found: dict[str, tuple[str, ...]]) -> str:
        """The text of the file with other results."""
        kept = {name: lines for name, lines in self.sections.items() if name not in WRITTEN}
        sections = {**kept, **found}
        lines = [*self.story]
        for name in SECTIONS:
            for number, line in enumerate(sections.get(name, ())):
                lines.append(f"{f'{name}:' if not number else '':<{_INDENT}}{line}")
        return "\n".join(lines) + "\n"


def golden_cases(transform: str = "*") -> list[Path]:
    """The golden files of a transform, or all."""
    return sorted(FOLDER.glob(f"{transform}/*.txt"))


def results(case: Case) -> tuple[dict[str, tuple[str, ...]], Graph | None]:
    """What the recipe makes of the graph, as sections; and the new graph, if there is one."""
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
