"""Present values of a running job, for a live view."""

from collections.abc import Sequence
from dataclasses import dataclass

from quantkit.benchmark.host.machine import Machine
from quantkit.monitor.counters import HardwareCounters
from quantkit.monitor.facts import cpu_limit, gather_facts
from quantkit.monitor.sample import JobSample
from quantkit.monitor.series import make_series
from quantkit.monitor.verdict import find_bottleneck

# Samples on which the live verdict is based.
RECENT = 20


@dataclass(frozen=True)
class Snapshot:
    """Present values of a job.

    Attributes:
        seconds: time since the start.
        verdict: verdict on the last samples, with its reason.
        rows: metric, and its present values by quantity.
    """

    seconds: float
    verdict: str
    rows: tuple[tuple[str, str], ...]


def take_snapshot(samples: Sequence[JobSample], machine: Machine, uses_gpu: bool) -> Snapshot:
    """Return the present values.

    Args:
        samples: at least two samples.
        machine: this host.
        uses_gpu: the job has opened a GPU.
    """
    recent = samples[-RECENT:]
    facts = gather_facts(
        recent,
        cores=cpu_limit(machine),
        steps=None,
        calls=(),
        counters=HardwareCounters({}, "counted until the end"),
        uses_gpu=uses_gpu,
    )
    verdict = find_bottleneck(facts)
    rows = []
    for metric in make_series(samples[-2:]).metrics:
        values = {name: column[-1] for name, column in metric.values.items()}
        cells = [f"{name} {value:,.4g}" for name, value in values.items() if value is not None]
        if cells:
            rows.append((f"{metric.title} [{metric.measure}]", ", ".join(cells)))
    seconds = samples[-1].seconds - samples[0].seconds
    return Snapshot(seconds, f"{verdict.kind} ({verdict.cause}): {verdict.reason}", tuple(rows))
