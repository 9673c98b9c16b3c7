"""TensorFlow graphs that compute in 16 bits where that is safe, with casts where they meet float32.

Layers and what works element by element compute in 16 bits; ops that only move numbers do as what they read. What
sums many parts keeps float32: in 16 bits the sum would stop growing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.tensorflow.signatures import input_dtypes, num_outputs
from quantkit.transforms._names import FreeNames


def _ops(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Ops whose attribute T is the type of all their numbers.
COMPUTING = _ops(
    "Conv2D DepthwiseConv2dNative Conv2DBackpropInput MatMul BatchMatMul BatchMatMulV2 BiasAdd Add AddV2 AddN Sub Mul "
    "Div RealDiv Maximum Minimum Neg Abs Relu Relu6 Elu Selu LeakyRelu Sigmoid Tanh"
)
MOVING = _ops(
    "Identity StopGradient Reshape Squeeze ExpandDims Concat ConcatV2 Pad PadV2 MirrorPad Transpose Slice StridedSlice "
    "Split SplitV Pack Unpack Tile MaxPool Max Min SpaceToDepth DepthToSpace SpaceToBatchND BatchToSpaceND"
)
SUMMING = _ops(
    "Softmax LogSoftmax FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 BatchNormWithGlobalNormalization LRN Mean Sum "
    "Prod AvgPool Exp Log Pow Rsqrt Sqrt Square SquaredDifference Erf Softplus"
)
SOURCES = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "NoOp", "Cast"})


def in_half(
    graph: Graph,
    dtype: DType,
    keep: frozenset[str],
    narrowed: Callable[[Tensor], Tensor],
    objection: Callable[[Tensor], str],
) -> Outcome:
    """The graph with all that may in 16 bits.

    Args:
        graph: of TensorFlow ops.
        dtype: the type of 16 bits.
        keep: names and op types of what stays float32.
        narrowed: makes the constant of 16 bits.
        objection: why a constant can not be 16 bits; empty: it can.
    """
    made = _HalfGraph(graph, dtype, keep, narrowed, objection)
    made.decide()
    return made.outcome()


@dataclass
class _HalfGraph:
    """One conversion.

    Attributes:
        half: names of the nodes that become 16 bits, constants included.
        reasons: why other nodes stay float32.
        fixed: names of what is known without running, with why it can not be 16 bits (empty: it can).
        casts: the same tensor in the other type, by edge.
        behind: nodes that were made for a node, and stand behind it.
    """

    graph: Graph
    dtype: DType
    keep: frozenset[str]
    narrowed: Callable[[Tensor], Tensor]
    objection: Callable[[Tensor], str]
    half: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    casts: dict[Edge, Edge] = field(default_factory=dict)
    behind: dict[str, list[Node]] = field(default_factory=dict)

    # Decisions

    def decide(self) -> None:
        """Fill `half` and `reasons`: first what computes, then what it reads that is known without running."""
        for name in self.graph.order:
            self._decide(self.graph[name])
        for name in reversed(self.graph.order):
            if name in self.fixed and not self.fixed[name] and name not in self.graph.endpoint_names:
                uses = self._readings(name)
                if uses and all(reader in self.half for reader in uses):
                    self.half.add(name)

    def _decide(self, node: Node) -> None:
        name = node.name
        if name in self.graph.input_names:
            return
        if node.op == "Const":
            value = node.attrs.get("value")
            if isinstance(value, Tensor) and value.dtype is DType.FLOAT:
                self.fixed[name] = self._wish(node) or self.objection(value)
            return
        edges = [node.inputs[slot] for slot in self.slots(node)]
        if not edges:
            return
        reason = self._reason(node, edges)
        moved = [edge for edge in edges if edge.node not in self.fixed]
        if node.op in MOVING and not moved:
            self.fixed[name] = reason
        elif reason:
            self.reasons[name] = reason
        elif node.op in COMPUTING or (node.op in MOVING and any(edge.node in self.half for edge in moved)):
            self.half.add(name)

    def _wish(self, node: Node) -> str:
        return "keep names it" if self.keep & {node.name, node.op} else ""

    def _reason(self, node: Node, edges: list[Edge]) -> str:
        """Why a node stays float32; empty where it need not, or where there is nothing to say."""
        if node.op not in COMPUTING | MOVING:
            if node.op in SOURCES:
                return ""
            return "sums lose digits in 16 bits" if node.op in SUMMING else "no 16-bit form of it is known to be safe"
        known = [self._of_constant(edge.node, why) for edge in edges if (why := self.fixed.get(edge.node, ""))]
        wish = self._wish(node)
        if wish or known:
            return wish or known[0]
        if node.name in self.graph.output_names and num_outputs(node) != 1:
            return "it has several outputs, and an output of the graph stays float32"
        return ""

    def _of_constant(self, name: str, reason: str) -> str:
        """The reason of a constant as that of its reader; one that was passed on already stays as it is."""
        return f"it reads {name}: {reason}" if self.graph[name].is_constant else reason

    def _readings(self, name: str) -> list[str]:
        """The names of who reads a node of one output."""
        return [use.node.name for use in self.graph.node_uses.get(name, ()) if use.slot >= 0]

    def slots(self, node: Node) -> list[int]:
        """The inputs of a node that are float32."""
        if node.op in COMPUTING | MOVING:
            if node.attrs.get("T", DType.FLOAT) is not DType.FLOAT:
                return []
            node = node.with_attrs(T=DType.FLOAT)
        slots = [slot for slot, dtype in enumerate(input_dtypes(node)) if dtype is DType.FLOAT]
        constants = [self.graph.constant_of(node.inputs[slot]) for slot in slots]
        return slots if all(one is None or one.dtype is DType.FLOAT for one in constants) else []

    # The new graph

    def outcome(self) -> Outcome:
        """The graph with casts between 16 bits and float32, one for each edge."""
        nodes = {node.name: self._changed(node) for node in self.graph.nodes.values()}
        ordered = [one for name, made in nodes.items() for one in (*made, *self.behind.get(name, ()))]
        changes = [f"{name} ({self.graph[name].op})" for name in nodes if name in self.half]
        skips = [Skip(reason, name) for name in nodes if (reason := self._told(name))]
        return Outcome(self.graph.with_nodes(ordered), tuple(changes), tuple(skips))

    def _told(self, name: str) -> str:
        return self.reasons.get(name) or (self.fixed.get(name, "") if self.graph[name].op == "Const" else "")

    def _changed(self, node: Node) -> list[Node]:
        """What a node becomes; the last one has its name."""
        if node.name not in self.half:
            inputs = tuple(map(self._in_float, node.inputs))
            return [node if inputs == node.inputs else node.with_(inputs=inputs)]
        if node.is_constant:
            return [node.with_attrs(dtype=self.dtype, value=self.narrowed(node.value))]
        slots = self.slots(node)
        reads = tuple(self._in_half(edge) if slot in slots else edge for slot, edge in enumerate(node.inputs))
        made = node.with_(inputs=reads).with_attrs(T=self.dtype)
        if node.name not in self.inner:
            return [made]
        edge = Edge(self.inner[node.name])
        return [made.with_(name=edge.node), self._cast(node, node.name, edge, DType.FLOAT)]

    @cached_property
    def inner(self) -> dict[str, str]:
        """New names of what leaves the graph: its own name goes to the cast behind it."""
        names = [name for name in self.graph.nodes if name in self.half and name in self.graph.output_names]
        return {name: self.names.free(f"{name}/{self.dtype.numpy.name}") for name in names}

    @cached_property
    def names(self) -> FreeNames:
        return FreeNames(self.graph)

    def _in_half(self, edge: Edge) -> Edge:
        """The 16-bit form of an edge."""
        node = self.graph[edge.node]
        if node.name in self.half:
            return Edge(self.inner[node.name]) if node.name in self.inner else edge
        if node.op == "Cast" and node.attrs.get("SrcT") is self.dtype and node.name not in self.graph.input_names:
            return node.inputs[0]
        return self._converted(edge, self.dtype)

    def _in_float(self, edge: Edge) -> Edge:
        """The float32 form of an edge, if it is one of 16 bits."""
        if edge.node not in self.half or edge.node in self.inner:
            return edge
        return self._converted(edge, DType.FLOAT)

    def _converted(self, edge: Edge, to: DType) -> Edge:
        """An edge in another type, made once."""
        if edge not in self.casts:
            node = self.graph[edge.node]
            name = self.names.free("/".join([node.name, *([str(edge.port)] if edge.port else []), to.numpy.name]))
            self.casts[edge] = Edge(name)
            value = None if node.name in self.graph.input_names else self.graph.constant_of(edge)
            made = self._cast(node, name, edge, to)
            if value is not None:
                made = node.with_(name=name).with_attrs(dtype=to, value=self.narrowed(value))
            self.behind.setdefault(node.name, []).append(made)
        return self.casts[edge]

    def _cast(self, like: Node, name: str, edge: Edge, to: DType) -> Node:
        source = self.dtype if to is DType.FLOAT else DType.FLOAT
        return Node(name, "Cast", (edge,), attrs={"SrcT": source, "DstT": to}, device=like.device)
