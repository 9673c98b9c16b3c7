"""Calibrate the float model, and record its outputs in the same runs."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from quantkit.arguments import expand_user
from quantkit.data import Dataset, InputPipeline, StreamDataset, as_dataset
from quantkit.data.dataset import OneTimeStream
from quantkit.data.pipeline import rank_of
from quantkit.data.preparation import describe_rates
from quantkit.data.preprocessing import Origin, Preprocessing
from quantkit.errors import UsageError
from quantkit.evaluation.opened_model import describe_assumption
from quantkit.evaluation.output_rows import find_whole_outputs
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.model.model import tensor_info
from quantkit.progress import Progress
from quantkit.quantization.calibration import (
    choose_float_runtime,
    collect_ranges,
    estimate_memory,
    open_calibration_session,
)
from quantkit.quantization.calibration.observation import tensor_name
from quantkit.quantization.calibration.trained_ranges import derive_ranges
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import UNKNOWN, Range, Ranges
from quantkit.quantization.workflow.float_reference import CACHE_BYTES, FloatReference
from quantkit.quantization.workflow.labeled_feeds import LabeledFeeds
from quantkit.quantization.workflow.observer_choice import EXTREMES
from quantkit.quantization.workflow.options import Options
from quantkit.runtimes import open_session
from quantkit.runtimes.session import SessionOptions

# Smallest fraction of the samples that compares a fine-tuned model with the calibrated one.
HELD_OUT = 0.25


def find_datasets(model: Model, options: Options) -> tuple[Dataset | None, Dataset | None]:
    """Return the calibration dataset and the held-out dataset of a model, None for one that is not given.

    With ``max_drop`` and with ``finetune``, the samples after the calibration samples are held out, except for an
    iterator that can be read only once. With ``finetune``, they are at least a quarter of the samples.

    Raises:
        InputError: the data does not exist, or cannot be read.
        UsageError: a value is not a dataset.
    """
    inputs = model.input_names
    source = None if options.calibration is None else as_dataset(options.calibration, inputs=inputs)
    if source is None:
        return None, None if options.held_out is None else as_dataset(options.held_out, inputs=inputs)
    calibration = source.subset(options.limit)
    if options.held_out is not None:
        return calibration, as_dataset(options.held_out, inputs=inputs)
    if (options.max_drop is None and options.finetune is None) or is_read_once(source):
        return calibration, None
    if options.finetune is not None and source.size is not None:
        calibration = source.subset(max(1, min(options.limit, int((1 - HELD_OUT) * source.size))))
    limit = options.limit if calibration.size is None else calibration.size
    try:
        return calibration, source.subset(options.limit, skip=limit)
    except UsageError:
        return calibration, None  # calibration uses all samples


def is_read_once(dataset: Dataset) -> bool:
    """Return True if the samples of a dataset can be read only once."""
    return isinstance(dataset, StreamDataset) and isinstance(dataset.open, OneTimeStream)


def compute_ranges(
    model: Model,
    graph: Graph,
    plan: Plan,
    data: Dataset | None,
    options: Options,
    trained: Mapping[Edge, Range] = MappingProxyType({}),
) -> tuple[Ranges, FloatReference]:
    """Return the ranges of the plan's edges, and the float outputs of the calibration runs.

    Args:
        model: float model.
        graph: prepared float graph.
        plan: plan of ``graph``.
        data: calibration dataset; None for ranges from elsewhere.
        options: options of the caller.
        trained: ranges of quantization-aware training, which replace calibrated ones.

    Raises:
        InputError: the ranges cannot be read or belong to another graph, or no image can be read.
        UsageError: the data does not fit the graph.
    """
    if plan.scheme.weights_only:
        return Ranges({}), FloatReference()
    if data is not None:
        calibrated, reference = _calibrate(model, graph, plan, data, options)
        return (_replace_ranges(graph, plan, calibrated, trained, options) if trained else calibrated), reference
    if options.ranges is None:
        return _replace_ranges(graph, plan, Ranges({}), trained, options), FloatReference()
    ranges = options.ranges
    if not isinstance(ranges, Ranges):
        ranges = Ranges.load(expand_user(ranges))
    ranges.require_graph(graph)
    # Without an observer of the caller, the calibration may have chosen the extremes.
    schemes = (plan.scheme, plan.scheme if options.observer else plan.scheme.with_(observer=EXTREMES))
    if all(ranges.has_other_scheme(scheme.digest) for scheme in schemes):
        options.on_message("the ranges were calibrated with another scheme")
    return ranges, FloatReference()


def _replace_ranges(
    graph: Graph, plan: Plan, ranges: Ranges, trained: Mapping[Edge, Range], options: Options
) -> Ranges:
    """Return trained ranges, and the calibrated ranges of the other edges."""
    derived = derive_ranges(graph, plan, trained)
    inner = {Edge(name) for pattern in plan.patterns for name in pattern.nodes} - trained.keys()
    # Inside of fused patterns, calibrated ranges are tighter than derived ones.
    derived = {edge: limits for edge, limits in derived.items() if edge not in inner or edge not in ranges}
    count = len(plan.activations.keys() - derived.keys())
    source = "no calibration data is needed" if not ranges else f"{count} calibrated ranges for the others"
    options.on_message(f"{len(derived)} ranges come from quantization-aware training; {source}")
    provenance = replace(ranges.provenance, trained=len(derived), scheme=plan.scheme.digest)
    merged = Ranges({**ranges.ranges, **derived}, provenance, ranges.warnings)
    if options.save_ranges is not None:
        merged.save(options.save_ranges)
    return merged


def _calibrate(
    model: Model, graph: Graph, plan: Plan, data: Dataset, options: Options
) -> tuple[Ranges, FloatReference]:
    reference = FloatReference(task=options.metric, whole_outputs=find_whole_outputs(graph))
    state = options.state_file("calibration")
    with open_calibration_session(graph, plan, options.runtime, varies=_varies(graph, data)) as session:
        samples = LabeledFeeds.of(model, session, data, options)
        _announce(graph, plan, session.runtime.name, samples, options)
        names = dict.fromkeys(tensor_name(graph, edge) for edge in graph.outputs)

        def record(feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
            values = {**feeds, **outputs}  # an input may be an output of the graph, too
            # The session reuses its outputs.
            copies = {name: values[name].copy() for name in names}
            reference.record(samples, dict(feeds), copies)

        try:
            ranges = collect_ranges(
                session,
                plan,
                ((feeds, len(samples.classes)) for feeds in samples),
                graph=graph,
                total=options.limit if data.size is None else data.size,
                on_progress=options.on_progress,
                on_run=record,
                preprocessing=samples.preprocessing,
                resume=state,
                on_message=options.on_message,
            )
        except KeyboardInterrupt:
            if state is not None and state.exists():
                options.on_message(f"calibration state saved to {state}; run the same command to resume")
            raise
        if len(reference) < ranges.provenance.count and not reference.is_full and not is_read_once(data):
            # The state of an interrupted calibration contains histograms, not outputs.
            reference = FloatReference(task=options.metric, whole_outputs=find_whole_outputs(graph))
            samples = LabeledFeeds.of(model, session, data, options)
            for feeds in samples:
                options.on_progress(Progress("running the float model", samples.position, data.size))
                record(feeds, session.run(feeds))
    _report_unreadable(samples, options)
    if samples.unreadable:
        ranges = replace(ranges, warnings=(*ranges.warnings, _describe_unreadable(samples)))
    if samples.position and data.holds_images:
        options.on_message(f"calibrated: {describe_rates(samples.times.rates(samples.position, samples.seconds))}")
    reference.preprocessing, reference.is_classifier = samples.preprocessing, samples.is_classifier
    reference.has_named_outputs = options.outputs is not None
    reference.source = _describe_calibration(reference, ranges.provenance.count, samples.noun)
    if options.save_ranges is not None:
        ranges.save(options.save_ranges)
    return ranges, reference


def _varies(graph: Graph, data: Dataset) -> bool:
    """Return True if the samples of a dataset have different sizes."""
    return data.varies(rank_of([tensor_info(graph, edge) for edge in graph.inputs]))


def _announce(graph: Graph, plan: Plan, runtime: str, samples: LabeledFeeds, options: Options) -> None:
    """Report the size of the calibration dataset, and the memory bound."""
    dataset = samples.dataset
    count = f"up to {options.limit}" if dataset.size is None else f"{dataset.size}"
    megabytes = (estimate_memory(graph, plan, runtime=runtime) + CACHE_BYTES) / 1e6
    options.on_message(
        f"calibrating on {count} {samples.noun} from {dataset.source} (up to {megabytes:.0f} MB of memory)"
    )
    _report_preprocessing(samples.pipeline, options)


def _describe_calibration(reference: FloatReference, total: int, noun: str) -> str:
    """Return which calibration samples the accuracy is measured on."""
    if len(reference) == total:
        return f"{total} calibration {noun}"
    reason = f"as many as fit {CACHE_BYTES >> 20} MB" if reference.is_full else "those after the interruption"
    return f"{len(reference)} of the {total} calibration {noun} ({reason})"


def compute_reference(
    model: Model, graph: Graph, data: Dataset, options: Options, calibrated_on: Preprocessing | str
) -> FloatReference:
    """Return the outputs of the float graph on held-out data.

    Args:
        model: float model.
        graph: prepared float graph.
        data: held-out data.
        options: options of the caller.
        calibrated_on: preprocessing of the calibration samples; `UNKNOWN` before a calibration, whose report then does
            not state that of images.
    """
    reference = FloatReference(task=options.metric, whole_outputs=find_whole_outputs(graph))
    session_options = SessionOptions(varying_sizes=_varies(graph, data))
    with open_session(graph, choose_float_runtime(graph, options.runtime), session_options) as session:
        basis = None
        if options.calibration is None and isinstance(calibrated_on, Preprocessing):
            basis = replace(calibrated_on, origin=Origin.RANGES)
        samples = LabeledFeeds.of(model, session, data, options, basis)
        if options.calibration is None or calibrated_on == UNKNOWN:
            _report_preprocessing(samples.pipeline, options)
        for position in reference.run(session, samples):
            options.on_progress(Progress("running the float model", position, data.size))
    _report_unreadable(samples, options)
    reference.preprocessing, reference.is_classifier = samples.preprocessing, samples.is_classifier
    reference.has_named_outputs = options.outputs is not None
    kind = "held-out " if options.held_out is not None else "further "
    reference.source = f"{len(reference)} {kind}{samples.noun} of {data.source}"
    return reference


def _report_preprocessing(pipeline: InputPipeline, options: Options) -> None:
    if pipeline.is_assumed:
        options.on_message(describe_assumption(pipeline))
    elif pipeline.applied is not None:
        options.on_message(f"preprocessing of images: {pipeline.applied.description}")


def _describe_unreadable(samples: LabeledFeeds) -> str:
    """Return the number of skipped samples, with the reason of the first one."""
    name, reason = next(iter(samples.unreadable.items()))
    count = len(samples.unreadable)
    return f"{count} of the calibration {samples.noun} skipped, the first one is {name}: {reason}"


def _report_unreadable(samples: LabeledFeeds, options: Options) -> None:
    for name, reason in samples.unreadable.items():
        options.on_message(f"skipped {name}: {reason}")
