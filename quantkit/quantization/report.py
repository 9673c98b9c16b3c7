"""Verdict on a quantized model, as data: precision, size, accuracy and latency compared with the float model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.benchmark.speedup import Speedup
from quantkit.errors import CheckError
from quantkit.evaluation.classification_metrics import ClassificationMetrics, Proportion
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.formats.sizes import format_size
from quantkit.quantization.census import FLOAT, Census
from quantkit.quantization.fallback import Fallback
from quantkit.quantization.ranges import Provenance
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
    """

    metrics: ClassificationMetrics | OutputSqnr | None = None
    runtime: RuntimeVersion | None = None
    samples: str = ""
    float_top1: Proportion | None = None
    failures: tuple[str, ...] = ()

    @property
    def quality(self) -> ClassificationMetrics | None:
        """Class metrics; None for other outputs."""
        return self.metrics if isinstance(self.metrics, ClassificationMetrics) else None

    @property
    def sqnr(self) -> OutputSqnr | None:
        """SQNR of other outputs; None for class scores."""
        return self.metrics if isinstance(self.metrics, OutputSqnr) else None


@dataclass(frozen=True)
class Latency:
    """Latency of a quantized model compared with the float model's.

    Attributes:
        speedup: speed-up with its interval; None if it was not measured.
        milliseconds: median latency of the float model and of the quantized model.
        runtime: runtime of both.
        skipped: the reason for no measurement.
    """

    speedup: Speedup | None = None
    milliseconds: tuple[float, float] | None = None
    runtime: RuntimeVersion | None = None
    skipped: str = ""


@dataclass(frozen=True)
class NextStep:
    """Recommended next command with its reason."""

    reason: str
    command: str


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
        float_num_bytes: size of the float model's constants.
        threads: recommended thread settings.
        accuracy, latency: measurements.
        fallback: result of the accuracy search; None without ``max_drop``.
        fallback_precision: precision of the layers that the search excludes.
        max_drop: requested limit of the drop.
        next_step: recommendation; None if the model is faster and accurate.
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

    @property
    def target(self) -> str:
        return self.scheme.target

    @property
    def runtime(self) -> RuntimeVersion | None:
        """Runtime of the quantized model; None if it was not run."""
        return self.latency.runtime or self.accuracy.runtime

    def __repr__(self) -> str:
        return f"QuantizationReport({self.model!r}, target={self.target!r}, {format_size(self.num_bytes)})"

    def __str__(self) -> str:
        from quantkit.quantization.report_text import report_lines

        return "\n".join(report_lines(self))

    def _repr_html_(self) -> str:
        from quantkit.quantization.report_text import report_html

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
        quality, sqnr, samples = accuracy.quality, accuracy.sqnr, {"on": accuracy.samples}
        return {
            "model": self.model,
            "output": None if self.output is None else str(self.output),
            "target": self.target,
            "scheme": self.scheme.to_json(),
            "calibration": {
                "samples": self.provenance.count,
                "data": self.provenance.data,
                "warnings": list(self.warnings),
            },
            **self.census.to_json(),
            "weights": self.num_weights,
            "num_bytes": self.num_bytes,
            "float_num_bytes": self.float_num_bytes,
            "runtime": None if self.runtime is None else {"name": self.runtime.name, "version": self.runtime.version},
            "quality": None if quality is None else {**samples, **quality.to_json()},
            "sqnr": None if sqnr is None else {**samples, **sqnr.to_json()},
            "float_top1": None if accuracy.float_top1 is None else accuracy.float_top1.to_json(),
            "failed_runtimes": list(accuracy.failures),
            "speed_up": None if latency.speedup is None else latency.speedup.to_json(),
            "milliseconds": None if latency.milliseconds is None else list(latency.milliseconds),
            "not_measured": latency.skipped or None,
            "threads": self.threads,
            "fallback": None
            if self.fallback is None
            else {**self.fallback.to_json(), "precision": self.fallback_precision},
            "reason": None if self.next_step is None else self.next_step.reason,
            "next_command": None if self.next_step is None else self.next_step.command,
        }
