"""Reasons why an int8 model of a benchmark is not faster than the float model."""

from contextlib import suppress
from dataclasses import replace

from quantkit.benchmark.profiling import profile_candidates
from quantkit.benchmark.profiling.candidates import read_graph
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.errors import QuantkitError
from quantkit.ops.semantics import is_quantized
from quantkit.progress import OnProgress


def explain_speedup(result: Benchmark, candidates: list[Candidate], on_progress: OnProgress) -> tuple[Reason, ...]:
    """Return the reasons for the first int8 model that is not faster than the float baseline; empty without one.

    Args:
        result: the benchmark.
        candidates: candidates of its rows.
        on_progress: receives the progress of the profile.
    """
    rows = list(zip(result.rows, candidates, result.speedups, strict=True))
    baseline = next((_with_runtime(candidate, row) for row, candidate, _ in rows if row is result.baseline), None)
    if baseline is None:
        return ()
    with suppress(QuantkitError):
        for row, candidate, speedup in rows:
            is_slow = isinstance(speedup, Speedup) and speedup.outcome in ("slower", "same")
            if is_slow and _is_int8(candidate) and not _is_int8(baseline):
                pair = [baseline, _with_runtime(candidate, row)]
                return profile_candidates(pair, on_progress=on_progress).reasons
    return ()


def _is_int8(candidate: Candidate) -> bool:
    return is_quantized(read_graph(candidate))


def _with_runtime(candidate: Candidate, row: BenchmarkRow) -> Candidate:
    return replace(candidate, settings=replace(candidate.settings, runtime=row.runtime))
