"""`quantize`: from a float model and data to a quantized model and its report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantkit.arguments import public
from quantkit.data.preprocessing import ColorOrder
from quantkit.evaluation.tasks import Score
from quantkit.formats import name_written_files
from quantkit.formats.metadata import seal
from quantkit.formats.sizes import measure_size
from quantkit.formats.temporary import temporary_folder
from quantkit.model import Model
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.quantization.fallback import Fallback
from quantkit.quantization.plan import Plan
from quantkit.quantization.portability import certify
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.report import AccuracyReport, Latency, QuantizationReport
from quantkit.quantization.report.census import FLOAT, census, executed_int8_fractions
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.workflow.accuracy import try_measure_accuracy
from quantkit.quantization.workflow.accuracy_search import search_fallbacks
from quantkit.quantization.workflow.calibrated_model import calibrate_model
from quantkit.quantization.workflow.calibration_run import compute_reference, find_datasets
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.decisions import describe_decisions
from quantkit.quantization.workflow.description import describe_model, make_receipt
from quantkit.quantization.workflow.doubts import find_doubts
from quantkit.quantization.workflow.fast_form import exclude_slow_kernels
from quantkit.quantization.workflow.fine_tuning import fine_tune
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.host import count_cores
from quantkit.quantization.workflow.latency import dynamic_shapes, measure_latency
from quantkit.quantization.workflow.next_steps import Commands, recommend
from quantkit.quantization.workflow.options import (
    CALIBRATION_LIMIT,
    ORIGINAL,
    TIME_BUDGET,
    Options,
    PathLike,
    check_options,
)
from quantkit.quantization.workflow.planning import choose_scheme, save_plan
from quantkit.quantization.workflow.preparation import load_float_model
from quantkit.quantization.workflow.result import QuantizationResult
from quantkit.quantization.workflow.trained_model import TrainedModel, convert_trained_model
from quantkit.quantization.workflow.trials import Trials
from quantkit.runtimes import AUTO, find_runtime


@public
def quantize(
    model: Any,
    calibration: Any = None,
    *,
    target: str | None = None,
    scheme: Scheme | Mapping[str, Any] | PathLike | None = None,
    ranges: Ranges | PathLike | None = None,
    plan: Plan | PathLike | None = None,
    weights_only: bool = False,
    uint8_input: bool = False,
    observer: str | None = None,
    reduce_range: bool = False,
    limit: int = CALIBRATION_LIMIT,
    held_out: Any = None,
    labels: PathLike | None = None,
    recipe: str | None = None,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    signature: str | None = None,
    tags: Iterable[str] | None = None,
    checkpoint: PathLike | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    random_weights: bool = False,
    input_width: int | None = None,
    input_height: int | None = None,
    input_mean: float | Sequence[float] | None = None,
    input_std: float | Sequence[float] | None = None,
    input_color_order: ColorOrder | None = None,
    runtime: str = AUTO,
    runs: int | None = None,
    finetune: int | str | None = None,
    seed: int = 0,
    max_drop: float | None = None,
    task: str | Score | None = None,
    fallback: str = FLOAT,
    verify: bool = False,
    trace: PathLike | None = None,
    float_parts: str = ORIGINAL,
    time_budget: float | str = TIME_BUDGET,
    offline: bool = False,
    output: PathLike | None = None,
    save_plan: PathLike | None = None,
    save_ranges: PathLike | None = None,
    on_progress: OnProgress = ignore_progress,
    on_message: OnMessage = ignore_message,
) -> QuantizationResult:
    """Quantize a model to int8 with calibration, and report accuracy and latency.

    Args:
        model: model, graph, path or card name; or a model of `quantkit.training.quantization_aware`, whose training has
            fixed target, plan and ranges.
        calibration: calibration dataset; not needed with ``ranges``, ``weights_only``, or the trained ranges of
            quantization-aware training (TF-MOT). With it, layers without trained ranges are quantized, too.
        target: target format and runtime (default: the scheme's, else ``onnx``).
        scheme: quantization scheme, its fields, or its TOML file (default: the target's).
        ranges: ranges of an earlier calibration of the same graph, or their file.
        plan: quantization plan to follow instead of computing one, or its file.
        weights_only: quantize weights only; all arithmetic stays in float.
        uint8_input: accept uint8 images, and fold the preprocessing into the first layers.
        observer: range estimator, for example ``percentile(99.9)`` (default: the scheme's, or ``min_max`` if that is
            better on the calibration samples).
        reduce_range: use 7-bit weights instead of the limited sums of pairs for processors without VNNI.
        limit: maximum number of calibration samples.
        held_out: dataset for the accuracy (default: the calibration samples; with ``max_drop``, the ones after them).
        labels: label file (default: the model's own labels).
        recipe: recipe that prepares the float graph (default: the card's, else ``inference``, with rewrites for int8).
        inputs, outputs: names in the graph (default: from the model card, else inferred).
        signature, tags, checkpoint, input_shapes, random_weights, offline: as for `quantkit.load`.
        input_width, input_height: image size in pixels (default: the graph's).
        input_mean, input_std: normalization (x - mean) / std of images, numbers or one number per channel (default:
            from the file, else the card's, else from a scaling layer of the graph, else 128).
        input_color_order: order of the channels of the input, ``rgb`` or ``bgr`` (default: the file's, else ``rgb``).
        runtime: runtime of the float model, which the form of an ONNX model then suits; ``auto`` is the fastest
            available for the float model, and a form for all runtimes of the target.
        runs: samples of the latency of each model; 0 to skip the latency (default: until the comparison is clear,
            about half a minute).
        finetune: train weights and ranges against the float model's outputs on the calibration samples: a number of
            steps, a time such as ``10m``, or ``layerwise`` for a fit of each layer by itself. Needs TensorFlow. The
            calibrated model is kept if it is better.
        seed: seed of the order of the training samples.
        max_drop: keep layers in float until the drop is at most this fraction: the drop of top-1 if samples have
            labels, else of the agreement with the float model, or of the metric of ``task``.
        task: metric of the outputs with the float model as reference: ``segmentation``, ``detection``, ``regression``,
            ``embedding``, ``text``, ``language``, or a function of the float model's outputs and the int8 model's,
            (n, ...) by name, that returns 1 for equal outputs (default: agreement for class scores, else SQNR).
        fallback: precision of these layers, ``float`` or, for the tensorflow target, ``bfloat16``.
        verify: compare the outputs of the float model before and after each step of the recipe, on random inputs of
            ``seed``.
        trace: file for the record of the recipe: ``.json``, or ``.html`` for a page that draws the graph before and
            after.
        float_parts: type of the ops that stay float: ``original`` keeps those of float16 models, ``float32`` is faster
            on most CPUs, and ``float16``, for the target ``tensorrt`` only, converts the ops of any model that are safe
            in it. It is float32 in LiteRT files, in files of another format than the model, and for models in double or
            bfloat16, unless ``float16`` is given. Inputs and outputs keep their types.
        time_budget: seconds for the search of these layers, or a text such as ``2m``.
        output: write the quantized model to this file or SavedModel folder as soon as it is checked. The state of
            an interrupted calibration or search is saved next to it, and the same call resumes.
        save_plan, save_ranges: write the plan and the ranges to these files as soon as they are known.
        on_progress, on_message: callbacks for progress and messages.

    Returns:
        Quantized model, plan, ranges and report. `QuantizationReport.require_max_drop` raises if the drop is larger.

    Raises:
        UsageError: arguments contradict each other or do not fit the model; raised before calibration.
        InputError: a model, file or dataset is missing or broken.
        UnavailableError: the target or runtime is not available in this installation.
        CheckError: this host computes the quantized model incorrectly.
    """
    arguments = dict(locals())
    options = Options.of(**{name: value for name, value in arguments.items() if name != "model"})
    with name_written_files(options.output, options.trace, options.save_plan, options.save_ranges):
        return _run(model, options)


def _run(source: Any, options: Options) -> QuantizationResult:
    if isinstance(source, TrainedModel):
        model, conversion = convert_trained_model(source, options)
        data, held_out = find_datasets(model, options)
        trials = Trials(FloatReference(), options)
    else:
        scheme = choose_scheme(options)
        check_options(source, options, scheme)
        model = load_float_model(source, options)
        data, held_out = find_datasets(model, options)
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
        conversion, fine_tuning = fine_tune(model, conversion, data, reference, options)
    fallback = None
    if options.max_drop is not None:
        fallback = search_fallbacks(conversion, reference, options, options.max_drop)
        conversion = conversion.exclude(fallback.keep_float)
    conversion = conversion.with_kernels()
    if fine_tuning is None and options.max_drop is None:
        conversion = exclude_slow_kernels(conversion, trials, options)
    if conversion.plan is not planned:
        save_plan(options, graph, conversion.plan)
    if reference.unused_labels:
        options.on_message(f"warning: {reference.unused_labels}")
    description = describe_model(model, conversion.graph, conversion.ranges.provenance.preprocessing, options)
    report, metadata = _write_and_measure(model, conversion, description, reference, trials, fallback, options)
    return QuantizationResult(model, conversion, replace(report, fine_tuning=fine_tuning), metadata)


def _write_and_measure(
    model: Model,
    conversion: Conversion,
    metadata: Mapping[str, Any],
    reference: FloatReference,
    trials: Trials,
    fallback: Fallback | None,
    options: Options,
) -> tuple[QuantizationReport, Mapping[str, Any]]:
    """Write the quantized model, check it, and measure accuracy and latency; return the metadata with the receipt."""
    doubts = find_doubts(model, reference, conversion.ranges.provenance)
    for doubt in doubts:
        options.on_message(f"warning: {doubt}")
    with temporary_folder() as folder:
        if conversion.needs_host_check:
            options.on_progress(Progress("checking the kernels of this host", 0))
            conversion.check_on_host(next(iter(reference.feeds), {}))
        options.on_progress(Progress("writing the model", 0))
        file = folder / f"quantized{conversion.target.suffixes[0]}"
        if options.output is not None and conversion.whole is None:
            file = options.output
        conversion.write(file, metadata)
        samples = {name: array.shape for name, array in next(iter(reference.feeds), {}).items()}
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
            latency = measure_latency(conversion, file, options.runs, folder, options.on_progress, samples)
        report = replace(report, latency=latency)
        if options.runs and latency.benchmark is not None:
            metadata = _write_receipt(metadata, model, conversion, report, file, options)
        report = replace(report, num_bytes=measure_size(file, conversion.quantized))
    lacks_kernels, shapes = conversion.whole is not None, dynamic_shapes(conversion.graph, samples)
    commands = Commands.of(model.name, conversion.target, options, lacks_kernels=lacks_kernels, shapes=shapes)
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
    if options.output is not None and conversion.whole is not None:
        conversion.save(options.output, metadata)
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
    threads = "as for the float model" if plan.scheme.weights_only else target.thread_advice
    titles = " and ".join(find_runtime(name).title for name in target.runtimes)
    counts = census(graph, plan, conversion.quantized, samples)
    if not plan.scheme.weights_only:
        runtime, int8_nodes = accuracy.runtime, accuracy.int8_nodes
        session_nodes = {} if runtime is None or int8_nodes is None else {runtime.name: int8_nodes}
        executed = executed_int8_fractions(conversion.quantized, target.runtimes, samples, session_nodes)
        counts = replace(counts, executed=executed)
    return QuantizationReport(
        model.name,
        options.output,
        plan.scheme,
        ranges.provenance,
        ranges.warnings,
        len(plan.weights),
        counts,
        num_bytes=measure_size(file, conversion.quantized),
        float_num_bytes=measure_size(model.path, model.graph),
        threads=threads.format(cores=count_cores(), runtimes=titles),
        accuracy=accuracy,
        fallback=fallback,
        fallback_precision=options.fallback,
        max_drop=options.max_drop,
        preprocessing=ranges.provenance.preprocessing,
        portability=certify(conversion.quantized) if target.multiplies_u8_by_s8 else None,
    )
