"""Result of a benchmark, with its text, HTML and JSON forms."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Self

from quantkit.benchmark.results.baseline import BaselineComparison
from quantkit.benchmark.results.measurement import Measurement, MeasurementContext
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.speedup import MARGIN, Speedup
from quantkit.benchmark.results.stop import Stop
from quantkit.benchmark.statistics.percentile import PERCENTILES, needed_calls
from quantkit.benchmark.statistics.student import MIN_PROCESSES
from quantkit.drawing import escape_text, html_body, html_table
from quantkit.errors import CheckError, InputError, QuantkitError, UsageError
from quantkit.facts import align_columns
from quantkit.formats.files import write_whole
from quantkit.runtimes import runtimes
from quantkit.runtimes.openmp import READS_KMP

SCHEMA = "quantkit.benchmark/1"
COLUMNS = ("model", "runtime", "threads", "median ms", "95 % interval", "p90", "p99", "speed-up", "flags")
COST_COLUMNS = ("model", "runtime", "load ms", "first call ms", "peak MB", "file MB")
# Title of each part of an end-to-end call, or of a call on a GPU.
PART_TITLES = {
    "decode": "decode ms",
    "preprocess": "resize, normalize ms",
    "infer": "infer ms",
    "postprocess": "postprocess ms",
    "upload": "copy to GPU ms",
    "download": "copy from GPU ms",
}
# Percentiles in the table; the JSON form has all.
TAIL = ("p90", "p99")
UNDISTURBED_NOTE = "other programs delayed a part of the calls: speed-ups compare the fastest 5 % of the calls"
PARTS_NOTE = "end to end: a call decodes and prepares images, runs the model, and finds the 5 highest scores."
COPIES_NOTE = (
    "parts: in further calls, the inputs are copied to the GPU, the model runs, and the outputs are copied back."
)
# Titles, rows of cells, and right-aligned columns.
Table = tuple[Sequence[str], Sequence[Sequence[str]], Sequence[int]]
# Exit codes of failures that are errors of the caller or of the input; they have priority over other failures.
CALLER_ERRORS = (2, 3)


@dataclass(frozen=True)
class Failure:
    """Reason why a candidate was not measured.

    Attributes:
        reason: one sentence.
        hint: remedy, or empty.
        exit_code: exit code of the command.
    """

    reason: str
    hint: str = ""
    exit_code: int = 4


@dataclass(frozen=True)
class BenchmarkRow:
    """Result of one candidate.

    Attributes:
        label: name of the model.
        runtime: requested runtime; after a measurement, the runtime that ran.
        outcome: measurement, or the reason of its failure.
        log: output of the runtime (with ``KMP_SETTINGS``, its settings); not part of the JSON form.
    """

    label: str
    runtime: str
    outcome: Measurement | Failure
    log: str = field(default="", compare=False, repr=False)

    @property
    def measurement(self) -> Measurement | None:
        return self.outcome if isinstance(self.outcome, Measurement) else None


@dataclass(frozen=True, repr=False)
class Benchmark:
    """Latency of several models, measured side by side.

    Attributes:
        rows: results in the order of the candidates.
        notes: messages on all rows.
        reasons: reasons why an int8 model is not faster, ranked by measured time; empty if it is.
        is_complete: True if all rounds are finished.
        workload: matrix product in the same rounds, for the comparison with other benchmarks; None if it was not
            measured.
        baseline_comparison: changes since a saved benchmark; None without one.
        stop: reason for the end of the measurement; None if it is unknown.
    """

    rows: tuple[BenchmarkRow, ...]
    notes: tuple[str, ...] = ()
    is_complete: bool = True
    reasons: tuple[Reason, ...] = ()
    workload: Measurement | None = None
    baseline_comparison: BaselineComparison | None = None
    stop: Stop | None = None

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Measurements of the rows that have one."""
        return tuple(row.measurement for row in self.rows if row.measurement is not None)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Failures of the rows without a measurement."""
        return tuple(row.outcome for row in self.rows if isinstance(row.outcome, Failure))

    @property
    def baseline(self) -> BenchmarkRow | None:
        """First row that has a measurement: the speed-ups are over this row."""
        return next((row for row in self.rows if row.measurement is not None), None)

    @cached_property
    def speedups(self) -> tuple[Speedup | UsageError | None, ...]:
        """Speed-up of each row over the baseline: None for the baseline, an error for different machines."""
        first = self.baseline
        return tuple(None if first is None or row is first else _compare(first, row) for row in self.rows)

    @cached_property
    def fastest(self) -> BenchmarkRow | None:
        """Row with the lowest median latency; None without a measurement."""
        measured = [(row.measurement.summary.median, row) for row in self.rows if row.measurement is not None]
        return min(measured, key=lambda pair: pair[0])[1] if measured else None

    @property
    def doubt(self) -> str:
        """Reason why the row with the lowest median is not shown to be the fastest; empty if it is."""
        if any(not measurement.summary.is_stable for measurement in self.measurements):
            return "not shown to be the fastest: latencies are unstable"
        return "not shown to be the fastest" if self.rivals else ""

    @property
    def rivals(self) -> tuple[BenchmarkRow, ...]:
        """Rows that the measurement does not show to be slower than the fastest one."""
        fastest = self.fastest
        others = [row for row in self.rows if fastest is not None and row is not fastest and row.measurement]
        speedups = [(row, _compare(row, fastest)) for row in others if fastest is not None]
        return tuple(row for row, speedup in speedups if isinstance(speedup, Speedup) and speedup.outcome != "faster")

    def check_measured(self) -> None:
        """Check that all candidates were measured.

        Raises:
            NotMeasuredError: with the exit code of the first failure; an error of the caller or the input comes first.
        """
        if not self.failures:
            return
        failure = min(self.failures, key=lambda failure: failure.exit_code not in CALLER_ERRORS)
        prefix = "a candidate could not be measured" if self.measurements else "no candidate could be measured"
        raise NotMeasuredError(f"{prefix}: {failure.reason}", failure.hint, failure.exit_code, self)

    def check_speedups(self, minimum: float) -> None:
        """Check the speed-up of each row over the saved benchmark if there is one, else over the first row.

        Args:
            minimum: smallest accepted speed-up; an interval that contains it is accepted.

        Raises:
            CheckError: the interval of a speed-up lies below the minimum, or a speed-up is missing.
        """
        if self.baseline_comparison is not None:
            self.baseline_comparison.check(minimum)
            return
        baseline = self.baseline
        for row, speedup in zip(self.rows, self.speedups, strict=True):
            if baseline is None or row is baseline:
                continue
            if not isinstance(speedup, Speedup):
                raise CheckError(
                    f"{row.label} in {row.runtime} has no speed-up to compare with {minimum:g}",
                    hint="the table gives the reason; omit --fail-below, or measure candidates that run here",
                )
            if speedup.high < minimum:
                raise CheckError(
                    f"{row.label} in {row.runtime} is {speedup.ratio:.2f}x as fast as {baseline.label} in "
                    f"{baseline.runtime} ({speedup.low:.2f} to {speedup.high:.2f}), below {minimum:g}",
                    hint="the whole interval is below the limit, so that more runs do not change the result; "
                    "quantkit doctor --measure compares thread settings",
                )

    def placement_lines(self, *, is_verbose: bool = False) -> list[str]:
        """Return the number of ops by device for each measurement; with ``is_verbose`` also the device of each op."""
        lines = []
        for row in self.rows:
            if row.measurement is None:
                continue
            context = row.measurement.context
            counts = Counter(line.rpartition(": ")[2] for line in context.placement)
            text = ", ".join(f"{count} on {device}" for device, count in counts.items())
            lines.append(f"placement: {row.label} in {context.runtime}: {text}")
            if is_verbose:
                lines.extend(f"  {line}" for line in context.placement)
        return lines

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON form to a file, which appears complete or not at all."""
        data = json.dumps(self.to_json(), indent=1).encode()
        write_whole(Path(path), lambda file: file.write(data))

    def to_json(self) -> dict[str, Any]:
        """Return the benchmark as a JSON document, with all samples."""
        rows = []
        for row, speedup in zip(self.rows, self.speedups, strict=True):
            document: dict[str, Any] = {"label": row.label, "runtime": row.runtime}
            if isinstance(row.outcome, Failure):
                document["failure"] = asdict(row.outcome)
            else:
                document["measurement"] = row.outcome.to_json()
            if isinstance(speedup, Speedup):
                document["comparison"] = speedup.to_json()
            rows.append(document)
        return {
            "schema": SCHEMA,
            "rows": rows,
            "fastest": None if self.fastest is None else self.rows.index(self.fastest),
            "rivals": [self.rows.index(row) for row in self.rivals],
            "notes": list(self.notes),
            "reasons": [reason.to_json() for reason in self.reasons],
            "is_complete": self.is_complete,
            "workload": None if self.workload is None else self.workload.to_json(),
            "baseline_comparison": None if self.baseline_comparison is None else self.baseline_comparison.to_json(),
            "stop": None if self.stop is None else self.stop.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the benchmark of a JSON document; summaries and speed-ups are computed again.

        Raises:
            InputError: the document is not a benchmark, is incomplete, or has another version.
        """
        if document.get("schema") != SCHEMA:
            raise InputError(f"the schema is {document.get('schema', 'missing')!r}, and {SCHEMA!r} is required")
        try:
            rows = tuple(_parse_row(row) for row in document["rows"])
            reasons = tuple(Reason(**reason) for reason in document.get("reasons", ()))
            workload, comparison = document.get("workload"), document.get("baseline_comparison")
            stop = document.get("stop")
            return cls(
                rows,
                tuple(document["notes"]),
                document["is_complete"],
                reasons,
                None if workload is None else Measurement.from_json(workload),
                None if comparison is None else BaselineComparison.from_json(comparison),
                None if stop is None else Stop(**stop),
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"the benchmark is incomplete: {error}") from None

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{row.label!r} in {row.runtime}: "
            + (f"{format_latency(row.measurement.summary.median)} ms" if row.measurement else "not measured")
            for row in self.rows
        )
        return f"Benchmark({rows})"

    def __str__(self) -> str:
        tables = [align_columns((titles, *rows), right=right) for titles, rows, right in self.tables(self.rows)]
        return "\n\n".join("\n".join(lines) for lines in (*tables, self.messages))

    def _repr_html_(self) -> str:
        tables = (html_table(titles, rows, right) for titles, rows, right in self.tables(self.rows))
        return html_body([*tables, *(f"<p>{escape_text(line)}</p>" for line in self.messages)])

    @property
    def ranked(self) -> tuple[BenchmarkRow, ...]:
        """Rows with the lowest median first; rows without a measurement are the last ones."""
        return tuple(sorted(self.rows, key=lambda row: row.measurement.summary.median if row.measurement else inf))

    def tables(self, rows: Iterable[BenchmarkRow]) -> list[Table]:
        """Return the tables of some rows: latency, parts of end-to-end calls, and load time, first call and memory.

        Args:
            rows: rows of this benchmark.
        """
        rows = tuple(rows)
        speedups = {id(row): speedup for row, speedup in zip(self.rows, self.speedups, strict=True)}
        measured = [(row, row.measurement) for row in rows if row.measurement]
        tables: list[Table] = [
            (COLUMNS, [_cells(row, speedups[id(row)]) for row in rows], (3, 4, 5, 6)),
            *(_part_table(names, measured) for names in dict.fromkeys(tuple(each.parts) for _, each in measured)),
            (COST_COLUMNS, [_cost_cells(*pair) for pair in measured], (2, 3, 4, 5)),
        ]
        return [table for table in tables if table[1]]

    def _baseline_note(self) -> str:
        """Return the sentence that names the baseline; empty without a second measurement."""
        if self.baseline is None or len(self.measurements) == 1:
            return ""
        context = self.measurements[0].context
        name = f"{self.baseline.label} in {runtime_text(context)}"
        is_first = self.baseline is self.rows[0]
        return f" speed-up: over {name}{'' if is_first else ', the first measured row'}, higher is better."

    def _fastest_line(self, fastest: BenchmarkRow) -> str:
        """Return the sentence on the fastest row, and on the rows that are not shown to be slower."""
        assert fastest.measurement is not None
        name = f"{_name(fastest)} ({format_latency(fastest.measurement.summary.median)} ms)"
        line = f"lowest median: {name}, {self.doubt}" if self.doubt else f"fastest on this machine: {name}"
        return f"{line}; not shown to be slower: {', '.join(map(_name, self.rivals))}" if self.rivals else line

    def _comparison_lines(self) -> list[str]:
        """Return the lines on the fastest row, the precision of the speed-ups, and each undecided one."""
        if self.fastest is None or len(self.measurements) == 1:
            return []
        lines = [self._fastest_line(self.fastest)]
        speedups = [(row, speedup) for row, speedup in zip(self.rows, self.speedups, strict=True)]
        compared = [(row, speedup) for row, speedup in speedups if isinstance(speedup, Speedup)]
        if visible := [speedup.smallest_difference for _, speedup in compared if speedup.processes >= MIN_PROCESSES]:
            processes = max(speedup.processes for _, speedup in compared)
            lines.append(
                f"{processes} processes per model; this run could see differences from {_percent(max(visible))}; "
                f"same: within {_percent(MARGIN)}"
            )
        if any(speedup.is_undisturbed for _, speedup in compared):
            lines.append(UNDISTURBED_NOTE)
        undecided = [(row, speedup) for row, speedup in compared if speedup.outcome == "undecided"]
        return lines + [f"undecided: {_name(row)}: {speedup.advice}" for row, speedup in undecided]

    @property
    def messages(self) -> list[str]:
        """Lines below the tables."""
        lines = [f"median: ms per call, lower is better; {' and '.join(TAIL)}: upper bounds with 99 % confidence."]
        lines[0] += self._baseline_note()
        kinds = {measurement.context.is_end_to_end for measurement in self.measurements if measurement.parts}
        lines += [PARTS_NOTE if is_end_to_end else COPIES_NOTE for is_end_to_end in sorted(kinds)]
        lines += [
            *_throughput_lines(self.rows),
            *self._comparison_lines(),
            *_missing_percentile_lines(self.measurements),
        ]
        contexts = [measurement.context for measurement in self.measurements]
        if any((context.intra_op, context.inter_op) != (None, None) for context in contexts):
            lines.append("threads: inside one op, ops in parallel; a dot for the default of the runtime.")
        if contexts:
            lines.append(contexts[0].machine.sentence)
        lines.extend(openmp_lines(self.measurements))
        lines.extend(_instability_lines(self.rows))
        for row, speedup in zip(self.rows, self.speedups, strict=True):
            lines.extend(_row_messages(row, speedup))
        lines.extend(_failure_lines(self.rows))
        if self.reasons:
            lines.append("not faster in int8; measured time, the largest first:")
        lines.extend(f"  {reason}" for reason in self.reasons)
        lines.extend([] if self.stop is None else self.stop.lines)
        if self.baseline_comparison is not None:
            lines.extend(self.baseline_comparison.lines)
        return [*lines, *self.notes]


class NotMeasuredError(QuantkitError):
    """Failure of one or more candidates of a benchmark.

    Args:
        message, hint: see `QuantkitError`.
        exit_code: exit code of the failure.
        benchmark: all rows, with measurements and failures.
    """

    def __init__(self, message: str, hint: str, exit_code: int, benchmark: Benchmark) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code
        self.benchmark = benchmark

    def __reduce__(self) -> tuple[type["NotMeasuredError"], tuple[str, str, int, Benchmark]]:  # type: ignore[override]
        return type(self), (self.message, self.hint, self.exit_code, self.benchmark)


def threads_text(context: MeasurementContext) -> str:
    """Return the thread options as ``intra,inter``, with a dot for the default of the runtime."""
    counts = (context.intra_op, context.inter_op)
    text = "default" if counts == (None, None) else ",".join("." if count is None else str(count) for count in counts)
    return f"{text} on {','.join(map(str, context.cpus))}" if context.cpus else text


def runtime_text(context: MeasurementContext) -> str:
    """Return the runtime, with its arithmetic unless that is float32."""
    return context.runtime if context.precision == "float32" else f"{context.runtime} {context.precision}"


def openmp_lines(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """Return a sentence on the effect of ``KMP_*`` and ``OMP_*`` for each runtime."""
    texts = {
        (context.runtime, context.version): openmp_text(context.runtime, context.openmp)
        for context in (measurement.context for measurement in measurements)
    }
    return tuple(f"{name} {version}: {text}" for (name, version), text in texts.items())


def openmp_text(runtime: str, libraries: Sequence[str]) -> str:
    """Describe the effect of the OpenMP variables in the process of a runtime that loaded these libraries.

    >>> openmp_text("tensorflow", ["libgomp"])
    'libgomp is loaded: it reads OMP_*, not KMP_*'
    >>> openmp_text("reference", [])  # doctest: +ELLIPSIS
    "... KMP_* have no effect; OMP_NUM_THREADS sets the threads of NumPy's matrix products; --intra-op and ..."
    """
    if libraries:
        return "; ".join(
            f"{name} is loaded: it reads {'KMP_* and OMP_*' if name in READS_KMP else 'OMP_*, not KMP_*'}"
            for name in libraries
        )
    properties = runtimes().get(runtime)
    variables = properties.variables if properties else {}
    effects = ["KMP_* have no effect" if variables else "KMP_* and OMP_* have no effect"]
    effects += [f"{name} {effect}" for name, effect in variables.items()]
    if properties:
        effects.append(f"--intra-op and --inter-op {'set its threads' if properties.has_threads else 'have no effect'}")
    return "; ".join(["this build does not use OpenMP", *effects])


def _compare(first: BenchmarkRow, row: BenchmarkRow) -> Speedup | UsageError | None:
    if first.measurement is None or row.measurement is None:
        return None
    try:
        return Speedup.of(first.measurement, row.measurement)
    except UsageError as error:
        return error


def _parse_row(document: Mapping[str, Any]) -> BenchmarkRow:
    outcome = (
        Failure(**document["failure"]) if "failure" in document else Measurement.from_json(document["measurement"])
    )
    return BenchmarkRow(document["label"], document["runtime"], outcome)


def _items_text(context: MeasurementContext) -> str:
    """Return streams and batch size of a throughput measurement; empty for a latency measurement."""
    return "" if context.streams is None else f", {context.streams} x {context.batch}"


def _cells(row: BenchmarkRow, speedup: Speedup | UsageError | None) -> tuple[str, ...]:
    if isinstance(row.outcome, Failure):
        return (row.label, row.runtime, "", *["-"] * (len(COLUMNS) - 4), "not measured")
    context, summary = row.outcome.context, row.outcome.summary
    return (
        row.label,
        runtime_text(context),
        threads_text(context) + _items_text(context),
        format_latency(summary.median),
        f"{format_latency(summary.low)} to {format_latency(summary.high)}",
        *(_format_bound(summary.percentiles[name]) for name in TAIL),
        speedup.verdict if isinstance(speedup, Speedup) else "baseline" if speedup is None else "-",
        "" if summary.is_stable else "unstable",
    )


def _cost_cells(row: BenchmarkRow, measurement: Measurement) -> tuple[str, ...]:
    context = measurement.context
    loads, first_calls, peak = measurement.load_seconds, measurement.first_call_seconds, measurement.peak_bytes
    return (
        row.label,
        runtime_text(context),
        f"{median(loads) * 1000:.0f}" if loads else "-",
        format_latency(median(first_calls)) if first_calls else "-",
        "-" if peak is None else f"{peak / 1e6:.0f}",
        f"{context.num_bytes / 1e6:.{1 if context.num_bytes >= 1e6 else 3}f}",
    )


def _part_table(names: tuple[str, ...], measured: Iterable[tuple[BenchmarkRow, Measurement]]) -> Table:
    """Return the median of each part, with its fraction of their sum, of the measurements with these parts."""
    rows = []
    for row, measurement in measured:
        if names and tuple(measurement.parts) == names:
            parts = measurement.parts.values()
            texts = [f"{format_latency(seconds)} ({100 * fraction:.0f} %)" for seconds, fraction in parts]
            rows.append((row.label, runtime_text(measurement.context), *texts))
    columns = ("model", "runtime", *(PART_TITLES[name] for name in names))
    return columns, rows, tuple(range(2, len(columns)))


def _throughput_lines(rows: Sequence[BenchmarkRow]) -> list[str]:
    """Return the throughput of each row that several streams measure."""
    lines = []
    for row in rows:
        if row.measurement is None or row.measurement.context.streams is None:
            continue
        context, summary = row.measurement.context, row.measurement.summary
        rates = [1 / seconds for seconds in (summary.median, summary.high, summary.low)]
        lines.append(
            f"throughput: {_name(row)}: {rates[0]:.1f} items/s ({rates[1]:.1f} to {rates[2]:.1f}), streams "
            f"{context.streams}, batch {context.batch}; median is ms per item, p90 and p99 are ms per call"
        )
    return lines


def _format_bound(seconds: float | None) -> str:
    return "-" if seconds is None else format_latency(seconds)


def _missing_percentile_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Return a line for each percentile that has too few calls in some row."""
    lines = []
    for name in TAIL:
        counts = [
            len(measurement.call_seconds or measurement.seconds)
            for measurement in measurements
            if measurement.summary.percentiles[name] is None
        ]
        if counts:
            needed = needed_calls(PERCENTILES[name])
            lines.append(f"{name}: needs {needed} calls, and the fewest are {min(counts)}: --runs {needed}")
    return lines


def format_latency(seconds: float) -> str:
    """Format a duration in milliseconds with three or more significant digits.

    >>> format_latency(0.0612), format_latency(0.27649), format_latency(0.0001234)
    ('61.20', '276.5', '0.123')
    """
    value = seconds * 1000
    return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f}"


