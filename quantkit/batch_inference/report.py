"""Result of a batch inference: files, rejected samples, speed, and the work of each worker."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.batch_inference.results import FORMATS, read_rows
from quantkit.batch_inference.rows import Row
from quantkit.batch_inference.simulation import MeasuredParts, simulate_run
from quantkit.data import InputTimes
from quantkit.data.preparation import describe_rates
from quantkit.facts import PlainReport, format_facts
from quantkit.workers import WorkerUsage

# Worker counts of the scaling report.
SCALES = (1, 2, 4, 8, 16)
# Rejected samples in the text.
MAX_NAMES = 5


@dataclass(frozen=True)
class ResultFile:
    """Result file of one shard.

    Attributes:
        name: file name in the folder.
        samples: number of rows.
        sha256: digest of the content.
    """

    name: str
    samples: int
    sha256: str


@dataclass(frozen=True, repr=False)
class BatchInference(PlainReport):
    """Result of a batch inference.

    Attributes:
        model: name of the model.
        folder: folder of the results.
        format: form of the files.
        files: result files, in the order of the dataset.
        facts: runtime, preprocessing and form of the rows; empty if an earlier run had finished all shards.
        rejected: reason by name of each rejected sample, those of earlier runs included.
        resumed_samples: number of samples whose results an earlier run had finished.
        seconds: duration.
        workers: usage of each worker.
        cluster: ``local`` or ``ray``.
        threads: threads of each worker.
        times: times of the input, over all workers.
        parts: seconds by part, over all workers: ``input``, ``runtime``, ``write``, ``opening``, ``overhead`` and
            ``idle``.
        shard_seconds: duration of each shard in its worker.
        failed_attempts: number of attempts that were repeated.
    """

    model: str
    folder: Path
    format: str
    files: tuple[ResultFile, ...]
    facts: Mapping[str, Any]
    rejected: Mapping[str, str]
    resumed_samples: int
    seconds: float
    workers: tuple[WorkerUsage, ...]
    cluster: str
    threads: int
    times: InputTimes
    parts: Mapping[str, float]
    shard_seconds: tuple[float, ...]
    failed_attempts: int = 0

    @property
    def samples(self) -> int:
        """Number of all samples."""
        return sum(file.samples for file in self.files)

    @property
    def samples_per_second(self) -> float:
        """Speed of this run, with the start of the workers; 0 if an earlier run had finished all shards."""
        return (self.samples - self.resumed_samples) / self.seconds if self.shard_seconds else 0.0

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all files, in the order of the dataset."""
        for file in self.files:
            yield from read_rows(self.folder / file.name, FORMATS[self.format])

    @property
    def scaling(self) -> dict[int, float]:
        """Predicted samples per second by number of workers, each with cores of its own.

        The prediction is a simulation with the measured shards; shards of this run that shared cores are slower.
        """
        if not self.shard_seconds:
            return {}
        opened = [worker.open_seconds / (1 + worker.restarts) for worker in self.workers]
        parts = MeasuredParts(max(opened), self.shard_seconds)
        count = self.samples - self.resumed_samples
        return {number: count / simulate_run(parts, number) for number in SCALES}

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit run --json``."""
        count = self.samples - self.resumed_samples
        return {
            "schema": "quantkit.run/1",
            "model": self.model,
            "folder": str(self.folder),
            "format": self.format,
            "runtime": self.facts.get("runtime"),
            "preprocessing": self.facts.get("preprocessing"),
            "rows": self.facts.get("rows"),
            "samples": self.samples,
            "resumed_samples": self.resumed_samples,
            "rejected": [{"name": name, "message": message} for name, message in self.rejected.items()],
            "files": [vars(file) for file in self.files],
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "cluster": self.cluster,
            "threads": self.threads,
            "workers": [worker.to_json() for worker in self.workers],
            "parts": dict(self.parts),
            "input": self.times.rates(count, sum(self.shard_seconds)) if self.shard_seconds else None,
            "failed_attempts": self.failed_attempts,
            "scaling": {str(number): rate for number, rate in self.scaling.items()},
        }

    @property
    def _title(self) -> str:
        runtime = f" in {self.facts['runtime']}" if self.facts else ""
        return f"{self.model}{runtime}, {self.samples} samples"

    @property
    def _facts(self) -> list[tuple[str, str]]:
        rows = [("files", f"{len(self.files)} in {self.folder}")]
        if self.resumed_samples:
            rows.append(("resumed", f"{self.resumed_samples} samples were finished before"))
        if not self.shard_seconds:
            return rows
        rows.append(("speed", f"{self.samples_per_second:.1f} samples per second, {self.seconds:.1f} s"))
        rate = self.times.rates(self.samples - self.resumed_samples, sum(self.shard_seconds))
        rows.append(("per worker", describe_rates(rate)))
        total = sum(self.parts.values())
        shares = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in self.parts.items())
        rows.append(("time", shares))
        used = ", ".join(f"{100 * worker.utilization:.0f} %" for worker in self.workers)
        rows.append(("utilization", f"{used} ({self.cluster}, {self.threads} threads each)"))
        scales = ", ".join(f"{number}: {rate:.0f}" for number, rate in self.scaling.items())
        rows.append(("predicted", f"samples per second by number of workers with own cores: {scales}"))
        if self.failed_attempts:
            rows.append(("repeated", f"{self.failed_attempts} attempts failed"))
        return rows

    @property
    def _notes(self) -> list[str]:
        if not self.rejected:
            return []
        names = [f"  {name}: {message}" for name, message in list(self.rejected.items())[:MAX_NAMES]]
        more = ["  ..."] if len(self.rejected) > MAX_NAMES else []
        return [f"{len(self.rejected)} samples rejected:", *names, *more]

    def __repr__(self) -> str:
        facts = f"{len(self.files)} files, {self.samples} samples, {len(self.rejected)} rejected"
        return f"BatchInference({self.model!r}, {str(self.folder)!r}, {facts})"

    def __str__(self) -> str:
        return format_facts(self._title, self._facts, self._notes)
