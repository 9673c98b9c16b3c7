"""A benchmark as a value, and as the text of a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

from quantkit.benchmark.comparison import Comparison
from quantkit.benchmark.measurement import Context, Measurement
from quantkit.errors import InputError, UsageError
from quantkit.runtimes import runtimes
from quantkit.runtimes.openmp import READS_KMP

SCHEMA = "quantkit.benchmark/1"


@dataclass(frozen=True)
class Failure:
    """Why a candidate was not measured.

    Attributes:
        reason: one sentence.
        hint: what to do.
        exit_code: of the command, had it been the only candidate.
    """

    reason: str
    hint: str = ""
    exit_code: int = 4


@dataclass(frozen=True)
class Row:
    """A candidate and what came of it.

    Attributes:
        label: the model, as it was asked for.
        runtime: the engine that was asked for; the measurement knows which one it became.
        outcome: the measurement, or why there is none.
        said: what the engine wrote while it worked (with ``KMP_SETTINGS``, its settings); not saved.
    """

    label: str
    runtime: str
    outcome: Measurement | Failure
    said: str = field(default="", compare=False, repr=False)

    @property
    def measurement(self) -> Measurement | None:
        return self.outcome if isinstance(self.outcome, Measurement) else None


@dataclass(frozen=True)
class Benchmark:
    """Models side by side.

    Attributes:
        rows: in the order asked for.
        notes: what the reader must know about all of them.
        is_complete: whether every round was run.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Of the rows that have one."""
        return tuple(row.measurement for row in self.rows if row.measurement is not None)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Of the rows that have no measurement."""
        return tuple(row.outcome for row in self.rows if isinstance(row.outcome, Failure))

    @cached_property
    def comparisons(self) -> tuple[Comparison | UsageError | None, ...]:
        """Each row against the first that was measured, which has None; an error where they can not be compared."""
        first = next((row for row in self.rows if row.measurement is not None), None)
        return tuple(None if first is None or row is first else _compared(first, row) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON knows it, raw samples included."""
        rows = []
        for row, comparison in zip(self.rows, self.comparisons, strict=True):
            document: dict[str, Any] = {"label": row.label, "runtime": row.runtime}
            if isinstance(row.outcome, Failure):
                document["failure"] = asdict(row.outcome)
            else:
                document["measurement"] = row.outcome.to_json()
            if isinstance(comparison, Comparison):
                document["comparison"] = comparison.to_json()
            rows.append(document)
        return {"schema": SCHEMA, "rows": rows, "notes": list(self.notes), "is_complete": self.is_complete}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; summaries and comparisons are computed again.

        Raises:
            InputError: it is no benchmark, or of a version this quantkit does not know.
        """
        if document.get("schema") != SCHEMA:
            raise InputError(f"this is {document.get('schema', 'no benchmark')!r}, and {SCHEMA!r} is needed")
        try:
            rows = tuple(_row(row) for row in document["rows"])
            return cls(rows, tuple(document["notes"]), document["is_complete"])
        except (KeyError, TypeError) as error:
            raise InputError(f"the benchmark is not complete: {error}") from None

    def __str__(self) -> str:
        return "\n".join(
            (
                *_table(self),
                "",
                "median, p90: ms a call, lower is better. speed-up: times as fast as the first row, higher is better.",
                *_threads_legend(self),
                *_machine_lines(self),
                *openmp_lines(self.measurements),
                *_remarks(self),
            )
        )


def threads_text(context: Context) -> str:
    """Threads as ``intra,inter``; a dot where the engine decides."""
    counts = (context.intra_op, context.inter_op)
    text = "default" if counts == (None, None) else ",".join("." if count is None else str(count) for count in counts)
    return f"{text} on {','.join(map(str, context.cpus))}" if context.cpus else text


def runtime_text(context: Context) -> str:
    """The engine, and its arithmetic where that is not float32."""
    return context.runtime if context.precision == "float32" else f"{context.runtime} {context.precision}"


def openmp_lines(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """A sentence for each engine: whether its process has an OpenMP runtime that heeds ``KMP_*`` and ``OMP_*``."""
    engines = {
        (context.runtime, context.version): openmp_text(context.runtime, context.openmp)
        for context in (measurement.context for measurement in measurements)
    }
    return tuple(f"{name} {version}: {text}" for (name, version), text in engines.items())


def openmp_text(runtime: str, libraries: Sequence[str]) -> str:
    """Describe the effect of the OpenMP variables in the process of a runtime that loaded these libraries.

    >>> openmp_text("tensorflow", ["libgomp"])
    'libgomp is loaded: it reads OMP_*, not KMP_*'
    >>> openmp_text("reference", [])
    "this build does not use OpenMP; KMP_* have no effect; OMP_NUM_THREADS sets the threads of NumPy's matrix products"
    """
    if libraries:
        return "; ".join(
            f"{name} is loaded: it reads {'KMP_* and OMP_*' if name in READS_KMP else 'OMP_*, not KMP_*'}"
            for name in libraries
        )
    known = runtimes().get(runtime)
    variables = known.variables if known else {}
    effects = ["KMP_* have no effect" if variables else "KMP_* and OMP_* have no effect"]
    effects += [f"{name} {effect}" for name, effect in variables.items()]
    if known and known.has_threads:
        effects.append("--intra-op and --inter-op set its threads")
    return "; ".join(["this build does not use OpenMP", *effects])


def aligned(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines of a table.

    Args:
        rows: cells; the first row is the heading.
        right: columns that are flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush = set(right)
    return [
        "  ".join(
            cell.rjust(width) if index in flush else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _compared(first: Row, row: Row) -> Comparison | UsageError | None:
    if first.measurement is None or row.measurement is None:
        return None
    try:
        return Comparison.of(first.measurement, row.measurement)
    except UsageError as error:
        return error


def _row(document: Mapping[str, Any]) -> Row:
    outcome = (
        Failure(**document["failure"]) if "failure" in document else Measurement.from_json(document["measurement"])
    )
    return Row(document["label"], document["runtime"], outcome)


def _table(benchmark: Benchmark) -> list[str]:
    heading = ("model", "runtime", "threads", "median ms", "95 % interval", "p90", "speed-up", "MB", "flags")
    cells = [_cells(row, comparison) for row, comparison in zip(benchmark.rows, benchmark.comparisons, strict=True)]
    return aligned([heading, *cells], right=(3, 4, 5, 7))


def _cells(row: Row, comparison: Comparison | UsageError | None) -> tuple[str, ...]:
    if isinstance(row.outcome, Failure):
        return (row.label, row.runtime, "", "-", "-", "-", "-", "-", "not measured")
    context, summary = row.outcome.context, row.outcome.summary
    speed = comparison.verdict if isinstance(comparison, Comparison) else "first" if comparison is None else "-"
    return (
        row.label,
        runtime_text(context),
        threads_text(context),
        _ms(summary.median),
        f"{_ms(summary.low)} to {_ms(summary.high)}",
        _ms(summary.p90),
        speed,
        f"{context.num_bytes / 1e6:.{1 if context.num_bytes >= 1e6 else 3}f}",
        "" if summary.is_stable else "unstable",
    )


def _ms(seconds: float) -> str:
    """Milliseconds with three or more significant digits.

    >>> _ms(0.0612), _ms(0.27649), _ms(0.0001234)
    ('61.20', '276.5', '0.123')
    """
    value = seconds * 1000
    return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f}"


def _threads_legend(benchmark: Benchmark) -> list[str]:
    contexts = [measurement.context for measurement in benchmark.measurements]
    if all((context.intra_op, context.inter_op) == (None, None) for context in contexts):
        return []
    return ["threads: inside an operation, operations side by side; a dot where the engine decides."]


def _machine_lines(benchmark: Benchmark) -> list[str]:
    if not benchmark.measurements:
        return []
    return [benchmark.measurements[0].context.machine.sentence]


def _remarks(benchmark: Benchmark) -> list[str]:
    lines = []
    for row, comparison in zip(benchmark.rows, benchmark.comparisons, strict=True):
        if isinstance(row.outcome, Failure):
            hint = f" (hint: {row.outcome.hint})" if row.outcome.hint else ""
            lines.append(f"not measured: {row.label} in {row.runtime}: {row.outcome.reason}{hint}")
            continue
        context = row.outcome.context
        threads = threads_text(context)
        where = f"{row.label} in {runtime_text(context)}" + (f" with threads {threads}" if threads != "default" else "")
        lines.extend(f"unstable: {where}: {warning}" for warning in row.outcome.summary.warnings)
        lines.extend(f"{where}: auto passed over {skipped}" for skipped in context.passed_over)
        if isinstance(comparison, UsageError):
            lines.append(f"not compared: {where}: {comparison.message}")
    return [*lines, *benchmark.notes]
