"""Latency of a quantized file and of the float model, in each runtime of the target that is installed."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from quantkit.benchmark import Benchmark
from quantkit.benchmark.profiling import profile_candidates
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.report import BenchmarkRow
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure
from quantkit.errors import UnavailableError
from quantkit.facts import join_names
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Shape
from quantkit.progress import OnProgress
from quantkit.quantization.report import Latency
from quantkit.quantization.report.census import FLOAT, INT8
from quantkit.quantization.targets.base import names_endpoints
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.costly_kernels import predict_speedup
from quantkit.quantization.workflow.float_files import ConvertedFiles, float_candidates
from quantkit.runtimes import find_runtime

# Time limit of the measurement of both models in seconds.
TIME_BUDGET = 300.0
# Time in seconds of the whole call after which no further process starts, and least time limit of the processes after
# the first three. A limit of time does not depend on the difference, so that the intervals keep their coverage.
CALL_SECONDS, FURTHER_BUDGET = 20.0, 10.0
# Duration of the samples in each process, and of the longest warm-up: the spread between processes is larger than that
# between the calls of one process, so that more processes are worth more than more calls.
PROCESS_SECONDS, WARMUP_SECONDS = 0.2, 1.0
# Warm-up calls for a fixed number of runs.
WARMUP_RUNS = 2


def measure_latency(
    conversion: Conversion,
    file: Path,
    runs: int | None,
    folder: Path,
    on_progress: OnProgress,
    samples: Mapping[str, tuple[int, ...]],
    elapsed: float,
) -> Latency:
    """Measure the quantized file in each runtime of its target, and the float model in these and its fastest runtime.

    Args:
        conversion: with the float graph.
        file: quantized model.
        runs: samples of each model; 0 for no measurement, None until the comparison is clear.
        folder: for the float model's file.
        on_progress: receives the progress.
        samples: shape of each input in a sample, for inputs with dynamic sizes.
        elapsed: seconds since the start of the call.
    """
    if runs == 0:
        return Latency(skipped="--runs is 0", predicted=predict_speedup(conversion, samples))
    warmup = None if runs is None else WARMUP_RUNS
    floats, quantized = find_candidates(conversion, file, folder, samples)
    converted = ConvertedFiles(conversion.graph, folder, conversion.runtimes)
    candidates = [*map(converted.replace, floats), *quantized]

    def select(result: Benchmark) -> list[BenchmarkRow]:
        """Return the rows that the report states, and after that those of the speed-ups that are not clear yet."""
        latency = Latency(result)
        if result.stop is not None and result.stop.processes > 1:
            return _unclear_rows(latency)
        fastest = latency.fastest(FLOAT)
        names = {*conversion.runtimes, "" if fastest is None else fastest.context.runtime}
        return [row for row in result.rows if row.label == INT8 or row.runtime in names]

    options = SamplingOptions(
        runs,
        warmup,
        time_budget=TIME_BUDGET,
        further_budget=max(CALL_SECONDS - elapsed, FURTHER_BUDGET),
        process_seconds=PROCESS_SECONDS,
        warmup_seconds=WARMUP_SECONDS,
        overlap_first_calls=True,
    )
    titles = join_names(dict.fromkeys(find_runtime(each.settings.runtime).title for each in candidates))
    # The float model's runtimes are not compared with each other: two of about equal latency would never be clear.
    benchmark = measure(
        candidates,
        options,
        on_progress,
        compare=_compare,
        select=select,
        stage=f"measuring the latency of float and int8 in {titles}",
    )
    if not benchmark.measurements:
        return Latency(skipped=benchmark.failures[0].reason, predicted=predict_speedup(conversion, samples))
    latency = Latency(benchmark)
    fastest = latency.fastest(INT8)
    if fastest is None or latency.overall is None or latency.overall.outcome in ("faster", "undecided"):
        return latency
    pair = [_find([*floats, *quantized], each) for each in (latency.fastest(FLOAT), fastest) if each is not None]
    with suppress(UnavailableError):
        return replace(latency, profile=profile_candidates(pair, on_progress=on_progress))
    return latency


def find_candidates(
    conversion: Conversion, file: Path, folder: Path, samples: Mapping[str, tuple[int, ...]]
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the float model in each installed runtime, and a quantized file in each runtime of the conversion.

    Args:
        conversion: with the float graph.
        file: quantized model.
        folder: for the float model's file.
        samples: shape of each input in a sample, for inputs with dynamic sizes.
    """
    shapes = dynamic_shapes(conversion.graph, samples)
    pair = float_candidates(conversion.graph, folder, conversion.runtimes), _int8_candidates(conversion, file)
    floats, quantized = ([_with_shapes(each, shapes) for each in candidates] for candidates in pair)
    return floats, quantized


def dynamic_shapes(graph: Graph, samples: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a sample for the inputs with unknown sizes other than the batch."""
    shapes = {str(edge): graph[edge.node].attrs.get("shape") for edge in graph.inputs}
    return {
        name: samples[name]
        for name, shape in shapes.items()
        if name in samples and not (isinstance(shape, Shape) and shape.dims is not None and None not in shape.dims[1:])
    }


def _with_shapes(candidate: Candidate, shapes: Mapping[str, tuple[int, ...]]) -> Candidate:
    return replace(candidate, settings=replace(candidate.settings, input_shapes=shapes)) if shapes else candidate


def _compare(result: Benchmark) -> tuple[Speedup, ...]:
    """Return the speed-ups that more processes shall make clear: all, or that of the fastest runtimes once it is clear.

    In another runtime, float and int8 may be about equal, which no number of processes would show.
    """
    latency = Latency(result)
    overall = latency.overall
    return (overall,) if overall is not None and overall.is_clear else latency.speedups


def _unclear_rows(latency: Latency) -> list[BenchmarkRow]:
    """Return the rows of the speed-ups whose outcome further processes may change."""
    names = {each.runtime.name for each in latency.runtimes if not each.speedup.is_clear}
    fastest: list[Measurement | None] = []
    if latency.overall is not None and not latency.overall.is_clear:
        fastest = [latency.fastest(FLOAT), latency.fastest(INT8)]
    rows = () if latency.benchmark is None else latency.benchmark.rows
    return [row for row in rows if row.runtime in names or any(row.measurement is each for each in fastest)]


def _find(candidates: list[Candidate], measurement: Measurement) -> Candidate:
    """Return the candidate of a measurement."""
    key = (measurement.context.model, measurement.context.runtime)
    return next(each for each in candidates if (each.label, each.settings.runtime) == key)


def _int8_candidates(conversion: Conversion, file: Path) -> list[Candidate]:
    graph, settings = conversion.graph, Settings(options=conversion.session_options)
    if not names_endpoints(conversion.target):
        inputs, outputs = tuple(map(str, graph.inputs)), tuple(map(str, graph.outputs))
        settings = replace(settings, inputs=inputs, outputs=outputs)
    return [Candidate(INT8, file, replace(settings, runtime=name)) for name in conversion.runtimes]
