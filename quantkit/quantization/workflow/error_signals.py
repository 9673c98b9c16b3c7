"""Error signals of the layers of a conversion, and the ranking of the layers that follows."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, sqrt
from operator import itemgetter
from time import perf_counter

import numpy as np

from quantkit.errors import QuantkitError, UnavailableError
from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Array
from quantkit.progress import OnProgress, Progress
from quantkit.quantization.fallback import LayerRanking
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.cost import predict_costs
from quantkit.quantization.precision.decision import ERROR, ErrorPrediction, as_decisions
from quantkit.quantization.precision.error import ErrorProbe, Floats, tap_outputs
from quantkit.quantization.precision.search import FloatSearch
from quantkit.quantization.precision.switches import switch_quantization
from quantkit.quantization.report.census import count_node_macs, infer_sample_shapes
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.options import Options
from quantkit.runtimes import AUTO, find_runtime, observing_runtime, open_session


def rank_layers(conversion: Conversion, reference: FloatReference, options: Options) -> LayerRanking | None:
    """Return the layers of a conversion, those first whose int8 form adds most error for the time that it saves.

    Args:
        conversion: conversion with all layers in int8.
        reference: outputs of the float model.
        options: options of the quantization.

    Returns:
        None if no runtime runs the float graph, or too slowly for the time budget.
    """
    try:
        with _open_probe(conversion, reference) as run:
            probe = _find_probe(run, reference, options)
            if probe is None:
                return None
            search = find_search(conversion, probe, reference.feeds[0], options.on_progress)
            prediction = _predict(search, probe, reference)
            if not prediction.holds:
                options.on_message(
                    f"the errors of the layers do not add up: predictions deviate by {prediction.interval_db:.1f} dB"
                )
            return LayerRanking(
                search.ranking(), lambda choice: sqrt(search.errors.noise(search.switches(choice))), prediction
            )
    except QuantkitError as error:
        options.on_message(f"each layer is measured by itself: {error.message}")
        return None


def measure_noise_fractions(
    conversion: Conversion,
    reference: FloatReference,
    options: Options,
    layers: Collection[str] = (),
    other: str | None = None,
) -> dict[str, float]:
    """Return the fraction of the noise of the outputs that a layer causes, and that is missing if it alone is float.

    A search by binary splitting (Hwang, 1972) measures the layers of each half in float together, and splits the
    noisier half until one layer is measured. Then it splits the noisiest half of all, until no half causes enough
    noise for the trial of one more layer.

    Args:
        conversion: conversion with the layers.
        reference: outputs of the float model.
        options: options of the quantization.
        layers: layers to measure (default: all).
        other: layer that is float together with each of them.

    Returns:
        Fraction by layer, the largest first, for layers that may be tried; empty if the runs have too many MACs, there
        is no noise, no runtime can run the float graph, no output is real, or the sizes of one depend on values.

    Raises:
        GraphError: a runtime rejects the float graph.
    """
    plan = conversion.plan
    layers = layers or [pattern.layer for pattern in plan.patterns]
    sizes = policy.FRACTION_RUNS, policy.FRACTION_VALUES, policy.TRIAL_RUNS
    limit = _limit_runs(conversion, reference, len(layers), policy.MAX_FRACTION_MACS)
    num_runs = min(count_runs(reference.outputs, reference.states, *sizes), limit)
    if not num_runs:
        return {}
    try:
        with _open_probe(conversion, reference) as run:
            probe = run(num_runs)
            total = probe.noise(probe.switched.switches(plan))
            if not 0 < total < inf:  # NaN if values of the outputs overflow
                return {}

            def measure(group: Sequence[str]) -> float:
                decisions = as_decisions({each: "to measure its noise" for each in (*group, other) if each}, ERROR)
                return 1 - probe.noise(probe.switched.switches(conversion.decide(decisions).plan)) / total

            options.on_progress(Progress("measuring the errors of the layers", 0))
            fractions = _search_noisy(tuple(layers), measure)
    except UnavailableError:
        return {}
    return dict(sorted(fractions.items(), key=lambda item: -item[1]))


def _search_noisy(layers: Sequence[str], measure: Callable[[Sequence[str]], float]) -> dict[str, float]:
    """Return the fraction of the noise that each layer causes, for the layers that may be tried.

    Args:
        layers: layers to search.
        measure: function that returns the fraction of the noise that layers cause together.
    """

    def split(group: Sequence[str]) -> list[tuple[float, Sequence[str]]]:
        middle = (len(group) + 1) // 2
        halves = [half for half in (group[middle:], group[:middle]) if half]
        return sorted(((measure(half), half) for half in halves), key=itemgetter(0))

    pending, fractions = split(layers), dict[str, float]()
    while pending:
        # With each layer, the next one may need less: halves that were measured before may reach this fraction.
        if fractions:
            pending.sort(key=itemgetter(0))
        fraction, group = pending.pop()
        if fraction < _least_fraction(fractions.values()):
            break
        if len(group) == 1:
            fractions[group[0]] = fraction
        else:
            pending += split(group)
    return fractions


def _least_fraction(fractions: Iterable[float]) -> float:
    """Return the fraction of the noise from which one more layer may be tried, after those with these fractions."""
    largest = sorted(fractions, reverse=True)[: policy.NUM_NOISY_LAYERS]
    if len(largest) == policy.NUM_NOISY_LAYERS:
        return largest[-1]
    return policy.MIN_NOISE_FRACTION * max(1 - sum(largest), 0.0) if largest else -inf


def measure_gains(
    conversion: Conversion, refined: Conversion, reference: FloatReference, options: Options
) -> tuple[dict[frozenset[Edge], Floats], Floats]:
    """Return the noise of the outputs that more precise number formats remove, and the noise of both conversions.

    Args:
        conversion: conversion in the formats of its scheme.
        refined: the same with more precise formats of some edges.
        reference: outputs of the float model.
        options: options of the quantization.

    Returns:
        Noise that the format of a group of edges alone removes, (outputs,), by group; noise of all quantizations in the
        formats of each conversion, (2, outputs). All are relative to the power of the output.

    Raises:
        UnavailableError: the runs have too many MACs, no runtime can run the float graph, no output is real, or the
            sizes of one depend on values.
        GraphError: a runtime rejects the float graph.
    """
    noises, totals = list[Floats](), list[Floats]()
    before, after = (each.plan.activations for each in (conversion, refined))
    groups = list(dict.fromkeys(refined.plan.group_of(edge) for edge in after if after[edge] != before[edge]))
    limit = _limit_runs(conversion, reference, 2 * len(groups), policy.MAX_GAIN_MACS)
    if not limit:
        raise UnavailableError("the errors of the tensors are not measured: the runs would take too long")
    for each in (conversion, refined):
        with _open_probe(each, reference) as run:
            probe = run(min(count_runs(reference.outputs, reference.states), limit))
            switched = probe.switched
            rows = np.array([[switch == group for switch in switched.groups] for group in groups])
            rows = np.pad(rows, ((0, 0), (0, len(switched.layers))))
            noises.append(np.array([probe.noises(row) for row in rows]))
            totals.append(probe.noises(switched.switches(each.plan)))
    return dict(zip(groups, noises[0] - noises[1], strict=True)), np.array(totals)


def _limit_runs(conversion: Conversion, reference: FloatReference, num_choices: int, max_macs: float) -> int:
    """Return the largest number of runs of each choice; 0 if one has too many MACs."""
    layers = [pattern.layer for pattern in conversion.plan.patterns]
    macs = count_node_macs(conversion.graph, layers, reference.sample_shapes)
    macs_of_run = num_choices * sum(count or 0 for count in macs.values())
    return min(len(reference.feeds), int(max_macs // max(macs_of_run, 1)))


def find_search(
    conversion: Conversion, probe: ErrorProbe, feeds: Mapping[str, Array], on_progress: OnProgress
) -> FloatSearch:
    """Return the search over the layers of a conversion, with an error model that is fitted to measured choices.

    Args:
        conversion: conversion with all layers in int8.
        probe: runs of its switched graph.
        feeds: feeds of one run.
        on_progress: receives the progress.
    """
    count = len(probe.switched)
    errors = probe.measure(lambda done: on_progress(Progress("measuring the errors of the layers", done, count)))
    shapes = infer_sample_shapes(conversion.graph, {name: array.shape for name, array in feeds.items()})
    costs = predict_costs(conversion.graph, conversion.plan, shapes, conversion.target.runtimes)
    search = FloatSearch(conversion.graph, conversion.plan, errors, costs)
    choices = dict.fromkeys((frozenset[str](), *draw_choices(search.layers, policy.NUM_CHECKS - 1)))
    measured = [(row, probe.noise(row.astype(bool))) for row in map(search.switches, choices)]
    # A choice without an int8 layer has no noise.
    search.errors = errors.fit([(row, noise) for row, noise in measured if noise > 0])
    return search


def count_runs(
    outputs: Sequence[Mapping[str, Array]],
    states: Mapping[str, str],
    least: int = policy.SIGNAL_RUNS,
    num_values: int = policy.SIGNAL_VALUES,
    most: int = policy.MAX_SIGNAL_RUNS,
) -> int:
    """Return the number of runs that measure the noise of the outputs, at most `policy.SIGNAL_STEPS` of a state.

    Args:
        outputs: outputs of each run of the float model, by name.
        states: output of each state by the name of its input, for a recurrent model.
        least, most: limits of the number of runs.
        num_values: number of values of each output in all runs: the energy of few values is mostly chance.
    """
    if states:
        return policy.SIGNAL_STEPS
    values = min((array.size for array in outputs[0].values() if array.dtype.kind == "f"), default=1)
    return min(max(least, -(-num_values // max(values, 1))), most)


def draw_choices(layers: Sequence[str], count: int, seed: int = 0) -> Iterator[frozenset[str]]:
    """Yield random choices of float layers, of few to almost all layers."""
    random = np.random.default_rng(seed)
    for number in range(count):
        yield frozenset(layer for layer in layers if random.random() < (number + 0.5) / count)


def _predict(search: FloatSearch, probe: ErrorProbe, reference: FloatReference) -> ErrorPrediction:
    """Return the predicted errors of the layers."""
    errors = search.errors
    total = errors.noise(search.switches(frozenset()))
    gains = {layer: sqrt(total) - sqrt(errors.noise(search.switches(frozenset({layer})))) for layer in search.layers}
    samples = probe.num_runs * max(reference.rows, 1)
    return ErrorPrediction(gains, errors.rms_db, errors.interval_db, errors.holds, samples)


def _find_probe(run: Callable[[int], ErrorProbe], reference: FloatReference, options: Options) -> ErrorProbe | None:
    """Return a probe of as many runs as error signals need; None if those of one run would take too long."""
    start = perf_counter()
    probe = run(1)
    seconds = max((perf_counter() - start) * len(probe.switched), 1e-9)
    limit = int(policy.SIGNAL_FRACTION * options.seconds / seconds)
    count = min(count_runs(reference.outputs, reference.states), len(reference.feeds), limit)
    return run(count) if count else None


@contextmanager
def _open_probe(conversion: Conversion, reference: FloatReference) -> Iterator[Callable[[int], ErrorProbe]]:
    """Open the switched graph; return a function that runs it on the first feeds.

    Args:
        conversion: conversion with the layers.
        reference: outputs of the float model.

    Raises:
        UnavailableError, GraphError: no runtime can run the graph.
    """
    graph, states = conversion.graph, reference.states
    switched = switch_quantization(graph, conversion.plan, conversion.ranges)
    # Not the fastest one: the conversion of hundreds of conditions to another dialect takes longer than the runs.
    native = observing_runtime(graph.dialect)
    runtime = native if find_runtime(native).available().ok else AUTO
    with open_session(tap_outputs(switched.graph), runtime) as session:
        yield lambda count: ErrorProbe(switched, session, reference.feeds[:count], reference.outputs[:count], states)
