"""Optimization of a pipeline: rewrites that are verified on its elements, measured, and applied only if they gain."""

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

from quantkit.arguments import expand_user, parse_duration, public, require_path, without_none
from quantkit.errors import QuantkitError
from quantkit.formats.files import check_target
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.pipelines import bridge
from quantkit.pipelines.caching import (
    delay_shuffles,
    find_cache_site,
    free_memory,
    insert_after,
    insert_cache,
)
from quantkit.pipelines.cleanup import remove_no_ops
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.fusion import fuse_maps
from quantkit.pipelines.gain import Gain, measure_gain
from quantkit.pipelines.optimization_report import OptimizationResult, PipelineStep
from quantkit.pipelines.parallelism import add_prefetch, parallelize
from quantkit.pipelines.stages import element_shapes, element_types, is_one_to_one, root_of
from quantkit.pipelines.state import captured_variable, randomness
from quantkit.pipelines.vectorization import vectorize_maps
from quantkit.pipelines.verification import Comparison, compare_elements, source_of
from quantkit.progress import OnProgress, Progress, ignore_progress

DEFAULT_TIME_BUDGET = "60s"
# Rewrites of the graph alone, in their order; `cache` follows, which needs the number of elements.
REWRITES: dict[str, Callable[[Graph], Outcome]] = {
    "remove_no_ops": remove_no_ops,
    "vectorize_maps": vectorize_maps,
    "fuse_maps": fuse_maps,
    "parallelize": parallelize,
    "add_prefetch": add_prefetch,
}
_CACHE = "cache"
# Rewrites that cannot change an element: they are allowed if the elements of two runs differ.
_NEUTRAL = frozenset({"add_prefetch"})
# Fractions of the time budget for the verification and the measurement of one rewrite.
_VERIFY_FRACTION, _MEASURE_FRACTION = 0.04, 0.1
# Rewrites that are tried again with the cache, which makes other stages the slowest ones.
_AFTER_CACHE = ("parallelize", "add_prefetch")
# Gain of a single rewrite that needs no second measurement.
_CLEAR_GAIN = 1.5
# Duration of an epoch of the pipelines that measure a cache, and their warm-up, in which the cache is filled.
_CACHE_EPOCH, _CACHE_WARMUP = 0.3, 1.0
# Both are shorter if the time budget in seconds is below this, down to a fraction.
_LONG_BUDGET, _MIN_FRACTION = 10.0, 0.1


@public
def optimize(
    dataset: Any,
    *,
    output: str | os.PathLike[str] | None = None,
    time_budget: float | str = DEFAULT_TIME_BUDGET,
    on_progress: OnProgress = ignore_progress,
) -> OptimizationResult:
    """Rewrite a ``tf.data.Dataset`` so that it yields the same elements at a higher rate.

    Each rewrite (maps applied to batches, fused maps, parallel calls, prefetch, a cache in memory, no stages without
    effect) is verified element by element and measured against the pipeline without it, and applied only if it gains.

    Args:
        dataset: dataset; it is not changed.
        output: file for the optimized dataset, which `load_dataset` reads (default: no file).
        time_budget: approximate time of all measurements in seconds, or a text such as ``60s`` or ``5m``.
        on_progress: receives the number of finished rewrites.

    Returns:
        The result with the optimized dataset as ``.dataset``.

    Raises:
        UsageError: `dataset` is not a ``tf.data.Dataset``, or the time is not positive.
        InputError: the pipeline fails at its first element.
        UnavailableError: TensorFlow is not installed or cannot serialize the dataset.
    """
    require_path(**without_none(output=output))
    budget = parse_duration(time_budget, "time_budget")
    if output is not None:
        check_target(expand_user(output))
    graph = bridge.to_graph(dataset)
    optimizer = _Optimizer(graph, budget, on_progress)
    final, steps, gain = optimizer.run()
    spec = dataset.element_spec
    is_changed = any(step.applied for step in steps)
    optimized = bridge.to_dataset(final, spec) if is_changed else dataset
    result = OptimizationResult(optimized, graph, final, tuple(steps), gain, spec, output, optimizer.reason)
    if output is not None:
        result.save(output)
    return result


