"""Evaluation in several workers: parts of the dataset, whose counts add up to those of one process."""

from collections.abc import Sequence
from typing import Any

from quantkit.data import Dataset
from quantkit.errors import UsageError
from quantkit.evaluation.evaluation_run import EvaluationCounts, EvaluationFacts, EvaluationRun, EvaluationSettings
from quantkit.formats.temporary import temporary_folder
from quantkit.model import Model
from quantkit.model.transfer import ModelFile, write_model_file
from quantkit.progress import OnProgress, Progress
from quantkit.workers import (
    Callbacks,
    ClusterOptions,
    Service,
    ServiceSpec,
    Task,
    WorkerResources,
    WorkerUsage,
    open_cluster,
    run_tasks,
)

# Parts per worker: more parts divide the work more evenly.
PARTS = 8
RETRIES = 2


class EvaluationService(Service):
    """Models in the sessions of one worker."""

    def __init__(
        self, models: Sequence[ModelFile], example: Dataset, settings: EvaluationSettings, resources: WorkerResources
    ) -> None:
        options = settings.options.with_(intra_op=settings.options.intra_op or resources.threads)
        settings = EvaluationSettings(**{**vars(settings), "options": options})
        self._run = EvaluationRun([model.load() for model in models], example, settings)
        self.facts = self._run.facts

    def run(self, task: Dataset) -> EvaluationCounts:
        """Return the counts of a part of the dataset."""
        self._run.counts = EvaluationCounts()
        for _ in self._run.count(task):
            pass
        return self._run.counts

    def close(self) -> None:
        """Close the sessions."""
        self._run.__exit__()


class _Total(Callbacks):
    """Counts of all parts."""

    def __init__(self, size: int, on_progress: OnProgress) -> None:
        self.counts = EvaluationCounts()
        self.facts: EvaluationFacts | None = None
        self._size = size
        self._on_progress = on_progress

    def on_open(self, facts: Any) -> None:
        self.facts = facts

    def on_result(self, task: Task, value: EvaluationCounts) -> tuple[Task, ...]:
        self.counts.merge(value)
        return ()

    def on_report(self, usage: Sequence[WorkerUsage]) -> None:
        self._on_progress(Progress("evaluating", self.counts.samples, self._size))


def evaluate_parts(
    models: Sequence[Model], dataset: Dataset, settings: EvaluationSettings, workers: int, on_progress: OnProgress
) -> tuple[EvaluationFacts, EvaluationCounts]:
    """Evaluate models in several processes on this machine.

    Parts begin at multiples of the batch size, so that the batches are those of one process.

    Args:
        models: the model, and the reference model if there is one.
        dataset: files or arrays.
        settings: settings of the evaluation.
        workers: number of processes.
        on_progress: receives the number of evaluated samples.

    Raises:
        UsageError: the dataset is a stream.
        QuantkitError: a part failed in every attempt.
    """
    example = dataset.part(0, 1)
    size = dataset.size or 0
    batches = -(-size // (settings.batch * workers * PARTS))
    step = batches * settings.batch
    tasks = [Task(dataset.part(start, min(start + step, size))) for start in range(0, size, step)]
    total = _Total(size, on_progress)
    with temporary_folder() as folder, open_cluster(ClusterOptions(workers)) as cluster:
        files = [write_model_file(model, folder / str(index)) for index, model in enumerate(models)]
        spec = ServiceSpec(EvaluationService, (files, example, settings))
        run_tasks(cluster, spec, tasks, total, workers=workers, retries=RETRIES)
    if total.facts is None:
        raise UsageError(f"{dataset.source} has no samples", hint="give at least one")
    return total.facts, total.counts
