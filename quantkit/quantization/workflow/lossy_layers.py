"""Float fallbacks for layers that lose precision, if the outputs are then nearer to the float model."""

from collections.abc import Iterator, Mapping
from itertools import islice
from math import ceil

from quantkit.quantization.lost_channels import find_lossy_layers
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.decision import ERROR, as_decisions
from quantkit.quantization.report.census import count_node_macs
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.error_signals import measure_noise_fractions
from quantkit.quantization.workflow.trials import Trials


def exclude_lossy_layers(trials: Trials) -> None:
    """Offer the float forms of the layers that lose channels, unless they are many."""
    plan = trials.present.plan
    reasons = find_lossy_layers(plan, trials.present.ranges)
    if reasons and len(reasons) <= policy.MAX_LAYERS * len(plan.patterns):
        _try_float(trials, reasons, policy.MAX_FLOAT_LOSS)


def exclude_products(trials: Trials) -> None:
    """Offer the float forms of the products of two activations."""
    products = [pattern.layer for pattern in trials.present.plan.patterns if not pattern.weights]
    if products:
        reason = "a product of two activations loses precision in int8"
        _try_float(trials, dict.fromkeys(products, reason), policy.MAX_CHEAP_LOSS)


def exclude_last_layers(trials: Trials) -> None:
    """Offer the float forms of the last layers if they are small, then of those before them.

    Their int8 outputs would be the outputs of the model, whose rounding no later layer averages.
    """
    graph, plan = trials.present.graph, trials.present.plan
    macs = count_node_macs(graph, (pattern.layer for pattern in plan.patterns), trials.samples.sample_shapes)
    total = sum(count or 0 for count in macs.values())
    reason = "rounding of the last layers is rounding of the outputs"
    for max_macs, max_loss in policy.LAST_LAYERS:
        layers = _find_last_layers(trials.present)
        if not layers or sum(macs[name] or 0 for name in layers) > max_macs * total:
            break
        if not _try_float(trials, dict.fromkeys(layers, reason), max_loss):
            break


def _find_last_layers(conversion: Conversion) -> list[str]:
    """Return the int8 layers without an int8 layer after them."""
    layers = {pattern.layer for pattern in conversion.plan.patterns}
    graph = conversion.graph
    inner: set[str] = set()
    for name in reversed(graph.order):
        if any(use.node.name in layers or use.node.name in inner for use in graph.node_uses.get(name, ())):
            inner.add(name)
    return sorted(layers - inner)


def exclude_noisy_layers(trials: Trials) -> None:
    """Offer the float forms of the layers whose int8 form causes most of the loss.

    The noise of each layer is measured on a few samples, in one session of the float graph. The layers with most noise
    are tried one after the other, if it is large enough for a trial to succeed. One layer at least stays in int8.
    """
    num_layers = sum(bool(pattern.weights) for pattern in trials.present.plan.patterns)
    max_layers = min(max(policy.MAX_LAYERS * num_layers, policy.MIN_LAYERS), num_layers - 1)
    causes = _find_causes(trials)
    num_float, rest = 0, 1.0
    for layer, (fraction, reason) in islice(causes.items(), policy.NUM_NOISY_LAYERS):
        is_small = fraction < policy.MIN_NOISE_FRACTION * rest
        if is_small or num_float + 1 > max_layers or trials.is_good(trials.present):
            break
        if _try_float(trials, {layer: reason}, policy.MAX_FLOAT_LOSS):
            num_float, rest = num_float + 1, max(rest - fraction, 0.0)
    if not num_float and max_layers >= 2:
        _exclude_noisy_pair(trials, causes)


def _find_causes(trials: Trials) -> dict[str, tuple[float, str]]:
    """Return the fraction of the noise that each layer causes, and the reason to keep it in float, most noise first.

    Where the noise of the outputs is not measured, for example because their sizes depend on values, the layers with
    the noisiest tensors come first, with a fraction of 1.

    Raises:
        GraphError: no runtime can run the float graph.
    """
    if fractions := measure_noise_fractions(trials.present, trials.samples, trials.options):
        return {
            layer: (fraction, f"the int8 form of the layer causes {max(fraction, 0):.0%} of the noise of the outputs")
            for layer, fraction in fractions.items()
        }
    return {
        layer: (1.0, f"an int8 tensor of the layer has an SQNR of {sqnr:.0f} dB")
        for layer, sqnr in _noisiest_layers(trials.present)
    }


