"""Result of monitoring a job: verdict, evidence, time series; as text, JSON and HTML."""

import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from quantkit.benchmark.host.machine import Machine
from quantkit.drawing import TimeSeries, escape_text, html_body, html_list, html_page, html_section, html_table
from quantkit.formats.files import write_whole
from quantkit.monitor.bandwidth import MemoryProbe
from quantkit.monitor.facts import JobFacts
from quantkit.monitor.prove import Proof
from quantkit.monitor.sample import JobSample
from quantkit.monitor.series import Metric, Series, make_series
from quantkit.monitor.verdict import Verdict, describe_evidence, describe_gap, describe_gpu

# Rows of the table of threads.
MAX_THREADS = 8


@dataclass(frozen=True)
class Monitoring:
    """Result of monitoring one job.

    Attributes:
        verdict: bottleneck.
        facts: mean values after the start of the job.
        samples: samples in order.
        seconds: monitored time, the start of the job included.
        command: program and arguments; empty for a process that already ran.
        pid: first process of the job.
        exit_code: exit code of the command; None for a process that already ran.
        is_interrupted: a signal ended the monitoring.
        overhead: CPU time of the monitor, as a fraction of the monitored time.
        machine: this host.
        not_available: metrics that this machine or this job does not have, with reasons.
        proof: gains of the interventions of ``prove``; None without them.
        memory: rates of a copy of memory during the job and alone, of ``prove``; None without them.
    """

    verdict: Verdict
    facts: JobFacts
    samples: tuple[JobSample, ...]
    seconds: float
    command: tuple[str, ...]
    pid: int
    exit_code: int | None
    is_interrupted: bool
    overhead: float
    machine: Machine
    not_available: tuple[str, ...] = ()
    proof: Proof | None = None
    memory: MemoryProbe | None = None

    @cached_property
    def series(self) -> Series:
        """Time series of all metrics."""
        return make_series(self.samples)

    @property
    def headline(self) -> str:
        """Verdict with the gap before each step and the utilization of the GPU, in one line."""
        verdict = self.verdict
        parts = (
            f"{verdict.kind} ({verdict.cause}): {verdict.reason}",
            describe_gap(self.facts),
            describe_gpu(self.facts),
        )
        return "; ".join(parts)

    @property
    def evidence(self) -> tuple[str, ...]:
        """Sentence about each fact."""
        return tuple(describe_evidence(self.facts))

    def __str__(self) -> str:
        lines = [self.headline, f"next step: {self.verdict.advice}"]
        lines += str(self.proof).splitlines() if self.proof else []
        lines += ["", *self.evidence, *(f"not available: {reason}" for reason in self.not_available)]
        lines += ["", *self._metric_lines(), "", *self._thread_lines(), "", *self.summary]
        return "\n".join(lines)

    def _thread_lines(self) -> list[str]:
        threads = self.facts.threads[:MAX_THREADS]
        rows = [
            f"{thread.name[:24]:<24} {thread.pid:>8} {thread.tid:>8} {thread.cpu:>6.2f} {thread.queued:>7.2f} "
            f"{thread.locked:>6.0%} {thread.wakes:>8.0f}"
            for thread in threads
        ]
        return [
            f"{'thread':<24} {'process':>8} {'number':>8} {'cores':>6} {'queued':>7} {'locked':>6} {'wakes/s':>8}",
            *rows,
        ]

    def _metric_lines(self) -> list[str]:
        """Return the mean and the maximum of each quantity; single cores are in the other forms of the report."""
        lines = []
        for metric in self.series.metrics:
            columns = {name: [each for each in column if each is not None] for name, column in metric.values.items()}
            cells = [
                f"{name} {sum(column) / len(column):,.4g} (max {max(column):,.4g})"
                for name, column in columns.items()
                if column and max(column) > 0
            ]
            if cells and not metric.title.startswith("core "):
                lines.append(f"{metric.title} [{metric.measure}]: {', '.join(cells)}")
        return lines

    @property
    def summary(self) -> list[str]:
        """Monitored time, exit code and overhead; and the host."""
        end = "" if self.exit_code is None else f", exit code {self.exit_code}"
        return [
            f"monitored {self.seconds:.1f} s, judged {self.facts.seconds:.1f} s{end}; "
            f"overhead {self.overhead:.2%} of one core",
            self.machine.sentence,
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        facts = self.facts
        return {
            "schema": "quantkit.monitor/1",
            **self.verdict.to_json(),
            "headline": self.headline,
            "evidence": list(self.evidence),
            "command": list(self.command),
            "pid": self.pid,
            "exit_code": self.exit_code,
            "is_interrupted": self.is_interrupted,
            "seconds": self.seconds,
            "judged_seconds": facts.seconds,
            "overhead": self.overhead,
            "cores": facts.cores,
            "cpu": facts.cpu,
            "kernel_fraction": facts.system,
            "host_cpu": facts.host_cpu,
            "iowait": facts.iowait,
            "activities": dict(facts.activities),
            "queued": facts.queued,
            "minor_faults": facts.minor_faults,
            "major_faults": facts.major_faults,
            "swapped": facts.swapped,
            "read": facts.read,
            "written": facts.written,
            "received": facts.received,
            "memory_fraction": facts.memory_fraction,
            "throttled": facts.throttled,
            "steps": facts.steps and facts.steps.to_json(),
            "calls": facts.calls and asdict(facts.calls),
            "gpu": facts.gpu and asdict(facts.gpu),
            "counters": facts.counters.to_json(),
            "threads": [asdict(thread) for thread in facts.threads],
            "not_available": list(self.not_available),
            "proof": self.proof and self.proof.to_json(),
            "memory": self.memory and self.memory.to_json(),
            "series": self.series.to_json(),
            "machine": self.machine.to_json(),
        }

    def html(self) -> str:
        """Return the report as one self-contained HTML page."""
        return html_page(f"{self.verdict.kind}: {' '.join(self.command) or self.pid}", self._parts())

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report to an HTML file.

        Raises:
            UsageError: the folder does not exist.
            InputError: the file cannot be written.
        """
        write_whole(Path(path), lambda file: file.write(self.html().encode()))

    def _repr_html_(self) -> str:
        """Return the verdict and the charts for notebooks."""
        return html_body(self._parts())

    def _parts(self) -> list[str]:
        """Return the HTML elements of the report."""
        command = " ".join(self.command) or f"process {self.pid}"
        charts = [_chart(metric, self.series.seconds) for metric in self.series.metrics]
        threads = [
            (thread.name, thread.pid, thread.tid, f"{thread.cpu:.2f}", f"{thread.queued:.2f}", f"{thread.locked:.0%}")
            for thread in self.facts.threads
        ]
        titles = ("thread", "process", "number", "cores", "queued", "locked")
        lines = [*self.evidence, *(f"not available: {reason}" for reason in self.not_available)]
        proof = str(self.proof).splitlines() if self.proof else []
        return [
            f"<h1>{escape_text(self.headline)}</h1>",
            f'<p class="note">Next step: {escape_text(self.verdict.advice)}.</p>',
            f"<p><code>{escape_text(command)}</code></p>",
            *([html_section("Proof by intervention", html_list(proof))] if proof else []),
            html_section("Evidence", html_list(lines)),
            html_section("Time series", f'<div class="charts">{"".join(charts)}</div>'),
            html_section("Threads", html_table(titles, threads, numbers=range(1, len(titles)))),
            *(f'<p class="small">{escape_text(line)}</p>' for line in self.summary),
        ]


def _chart(metric: Metric, seconds: tuple[float, ...]) -> str:
    """Return the chart of a metric; empty without values."""
    lines = {name: values for name, values in metric.values.items() if any(value is not None for value in values)}
    maximum = 100.0 if metric.measure == "%" else None
    return TimeSeries(metric.title, metric.measure, seconds, lines, maximum).html() if lines else ""
