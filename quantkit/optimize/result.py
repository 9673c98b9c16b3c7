"""Result of a search: the recommendation, the front, reasons against the others, and the lines that use the file."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quantkit.arguments import expand_user, public
from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.results.report import format_latency
from quantkit.benchmark.statistics.student import MIN_PROCESSES
from quantkit.benchmark.sweep.result import BestSettings
from quantkit.benchmark.sweep.state import MeasuredTrial
from quantkit.errors import UsageError
from quantkit.facts import PlainReport, align_columns
from quantkit.formats import PYTORCH_SUFFIXES, SUFFIXES, TENSORRT_SUFFIXES, check_target
from quantkit.formats.files import write_whole
from quantkit.formats.sizes import format_size
from quantkit.formats.temporary import OwnedFolder
from quantkit.optimize.deployment import Deployment, deploy
from quantkit.optimize.drop import samples_for
from quantkit.optimize.search import Choice, Goal, name_of
from quantkit.runtimes import find_runtime

SCHEMA = "quantkit.optimize/1"
DEFAULT = "the default settings"


@dataclass(frozen=True, repr=False)
class Optimization(PlainReport):
    """The fastest file of a model inside an accuracy bound, with the proof.

    Attributes:
        model: name of the model.
        file: the best file.
        goal: objective, bound and candidates of the search.
        best: the best candidate within the bound.
        baseline: the float model in its fastest runtime with default settings.
        choices: all measured candidates, the best first.
        skipped: reason by name of each form that was not built or could not run.
        trials: all measurements.
        machine: this host.
        seconds: duration of the search.
        is_complete: False if the search was interrupted.
    """

    model: str
    file: Path
    goal: Goal
    best: Choice
    baseline: Choice
    choices: tuple[Choice, ...]
    skipped: dict[str, str]
    trials: tuple[MeasuredTrial, ...]
    machine: Machine
    seconds: float
    is_complete: bool
    _folder: OwnedFolder | None = field(default=None, compare=False)

    @property
    def is_float(self) -> bool:
        """True if the best candidate is the float model in its fastest runtime with default settings."""
        return self.best.name == self.baseline.name

    @property
    def answer(self) -> str:
        """First line of the report: what to use, how fast it is, and how accurate."""
        best, runtime = self.best, find_runtime(self.best.candidate.settings.runtime).title
        use = f"use {self.file.name} in {runtime} with {best.settings or DEFAULT}"
        if self.is_float:
            better = "smaller" if self.goal.objective == "size" else "faster"
            return f"keep the float model: {use}: no other candidate is shown to be {better} within the bound"
        interval = "not measured in new processes"
        if best.speedup is not None:
            interval = f"{best.speedup.low:.2f} to {best.speedup.high:.2f}"
        ratio = f"{best.ratio:.2f} times as fast as {name_of(self.baseline.candidate)} ({interval})"
        if self.goal.objective == "size":
            ratio = f"{format_size(best.form.num_bytes)}, {ratio}"
        drop = "all layers in float32" if best.is_float32 else str(best.drop)
        return f"{use}: {ratio}, {drop}"

    @property
    def front(self) -> tuple[Choice, ...]:
        """Candidates that no other one beats in latency, drop and size at once, the fastest first."""
        measured = [each for each in self.choices if each.drop is not None]
        costs = {each.name: _costs(each) for each in measured}
        return tuple(
            each
            for each in sorted(measured, key=lambda each: each.seconds)
            if not any(_dominates(costs[other.name], costs[each.name]) for other in measured if other is not each)
        )

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Name of each other candidate, with the reason why it is not the best."""
        rows = [(each.name, self._reason(each)) for each in self.choices]
        return [(name, reason) for name, reason in (*rows, *self.skipped.items()) if name != self.best.name]

    def _reason(self, choice: Choice) -> str:
        text = f"{choice.ratio:.2f} times as fast as the float model"
        if choice.is_float32 and "float32" not in self.goal.precisions:
            return f"{text}; float32 is not one of the precisions"
        if choice.drop is None:
            return f"{text}; its drop was not measured"
        if choice.drop.high > self.goal.max_drop:
            few = ""
            if choice.drop.value <= self.goal.max_drop and choice.drop.metric in ("top-1", "agreement"):
                needed = samples_for(self.goal.max_drop) if self.goal.max_drop > 0 else 0
                few = f": about {needed} held-out samples may show {self.goal.max_drop:g}" if needed else ""
            return f"{text}, but {choice.drop}{few}"
        if self.goal.objective == "size" or choice.ratio <= self.best.ratio:
            return text
        speedup = choice.speedup
        if speedup is None or speedup.processes < MIN_PROCESSES:
            return f"{text} in too few processes"
        return f"{text}, which is not shown in new processes ({speedup.low:.2f} to {speedup.high:.2f})"

    @property
    def settings(self) -> BestSettings:
        """Settings of the best candidate, with the lines that apply them."""
        candidate = replace(self.best.candidate, path=self.file)
        return BestSettings(self.model, str(self.file), candidate)

    @public
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the best file; it appears complete or not at all.

        Args:
            path: file with the suffix of the best file, or without one, which is then added.

        Returns:
            The path with its suffix.

        Raises:
            UsageError: the suffix is that of another format, or the folder does not exist.
            InputError: the file cannot be written.
        """
        output = expand_user(path)
        if output.suffix.lower() != self.file.suffix.lower():
            if format_suffix(output):
                hint = f"use the suffix {self.file.suffix}, or omit it"
                raise UsageError(f"the best file is {self.file.suffix}, and not {output.suffix}", hint=hint)
            output = output.with_name(output.name + self.file.suffix)
        check_target(output)
        if output.resolve() != self.file.resolve():
            content = self.file.read_bytes()
            write_whole(output, lambda file: file.write(content))
        return output

    @public
    def deploy(self, folder: str | os.PathLike[str], server: str = "python", *, name: str | None = None) -> Path:
        """Write a folder that serves the best file with its settings: see `quantkit.optimize.deployment.deploy`.

        Args:
            folder: output folder; it does not exist or is empty.
            server: ``triton``, ``openvino-model-server``, ``kserve`` or ``python``.
            name: name of the model in the server (default: the name of the file).

        Raises:
            UsageError: the server is unknown or does not run this file in this runtime, or the folder is not empty.
            InputError: the folder cannot be written.
        """
        settings = self.best.candidate.settings
        return deploy(
            Deployment(
                self.file,
                name or self.file.name.partition(".")[0],
                settings.runtime,
                settings.options,
                settings.streams,
                settings.environment,
            ),
            folder,
            server,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit optimize --json``."""
        settings = self.settings
        return {
            "schema": SCHEMA,
            "model": self.model,
            "answer": self.answer,
            "best": self._document(self.best) | {"file": str(self.file)},
            "baseline": self._document(self.baseline),
            "front": [self._document(each) for each in self.front],
            "candidates": [asdict(trial) for trial in self.trials],
            "reasons": [{"candidate": name, "reason": reason} for name, reason in self.reasons],
            "goal": asdict(self.goal),
            "command": settings.command,
            "python": settings.python,
            "native": settings.native,
            "machine": self.machine.to_json(),
            "seconds": self.seconds,
            "is_complete": self.is_complete,
        }

    def _document(self, choice: Choice) -> dict[str, Any]:
        speedup, settings = choice.speedup, choice.candidate.settings
        limits = (None, None) if speedup is None else (speedup.low, speedup.high)
        return {
            "name": choice.name,
            "file": choice.form.path.name,
            "runtime": settings.runtime,
            "settings": dict(BestSettings(self.model, "", choice.candidate).settings),
            "speedup": {"value": choice.ratio, "low": limits[0], "high": limits[1]},
            "latency_ms": 1000 * choice.seconds,
            "drop": None if choice.drop is None else choice.drop.to_json(),
            "num_bytes": choice.form.num_bytes,
        }

    def _lines(self) -> Iterator[str]:
        settings = self.settings
        yield self.answer
        if not self.is_complete:
            yield "the search was interrupted: a later one may find a faster file"
        yield ""
        yield "candidates that no other one beats in latency, drop and size"
        yield from (f"  {line}" for line in align_columns([TITLES, *map(cells, self.front)], right=range(1, 6)))
        yield f"  {SPEEDUP_NOTE}"
        yield ""
        yield "why no other candidate is the best"
        yield from (f"  {name}: {reason}" for name, reason in self.reasons)
        yield from ("", "command line:", settings.command, "", "Python:", settings.python)
        if settings.native:
            yield from ("", f"{find_runtime(self.best.candidate.settings.runtime).title}:", settings.native)
        yield from ("", self.machine.sentence)

    def __repr__(self) -> str:
        return f"Optimization({self.answer})"

    def __str__(self) -> str:
        return "\n".join(self._lines())


