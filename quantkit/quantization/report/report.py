"""Verdict on a quantized model, as data: precision, size, accuracy and latency compared with the float model."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from quantkit.benchmark import Benchmark
from quantkit.benchmark.profiling import Profile
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import Failure, format_latency
from quantkit.benchmark.results.speedup import Speedup
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import CheckError
from quantkit.evaluation.classification_metrics import ClassificationMetrics, Proportion
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.formats.sizes import format_size
from quantkit.quantization.fallback import Fallback
from quantkit.quantization.finetuning.report import FineTuning
from quantkit.quantization.portability import Portability
from quantkit.quantization.precision.decision import Decision
from quantkit.quantization.ranges import UNKNOWN, Provenance
from quantkit.quantization.report.census import FLOAT, INT8, Census
from quantkit.quantization.report.text import KEEP_FLOAT, report_html, report_lines
from quantkit.quantization.scheme import Scheme
from quantkit.runtimes.session import RuntimeVersion


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
    """

    metrics: ClassificationMetrics | OutputSqnr | None = None
    runtime: RuntimeVersion | None = None
    samples: str = ""
    float_top1: Proportion | None = None
    failures: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    int8_nodes: frozenset[str] | None = field(default=None, repr=False)

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
        profile: time of the layers of the float model and of the quantized model, each in its fastest runtime; None if
            the quantized model is faster, or if a runtime does not measure ops.
    """

    benchmark: Benchmark | None = None
    skipped: str = ""
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
        """Model to use on this machine, with the latencies; empty without a measurement of both models."""
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


@dataclass(frozen=True)
class NextStep:
    """Recommended next command with its reason.

    Attributes:
        reason: one sentence.
        command: next command.
        causes: reasons why the quantized model is not faster, ranked by measured time.
    """

    reason: str
    command: str
    causes: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class QuantizationReport:
    """Verdict on a quantized model.

    Attributes:
        model: name of the float model.
        output: file of the quantized model; None if it is only in memory.
        scheme: requested quantization.
        provenance: origin of the ranges.
        warnings: calibration warnings: NaN, a constant tensor, a channel that dominates the others.
        num_weights: number of quantized weight constants.
        census: ops by precision, float fallbacks and quantize/dequantize boundaries.
        num_bytes: size of the quantized model's file.
        float_num_bytes: size of the float model's file; of its weights for Keras files and models in memory.
        threads: recommended thread settings.
        accuracy, latency: measurements.
        fallback: result of the accuracy search; None without ``max_drop``.
        fallback_precision: precision of the layers that the search excludes.
        max_drop: requested limit of the drop.
        next_step: recommendation; None before the measurements.
        preprocessing: preprocessing of the calibration images, `ARRAYS_UNCHANGED`, or `UNKNOWN`.
        fine_tuning: course and effect of ``finetune``; None without it.
        decisions: precision of each layer and each other node, in execution order.
        failed_trials: errors of alternatives that could not be measured.
        portability: certificate for processors without VNNI; None for formats whose kernels add in 32 bits.
    """

    model: str
    output: Path | None
    scheme: Scheme
    provenance: Provenance
    warnings: tuple[str, ...]
    num_weights: int
    census: Census
    num_bytes: int
    float_num_bytes: int
    threads: str
    accuracy: AccuracyReport = AccuracyReport()
    latency: Latency = Latency()
    fallback: Fallback | None = None
    fallback_precision: str = FLOAT
    max_drop: float | None = None
    next_step: NextStep | None = None
    preprocessing: Preprocessing | str = UNKNOWN
    fine_tuning: FineTuning | None = None
    portability: Portability | None = None
    decisions: tuple[Decision, ...] = ()
    failed_trials: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        return self.scheme.target

    @property
    def runtime(self) -> RuntimeVersion | None:
        """Runtime of the quantized model, the fastest one; None if it was not run."""
        first = self.latency.first
        return self.accuracy.runtime if first is None else first.runtime

    @property
    def is_float(self) -> bool:
        """True if all layers stay float."""
        return not (self.census.num_patterns or self.scheme.weights_only)

    @property
    def preprocessing_text(self) -> str:
        """Preprocessing of the calibration samples as text."""
        preprocessing = self.preprocessing
        return preprocessing if isinstance(preprocessing, str) else preprocessing.description

    def __repr__(self) -> str:
        return f"QuantizationReport({self.model!r}, target={self.target!r}, {format_size(self.num_bytes)})"

    def __str__(self) -> str:
        return "\n".join(report_lines(self))

    def _repr_html_(self) -> str:
        return report_html(self)

    def require_max_drop(self) -> None:
        """Check that the accuracy search reached ``max_drop``.

        Raises:
            CheckError: the drop is larger.
        """
        if self.fallback is not None and self.max_drop is not None and not self.fallback.is_reached:
            raise CheckError(
                f"the drop is {self.fallback.loss.drop:.4f}, more than --max-drop {self.max_drop:g}",
                hint="increase --time-budget, or list more layers in keep_float of a --scheme file",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        accuracy, latency = self.accuracy, self.latency
        prediction = None if self.fallback is None else self.fallback.prediction
        quality, sqnr, samples = accuracy.quality, accuracy.sqnr, {"on": accuracy.samples}
        return {
            "schema": "quantkit.quantize/2",
            "model": self.model,
            "output": None if self.output is None else str(self.output),
            "target": self.target,
            "scheme": self.scheme.to_json(),
            "calibration": {
                "samples": self.provenance.count,
                "data": self.provenance.data,
                "trained_ranges": self.provenance.trained,
                "warnings": list(self.warnings),
            },
            "preprocessing": self.preprocessing
            if isinstance(self.preprocessing, str)
            else self.preprocessing.to_json(),
            **self.census.to_json(),
            "decisions": [decision.to_json() for decision in self.decisions],
            "error_model": None if prediction is None else prediction.to_json(),
            "weights": self.num_weights,
            "portability": None if self.portability is None else self.portability.to_json(),
            "num_bytes": self.num_bytes,
            "float_num_bytes": self.float_num_bytes,
            "runtime": None if self.runtime is None else {"name": self.runtime.name, "version": self.runtime.version},
            "quality": None if quality is None else {**samples, **quality.to_json()},
            "sqnr": None if sqnr is None else {**samples, **sqnr.to_json()},
            "float_top1": None if accuracy.float_top1 is None else accuracy.float_top1.to_json(),
            "failed_runtimes": list(accuracy.failures),
            "failed_trials": list(self.failed_trials),
            "doubts": list(accuracy.doubts),
            **latency.to_json(),
            "threads": self.threads,
            "fine_tuning": None if self.fine_tuning is None else self.fine_tuning.to_json(),
            "fallback": None
            if self.fallback is None
            else {**self.fallback.to_json(), "precision": self.fallback_precision},
            "reason": None if self.next_step is None else self.next_step.reason,
            "causes": [] if self.next_step is None else [cause.to_json() for cause in self.next_step.causes],
            "next_command": None if self.next_step is None else self.next_step.command,
        }
