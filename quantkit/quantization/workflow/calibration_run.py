"""Calibrate the float model, and record its outputs in the same runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.data import Data, find_data
from quantkit.data.preparation import Preparation
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.progress import Progress
from quantkit.quantization.calibration import collect_ranges, estimate_memory, open_calibration_session
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges, graph_digest
from quantkit.quantization.workflow.float_reference import CACHE_BYTES, FloatReference
from quantkit.quantization.workflow.labeled_feeds import LabeledFeeds
from quantkit.quantization.workflow.options import Options
from quantkit.runtimes import open_session


def find_datasets(options: Options) -> tuple[Data | None, Data | None]:
    """Return the calibration dataset and the held-out dataset, None for one that is not given.

    With ``max_drop``, the samples after the calibration samples are held out.

    Raises:
        InputError: the data does not exist, or cannot be read.
    """
    data = None if options.calibration is None else _find_dataset(options.calibration, options.limit)
    if options.held_out is not None:
        return data, _find_dataset(options.held_out)
    if options.max_drop is None:
        return data, None
    try:
        return data, _find_dataset(options.calibration, options.limit, skip=options.limit)
    except UsageError:
        return data, None  # calibration uses all samples


def _find_dataset(value: Any, limit: int | None = None, skip: int = 0) -> Data:
    if isinstance(value, str | os.PathLike):
        return find_data(value, limit, skip)
    return Data.of(value).part(limit, skip)


def compute_ranges(
    model: Model, graph: Graph, plan: Plan, data: Data | None, options: Options
) -> tuple[Ranges, FloatReference]:
    """Return the ranges of the plan's edges, and the float outputs of the calibration runs.

    Raises:
        InputError: the ranges cannot be read or belong to another graph, or no image can be read.
        UsageError: the data does not fit the graph.
    """
    if plan.scheme.weights_only:
        return Ranges({}), FloatReference()
    if data is not None:
        return _calibrate(model, graph, plan, data, options)
    ranges = options.ranges
    if not isinstance(ranges, Ranges):
        assert ranges is not None, "check_options requires ranges or calibration data"
        ranges = Ranges.load(Path(ranges).expanduser())
    ranges.require_graph(graph)
    if ranges.has_other_scheme(plan.scheme.digest):
        options.on_message("the ranges were calibrated with another scheme")
    return ranges, FloatReference()


def _calibrate(model: Model, graph: Graph, plan: Plan, data: Data, options: Options) -> tuple[Ranges, FloatReference]:
    reference = FloatReference()
    state = None if options.output is None else options.output.with_name(f"{options.output.name}.calibration")
    with open_calibration_session(graph, plan, options.runtime) as session:
        samples = LabeledFeeds.of(model, session, data, options)
        _announce(graph, plan, session.runtime.name, samples, state, options)
        names = dict.fromkeys(map(str, graph.outputs))

        def record(feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
            reference.record(samples, dict(feeds), {name: outputs[name] for name in names})

        try:
            ranges = collect_ranges(
                session,
                plan,
                ((feeds, len(samples.classes)) for feeds in samples),
                graph_digest=graph_digest(graph),
                total=len(data),
                on_progress=options.on_progress,
                on_run=record,
                resume=state,
            )
        except KeyboardInterrupt:
            if state is not None and state.exists():
                options.on_message(f"calibration state saved to {state}; run the same command to resume")
            raise
    _report_unreadable(samples, options)
    reference.source = _describe_calibration(reference, len(data) - len(samples.unreadable), samples.noun)
    if options.save_ranges is not None:
        ranges.save(options.save_ranges)
    return ranges, reference


def _announce(
    graph: Graph, plan: Plan, runtime: str, samples: LabeledFeeds, state: Path | None, options: Options
) -> None:
    """Report the size of the calibration dataset, the memory bound, and a resumed state."""
    data = samples.data
    megabytes = (estimate_memory(graph, plan, runtime=runtime) + CACHE_BYTES) / 1e6
    options.on_message(
        f"calibrating on {len(data)} {samples.noun} from {data.source} (up to {megabytes:.0f} MB of memory)"
    )
    if state is not None and state.exists():
        options.on_message(f"resuming from the calibration state in {state}")
    _report_assumption(samples.preparation, options)


def _describe_calibration(reference: FloatReference, total: int, noun: str) -> str:
    """Return which calibration samples the accuracy is measured on."""
    if len(reference) == total:
        return f"{total} calibration {noun}"
    # The state of an interrupted calibration contains histograms, not outputs.
    reason = f"as many as fit {CACHE_BYTES >> 20} MB" if reference.is_full else "those after the interruption"
    return f"{len(reference)} of the {total} calibration {noun} ({reason})"


def compute_reference(model: Model, graph: Graph, data: Data, options: Options) -> FloatReference:
    """Return the outputs of the float graph on held-out data."""
    reference = FloatReference()
    with open_session(graph, options.runtime) as session:
        samples = LabeledFeeds.of(model, session, data, options)
        if options.calibration is None:
            _report_assumption(samples.preparation, options)
        for position in reference.run(session, samples):
            options.on_progress(Progress("running the float model", position, len(data)))
    _report_unreadable(samples, options)
    kind = "held-out " if options.held_out is not None else "further "
    reference.source = f"{len(reference)} {kind}{samples.noun} of {data.source}"
    return reference


def _report_assumption(preparation: Preparation, options: Options) -> None:
    if preparation.is_assumed:
        options.on_message(
            f"the preprocessing of this model is not known: {preparation} is assumed (--input-mean, --input-std)"
        )


def _report_unreadable(samples: LabeledFeeds, options: Options) -> None:
    for name, reason in samples.unreadable.items():
        options.on_message(f"skipped {name}: {reason}")
