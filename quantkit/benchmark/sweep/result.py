"""Result of a sweep: the best settings of each model, and the lines that apply them."""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.results.report import format_latency
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.benchmark.sweep.state import MeasuredTrial
from quantkit.facts import PlainReport, align_columns
from quantkit.formats.files import write_whole
from quantkit.formats.kinds import SUFFIXES
from quantkit.runtimes import find_runtime

SCHEMA = "quantkit.sweep/1"
# Trials in the text form; the JSON form has all.
MAX_ROWS = 12


@dataclass(frozen=True)
class BestSettings:
    """Settings that are recommended for a model.

    Attributes:
        model: name of the model.
        path: its file.
        candidate: the model with these settings.
        layout: layout that the model must be converted to; None for its own.
        is_default: True if no setting is shown to be faster than the default.
        speedup: speed-up over the default in new processes; None for the default.
    """

    model: str
    path: str
    candidate: Candidate
    layout: str | None = None
    speedup: Speedup | None = None

    @property
    def is_default(self) -> bool:
        return self.speedup is None

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings by name; None for the default of the runtime."""
        settings = self.candidate.settings
        return {
            "intra_op": settings.options.intra_op,
            "inter_op": settings.options.inter_op,
            "spinning": settings.options.spinning,
            "precision": settings.options.precision,
            "streams": settings.streams,
            "batch": settings.batch,
            "cpus": list(settings.cpus),
            "layout": self.layout,
            "environment": dict(settings.environment),
        }

    @property
    def command(self) -> str:
        """Line for the command line."""
        settings, runtime = self.settings, self.candidate.settings.runtime
        arguments = ["quantkit", "benchmark", shlex.quote(f"{self.path}@{runtime}")]
        if self.layout is not None:
            convert = f"quantkit transform {shlex.quote(self.path)} -o converted.pb"
            convert += f" --transforms 'convert_layout(to={self.layout})'"
            arguments = [convert, "&&", "quantkit", "benchmark", f"converted.pb@{runtime}"]
        for name in ("intra_op", "inter_op", "streams", "batch"):
            arguments += [f"--{name.replace('_', '-')}", str(settings[name])] if settings[name] is not None else []
        if settings["spinning"] is not None:
            arguments += ["--spinning", str(settings["spinning"]).lower()]
        if settings["precision"] != "float32":
            arguments += ["--precision", settings["precision"]]
        if settings["cpus"]:
            arguments += ["--cpus", ",".join(map(str, settings["cpus"]))]
        for name, value in settings["environment"].items():
            arguments += ["--env", shlex.quote(f"{name}={value}")]
        return " ".join(arguments)

    @property
    def python(self) -> str:
        """Lines for quantkit in Python."""
        options = {
            name: value
            for name, value in asdict(self.candidate.settings.options).items()
            if name in ("intra_op", "inter_op", "spinning") and value is not None
        }
        if self.settings["precision"] != "float32":
            options["precision"] = self.settings["precision"]
        if self.settings["streams"] is not None:
            options["streams"] = self.settings["streams"]
        arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
        model = f"qk.load({self.path!r})"
        if self.layout is not None:
            model = f"qk.transform({model}, 'convert_layout(to={self.layout})')"
        return "\n".join(
            [
                *self._process_lines,
                "import quantkit as qk",
                "from quantkit.runtimes import SessionOptions",
                f"session = qk.open_session({model}, {self.candidate.settings.runtime!r}, SessionOptions({arguments}))",
            ]
        )

    @property
    def native(self) -> str:
        """Lines for the runtime's own API; empty if the runtime does not state them.

        They begin with the command that writes the file if the runtime cannot open that of the model.
        """
        settings = self.candidate.settings
        runtime = find_runtime(settings.runtime)
        if runtime.native_options is None:
            return ""
        options, file, lines = settings.options, self.path, self._process_lines
        suffix = next((suffix for suffix, kind in SUFFIXES.items() if kind in runtime.kinds), "")
        if suffix and SUFFIXES.get(Path(file).suffix.lower()) not in runtime.kinds:
            file = f"model{suffix}"
            lines.append(f"# {shlex.join(('quantkit', 'transform', self.path, '-o', file))}")
        if settings.cpus and options.intra_op is None:
            # By default, ONNX Runtime pins threads to all cores of the machine.
            options = replace(options, intra_op=len(settings.cpus))
        return "\n".join([*lines, runtime.native_options(options, repr(file))])

    @property
    def _process_lines(self) -> list[str]:
        """Lines that set the environment and the CPUs of a process, before a runtime is imported."""
        settings = self.candidate.settings
        lines = [f"os.environ[{name!r}] = {value!r}" for name, value in settings.environment.items()]
        if settings.cpus:
            lines.append(f"os.sched_setaffinity(0, {set(settings.cpus)})")
        return ["import os", *lines] if lines else []

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON document."""
        speedup = self.speedup
        return {
            "model": self.model,
            "runtime": self.candidate.settings.runtime,
            "settings": dict(self.settings),
            "is_default": self.is_default,
            "speedup": {
                "value": 1.0 if speedup is None else speedup.ratio,
                "low": 1.0 if speedup is None else speedup.low,
                "high": 1.0 if speedup is None else speedup.high,
            },
            "command": self.command,
            "python": self.python,
            "native": self.native,
        }


