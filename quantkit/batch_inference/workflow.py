"""Batch inference: shards of a dataset, workers that run them, and a folder of results that a later call completes.

manifest.json    model, data and settings: a call with others is refused
results-*        one file per shard, under its name only when it is complete: a later call runs the missing ones
report.json      speed and utilization of the last call
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

from quantkit.arguments import (
    expand_user,
    public,
    require_callable,
    require_choice,
    require_flag,
    require_natural,
    require_path,
    require_positive,
    require_text,
    without_none,
)
from quantkit.batch_inference.manifest import Manifest, read_manifest
from quantkit.batch_inference.report import BatchInference, ResultFile
from quantkit.batch_inference.results import FORMATS, publish, read_rows
from quantkit.batch_inference.rows import ROWS
from quantkit.batch_inference.service import InferenceService, InferenceSettings, InferenceTask, ShardResult
from quantkit.batch_inference.shards import DataShard, data_digest, divide
from quantkit.data import Dataset, InputTimes, PreprocessingOptions, as_dataset
from quantkit.data.preprocessing import ColorOrder
from quantkit.errors import InputError, QuantkitError
from quantkit.evaluation.accuracy import BATCH, require_images
from quantkit.evaluation.opened_model import describe_assumption
from quantkit.facts import RANDOM_WEIGHTS_NOTE
from quantkit.model import as_model
from quantkit.model.early_checks import check_sources
from quantkit.model.transfer import ModelFile, write_model_file
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.runtimes import AUTO
from quantkit.runtimes.session import SessionOptions
from quantkit.workers import ClusterOptions, ServiceSpec, Task, WorkerUsage, open_cluster, run_tasks

SHARD_SIZE = 256
RETRIES = 2


@public
def run(
    model: Any,
    data: Any,
    output: str | os.PathLike[str],
    *,
    workers: int = 1,
    threads: int | None = None,
    device: str = "cpu",
    cluster: str = "local",
    address: str = "",
    format: str = "jsonl",
    rows: str = "auto",
    limit: int | None = None,
    shard_size: int = SHARD_SIZE,
    retries: int = RETRIES,
    runtime: str = AUTO,
    labels: str | os.PathLike[str] | None = None,
    batch: int = BATCH,
    precision: str | None = None,
    options: SessionOptions = SessionOptions(),
    input_height: int | None = None,
    input_width: int | None = None,
    input_mean: float | Sequence[float] | None = None,
    input_std: float | Sequence[float] | None = None,
    input_color_order: ColorOrder | None = None,
    input_layer: str = "",
    output_layer: str = "",
    offline: bool = False,
    on_progress: OnProgress = ignore_progress,
    on_message: OnMessage = ignore_message,
) -> BatchInference:
    """Run a model on a dataset with several workers, and write the results to a folder.

    Each shard has one result file, which appears complete or not at all. A later call with the same model, data and
    settings runs the missing shards only. The content of the files does not depend on the number of workers.

    Args:
        model: a `Model`, a `Graph`, a file, or the name of a model card.
        data: dataset: files or arrays, see `quantkit.data.as_dataset`; not a stream.
        output: folder of the results; all machines of a cluster can write to it.
        workers: number of worker processes.
        threads: threads of each worker (default: the cores, divided among the workers).
        device: ``cpu``, or ``gpu`` for one GPU per worker.
        cluster: ``local`` for processes on this machine, or ``ray``.
        address: address of a running Ray cluster (default: Ray on this machine only).
        format: ``jsonl``, ``parquet`` or ``npz``.
        rows: ``classes`` (label, score and index of the most probable class), ``tensors`` (all outputs), or ``auto``.
        limit: maximum number of samples (fixed subset).
        shard_size: samples per result file.
        retries: attempts after the first one, for each shard. Then the samples of the shard run one by one, and those
            that end their worker or fail are rejected.
        runtime: runtime of the model.
        labels: label file; None for the model's own labels.
        batch: samples per run for models with a dynamic batch.
        precision: lowest precision that the runtime may compute in.
        options: threads, device and precision in one value; the arguments above override it.
        input_height, input_width: size of the resized images in pixels (default: from the model).
        input_mean, input_std: normalization (x - mean) / std, numbers or one number per channel (default: from the
            file, else from the model card, else from a scaling layer of the graph, else 128).
        input_color_order: order of the channels of the input, ``rgb`` or ``bgr`` (default: the file's, else ``rgb``).
        input_layer: input name (default: from the model card, else the image input).
        output_layer: name of the class scores (default: from the model card, else the edge without consumers).
        offline: never download a model.
        on_progress: receives the number of finished samples, with the speed and the utilization of the workers.
        on_message: receives warnings.

    Raises:
        UsageError: the folder holds results of other settings, or the model does not take the data.
        InputError: a file is missing or broken, no sample could be run, or a shard failed in every attempt.
        UnavailableError: a package is missing, or the workers do not start.
    """
    cluster_options = ClusterOptions(workers, threads, device, cluster, address)
    require_positive(batch=batch, shard_size=shard_size, **without_none(limit=limit))
    require_natural(retries=retries)
    require_choice(FORMATS, format=format)
    require_choice(ROWS, rows=rows)
    preprocessing = PreprocessingOptions.of(
        input_height=input_height,
        input_width=input_width,
        input_mean=input_mean,
        input_std=input_std,
        input_color_order=input_color_order,
    )
    require_text(runtime=runtime, input_layer=input_layer, output_layer=output_layer)
    require_path(output=output, **without_none(labels=labels))
    require_flag(offline=offline)
    require_callable(on_progress=on_progress, on_message=on_message)
    FORMATS[format].check()
    check_sources(model, data=[data], labels=labels, runtimes=[runtime])
    loaded = as_model(model, offline=offline)
    dataset = as_dataset(data, limit, keep_order=limit is None, inputs=loaded.input_names)
    digest = data_digest(dataset)
    if loaded.has_random_weights:
        on_message(f"{loaded.name}: {RANDOM_WEIGHTS_NOTE}")
    folder = _make_folder(expand_user(output))
    file = write_model_file(loaded, folder)
    label_file = None if labels is None else Path(os.path.realpath(expand_user(labels)))
    settings = InferenceSettings(
        file,
        folder.resolve(),
        dataset.part(0, 1),
        runtime,
        options.with_(precision=precision),
        preprocessing,
        batch,
        label_file,
        input_layer,
        output_layer,
        rows,
        format,
    )
    manifest = _write_manifest(_describe_run(settings, digest, dataset.size, shard_size), folder)
    inference = _BatchRun(dataset, settings, manifest, shard_size, cluster_options, on_progress, on_message)
    result = inference.run(retries)
    _complete_folder(folder, file, result)
    return result


def _describe_run(settings: InferenceSettings, digest: str, samples: int | None, shard_size: int) -> Manifest:
    """Return the manifest of a run, without the facts of its workers."""
    return Manifest(
        {
            "model_sha256": settings.model.digest,
            "data_sha256": digest,
            "samples": samples,
            "shard_size": shard_size,
            "format": settings.format,
            "rows": settings.rows,
            "batch": settings.batch,
            "runtime": settings.runtime,
            "precision": settings.options.precision,
            "preprocessing": {name: value for name, value in vars(settings.preprocessing).items() if value is not None},
            "labels_sha256": None if settings.labels is None else _file_digest(settings.labels),
            "input_layer": settings.input_layer,
            "output_layer": settings.output_layer,
        }
    )


def _write_manifest(manifest: Manifest, folder: Path) -> Manifest:
    """Write the manifest of a run, or return that of the earlier run that this one resumes.

    Raises:
        UsageError: the folder holds results of other settings.
    """
    previous = read_manifest(folder)
    if previous is not None:
        previous.check(manifest, folder)
    manifest = previous or manifest
    manifest.write(folder)
    return manifest


def _complete_folder(folder: Path, model: ModelFile, result: BatchInference) -> None:
    """Remove temporary files, and write the report.

    Raises:
        InputError: no sample could be run.
    """
    if model.is_graph:
        model.file.unlink(missing_ok=True)
    for partial in folder.glob(".results-*.part"):
        partial.unlink(missing_ok=True)
    publish(folder / "report.json", (json.dumps(result.to_json(), indent=2) + "\n").encode())
    if len(result.rejected) == result.samples:
        require_images(result.rejected)


class _BatchRun:
    """State of one call: finished shards, samples that are checked one by one, and times."""

    def __init__(
        self,
        dataset: Dataset,
        settings: InferenceSettings,
        manifest: Manifest,
        shard_size: int,
        cluster: ClusterOptions,
        on_progress: OnProgress,
        on_message: OnMessage,
    ) -> None:
        self.dataset = dataset
        self.settings = settings
        self.manifest = manifest
        self.cluster = cluster
        self.on_progress = on_progress
        self.on_message = on_message
        self.shards = divide(dataset.size or 0, shard_size, FORMATS[settings.format].suffix)
        self.results: dict[int, ShardResult] = {}
        self.files: dict[int, ResultFile] = {}
        self.rejected: dict[int, Mapping[str, str]] = {}
        # Samples of shards that fail: the number of unfinished checks, and the reasons by position.
        self.num_checks: dict[int, int] = {}
        self.excluded: dict[int, dict[int, str]] = {}
        self.failed: dict[int, QuantkitError] = {}
        self.failed_attempts = 0
        self.resumed_samples = 0
        self.start = perf_counter()

    def run(self, retries: int) -> BatchInference:
        """Run the missing shards.

        Raises:
            InputError: a shard failed in every attempt.
        """
        for shard in self.shards:
            self._resume(shard)
        missing = [shard for shard in self.shards if shard.index not in self.files]
        if self.files:
            self.on_message(f"resuming: {len(self.files)} of {len(self.shards)} shards are finished")
        usage: tuple[WorkerUsage, ...] = ()
        threads = 0
        if missing:
            tasks = [Task(self._task(shard)) for shard in missing]
            spec = ServiceSpec(InferenceService, (self.settings,))
            with open_cluster(self.cluster) as cluster:
                threads = cluster.placement(0).threads
                try:
                    usage = run_tasks(cluster, spec, tasks, self, workers=self.cluster.workers, retries=retries)
                except KeyboardInterrupt:
                    finished = f"{len(self.files)} of {len(self.shards)} shards are finished"
                    self.on_message(f"{finished}; run the same command to resume")
                    raise
        if self.failed:
            index, error = next(iter(self.failed.items()))
            raise InputError(
                f"{len(self.failed)} of {len(self.shards)} shards failed, the first: "
                f"{self.shards[index].file}: {error.message}",
                hint="run the same command to try them again, or lower --batch",
            )
        return self._result(usage, threads)

    def on_open(self, facts: Mapping[str, Any]) -> None:
        """Record the facts of the first worker in the manifest, and compare those of the others."""
        opened = replace(self.manifest, facts=facts)
        if self.manifest.facts:
            self.manifest.check(opened, self.settings.folder)
            return
        self.manifest = opened
        self.manifest.write(self.settings.folder)
        if facts["preprocessing_is_assumed"]:
            self.on_message(describe_assumption(facts["preprocessing"]))

    def on_result(self, task: Task, value: ShardResult) -> list[Task]:
        """Record a finished shard; after the last check of a shard, run the shard without the excluded samples."""
        payload: InferenceTask = task.payload
        self.failed_attempts += task.failures
        if not payload.file:
            return self._finish_check(payload.index)
        shard = self.shards[payload.index]
        self.results[shard.index] = value
        self.files[shard.index] = ResultFile(shard.file, value.samples, value.sha256)
        self.rejected[shard.index] = value.rejected
        return []

    def on_failure(self, task: Task, error: QuantkitError) -> list[Task]:
        """Check the samples of a shard one by one; exclude a sample that fails alone.

        Raises:
            QuantkitError: every sample of a shard fails, and no shard has succeeded.
        """
        payload: InferenceTask = task.payload
        self.failed_attempts += task.failures
        index, size = payload.index, self.shards[payload.index].size
        if not payload.file:
            self.excluded[index][payload.position] = error.message
            if len(self.excluded[index]) == size and not self.results:
                raise error
            return self._finish_check(index)
        if index in self.excluded:
            self.failed[index] = error
            return []
        self.on_message(f"{payload.file}: {error.message}; its {size} samples run one by one")
        self.excluded[index], self.num_checks[index] = {}, size
        return [Task(replace(payload, data=payload.data.part(at, at + 1), file="", position=at)) for at in range(size)]

    def on_report(self, usage: Sequence[WorkerUsage]) -> None:
        """Report finished samples, speed, remaining time and utilization."""
        done = sum(result.samples for result in self.results.values())
        rate = done / (perf_counter() - self.start)
        left = (self.dataset.size or 0) - self.resumed_samples - done
        used = " ".join(f"{100 * worker.utilization:.0f}%" for worker in usage)
        eta = f", {left / rate:.0f} s left" if rate else ""
        step = f"{rate:.1f} samples per second{eta}, workers {used}"
        self.on_progress(Progress("running", self.resumed_samples + done, self.dataset.size, step))

    def _task(self, shard: DataShard) -> InferenceTask:
        data = self.dataset.part(shard.start, shard.stop)
        return InferenceTask(shard.index, data, shard.file, self.excluded.get(shard.index, {}))

    def _finish_check(self, index: int) -> list[Task]:
        self.num_checks[index] -= 1
        return [] if self.num_checks[index] else [Task(self._task(self.shards[index]))]

    def _resume(self, shard: DataShard) -> None:
        """Take the result file of an earlier call.

        Raises:
            InputError: the file is damaged.
        """
        path = self.settings.folder / shard.file
        if not path.exists():
            return
        rows = read_rows(path, FORMATS[self.settings.format])
        if len(rows) != shard.size:
            raise InputError(
                f"{path} has {len(rows)} rows, and the shard has {shard.size} samples", hint="remove it, and run again"
            )
        self.files[shard.index] = ResultFile(shard.file, len(rows), _file_digest(path))
        self.rejected[shard.index] = {row["file"]: row["error"] for row in rows if "error" in row}
        self.resumed_samples += len(rows)

    def _result(self, usage: tuple[WorkerUsage, ...], threads: int) -> BatchInference:
        results = [self.results[index] for index in sorted(self.results)]
        times = InputTimes(
            sum(result.input_cpu_seconds for result in results), sum(result.seconds["input"] for result in results)
        )
        parts = {name: sum(result.seconds[name] for result in results) for name in ("input", "runtime", "write")}
        parts["opening"] = sum(worker.open_seconds for worker in usage)
        busy = sum(worker.busy_seconds for worker in usage)
        parts["overhead"] = max(busy - sum(parts[name] for name in ("input", "runtime", "write")), 0.0)
        parts["idle"] = max(sum(worker.alive_seconds for worker in usage) - busy - parts["opening"], 0.0)
        return BatchInference(
            self.settings.model.name,
            self.settings.folder,
            self.settings.format,
            tuple(self.files[shard.index] for shard in self.shards),
            self.manifest.facts,
            {name: reason for index in sorted(self.rejected) for name, reason in self.rejected[index].items()},
            self.resumed_samples,
            perf_counter() - self.start,
            usage,
            self.cluster.kind,
            threads,
            times,
            parts,
            tuple(result.seconds["total"] for result in results),
            self.failed_attempts,
        )


def _make_folder(folder: Path) -> Path:
    """Create the folder of the results.

    Raises:
        InputError: the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise InputError(f"cannot create the folder {folder}: {reason}", hint="choose another folder") from None
    return folder


def _file_digest(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise InputError(f"{path} cannot be read: {reason}", hint="choose a readable file") from None
