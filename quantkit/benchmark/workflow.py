"""Benchmark of models and runtimes: candidates, rounds of measurements, verdict."""

import os
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any

from quantkit.arguments import (
    parse_duration,
    parse_percentage,
    public,
    require_duration,
    require_natural,
    require_path,
    require_positive,
)
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.regression import compare_with_saved, read_baseline, read_saved, workload_candidate
from quantkit.benchmark.results.report import Benchmark
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.rounds import (
    FURTHER_BUDGET,
    Compare,
    SamplingOptions,
    measure,
    speedups_over_first,
)
from quantkit.benchmark.sampling.selection import CandidateOptions, find_saved, select_candidates
from quantkit.benchmark.verdict import explain_speedup
from quantkit.errors import UsageError
from quantkit.facts import RANDOM_WEIGHTS_NOTE
from quantkit.formats.temporary import temporary_folder
from quantkit.options import Declaration, option, takes


@dataclass(frozen=True, kw_only=True)
class SamplingArguments:
    """Number of samples, and the time limit."""

    runs: int | None = option(
        None,
        require_positive,
        help="samples of each model (default: 6 to 200 in each of its processes)",
        doc="samples of each model; a sample is a call, or the mean of several calls below a millisecond (default: 6 "
        "to 200 in each process)",
    )
    processes: int | None = option(
        None,
        require_positive,
        help="processes of each model (default: 3 to 20, until it is clear, and none after 15 s)",
        doc="processes of each model, opened in rotated order (default: 3 to 20, until the comparison is clear, "
        "and after 15 s none but the first 3; with ``runs``, 3 to 5)",
    )
    interval_width: float | str | None = option(
        None,
        lambda interval_width: parse_percentage(interval_width, "interval_width"),
        metavar="WIDTH",
        help="stop when each interval is narrower than this, for example 2% (default: when the comparison is clear)",
        doc="stop as soon as each interval is narrower than this, as a fraction or a text such as ``2%``, after 5, 10, "
        "20 or 40 processes: the intervals of the speed-ups, or of the median of a single model",
    )
    warmup: int | None = option(None, require_natural, help="warm-up iterations (default: until latency is stable)")
    seed: int = option(
        0,
        require_natural,
        help="seed of the data and of the order of the rounds (default: 0)",
        doc="seed of the data, of the order in each round, and of the intervals",
    )
    time_budget: float | str | None = option(
        None,
        require_duration,
        help="total time limit, for example 90s (default: 10m, and 15 s for more than 3 processes)",
        doc="total time limit in seconds, or a text such as ``2m``; finished rounds are kept (default: 10 minutes, and "
        "15 s for more than 3 processes, unless ``runs``, ``processes`` or ``interval_width`` is given)",
    )


@dataclass(frozen=True)
class BenchmarkOptions(SamplingArguments, CandidateOptions):
    """The arguments of `benchmark`."""

    models: Annotated[
        Any,
        Declaration(
            doc="list of models: each a `Model`, a `Graph`, a path or the name of a model card; a path or name may end "
            "with ``@RUNTIME``. A single model is a list of one. The file of `Benchmark.save` in place of the models "
            "is read instead of measured; only ``baseline`` applies to it"
        ),
    ]
    _: KW_ONLY
    workload: bool = option(
        False,
        doc="measure a fixed matrix product in the same rounds, so that the saved result is a baseline for later "
        "benchmarks",
    )
    baseline: str | os.PathLike[str] | None = option(
        None,
        require_path,
        doc="file of `Benchmark.save`: compare with this benchmark of the same machine",
    )


@public
@takes(BenchmarkOptions)
def benchmark(options: BenchmarkOptions) -> Benchmark:
    """Measure the latency of models side by side, each in several processes of its own.

    Returns:
        One row per model and precision: a measurement, or the reason of its failure.

    Raises:
        UsageError: there is no such runtime, model card or CPU, a number is out of range, or the baseline is from
            another machine or another version of a runtime.
        InputError: a model file or the baseline is missing or broken, or a download failed.
        NotMeasuredError: no model could be measured; its `benchmark` has the reason of each failure.
        BenchmarkInterrupted: Ctrl-C, with the finished rounds.
    """
    runs, processes, baseline = options.runs, options.processes, options.baseline
    width = None if options.interval_width is None else parse_percentage(options.interval_width, "interval_width")
    if width is not None and (runs or processes):
        hint = "omit runs and processes (--runs, --processes)"
        raise UsageError("interval_width sets the number of processes and samples", hint=hint)
    file = find_saved(options.models)
    result = None if file is None else read_saved(file)
    machine = this_machine() if result is None else result.measurements[0].context.machine
    saved = None if baseline is None else read_baseline(baseline, machine)
    sampling = SamplingOptions(runs, options.warmup, processes, width, seed=options.seed)
    if options.time_budget is not None:
        sampling = replace(sampling, time_budget=parse_duration(options.time_budget))
    elif not (runs or processes or width):
        sampling = replace(sampling, further_budget=FURTHER_BUDGET)
    if result is not None:
        return _with_comparison(result, baseline, saved)
    with temporary_folder() as folder:
        candidates = select_candidates(options, folder)
        has_workload = options.workload or (saved is not None and saved.workload is not None)
        product = workload_candidate(folder, candidates[0].settings.cpus) if has_workload else None
        compare = speedups_over_first if baseline is None or saved is None else _compare_with(baseline, saved)
        result = measure(candidates, sampling, options.on_progress, product, compare)
        result = replace(result, reasons=explain_speedup(result, candidates, options.on_progress))
    if options.random_weights:
        result = replace(result, notes=(*result.notes, RANDOM_WEIGHTS_NOTE))
    if not result.measurements:
        result.check_measured()
    return _with_comparison(result, baseline, saved)


def _with_comparison(result: Benchmark, baseline: str | os.PathLike[str] | None, saved: Benchmark | None) -> Benchmark:
    if baseline is None or saved is None:
        return result
    comparison = compare_with_saved(baseline, saved, result.rows, result.workload)
    return replace(result, baseline_comparison=comparison)


def _compare_with(baseline: str | os.PathLike[str], saved: Benchmark) -> Compare:
    """Return the function that compares the rows of a benchmark with a saved one."""

    def compare(result: Benchmark) -> list[Speedup]:
        changes = compare_with_saved(baseline, saved, result.rows, result.workload).changes
        return [change.speedup for change in changes if change.speedup is not None]

    return compare
