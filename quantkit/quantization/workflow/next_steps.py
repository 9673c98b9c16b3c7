"""The next step to recommend after a quantization: a reason and a command that can be copied."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.benchmark.profiling.profile_text import precision_text
from quantkit.benchmark.profiling.reasons import find_reasons
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import format_latency
from quantkit.data import Preprocessing
from quantkit.data.options import NormalizationOptions
from quantkit.data.preprocessing import Origin
from quantkit.model.options import LoadingOptions
from quantkit.options import declarations, names_of
from quantkit.quantization.report import NextStep, QuantizationReport
from quantkit.quantization.report.census import FLOAT, INT8
from quantkit.quantization.targets import Target, find_target, targets
from quantkit.quantization.targets.advice import describe_weights_only, find_faster_target, find_slow_reason
from quantkit.quantization.targets.base import BFLOAT16, runs_bfloat16
from quantkit.quantization.workflow.host import find_bfloat16_instruction
from quantkit.quantization.workflow.options import DEFAULT_TARGET, Options
from quantkit.runtimes import custom_op_libraries, find_runtime

# A lower agreement with the float model leads to a recommendation.
GOOD_AGREEMENT = 0.98
# A lower signal to noise, in dB, leads to a recommendation; here noise has a tenth of the signal's amplitude.
GOOD_DECIBELS = 20.0
# Below this fraction of MACs in int8, the float layers are the next thing to look at.
MOST = 0.5
# Precisions of a search after which no layer can be int8.
FLOATS = "float32,bfloat16"
_SEARCH = "optimize measures the float and int8 files of all runtimes, with their thread settings"


@dataclass(frozen=True)
class Commands:
    """Command lines that repeat or follow a quantization, with its files and flags.

    Attributes:
        model: name of the float model.
        target: target of the quantization.
        options: options of the caller.
        lacks_kernels: True if the model has custom ops without a kernel; a library is still to be named.
        shapes: shape of a sample for each input with dynamic sizes, which a benchmark without data needs.
    """

    model: str
    target: Target
    options: Options
    _: KW_ONLY
    lacks_kernels: bool = False
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def output(self) -> Path:
        """Path of the quantized model."""
        return self.options.file or Path(f"OUTPUT{self.target.suffixes[0]}")

    @property
    def source(self) -> tuple[str, ...]:
        """Flags for the source of the ranges."""
        options = self.options
        if options.calibration is None and options.ranges is not None:
            return "--ranges", _path_text(options.ranges, "RANGES.json")
        limit = () if options.calibration is None else ("--limit", str(options.limit))
        return "--calibration", _path_text(options.calibration, "DATA"), *limit

    @property
    def data(self) -> str:
        """Dataset for the accuracy."""
        options = self.options
        return _path_text(options.calibration if options.held_out is None else options.held_out, "DATA")

    @property
    def _held_out(self) -> tuple[str, ...]:
        """Flag of a dataset for the accuracy that is not the source of the ranges."""
        return ("--held-out", self.data) if self.data not in (self.source[1], "DATA") else ()

    @property
    def _preprocessing(self) -> tuple[str, ...]:
        return _flags(self.options, *names_of(NormalizationOptions))

    @property
    def _loading(self) -> tuple[str, ...]:
        """Flags about the model and the sizes of its inputs."""
        shapes = _shape_flags(self.options.input_shapes or {})
        return *_flags(self.options, *names_of(LoadingOptions), "input_width", "input_height"), *shapes

    @property
    def _metric(self) -> tuple[str, ...]:
        return _flags(self.options, "labels", "task")

    @property
    def _shared(self) -> tuple[str, ...]:
        """Flags of a quantization for any target."""
        return *self._loading, *_flags(self.options, "recipe", "uint8_input"), *self._preprocessing, *self._metric

    def command(self, *arguments: str) -> str:
        """Return a command with the libraries of custom ops, and a benchmark with the sizes of dynamic inputs."""
        libraries = custom_op_libraries() or (("LIBRARY",) if self.lacks_kernels else ())
        flags = (part for library in libraries for part in ("--custom-op-library", library))
        sizes = _shape_flags(self.shapes) if arguments[0] == "benchmark" else ()
        return shlex.join(("quantkit", *arguments, *sizes, *flags))

    def quantize(self, target: str, *more: str, output: Path | None = None) -> str:
        """Return the quantize command for a target with further flags."""
        form = ("scheme", "observer", "reduce_range", "runtime", "float_parts") if target == self.target.name else ()
        flags = (*more, *_flags(self.options, *form), *self._shared)
        arguments = ("-o", str(output or self.output), "--target", target, *self.source, *self._held_out, *flags)
        return self.command("quantize", self.model, *arguments)

    def store_weights(self, target: str) -> str:
        """Return the quantize command for the weights alone."""
        return self.command(
            "quantize", self.model, "-o", str(self.output), "--target", target, "--weights-only", *self._shared
        )

    def quantize_again(self, target: str) -> str:
        """Return the quantize command for another target, with another output file."""
        suffixes = find_target(target).suffixes
        suffix = self.output.suffix if self.output.suffix in suffixes else suffixes[0]
        return self.quantize(target, output=self.output.with_name(f"{self.output.stem}_{target}{suffix}"))

    def benchmark(self, runtime: str, quantized_runtime: str, *more: str) -> str:
        """Return the benchmark command for the float and the quantized model, each in a runtime."""
        return self.command("benchmark", f"{self.model}@{runtime}", f"{self.output}@{quantized_runtime}", *more)

    def evaluate(self, runtime: str, *more: str) -> str:
        """Return the evaluate command for the float model under other conditions."""
        arguments = ("--reference", self.model, "--data", self.data, *self._preprocessing, *more)
        return self.command("evaluate", f"{self.model}@{runtime}", *arguments)

    def compare(self) -> str:
        """Return the compare command for the float and the quantized model."""
        return self.command("compare", self.model, str(self.output), "--data", self.data, *self._preprocessing)

    def check_further(self, *, has_class_scores: bool) -> str:
        """Return the command that compares the quantized model with the float model on other samples."""
        models = (str(self.output), "--reference", self.model) if has_class_scores else (self.model, str(self.output))
        verb = "evaluate" if has_class_scores else "compare"
        return self.command(verb, *models, "--data", "DATA", *self._preprocessing)

    def optimize(self, *more: str) -> str:
        """Return the optimize command for the float model."""
        data = ("--data", self.source[1] if self.source[0] == "--calibration" else "DATA", *self._held_out)
        output = str(self.output.with_name(f"{self.output.stem}_best"))
        flags = (*self._loading, *self._preprocessing, *self._metric)
        return self.command("optimize", self.model, "-o", output, *data, *more, *flags)

    def check_float(self, *, has_class_scores: bool) -> str:
        """Return the command that evaluates the class scores of the float model, or writes its outputs."""
        verb, flags = ("evaluate", ()) if has_class_scores else ("run", ("-o", "outputs"))
        return self.command(verb, self.model, "--data", self.data, *flags, *self._preprocessing)

    def summarize(self) -> str:
        """Return the summarize command for the float model."""
        return self.command("summarize", self.model)


def recommend(report: QuantizationReport, commands: Commands) -> NextStep:
    """Return the next step: for doubtful outputs, a float model, low accuracy or no speed-up, else the next check."""
    if report.accuracy.doubts:
        return recommend_for_doubts(report, commands)
    if report.is_float:
        return recommend_for_float(report, commands)
    accuracy, speed = recommend_for_accuracy(report, commands), recommend_for_speed(report, commands)
    if accuracy is not None and speed is not None:
        return NextStep(f"{accuracy.reason}; {speed.reason}", accuracy.command, speed.causes)
    return accuracy or speed or recommend_check(report, commands)


def recommend_for_float(report: QuantizationReport, commands: Commands) -> NextStep:
    """Return the most frequent reason of float layers, with the command that can still improve the model."""
    reasons = Counter(node.reason for node in report.census.float_fallbacks if node.is_layer)
    if not reasons:
        reason = "the model has no convolution or matrix product to quantize; in float, the choice of a runtime is left"
        return NextStep(reason, commands.optimize("--precisions", FLOATS))
    reason, count = reasons.most_common(1)[0]
    layers = f" ({count} of {reasons.total()} layers)" if count < reasons.total() else ""
    command = commands.optimize("--precisions", FLOATS)
    if report.max_drop is not None:
        command = commands.quantize(report.target, "--max-drop", f"{report.max_drop:g}", "--finetune", "10m")
    elif "--weights-only" in reason:
        command = commands.store_weights(report.target)
    return NextStep(f"no layer is int8: {reason}{layers}", command)


def recommend_check(report: QuantizationReport, commands: Commands) -> NextStep:
    """Return the check that is left for a model without a known fault."""
    pair = (commands.model, str(commands.output))
    if report.accuracy.metrics is None and report.accuracy.failures:
        return NextStep("no runtime here can run the quantized model; doctor lists them", "quantkit doctor")
    if report.latency.benchmark is None:
        return NextStep("measure the latency of both models", commands.command("benchmark", *pair))
    if commands.options.held_out is not None or commands.options.max_drop is not None:
        return NextStep(f"search further: {_SEARCH}", commands.optimize())
    command = commands.check_further(has_class_scores=report.accuracy.quality is not None)
    return NextStep("the accuracy on other samples than the calibration samples", command)


def recommend_for_doubts(report: QuantizationReport, commands: Commands) -> NextStep:
    """Return the command that shows whether the float model works, for a model whose own outputs are doubtful."""
    is_assumed = isinstance(report.preprocessing, Preprocessing) and report.preprocessing.origin is Origin.ASSUMED
    if is_assumed:
        reason = "state the preprocessing of the model, for example values from 0 to 1"
        return NextStep(reason, commands.quantize(report.target, "--input-mean", "0", "--input-std", "255"))
    command = commands.check_float(has_class_scores=report.accuracy.quality is not None)
    return NextStep("check the float model first", command)


def recommend_for_speed(report: QuantizationReport, commands: Commands) -> NextStep | None:
    """Return the reason for a missing speed-up with the next command; None if the model is faster.

    The fastest measurement of the quantized model is compared with the fastest one of the float model.
    """
    before, after = (report.latency.fastest(label) for label in (FLOAT, INT8))
    speedup = report.latency.overall
    if before is None or after is None or speedup is None or speedup.outcome == "faster":
        return None
    names = (before.context.runtime, after.context.runtime)
    runtimes = f"int8 in {names[1]} and float in {names[0]}"
    if speedup.outcome == "undecided":
        claim = f"undecided: {runtimes}: {speedup.advice}"
        if speedup.is_negligible:
            check = recommend_check(report, commands)
            return NextStep(f"{claim}; {check.reason}", check.command)
        count = speedup.advised_processes
        return NextStep(claim, commands.benchmark(*names, *(("--processes", str(count)) if count else ())))
    if names[0] != names[1] and names[0] not in find_target(report.target).runtimes:
        step = _faster_elsewhere(report, commands, before, after)
        return replace(step, causes=_measured_causes(report, commands, names))
    claim = f"not faster: {runtimes}: {speedup.verdict}"
    reason, command = _cause(report, commands, after)
    return NextStep(f"{claim}; {reason}", command, _measured_causes(report, commands, names))


def _faster_elsewhere(
    report: QuantizationReport, commands: Commands, before: Measurement, after: Measurement
) -> NextStep:
    """Return the step after a measurement in which another runtime runs the float model faster."""
    runtime = before.context.runtime
    claim = "not faster: " + " and ".join(
        f"{each.context.model} in {each.context.runtime} takes {format_latency(each.summary.median)} ms"
        for each in (before, after)
    )
    others = [name for name, target in targets().items() if runtime in target.runtimes and not find_slow_reason(target)]
    if others and others[0] != report.target:
        return NextStep(f"{claim}; --target {others[0]} runs in {runtime}", commands.quantize_again(others[0]))
    return NextStep(f"{claim}; {_SEARCH}", commands.optimize())


@dataclass(frozen=True)
class _Remedies:
    """Commands for the reasons of a profile."""

    commands: Commands
    target: Target
    runtimes: tuple[str, str]

    def quantize(self, *flags: str) -> str:
        return self.commands.quantize(self.target.name, *flags)

    def retarget(self) -> str:
        faster = find_faster_target(self.target)
        return self.commands.quantize_again(DEFAULT_TARGET if faster is None else faster.name)

    def benchmark(self, *flags: str, runtime: str = "") -> str:
        return self.commands.benchmark(*((runtime, runtime) if runtime else self.runtimes), *flags)

    def optimize(self) -> str:
        return self.commands.optimize()


def _measured_causes(report: QuantizationReport, commands: Commands, runtimes: tuple[str, str]) -> tuple[Reason, ...]:
    """Return the reasons of the profile; empty without one."""
    profile, after = report.latency.profile, report.latency.fastest(INT8)
    if profile is None or after is None:
        return ()
    return find_reasons(profile, after.context.machine, _Remedies(commands, find_target(report.target), runtimes))


def _cause(report: QuantizationReport, commands: Commands, after: Measurement) -> tuple[str, str]:
    """Return the known facts on a quantized model that is not faster, and the next command."""
    census, target, runtime = report.census, find_target(report.target), after.context.runtime
    if report.scheme.weights_only:
        return f"only the weights are quantized: {describe_weights_only(target)}", commands.quantize(target.name)
    if slow_reason := find_slow_reason(target):
        faster = find_faster_target(target)
        return slow_reason, commands.summarize() if faster is None else commands.quantize_again(faster.name)
    boundaries = f"{census.boundaries} quantize/dequantize boundaries"
    fraction = "" if census.int8_fraction is None else f", {100 * census.int8_fraction:.0f} % of the known MACs in int8"
    reason = f"{boundaries}{fraction}"
    if report.latency.profile is not None:
        reason = f"{precision_text(report.latency.profile.models[-1])}; {boundaries}"
    bfloat16 = _bfloat16_note(target, runtime)
    if bfloat16:
        return f"{reason}; {bfloat16}", commands.benchmark(runtime, runtime, "--precision", "float32,bfloat16")
    is_mostly_float = census.int8_fraction is not None and census.int8_fraction < MOST
    return (reason, commands.summarize()) if is_mostly_float else (f"{reason}; {_SEARCH}", commands.optimize())


def recommend_for_accuracy(report: QuantizationReport, commands: Commands) -> NextStep | None:
    """Return the next command if the outputs differ much from the float model's; else None."""
    quality, sqnr = report.accuracy.quality, report.accuracy.sqnr
    agreement = quality.agreement if quality else None
    is_agreeing = agreement is None or agreement.value >= GOOD_AGREEMENT
    is_near = sqnr is None or sqnr.is_near(GOOD_DECIBELS, GOOD_AGREEMENT)
    if is_agreeing and is_near:
        return None
    differs = "the outputs differ from the float model"
    if agreement is not None and not is_agreeing:
        differs = f"the outputs differ from the float model: agreement {100 * agreement.value:.1f} %"
    runtime = report.runtime.name if report.runtime else find_target(report.target).runtimes[0]
    bfloat16 = _bfloat16_note(find_target(report.target), runtime)
    if bfloat16 and not is_agreeing:
        command = commands.evaluate(runtime, "--precision", "bfloat16")
        return NextStep(f"{differs}; {bfloat16}", command)
    if report.scheme.weights_only or report.fallback is not None or commands.source[0] != "--calibration":
        return NextStep(f"{differs}; quantkit compare finds the first bad layer", commands.compare())
    reason = f"{differs}; --max-drop keeps the responsible layers in float"
    return NextStep(reason, commands.quantize(report.target, "--max-drop", "0.01"))


