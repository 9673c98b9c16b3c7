"""Optimization of a pipeline: rewrites that are verified on its elements, measured, and applied only if they gain."""

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from statistics import median
from time import perf_counter
from typing import Annotated, Any

from quantkit.arguments import expand_user, parse_duration, public, require_callable, require_duration, require_path
from quantkit.cores import available_cores
from quantkit.errors import QuantkitError
from quantkit.formats.files import check_target
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.options import Declaration, option, takes
from quantkit.pipelines import bridge
from quantkit.pipelines.caching import delay_shuffles, find_cache_site, free_memory, insert_cache
from quantkit.pipelines.cleanup import remove_no_ops
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.fusion import fuse_maps
from quantkit.pipelines.gain import Gain, choose, measure_gain, race
from quantkit.pipelines.optimization_report import OptimizationResult, PipelineStep
from quantkit.pipelines.parallelism import add_prefetch, parallelize
from quantkit.pipelines.schedules import PipelineSchedules
from quantkit.pipelines.short_epochs import ShortEpoch, find_short_epoch
from quantkit.pipelines.splitting import split_random_map
from quantkit.pipelines.stages import AUTOTUNE, element_types, is_one_to_one, root_of
from quantkit.pipelines.state import captured_variable, randomness
from quantkit.pipelines.vectorization import vectorize_maps
from quantkit.pipelines.verification import Comparison, compare_elements, source_of
from quantkit.progress import OnProgress, Progress, ignore_progress

DEFAULT_TIME_BUDGET = "60s"
# Rewrites of the graph alone, in their order; the cache follows `fuse_maps`.
REWRITES: dict[str, Callable[[Graph], Outcome]] = {
    "remove_no_ops": remove_no_ops,
    "vectorize_maps": vectorize_maps,
    "fuse_maps": fuse_maps,
    "parallelize": parallelize,
    "add_prefetch": add_prefetch,
}
_CACHE = "cache"
# Parts of the search, by the rewrites that each one tries together.
_PARTS = (("remove_no_ops",), ("vectorize_maps",), ("fuse_maps",), (_CACHE,), ("parallelize", "add_prefetch"))
# Time of the last measurement, as a fraction of the time of a part.
_LAST_PART = 0.5
# Fraction of the time of a part in which elements are counted.
_COUNT_FRACTION = 0.4
# Fraction of the time budget for the verification of one rewrite, and its largest fraction of the time of a part.
_VERIFY_FRACTION, _MAX_VERIFY_FRACTION = 0.04, 0.2
# Fraction of the time budget for a short epoch, and limits in seconds.
_EPOCH_FRACTION, _MIN_EPOCH, _MAX_EPOCH = 0.015, 0.03, 1.0


@dataclass(frozen=True)
class PipelineOptions:
    """The arguments of `optimize`."""

    dataset: Annotated[Any, Declaration(doc="dataset; it is not changed")]
    _: KW_ONLY
    output: str | os.PathLike[str] | None = option(
        None,
        require_path,
        metavar="GRAPH.pb",
        help="file for the optimized dataset (default: no file)",
        doc="file for the optimized dataset, which `load_dataset` reads (default: no file)",
    )
    time_budget: float | str = option(
        DEFAULT_TIME_BUDGET,
        require_duration,
        help=f"approximate time of all measurements, for example 90s (default: {DEFAULT_TIME_BUDGET})",
    )
    on_progress: OnProgress = option(ignore_progress, require_callable, doc="receives the number of finished rewrites")


@public
@takes(PipelineOptions)
def optimize(options: PipelineOptions) -> OptimizationResult:
    """Rewrite a ``tf.data.Dataset`` so that it yields the same elements at a higher rate.

    Each rewrite (maps applied to batches, fused maps, parallel calls, prefetch, a cache in memory, no stages without
    effect) is verified element by element and measured against the pipeline without it, and applied only if it gains.

    Returns:
        The result with the optimized dataset as ``.dataset``.

    Raises:
        UsageError: `dataset` is not a ``tf.data.Dataset``, or the time is not positive.
        InputError: the pipeline fails at its first element.
        UnavailableError: TensorFlow is not installed or cannot serialize the dataset, or `output` is given and the
            dataset runs Python code (``numpy_function``, ``py_function``, ``from_generator``).
    """
    dataset, output = options.dataset, options.output
    if output is not None:
        check_target(expand_user(output))
    graph = bridge.to_graph(dataset)
    if output is not None:
        bridge.check_portable(graph, dataset.element_spec)
    optimizer = _Optimizer(graph, parse_duration(options.time_budget), options.on_progress)
    final, steps, gain = optimizer.run()
    spec = dataset.element_spec
    is_changed = any(step.applied for step in steps)
    optimized = bridge.to_dataset(final, spec) if is_changed else dataset
    result = OptimizationResult(optimized, graph, final, tuple(steps), gain, spec, output, optimizer.reason)
    if output is not None:
        result.save(output)
    return result


