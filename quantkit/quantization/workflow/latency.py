"""Latency of a quantized file and of the float model, in each runtime of the target that is installed."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from quantkit import formats
from quantkit.benchmark import Benchmark
from quantkit.benchmark.profiling import profile_candidates
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.report import BenchmarkRow
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure
from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.progress import OnProgress
from quantkit.quantization.report import Latency
from quantkit.quantization.report.census import FLOAT, INT8
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.runtimes import REFERENCE, runtimes

# Time limit of the measurement of both models in seconds, and the one after the first processes of each.
TIME_BUDGET, FURTHER_BUDGET = 300.0, 60.0
# Warm-up calls for a fixed number of runs.
WARMUP_RUNS = 2


def measure_latency(
    conversion: Conversion, file: Path, runs: int | None, folder: Path, on_progress: OnProgress
) -> Latency:
    """Measure the quantized file in each runtime of its target, and the float model in these and its fastest runtime.

    Args:
        conversion: with the float graph.
        file: quantized model.
        runs: samples of each model; 0 for no measurement, None until the comparison is clear.
        folder: for the float model's file.
        on_progress: receives the progress.
    """
    if runs == 0:
        return Latency(skipped="--runs is 0")
    floats = _float_candidates(conversion, folder)
    warmup = None if runs is None else WARMUP_RUNS
    candidates = [*floats.values(), *_int8_candidates(conversion, file)]

    def select(result: Benchmark) -> list[BenchmarkRow]:
        """Return the rows of the target's runtimes and of the float model's fastest one, which the report states."""
        fastest = Latency(result).fastest(FLOAT)
        names = {*conversion.runtimes, "" if fastest is None else fastest.context.runtime}
        return [row for row in result.rows if row.label == INT8 or row.runtime in names]

    options = SamplingOptions(runs, warmup, time_budget=TIME_BUDGET, further_budget=FURTHER_BUDGET)
    # The float model's runtimes are not compared with each other: two of about equal latency would never be clear.
    benchmark = measure(
        candidates, options, on_progress, compare=lambda result: Latency(result).speedups, select=select
    )
    if not benchmark.measurements:
        return Latency(skipped=benchmark.failures[0].reason)
    latency = Latency(benchmark)
    fastest = latency.fastest(INT8)
    if fastest is None or latency.overall is None or latency.overall.outcome in ("faster", "undecided"):
        return latency
    fastest_pair = [_find(candidates, each) for each in (latency.fastest(FLOAT), fastest) if each is not None]
    with suppress(UnavailableError):
        return replace(latency, profile=profile_candidates(fastest_pair, on_progress=on_progress))
    return latency


def _find(candidates: list[Candidate], measurement: Measurement) -> Candidate:
    """Return the candidate of a measurement."""
    key = (measurement.context.model, measurement.context.runtime)
    return next(each for each in candidates if (each.label, each.settings.runtime) == key)


def _float_candidates(conversion: Conversion, folder: Path) -> dict[str, Candidate]:
    """Return the float model in each installed runtime that opens it."""
    graph = conversion.graph
    path, settings = folder / "float.onnx", Settings()
    if graph.dialect != onnx.DIALECT:
        path = folder / "float.pb"
        settings = Settings(inputs=tuple(map(str, graph.inputs)), outputs=tuple(map(str, graph.outputs)))
    formats.save(graph, path)
    names = [name for name, runtime in runtimes().items() if runtime.opens(graph) and runtime.available().ok]
    # The reference runtime is never the fastest.
    names = [name for name in names if name != REFERENCE or name in conversion.runtimes]
    return {name: Candidate(FLOAT, path, replace(settings, runtime=name)) for name in names}


def _int8_candidates(conversion: Conversion, file: Path) -> list[Candidate]:
    graph, settings = conversion.graph, Settings(options=conversion.session_options)
    if not conversion.target.keeps_endpoints:
        inputs, outputs = tuple(map(str, graph.inputs)), tuple(map(str, graph.outputs))
        settings = replace(settings, inputs=inputs, outputs=outputs)
    return [Candidate(INT8, file, replace(settings, runtime=name)) for name in conversion.runtimes]
