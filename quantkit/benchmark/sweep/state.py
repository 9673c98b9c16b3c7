"""Finished trials of a search in a file, so that the same command resumes it."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from quantkit.benchmark.host.machine import Machine
from quantkit.errors import InputError, UsageError
from quantkit.formats.documents import check_structure, read_json
from quantkit.formats.files import write_whole

SCHEMA = "quantkit.sweep_state/2"
HINT = "pass a new file to --resume"
TRIAL = {"stage": int, "candidate": str, "ratio": float | None, "seconds": float | None, "failure": str}


@dataclass(frozen=True)
class MeasuredTrial:
    """Measurement of one candidate in one stage of a search.

    Attributes:
        stage: index of the stage; later stages measure longer.
        candidate: name of the candidate: the key of a setting, or form and runtime.
        ratio: speed-up over the default, or over the float model, in the same rounds; None after a failure.
        seconds: median latency; None after a failure.
        failure: reason for no measurement, or empty.
    """

    stage: int
    candidate: str
    ratio: float | None = None
    seconds: float | None = None
    failure: str = ""


def find_trial(trials: Iterable[MeasuredTrial], stage: int, candidate: str) -> MeasuredTrial | None:
    """Return the finished trial of a candidate; None if it is not measured yet."""
    return next((trial for trial in trials if (trial.stage, trial.candidate) == (stage, candidate)), None)


def read_state(path: Path, machine: Machine, schema: str, parse: Callable[[Mapping[str, Any]], object]) -> None:
    """Read the file of a search on this machine.

    Args:
        path: the file.
        machine: this host.
        schema: schema of the file.
        parse: function that takes the document; errors of missing or wrong values are those of the file.

    Raises:
        InputError: the file is not a state of such a search.
        UsageError: the trials are those of another machine.
    """
    try:
        document = read_json(path, HINT)
        if document["schema"] != schema:
            raise ValueError(f"the schema is {document['schema']!r}, and {schema!r} is required")
        other = Machine.from_json(document["machine"])
        if other.identity != machine.identity:
            raise UsageError(f"{path} has trials of another machine: {other.cpu}", HINT)
        parse(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is not the state of a search: {error}", HINT) from None


def write_state(path: Path | None, machine: Machine, schema: str, content: Mapping[str, Any]) -> None:
    """Write the file of a search, if there is one."""
    if path is not None:
        data = json.dumps({"schema": schema, "machine": machine.to_json(), **content}, indent=1).encode()
        write_whole(path, lambda file: file.write(data))


@dataclass
class SweepState:
    """Trials of each model, and the file that holds them.

    Attributes:
        machine: host of the trials.
        path: file; None if the trials are not saved.
        trials: trials by model.
    """

    machine: Machine
    path: Path | None = None
    trials: dict[str, list[MeasuredTrial]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, machine: Machine) -> Self:
        """Return the state of a file; without a file, a state without trials.

        Raises:
            InputError: the file is not a state of a sweep.
            UsageError: the trials are those of another machine.
        """
        state = cls(machine, path)
        if path is not None and path.exists():
            read_state(path, machine, SCHEMA, state._parse)
        return state

    def _parse(self, document: Mapping[str, Any]) -> None:
        check_structure(document["trials"], {str: [TRIAL]}, "trials")
        self.trials = {model: [MeasuredTrial(**trial) for trial in rows] for model, rows in document["trials"].items()}
        for trial in (trial for rows in self.trials.values() for trial in rows):
            check_structure(json.loads(trial.candidate), {str: object}, "candidate")

    def of(self, model: str) -> list[MeasuredTrial]:
        """Return the trials of a model."""
        return self.trials.setdefault(model, [])

    def find(self, model: str, stage: int, setting: str) -> MeasuredTrial | None:
        """Return the finished trial of a setting; None if it is not measured yet."""
        return find_trial(self.of(model), stage, setting)

    def add(self, model: str, trials: list[MeasuredTrial]) -> None:
        """Add trials, and write the file."""
        self.of(model).extend(trials)
        rows = {name: [asdict(trial) for trial in rows] for name, rows in self.trials.items()}
        write_state(self.path, self.machine, SCHEMA, {"trials": rows})
