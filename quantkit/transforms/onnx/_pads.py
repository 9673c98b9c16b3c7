"""Folding of Pad into the padding of convolutions and pools of ONNX graphs.

conv(pad(x), pads)  ==  conv(x, pads + widths)        for zeros around the spatial axes, also through a transpose
max(pad(x), pads)   ==  max(x, pads + widths)         for the lowest value, or zeros around values that are not negative
"""

from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name
from quantkit.ops.table import Fact, find_ops
from quantkit.transforms.onnx._facts import constant_value, has_input, integers, producer, reason_to_keep

# Op types with a padding of their own.
WINDOW_OPS = ("Conv", "AveragePool", "MaxPool")
# Op types whose outputs are never negative.
NEVER_NEGATIVE = find_ops(Fact.NONNEGATIVE, "onnx")


def fold_pads(graph: Graph) -> Outcome:
    """Fold Pad into the convolutions and pools after it."""
    return apply_rules(graph, Rule(op("|".join(WINDOW_OPS)), _fold_pad, ("root",)))


def _fold_pad(graph: Graph, root: Node) -> list[Node] | Skip | None:
    transpose = producer(graph, root.inputs[0], "Transpose") if root.inputs else None
    pad = producer(graph, (transpose or root).inputs[0], "Pad") if root.inputs else None
    if pad is None or root.name in graph.input_names:
        return None
    reason = _sharing_reason(graph, pad, transpose or root) or _value_reason(graph, pad, root)
    if transpose is not None:
        reason = reason or reason_to_keep(graph, transpose, root)
    widths = integers(graph, pad, "pads", 1)
    if reason or widths is None or has_input(pad, 3):
        return Skip(reason or f"the widths of {pad.name} are not constant, or for some axes only")
    rank = len(widths) // 2
    order = list(range(rank)) if transpose is None else integers(graph, transpose, "perm", 1) or []
    if sorted(order) != list(range(rank)):
        return None
    before, after = ([side[axis] for axis in order] for side in (widths[:rank], widths[rank:]))
    if rank < 3 or min(widths) < 0 or any((*before[:2], *after[:2])):
        return Skip(f"{pad.name} pads batch or channels, or removes elements")
    attrs: dict[str, Any] = dict(root.attrs)
    if attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID", b""):
        return Skip(f"{root.name} computes its padding from the size of its input")
    own = list(attrs.get("pads") or (0,) * (2 * rank - 4))
    pads = tuple(size + width for size, width in zip(own, (*before[2:], *after[2:]), strict=True))
    if root.op == "MaxPool" and max(pads) >= min(attrs["kernel_shape"]):
        return Skip(f"{pad.name} is as wide as the window: some windows would contain only padding")
    if root.op == "AveragePool":
        if attrs.get("ceil_mode") or (any(own) and not attrs.get("count_include_pad")):
            return Skip(f"{root.name} does not count its own padding")
        attrs["count_include_pad"] = 1
    attrs.pop("auto_pad", None)
    attrs["pads"] = pads
    if transpose is None:
        return [root.with_(inputs=(pad.inputs[0], *root.inputs[1:]), attrs=attrs)]
    moved = transpose.with_(name=free_name(graph, f"{transpose.name}/unpadded"), inputs=pad.inputs[:1])
    return [moved, root.with_(inputs=(Edge(moved.name), *root.inputs[1:]), attrs=attrs)]


def _sharing_reason(graph: Graph, pad: Node, consumer: Node) -> str:
    """Return a clause with another use of a Pad than by windows, which pad automatically; empty without such a use."""
    are_windows = all(use.slot == 0 and use.node.op in WINDOW_OPS for use in graph.node_uses[pad.name])
    return "" if are_windows and pad.name not in graph.endpoint_names else reason_to_keep(graph, pad, consumer)


def _value_reason(graph: Graph, pad: Node, root: Node) -> str:
    """Return a clause if a Pad does not add the values that the padding of a node stands for; empty if it does."""
    value = pad.attrs.get("value", 0)
    if has_input(pad, 2):
        constant = constant_value(graph, pad, 2)
        value = None if constant is None else constant.reshape(-1)[0]
    is_constant = pad.attrs.get("mode", b"constant") == b"constant" and value is not None
    if root.op == "MaxPool":
        is_lowest = is_constant and value <= np.finfo(np.float32).min
        is_lowest |= is_constant and value == 0 and graph[pad.inputs[0].node].op in NEVER_NEGATIVE
        return "" if is_lowest else f"{pad.name} does not pad with values that are never a maximum"
    return "" if is_constant and value == 0 else f"{pad.name} does not pad with a constant zero"
