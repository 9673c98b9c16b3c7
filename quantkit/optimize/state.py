"""Finished work of a search in a file, and the files that it built next to it, so that the same call resumes it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sweep.state import HINT, TRIAL, MeasuredTrial, find_trial, read_state, write_state
from quantkit.errors import UsageError
from quantkit.formats.documents import check_structure
from quantkit.formats.sizes import count_file_bytes
from quantkit.optimize.drop import Drop
from quantkit.runtimes.session import SessionOptions

SCHEMA = "quantkit.optimize_state/1"
_FORM = {"name": str, "precision": str, "file": str, "runtimes": [str], "settings": {str: object}}
_DROP = {"metric": str, "value": float | int, "high": float | int, "samples": int}


@dataclass(frozen=True)
class Form:
    """File of the model in one precision and format.

    Attributes:
        name: text in the report: ``int8 for OpenVINO``.
        precision: ``float32``, or ``int8`` for a file with int8 layers.
        path: the file.
        runtimes: runtimes that are to run it.
        settings: endpoints and session options that the file needs.
    """

    name: str
    precision: str
    path: Path
    runtimes: tuple[str, ...]
    settings: Settings = field(default_factory=Settings)

    @property
    def num_bytes(self) -> int:
        """Size of the file, with the files of its external data."""
        return count_file_bytes(self.path)

    def candidates(self, precisions: Iterable[str] = ("float32",)) -> list[Candidate]:
        """Return the file in each of its runtimes, with each arithmetic.

        Args:
            precisions: arithmetic of the float layers, as in `SessionOptions.precision`.
        """
        return [
            self.candidate(name, replace(self.settings.options, precision=precision))
            for name in self.runtimes
            for precision in precisions
        ]

    def candidate(self, runtime: str, options: SessionOptions) -> Candidate:
        """Return the file in a runtime."""
        text = "" if options.precision == "float32" else f", {options.precision}"
        return Candidate(f"{self.name}{text}", self.path, replace(self.settings, runtime=runtime, options=options))


@dataclass
class SearchState:
    """Files, trials and drops of a search.

    Attributes:
        machine: host of the trials.
        key: digest of the model, the data and the options: another search has another one.
        folder: for the files.
        path: file of the state; None if it is not saved.
        forms: built files by name.
        failures: reason by name of each form that could not be built.
        trials: measurements.
        drops: drop by name of the candidate.
    """

    machine: Machine
    key: str
    folder: Path
    path: Path | None = None
    forms: dict[str, Form] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    trials: list[MeasuredTrial] = field(default_factory=list)
    drops: dict[str, Drop] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, machine: Machine, key: str) -> Self:
        """Return the state of a file; a state without trials if the file does not exist.

        Raises:
            InputError: the file is not a state of a search.
            UsageError: the state is that of another search, or of another machine.
        """
        folder = path.with_name(f"{path.name}.files")
        state = cls(machine, key, folder, path)
        if path.exists():
            read_state(path, machine, SCHEMA, state._parse)
        folder.mkdir(exist_ok=True)
        return state

    def _parse(self, document: Mapping[str, Any]) -> None:
        check_structure(document["forms"], [_FORM], "forms")
        check_structure(document["trials"], [TRIAL], "trials")
        check_structure(document["drops"], {str: _DROP}, "drops")
        check_structure(document["failures"], {str: str}, "failures")
        if document["key"] != self.key:
            raise UsageError(f"{self.path} belongs to another model, other data or other options", HINT)
        for row in document["forms"]:
            # A name in the file cannot lead out of the folder.
            file = self.folder / Path(row["file"]).name
            if file.exists():
                self.forms[row["name"]] = Form(
                    row["name"], row["precision"], file, tuple(row["runtimes"]), _parse_settings(row["settings"])
                )
        self.trials = [MeasuredTrial(**row) for row in document["trials"]]
        self.drops = {name: Drop(**row) for name, row in document["drops"].items()}
        self.failures = dict(document["failures"])

    def find(self, stage: int, candidate: str) -> MeasuredTrial | None:
        """Return the finished trial of a candidate; None if it is not measured yet."""
        return find_trial(self.trials, stage, candidate)

    def save(self) -> None:
        """Write the file, if there is one."""
        content = {
            "key": self.key,
            "forms": [_to_json(form) for form in self.forms.values()],
            "trials": [asdict(trial) for trial in self.trials],
            "drops": {name: drop.to_json() for name, drop in self.drops.items()},
            "failures": self.failures,
        }
        write_state(self.path, self.machine, SCHEMA, content)


def _to_json(form: Form) -> dict[str, Any]:
    settings = form.settings
    return {
        "name": form.name,
        "precision": form.precision,
        "file": form.path.name,
        "runtimes": list(form.runtimes),
        "settings": {
            "inputs": settings.inputs,
            "outputs": settings.outputs,
            "input_shapes": {name: list(shape) for name, shape in settings.input_shapes.items()},
            "options": asdict(settings.options),
        },
    }


def _parse_settings(document: Mapping[str, Any]) -> Settings:
    inputs, outputs = (None if names is None else tuple(names) for names in (document["inputs"], document["outputs"]))
    shapes = {name: tuple(shape) for name, shape in document["input_shapes"].items()}
    return Settings(options=SessionOptions(**document["options"]), inputs=inputs, outputs=outputs, input_shapes=shapes)
