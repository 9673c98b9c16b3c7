"""Shards written by worker processes, or by this process if one is enough."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantkit.data.packing.examples import ImageOptions
from quantkit.data.packing.items import Kind, Source
from quantkit.data.packing.plan import ShardTask
from quantkit.data.packing.writer import Shard, write_shard
from quantkit.errors import QuantkitError
from quantkit.workers import (
    Callbacks,
    ClusterOptions,
    Service,
    ServiceSpec,
    Task,
    WorkerResources,
    open_cluster,
    run_tasks,
)
from quantkit.workers.cluster import WorkerLostError


def write_all(
    folder: Path,
    tasks: Sequence[ShardTask],
    source: Source,
    options: ImageOptions,
    workers: int,
    on_shard: Callable[[Shard], None],
    on_samples: Callable[[int, int], None],
) -> None:
    """Write shards. A single worker is this process itself.

    Args:
        folder: folder of the shards.
        tasks: shards to write.
        source: source of the samples.
        options: changes of the images.
        workers: number of processes.
        on_shard: receives each shard when it is complete.
        on_samples: receives the number and the bytes of the samples that were read since the last call.

    Raises:
        InputError: a shard cannot be written, or the source changed during the work.
        UnavailableError: a worker process ended unexpectedly.
    """
    workers = min(workers, len(tasks))
    settings = (folder, source.kind, source.classes, options)
    if workers < 2:
        service = PackService(*settings, WorkerResources(0, 1, report=lambda part: on_samples(*part)))
        for task in tasks:
            on_shard(service.run(task))
        return
    # One process per core: the libraries in it start no threads.
    with open_cluster(ClusterOptions(workers, threads=1)) as cluster:
        run_tasks(
            cluster,
            ServiceSpec(PackService, settings),
            map(Task, tasks),
            _Callbacks(on_shard),
            workers=workers,
            retries=0,
            on_part=lambda part: on_samples(*part),
        )


class PackService(Service):
    """Writing of shards in one process.

    Args:
        folder: folder of the shards.
        kind: content of the samples.
        classes: class names in the order of the class numbers; empty if labels are numbers.
        options: changes of the images.
        resources: resources of the process; they report the number and the bytes of samples.
    """

    def __init__(
        self, folder: Path, kind: Kind, classes: Sequence[str], options: ImageOptions, resources: WorkerResources
    ) -> None:
        self._folder, self._settings = folder, (kind, classes, options)
        self._report = resources.report

    def run(self, task: ShardTask) -> Shard:
        """Write a shard."""

        def report(count: int, num_bytes: int) -> None:
            self._report((count, num_bytes))

        return write_shard(self._folder / task.file, task.items, *self._settings, task.digest, report)


@dataclass
class _Callbacks(Callbacks):
    """Reactions to the responses of the workers."""

    on_shard: Callable[[Shard], None]

    def on_result(self, task: Task, value: Shard) -> tuple[Task, ...]:
        self.on_shard(value)
        return ()

    def on_failure(self, task: Task, error: QuantkitError) -> tuple[Task, ...]:
        if isinstance(error, WorkerLostError):
            resume = "run the same command to resume; fewer --workers need less memory"
            error.hint = f"{error.hint}; {resume}" if error.hint else resume
        raise error
