"""Mixed-precision TensorFlow graphs: 16 bits for numerically safe ops, float32 for the others.

Layers and elementwise ops compute in 16 bits, and ops that only move values take the type of their
inputs. Ops that accumulate many values stay float32: small summands would be lost in 16 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.tensorflow.signatures import input_dtypes, num_outputs
from quantkit.transforms._names import FreeNames


def _ops(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Ops whose attribute T is the type of all float inputs and outputs.
COMPUTE_OPS = _ops(
    "Conv2D DepthwiseConv2dNative Conv2DBackpropInput MatMul BatchMatMul BatchMatMulV2 BiasAdd Add AddV2 AddN Sub Mul "
    "Div RealDiv Maximum Minimum Neg Abs Relu Relu6 Elu Selu LeakyRelu Sigmoid Tanh"
)
MOVEMENT_OPS = _ops(
    "Identity StopGradient Reshape Squeeze ExpandDims Concat ConcatV2 Pad PadV2 MirrorPad Transpose Slice StridedSlice "
    "Split SplitV Pack Unpack Tile MaxPool Max Min SpaceToDepth DepthToSpace SpaceToBatchND BatchToSpaceND"
)
ACCUMULATION_OPS = _ops(
    "Softmax LogSoftmax FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 BatchNormWithGlobalNormalization LRN Mean Sum "
    "Prod AvgPool Exp Log Pow Rsqrt Sqrt Square SquaredDifference Erf Softplus"
)
SOURCE_OPS = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "NoOp", "Cast"})


def convert_to_half(
    graph: Graph,
    dtype: DType,
    keep: frozenset[str],
    narrow: Callable[[Tensor], Tensor],
    reason_against: Callable[[Tensor], str],
) -> Outcome:
    """Return the graph with all suitable nodes in 16 bits.

    Args:
        graph: TensorFlow graph.
        dtype: 16-bit type.
        keep: names and op types of nodes that stay float32.
        narrow: function that converts a constant to 16 bits.
        reason_against: function that returns the reason why a constant cannot be 16 bits; empty if
            it can.
    """
    conversion = _HalfConversion(graph, dtype, keep, narrow, reason_against)
    conversion.select_nodes()
    return conversion.outcome()


@dataclass
class _HalfConversion:
    """Conversion of one graph.

    Attributes:
        half: names of the nodes that become 16 bits, including constants.
        reasons: reasons why other nodes stay float32.
        constants: names of constants and of nodes computed from constants, with the reason why they
            cannot be 16 bits (empty if they can).
        casts: edge of the tensor in the other type, by edge.
        following: new nodes after each old node.
    """

    graph: Graph
    dtype: DType
    keep: frozenset[str]
    narrow: Callable[[Tensor], Tensor]
    reason_against: Callable[[Tensor], str]
    half: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    casts: dict[Edge, Edge] = field(default_factory=dict)
    following: dict[str, list[Node]] = field(default_factory=dict)

    # Selection of the nodes

    def select_nodes(self) -> None:
        """Fill `half` and `reasons`: first the computing nodes, then constants that only they use."""
        for name in self.graph.order:
            self._select(self.graph[name])
        for name in reversed(self.graph.order):
            if name in self.constants and not self.constants[name] and name not in self.graph.endpoint_names:
                consumers = [use.node.name for use in self.graph.node_uses.get(name, ()) if use.slot >= 0]
                if consumers and self.half.issuperset(consumers):
                    self.half.add(name)

    def _select(self, node: Node) -> None:
        name = node.name
        if name in self.graph.input_names:
            return
        if node.op == "Const":
            value = node.attrs.get("value")
            if isinstance(value, Tensor) and value.dtype is DType.FLOAT:
                self.constants[name] = self._keep_reason(node) or self.reason_against(value)
            return
        edges = [node.inputs[slot] for slot in self.slots(node)]
        if not edges:
            return
        reason = self._reason(node, edges)
        computed = [edge for edge in edges if edge.node not in self.constants]
        if node.op in MOVEMENT_OPS and not computed:
            self.constants[name] = reason
        elif reason:
            self.reasons[name] = reason
        elif node.op in COMPUTE_OPS or (node.op in MOVEMENT_OPS and any(edge.node in self.half for edge in computed)):
            self.half.add(name)

    def _keep_reason(self, node: Node) -> str:
        return "listed in keep" if self.keep & {node.name, node.op} else ""

    def _reason(self, node: Node, edges: list[Edge]) -> str:
        """Return the reason why a node stays float32; empty if no skip is needed."""
        if node.op not in COMPUTE_OPS | MOVEMENT_OPS:
            if node.op in SOURCE_OPS:
                return ""
            if node.op in ACCUMULATION_OPS:
                return "accumulation loses digits in 16 bits"
            return f"no 16-bit form of {node.op} is known to be safe"
        reasons = [self._consumer_reason(edge.node) for edge in edges if self.constants.get(edge.node)]
        keep_reason = self._keep_reason(node)
        if keep_reason or reasons:
            return keep_reason or reasons[0]
        if node.name in self.graph.output_names and num_outputs(node) != 1:
            return "the node has several outputs, and graph outputs stay float32"
        return ""

    def _consumer_reason(self, name: str) -> str:
        """Return the reason of a constant input as a reason of its consumer."""
        reason = self.constants[name]
        return f"input {name}: {reason}" if self.graph[name].is_constant else reason

    def slots(self, node: Node) -> list[int]:
        """Return the indexes of the float32 inputs of a node."""
        if node.op in COMPUTE_OPS | MOVEMENT_OPS:
            if node.attrs.get("T", DType.FLOAT) is not DType.FLOAT:
                return []
            node = node.with_attrs(T=DType.FLOAT)
        slots = [slot for slot, dtype in enumerate(input_dtypes(node)) if dtype is DType.FLOAT]
        tensors = [self.graph.constant_of(node.inputs[slot]) for slot in slots]
        return slots if all(tensor is None or tensor.dtype is DType.FLOAT for tensor in tensors) else []

    # New graph

    def outcome(self) -> Outcome:
        """Return the graph with casts between 16 bits and float32, at most one per edge."""
        new_nodes = {node.name: self._convert(node) for node in self.graph.nodes.values()}
        ordered = [node for name, nodes in new_nodes.items() for node in (*nodes, *self.following.get(name, ()))]
        changes = [f"{name} ({self.graph[name].op})" for name in new_nodes if name in self.half]
        skips = [Skip(reason, name) for name in new_nodes if (reason := self._skip_reason(name))]
        return Outcome(self.graph.with_nodes(ordered), tuple(changes), tuple(skips))

    def _skip_reason(self, name: str) -> str:
        return self.reasons.get(name) or (self.constants.get(name, "") if self.graph[name].op == "Const" else "")

    def _convert(self, node: Node) -> list[Node]:
        """Return the replacement of a node; its last node has the old name."""
        if node.name not in self.half:
            inputs = tuple(map(self._in_float, node.inputs))
            return [node if inputs == node.inputs else node.with_(inputs=inputs)]
        if node.is_constant:
            return [node.with_attrs(dtype=self.dtype, value=self.narrow(node.value))]
        slots = self.slots(node)
        inputs = tuple(self._in_half(edge) if slot in slots else edge for slot, edge in enumerate(node.inputs))
        new = node.with_(inputs=inputs).with_attrs(T=self.dtype)
        if node.name not in self.inner_names:
            return [new]
        edge = Edge(self.inner_names[node.name])
        return [new.with_(name=edge.node), self._cast(node, node.name, edge, DType.FLOAT)]

    @cached_property
    def inner_names(self) -> dict[str, str]:
        """New names of graph outputs; the Cast after such a node takes the old name."""
        names = [name for name in self.graph.nodes if name in self.half and name in self.graph.output_names]
        return {name: self.names.free(f"{name}/{self.dtype.numpy.name}") for name in names}

    @cached_property
    def names(self) -> FreeNames:
        return FreeNames(self.graph)

    def _in_half(self, edge: Edge) -> Edge:
        """Return the 16-bit form of an edge."""
        node = self.graph[edge.node]
        if node.name in self.half:
            return Edge(self.inner_names[node.name]) if node.name in self.inner_names else edge
        if node.op == "Cast" and node.attrs.get("SrcT") is self.dtype and node.name not in self.graph.input_names:
            return node.inputs[0]
        return self._cast_edge(edge, self.dtype)

    def _in_float(self, edge: Edge) -> Edge:
        """Return the float32 form of an edge, which may be 16 bits."""
        if edge.node not in self.half or edge.node in self.inner_names:
            return edge
        return self._cast_edge(edge, DType.FLOAT)

    def _cast_edge(self, edge: Edge, to: DType) -> Edge:
        """Return an edge in another type; consumers share the Cast, or the converted constant."""
        if edge not in self.casts:
            node = self.graph[edge.node]
            name = self.names.free("/".join([node.name, *([str(edge.port)] if edge.port else []), to.numpy.name]))
            self.casts[edge] = Edge(name)
            value = None if node.name in self.graph.input_names else self.graph.constant_of(edge)
            new = self._cast(node, name, edge, to)
            if value is not None:
                new = node.with_(name=name).with_attrs(dtype=to, value=self.narrow(value))
            self.following.setdefault(node.name, []).append(new)
        return self.casts[edge]

    def _cast(self, like: Node, name: str, edge: Edge, to: DType) -> Node:
        source = self.dtype if to is DType.FLOAT else DType.FLOAT
        return Node(name, "Cast", (edge,), attrs={"SrcT": source, "DstT": to}, device=like.device)
