"""Estimate of a quantization before any data is seen: the plan of the folded graph, counted."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import QuantkitError
from quantkit.ir.graph import Graph
from quantkit.ops.batch import with_batch_one
from quantkit.ops.layers import LAYER_OPS
from quantkit.ops.macs import count_macs
from quantkit.ops.semantics import is_quantized
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.annotation import annotate
from quantkit.recipes import Recipe, Step, run
from quantkit.recipes.named import find_recipe

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
    """

    num_layers: int = 0
    num_int8: int = 0
    int8_fraction: float | None = None
    reasons: tuple[tuple[tuple[str, str], int], ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "layers": self.num_layers,
            "int8_layers": self.num_int8,
            "int8_fraction": self.int8_fraction,
            "float_fallbacks": [{"op": op, "reason": reason, "nodes": count} for (op, reason), count in self.reasons],
            "problem": self.problem,
        }

    def __str__(self) -> str:
        if self.problem:
            return f"no plan: {self.problem}"
        if not self.num_layers:
            return "no layer to quantize"
        macs = "" if self.int8_fraction is None else f", {self.int8_fraction:.1%} of the MACs"
        text = f"{self.num_int8} of {self.num_layers} layers{macs}"
        fallbacks = [f"{count} {op} ({reason})" for (op, reason), count in self.reasons[:MAX_SHOWN]]
        return text + (f"; float: {', '.join(fallbacks)}" if fallbacks else "")


def estimate_quantization(graph: Graph) -> QuantizationEstimate:
    """Estimate the int8 part of a float graph after folding."""
    if is_quantized(graph):
        return QuantizationEstimate(problem="the model is already quantized")
    try:
        graph = as_tensorflow(graph)
        folded, _ = run(_folding_recipe(graph), with_batch_one(graph))
        plan = annotate(folded)
    except QuantkitError as error:
        return QuantizationEstimate(problem=error.message)
    needed = folded.reachable()
    layers = [node for node in folded.nodes.values() if node.op in LAYER_OPS and node.name in needed]
    int8_layers = {pattern.layer for pattern in plan.patterns}
    shapes = infer_shapes(folded)
    macs = {node.name: count_macs(node, shapes) for node in layers}
    total = sum(count or 0 for count in macs.values())
    fraction = None
    if total and None not in macs.values():
        fraction = sum(count or 0 for name, count in macs.items() if name in int8_layers) / total
    reasons = Counter((folded[name].op, reason) for name, reason in plan.float_fallbacks.items() if name in folded)
    return QuantizationEstimate(len(layers), len(int8_layers), fraction, tuple(reasons.most_common()))


def _folding_recipe(graph: Graph) -> Recipe:
    """Return the recipe "inference" with the shapes of inputs in the middle of the graph.

    strip_unused_nodes replaces such inputs by placeholders, which need a type and a shape.
    """
    shapes = infer_shapes(graph)
    # The option has no text for the shape of a scalar; shape inference restores it.
    dims_of = {edge.node: shape.dims for edge in graph.inputs if (shape := shapes.get(edge)) and shape.dims}
    options = {
        "name": tuple(dims_of),
        "type_for_name": ("float",) * len(dims_of),
        "shape_for_name": tuple(",".join(str(size or 1) for size in dims) for dims in dims_of.values()),
    }
    # A quantized graph needs no EnsureShape.
    steps = (*find_recipe("inference").steps, Step("remove_nodes", {"op": ("EnsureShape",)}))
    return Recipe(
        tuple(Step(step.name, options) if step.name == "strip_unused_nodes" and dims_of else step for step in steps)
    )
