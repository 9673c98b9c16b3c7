"""Result of the optimization of a pipeline."""

import os
from dataclasses import dataclass, replace
from typing import Any

from quantkit.arguments import expand_user, public
from quantkit.facts import PlainReport
from quantkit.formats.files import write_whole
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Skip
from quantkit.pipelines import bridge
from quantkit.pipelines.gain import Gain
from quantkit.pipelines.python_lines import python_lines
from quantkit.pipelines.verification import Comparison


@dataclass(frozen=True)
class PipelineStep:
    """One rewrite.

    Attributes:
        name: name of the rewrite.
        changes: one line for each changed stage.
        skips: stages that were not rewritten, with the reasons.
        comparison: verification of the elements; None if the rewrite has no changes.
        gain: measurement; None if the rewrite was not measured.
        applied: True if the result has the rewrite.
        reason: reason why changes were not applied.
    """

    name: str
    changes: tuple[str, ...]
    skips: tuple[Skip, ...] = ()
    comparison: Comparison | None = None
    gain: Gain | None = None
    applied: bool = False
    reason: str = ""

    def undone(self, reason: str) -> "PipelineStep":
        """Return the step as not applied."""
        return replace(self, applied=False, reason=self.reason or reason) if self.changes else self

    def to_json(self) -> dict[str, Any]:
        comparison = self.comparison
        return {
            "rewrite": self.name,
            "applied": self.applied,
            "changes": list(self.changes),
            "skips": [{"node": skip.node, "reason": skip.reason} for skip in self.skips],
            "verified_elements": comparison.num_elements if comparison else 0,
            "is_complete_epoch": bool(comparison and comparison.is_complete),
            "ratio": self.gain.ratio if self.gain else None,
            "ratios": list(self.gain.ratios) if self.gain else [],
            "reason": self.reason,
        }

    def __str__(self) -> str:
        if self.applied:
            verified = f"{self.comparison.num_elements} equal elements" if self.comparison else ""
            return f"{self.name}: {self.gain}, {verified}"
        if self.changes:
            return f"{self.name}: not applied: {self.reason}{f' ({self.gain})' if self.gain else ''}"
        general = next((skip.reason for skip in self.skips if not skip.node), "")
        return f"{self.name}: {f'skipped: {general}' if general else 'nothing to change'}"

    def details(self) -> list[str]:
        """Return the changes and the skips with their reasons."""
        return [*(f"  {change}" for change in self.changes), *(f"  skipped: {skip}" for skip in self.skips)]


@dataclass(frozen=True)
class OptimizationResult(PlainReport):
    """Optimized pipeline.

    Attributes:
        dataset: the optimized ``tf.data.Dataset``; the original one if no rewrite gains.
        original, graph: graphs of the original and the optimized dataset.
        steps: rewrites in their order.
        gain: rate of the optimized pipeline next to the original; None if no rewrite is applied.
        element_spec: structure of the elements.
        output: written file; None without a file.
        reason: reason why no rewrite was tried; empty if rewrites were tried.
    """

    dataset: Any
    original: Graph
    graph: Graph
    steps: tuple[PipelineStep, ...]
    gain: Gain | None
    element_spec: Any
    output: str | os.PathLike[str] | None = None
    reason: str = ""

    @property
    def speedup(self) -> float:
        """Elements per second of the optimized pipeline divided by those of the original; 1 without a rewrite."""
        return self.gain.ratio if self.gain else 1.0

    @property
    def applied(self) -> tuple[str, ...]:
        """Names of the applied rewrites."""
        return tuple(step.name for step in self.steps if step.applied)

    @public
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the optimized dataset to a file, which `quantkit.data.load_dataset` reads."""
        data = bridge.save_dataset(self.graph, self.element_spec)
        write_whole(expand_user(path), lambda file: file.write(data))

    def python(self) -> str:
        """Return the optimized pipeline as lines of Python."""
        return "\n".join(python_lines(self.graph))

    def lines(self, *, explain: bool = False) -> list[str]:
        """Return the report.

        Args:
            explain: add the changes and skips of each rewrite.
        """
        lines = []
        for step in () if self.reason else self.steps:
            lines += [str(step), *(step.details() if explain else ())]
        if self.reason:
            lines.append(f"the pipeline stays unchanged: {self.reason}")
        elif self.gain is None:
            lines.append("no rewrite gains: the pipeline stays unchanged")
        else:
            before, after = self.gain.middle_rates
            lines.append(f"together: {self.gain.ratio:.2f} times the rate, {before:,.0f} -> {after:,.0f} elements/s")
        if "cache" in self.applied:
            lines.append("the rate with the cache holds from the second epoch on")
            changes = next(step.changes for step in self.steps if step.name == "cache")
            lines += [change for change in changes if " divided before " in change]
        lines += ["", *python_lines(self.graph)]
        if self.output is not None:
            lines += ["", f"{os.fspath(self.output)}: quantkit.data.load_dataset reads the dataset"]
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "quantkit.data_optimize/1",
            "speedup": self.speedup,
            "elements_per_second_before": self.gain.middle_rates[0] if self.gain else None,
            "elements_per_second_after": self.gain.middle_rates[1] if self.gain else None,
            "reason": self.reason,
            "steps": [step.to_json() for step in self.steps],
            "python_before": python_lines(self.original),
            "python_after": python_lines(self.graph),
            "output": None if self.output is None else os.fspath(self.output),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())
