"""Finished trials of a sweep in a file, so that the same command resumes it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from quantkit.benchmark.host.machine import Machine
from quantkit.errors import InputError, UsageError
from quantkit.formats.documents import check_structure, read_json
from quantkit.formats.files import write_whole

SCHEMA = "quantkit.sweep_state/1"
_TRIAL = {"stage": int, "setting": str, "ratio": float | None, "seconds": float | None, "failure": str}


@dataclass(frozen=True)
class SettingTrial:
    """Measurement of one setting in one stage of the search.

    Attributes:
        stage: index of the stage; later stages measure longer.
        setting: key of the setting.
        ratio: speed-up over the default; None after a failure.
        seconds: median latency; None after a failure.
        failure: reason for no measurement, or empty.
    """

    stage: int
    setting: str
    ratio: float | None = None
    seconds: float | None = None
    failure: str = ""


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
    trials: dict[str, list[SettingTrial]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, machine: Machine) -> Self:
        """Return the state of a file; without a file, a state without trials.

        Raises:
            InputError: the file is not a state of a sweep.
            UsageError: the trials are those of another machine.
        """
        if path is None or not path.exists():
            return cls(machine, path)
        hint = "pass a new file to --resume"
        try:
            document = read_json(path, hint)
            if document["schema"] != SCHEMA:
                raise InputError(f"{path}: the schema is {document['schema']!r}, and {SCHEMA!r} is required", hint)
            check_structure(document["trials"], {str: [_TRIAL]}, "trials")
            trials = {model: [SettingTrial(**trial) for trial in rows] for model, rows in document["trials"].items()}
            for trial in (trial for rows in trials.values() for trial in rows):
                check_structure(json.loads(trial.setting), {str: object}, "setting")
            other = Machine.from_json(document["machine"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{path} is not the state of a sweep: {error}", hint) from None
        if other.identity != machine.identity:
            raise UsageError(f"{path} has trials of another machine: {other.cpu}", hint)
        return cls(machine, path, trials)

    def find(self, model: str, stage: int, setting: str) -> SettingTrial | None:
        """Return the finished trial of a setting; None if it is not measured yet."""
        return next((trial for trial in self.of(model) if (trial.stage, trial.setting) == (stage, setting)), None)

    def of(self, model: str) -> list[SettingTrial]:
        """Return the trials of a model."""
        return self.trials.setdefault(model, [])

    def add(self, model: str, trials: list[SettingTrial]) -> None:
        """Add trials, and write the file."""
        self.of(model).extend(trials)
        if self.path is not None:
            document = {
                "schema": SCHEMA,
                "machine": self.machine.to_json(),
                "trials": {name: [asdict(trial) for trial in rows] for name, rows in self.trials.items()},
            }
            data = json.dumps(document, indent=1).encode()
            write_whole(self.path, lambda file: file.write(data))
