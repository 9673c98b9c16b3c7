"""What became of a graph: what is 8 bits now, what is not and what that costs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.macs import multiply_adds
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.targets import find_target

EIGHT_BITS, FLOAT = "8 bits", "float"


@dataclass(frozen=True)
class LeftOver:
    """A node that stays float.

    Attributes:
        name: of the node.
        op: its type.
        reason: why.
        multiply_adds: what it computes for one example; None: a size is not known.
    """

    name: str
    op: str
    reason: str
    multiply_adds: int | None


@dataclass(frozen=True)
class Census:
    """Nodes by op and precision, and what stays float.

    Attributes:
        table: nodes in 8 bits and in float, by op.
        conversions: how often numbers change between codes and floats in one run.
        left_overs: what stays float, the most work first.
        eight_bit_adds: multiply-adds in 8 bits for one example.
        float_adds: multiply-adds in float.
        unknown: layers and products, by op, whose multiply-adds are not known.
        patterns: convolutions and matrix products in 8 bits.
    """

    table: Mapping[str, tuple[int, int]]
    conversions: int
    left_overs: tuple[LeftOver, ...]
    eight_bit_adds: int
    float_adds: int
    patterns: int
    unknown: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Part of the multiply-adds that are known that is 8 bits."""
        return self.eight_bit_adds / max(self.eight_bit_adds + self.float_adds, 1)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "ops": {op: {EIGHT_BITS: coded, FLOAT: kept} for op, (coded, kept) in self.table.items()},
            "conversions": self.conversions,
            "left_overs": [asdict(one) for one in self.left_overs],
            "eight_bit_multiply_adds": self.eight_bit_adds,
            "float_multiply_adds": self.float_adds,
            "unknown_multiply_adds": dict(self.unknown),
        }


def census(graph: Graph, plan: Plan, ranges: Ranges, quantized: Graph) -> Census:
    """Count what a conversion made of a graph.

    Args:
        graph: the float graph.
        plan: of it.
        ranges: what it was converted with.
        quantized: what it became.
    """
    target = find_target(plan.scheme.target)
    kept = {**plan.float_fallbacks, **target.float_reasons(graph, plan, ranges)}
    shapes = infer_shapes(_of_one_example(graph))
    table: dict[str, tuple[int, int]] = {}
    counts = {
        name: multiply_adds(graph[name], shapes)
        for name in (*plan.pattern_of, *plan.pass_through, *plan.float_fallbacks)
    }
    coded_adds = 0
    for name in (*plan.pattern_of, *plan.pass_through, *plan.float_fallbacks):
        op = graph[name].op
        coded, floats = table.get(op, (0, 0))
        table[op] = (coded, floats + 1) if name in kept else (coded + 1, floats)
        coded_adds += 0 if name in kept else counts[name] or 0
    left = [LeftOver(name, graph[name].op, why, counts[name]) for name, why in kept.items()]
    return Census(
        dict(sorted(table.items(), key=lambda item: (-sum(item[1]), item[0]))),
        target.count_boundaries(graph, plan, kept, quantized),
        tuple(sorted(left, key=lambda one: -(one.multiply_adds or 0))),
        coded_adds,
        sum(one.multiply_adds or 0 for one in left),
        sum(pattern.layer not in kept for pattern in plan.patterns),
        Counter(graph[name].op for name, count in counts.items() if count is None),
    )


def _of_one_example(graph: Graph) -> Graph:
    """The graph with 1 where its inputs leave a size open."""

    def closed(node: Node) -> Node:
        shape = node.attrs.get("shape")
        if node.name not in graph.input_names or not isinstance(shape, Shape) or shape.dims is None:
            return node
        return node.with_attrs(shape=Shape(tuple(size or 1 for size in shape.dims)))

    return graph.with_nodes(map(closed, graph.nodes.values()))