def _exclude_noisy_pair(trials: Trials, causes: Mapping[str, tuple[float, str]]) -> None:
    """Offer the float forms of the noisiest layer and one next to it.

    If the outputs of layers are quantized before a float activation, a tensor between two layers is rounded twice: one
    float layer removes only one of the two errors.
    """
    conversion = trials.present
    if not conversion.plan.scheme.quantize_outputs or not causes or trials.is_good(conversion):
        return
    first, *others = islice(causes, 2)
    neighbors = _find_neighbors(conversion, first)
    samples, options = trials.samples, trials.options
    fractions = measure_noise_fractions(conversion, samples, options, neighbors, first) if neighbors else {}
    # Without a measurement, the two noisiest layers are tried.
    second, fraction = next(iter(fractions.items()), (others[0], causes[others[0]][0]) if others else (first, 0.0))
    if fraction < policy.MIN_NOISE_FRACTION:
        return
    reason = f"the int8 forms of the layer and of one next to it cause {fraction:.0%} of the noise of the outputs"
    reasons = {layer: reason if fractions else causes[layer][1] for layer in (first, second)}
    _try_float(trials, reasons, policy.MAX_FLOAT_LOSS)


def _find_neighbors(conversion: Conversion, layer: str) -> list[str]:
    """Return the int8 layers that a path without another layer connects with a layer."""
    graph, pattern_of = conversion.graph, conversion.plan.pattern_of
    neighbors: dict[str, None] = {}
    for is_forward in (True, False):
        stack, visited = [layer], {layer}
        while stack:
            name = stack.pop()
            uses, inputs = graph.node_uses.get(name, ()), graph[name].inputs
            near = [use.node.name for use in uses] if is_forward else [edge.node for edge in inputs if edge.node]
            for other in near:
                pattern = pattern_of.get(other)
                if other not in visited and pattern is not None and pattern.layer != layer:
                    neighbors[pattern.layer] = None
                elif other not in visited:
                    stack.append(other)
                visited.add(other)
    return list(neighbors)


def exclude_drifting_layers(trials: Trials) -> None:
    """Offer float layers for a recurrent model whose states drift.

    The layers with the noisiest inputs become float first, at most the largest of `DRIFT_FRACTIONS` of all layers.
    """
    if not trials.samples.states:
        return
    layers = [layer for layer, _ in _noisiest_layers(trials.present)]
    reason = "errors of its int8 form accumulate in the states of the model"
    for fraction in policy.DRIFT_FRACTIONS:
        if trials.error(trials.present) <= policy.DRIFT_ERROR:
            break
        noisiest = layers[: ceil(fraction * len(layers))]
        reasons = {layer: reason for layer in noisiest if layer in trials.present.plan.pattern_of}
        _try_float(trials, reasons, policy.MAX_CHEAP_LOSS)


def _noisiest_layers(conversion: Conversion) -> Iterator[tuple[str, float]]:
    """Yield layers and the SQNR of their noisiest int8 tensor, the noisiest first.

    The output of a layer counts if no int8 node consumes it: then only the layer's own kernel rounds it.
    """
    plan, sqnr = conversion.plan, conversion.ranges.sqnr
    consumed = {edge for pattern in plan.patterns for edge in pattern.inputs}
    consumed |= {edge for name in plan.pass_through for edge in conversion.graph[name].inputs}
    layers: dict[str, float] = {}
    for pattern in plan.patterns:
        edges = (*pattern.inputs, *({pattern.output} - consumed))
        ratios = [sqnr[edge] for edge in edges if edge in sqnr]
        if ratios:
            layers[pattern.layer] = min(ratios)
    yield from sorted(layers.items(), key=lambda item: item[1])


def _try_float(trials: Trials, reasons: Mapping[str, str], max_loss: float) -> bool:
    """Offer the float forms of layers, with the reason of each; return whether they are accepted."""
    layer, reason = next(iter(reasons.items()))
    subject = f"{layer} stays" if len(reasons) == 1 else f"{layer} and {len(reasons) - 1} more stay"
    message = f"{subject} float: {reason}; the outputs are then nearer to the float model"
    alternative = trials.present.decide(as_decisions(reasons, ERROR))
    return trials.accept(alternative, max_loss, reasons, message=message)
