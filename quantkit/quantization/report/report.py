"""Verdict on a quantized model: its values and their text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import floor, log10
from pathlib import Path
from typing import Any

from quantkit.benchmark import Benchmark
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import Failure, format_latency
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import CheckError
from quantkit.facts import PlainReport, join_names
from quantkit.formats.sizes import format_size
from quantkit.quantization.fallback import Fallback
from quantkit.quantization.finetuning.report import FineTuning
from quantkit.quantization.portability import Portability
from quantkit.quantization.precision.decision import Decision
from quantkit.quantization.ranges import UNKNOWN, Provenance
from quantkit.quantization.report.census import FLOAT, INT8, Census
from quantkit.quantization.report.measurements import KEEP_FLOAT, AccuracyReport, Latency
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.advice import advise_gpu, describe_weights_only
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import RuntimeVersion

# Number of float fallbacks and of warnings that are listed.
LIST_LENGTH = 5


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
class QuantizationReport(PlainReport):
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
    accuracy: AccuracyReport = field(default_factory=AccuracyReport)
    latency: Latency = field(default_factory=Latency)
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

    def __repr__(self) -> str:
        return f"QuantizationReport({self.model!r}, target={self.target!r}, {format_size(self.num_bytes)})"

    def __str__(self) -> str:
        return "\n".join(_report_lines(self))

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


def _report_lines(report: QuantizationReport) -> Iterator[str]:
    """Yield the lines of the report."""
    if report.latency.verdict and not report.scheme.weights_only:
        yield report.latency.verdict
    yield _size_line(report)
    yield ""
    if report.scheme.weights_only:
        arithmetic = describe_weights_only(find_target(report.target))
        yield f"int8 weights: {report.num_weights} constants; {arithmetic}"
    else:
        yield from _precision_lines(report)
    yield from _fallback_lines(report)
    yield from _warning_lines(report)
    if report.fine_tuning is not None:
        yield from report.fine_tuning.lines()
    if report.fallback is not None:
        yield from _search_lines(report, report.fallback)
    if isinstance(report.preprocessing, Preprocessing):
        yield f"preprocessing: {report.preprocessing.description}"
    yield from _accuracy_lines(report)
    yield from _latency_lines(report)


def _size_line(report: QuantizationReport) -> str:
    before, after = report.float_num_bytes, report.num_bytes
    change = f"{before / after:.1f} times smaller" if after < before else f"{after / max(before, 1):.1f} times larger"
    name = report.output if report.output is not None else f"{report.model} ({report.target})"
    return f"{name}: {format_size(after)}, {change} than the float model ({format_size(before)})"


def _precision_lines(report: QuantizationReport) -> Iterator[str]:
    """Yield the table of nodes by op and precision, and the fraction of int8 MACs."""
    census = report.census
    width = max(map(len, (*census.table, "op")))
    yield f"{'op':<{width}}  {INT8:>6}  {FLOAT:>6}"
    for op, (num_quantized, num_float) in census.table.items():
        yield f"{op:<{width}}  {num_quantized or '':>6}  {num_float or '':>6}"
    yield ""
    count = census.boundaries
    boundaries = "boundary remains" if count == 1 else "boundaries remain"
    yield f"{_int8_text(census)}; {count} quantize/dequantize {boundaries}"
    if report.provenance.trained:
        calibration = "" if report.provenance.count else "; no calibration data was needed"
        yield f"{report.provenance.trained} ranges come from quantization-aware training{calibration}"
    if census.executed:
        macs = "known MACs" if census.unknown_macs else "MACs"
        yield f"{_executed_text(census)} of the {macs} after the rewrites of the runtime"
    if report.portability is not None:
        yield str(report.portability)
    if advice := advise_gpu(find_target(report.target)):
        yield advice


def _int8_text(census: Census) -> str:
    """Return the int8 fraction of the MACs; the number of int8 layers if MACs are unknown."""
    # Rounded down, so that 100 % means all.
    percent = "" if census.int8_fraction is None else f"{floor(1000 * census.int8_fraction) / 10:.1f} %"
    if percent and not census.unknown_macs:
        return f"{percent} of the MACs are int8"
    num_layers = census.num_patterns + census.num_float_layers
    layers = f"{census.num_patterns} of {num_layers} layers are int8" if num_layers else "no layer to quantize"
    fraction = f", {percent} of the known MACs" if census.int8_macs else ""
    unknown = ", ".join(f"{number} {op}" for op, number in census.unknown_macs.items())
    return f"{layers}{fraction} (MACs unknown for {unknown})" if unknown else layers


def _executed_text(census: Census) -> str:
    """Return the int8 fraction of the known MACs in each runtime, rounded down."""
    fractions = census.executed.items()
    return ", ".join(f"{find_runtime(name).title}: {floor(1000 * value) / 10:.1f} %" for name, value in fractions)


def _fallback_lines(report: QuantizationReport) -> Iterator[str]:
    fallbacks = report.census.float_fallbacks
    for node in fallbacks[:LIST_LENGTH]:
        cost = f", {_format_count(node.macs)} MACs" if node.macs else ""
        yield f"  float fallback: {node.name} ({node.op}{cost}): {node.reason}"
    if len(fallbacks) > LIST_LENGTH:
        yield f"  float fallback: {len(fallbacks) - LIST_LENGTH} more (--explain lists all)"


def _warning_lines(report: QuantizationReport) -> Iterator[str]:
    for warning in report.warnings[:LIST_LENGTH]:
        yield f"  warning: {warning}"
    if len(report.warnings) > LIST_LENGTH:
        yield f"  warning: {len(report.warnings) - LIST_LENGTH} more (--save-ranges lists all)"


def _search_lines(report: QuantizationReport, fallback: Fallback) -> Iterator[str]:
    """Yield the gain and the cost of each layer that the accuracy search keeps in float.

    A search with an error model does not measure the layers one by one: their gains are predicted errors.
    """
    yield f"drop {fallback.baseline.drop:.4f} with all layers in int8, {fallback.loss.drop:.4f} with the fallbacks"
    rows = [row for row in fallback.layers if row.is_float]
    if rows:
        costs = {node.name: node.macs for node in report.census.float_fallbacks}
        predicted = {} if fallback.prediction is None else fallback.prediction.gains
        head, gains = f"in {report.fallback_precision}", "predicted gain" if predicted else "drop gained   KL gained"
        width = max(len(head), *(len(row.layer) for row in rows))
        yield f"  {head:<{width}}  {gains}  {'MACs':>13}"
        for row in rows:
            gain, cost = row.contribution or row.gain, costs.get(row.layer)
            if predicted:
                numbers = f"{predicted[row.layer]:>14.4f}"
            else:
                numbers = f"{gain.drop:>11.4f}  {gain.kl_divergence:>10.4f}" if gain else " " * len(gains)
            yield f"  {row.layer:<{width}}  {numbers}  {'' if cost is None else _format_count(cost):>13}"
    if not fallback.is_complete:
        yield "  time budget exhausted: run the same command with a larger --time-budget to resume"


def _accuracy_lines(report: QuantizationReport) -> Iterator[str]:
    accuracy, quality = report.accuracy, report.accuracy.quality
    for doubt in accuracy.doubts:
        yield f"  warning: {doubt}"
    for failure in report.failed_trials:
        yield f"  warning: a trial failed: {failure.splitlines()[0]}"
    for failure in accuracy.failures:
        yield f"  warning: {failure.splitlines()[0]}"
    if accuracy.failures and accuracy.metrics is None:
        yield "agreement with the float model not measured: no runtime can run the quantized model"
    if quality is not None and quality.agreement is not None and quality.kl_divergence is not None:
        agreement = f"agreement with the float model {quality.agreement}"
        doubted = " (meaningless: see the warnings)" if accuracy.doubts else ""
        yield f"{agreement}, KL {quality.kl_divergence:.4f}, on {accuracy.samples}{doubted}"
        if quality.top1 is not None and accuracy.float_top1 is not None:
            yield f"top-1 {quality.top1}, float model {accuracy.float_top1}"
        for warning in quality.warnings if quality.label_shift else ():
            yield f"  warning: {warning}"
    elif accuracy.sqnr is not None:
        yield f"{accuracy.sqnr}, on {accuracy.samples}"
        for name, metrics in accuracy.sqnr.classes.items():
            yield f"top-1 of {name} {metrics.top1}, float model {accuracy.float_top1}"
    if accuracy.metrics is not None and accuracy.metrics.not_finite:
        yield f"  {accuracy.metrics.not_finite} outputs contain NaN or infinity: run quantkit compare to find the layer"


def _latency_lines(report: QuantizationReport) -> Iterator[str]:
    latency = report.latency
    for each in latency.runtimes:
        advice = f"; {KEEP_FLOAT} in this runtime" if each.speedup.outcome in ("slower", "same") else ""
        yield f"in {each.runtime}: {each.speedup.verdict}, {_format_latencies(*each.milliseconds)}{advice}"
    if latency.skipped:
        yield f"latency not measured: {latency.skipped}"
    if latency.benchmark is not None:
        for row in latency.benchmark.rows:
            if isinstance(row.outcome, Failure):
                yield f"  {row.label} in {row.runtime} not measured: {row.outcome.reason}"
        yield _comparison_line(latency.benchmark)
    yield f"threads: {report.threads}"
    if report.next_step is not None:
        yield report.next_step.reason
        yield from (f"  {cause}" for cause in report.next_step.causes)
        yield f"next: {report.next_step.command}"


def _comparison_line(benchmark: Benchmark) -> str:
    """Return the latencies of all rows in one line, and the rows that are not shown to be slower than the first."""
    rows = sorted(benchmark.measurements, key=lambda each: each.summary.median)
    names = [f"{each.context.model} in {each.context.runtime}" for each in rows]
    latencies = [f"{name} {format_latency(each.summary.median)} ms" for name, each in zip(names, rows, strict=True)]
    rivals = [f"{row.label} in {row.runtime}" for row in benchmark.rivals]
    note = f"; {names[0]} is not shown to be faster than {join_names(rivals, 'or')}" if rivals else ""
    return f"on this machine, {'by median' if rivals else 'fastest first'}: {', '.join(latencies)}{note}"


def _format_count(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e5 else f"{number / 1e3:.1f} thousand"


def _format_latencies(before: float, after: float) -> str:
    """Return two latencies with the same number of decimals: two significant digits of the smaller one.

    >>> _format_latencies(0.16, 0.2)
    '0.16 -> 0.20 ms'
    >>> _format_latencies(12.34, 4.56)
    '12.3 -> 4.6 ms'
    """
    smallest = min(before, after)
    decimals = 1 if smallest >= 1 or smallest <= 0 else 1 - floor(log10(smallest))
    return f"{before:.{decimals}f} -> {after:.{decimals}f} ms"
