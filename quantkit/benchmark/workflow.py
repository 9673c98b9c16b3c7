"""Benchmark of models and runtimes: candidates, rounds of measurements, verdict."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantkit.arguments import (
    parse_duration,
    parse_percentage,
    public,
    require_callable,
    require_flag,
    require_natural,
    require_path,
    require_positive,
    without_none,
)
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.regression import compare_with_saved, read_baseline, read_saved, workload_candidate
from quantkit.benchmark.results.report import Benchmark
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.rounds import Compare, SamplingOptions, measure, speedups_over_first
from quantkit.benchmark.sampling.selection import find_saved, select_candidates
from quantkit.benchmark.verdict import explain_speedup
from quantkit.errors import UsageError
from quantkit.facts import RANDOM_WEIGHTS_NOTE
from quantkit.formats.temporary import temporary_folder
from quantkit.progress import OnProgress, ignore_progress
from quantkit.runtimes import AUTO


@public
def benchmark(
    models: Any,
    runtime: str = AUTO,
    *,
    intra_op: int | None = None,
    inter_op: int | None = None,
    device: str = "cpu",
    precision: str | Iterable[str] = "float32",
    cpus: Iterable[int] = (),
    environment: Mapping[str, str] | None = None,
    isa: str | None = None,
    streams: int | None = None,
    spinning: bool | None = None,
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    data: Any = None,
    end_to_end: bool = False,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    signature: str | None = None,
    tags: Iterable[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    runs: int | None = None,
    warmup: int | None = None,
    processes: int | None = None,
    interval_width: float | str | None = None,
    seed: int = 0,
    time_budget: float | str = 600.0,
    log_placement: bool = False,
    random_weights: bool = False,
    offline: bool = False,
    workload: bool = False,
    baseline: str | os.PathLike[str] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Benchmark:
    """Measure the latency of models side by side, each in several processes of its own.

    Args:
        models: list of models: each a `Model`, a `Graph`, a path or the name of a model card; a path or name may end
            with ``@RUNTIME``. A single model is a list of one. The file of `Benchmark.save` in place of the models is
            read instead of measured; only ``baseline`` applies to it.
        runtime: runtime for models without ``@RUNTIME``; ``auto``: the one of the highest priority that can run the
            model here.
        intra_op: threads inside one op (default: the default of the runtime).
        inter_op: ops that run in parallel (default: the default of the runtime).
        device: ``cpu``, ``gpu`` or ``gpu:N``.
        precision: arithmetic that runtimes may use, one of `PRECISIONS`; several give each model one row per precision.
        cpus: hardware threads of the processes (default: all).
        environment: variables (``KMP_AFFINITY``, ``OMP_NUM_THREADS`` ...), set before a runtime is loaded.
        isa: limit of the instructions of OpenVINO and TensorFlow (oneDNN): ``avx2`` or ``avx512``.
        streams: measure the throughput, with this number of calls at the same time (default: the latency of one call at
            a time).
        spinning: idle threads spin, in ONNX Runtime (default: the default of the runtime).
        batch: batch size for models with a dynamic batch (default: 1).
        input_shapes: sizes of inputs with dynamic dimensions, by input name: ``{"x": (1, 3, 640, 640)}``.
        data: dataset whose first samples are the inputs (default: random inputs).
        end_to_end: measure calls that also read and decode an image of ``data``, resize and normalize it, and find the
            highest scores; the report has the time of each part.
        inputs, outputs: names of the inputs and outputs (default: those of the file or its model card).
        signature, tags, checkpoint: see `quantkit.load`.
        runs: samples of each model; a sample is a call, or the mean of several calls below a millisecond (default:
            6 to 200 in each process).
        warmup: warm-up calls (default: until latency is stable).
        processes: processes of each model, opened in rotated order (default: 3, 5, 10 or 20, until the comparison is
            clear; with ``runs``, 3 to 5).
        interval_width: stop as soon as each interval is narrower than this, as a fraction or a text such as ``2%``,
            after 5, 10, 20 or 40 processes: the intervals of the speed-ups, or of the median of a single model.
        seed: seed of the data, of the order in each round, and of the intervals.
        time_budget: total time limit in seconds, or a text such as ``2m``; finished rounds are kept.
        log_placement: record the device of each op.
        random_weights: build the architectures of model cards with random weights instead of downloading the models.
        offline: never download; fail if a model is not cached.
        workload: measure a fixed matrix product in the same rounds, so that the saved result is a baseline for later
            benchmarks.
        baseline: file of `Benchmark.save`: compare with this benchmark of the same machine.
        on_progress: receives the progress of downloads and measurements.

    Returns:
        One row per model and precision: a measurement, or the reason of its failure.

    Raises:
        UsageError: there is no such runtime, model card or CPU, a number is out of range, or the baseline is from
            another machine or another version of a runtime.
        InputError: a model file or the baseline is missing or broken, or a download failed.
        NotMeasuredError: no model could be measured; its `benchmark` has the reason of each failure.
        BenchmarkInterrupted: Ctrl-C, with the finished rounds.
    """
    require_positive(**without_none(runs=runs, processes=processes))
    width = None if interval_width is None else parse_percentage(interval_width, "interval_width")
    if width is not None and (runs or processes):
        hint = "omit runs and processes (--runs, --processes)"
        raise UsageError("interval_width sets the number of processes and samples", hint=hint)
    require_natural(**without_none(warmup=warmup))
    require_natural(seed=seed)
    require_callable(on_progress=on_progress)
    require_flag(workload=workload)
    require_path(**without_none(baseline=baseline))
    file = find_saved(models)
    result = None if file is None else read_saved(file)
    machine = this_machine() if result is None else result.measurements[0].context.machine
    saved = None if baseline is None else read_baseline(baseline, machine)
    budget = parse_duration(time_budget, "time_budget")
    sampling = SamplingOptions(runs, warmup, processes, width, seed=seed, time_budget=budget)
    if result is not None:
        return _with_comparison(result, baseline, saved)
    with temporary_folder() as folder:
        candidates = select_candidates(
            models,
            folder,
            on_progress,
            runtime=runtime,
            intra_op=intra_op,
            inter_op=inter_op,
            device=device,
            precision=precision,
            cpus=cpus,
            environment=environment,
            isa=isa,
            streams=streams,
            spinning=spinning,
            batch=batch,
            input_shapes=input_shapes,
            data=data,
            end_to_end=end_to_end,
            inputs=inputs,
            outputs=outputs,
            signature=signature,
            tags=tags,
            checkpoint=checkpoint,
            seed=seed,
            log_placement=log_placement,
            random_weights=random_weights,
            offline=offline,
        )
        has_workload = workload or (saved is not None and saved.workload is not None)
        product = workload_candidate(folder, candidates[0].settings.cpus) if has_workload else None
        compare = speedups_over_first if baseline is None or saved is None else _compare_with(baseline, saved)
        result = measure(candidates, sampling, on_progress, product, compare)
        result = replace(result, reasons=explain_speedup(result, candidates, on_progress))
    if random_weights:
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
