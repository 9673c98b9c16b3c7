"""A first look at what would become 8 bits, before any data: the plan of the folded graph, counted."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import QuantkitError
from quantkit.ir.graph import Graph
from quantkit.ops.layers import LAYER_OPS
from quantkit.ops.macs import multiply_adds
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.annotation import annotate
from quantkit.recipes import Recipe, Step, run
from quantkit.recipes.named import find_recipe
from quantkit.summary import is_eight_bit, with_batch_one

# Reasons that the text gives; the JSON document has all.
SHOWN = 3


@dataclass(frozen=True)
class Outlook:
    """What ``quantkit quantize`` would do.

    Attributes:
        num_layers: convolutions and matrix products of the folded graph.
        num_eight_bit: how many of them would compute on 8-bit codes.
        share: their part of the multiply-adds; None where a shape is not known.
        reasons: (op, why its nodes stay float) and how many there are, most first.
        problem: why there is no plan, or nothing.
    """

    num_layers: int = 0
    num_eight_bit: int = 0
    share: float | None = None
    reasons: tuple[tuple[tuple[str, str], int], ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": self.num_layers,
            "eight_bit_layers": self.num_eight_bit,
            "share_of_multiply_adds": self.share,
            "float_fallbacks": [{"op": op, "reason": why, "nodes": count} for (op, why), count in self.reasons],
            "problem": self.problem,
        }

    def __str__(self) -> str:
        if self.problem:
            return f"no plan: {self.problem}"
        if not self.num_layers:
            return "no layer to make 8 bits of"
        share = "" if self.share is None else f", {self.share:.1%} of the multiply-adds"
        text = f"{self.num_eight_bit} of {self.num_layers} layers{share}"
        kept = [f"{count} {op} ({why})" for (op, why), count in self.reasons[:SHOWN]]
        return text + (f"; float: {', '.join(kept)}" if kept else "")


def look_ahead(graph: Graph) -> Outlook:
    """What of a float graph would become 8 bits, once it is folded."""
    if is_eight_bit(graph):
        return Outlook(problem="it is in 8 bits already")
    try:
        graph = as_tensorflow(graph)
        folded, _ = run(_folding(graph), with_batch_one(graph))
        plan = annotate(folded)
    except QuantkitError as error:
        return Outlook(problem=error.message)
    needed = folded.reachable()
    layers = [node for node in folded.nodes.values() if node.op in LAYER_OPS and node.name in needed]
    eight_bit = {pattern.layer for pattern in plan.patterns}
    shapes = infer_shapes(folded)
    counts = {node.name: multiply_adds(node, shapes) for node in layers}
    known = [count for count in counts.values() if count is not None]
    share = None
    if known and len(known) == len(counts) and sum(known):
        share = sum(count or 0 for name, count in counts.items() if name in eight_bit) / sum(known)
    reasons = Counter((folded[name].op, why) for name, why in plan.float_fallbacks.items() if name in folded)
    return Outlook(len(layers), len(eight_bit), share, tuple(reasons.most_common()))


def _folding(graph: Graph) -> Recipe:
    """The recipe that folds, with the shapes of inputs in the middle of the graph, behind which it is cut."""
    shapes = infer_shapes(graph)
    # No text says the shape of a single number; what the graph computes there tells it.
    known = {edge.node: shape.dims for edge in graph.inputs if (shape := shapes.get(edge)) and shape.dims}
    options = {
        "name": tuple(known),
        "type_for_name": ("float",) * len(known),
        "shape_for_name": tuple(",".join(str(size or 1) for size in dims) for dims in known.values()),
    }
    # Codes need no EnsureShape.
    steps = (*find_recipe("inference").steps, Step("remove_nodes", {"op": ("EnsureShape",)}))
    return Recipe(
        tuple(Step(one.name, options) if one.name == "strip_unused_nodes" and known else one for one in steps)
    )
