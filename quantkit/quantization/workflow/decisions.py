"""Decisions of a finished quantization, with their predicted times and their predicted and measured gains."""

from collections.abc import Mapping
from dataclasses import replace

from quantkit.ops.roles import find_roles
from quantkit.quantization.fallback import Fallback
from quantkit.quantization.precision.cost import predict_kernel_time, runtimes_of
from quantkit.quantization.precision.decision import COST, INT8, Decision
from quantkit.quantization.report.census import infer_sample_shapes
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.trials import Trials


def describe_decisions(
    conversion: Conversion, trials: Trials, fallback: Fallback | None, samples: Mapping[str, tuple[int, ...]]
) -> tuple[Decision, ...]:
    """Return the decisions of a plan with their times and gains.

    Args:
        conversion: conversion that is written.
        trials: trials whose float layers have measured gains.
        fallback: result of the accuracy search; None without one.
        samples: shape of one sample of each input, by name.
    """
    graph, layer_ops = conversion.graph, find_roles(conversion.graph).layer_ops
    runtimes = runtimes_of(conversion.plan, conversion.target.runtimes)
    shapes = infer_sample_shapes(graph, samples)
    predicted = {} if fallback is None or fallback.prediction is None else fallback.prediction.gains
    rows = () if fallback is None else fallback.layers
    losses = {row.layer: row.contribution or row.gain for row in rows}
    measured = {**trials.gains, **{layer: loss.drop for layer, loss in losses.items() if loss is not None}}

    def describe(decision: Decision) -> Decision:
        name, saved_ms = decision.unit, decision.saved_ms
        # The times of the layer alone contradict a decision by the time of its boundaries.
        if graph[name].op in layer_ops and decision.source != COST and not conversion.plan.scheme.weights_only:
            time = predict_kernel_time(graph, name, shapes, runtimes)
            saved_ms = (time.float - time.int8) * (1e3 if decision.precision == INT8 else -1e3)
        return replace(
            decision, saved_ms=saved_ms, predicted=predicted.get(name, decision.predicted), measured=measured.get(name)
        )

    return tuple(map(describe, conversion.plan.decisions))
