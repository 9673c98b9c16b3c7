"""Options of verbs that run a model on a dataset."""

import os
from dataclasses import dataclass

from quantkit.arguments import require_fraction, require_positive, require_ratio, require_text
from quantkit.data import DATA_KINDS
from quantkit.data.options import LABELS, InputImageOptions
from quantkit.evaluation.tasks import TASKS, find_task
from quantkit.options import Declaration, option
from quantkit.runtimes import AUTO
from quantkit.runtimes.options import RUNTIME_NAME

# Samples per run for models with a dynamic batch: larger batches are hardly faster on a CPU.
BATCH = 8
DATA = Declaration(
    help=f"dataset: {DATA_KINDS}", doc="dataset: files, arrays or an iterable, see `quantkit.data.as_dataset`"
)
MODEL = Declaration(doc="a `Model`, a `Graph`, a file, or the name of a model card")
TASK = Declaration(lambda task: find_task(task), metavar=f"{{{','.join(TASKS)}}}")
LIMIT = Declaration(require_positive, help="maximum number of samples, a fixed subset (default: all)")


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Number of samples, and the runtime."""

    limit: int | None = option(None, LIMIT)
    batch: int = option(
        BATCH, require_positive, help=f"samples per run for models with a dynamic batch (default: {BATCH})"
    )
    runtime: str = option(AUTO, RUNTIME_NAME)


@dataclass(frozen=True, kw_only=True)
class ClassifierOptions(InputImageOptions):
    """Labels, endpoints and preprocessing of an image classifier, with label_image's names of the flags."""

    labels: str | os.PathLike[str] | None = option(None, LABELS)
    input_layer: str = option("", require_text, help="input name (default: from the model card, else the image input)")
    output_layer: str = option("", require_text, help="name of the class scores (default: from the model card)")


@dataclass(frozen=True, kw_only=True)
class MetricLimits:
    """Limits of metrics, in [0, 1] or nats."""

    min_top1: float | None = option(
        None,
        require_fraction,
        help="exit 1 if top-1 is below this, for example 0.75",
        doc="lowest allowed top-1 accuracy in [0, 1]",
    )
    min_agreement: float | None = option(
        None,
        require_fraction,
        help="exit 1 if the agreement of class scores, or the metric of --task (text or language for tokens), is below "
        "this, for example 0.985",
        doc="lowest allowed agreement with the reference model, or metric of a task, in [0, 1]",
    )
    max_kl: float | None = option(
        None,
        require_ratio,
        help="exit 1 if the KL divergence is above this, for example 0.02",
        doc="highest allowed mean KL divergence in nats",
    )
