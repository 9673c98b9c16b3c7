"""Result of monitoring a job: verdict, evidence, time series; as text, JSON and HTML."""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from quantkit.benchmark.host.machine import Machine
from quantkit.drawing import (
    TimeSeries,
    escape_text,
    fraction_bar,
    html_body,
    html_list,
    html_page,
    html_section,
    html_table,
)
from quantkit.formats.files import write_whole
from quantkit.monitor.bandwidth import MemoryProbe
from quantkit.monitor.calls import MIXED
from quantkit.monitor.facts import JobFacts
from quantkit.monitor.prove import Proof
from quantkit.monitor.sample import JobSample
from quantkit.monitor.series import Metric, Series, make_series
from quantkit.monitor.verdict import (
    HIGHLY_INPUT_BOUND,
    INPUT_BOUND,
    INPUT_OR_COMPUTE,
    Verdict,
    decisive_metric,
    describe_evidence,
    describe_gap,
    describe_gpu,
)

# Facts that the JSON document states under their own names.
_FIGURES = (
    *("cores", "cpu", "host_cpu", "iowait", "queued", "minor_faults", "major_faults", "swapped"),
    *("read", "written", "received", "memory_fraction", "throttled"),
)
# Rows of the table of threads.
MAX_THREADS = 8
_FADED_NOTE = "The faded parts, the start of the job and its idle end, are not judged."


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
        lines += ["", f"whole time, {self.seconds:.1f} s, with the start and the end of the job:"]
        lines += [*self._metric_lines(), "", *self._thread_lines(), "", *self.summary]
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
            "kernel_fraction": facts.system,
            **{name: getattr(facts, name) for name in _FIGURES},
            "activities": dict(facts.activities),
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
        verdict, metrics = self.verdict, self.series.metrics
        focus = self.facts.start, self.facts.start + self.facts.seconds
        charts = {metric.title: _chart(metric, self.series.seconds, focus) for metric in metrics}
        decisive = self._fractions()
        if not decisive and (chart := charts.pop(decisive_metric(verdict), None)):
            decisive = chart.html(f"{_FADED_NOTE} {chart.resolution}".strip())
        cores = [charts.pop(title) for title in [*charts] if title.startswith("core ")]
        others = [chart for chart in charts.values() if chart]
        threads = [
            (thread.name, thread.pid, thread.tid, f"{thread.cpu:.2f}", f"{thread.queued:.2f}", f"{thread.locked:.0%}")
            for thread in self.facts.threads
        ]
        titles = ("thread", "process", "number", "cores", "queued", "locked")
        proof = [*(str(self.proof).splitlines() if self.proof else []), *([str(self.memory)] if self.memory else [])]
        parts = [
            f"<p><code>{escape_text(' '.join(self.command) or f'process {self.pid}')}</code></p>",
            f"<h1>{escape_text(f'{verdict.kind.capitalize()}: {verdict.cause}')}</h1>",
            f'<p class="claim">{escape_text(_sentence(verdict.reason))}</p>',
            f'<p class="faint">{escape_text(_sentence(f"{describe_gap(self.facts)}; {describe_gpu(self.facts)}"))}</p>',
            f'<p class="note"><b>Next step:</b> {escape_text(_sentence(verdict.advice))}</p>',
            *([html_section("Deciding measurement", decisive)] if decisive else []),
            *([html_section("Proof by intervention", html_list(proof))] if proof else []),
            html_section("Evidence", html_list(self.evidence)),
            html_section("Other measurements", f'<p class="small">{_FADED_NOTE}</p>', _charts_html(others)),
            html_section("Each core", _charts_html(cores), is_collapsed=True),
            html_section("Threads", html_table(titles, threads, numbers=range(1, len(titles)))),
            *(
                [html_section("Not available", html_list(self.not_available), is_collapsed=True)]
                if self.not_available
                else []
            ),
        ]
        return [*parts, *(f'<p class="small">{escape_text(line)}</p>' for line in self.summary)]

    def _fractions(self) -> str:
        """Return the division of the time that shows the input; empty for other verdicts and other evidence."""
        steps, calls = self.facts.steps, self.facts.calls
        if self.verdict.kind not in (INPUT_BOUND, INPUT_OR_COMPUTE):
            return ""
        if steps is not None and steps.gap_fraction is not None:
            gap = min(steps.gap_fraction, 1.0)
            parts = {"gap before the step": gap, "rest of the step": 1 - gap}
            return fraction_bar("time of a step", parts, f"Mean of {steps.count} steps.")
        decisive = 0.0 if calls is None else calls.mixed if self.verdict.kind == INPUT_OR_COMPUTE else calls.input
        if calls is None or decisive < HIGHLY_INPUT_BOUND:
            return ""
        parts = {"input": calls.input, MIXED: calls.mixed, "compute": calls.compute, "waiting": calls.waiting}
        return fraction_bar("time by purpose of the calls", parts, f"{calls.samples} samples of the running functions.")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _charts_html(charts: Iterable[TimeSeries | None]) -> str:
    return f'<div class="charts">{"".join(chart.html() for chart in charts if chart)}</div>'


def _chart(metric: Metric, seconds: tuple[float, ...], focus: tuple[float, float]) -> TimeSeries | None:
    """Return the chart of a metric; None without values."""
    lines = {name: values for name, values in metric.values.items() if any(value is not None for value in values)}
    maximum = 100.0 if metric.measure.startswith("%") else None
    chart = TimeSeries(metric.title, metric.measure, seconds, lines, maximum, focus, is_stacked=metric.is_whole)
    return chart.average_samples() if lines else None
