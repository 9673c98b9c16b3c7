"""Profile of a pipeline: its rate, the time of each stage, and the limits of stages, cores, disk and consumer."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from quantkit.cores import available_cores
from quantkit.errors import InputError, UnavailableError, one_line
from quantkit.facts import PlainReport
from quantkit.formats.sizes import format_size
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType
from quantkit.pipelines import bridge
from quantkit.pipelines.execution import translate_errors
from quantkit.pipelines.python_lines import stage_labels
from quantkit.pipelines.stage_model import (
    RateLimit,
    StageTime,
    configured_limit,
    cores_limit,
    model_extent,
    read_model,
)
from quantkit.runtimes.tensorflow_library import import_tensorflow

# Maximum number of bytes that are read to measure the disk.
_DISK_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_NAME_WIDTH = 32
# Time between two readings of the core times.
_MODEL_SECONDS = 0.05
# Least fraction of the core time of a stage in the report that the program does not have.
_MIN_TIME = 0.02


@dataclass(frozen=True)
class PipelineProfile(PlainReport):
    """Profile of a pipeline.

    Attributes:
        elements_per_second, bytes_per_second: measured rates.
        stages: stages from the last one to the sources.
        cores: number of cores.
        read_bytes: bytes that the pipeline reads from files for one element; None if they are not known.
        disk_bytes_per_second: rate of reading the files of the pipeline without the page cache; None without files.
        step_seconds: time of the consumer for one element; None if it is not given.
    """

    elements_per_second: float
    bytes_per_second: float
    stages: tuple[StageTime, ...]
    cores: int
    read_bytes: float | None
    disk_bytes_per_second: float | None
    step_seconds: float | None

    @property
    def bottleneck(self) -> RateLimit:
        """Limit of the pipeline with its present threads, and its cause."""
        limit = configured_limit(self.stages, self.cores)
        if self.disk and not self.is_cached and self.disk.elements_per_second < limit.elements_per_second:
            limit = self.disk
        # The core times are estimates: the measured rate is possible.
        return replace(limit, elements_per_second=max(limit.elements_per_second, self.elements_per_second))

    @property
    def cores_limit(self) -> RateLimit:
        """Limit if every stage could run on all cores."""
        return cores_limit(self.stages, self.cores)

    @property
    def disk(self) -> RateLimit | None:
        """Limit of the disk; None if its rate or the read bytes are not known."""
        if self.disk_bytes_per_second is None or not self.read_bytes:
            return None
        return RateLimit(self.disk_bytes_per_second / self.read_bytes, "disk")

    @property
    def is_cached(self) -> bool:
        """True if the measured rate is above that of the disk: the page cache holds the files."""
        return self.disk is not None and self.elements_per_second > self.disk.elements_per_second

    @property
    def verdict(self) -> str:
        """Conclusion: the input or the consumer is the limit."""
        cause = self.bottleneck.cause
        if self.step_seconds is None:
            return f"the input is limited by {cause}; --step-time shows the idle time of a consumer"
        rate = 1 / self.step_seconds
        if self.elements_per_second < rate:
            missing = 1 - self.elements_per_second / rate
            return f"input-bound: the consumer is idle for {missing:.0%} of the time; the limit is {cause}"
        return f"the consumer is the limit: it takes {rate:,.1f} of {self.elements_per_second:,.1f} elements/s"

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "quantkit.data_profile/1",
            "elements_per_second": self.elements_per_second,
            "bytes_per_second": self.bytes_per_second,
            "cores": self.cores,
            "bottleneck": self.bottleneck.cause,
            "configured_limit": _finite(self.bottleneck.elements_per_second),
            "cores_limit": _finite(self.cores_limit.elements_per_second),
            "disk_limit": self.disk.elements_per_second if self.disk else None,
            "read_bytes_per_element": self.read_bytes,
            "disk_bytes_per_second": self.disk_bytes_per_second,
            "step_seconds": self.step_seconds,
            "verdict": self.verdict,
            "stages": [stage.to_json() for stage in self.stages],
        }

    def lines(self) -> Iterator[str]:
        """Yield the report."""
        yield f"{self.elements_per_second:,.1f} elements/s, {format_size(int(self.bytes_per_second))}/s"
        yield ""
        yield f"{'stage':<{_NAME_WIDTH}} {'core ms':>9} {'calls':>6} {'elements/s per core':>20} {'with all cores':>15}"
        for stage in self.stages:
            if stage.core_seconds:
                rate = stage.rate_per_core
                yield (
                    f"{stage.name[:_NAME_WIDTH]:<{_NAME_WIDTH}} {stage.core_seconds * 1e3:9.3f} {stage.parallelism:6} "
                    f"{rate:20,.1f} {rate * self.cores:15,.1f}"
                )
        yield ""
        yield f"limit of the present threads: {_rate(self.bottleneck)} ({self.bottleneck.cause})"
        yield f"limit of {self.cores} cores: {_rate(self.cores_limit)}, if every stage were parallel"
        if self.disk and self.disk_bytes_per_second:
            yield (
                f"limit of the disk: {_rate(self.disk)} at {format_size(int(self.disk_bytes_per_second))}/s, "
                f"{format_size(int(self.read_bytes or 0))} for each element"
                + ("; the page cache held the files in this run" if self.is_cached else "")
            )
        yield self.verdict

    def __str__(self) -> str:
        return "\n".join(self.lines())


def profile_dataset(dataset: Any, seconds: float, step_seconds: float | None = None) -> PipelineProfile:
    """Profile a ``tf.data.Dataset``.

    Args:
        dataset: the dataset.
        seconds: time of the measurement.
        step_seconds: time in which the consumer processes one element; None if it is not known.

    Raises:
        InputError: the pipeline fails or has no elements.
        UnavailableError: the pipeline has autotuning disabled.
    """
    graph = bridge.to_graph(dataset)
    tf = import_tensorflow()
    model = None
    with translate_errors():
        iterator = iter(dataset.repeat())
        if next(iterator, None) is None:
            raise InputError("the pipeline has no elements", hint="check the files of the dataset")
        read_before, started = _read_bytes(), perf_counter()
        passed, next_model = 0.0, _MODEL_SECONDS
        count = num_bytes = 0
        while not count or passed < seconds:
            num_bytes += sum(_num_bytes(tensor) for tensor in tf.nest.flatten(next(iterator), expand_composites=True))
            count += 1
            passed = perf_counter() - started
            if passed >= min(next_model, seconds):
                model, next_model = _longer_model(tf, iterator, model), passed + _MODEL_SECONDS
        read_after = _read_bytes()
    stages = read_model(model)
    labels = stage_labels(graph, [stage.name for stage in stages])
    least = _MIN_TIME * sum(stage.core_seconds for stage in stages)
    stages = tuple(
        replace(stage, name=label or f"{stage.name} of tf.data")
        for stage, label in zip(stages, labels, strict=True)
        if label or stage.core_seconds > least
    )
    read = None if read_before is None or read_after is None else (read_after - read_before) / count
    disk = measure_disk(files_of(graph))
    return PipelineProfile(count / passed, num_bytes / passed, stages, available_cores(), read, disk, step_seconds)


def _longer_model(tf: Any, iterator: Any, model: Any) -> Any:
    """Return the present model of an iterator, or the given one if its epoch has more stages or more elements.

    Raises:
        UnavailableError: TensorFlow has no model of the pipeline.
    """
    try:
        present = tf.data.experimental.get_model_proto(iterator)
    except Exception as error:  # TensorFlow raises errors of many types
        raise UnavailableError(f"the pipeline cannot be profiled: {one_line(str(error))}") from error
    return model if model and model_extent(model) > model_extent(present) else present


def _read_bytes() -> int | None:
    """Return the bytes that this process has read from files, the page cache included; None if they are not known."""
    try:
        return int(Path("/proc/self/io").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _num_bytes(tensor: Any) -> int:
    array = np.asarray(tensor.numpy())
    return sum(map(len, array.reshape(-1).tolist())) if array.dtype.kind in "OS" else int(array.nbytes)


def files_of(graph: Graph) -> list[Path]:
    """Return the files that the constants of a pipeline name."""
    files = []
    for node in graph.nodes.values():
        if node.is_constant and node.attrs.get("dtype") is DType.STRING:
            for value in node.value.array.reshape(-1).tolist():
                if isinstance(value, bytes) and value and b"\0" not in value and len(value) < 4096:
                    path = Path(os.fsdecode(value))
                    if path.is_file():
                        files.append(path)
    return files


def measure_disk(files: list[Path]) -> float | None:
    """Return the rate of reading files without the page cache, in bytes per second; None if there are no files."""
    num_bytes = 0
    started = perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while (block := file.read(_BLOCK_BYTES)) and num_bytes < _DISK_BYTES:
                num_bytes += len(block)
        if num_bytes >= _DISK_BYTES:
            break
    return num_bytes / max(perf_counter() - started, 1e-9) if num_bytes else None


def _rate(limit: RateLimit) -> str:
    return f"{limit.elements_per_second:,.1f} elements/s"


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
