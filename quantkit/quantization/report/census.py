"""Counts of a quantized model: ops by precision, float fallbacks, MACs, quantize/dequantize boundaries."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from quantkit.errors import GraphError, UnavailableError
from quantkit.formats.onnx import DIALECT, node_name, value_infos, with_node_names
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.roles import find_roles
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.bodies import count_macs_of_run
from quantkit.quantization.plan import Plan
from quantkit.runtimes import find_runtime

INT8, FLOAT = "int8", "float"
NO_SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType({})


@dataclass(frozen=True)
class FloatFallback:
    """Node that stays float.

    Attributes:
        name: name of the node.
        op: its op type.
        reason: cause of the fallback.
        macs: MACs for one example; None if a shape is unknown.
        is_layer: True for a convolution, matrix product or recurrent layer.
    """

    name: str
    op: str
    reason: str
    macs: int | None
    is_layer: bool = False


@dataclass(frozen=True)
class Census:
    """Counts of one quantized model.

    Attributes:
        table: number of int8 and of float nodes, by op type.
        boundaries: quantize/dequantize boundaries that one run crosses.
        float_fallbacks: nodes that stay float, most MACs first.
        int8_macs: MACs in int8 for one example.
        float_macs: MACs in float for one example.
        num_patterns: number of convolutions and matrix products in int8.
        unknown_macs: number of nodes with unknown MACs, by op type.
        executed: fraction of the known MACs that a runtime computes in int8 after its own rewrites, by runtime.
    """

    table: Mapping[str, tuple[int, int]]
    boundaries: int
    float_fallbacks: tuple[FloatFallback, ...]
    int8_macs: int
    float_macs: int
    num_patterns: int
    unknown_macs: Mapping[str, int] = field(default_factory=dict)
    executed: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_float_layers(self) -> int:
        """Number of layers in float."""
        return sum(fallback.is_layer for fallback in self.float_fallbacks)

    @property
    def int8_fraction(self) -> float | None:
        """Fraction of the known MACs that is int8; None without any."""
        total = self.int8_macs + self.float_macs
        return self.int8_macs / total if total else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "ops": {op: {INT8: quantized, FLOAT: floats} for op, (quantized, floats) in self.table.items()},
            "boundaries": self.boundaries,
            "float_fallbacks": [asdict(fallback) for fallback in self.float_fallbacks],
            "int8_macs": self.int8_macs,
            "float_macs": self.float_macs,
            "int8_fraction": self.int8_fraction,
            "int8_layers": self.num_patterns,
            "float_layers": self.num_float_layers,
            "unknown_macs": dict(self.unknown_macs),
            "executed_int8_fraction": dict(self.executed),
        }


def census(graph: Graph, plan: Plan, quantized: Graph, samples: Mapping[str, tuple[int, ...]] = NO_SIZES) -> Census:
    """Count the ops, MACs and boundaries of a quantized graph.

    Args:
        graph: float graph.
        plan: plan of ``graph``.
        quantized: result of the conversion.
        samples: shape of one sample of each input, by name, for inputs with unknown dimensions.
    """
    reasons = plan.float_fallbacks
    names = (*plan.pattern_of, *plan.pass_through, *plan.float_fallbacks)
    layer_ops = find_roles(graph).weights_ops - find_roles(graph).pass_through_ops
    macs = count_node_macs(graph, names, samples)
    num_quantized = Counter(graph[name].op for name in names if name not in reasons)
    num_float = Counter(graph[name].op for name in names if name in reasons)
    ops = sorted({*num_quantized, *num_float}, key=lambda op: (-num_quantized[op] - num_float[op], op))
    fallbacks = [
        FloatFallback(name, graph[name].op, reason, macs[name], graph[name].op in layer_ops)
        for name, reason in reasons.items()
    ]
    return Census(
        {op: (num_quantized[op], num_float[op]) for op in ops},
        _count_boundaries(graph, plan, quantized),
        tuple(sorted(fallbacks, key=lambda fallback: -(fallback.macs or 0))),
        sum(macs[name] or 0 for name in names if name not in reasons),
        sum(fallback.macs or 0 for fallback in fallbacks),
        sum(pattern.layer not in reasons for pattern in plan.patterns),
        Counter(graph[name].op for name, count in macs.items() if count is None),
    )


def _count_boundaries(graph: Graph, plan: Plan, quantized: Graph) -> int:
    """Return the number of quantize/dequantize boundaries that one run crosses.

    They are counted in the plan, unless they are QuantizeV2 and Dequantize nodes, whose inputs are not constants.
    """
    converting = [node for node in quantized.nodes.values() if node.op in ("QuantizeV2", "Dequantize")]
    if converting:
        return sum(quantized.constant_of(node.inputs[0]) is None for node in converting)
    fallbacks = plan.float_fallbacks.keys()
    computed = {*plan.pattern_of, *plan.pass_through}.difference(fallbacks)
    count = sum(Edge(pattern.name) not in plan.activations for pattern in plan.patterns)
    for edge in plan.activations:
        consumers = {use.node.name for use in graph.uses.get(edge, ())}
        if edge.node in computed:
            count += bool(consumers.intersection(fallbacks)) or edge in graph.outputs
        else:
            count += bool(consumers & computed)
    return count


def count_node_macs(
    graph: Graph, names: Iterable[str], samples: Mapping[str, tuple[int, ...]] = NO_SIZES
) -> dict[str, int | None]:
    """Return the MACs of nodes for one example, by name; None if a shape is unknown.

    Args:
        graph: graph of either dialect.
        names: names of nodes.
        samples: as for `census`.
    """
    shapes = infer_sample_shapes(graph, samples)
    return {name: count_macs_of_run(graph, graph[name], shapes) for name in names}


def infer_sample_shapes(graph: Graph, samples: Mapping[str, tuple[int, ...]]) -> Mapping[Edge, Shape]:
    """Return the shapes for one example; those that an ONNX file states for ops without a rule, such as a Loop."""
    stated = value_infos(graph) if graph.dialect == DIALECT else {}
    return infer_shapes(_with_known_sizes(graph, samples), {edge: shape for edge, (_, shape) in stated.items()})


def executed_int8_fractions(
    quantized: Graph,
    runtimes: Iterable[str],
    samples: Mapping[str, tuple[int, ...]] = NO_SIZES,
    session_nodes: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> Mapping[str, float]:
    """Return the fraction of the known MACs that each runtime computes in int8 after its own rewrites.

    Args:
        quantized: quantized graph.
        runtimes: names of runtimes; those that are not installed, do not run the graph, or do not show their nodes
            are omitted, and all if no MACs are known.
        samples: as for `census`.
        session_nodes: names in the file of the int8 nodes, by runtime, from a session of the quantized model.
    """
    if quantized.dialect != DIALECT:
        return {}
    graph = with_node_names(quantized)
    counts = count_node_macs(quantized, quantized.nodes, samples)
    macs = {name: count for name, count in counts.items() if count}
    layers = {node_name(quantized[name]) or name: name for name in macs}
    session_nodes = session_nodes if len(layers) == len(macs) else {}  # names in a file need not be unique
    fractions = {}
    for name in runtimes:
        runtime = find_runtime(name)
        if runtime.find_int8_nodes is None or not macs or not runtime.available().ok:
            continue
        with suppress(GraphError, UnavailableError):
            int8_nodes: Iterable[str]
            if name in session_nodes:
                int8_nodes = {layers[each] for each in session_nodes[name] & layers.keys()}
            else:
                int8_nodes = runtime.find_int8_nodes(graph)
            total = sum(macs.get(node, 0) for node in int8_nodes)
            if total or None not in counts.values():  # else the int8 nodes may be those with unknown MACs
                fractions[name] = total / sum(macs.values())
    return fractions


def _with_known_sizes(graph: Graph, samples: Mapping[str, tuple[int, ...]]) -> Graph:
    """Return the graph with the sizes of a sample in the place of the unknown dimensions of its inputs, else size 1.

    The first dimension, if it is unknown, has size 1 in any case: MACs are those of one example.
    """

    def close(node: Node) -> Node:
        shape = node.attrs.get("shape")
        if node.name not in graph.input_names or not isinstance(shape, Shape) or not shape.dims:
            return node
        sample = samples.get(node.name, ())
        sizes = (1, *sample[1:]) if len(sample) == len(shape.dims) else (1,) * len(shape.dims)
        return node.with_attrs(shape=Shape(tuple(size or other for size, other in zip(shape.dims, sizes, strict=True))))

    return graph.with_nodes(map(close, graph.nodes.values()))
