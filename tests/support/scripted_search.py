"""Searches of `optimize` with scripted latencies and drops."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measurements import make_measurement

from quantkit.benchmark.results.report import Benchmark, BenchmarkRow, Failure
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.data import Dataset
from quantkit.model import Model
from quantkit.optimize import search, verb
from quantkit.optimize.drop import Drop
from quantkit.progress import OnProgress, Progress
from quantkit.quantization.ranges import graph_digest
from quantkit.quantization.workflow import QuantizationResult, quantize

Milliseconds = Callable[[Candidate], float]
_RESULTS: dict[object, QuantizationResult] = {}


def quantize_once(
    model: Model,
    calibration: Dataset,
    *,
    on_progress: OnProgress,
    output: Path | None = None,
    time_budget: float = 600.0,
    **options: Any,
) -> QuantizationResult:
    """Return the result of `quantize`, which the tests of a file share for equal arguments."""
    on_progress(Progress("quantizing", 0))  # the time budget may be exhausted
    digests = graph_digest(model.graph), verb._digest_samples(model, calibration)
    key = (model.name, *digests, repr(sorted(options.items())))
    if key not in _RESULTS:
        _RESULTS[key] = quantize(model, calibration, on_progress=on_progress, time_budget=time_budget, **options)
    if output is not None:
        _RESULTS[key].save(output)
    return _RESULTS[key]


def script(
    monkeypatch: pytest.MonkeyPatch, milliseconds: Milliseconds, drop: float = 0.001, *, is_shared: bool = True
) -> list[str]:
    """Give each candidate a latency and int8 files a drop; return the names of the checked candidates.

    Args:
        monkeypatch: changes the search of the test.
        milliseconds: latency of a candidate.
        drop: drop of int8 files.
        is_shared: True if equal quantizations of several tests share their result.
    """
    checked: list[str] = []

    def measure(candidates: Sequence[Candidate], *_: Any, **__: Any) -> Benchmark:
        rows = []
        for candidate in candidates:
            runtime, seconds = candidate.settings.runtime, milliseconds(candidate) / 1e3
            outcome: Any = Failure("it is broken")
            if seconds < np.inf:
                samples = [seconds * (1 + 0.001 * (index % 3)) for index in range(20)]
                outcome = make_measurement(samples, 10, 5, model=candidate.label, runtime=runtime, started="now")
            rows.append(BenchmarkRow(candidate.label, runtime, outcome))
        return Benchmark(tuple(rows))

    def measure_drop(self: search.FileSearch, candidate: Candidate, alpha: float) -> Drop:
        if candidate.label.startswith("float32") and "bfloat16" not in candidate.label:
            return Drop("agreement", 0.0, 1e-6, 100)
        checked.append(search.name_of(candidate))
        return Drop("agreement", drop, 2 * drop, 100)

    if is_shared:
        monkeypatch.setattr(search, "quantize", quantize_once)
    monkeypatch.setattr(search, "measure", measure)
    monkeypatch.setattr(search, "find_settings", lambda *_: ())
    monkeypatch.setattr(search, "find_faster_alternatives", lambda *_: ())
    monkeypatch.setattr(search.FileSearch, "_measure_drop", measure_drop)
    return checked


def int8_is_fast(candidate: Candidate) -> float:
    base = 2.0 if candidate.settings.runtime == "onnxruntime" else 1.0
    is_int8, is_bfloat16 = "int8" in candidate.label, "bfloat16" in candidate.label
    return base * (0.5 if is_int8 else 1.0) * (1.5 if is_bfloat16 else 1.0)
