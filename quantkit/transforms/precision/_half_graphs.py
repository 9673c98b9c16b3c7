"""Mixed-precision graphs: 16 bits for numerically safe ops, float32 for the others.

Layers and elementwise ops compute in 16 bits, and ops that only move values take the type of their
inputs. Ops that accumulate many values stay float32: small summands would be lost in 16 bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from quantkit.formats.onnx import DIALECT
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.table import LAYER, Fact, find_ops
from quantkit.ops.tensorflow.signatures import input_dtypes, output_dtypes
from quantkit.transforms.onnx._facts import num_outputs
from quantkit.transforms.precision._retyping import TypeChange, find_types, retype


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
# The same in ONNX graphs; integer types take no part.
ONNX_COMPUTE_OPS = find_ops(LAYER, "onnx") | _ops(
    "Add Sum Sub Mul Div Max Min Neg Abs Relu Clip Elu Selu LeakyRelu PRelu Sigmoid HardSigmoid HardSwish Tanh"
)
ONNX_MOVEMENT_OPS = find_ops(Fact.MOVEMENT | Fact.PAD | Fact.PASS_THROUGH, "onnx") - find_ops(Fact.AVERAGE, "onnx")
ONNX_MOVEMENT_OPS -= ONNX_COMPUTE_OPS
# ONNX ops whose later inputs are numbers in float32.
RESIZE_OPS = _ops("Resize Upsample")


def convert_to_half(
    graph: Graph,
    dtype: DType,
    keep: frozenset[str],
    reason_against: Callable[[Tensor], str],
) -> Outcome:
    """Return the graph with all suitable nodes in 16 bits.

    Args:
        graph: graph of either dialect.
        dtype: 16-bit type.
        keep: names of the nodes that stay float32.
        reason_against: function that returns the reason why a constant cannot be 16 bits; empty if
            it can.
    """
    conversion = _HalfConversion(graph, dtype, keep, reason_against)
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
    """

    graph: Graph
    dtype: DType
    keep: frozenset[str]
    reason_against: Callable[[Tensor], str]
    half: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_onnx = self.graph.dialect == DIALECT
        self.compute_ops = ONNX_COMPUTE_OPS if self.is_onnx else COMPUTE_OPS
        self.movement_ops = ONNX_MOVEMENT_OPS if self.is_onnx else MOVEMENT_OPS

    @cached_property
    def types(self) -> Mapping[Edge, DType] | None:
        """Element types by edge of an ONNX graph; None for a TensorFlow graph, whose nodes state the types."""
        return find_types(self.graph) if self.is_onnx else None

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
        if node.is_constant:
            value = node.attrs.get("value")
            if isinstance(value, Tensor) and value.dtype is DType.FLOAT:
                self.constants[name] = self._keep_reason(node) or self.reason_against(value)
            return
        edges = [node.inputs[slot] for slot in self.slots(node)]
        if not edges:
            return
        reason = self._reason(node, edges)
        computed = [edge for edge in edges if edge.node not in self.constants]
        if node.op in self.movement_ops and not computed:
            self.constants[name] = reason
        elif reason:
            self.reasons[name] = reason
        elif node.op in self.compute_ops or (
            node.op in self.movement_ops and any(edge.node in self.half for edge in computed)
        ):
            self.half.add(name)

    def _keep_reason(self, node: Node) -> str:
        return "listed in keep" if node.name in self.keep else ""

    def _reason(self, node: Node, edges: list[Edge]) -> str:
        """Return the reason why a node stays float32; empty if no skip is needed."""
        if node.op not in self.compute_ops | self.movement_ops:
            if node.op in SOURCE_OPS:
                return ""
            if node.op in ACCUMULATION_OPS:
                return "accumulation loses digits in 16 bits"
            return f"no 16-bit form of {node.op} is known to be safe"
        reasons = [self._consumer_reason(edge.node) for edge in edges if self.constants.get(edge.node)]
        keep_reason = self._keep_reason(node)
        if keep_reason or reasons:
            return keep_reason or reasons[0]
        count = num_outputs(node) if self.is_onnx else len(output_dtypes(node))
        if node.name in self.graph.output_names and count != 1:
            return "the node has several outputs, and graph outputs stay float32"
        return ""

    def _consumer_reason(self, name: str) -> str:
        """Return the reason of a constant input as a reason of its consumer."""
        reason = self.constants[name]
        return f"input {name}: {reason}" if self.graph[name].is_constant else reason

    def slots(self, node: Node) -> list[int]:
        """Return the indexes of the float32 inputs of a node."""
        if self.types is not None:
            edges = node.inputs[:1] if node.op in RESIZE_OPS else node.inputs
            if any(edge.node and edge not in self.types for edge in edges):
                return []  # the type of an output of a subgraph is not known
            return [slot for slot, edge in enumerate(edges) if self.types.get(edge) is DType.FLOAT]
        if node.op in self.compute_ops | self.movement_ops:
            if node.attrs.get("T", DType.FLOAT) is not DType.FLOAT:
                return []
            node = node.with_attrs(T=DType.FLOAT)
        slots = [slot for slot, dtype in enumerate(input_dtypes(node)) if dtype is DType.FLOAT]
        tensors = [self.graph.constant_of(node.inputs[slot]) for slot in slots]
        return slots if all(tensor is None or tensor.dtype is DType.FLOAT for tensor in tensors) else []

    # New graph

    def outcome(self) -> Outcome:
        """Return the graph with casts between 16 bits and float32."""
        nodes = {
            name: TypeChange(self.slots(self.graph[name]), {} if self.is_onnx else {"T": self.dtype})
            for name in self.half
            if not (self.is_onnx and self.graph[name].is_constant)
        }
        changes = [f"{name} ({self.graph[name].op})" for name in self.graph.nodes if name in self.half]
        skips = [Skip(reason, name) for name in self.graph.nodes if (reason := self._skip_reason(name))]
        return Outcome(retype(self.graph, nodes, DType.FLOAT, self.dtype, self.types), tuple(changes), tuple(skips))

    def _skip_reason(self, name: str) -> str:
        return self.reasons.get(name) or (self.constants.get(name, "") if self.graph[name].is_constant else "")
