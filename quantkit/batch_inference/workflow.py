"""Batch inference: shards of a dataset, workers that run them, and a folder of results that a later call completes.

manifest.json    model, data and settings: a call with others is refused
results-*        one file per shard, under its name only when it is complete: a later call runs the missing ones
report.json      speed and utilization of the last call
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

from quantkit.arguments import (
    expand_user,
    public,
    require_callable,
    require_natural,
    require_path,
    require_positive,
    require_text,
)
from quantkit.batch_inference.manifest import Manifest, read_manifest
from quantkit.batch_inference.report import BatchInference, ResultFile
from quantkit.batch_inference.results import FORMATS, publish, read_rows
from quantkit.batch_inference.rows import ROWS
from quantkit.batch_inference.service import InferenceService, InferenceSettings, InferenceTask, ShardResult
from quantkit.batch_inference.shards import DataShard, data_digest, divide
from quantkit.data import Dataset, InputTimes, as_dataset
from quantkit.errors import InputError, QuantkitError
from quantkit.evaluation.accuracy import require_images
from quantkit.evaluation.opened_model import describe_assumption, options_for
from quantkit.evaluation.options import DATA, MODEL, ClassifierOptions, DatasetOptions
from quantkit.facts import RANDOM_WEIGHTS_NOTE
from quantkit.formats.paths import make_folder
from quantkit.model import as_model
from quantkit.model.early_checks import check_sources
from quantkit.model.options import OFFLINE
from quantkit.model.transfer import ModelFile, write_model_file
from quantkit.options import Declaration, option, takes
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.runtimes.options import PrecisionOptions
from quantkit.workers import (
    CLUSTERS,
    DEVICES,
    Callbacks,
    ClusterOptions,
    ServiceSpec,
    Task,
    WorkerUsage,
    open_cluster,
    run_tasks,
)

SHARD_SIZE = 256
RETRIES = 2


@dataclass(frozen=True)
class RunOptions(ClassifierOptions, DatasetOptions, PrecisionOptions):
    """The arguments of `run`."""

    model: Annotated[Any, MODEL]
    data: Annotated[Any, DATA]
    output: Annotated[
        str | os.PathLike[str],
        Declaration(
            require_path,
            metavar="FOLDER",
            help="folder of the result files",
            doc="folder of the results; all machines of a cluster can write to it",
        ),
    ]
    _: KW_ONLY
    workers: int = option(1, require_positive, help="number of worker processes (default: 1)")
    threads: int | None = option(
        None, require_positive, help="threads of each worker (default: the cores, divided among the workers)"
    )
    device: str = option("cpu", choices=DEVICES, help="device of the workers; gpu: one GPU each (default: cpu)")
    cluster: str = option("local", choices=CLUSTERS, help="processes on this machine, or Ray (default: local)")
    address: str = option("", require_text, help="address of a running Ray cluster (default: Ray on this machine)")
    format: str = option("jsonl", choices=FORMATS, help="form of the files (default: jsonl)")
    rows: str = option(
        "auto",
        choices=ROWS,
        help="content of the rows: the most probable class, or all outputs (default: classes if the only output is "
        "class scores)",
        doc="``classes`` (label, score and index of the most probable class), ``tensors`` (all outputs), or ``auto``",
    )
    shard_size: int = option(SHARD_SIZE, require_positive, help=f"samples per result file (default: {SHARD_SIZE})")
    retries: int = option(
        RETRIES,
        require_natural,
        help=f"attempts after the first one, for each shard (default: {RETRIES})",
        doc="attempts after the first one, for each shard. Then the samples of the shard run one by one, and those "
        "that end their worker or fail are rejected",
    )
    offline: bool = option(False, OFFLINE)
    on_progress: OnProgress = option(
        ignore_progress,
        require_callable,
        doc="receives the number of finished samples, with the speed and the utilization of the workers",
    )
    on_message: OnMessage = option(ignore_message, require_callable, doc="receives warnings")


@public
@takes(RunOptions)
def run(options: RunOptions) -> BatchInference:
    """Run a model on a dataset with several workers, and write the results to a folder.

    Each shard has one result file, which appears complete or not at all. A later call with the same model, data and
    settings runs the missing shards only. The content of the files does not depend on the number of workers.

    Raises:
        UsageError: the folder holds results of other settings, or the model does not take the data.
        InputError: a file is missing or broken, no sample could be run, or a shard failed in every attempt.
        UnavailableError: a package is missing, or the workers do not start.
    """
    cluster = ClusterOptions(options.workers, options.threads, options.device, options.cluster, options.address)
    session = options.options.with_(precision=options.precision)
    FORMATS[options.format].check()
    check_sources(options.model, data=[options.data], labels=options.labels, runtimes=[options.runtime])
    loaded = as_model(options.model, offline=options.offline)
    dataset = as_dataset(options.data, options.limit, keep_order=options.limit is None, inputs=loaded.input_names)
    digest = data_digest(dataset)
    if loaded.has_random_weights:
        options.on_message(f"{loaded.name}: {RANDOM_WEIGHTS_NOTE}")
    folder = make_folder(expand_user(options.output))
    file = write_model_file(loaded, folder)
    settings = InferenceSettings(
        file,
        folder.resolve(),
        dataset.part(0, 1),
        options.runtime,
        options_for(session, [loaded], dataset),
        options.preprocessing,
        options.batch,
        None if options.labels is None else Path(os.path.realpath(expand_user(options.labels))),
        options.input_layer,
        options.output_layer,
        options.rows,
        options.format,
    )
    manifest = _write_manifest(_describe_run(settings, digest, dataset.size, options.shard_size), folder)
    inference = _BatchRun(
        dataset, settings, manifest, options.shard_size, cluster, options.on_progress, options.on_message
    )
    result = inference.run(options.retries)
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


class _BatchRun(Callbacks):
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
