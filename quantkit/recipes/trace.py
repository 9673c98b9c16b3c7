"""Record of a run: the changes, skips and checks of each step, with the graph before and after."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.errors import CheckError, UsageError
from quantkit.facts import RANDOM_WEIGHTS_NOTE, PlainReport
from quantkit.formats.sizes import format_size
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Skip
from quantkit.recipes.grammar import Step
from quantkit.recipes.graph_documents import graph_documents
from quantkit.recipes.page import trace_page
from quantkit.recipes.recipe import Recipe
from quantkit.transforms.registry import Claim

SCHEMA, TRACE_SCHEMA = "quantkit.transform/1", "quantkit.trace/1"
# Action after a failed check: stop the run, or undo the step and continue.
STOP, SKIP = "stop", "skip"
# Number of changes of one step in a text; the verbose text has all.
MAX_CHANGES = 8

# Check after a step: (graph before, graph after, transform) -> one line, or a CheckError.
Check = Callable[[Graph, Graph, Claim], str]


@dataclass(frozen=True)
class Record:
    """Record of one step.

    Attributes:
        step: the step as written.
        nodes: number of nodes before and after.
        changes: one line for each rewrite.
        skips: near-matches that were not rewritten, with reasons.
        seconds: wall time of the transform.
        ignored: message of the error that ``ignore_errors`` ignored; empty if there was no error.
        check: result of the check after the step; empty if there was no check.
        undone: reason why the step was undone after a failed check; empty if it was not undone.
        ops: change of the number of nodes by op type.
    """

    step: Step
    nodes: tuple[int, int]
    changes: tuple[str, ...]
    skips: tuple[Skip, ...]
    seconds: float
    ignored: str = ""
    check: str = ""
    undone: str = ""
    ops: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        before, after = self.nodes
        verdict = f"; verified: {self.check}" if self.check else ""
        verdict += f"; undone: {self.undone}" if self.undone else ""
        verdict += f"; ignored error: {self.ignored}" if self.ignored else ""
        return f"{self.step}: {before} -> {after} nodes, {self.seconds * 1e3:.0f} ms{verdict}"

    def details(self, max_changes: int | None = MAX_CHANGES) -> Iterator[str]:
        """Yield one line for each change and each skip.

        Args:
            max_changes: maximum number of changes; None for all.
        """
        shown = self.changes[:max_changes]
        yield from (f"    changed  {change}" for change in shown)
        if len(self.changes) > len(shown):
            yield f"    changed  {len(self.changes) - len(shown)} more (--verbose lists them)"
        yield from (f"    skipped  {skip}" for skip in self.skips)

    def to_json(self) -> dict[str, Any]:
        return {
            "transform": str(self.step),
            "nodes_before": self.nodes[0],
            "nodes_after": self.nodes[1],
            "changes": list(self.changes),
            "skips": [{"node": skip.node, "reason": skip.reason} for skip in self.skips],
            "seconds": self.seconds,
            "ignored_error": self.ignored,
            "check": self.check,
            "undone": self.undone,
            "ops": dict(self.ops),
        }


@dataclass(frozen=True, repr=False)
class Trace(PlainReport):
    """Records of all steps of a run, in order.

    Attributes:
        records: one record for each step.
        recipe: recipe that was applied.
        before: graph before the first step.
        after: graph after the last step.
        model: name of the model.
        has_random_weights: True if the weights of the model are random.
        verification: terms of the check after each step as JSON values; None if there was no check.
        terms: the same as text.
        output: file that was written; None if no file was written.
        num_bytes: size of the file; 0 if no file was written.
    """

    records: tuple[Record, ...]
    recipe: Recipe
    before: Graph
    after: Graph
    model: str = "graph"
    has_random_weights: bool = False
    verification: Mapping[str, Any] | None = None
    terms: str = ""
    output: Path | None = None
    num_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document of ``quantkit transform``."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "random_weights": self.has_random_weights,
            "recipe": str(self.recipe),
            "nodes_before": len(self.before),
            "nodes_after": len(self.after),
            "op_counts": dict(self.after.op_counts),
            "inputs": [str(edge) for edge in self.after.inputs],
            "outputs": [str(edge) for edge in self.after.outputs],
            "steps": [record.to_json() for record in self.records],
            "verification": self.verification,
            "output": None if self.output is None else str(self.output),
            "num_bytes": self.num_bytes,
        }

    def lines(self, *, explain: bool = True, verbose: bool = False, quiet: bool = False) -> Iterator[str]:
        """Yield the text of the trace.

        Args:
            explain: list the changes and skips of each step.
            verbose: list all changes.
            quiet: omit the steps that passed the check.
        """
        for record in self.records:
            if explain or record.undone or (self.verification and not quiet):
                yield str(record)
            if explain:
                yield from record.details(None if verbose else MAX_CHANGES)
        if self.terms:
            yield f"verified {self.terms}"

    def text(self, *, explain: bool = True, verbose: bool = False, quiet: bool = False) -> str:
        """Return the lines, the size of the written file, and a note about random weights.

        Args:
            explain, verbose, quiet: see `lines`.
        """
        lines = [*self.lines(explain=explain, verbose=verbose, quiet=quiet)]
        if self.output is not None:
            nodes = f"{len(self.before)} -> {len(self.after)} nodes"
            lines.append(f"{self.output}: {nodes}, {format_size(self.num_bytes)}")
        return "\n".join([*lines, RANDOM_WEIGHTS_NOTE] if self.has_random_weights else lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace with both graphs to a file.

        Args:
            path: file that ends in ``.json``, or in ``.html`` for a page that draws both graphs.

        Raises:
            UsageError: the path has another suffix.
            InputError: the path is not writable.
        """
        path = Path(path)
        check_trace_path(path)
        document = self.document()
        if path.suffix.lower() == ".html":
            text = trace_page(document, self.before, self.after)
        else:
            text = json.dumps(document, indent=1) + "\n"
        formats.files.write_whole(path, lambda file: file.write(text.encode()))

    def document(self) -> dict[str, Any]:
        """Return the records and all nodes of both graphs as JSON values.

        Raises:
            GraphError: a graph is not well formed.
        """
        return {
            "schema": TRACE_SCHEMA,
            "model": self.model,
            "recipe": str(self.recipe),
            "steps": [record.to_json() for record in self.records],
            **graph_documents(self.before, self.after),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"Trace({len(self.records)} steps, {len(self.before)} -> {len(self.after)} nodes)"


def check_trace_path(path: Path) -> None:
    """Check, before any work, that a trace can be written.

    Raises:
        UsageError: the suffix is neither ``.json`` nor ``.html``, or the path cannot be a file.
        InputError: the path is not writable.
    """
    if path.suffix.lower() not in (".json", ".html"):
        raise UsageError(f"a trace cannot be written to {path.name}", hint="name a file that ends in .json or .html")
    formats.check_target(path)


def run_check(check: Check | None, before: Graph, after: Graph, transform: Claim, on_mismatch: str) -> tuple[str, str]:
    """Run a check after a step.

    Returns:
        Result of the check, and the reason why the step must be undone; one of them is empty.

    Raises:
        CheckError: the check fails, and ``on_mismatch`` is `STOP`.
    """
    if check is None:
        return "", ""
    try:
        return check(before, after, transform), ""
    except CheckError as error:
        if on_mismatch == STOP:
            raise
        return "", error.message


def op_changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the change of the number of nodes by op type, sorted by name.

    >>> op_changes({"Relu": 2, "Identity": 3}, {"Relu": 2, "Relu6": 1})
    {'Identity': -3, 'Relu6': 1}
    """
    counts = {op: after.get(op, 0) - before.get(op, 0) for op in sorted({*before, *after})}
    return {op: count for op, count in counts.items() if count}


def node_changes(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return one line for each node or function that differs, for a transform that returns no changes."""
    lines = []
    for name, node in before.nodes.items():
        new = after.nodes.get(name)
        if new is None:
            lines.append(f"{name} ({node.op}) removed")
        elif new is not node and new != node:
            lines.append(f"{name} ({node.op} -> {new.op})" if new.op != node.op else f"{name} ({node.op}) changed")
    lines.extend(f"{name} ({node.op}) added" for name, node in after.nodes.items() if name not in before.nodes)
    if after.library is not before.library:
        lines.extend(_function_changes(before, after))
    return tuple(lines)


def _function_changes(before: Graph, after: Graph) -> Iterator[str]:
    for name in before.library:
        if name not in after.library:
            yield f"function {name} removed"
        elif after.library[name] != before.library[name]:
            yield f"function {name} changed"
    yield from (f"function {name} added" for name in after.library if name not in before.library)
