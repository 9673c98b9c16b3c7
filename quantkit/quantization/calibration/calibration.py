"""Calibration: run samples through the float graph, and compute a range for every edge that is quantized.

While the runtime computes one run, a thread observes the outputs of the run before. So memory holds the tensors of
two runs and one histogram per edge; the number of samples does not matter.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from quantkit.arguments import (
    expand_user,
    public,
    require_callable,
    require_path,
    require_text,
    type_name,
    without_none,
)
from quantkit.data.pipeline import ARRAYS_UNCHANGED
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import InputError, UsageError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model, as_model
from quantkit.ops.shape_inference import infer_shapes
from quantkit.progress import OnProgress, Progress, ignore_progress
from quantkit.quantization.annotation import in_target_dialect
from quantkit.quantization.calibration.observation import Observation
from quantkit.quantization.calibration.state import CalibrationState
from quantkit.quantization.observers import BINS
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.runtimes import AUTO, Runtime, find_runtime, observing_runtime, open_session
from quantkit.runtimes.session import Session, SessionOptions, TensorInfo

Feeds = Mapping[str, Array]
Batch = Array | Feeds
# Memory limit of the observed tensors of one run, if the graph accepts any batch size.
RUN_BYTES = 32 << 20
LARGEST_BATCH = 64


@public
def calibrate(
    graph: Graph | Model,
    plan: Plan,
    batches: Iterable[Batch],
    *,
    runtime: str = AUTO,
    on_progress: OnProgress = ignore_progress,
    resume: str | os.PathLike[str] | None = None,
) -> Ranges:
    """Run samples through a float graph and return the range of every edge that the plan quantizes.

    Args:
        graph: annotated float graph, with inputs and outputs; converted as in `annotate` if it has the other dialect.
        plan: decisions about the graph.
        batches: arrays of samples (n, ...) for the only input, or such arrays by input name.
        runtime: runtime of the float graph; ``auto`` is the fastest that can run it.
        on_progress: callback for the number of finished samples.
        resume: file for the state of an interrupted calibration.

    Raises:
        InputError: there is no sample.
        UsageError: a sample does not fit the input.
        UnavailableError: no runtime can run the graph.
    """
    if isinstance(batches, str | os.PathLike):
        raise UsageError(
            f"batches are arrays, and {os.fspath(batches)!r} is a path",
            hint="use quantkit.quantize, which reads files, or read the file first: [np.load(FILE)]",
        )
    if not isinstance(batches, Iterable):
        raise UsageError(f"batches is {type_name(batches)}, and must be an iterable of arrays", hint="pass [array]")
    if not isinstance(plan, Plan):
        raise UsageError(f"plan is {type_name(plan)}, and must be a Plan", hint="annotate(graph, scheme) returns one")
    require_text(runtime=runtime)
    require_path(**without_none(resume=resume))
    require_callable(on_progress=on_progress)
    graph = in_target_dialect(as_model(graph).graph, plan.scheme.target)
    state = None if resume is None else expand_user(resume)
    with open_calibration_session(graph, plan, runtime) as session:
        runs = split_batches(session.inputs, batches, choose_batch(graph, plan))
        return collect_ranges(session, plan, runs, graph=graph, on_progress=on_progress, resume=state)


def estimate_memory(graph: Graph, plan: Plan, *, runtime: str = AUTO, batch: int = 1) -> int:
    """Return an upper bound for the memory of a calibration in bytes, without Python and the runtime's own code.

    The runtime keeps the weights, the copies that it makes while it loads, its working tensors and the observed ones.
    Calibration adds the observed tensors of two runs and the histograms.
    """
    shapes = infer_shapes(graph)
    weights = sum(node.value.num_bytes for node in graph.nodes.values() if node.is_constant)
    sizes = {edge: prod(size or batch for size in shape.dims or ()) * 4 for edge, shape in shapes.items()}
    activations = sum(size for edge, size in sizes.items() if not graph[edge.node].is_constant)
    observed = sum(sizes.get(edge, 0) for edge in {*plan.edges, *plan.mean_edges})
    copies = find_runtime(runtime).weight_copies if runtime != AUTO else Runtime.weight_copies
    return copies * weights + activations + 3 * observed + len(plan.edges) * BINS * 16


def open_calibration_session(graph: Graph, plan: Plan, runtime: str = AUTO, *, varies: bool = False) -> Session:
    """Open a session whose outputs are the edges that the plan observes, and the graph's outputs.

    The outputs of a run are valid until the second run after it begins: a copy of all observed tensors would take about
    as long as the run itself.

    With ``auto`` an ONNX graph runs in the runtime of its dialect, if that is available: it has every op, in float.
    With ``varies``, samples have different sizes.

    Raises:
        UnavailableError: no runtime can run the graph.
        GraphError: the runtime rejects the graph.
    """
    inputs = set(graph.inputs)
    edges = dict.fromkeys(edge for edge in (*graph.outputs, *plan.edges, *plan.mean_edges) if edge not in inputs)
    options = SessionOptions(reuse_outputs=True, varying_sizes=varies)
    return open_session(graph.with_endpoints(None, edges), choose_float_runtime(graph, runtime), options)


def choose_float_runtime(graph: Graph, runtime: str) -> str:
    """Return the runtime of a float graph: for an ONNX graph and ``auto`` the best one that keeps its tensors."""
    if runtime != AUTO or graph.dialect != onnx.DIALECT:
        return runtime
    name = observing_runtime(graph.dialect)
    return name if find_runtime(name).available().ok else AUTO


def choose_batch(graph: Graph, plan: Plan) -> int:
    """Return the number of samples per run: the graph's batch size, else as many as fit `RUN_BYTES`."""
    shapes = infer_shapes(graph)
    first = shapes.get(graph.inputs[0]) if graph.inputs else None
    if first is None or not first.dims:
        return 1
    if first.dims[0] is not None:
        return first.dims[0]
    sample = sum(prod(size or 1 for size in shapes[edge].dims or ()) * 4 for edge in plan.edges if edge in shapes)
    return int(np.clip(RUN_BYTES // max(sample, 1), 1, LARGEST_BATCH))


def collect_ranges(
    session: Session,
    plan: Plan,
    runs: Iterable[tuple[Feeds, int]],
    *,
    graph: Graph | None = None,
    total: int | None = None,
    on_progress: OnProgress = ignore_progress,
    on_run: Callable[[Feeds, Feeds], None] = lambda feeds, outputs: None,
    preprocessing: Preprocessing | str = ARRAYS_UNCHANGED,
    resume: Path | None = None,
    on_message: Callable[[str], object] = lambda message: None,
) -> Ranges:
    """Observe runs of a session and return the range of every edge that the plan quantizes.

    Args:
        session: session of `open_calibration_session`.
        plan: decisions about the graph.
        runs: feeds of each run with their number of samples.
        graph: float graph, for the provenance, and for the names and channel axes of the edges of an ONNX graph.
        total: number of all samples, for the progress.
        on_progress: callback for the number of finished samples.
        on_run: callback for feeds and outputs of each run; the session reuses the outputs after the call.
        preprocessing: preprocessing of the samples, for the provenance.
        resume: file for the observations of an interrupted calibration. If it exists and belongs to the same graph,
            scheme and data, its samples do not run again. It is removed at the end.
        on_message: callback for the message that the calibration resumes.

    Raises:
        InputError: there is no sample, or the state belongs to other data.
        UsageError: a sample does not fit the input.
    """
    observation = Observation(plan, session, graph)
    state = CalibrationState(resume, observation)
    if state.load():
        on_message(f"resuming from the calibration state in {resume}")
    with ThreadPoolExecutor(1) as thread:
        pending: Future[None] | None = None
        try:
            for feeds, count in runs:
                if observation.skips(feeds, count):
                    continue
                outputs = session.run(feeds)
                on_run(feeds, outputs)
                if pending is not None:
                    pending.result()
                    state.save()
                    on_progress(Progress("calibrating", observation.count, total))
                pending = thread.submit(observation.observe, feeds, outputs, count)
        finally:
            if pending is not None:
                pending.result()
                state.save(is_last=True)
    on_progress(Progress("calibrating", observation.count, total))
    observation.require_resumed_samples()
    if not observation.count:
        raise InputError("the calibration dataset has no samples", hint="give at least one; a few dozen are usual")
    on_progress(Progress("computing the ranges", 0))
    ranges = observation.ranges()
    state.remove()
    return replace(ranges, provenance=replace(ranges.provenance, preprocessing=preprocessing))


def split_batches(
    inputs: tuple[TensorInfo, ...], batches: Iterable[Batch], size: int
) -> Iterator[tuple[dict[str, Array], int]]:
    """Yield feeds of at most ``size`` samples each, with their number of samples.

    Raises:
        UsageError: an array names no input, or arrays of one batch have different batch sizes.
    """
    infos = {info.name: info for info in inputs}
    for batch in batches:
        arrays = {name: _fit(np.asarray(array), infos.get(name)) for name, array in _by_name(inputs, batch).items()}
        counts = {len(array) if array.ndim else 0 for array in arrays.values()}
        if len(counts) != 1:
            raise UsageError(
                "the arrays of one batch differ in their first dimension",
                hint="the first dimension is the batch",
            )
        count = counts.pop()
        for start in range(0, count, size):
            feeds = {name: array[start : start + size] for name, array in arrays.items()}
            yield feeds, min(size, count - start)


def _by_name(inputs: tuple[TensorInfo, ...], batch: Batch) -> Feeds:
    if isinstance(batch, Mapping):
        return batch
    if len(inputs) == 1:
        return {inputs[0].name: batch}
    raise UsageError(
        f"cannot tell which of the {len(inputs)} inputs an array is for",
        hint=f"pass arrays by input name: {', '.join(info.name for info in inputs)}",
    )


def _fit(array: Array, info: TensorInfo | None) -> Array:
    """Return the array in the input's precision; flat samples are reshaped to the input's shape."""
    if info is None:
        return array
    dims = info.shape.dims or ()
    if array.ndim == 2 and len(dims) > 2 and array.shape[1] == prod(size or 0 for size in dims[1:]):
        array = array.reshape(len(array), *(size or 1 for size in dims[1:]))
    are_floats = array.dtype.kind == "f" and info.dtype.numpy.kind == "f"
    return array.astype(info.dtype.numpy, copy=False) if are_floats else array