@dataclass(frozen=True)
class _CachedPipeline:
    """Pipeline with a cache.

    Attributes:
        outcome: the pipeline.
        uncached: the same pipeline without the cache.
        stage: stage whose elements the cache holds.
        rewrites: other rewrites of the pipeline.
        comparison: verification of the pipeline.
    """

    outcome: Outcome
    uncached: Graph
    stage: str
    rewrites: tuple[str, ...]
    comparison: Comparison


class _Optimizer:
    """Search for the rewrites that gain.

    Args:
        graph: graph of the original dataset.
        budget: time of all measurements in seconds.
        on_progress: receives the number of finished parts.

    Attributes:
        reason: reason why no rewrite is tried; empty if rewrites are tried.
    """

    def __init__(self, graph: Graph, budget: float, on_progress: OnProgress) -> None:
        self._original = graph
        self._graph = graph
        self._end = perf_counter() + budget
        self._verify_seconds = budget * _VERIFY_FRACTION
        self._epoch_seconds = max(_MIN_EPOCH, min(budget * _EPOCH_FRACTION, _MAX_EPOCH))
        self._execution = Execution()
        self._on_progress = on_progress
        # Reason why only a prefetch is tried, which cannot change an element; empty if all rewrites are tried.
        self._difference = ""
        self.reason = ""
        self._applied: tuple[str, ...] = ()
        # Short epochs of all measurements from the cache on; None without a cache.
        self._epoch: ShortEpoch | None = None

    def run(self) -> tuple[Graph, list[PipelineStep], Gain | None]:
        """Return the rewritten graph, the steps, and the gain of all together."""
        self.reason = self._check_original()
        steps: list[PipelineStep] = []
        for done, names in enumerate(_PARTS):
            self._on_progress(Progress("optimizing", done, len(_PARTS), names[0]))
            # This part, those after it and the last measurement share the remaining time.
            steps += self._run_part(names, self._remaining / (len(_PARTS) - done + _LAST_PART))
        lost = {step.name for step in steps if step.applied} - set(self._applied)
        steps = [step.undone("the cache before the batches is faster") if step.name in lost else step for step in steps]
        if not self._applied:
            return self._original, steps, None
        # The applied rewrites are those whose noise was favorable: a second measurement is free of this bias.
        gain = self._measure(self._original, self._graph, self._remaining)
        if not gain.is_relevant:
            steps = [step.undone("no gain in a second measurement of all rewrites") for step in steps]
            return self._original, steps, None
        return self._graph, steps, gain

    @property
    def _remaining(self) -> float:
        return max(self._end - perf_counter(), 0.0)

    def _check_original(self) -> str:
        """Return the reason why the pipeline cannot be optimized; empty if it can.

        Raises:
            InputError: the pipeline fails at its first element.
        """
        if DType.VARIANT in element_types(root_of(self._original)):
            return "elements are sparse, ragged or datasets"
        if reason := captured_variable(self._original):
            return reason
        self._execution.check(self._original)
        control = compare_elements(self._original, self._original, self._execution, self._verify_seconds)
        if not control.num_elements and not control.difference:
            return "the pipeline has no elements"
        if control.difference:
            self._difference = f"two runs of the pipeline differ: {control.difference}"
        return ""

    def _run_part(self, names: tuple[str, ...], seconds: float) -> list[PipelineStep]:
        """Try the rewrites of one part within a time."""
        reason = self.reason
        if not reason and "add_prefetch" not in names:
            reason = self._difference
        if not reason and not seconds:
            reason = "the time budget is exhausted"
        if not reason:
            try:
                return self._try_part(names, seconds)
            except QuantkitError as error:
                reason = error.message
        return [PipelineStep(name, (), (Skip(reason),)) for name in names]

    def _try_part(self, names: tuple[str, ...], seconds: float) -> list[PipelineStep]:
        if "add_prefetch" in names:
            return self._choose_schedule(seconds)
        return [self._cache(seconds) if _CACHE in names else self._try(names[0], seconds)]

    def _try(self, name: str, seconds: float) -> PipelineStep:
        """Verify and measure one rewrite, and keep its graph if it gains."""
        outcome = REWRITES[name](self._graph)
        if not outcome.changes:
            return PipelineStep(name, (), outcome.skips)
        comparison = self._verify(outcome.graph, seconds)
        if comparison.difference:
            return PipelineStep(name, outcome.changes, outcome.skips, comparison, reason=comparison.difference)
        gain = self._measure(self._graph, outcome.graph, seconds)
        step = PipelineStep(name, outcome.changes, outcome.skips, comparison, gain, applied=gain.is_gain)
        if not gain.is_gain:
            return step.undone(gain.objection)
        self._graph, self._applied = outcome.graph, (*self._applied, name)
        return step

    def _verify(self, graph: Graph, seconds: float) -> Comparison:
        if self._difference:
            return Comparison(0)
        limit = min(self._verify_seconds, seconds * _MAX_VERIFY_FRACTION)
        return compare_elements(self._original, graph, self._execution, limit)

    def _measure(self, before: Graph, after: Graph, seconds: float) -> Gain:
        return measure_gain(self._open(before), self._open(after), self._execution, seconds)

    def _open(self, graph: Graph) -> Any:
        """Return the repeated dataset of a pipeline, with short epochs if there is a cache."""
        return self._epoch.open(graph, self._execution) if self._epoch else self._execution.open(graph)

    def _cache(self, seconds: float) -> PipelineStep:
        """Measure a cache at the end and one before the batches, and keep the faster one if it gains."""
        end = perf_counter() + seconds
        at_end, before_batches = self._cache_at_end(seconds), self._cache_before_batches(seconds)
        candidates = [each for each in (at_end, before_batches) if isinstance(each, _CachedPipeline)]
        if not candidates:
            return PipelineStep(_CACHE, (), (at_end,) if isinstance(at_end, Skip) else ())
        verified = [each for each in candidates if not each.comparison.difference]
        if not verified:
            first = candidates[0]
            return PipelineStep(_CACHE, first.outcome.changes, (), first.comparison, reason=first.comparison.difference)
        source, first = source_of(self._original), verified[0]
        stage = source.name if source else first.stage
        epoch = find_short_epoch(first.uncached, first.stage, stage, self._execution, self._epoch_seconds)
        graphs = [self._graph, *(each.outcome.graph for each in verified)]
        opened = [epoch.open(graph, self._execution) for graph in graphs]
        rates = race(opened, self._execution, max(end - perf_counter(), 0.0))
        index = choose(rates)
        tried = index or max(range(1, len(rates)), key=lambda number: median(rates[number]))
        best, gain = verified[tried - 1], Gain.of(rates[0], rates[tried])
        step = PipelineStep(_CACHE, best.outcome.changes, (), best.comparison, gain, applied=index > 0)
        if not index:
            return step.undone(gain.objection)
        self._graph, self._epoch, self._applied = best.outcome.graph, epoch, (*best.rewrites, _CACHE)
        return step

    def _cache_at_end(self, seconds: float) -> _CachedPipeline | Skip:
        """Insert a cache at the end, after maps and fixed parts of maps that can be applied before the shuffles."""
        divided = split_random_map(self._graph)
        delayed = delay_shuffles(divided.graph)
        site = find_cache_site(delayed, self._execution, seconds * _COUNT_FRACTION, free_memory())
        if isinstance(site, Skip):
            return site
        graphs: list[tuple[Graph, tuple[str, ...]]] = [
            (self._graph, ()),
            (divided.graph, divided.changes),
            (delayed, (*divided.changes, "shuffles moved after maps")),
        ]
        graph, changes = next(
            (graph, changes)
            for graph, changes in graphs
            if site.stage in graph.nodes and not randomness(graph, graph[site.stage])
        )
        cached = insert_cache(graph, site)
        cached = cached._replace(changes=(*changes, *cached.changes))
        return _CachedPipeline(cached, graph, site.stage, self._applied, self._verify(cached.graph, seconds))

    def _cache_before_batches(self, seconds: float) -> _CachedPipeline | None:
        """Insert a cache of the results of maps that were moved after a batch; None without such maps.

        After a shuffle and a batch, the results differ in every epoch. Before both, they are the same.
        """
        source = source_of(self._original)
        if source is None or "vectorize_maps" not in self._applied or not randomness(self._graph, root_of(self._graph)):
            return None
        graph = self._original
        others = tuple(name for name in self._applied if name != "vectorize_maps")
        for name in others:
            graph = REWRITES[name](graph).graph
        graph = delay_shuffles(graph)
        site = find_cache_site(graph, self._execution, seconds * _COUNT_FRACTION, free_memory())
        if isinstance(site, Skip) or not is_one_to_one(graph, site.stage, source.name):
            return None
        cached = insert_cache(graph, site)
        return _CachedPipeline(cached, graph, site.stage, others, self._verify(cached.graph, seconds))

    def _choose_schedule(self, seconds: float) -> list[PipelineStep]:
        """Choose parallel calls and a prefetch together, and verify the result."""
        schedules = PipelineSchedules(self._graph, (AUTOTUNE, 2 * available_cores()), self._difference)
        opened = [self._open(graph) for graph in schedules.graphs.values()]
        rates = race(opened, self._execution, seconds)
        winner = list(schedules.graphs)[choose(rates)]
        graph = schedules.graphs[winner]
        comparison = None if graph is self._graph else self._verify(graph, seconds)
        steps = schedules.steps(winner, dict(zip(schedules.graphs, rates, strict=True)), comparison)
        if comparison and comparison.difference:
            return [step.undone(comparison.difference) for step in steps]
        self._graph = graph
        self._applied = (*self._applied, *(step.name for step in steps if step.applied))
        return steps