@dataclass(frozen=True)
class ModelSweep:
    """Sweep of one model.

    Attributes:
        best: recommended settings.
        default_seconds: median latency with the default settings.
        best_seconds: median latency with the recommended settings.
        rejected: the fastest setting of the search, if new processes do not show it to be faster, with its speed-up;
            None for a speed-up that the time budget was too short for.
        trials: measurements of the search, with the text of their settings.
        unmeasured: settings for which the time budget was too short.
        notes: messages, for example on OpenMP.
    """

    best: BestSettings
    default_seconds: float
    best_seconds: float
    rejected: tuple[str, Speedup | None] | None = None
    trials: tuple[tuple[str, MeasuredTrial], ...] = ()
    unmeasured: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Sentence on the best settings."""
        runtime = find_runtime(self.best.candidate.settings.runtime).title
        name = f"{self.best.model} in {runtime}"
        if self.best.speedup is not None:
            return f"{name}: {self.best.candidate.label}: {self.best.speedup.verdict} over the default"
        if self.rejected is None:
            return f"{name}: keep the default: no setting is faster"
        label, speedup = self.rejected
        if speedup is None:
            return f"{name}: keep the default: the time budget is too short to confirm {label}"
        return (
            f"{name}: keep the default: the fastest setting of the search, {label}, is {speedup.verdict} when repeated"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sweep as a JSON document."""
        rejected = None
        if self.rejected is not None:
            label, speedup = self.rejected
            rejected = {"settings": label, "speedup": None if speedup is None else speedup.to_json()}
        return {
            "best": self.best.to_json(),
            "default_seconds": self.default_seconds,
            "best_seconds": self.best_seconds,
            "rejected": rejected,
            "trials": [
                {"setting": text, **{name: value for name, value in asdict(trial).items() if name != "candidate"}}
                for text, trial in self.trials
            ],
            "unmeasured": list(self.unmeasured),
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the text form."""
        trials = sorted(self.trials, key=lambda row: (-row[1].stage, -(row[1].ratio or 0)))[:MAX_ROWS]
        rows = [("setting", "stage", "median ms", "over default")]
        for text, trial in trials:
            seconds = "-" if trial.seconds is None else format_latency(trial.seconds)
            ratio = trial.failure if trial.ratio is None else f"{trial.ratio:.2f}x"
            rows.append((text, str(trial.stage + 1), seconds, ratio))
        lines = [self.verdict, f"default: {format_latency(self.default_seconds)} ms"]
        if not self.best.is_default:
            lines[1] += f", best: {format_latency(self.best_seconds)} ms"
        lines += ["", *align_columns(rows, right=(1, 2)), "", *self.notes]
        if self.unmeasured:
            lines.append(f"time budget exhausted: {len(self.unmeasured)} settings not measured: raise --time-budget")
        lines += ["", "command line:", self.best.command, "", "Python:", self.best.python]
        if self.best.native:
            lines += ["", f"{find_runtime(self.best.candidate.settings.runtime).title}:", self.best.native]
        return lines


@dataclass(frozen=True, repr=False)
class Sweep(PlainReport):
    """Best settings of several models.

    Attributes:
        models: sweep of each model.
        machine: this host.
    """

    models: tuple[ModelSweep, ...]
    machine: Machine

    @property
    def best(self) -> BestSettings:
        """Settings of the model that is fastest with its best settings."""
        return min(self.models, key=lambda model: model.best_seconds).best

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON form to a file, which appears complete or not at all."""
        data = json.dumps(self.to_json(), indent=1).encode()
        write_whole(Path(path), lambda file: file.write(data))

    def to_json(self) -> dict[str, Any]:
        """Return the sweep as a JSON document."""
        return {
            "schema": SCHEMA,
            "best": self.best.to_json(),
            "models": [model.to_json() for model in self.models],
            "machine": self.machine.to_json(),
        }

    def __repr__(self) -> str:
        return f"Sweep({'; '.join(model.verdict for model in self.models)})"

    def __str__(self) -> str:
        sections = ["\n".join(model.lines()) for model in self.models]
        if len(self.models) > 1:
            verdicts = [model.verdict for model in self.models]
            best = f"fastest with its best settings: {self.best.model} in {self.best.candidate.settings.runtime}"
            sections.append("\n".join([*verdicts, best]))
        return "\n\n".join([*sections, self.machine.sentence])