class _Optimizer:
    """Search for the rewrites that gain.

    Args:
        graph: graph of the original dataset.
        budget: time of all measurements in seconds.
        on_progress: receives the number of finished rewrites.

    Attributes:
        reason: reason why no rewrite is tried; empty if rewrites are tried.
    """

    def __init__(self, graph: Graph, budget: float, on_progress: OnProgress) -> None:
        self._original = graph
        self._graph = graph
        self._budget = budget
        self._verify_seconds = budget * _VERIFY_FRACTION
        self._measure_seconds = budget * _MEASURE_FRACTION
        fraction = max(_MIN_FRACTION, min(1.0, budget / _LONG_BUDGET))
        self._epoch_seconds, self._warmup_seconds = fraction * _CACHE_EPOCH, fraction * _CACHE_WARMUP
        self._execution = Execution()
        self._on_progress = on_progress
        self._difference = ""
        self.reason = ""
        self._applied: list[str] = []
        # Graph before the cache, stage before the cache, and number of its elements in a short epoch.
        self._uncached = graph
        self._epoch: tuple[str, int] | None = None

    def run(self) -> tuple[Graph, list[PipelineStep], Gain | None]:
        """Return the rewritten graph, the steps, and the gain of all together."""
        end = perf_counter() + self._budget
        self.reason = self._check_original()
        steps: list[PipelineStep] = []
        names = [*REWRITES, _CACHE]
        for done, name in enumerate(names):
            self._on_progress(Progress("optimizing", done, len(names), name))
            if self.reason:
                steps.append(PipelineStep(name, (), (Skip(self.reason),)))
            elif self._difference and name not in _NEUTRAL:
                steps.append(PipelineStep(name, (), (Skip(f"two runs of the pipeline differ: {self._difference}"),)))
            elif perf_counter() > end and name != _CACHE:  # a cache often has the largest gain
                steps.append(PipelineStep(name, (), (Skip("the time budget is exhausted"),)))
            else:
                steps.append(self._run_step(name))
        remaining = {*self._applied, _CACHE}
        steps = [
            step if step.name in remaining else step.undone("the cache before the batches is faster") for step in steps
        ]
        for name in _AFTER_CACHE:
            if self._epoch and name not in self._applied and (name in _NEUTRAL or perf_counter() < end):
                self._on_progress(Progress("optimizing", len(names), len(names), f"{name} with the cache"))
                steps.append(self._run_step(name))
        applied = [step for step in steps if step.applied]
        if not applied:
            return self._original, steps, None
        only = applied[0].gain if len(applied) == 1 else None
        # The chosen rewrites are those whose noise was favorable: a second measurement is free of this bias.
        gain = only if only is not None and only.ratio >= _CLEAR_GAIN else self._overall()
        if not gain.is_relevant:
            steps = [step.undone("no gain in a second measurement of all rewrites") for step in steps]
            return self._original, steps, None
        return self._graph, steps, gain

    def _run_step(self, name: str) -> PipelineStep:
        try:
            return self._cache() if name == _CACHE else self._try(name, REWRITES[name](self._graph))
        except QuantkitError as error:
            return PipelineStep(name, (), (Skip(error.message),))

    def _overall(self) -> Gain:
        """Return the gain of all steps: of those before the cache times that of the cache and the later ones."""
        if self._epoch is None:
            return self._measure(self._original, self._graph)
        cached = self._measure_epochs(self._uncached, self._graph, self._epoch)
        if self._uncached is self._original:
            return cached
        before = self._measure(self._original, self._uncached)
        return Gain(before.before, tuple(rate * cached.ratio for rate in before.after))

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
        self._difference = control.difference
        return ""

    def _try(self, name: str, outcome: Outcome) -> PipelineStep:
        """Verify and measure one rewrite, and keep its graph if it gains."""
        if not outcome.changes:
            return PipelineStep(name, (), outcome.skips)
        comparison = self._verify(outcome.graph)
        if comparison.difference:
            return PipelineStep(name, outcome.changes, outcome.skips, comparison, reason=comparison.difference)
        graphs = self._graph, outcome.graph
        gain = self._measure_epochs(*graphs, self._epoch) if self._epoch else self._measure(*graphs)
        step = PipelineStep(name, outcome.changes, outcome.skips, comparison, gain, applied=gain.is_gain)
        if not gain.is_gain:
            return step.undone("no gain")
        self._graph = outcome.graph
        self._applied.append(name)
        return step

    def _verify(self, graph: Graph) -> Comparison:
        if self._difference:
            return Comparison(0)
        return compare_elements(self._original, graph, self._execution, self._verify_seconds)

    def _measure(self, before: Graph, after: Graph) -> Gain:
        return measure_gain(before, after, self._execution, self._measure_seconds)

    def _measure_epochs(self, before: Graph, after: Graph, epoch: tuple[str, int]) -> Gain:
        """Measure from the second epoch on, with short epochs.

        Args:
            before, after: graphs of datasets.
            epoch: stage and number of its elements in an epoch.
        """
        first, second = (_shorten_epoch(graph, *epoch) for graph in (before, after))
        return measure_gain(first, second, self._execution, self._measure_seconds, warmup=self._warmup_seconds)

    def _cache(self) -> PipelineStep:
        """Verify and measure a cache at the end and before the batches, and keep the faster one."""
        step = self._cache_at_end()
        return self._cache_before_batches() or step

    def _cache_at_end(self) -> PipelineStep:
        """Verify and measure a cache, after maps that can be applied before their shuffles."""
        graph = delay_shuffles(self._graph)
        site = find_cache_site(graph, self._execution, self._measure_seconds, free_memory())
        if isinstance(site, Skip):
            return PipelineStep(_CACHE, (), (site,))
        is_random = bool(randomness(self._graph, self._graph[site.stage]))
        cached = insert_cache(graph if is_random else self._graph, site)
        changes = (*(["shuffles moved after maps"] if is_random else []), *cached.changes)
        comparison = self._verify(cached.graph)
        if comparison.difference:
            return PipelineStep(_CACHE, changes, (), comparison, reason=comparison.difference)
        epoch = site.stage, self._count_for(self._epoch_seconds, self._graph, site.stage)
        gain = self._measure_epochs(self._graph, cached.graph, epoch)
        step = PipelineStep(_CACHE, changes, (), comparison, gain, applied=gain.is_gain)
        if not gain.is_gain:
            return step.undone("no gain")
        self._uncached, self._graph, self._epoch = self._graph, cached.graph, epoch
        return step

    def _cache_before_batches(self) -> PipelineStep | None:
        """Verify and measure a cache of the results of maps that were moved after a batch; None without a gain.

        After a shuffle and a batch, the results differ in every epoch. Before both, they are the same.
        """
        source = source_of(self._original)
        if source is None or "vectorize_maps" not in self._applied or not randomness(self._graph, root_of(self._graph)):
            return None
        graph = self._original
        others = [name for name in self._applied if name != "vectorize_maps"]
        for name in others:
            graph = REWRITES[name](graph).graph
        graph = delay_shuffles(graph)
        site = find_cache_site(graph, self._execution, self._measure_seconds, free_memory())
        if isinstance(site, Skip) or not is_one_to_one(graph, site.stage, source.name):
            return None
        cached = insert_cache(graph, site)
        comparison = self._verify(cached.graph)
        epoch = source.name, self._count_for(self._epoch_seconds, graph, site.stage)
        if comparison.difference or not self._measure_epochs(self._graph, cached.graph, epoch).is_gain:
            return None
        gain = self._measure_epochs(self._original, cached.graph, epoch)
        self._uncached, self._graph, self._epoch, self._applied = self._original, cached.graph, epoch, others
        return PipelineStep(_CACHE, cached.changes, (), comparison, gain, applied=True)

    def _count_for(self, seconds: float, graph: Graph, stage: str) -> int:
        """Return the number of elements of a stage in a time, at least 1."""
        end = perf_counter() + seconds
        count = 0
        for _ in self._execution.elements(graph, graph[stage]):
            count += 1
            if perf_counter() > end:
                break
        return max(count, 1)


def _shorten_epoch(graph: Graph, stage: str, count: int) -> Graph:
    """Return the pipeline with the first elements of a stage only."""
    node = graph[stage]
    limit = constant("quantkit/short_epoch/count", count, DType.INT64)
    spec: dict[str, Attr] = {"output_types": element_types(node), "output_shapes": element_shapes(node)}
    inputs = (Edge(stage), Edge(limit.name))
    take = Node("quantkit/short_epoch_stage", "TakeDataset", inputs, attrs={**spec, "metadata": b""})
    return insert_after(graph, stage, (limit, take))