def _bfloat16_note(target: Target, runtime: str) -> str:
    """Return a note on bfloat16 arithmetic; empty if the processor, the target or the runtime does not support it."""
    instruction = find_bfloat16_instruction()
    if not instruction or not runs_bfloat16(target) or BFLOAT16 not in find_runtime(runtime).precisions:
        return ""
    return f"this processor supports bfloat16 ({instruction}), which was not measured"


def _path_text(value: Any, placeholder: str) -> str:
    """Return a path as text, and the placeholder for data in memory."""
    return os.fspath(value) if isinstance(value, str | os.PathLike) else placeholder


def _flags(options: Options, *names: str) -> tuple[str, ...]:
    """Return the flags of the options that have other values than the default; objects in memory have no flag."""
    defaults = {each.name: each.default for each in declarations(Options)}
    flags: list[str] = []
    for name in names:
        value, flag = getattr(options, name), f"--{name.replace('_', '-')}"
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(value, str | os.PathLike | int | float | Sequence) or value == defaults[name]:
            continue
        text = ",".join(map(str, value)) if not isinstance(value, str) and isinstance(value, Sequence) else str(value)
        # A negative list after a space would be read as a flag.
        flags += [flag] if value is True else [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return tuple(flags)


def _shape_flags(shapes: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """Return the flags for sizes of inputs."""
    texts = (f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    return tuple(part for text in texts for part in ("--input-shape", text))