def _failure_lines(rows: Sequence[BenchmarkRow]) -> Iterator[str]:
    """Yield one line for each failure, with all rows that have it."""
    for failure in dict.fromkeys(row.outcome for row in rows if isinstance(row.outcome, Failure)):
        names = ", ".join(_name(row) for row in rows if row.outcome == failure)
        yield f"not measured: {names}: {failure.reason}" + (f" (hint: {failure.hint})" if failure.hint else "")


def _row_messages(row: BenchmarkRow, speedup: Speedup | UsageError | None) -> list[str]:
    if isinstance(row.outcome, Failure):
        return []
    lines = [f"{_name(row)}: auto skipped {skipped}" for skipped in row.outcome.context.skipped_runtimes]
    if isinstance(speedup, UsageError):
        lines.append(f"no speed-up: {_name(row)}: {speedup.message}")
    return lines


def _instability_lines(rows: Sequence[BenchmarkRow]) -> list[str]:
    """Return one line on all unstable rows; it gives the reason of the row with the widest interval."""
    unstable = [(row, row.measurement.summary) for row in rows if row.measurement and row.measurement.summary.warnings]
    if not unstable:
        return []
    row, summary = max(unstable, key=lambda pair: (pair[1].high - pair[1].low) / pair[1].median)
    count = sum(len(summary.warnings) for _, summary in unstable)
    others = "" if count == 1 else f" ({count} warnings on {len(unstable)} of {len(rows)} rows; --json lists all)"
    return [f"unstable: {_name(row)}: {summary.warnings[0]}{others}"]


def _name(row: BenchmarkRow) -> str:
    """Return label, runtime, and thread options that differ from the default."""
    if row.measurement is None:
        return f"{row.label} in {row.runtime}"
    context = row.measurement.context
    threads = threads_text(context)
    name = f"{row.label} in {runtime_text(context)}"
    return name if threads == "default" else f"{name} with threads {threads}"


def _percent(fraction: float) -> str:
    """Format a fraction with one significant digit or more.

    >>> _percent(0.004), _percent(0.02), _percent(0.137)
    ('0.4 %', '2 %', '14 %')
    """
    return f"{100 * fraction:.{1 if fraction < 0.01 else 0}f} %"
