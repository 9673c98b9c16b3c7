"""Equalized start of a fine-tuning: consecutive layers with equal scales, and ranges of their new tensors.

A layer with one scale for all weights, or a tensor with one scale for all channels, leaves few quantized values for its
smaller channels. Training moves a weight by a few quantization steps, and cannot restore the lost values.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.quantization.annotation import annotate
from quantkit.quantization.calibration import choose_float_runtime, collect_ranges, open_calibration_session
from quantkit.quantization.calibration.observation import channels_first_edges, tensor_name
from quantkit.quantization.corrections import equalize
from quantkit.quantization.finetuning.samples import SampleStore
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import targets
from quantkit.runtimes import open_session
from quantkit.runtimes.session import Session


def equalize_layers(graph: Graph, plan: Plan, store: SampleStore, runtime: str) -> tuple[Graph, Ranges] | None:
    """Return an equalized graph with the ranges of its tensors; None if no layers can be equalized.

    Args:
        graph: float graph.
        plan: plan of ``graph``.
        store: samples for the maxima of channels, and for the ranges.
        runtime: runtime of the float graph, or ``auto``.

    Raises:
        UnavailableError, GraphError: the runtime cannot run the graph.
    """
    float_patterns = _find_float_patterns(graph, plan)
    patterns = [pattern for pattern in (*plan.patterns, *float_patterns) if pattern.weights]
    inputs = {pattern.input for pattern in patterns}
    edges = [pattern.output for pattern in patterns if pattern.output in inputs and pattern.output in plan.activations]
    if not edges:
        return None
    equalized = equalize(graph, plan, _observe_maxima(graph, plan, edges, store, runtime), float_patterns)
    if equalized == graph:
        return None
    with open_calibration_session(equalized, plan, runtime) as session:
        runs = zip(_read_runs(session, store), store.counts, strict=True)
        return equalized, collect_ranges(session, plan, runs, graph=equalized)


def _find_float_patterns(graph: Graph, plan: Plan) -> list[FusedPattern]:
    """Return the patterns of the layers that the target keeps in float, for example depthwise convolutions."""
    target = next(target.name for target in targets().values() if target.dialect == graph.dialect)
    patterns = annotate(graph, Scheme.for_target(target)).patterns
    return [pattern for pattern in patterns if pattern.weights and not plan.pattern_of.keys() & {*pattern.nodes}]


def _observe_maxima(
    graph: Graph, plan: Plan, edges: Sequence[Edge], store: SampleStore, runtime: str
) -> dict[Edge, Array]:
    """Return the largest absolute value of each channel, (c,), by edge, over all samples."""
    maxima: dict[Edge, Array] = {}
    channels_first = channels_first_edges(graph, plan)
    with open_session(graph.with_endpoints(None, edges), choose_float_runtime(graph, runtime)) as session:
        for feeds in _read_runs(session, store):
            outputs = session.run(feeds)
            for edge in edges:
                values = outputs[tensor_name(graph, edge)]
                rows = np.moveaxis(values, 1, -1) if edge in channels_first else values
                largest = np.abs(rows).reshape(-1, rows.shape[-1]).max(0)
                maxima[edge] = np.maximum(maxima.get(edge, largest), largest)
    return maxima


def _read_runs(session: Session, store: SampleStore) -> Iterator[Mapping[str, Array]]:
    for run in range(len(store)):
        feeds, _, _ = store.read([run])
        yield {info.name: array for info, array in zip(session.inputs, feeds, strict=True)}
