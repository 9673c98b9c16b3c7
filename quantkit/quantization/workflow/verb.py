"""`quantize`: from a float model and data to a quantized model and its report."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from quantkit.arguments import public
from quantkit.benchmark.sampling.process import ProcessReserve
from quantkit.distribution import installed_version
from quantkit.formats import name_written_files
from quantkit.formats.metadata import seal
from quantkit.formats.sizes import measure_size
from quantkit.formats.temporary import temporary_folder
from quantkit.model import Model
from quantkit.options import takes
from quantkit.progress import Progress
from quantkit.quantization.fallback import Fallback
from quantkit.quantization.portability import certify
from quantkit.quantization.report import AccuracyReport, Latency, QuantizationReport
from quantkit.quantization.report.census import census, executed_int8_fractions
from quantkit.quantization.targets.advice import advise_threads
from quantkit.quantization.targets.base import multiplies_u8_by_s8
from quantkit.quantization.targets.capabilities import KernelChecks
from quantkit.quantization.workflow.accuracy import try_measure_accuracy
from quantkit.quantization.workflow.accuracy_search import search_fallbacks
from quantkit.quantization.workflow.calibrated_model import calibrate_model
from quantkit.quantization.workflow.calibration_run import compute_reference, find_datasets
from quantkit.quantization.workflow.conversion import Conversion, find_runtimes
from quantkit.quantization.workflow.decisions import describe_decisions
from quantkit.quantization.workflow.description import describe_model, make_receipt
from quantkit.quantization.workflow.doubts import find_doubts
from quantkit.quantization.workflow.fine_tuning import fine_tune
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.host import count_cores
from quantkit.quantization.workflow.latency import dynamic_shapes, measure_latency
from quantkit.quantization.workflow.next_steps import Commands, recommend
from quantkit.quantization.workflow.options import Options, check_options
from quantkit.quantization.workflow.planning import choose_scheme, save_plan
from quantkit.quantization.workflow.preparation import load_float_model
from quantkit.quantization.workflow.result import QuantizationResult
from quantkit.quantization.workflow.slow_kernels import exclude_slow_kernels
from quantkit.quantization.workflow.trained_model import TrainedModel, convert_trained_model
from quantkit.quantization.workflow.trials import Trials


@public
@takes(Options)
def quantize(options: Options) -> QuantizationResult:
    """Quantize a model to int8 with calibration, and report accuracy and latency.

    Returns:
        Quantized model, plan, ranges and report. `QuantizationReport.require_max_drop` raises if the drop is larger.

    Raises:
        UsageError: arguments contradict each other or do not fit the model; raised before calibration.
        InputError: a model, file or dataset is missing or broken.
        UnavailableError: the target or runtime is not available in this installation.
        CheckError: this host computes the quantized model incorrectly.
    """
    written = name_written_files(options.output, options.trace, options.save_plan, options.save_ranges)
    with written, ProcessReserve() as reserve:
        return _run(options, reserve)


def _run(options: Options, reserve: ProcessReserve) -> QuantizationResult:
    start = monotonic()
    installed_version()  # without it, the file would have no receipt
    if isinstance(options.model, TrainedModel):
        model, conversion = convert_trained_model(options.model, options)
        data, held_out = find_datasets(model, options)
        trials = Trials(FloatReference(), options)
    else:
        scheme = choose_scheme(options)
        check_options(options, scheme)
        model = load_float_model(options)
        data, held_out = find_datasets(model, options)
        if options.runs != 0 and options.max_drop is None and options.finetune is None:
            # Float and int8 of each runtime: one process for the time of the layers, and one for the latency.
            reserve.start(4 * find_runtimes(scheme))
        model, conversion, trials = calibrate_model(model, scheme, data, held_out, options)
    graph, reference, planned = conversion.graph, trials.reference, conversion.plan
    if held_out is not None:
        float_graph = graph if conversion.float_graph is None else conversion.float_graph
        preprocessing = conversion.ranges.provenance.preprocessing
        held_out_reference = compute_reference(model, float_graph, held_out, options, preprocessing)
        # A stream may have no samples after those of the calibration.
        is_needed = len(held_out_reference) > 0 or options.held_out is not None
        reference = held_out_reference if is_needed else reference
    fine_tuning = None
    if options.finetune is not None and data is not None:
        conversion, fine_tuning = fine_tune(model, conversion, data, reference, trials.reference, options)
    fallback = None
    if options.max_drop is not None:
        fallback = search_fallbacks(conversion, reference, options, options.max_drop)
        conversion = conversion.exclude(fallback.keep_float)
    conversion = conversion.with_kernels()
    if fine_tuning is None and options.max_drop is None:
        conversion = exclude_slow_kernels(conversion, trials)
    if conversion.plan is not planned:
        save_plan(options, graph, conversion.plan)
    if reference.unused_labels:
        options.on_message(f"warning: {reference.unused_labels}")
    if options.runs != 0:
        reserve.start(2 * conversion.runtimes)
    description = describe_model(model, conversion.graph, conversion.ranges.provenance.preprocessing, options)
    report, metadata = _write_and_measure(model, conversion, description, reference, trials, fallback, options, start)
    return QuantizationResult(model, conversion, replace(report, fine_tuning=fine_tuning), metadata)


def _write_and_measure(
    model: Model,
    conversion: Conversion,
    metadata: Mapping[str, Any],
    reference: FloatReference,
    trials: Trials,
    fallback: Fallback | None,
    options: Options,
    start: float,
) -> tuple[QuantizationReport, Mapping[str, Any]]:
    """Write the quantized model, check it, and measure accuracy and latency; return the metadata with the receipt."""
    doubts = find_doubts(model, reference, conversion.ranges.provenance)
    with temporary_folder() as folder:
        target = conversion.target
        if isinstance(target, KernelChecks) and not conversion.plan.scheme.weights_only:
            options.on_progress(Progress("checking the kernels of this host", 0))
            conversion.check_on_host(target, next(iter(reference.feeds), {}))
        options.on_progress(Progress("writing the model", 0))
        file = folder / f"quantized{conversion.target.suffixes[0]}"
        if options.file is not None and conversion.whole is None:
            file = options.file
        conversion.write(file, metadata)
        samples = reference.sample_shapes
        options.on_progress(Progress("measuring the accuracy", 0))
        accuracy = trials.find_accuracy(conversion, reference) or try_measure_accuracy(file, conversion, reference)
        report = _report(model, conversion, replace(accuracy, doubts=doubts), fallback, file, options, samples)
        if conversion.plan.scheme.weights_only:
            report = replace(report, preprocessing=reference.preprocessing)
        decisions = describe_decisions(conversion, trials, fallback, samples)
        report = replace(report, decisions=decisions, failed_trials=tuple(trials.failures))
        metadata = _write_receipt(metadata, model, conversion, report, file, options)
        if report.is_float:
            latency = Latency(skipped="no layer is int8")
        else:
            elapsed = monotonic() - start
            latency = measure_latency(conversion, file, options.runs, folder, options.on_progress, samples, elapsed)
        report = replace(report, latency=latency)
        if options.runs and latency.benchmark is not None:
            metadata = _write_receipt(metadata, model, conversion, report, file, options)
        report = replace(report, num_bytes=measure_size(file, conversion.quantized))
    lacks_kernels, shapes = conversion.whole is not None, dynamic_shapes(conversion.graph, samples)
    commands = Commands(model.name, conversion.target, options, lacks_kernels=lacks_kernels, shapes=shapes)
    next_step = recommend(report, commands)
    return replace(report, next_step=next_step), metadata


def _write_receipt(
    metadata: Mapping[str, Any],
    model: Model,
    conversion: Conversion,
    report: QuantizationReport,
    file: Path,
    options: Options,
) -> Mapping[str, Any]:
    """Write the quantized model again, with a receipt; return its metadata."""
    metadata = seal({**metadata, "receipt": make_receipt(model, conversion, report, options)})
    conversion.write(file, metadata)
    if options.file is not None and conversion.whole is not None:
        conversion.save(options.file, metadata)
    return metadata


def _report(
    model: Model,
    conversion: Conversion,
    accuracy: AccuracyReport,
    fallback: Fallback | None,
    file: Path,
    options: Options,
    samples: Mapping[str, tuple[int, ...]],
) -> QuantizationReport:
    """Return the report without the latency."""
    graph, plan, ranges = conversion.graph, conversion.plan, conversion.ranges
    target = conversion.target
    threads = "as for the float model" if plan.scheme.weights_only else advise_threads(target, count_cores())
    counts = census(graph, plan, conversion.quantized, samples)
    if not plan.scheme.weights_only:
        runtime, int8_nodes = accuracy.runtime, accuracy.int8_nodes
        session_nodes = {} if runtime is None or int8_nodes is None else {runtime.name: int8_nodes}
        executed = executed_int8_fractions(conversion.quantized, target.runtimes, samples, session_nodes)
        counts = replace(counts, executed=executed)
    return QuantizationReport(
        model.name,
        options.file,
        plan.scheme,
        ranges.provenance,
        ranges.warnings,
        len(plan.weights),
        counts,
        num_bytes=measure_size(file, conversion.quantized),
        float_num_bytes=measure_size(model.path, model.graph),
        threads=threads,
        accuracy=accuracy,
        fallback=fallback,
        fallback_precision=options.fallback,
        max_drop=options.max_drop,
        preprocessing=ranges.provenance.preprocessing,
        portability=certify(conversion.quantized) if multiplies_u8_by_s8(target) else None,
    )
