"""Candidates of a benchmark: a model, a runtime, and the settings of the process."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quantkit.errors import InputError
from quantkit.formats.kinds import kind_of
from quantkit.formats.sizes import count_file_bytes, find_files
from quantkit.runtimes import AUTO
from quantkit.runtimes.session import SessionOptions


@dataclass(frozen=True)
class Settings:
    """Settings of a worker process and its session.

    Attributes:
        runtime: name of a runtime, or ``auto``.
        options: threads, device and precision.
        environment: environment variables, set before the runtime is loaded.
        cpus: hardware threads of the process; empty for all.
        streams: number of threads that call the model at the same time, to measure its throughput; None to measure the
            latency of one call at a time.
        batch: batch size for models with a dynamic batch (default: 1).
        inputs, outputs: names of the inputs and outputs (default: those of the file or its model card).
        input_shapes: sizes of inputs with dynamic dimensions, by input name.
        data: path of a dataset, whose first samples are the inputs; None for random inputs.
        is_end_to_end: True if a call also decodes and preprocesses images of ``data``, and sorts the scores.
    """

    runtime: str = AUTO
    options: SessionOptions = field(default_factory=SessionOptions)
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    streams: int | None = None
    batch: int | None = None
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    data: str | None = None
    is_end_to_end: bool = False


@dataclass(frozen=True)
class Candidate:
    """Model to measure, with the settings of its process.

    Attributes:
        label: name in the report.
        path: file of the model.
        settings: settings of the process.
    """

    label: str
    path: Path
    settings: Settings = field(default_factory=Settings)

    def __str__(self) -> str:
        return f"{self.label} in {self.settings.runtime}"

    def to_request(self, seed: int) -> dict[str, Any]:
        """Return the request that opens the model in a worker."""
        settings = self.settings
        return {
            "do": "open",
            "model": str(self.path.absolute()),
            "runtime": settings.runtime,
            "options": asdict(replace(settings.options, streams=settings.streams or 1)),
            "inputs": settings.inputs,
            "outputs": settings.outputs,
            "streams": settings.streams,
            "batch": settings.batch,
            "input_shapes": dict(settings.input_shapes),
            "data": settings.data,
            "end_to_end": settings.is_end_to_end,
            "seed": seed,
        }


def digest(path: Path) -> tuple[str, int]:
    """Return SHA-256 and size of a model; that of several files is the digest of their digests.

    The files are those of a folder, sorted by name, or an ONNX file and those of its weights.

    Raises:
        InputError: the file is missing, empty, unreadable, or not a model.
    """
    kind_of(path)
    try:
        digests = [_digest_of_file(file) for file in find_files(path)]
        num_bytes = count_file_bytes(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint="check the permissions of the file") from None
    is_single = path.is_file() and len(digests) == 1
    return digests[0] if is_single else hashlib.sha256(json.dumps(digests).encode()).hexdigest(), num_bytes


def _digest_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
