"""Results of packing and of verification."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quantkit.data.packing.index import Index, index_path
from quantkit.data.packing.writer import SkippedSample
from quantkit.errors import CheckError
from quantkit.facts import PlainReport
from quantkit.formats.sizes import format_size

# Number of skipped samples that the text lists.
_MAX_LINES = 5


@dataclass(frozen=True)
class PackResult(PlainReport):
    """Result of packing.

    Attributes:
        folder: folder of the shards.
        index: shards, classes and checksums.
        written: names of the shards that this call wrote; the others were complete before.
        source_bytes: size of the samples that this call read.
        seconds: duration of the call.
        workers: number of processes.
        notes: facts for the user, for example about files that are not images.
    """

    folder: Path
    index: Index
    written: tuple[str, ...]
    source_bytes: int
    seconds: float
    workers: int
    notes: tuple[str, ...] = ()

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Samples that are not packed."""
        return tuple(sample for shard in self.index.shards for sample in shard.skipped)

    @property
    def files(self) -> tuple[Path, ...]:
        """Shards in order."""
        return tuple(self.folder / shard.file for shard in self.index.shards)

    @property
    def num_records(self) -> int:
        return sum(shard.num_records for shard in self.index.shards)

    @property
    def num_bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.num_bytes for shard in self.index.shards)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "quantkit.data_pack/1",
            "folder": str(self.folder),
            "name": self.index.name,
            "index": str(index_path(self.folder, self.index.name)),
            "files": [str(path) for path in self.files],
            "written": list(self.written),
            "records": self.num_records,
            "num_bytes": self.num_bytes,
            "classes": len(self.index.classes),
            "skipped": [asdict(sample) for sample in self.skipped],
            "seconds": self.seconds,
            "source_bytes": self.source_bytes,
            "workers": self.workers,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        classes = f" of {len(self.index.classes)} classes" if self.index.classes else ""
        lines = [
            f"{self.folder}: {self.num_records} records{classes} in {len(self.files)} shards, "
            f"{format_size(self.num_bytes)}"
        ]
        if self.written:
            rate = self.source_bytes / 1e6 / self.seconds if self.seconds else 0.0
            complete = len(self.files) - len(self.written)
            resumed = f"; {complete} shards were complete before" if complete else ""
            lines.append(f"{self.seconds:.1f} s, {rate:.1f} MB/s with {self.workers} processes{resumed}")
        else:
            lines.append("all shards were complete before")
        if self.skipped:
            lines.append(f"{len(self.skipped)} samples are not packed:")
            lines += [f"  {sample.name}: {sample.reason}" for sample in self.skipped[:_MAX_LINES]]
            if len(self.skipped) > _MAX_LINES:
                lines.append(f"  and {len(self.skipped) - _MAX_LINES} more, listed in {self.index.name}.index.json")
        return "\n".join([*lines, *self.notes])


@dataclass(frozen=True)
class VerificationResult(PlainReport):
    """Result of the verification of shards.

    Attributes:
        problems: description of the damage by file name; empty for an intact file.
        num_bytes: size of all files.
        seconds: duration of the call.
        packed: names of the files that `pack` wrote.
    """

    problems: Mapping[str, str]
    num_bytes: int
    seconds: float
    packed: frozenset[str] = frozenset()

    @property
    def ok(self) -> bool:
        """True if every file is intact."""
        return not any(self.problems.values())

    def check(self) -> None:
        """Raise an error unless every file is intact.

        Raises:
            CheckError: a file is damaged or missing.
        """
        damaged = [file for file, problem in self.problems.items() if problem]
        if damaged:
            raise CheckError(
                f"{len(damaged)} of {len(self.problems)} files are damaged: {', '.join(damaged[:3])}",
                hint="remove the damaged files, and pack the source again: only they are written"
                if self.packed.issuperset(damaged)
                else "copy or download the damaged files again",
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "quantkit.data_verify/1",
            "ok": self.ok,
            "problems": {file: problem for file, problem in self.problems.items() if problem},
            "files": len(self.problems),
            "num_bytes": self.num_bytes,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        lines = [f"{file}: {problem}" for file, problem in self.problems.items() if problem]
        damaged = f"{len(lines)} damaged" if lines else "all intact"
        return "\n".join([*lines, f"{len(self.problems)} files, {format_size(self.num_bytes)}: {damaged}"])
