"""Measured accuracy and latency of a quantized model, compared with those of the float model."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from quantkit.benchmark import Benchmark
from quantkit.benchmark.profiling import Profile
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.report import Failure, format_latency
from quantkit.benchmark.results.speedup import Speedup
from quantkit.evaluation.classification_metrics import ClassificationMetrics, Proportion
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.quantization.precision import policy
from quantkit.quantization.report.census import FLOAT, INT8
from quantkit.runtimes.session import RuntimeVersion

# Verdict on int8 models that gain no time.
KEEP_FLOAT = "keep the float model"


@dataclass(frozen=True)
class AccuracyReport:
    """Distance of a quantized model's outputs from the float model's.

    Attributes:
        metrics: class metrics, or SQNR of other outputs; None without a measurement.
        runtime: runtime of the quantized model.
        samples: description of the samples.
        float_top1: top-1 accuracy of the float model; None without labels.
        failures: errors of the faster runtimes, which could not run the model.
        doubts: reasons why the metrics are meaningless, for example outputs that barely vary.
        int8_nodes: names in the file of the nodes that the runtime computes in int8; None if it does not show them.
        by_run: the same as ``metrics`` for each run of a trial; empty for other measurements.
    """

    metrics: ClassificationMetrics | OutputSqnr | None = None
    runtime: RuntimeVersion | None = None
    samples: str = ""
    float_top1: Proportion | None = None
    failures: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    int8_nodes: frozenset[str] | None = field(default=None, repr=False)
    by_run: tuple[ClassificationMetrics | OutputSqnr, ...] = field(default=(), repr=False)

    @property
    def quality(self) -> ClassificationMetrics | None:
        """Class metrics; None for other outputs."""
        return self.metrics if isinstance(self.metrics, ClassificationMetrics) else None

    @property
    def sqnr(self) -> OutputSqnr | None:
        """SQNR of other outputs; None for class scores."""
        return self.metrics if isinstance(self.metrics, OutputSqnr) else None


@dataclass(frozen=True)
class RuntimeLatency:
    """Latency of the float model and of the quantized model in one runtime.

    Attributes:
        runtime: runtime of both.
        speedup: speed-up of the quantized model.
        milliseconds: median latency of the float model and of the quantized model.
    """

    runtime: RuntimeVersion
    speedup: Speedup
    milliseconds: tuple[float, float]


@dataclass(frozen=True)
class Latency:
    """Latency of a quantized model compared with the float model's.

    Attributes:
        benchmark: rows with the labels `FLOAT` and `INT8`, one in each runtime; None without a measurement.
        skipped: the reason for no measurement.
        predicted: speed-up of the layers by the table of costs; None with a measurement or without a prediction.
        profile: time of the layers of the float model and of the quantized model, each in its fastest runtime; None if
            the quantized model is faster, or if a runtime does not measure ops.
    """

    benchmark: Benchmark | None = None
    skipped: str = ""
    predicted: float | None = None
    profile: Profile | None = None

    @cached_property
    def runtimes(self) -> tuple[RuntimeLatency, ...]:
        """Latencies in each runtime that runs both models."""
        if self.benchmark is None:
            return ()
        floats, quantized = self._measurements(FLOAT), self._measurements(INT8)
        return tuple(
            RuntimeLatency(
                RuntimeVersion(name, other.context.version),
                Speedup.of(floats[name], other),
                (floats[name].summary.median * 1e3, other.summary.median * 1e3),
            )
            for name, other in quantized.items()
            if name in floats
        )

    @cached_property
    def overall(self) -> Speedup | None:
        """Speed-up of the quantized model in its fastest runtime over the float model in its fastest runtime."""
        before, after = self.fastest(FLOAT), self.fastest(INT8)
        return None if before is None or after is None else Speedup.of(before, after)

    @property
    def speedups(self) -> tuple[Speedup, ...]:
        """Speed-ups that a report states: in each runtime, and overall."""
        overall = () if self.overall is None else (self.overall,)
        return (*(each.speedup for each in self.runtimes), *overall)

    @property
    def first(self) -> RuntimeLatency | None:
        """Latencies in the runtime with the fastest quantized model."""
        return min(self.runtimes, key=lambda each: each.milliseconds[1], default=None)

    @property
    def verdict(self) -> str:
        """Model to use on this machine, with the latencies.

        Without a measurement, it states a doubt if the table of costs predicts no speed-up, else it is empty. The
        table has no times of float ops, some of which get faster or slower next to int8 layers.
        """
        if self.predicted is not None and self.predicted < policy.MIN_PREDICTED_SPEEDUP:
            times = f"no speed-up is predicted ({self.predicted:.2f}x by the table of costs)"
            return f"{times}: {KEEP_FLOAT}, or measure both"
        before, after, speedup = self.fastest(FLOAT), self.fastest(INT8), self.overall
        if before is None or after is None or speedup is None:
            return ""
        texts = [f"{format_latency(each.summary.median)} ms in {each.context.runtime}" for each in (before, after)]
        if speedup.outcome == "faster":
            return f"int8 is {speedup.verdict}: {texts[1]}, float {texts[0]}"
        claim = "no speed-up is shown" if speedup.outcome == "undecided" else KEEP_FLOAT
        return f"{claim}: {texts[0]}, int8 {texts[1]}: {speedup.verdict}"

    def fastest(self, label: str) -> Measurement | None:
        """Return the measurement of the float or quantized model with the lowest latency."""
        measurements = self._measurements(label).values()
        return min(measurements, key=lambda measurement: measurement.summary.median, default=None)

    def _measurements(self, label: str) -> dict[str, Measurement]:
        """Return the measurements of a model by runtime."""
        measurements = () if self.benchmark is None else self.benchmark.measurements
        return {each.context.runtime: each for each in measurements if each.context.model == label}

    def to_json(self) -> dict[str, Any]:
        """Return speed-ups and latencies as JSON values, those of the fastest quantized model first."""
        first, rows = self.first, () if self.benchmark is None else self.benchmark.rows
        return {
            "speed_up": None if first is None else first.speedup.to_json(),
            "milliseconds": None if first is None else list(first.milliseconds),
            "speed_ups": {each.runtime.name: each.speedup.to_json() for each in self.runtimes},
            "overall_speed_up": None if self.overall is None else self.overall.to_json(),
            "predicted_speed_up": self.predicted,
            "latencies": [
                {
                    "model": row.label,
                    "runtime": row.runtime,
                    "milliseconds": None if row.measurement is None else row.measurement.summary.median * 1e3,
                    "failure": row.outcome.reason if isinstance(row.outcome, Failure) else None,
                }
                for row in rows
            ],
            "time_by_precision": None if self.profile is None else dict(self.profile.models[-1].fractions),
            "not_measured": self.skipped or None,
        }
