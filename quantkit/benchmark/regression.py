"""Comparison of a benchmark with a saved one of the same machine.

The speed of a machine changes between two benchmarks: clock frequency, other programs, neighbors of a virtual machine.
A fixed matrix product, the workload, therefore runs in the same rounds as the models of both benchmarks, latencies are
compared relative to it, and the interval contains its change (`Speedup.over_saved`).
"""

import os
from collections.abc import Mapping
from pathlib import Path

from quantkit import formats
from quantkit.benchmark.host.machine import Machine, usable_threads
from quantkit.benchmark.profiling.peak_models import float_product
from quantkit.benchmark.results.baseline import BaselineComparison, Change
from quantkit.benchmark.results.measurement import Measurement, MeasurementContext
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.statistics.student import MIN_PROCESSES
from quantkit.errors import InputError, UsageError
from quantkit.formats.documents import read_json

# Rows and columns of the matrices of the workload: about a millisecond on one core.
WORKLOAD_SIZE = 256


def workload_candidate(folder: Path, cpus: tuple[int, ...]) -> Candidate:
    """Return the matrix product, in the reference runtime, which every installation has.

    Args:
        folder: for the file of the matrix product.
        cpus: hardware threads of the process; empty for all.
    """
    path = folder / "workload.pb"
    formats.save(float_product("tensorflow", WORKLOAD_SIZE), path)
    return Candidate("matrix product", path, Settings(runtime="reference", cpus=cpus))


def read_saved(path: str | os.PathLike[str]) -> Benchmark:
    """Return the benchmark that `Benchmark.save` wrote to a file.

    Raises:
        InputError: the file is missing or broken, or has no measurement.
    """
    file = Path(path).expanduser()
    hint = "write it with quantkit benchmark MODEL --save FILE.json"
    document = read_json(file, hint)
    try:
        saved = Benchmark.from_json(document)
        for measurement in (*saved.measurements, *([saved.workload] if saved.workload else ())):
            measurement.summary  # noqa: B018  broken samples are an error before any work
    except (InputError, LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise InputError(f"{file} is not a saved benchmark: {error}", hint) from None
    if not saved.measurements:
        raise InputError(f"{file} has no measurement", hint)
    return saved


def read_baseline(path: str | os.PathLike[str], machine: Machine) -> Benchmark:
    """Return the saved benchmark of a machine.

    Args:
        path: file that `Benchmark.save` wrote.
        machine: host of the present benchmark.

    Raises:
        InputError: see `read_saved`.
        UsageError: the file is from another machine.
    """
    saved, file = read_saved(path), Path(path)
    _check_equal(file, dict(saved.measurements[0].context.machine.identity), dict(machine.identity))
    return saved


def compare_with_saved(
    path: str | os.PathLike[str], saved: Benchmark, rows: tuple[BenchmarkRow, ...], workload: Measurement | None
) -> BaselineComparison:
    """Compare the rows of a benchmark with those of a saved one.

    A row is compared with the saved row of the same label, runtime and precision; two single rows are compared also if
    their labels differ.

    Args:
        path: file of the saved benchmark.
        saved: the saved benchmark.
        rows: rows of the present benchmark.
        workload: matrix product in the same rounds as the rows; None if it was not measured.

    Raises:
        UsageError: CPUs, runtimes, their versions, batch sizes or streams differ.
    """
    file = Path(path)
    workloads = None
    if workload is not None and saved.workload is not None:
        before, now = saved.workload.context, workload.context
        if before.digest == now.digest:
            _check_equal(file, _conditions(before), _conditions(now))
            workloads = saved.workload, workload
    changes = [
        _compare_row(file, _find_saved(saved, rows, row), row, workloads) for row in rows if row.measurement is not None
    ]
    return BaselineComparison(str(file), saved.measurements[0].context.started, workloads is not None, tuple(changes))


def _compare_row(
    file: Path, before: Measurement | None, row: BenchmarkRow, workloads: tuple[Measurement, Measurement] | None
) -> Change:
    now = row.measurement
    assert now is not None
    if before is None:
        return Change(row.label, row.runtime, None, f"{file} has no row of this model, runtime and precision")
    _check_equal(file, _conditions(before.context), _conditions(now.context))
    speedup = Speedup.over_saved(before, now, workloads)
    if speedup.processes < MIN_PROCESSES:
        return Change(row.label, row.runtime, None, f"a comparison needs {MIN_PROCESSES} processes in both benchmarks")
    warnings = {"this": now.summary.warnings, "the saved": before.summary.warnings}
    problem = next((f"unstable in {name} benchmark: {texts[0]}" for name, texts in warnings.items() if texts), "")
    return Change(row.label, row.runtime, speedup, problem)


def _find_saved(saved: Benchmark, rows: tuple[BenchmarkRow, ...], row: BenchmarkRow) -> Measurement | None:
    if len(saved.measurements) == len(rows) == 1:
        return saved.measurements[0]
    return next((other.measurement for other in saved.rows if _key(other) == _key(row)), None)


def _key(row: BenchmarkRow) -> tuple[str, str, str] | None:
    return None if row.measurement is None else (row.label, row.runtime, row.measurement.context.precision)


def _conditions(context: MeasurementContext) -> Mapping[str, object]:
    """Return the facts that must be equal for latencies of two benchmarks to be comparable."""
    return {
        "usable CPUs": usable_threads(context.machine, context.cpus),
        "runtime": f"{context.runtime} {context.version}",
        "device": context.runtime_device,
        "streams": context.streams,
        "end to end": context.is_end_to_end,
        "batch size": context.batch,
    }


def _check_equal(file: Path, saved: Mapping[str, object], present: Mapping[str, object]) -> None:
    """Check that the conditions of both benchmarks are equal.

    Raises:
        UsageError: conditions differ; the message lists them.
    """
    differences = [
        f"{name} is {_text(present[name])}, and {_text(value)} in the file"
        for name, value in saved.items()
        if present[name] != value
    ]
    if differences:
        raise UsageError(
            f"{file} cannot be compared with this benchmark: {'; '.join(differences)}",
            hint="save a baseline on this machine with the same runtimes and settings: --save FILE.json",
        )


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
