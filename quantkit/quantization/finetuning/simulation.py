"""Simulation of a quantized model: a float TensorFlow graph with FakeQuant nodes where the target quantizes.

    x -> FakeQuant(low, high) -> Conv2D(weights) -> Relu -> FakeQuant(low, high)

The limits are inputs of the simulation, and so are the constants that are trained: the simulator computes both from its
variables. An ONNX graph is converted to TensorFlow after its quantized edges are marked by Identity nodes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.roles import find_roles
from quantkit.quantization.finetuning.sums import QuantizedSum, find_sums, round_operands
from quantkit.quantization.marked_edges import mark_edges
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.spec import AFFINE, Spec
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.onnx.fused_sums import find_unrounded
from quantkit.runtimes import AUTO

FAKE_QUANT = "FakeQuantWithMinMaxVars"
# Attribute that selects the gradient of a node instead of that of its op type.
GRADIENT_ATTRIBUTE = "_gradient_op_type"
# Attributes of an op on float32.
FLOAT_ATTRS = {"T": DType.FLOAT}
LEARNED_STEP = b"QuantkitLearnedStep"
# Largest number of elements whose positions float32 distinguishes.
MAX_TRACED = 1 << 24
# Factor of the ranges that tests which ranges determine their parameters.
PROBE = 1.25


@dataclass(frozen=True)
class Trainable:
    """Constant of the float graph that is trained: the weights or the bias of layers.

    Attributes:
        name: constant of the float graph.
        layers: layers of the plan that use the constant.
        spec: number format; None for a bias that the target adds in 32 bits.
        step: weights and owner of the input range of the only layer of a bias that is added in 32 bits: the product of
            their scales is one step of the bias; None for other constants.
    """

    name: str
    layers: tuple[str, ...]
    spec: Spec | None
    step: tuple[str, Edge] | None = None


@dataclass(frozen=True)
class QuantizedEdge:
    """FakeQuant of the simulation.

    Attributes:
        node: name of the FakeQuant.
        owner: edge of the float graph whose range determines the limits.
        parameters: calibrated quantization parameters.
        is_rounded: False for an edge whose values the runtime clamps, but does not round.
    """

    node: str
    owner: Edge
    parameters: QuantizationParameters
    is_rounded: bool = True

    @property
    def steps(self) -> int:
        """Number of steps between the lowest and the highest quantized value."""
        low, high = self.parameters.spec.limits
        return high - low


@dataclass(frozen=True)
class ConstantUse:
    """Constant of the simulation that has the values of a trained constant.

    Attributes:
        node: constant of the simulation.
        positions: index into the flat trained constant of each value; None for the same shape and order.
    """

    node: str
    positions: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class Simulation:
    """Float TensorFlow graph with the outputs of the quantized model.

    Attributes:
        source: float graph of the plan.
        graph: the TensorFlow graph; its inputs and outputs have the order of those of ``source``.
        edges: the FakeQuant nodes.
        trainables: trained constants.
        uses: constants of ``graph`` by trained constant.
        learned: edges of ``source`` whose range may be trained; the target fixes the other ranges.
        sums: sums whose kernels round their operands.
        edge_of: FakeQuant of each edge of ``source`` that is an operand.
    """

    source: Graph
    graph: Graph
    edges: tuple[QuantizedEdge, ...]
    trainables: tuple[Trainable, ...]
    uses: Mapping[str, tuple[ConstantUse, ...]]
    learned: frozenset[Edge]
    sums: tuple[QuantizedSum, ...] = ()
    edge_of: Mapping[Edge, QuantizedEdge] = field(default_factory=dict)


def simulate(graph: Graph, plan: Plan, ranges: Ranges, runtime: str = AUTO) -> Simulation:
    """Return the simulation of a quantized model.

    Args:
        graph: float graph.
        plan: plan of ``graph`` that quantizes activations.
        ranges: ranges of every edge of the plan, shared within its groups.
        runtime: runtime of the target whose kernels are simulated (default: all edges of the plan are rounded).

    Raises:
        UnavailableError: an ONNX op has no TensorFlow form.
    """
    target = find_target(plan.scheme.target)
    parameters = target.edge_parameters(graph, plan, ranges)
    marked, markers = mark_edges(graph, plan, list(parameters))
    translated = as_tensorflow(marked)
    unrounded = find_unrounded(graph, plan, runtime)
    edges = tuple(
        QuantizedEdge(node, _owner(plan, plan.range_edge(edge)), parameters[edge], edge not in unrounded)
        for edge, marker in markers.items()
        for node in (marker, f"{marker}/nhwc")
        if node in translated and translated[node].op == "Identity"
    )
    by_node = {edge.node: edge for edge in edges}
    edge_of = {edge: by_node[marker] for edge, marker in markers.items() if marker in by_node}
    trainables = tuple(_find_trainables(graph, plan))
    uses = _find_uses(marked, translated, [trainable.name for trainable in trainables])
    sums = tuple(
        added
        for added in (find_sums(graph, plan) if plan.scheme.split_patterns else ())
        if all(operand in edge_of or operand in uses for operand in added.operands)
    )
    return Simulation(
        graph,
        round_operands(_add_fake_quants(translated, edges), sums),
        edges,
        tuple(trainable for trainable in trainables if uses.get(trainable.name)),
        uses,
        _find_learned(graph, plan, ranges, parameters),
        sums,
        edge_of,
    )


def _owner(plan: Plan, edge: Edge) -> Edge:
    """Return the first edge of a group with a common range, in the order of the names."""
    return min(plan.group_of(edge), key=str)


def scale_ranges(plan: Plan, edges: tuple[QuantizedEdge, ...], scales: Mapping[Edge, float]) -> dict[Edge, Range]:
    """Return the ranges of the plan's edges whose owner has a scale.

    Args:
        plan: plan of the edges.
        edges: FakeQuant nodes of a simulation.
        scales: step between two quantized values by owner.
    """
    step_limits = {edge.owner: edge.parameters.step_limits for edge in edges}
    ranges = {}
    for edge in plan.activations:
        owner = _owner(plan, edge)
        if owner in scales:
            low, high = step_limits[owner]
            ranges[edge] = Range(float(np.float32(low * scales[owner])), float(np.float32(high * scales[owner])))
    return ranges


def _find_learned(
    graph: Graph, plan: Plan, ranges: Ranges, parameters: Mapping[Edge, QuantizationParameters]
) -> frozenset[Edge]:
    """Return the owners whose range alone determines the parameters: a target fixes those of uint8 images."""
    target = find_target(plan.scheme.target)
    by_owner: dict[Edge, list[Edge]] = {}
    for edge in parameters:
        by_owner.setdefault(_owner(plan, plan.range_edge(edge)), []).append(edge)
    probed = {
        edge: Range(*(float(limit * PROBE * parameters[edge].scale) for limit in parameters[edge].step_limits))
        for edge in parameters
        if plan.range_edge(edge) == edge
    }
    wider = {edge: probed[member] for edge in plan.activations for member in plan.group_of(edge) if member in probed}
    responses = target.edge_parameters(graph, plan, replace(ranges, ranges={**ranges.ranges, **wider}))
    return frozenset(
        owner
        for owner, members in by_owner.items()
        if all(
            np.isclose(responses[edge].scale, PROBE * parameters[edge].scale, rtol=1e-4)
            and responses[edge].zero_point == parameters[edge].zero_point
            for edge in members
        )
        and len({(float(parameters[edge].scale), int(parameters[edge].zero_point)) for edge in members}) == 1
    )


def _add_fake_quants(graph: Graph, edges: tuple[QuantizedEdge, ...]) -> Graph:
    """Return the graph with a FakeQuant in the place of each marker; its limits are placeholders."""
    nodes = dict(graph.nodes)
    for edge in edges:
        names = [limit_name(edge, suffix) for suffix in ("low", "high")]
        for name in names:
            nodes[name] = Node(name, "Placeholder", attrs={"dtype": DType.FLOAT})
        spec = edge.parameters.spec
        if not edge.is_rounded:
            above = Node(
                f"{edge.node}/above", "Maximum", (nodes[edge.node].inputs[0], Edge(names[0])), attrs=FLOAT_ATTRS
            )
            nodes[above.name] = above
            nodes[edge.node] = Node(edge.node, "Minimum", (Edge(above.name), Edge(names[1])), attrs=FLOAT_ATTRS)
            continue
        nodes[edge.node] = Node(
            edge.node,
            FAKE_QUANT,
            (nodes[edge.node].inputs[0], *map(Edge, names)),
            attrs={
                "num_bits": 7 if edge.steps < 128 else 8,
                "narrow_range": spec.symmetric and spec.is_signed,
                GRADIENT_ATTRIBUTE: LEARNED_STEP,
            },
        )
    return graph.with_nodes(nodes.values())


def limit_name(edge: QuantizedEdge, suffix: str) -> str:
    """Return the name of the placeholder of a limit, ``low`` or ``high``."""
    return f"{edge.node}/{suffix}"


def _find_trainables(graph: Graph, plan: Plan) -> Iterator[Trainable]:
    """Yield the weights and biases of the plan's layers that no other node uses."""
    # The int32 sums of the products contain the biases, unless these are ops of their own.
    bias_spec = AFFINE if plan.scheme.split_patterns else None
    roles = find_roles(graph)
    weights: dict[str, list[FusedPattern]] = {}
    biases: dict[str, list[FusedPattern]] = {}
    for pattern in plan.patterns:
        if not pattern.weights:
            continue
        weights.setdefault(pattern.weights, []).append(pattern)
        if bias := roles.bias_constant(graph, graph[pattern.layer], pattern.bias):
            biases.setdefault(bias, []).append(pattern)
    for name, patterns in weights.items():
        if _is_trainable(graph, plan, name):
            yield Trainable(name, tuple(pattern.layer for pattern in patterns), plan.weights[name])
    for name, patterns in biases.items():
        if _is_trainable(graph, plan, name):
            is_rounded = bias_spec is None and len(patterns) == 1
            step = (patterns[0].weights, _owner(plan, patterns[0].input)) if is_rounded else None
            yield Trainable(name, tuple(pattern.layer for pattern in patterns), bias_spec, step)


