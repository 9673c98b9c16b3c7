"""Estimate of a quantization before any data is seen: its own steps but the calibration."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.model import Model
from quantkit.ops.semantics import is_quantized
from quantkit.quantization.annotation import annotate
from quantkit.quantization.calibration.trained_ranges import plan_trained
from quantkit.quantization.report.census import census
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import targets
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.options import DEFAULT_TARGET, Options
from quantkit.quantization.workflow.planning import convert_uncalibrated, uncalibrated_ranges
from quantkit.quantization.workflow.preparation import prepare_float_graph

# Number of reasons in the text form; the JSON form has all of them.
MAX_SHOWN = 3


@dataclass(frozen=True)
class QuantizationEstimate:
    """Estimate of the int8 part of a model.

    Attributes:
        num_layers: number of convolutions and matrix products of the folded graph.
        num_int8: number of those layers that would be int8.
        int8_fraction: fraction of the MACs that would be int8; None if a shape is unknown.
        reasons: pairs of (op type, reason) with their number of nodes, most frequent first.
        problem: cause of a missing plan, or empty.
        target: target of the estimate.
    """

    num_layers: int = 0
    num_int8: int = 0
    int8_fraction: float | None = None
    reasons: tuple[tuple[tuple[str, str], int], ...] = ()
    problem: str = ""
    target: str = DEFAULT_TARGET

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "layers": self.num_layers,
            "int8_layers": self.num_int8,
            "int8_fraction": self.int8_fraction,
            "float_fallbacks": [{"op": op, "reason": reason, "nodes": count} for (op, reason), count in self.reasons],
            "problem": self.problem,
            "target": self.target,
        }

    def __str__(self) -> str:
        if self.problem:
            return f"no plan: {self.problem}"
        if not self.num_layers:
            return "no layer to quantize"
        macs = "" if self.int8_fraction is None else f", {self.int8_fraction:.1%} of the MACs"
        text = f"{self.num_int8} of {self.num_layers} layers{macs}"
        fallbacks = [f"{count} {op} ({reason})" for (op, reason), count in self.reasons[:MAX_SHOWN]]
        target = "" if self.target == DEFAULT_TARGET else f" for the target {self.target}"
        return text + target + (f"; float: {', '.join(fallbacks)}" if fallbacks else "")


def estimate_quantization(model: Model) -> QuantizationEstimate:
    """Estimate the int8 part of a model that `quantize` makes with its defaults.

    If the default target has no form of the graph, the estimate is for a target in the dialect of the graph.
    """
    if is_quantized(model.graph):
        return QuantizationEstimate(problem="the model is already quantized")
    estimate = _estimate(model, DEFAULT_TARGET)
    if not estimate.problem:
        return estimate
    dialect = model.graph.dialect
    names = [name for name, target in targets().items() if target.dialect == dialect and name != DEFAULT_TARGET]
    alternatives = (_estimate(model, name) for name in names)
    return next((alternative for alternative in alternatives if not alternative.problem), estimate)


def _estimate(model: Model, target: str) -> QuantizationEstimate:
    scheme = Scheme.for_target(target)
    try:
        float_model = prepare_float_graph(model, Options(model, target=target), scheme, None)
        graph, scheme, trained = float_model.graph, float_model.scheme, float_model.trained
        plan = plan_trained(graph, scheme, trained) if trained else annotate(graph, scheme)
        plan = Conversion(graph, plan, uncalibrated_ranges(plan)).with_kernels().plan
        counts = census(graph, plan, convert_uncalibrated(graph, plan))
    except QuantkitError as error:
        return QuantizationEstimate(problem=error.message, target=target)
    reasons = Counter((fallback.op, fallback.reason) for fallback in counts.float_fallbacks)
    return QuantizationEstimate(
        counts.num_patterns + counts.num_float_layers,
        counts.num_patterns,
        None if counts.unknown_macs else counts.int8_fraction,
        tuple(reasons.most_common()),
        target=target,
    )