TITLES = ("candidate", "ms", "speed-up", "drop", "at most", "size")
SPEEDUP_NOTE = "speed-ups are ratios in the same rounds; quotients of latencies of different rounds differ from them"


def format_suffix(path: Path) -> str:
    """Return the suffix of a path if it names a format of models; else empty."""
    suffix = path.suffix.lower()
    return suffix if suffix in (*SUFFIXES, *PYTORCH_SUFFIXES, *TENSORRT_SUFFIXES) else ""


def cells(choice: Choice) -> tuple[str, ...]:
    """Return the cells of a candidate in the table of the front."""
    drop = ("-", "-") if choice.drop is None else (f"{choice.drop.value:.4f}", f"{choice.drop.high:.4f}")
    size = format_size(choice.form.num_bytes)
    return choice.name, format_latency(choice.seconds), f"{choice.ratio:.2f}x", *drop, size


def _costs(choice: Choice) -> tuple[float, float, int]:
    assert choice.drop is not None
    return choice.seconds, choice.drop.high, choice.form.num_bytes


def _dominates(first: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(first, other, strict=True)) and tuple(first) != tuple(other)


class OptimizationInterrupted(KeyboardInterrupt):
    """Ctrl-C during a search; `optimization` is the best that is known."""

    def __init__(self, optimization: Optimization) -> None:
        super().__init__()
        self.optimization = optimization
