"""Float layers whose int8 form takes more time than it saves by the table of costs.

By the table, int8 saves time in proportion to the MACs, and a boundary takes time: small layers between float ops stay
float. The files are the same on every machine. `slow_kernels.py` measures whether this machine agrees.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from quantkit.ops.roles import find_roles
from quantkit.quantization.bodies import count_macs_of_run
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.cost import (
    KernelTime,
    is_estimated,
    predict_costs,
    predict_kernel_time,
    runtimes_of,
)
from quantkit.quantization.precision.search import TimeCut
from quantkit.quantization.report.census import infer_sample_shapes
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.trials import Trials


def exclude_costly_kernels(trials: Trials) -> None:
    """Keep the kernels in float whose int8 form takes more time than it saves by the table of costs.

    The loss is not measured: these kernels get the precision of the float model. Layers whose MACs are unknown stay in
    int8. If no layer of known size saves time, the conversion is unchanged: a file without an int8 layer would be a
    mere copy of the float model, which `predict_speedup` advises to keep. The same holds if the times of a runtime of
    the target are estimates.
    """
    conversion, graph, plan = trials.present, trials.present.graph, trials.present.plan
    if not plan.patterns or is_estimated(conversion.target.runtimes):
        return
    shapes = infer_sample_shapes(graph, trials.samples.sample_shapes)
    costs = predict_costs(graph, plan, shapes, conversion.target.runtimes)
    layers = [pattern.layer for pattern in plan.patterns]
    unknown = [layer for layer in layers if count_macs_of_run(graph, graph[layer], shapes) is None]
    int8 = dict.fromkeys(unknown, KernelTime(0.0, inf))
    cut = TimeCut(graph, plan, replace(costs, kernels={**costs.kernels, **int8}))
    choice = cut.choose()
    if cut.seconds(frozenset()) - cut.seconds(choice) < policy.MIN_PREDICTED_SAVED * cut.seconds(frozenset()):
        return
    alternative = conversion.cut(choice)
    if any(pattern.layer not in unknown for pattern in alternative.plan.patterns):
        trials.present = alternative


def predict_speedup(conversion: Conversion, samples: Mapping[str, tuple[int, ...]]) -> float | None:
    """Return the time of the layers in float over their time in a conversion by the table of costs.

    Args:
        conversion: conversion that is written.
        samples: shape of each input in a sample.

    Returns:
        The predicted speed-up of the layers; None if the MACs of a layer are unknown, if the times of a runtime of the
        target are estimates, or if no layer is int8.
    """
    graph, plan = conversion.graph, conversion.plan
    if not plan.patterns or is_estimated(conversion.target.runtimes):
        return None
    shapes, runtimes = infer_sample_shapes(graph, samples), runtimes_of(plan, conversion.target.runtimes)
    cut = TimeCut(graph, plan, predict_costs(graph, plan, shapes, runtimes))
    layer_ops = find_roles(graph).layer_ops
    layers = [node for node in graph.nodes.values() if node.op in layer_ops]
    if any(count_macs_of_run(graph, layer, shapes) is None for layer in layers):
        return None
    names = (layer.name for layer in layers if layer.name not in plan.pattern_of)
    rest = sum(predict_kernel_time(graph, name, shapes, runtimes).float for name in names)
    return (rest + cut.seconds(frozenset(cut.costs.kernels))) / (rest + cut.seconds(frozenset()))
