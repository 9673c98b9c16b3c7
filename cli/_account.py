"""What came of ``quantkit transform``, for people and for programs: the document, the lines, and the trace's file."""

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit import formats
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.model import RANDOM_WEIGHTS_NOTE, Model
from quantkit.recipes import Recipe, Record, Trace

from ._render import size_text

if TYPE_CHECKING:
    from rich.console import Console

    from quantkit.recipes.verify import Verifier

# Lines of changes that --explain prints for one step before it only counts them; --verbose prints all.
SHOWN_CHANGES = 8


@dataclass(frozen=True)
class Account:
    """What was done to a model.

    Attributes:
        model: as it was read.
        recipe: as it was applied.
        before, after: the graph.
        trace: what each step did.
        check: what was asked after each step; None: nothing.
        path: what was written.
        num_bytes: of it.
    """

    model: Model
    recipe: Recipe
    before: Graph
    after: Graph
    trace: Trace
    check: "Verifier | None"
    path: Path
    num_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "random_weights": self.model.has_random_weights,
            "recipe": str(self.recipe),
            "nodes_before": len(self.before),
            "nodes_after": len(self.after),
            "op_counts": dict(self.after.op_counts),
            "inputs": [str(edge) for edge in self.after.inputs],
            "outputs": [str(edge) for edge in self.after.outputs],
            "steps": self.trace.to_json(),
            "verification": self.check.to_json() if self.check else None,
            "output": str(self.path),
            "num_bytes": self.num_bytes,
        }

    def print(self, console: "Console", args: Namespace) -> None:
        """Say what happened, with as much detail as the flags ask for."""
        for line in self._lines(args):
            console.print(line, markup=False)

    def _lines(self, args: Namespace) -> Iterator[str]:
        for record in self.trace.records:
            # With --quiet only what the user has to know of: a step that was taken back.
            if args.explain or record.undone or (self.check and not args.quiet):
                yield _headline(record)
            if args.explain:
                yield from _details(record, None if args.verbose else SHOWN_CHANGES)
        if self.check:
            yield f"verified {self.check.terms}"
        yield f"{self.path}: {len(self.before)} -> {len(self.after)} nodes, {size_text(self.num_bytes)}"
        if self.model.has_random_weights:
            yield RANDOM_WEIGHTS_NOTE

    def write_trace(self, path: Path) -> None:
        """Write the trace and both graphs, as a page or as JSON."""
        from quantkit.recipes.page import html_page
        from quantkit.recipes.trace_file import trace_document

        document = trace_document(self.model.name, self.recipe, self.before, self.after, self.trace)
        if path.suffix.lower() == ".html":
            text = html_page(document, self.before, self.after)
        else:
            text = json.dumps(document, indent=1) + "\n"
        formats.files.write_whole(path, lambda file: file.write(text.encode()))


def trace_path(args: Namespace) -> Path | None:
    """Where the trace goes; refused before any work where it can not be written.

    Raises:
        UsageError: the name is that of no form of a trace.
        InputError: the place may not be written to.
    """
    if not args.trace:
        return None
    path = Path(args.trace).expanduser()
    if path.suffix.lower() not in (".json", ".html"):
        raise UsageError(f"--trace {path.name} is no form of a trace", hint="name a file that ends in .json or .html")
    formats.check_target(path)
    return path


def _headline(record: Record) -> str:
    before, after = record.nodes
    verdict = f"; verified: {record.check}" if record.check else f"; undone: {record.undone}" if record.undone else ""
    return f"{record.step}: {before} -> {after} nodes, {record.seconds * 1e3:.0f} ms{verdict}"


def _details(record: Record, most: int | None) -> Iterator[str]:
    shown = record.changes[:most]
    yield from (f"    did  {change}" for change in shown)
    if len(record.changes) > len(shown):
        yield f"    did  {len(record.changes) - len(shown)} more (--verbose lists them)"
    yield from (f"    left {skip}" for skip in record.skips)