def _is_trainable(graph: Graph, plan: Plan, name: str) -> bool:
    """Return True if a node is a float constant that only layers of the plan use."""
    node = graph[name]
    is_float = node.is_constant and node.value.dtype is DType.FLOAT and name not in graph.endpoint_names
    return is_float and all(use.node.name in plan.pattern_of for use in graph.node_uses[name])


def _find_uses(marked: Graph, translated: Graph, names: list[str]) -> dict[str, tuple[ConstantUse, ...]]:
    """Return the constants of the TensorFlow graph that contain the values of each constant.

    A second conversion, of constants that hold their positions, shows how a conversion moves values.
    """
    if marked.dialect != onnx.DIALECT:
        return {name: (ConstantUse(name, None),) for name in names}
    parts: list[dict[str, int]] = [{}]
    end = 0
    for name in names:
        size = marked[name].value.num_elements
        if not 1 < size <= MAX_TRACED:
            continue
        if end + size > MAX_TRACED:
            parts.append({})
            end = 0
        parts[-1][name] = end
        end += size
    return {name: uses for starts in parts for name, uses in _trace(marked, translated, starts).items()}


def _trace(marked: Graph, translated: Graph, starts: Mapping[str, int]) -> dict[str, tuple[ConstantUse, ...]]:
    """Return the uses of constants that hold consecutive numbers from their starts on."""
    nodes = dict(marked.nodes)
    for name, start in starts.items():
        value = marked[name].value
        traces = np.arange(start, start + value.num_elements, dtype=np.float32).reshape(value.shape)
        nodes[name] = marked[name].with_attrs(value=Tensor.of(traces))
    traced = as_tensorflow(marked.with_nodes(nodes.values()))
    uses: dict[str, tuple[ConstantUse, ...]] = {}
    for node in traced.nodes.values():
        if node.is_constant and node.value.dtype is DType.FLOAT and node.name in translated:
            values = node.value.array.reshape(-1)
            for name in starts:
                start, size = starts[name], marked[name].value.num_elements
                if values.size == size and np.array_equal(np.sort(values), np.arange(start, start + size)):
                    positions = (values.astype(np.int64) - start).reshape(node.value.shape)
                    uses[name] = (*uses.get(name, ()), ConstantUse(node.name, positions))
    return uses
