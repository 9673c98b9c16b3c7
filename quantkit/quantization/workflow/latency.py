"""Latency of a quantized file compared with that of the float model, each in a process of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from quantkit import formats
from quantkit.benchmark.candidate import Candidate, Settings
from quantkit.benchmark.report import Benchmark
from quantkit.benchmark.rounds import SamplingOptions, open_candidates
from quantkit.benchmark.speedup import Speedup
from quantkit.quantization.census import FLOAT, INT8
from quantkit.quantization.report import Latency
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.runtimes.session import RuntimeVersion

WARMUP_RUNS = 2
ROUNDS = 10


@contextmanager
def open_race(
    conversion: Conversion, file: Path, num_runs: int, folder: Path
) -> Iterator[Callable[[], Benchmark] | None]:
    """Start one process per model, which opens it in the background; yield the function that measures both.

    Args:
        conversion: with the float graph.
        file: quantized model.
        num_runs: timed runs of each; 0 yields None.
        folder: for the float model's file.
    """
    if not num_runs:
        yield None
        return
    source = folder / "float.pb"
    formats.save(conversion.graph, source)
    candidates = _candidates(conversion, source, file)
    with open_candidates(candidates, SamplingOptions(num_runs, WARMUP_RUNS, rounds=min(num_runs, ROUNDS))) as measure:
        yield measure


def _candidates(conversion: Conversion, source: Path, file: Path) -> tuple[Candidate, Candidate]:
    graph, runtime = conversion.graph, conversion.runtimes[0]
    inputs, outputs = tuple(map(str, graph.inputs)), tuple(map(str, graph.outputs))
    before = Settings(runtime, inputs=inputs, outputs=outputs)
    after = Settings(runtime, conversion.session_options)
    if not conversion.target.keeps_endpoints:
        after = replace(after, inputs=inputs, outputs=outputs)
    return Candidate(FLOAT, source, before), Candidate(INT8, file, after)


def measure_latency(measure: Callable[[], Benchmark] | None) -> Latency:
    """Return the speed-up over the float model in the same runtime, or the reason that it is not known."""
    if measure is None:
        return Latency(skipped="--runs is 0")
    benchmark = measure()
    if benchmark.failures:
        return Latency(skipped=benchmark.failures[0].reason)
    speedup = benchmark.speedups[1]
    if not isinstance(speedup, Speedup):
        return Latency(skipped=speedup.message if speedup else "there is no float measurement")
    before, after = (measurement.summary.median * 1e3 for measurement in benchmark.measurements)
    context = benchmark.measurements[1].context
    return Latency(speedup, (before, after), RuntimeVersion(context.runtime, context.version))
