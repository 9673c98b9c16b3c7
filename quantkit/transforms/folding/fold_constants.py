"""Replace nodes that do not depend on the inputs by constants."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantkit.errors import GraphError, QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.limits import current_limits
from quantkit.ops import kernels
from quantkit.ops.kernels import Evaluate
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import find_op, num_outputs, output_dtypes
from quantkit.transforms.onnx import _constants as onnx_constants
from quantkit.transforms.registry import transform

# Ops that run parts of a graph conditionally or repeatedly.
CONTROL_FLOW = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "RefSwitch", "RefMerge"})
PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
# Ops whose result depends on the shape of the input, not on its values.
SHAPE_OPS = find_ops(Fact.SHAPE, "tensorflow")


def evaluate_with_kernels(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
    """Compute the outputs with quantkit's NumPy kernels; None for an op without a kernel."""
    return kernels.evaluate(node, list(inputs), is_folded=True) if kernels.has_kernel(node.op) else None


@transform(services=("evaluate",), dialects=("tensorflow", "onnx"))
def fold_constants(
    graph: Graph,
    *,
    exclude_op: tuple[str, ...] = (),
    exclude_node: tuple[str, ...] = (),
    max_constant_size_in_bytes: int = 10 << 20,
    clear_output_shapes: bool = True,
    copies: bool = False,
    evaluate: Evaluate = evaluate_with_kernels,
) -> Outcome:
    """Replace nodes that depend only on constants by their value, and remove unused nodes.

    Before:  scale = Rsqrt(Add(variance, 0.001))    y = Mul(x, scale)
    After:   scale/_0__cf__0 = Const                y = Mul(x, scale/_0__cf__0)

    Options:
        exclude_op: op types to skip.
        exclude_node: nodes to skip.
        max_constant_size_in_bytes: skip values larger than this (default: 10485760).
        clear_output_shapes: remove the attribute ``_output_shapes``, which may be stale
            (default: true).
        copies: in ONNX graphs, also compute values above 1 MiB from a constant that other nodes
            use, so that the file grows (default: false).

    Control dependencies on constants are removed. A control dependency on a NoOp that has a single
    control dependency is replaced by that dependency.

    In ONNX graphs, inferred values become constants too, constants that are also
    inputs become plain constants, and the file grows by at most 1 MiB for each. DequantizeLinear stays:
    folding would store quantized weights as float.

    Skips an op that has no kernel (``--evaluate-with tensorflow`` supports every op), has side
    effects, belongs to a loop or branch, or fails on its inputs.

    Example:
        fold_constants
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        variance = Const([0.25, 1.0, 4.0])
        scale = Rsqrt(variance)
        twice = Add(scale, scale)
        y = Mul(x, twice)

    Example:
        fold_constants
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[?x3x4x5]()
        sizes = Shape(x)
        begin = Constant[int64]([1])
        end = Constant[int64]([3])
        inner = Slice(sizes, begin, end)
        product = ReduceProd(inner, keepdims=1)
        all = Constant[int64]([-1])
        shape = Concat(all, product, axis=0)
        y = Reshape(x, shape)
    """
    if graph.dialect == onnx.DIALECT:
        return onnx_constants.fold(
            graph, frozenset(exclude_op), frozenset(exclude_node), max_constant_size_in_bytes, copies=copies
        )
    if clear_output_shapes:
        graph = _without_output_shapes(graph)
    folding = _Folding(graph, frozenset(exclude_op), frozenset(exclude_node), max_constant_size_in_bytes, evaluate)
    return folding.outcome()


def _without_output_shapes(graph: Graph) -> Graph:
    if not any("_output_shapes" in node.attrs for node in graph.nodes.values()):
        return graph
    return graph.with_nodes(node.with_attrs(_output_shapes=None) for node in graph.nodes.values())


@dataclass
class _Folding:
    """State of constant folding in one graph.

    Attributes:
        limit: maximum size of a new constant in bytes.
        values: computed values by edge.
        aliases: source edge of each folded Identity output.
        controls: control dependencies that the constants of a folded node need, by node name.
        num_bytes: size of all computed values.
    """

    graph: Graph
    exclude_op: frozenset[str]
    exclude_node: frozenset[str]
    limit: int
    evaluate: Evaluate
    values: dict[Edge, Tensor] = field(default_factory=dict)
    aliases: dict[Edge, Edge] = field(default_factory=dict)
    controls: dict[str, tuple[str, ...]] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)
    num_bytes: int = 0

    def outcome(self) -> Outcome:
        graph = self.graph
        needed = set(graph.without_unused_nodes(stop_at_inputs=False).nodes)
        for name in graph.order:
            if name in needed:
                self._visit(graph[name])
        nodes, changes = self._replace_nodes(needed)
        simplified, control_changes = _remove_idle_controls(graph.with_nodes(nodes))
        simplified = simplified.without_unused_nodes(stop_at_inputs=False)
        return Outcome(simplified, (*changes, *control_changes), tuple(self.skips))

    def _visit(self, node: Node) -> None:
        """Compute the node if the values of all its inputs are known."""
        if node.name in self.graph.input_names or node.op in PLACEHOLDERS:
            return
        if node.is_constant:
            if not node.controls and isinstance(node.attrs.get("value"), Tensor):
                self.values[Edge(node.name)] = node.value
            return
        inputs = self._known_inputs(node)
        if inputs is None or not node.inputs:
            return
        reason = self._reason_to_stay(node) or self._compute(node, inputs)
        if reason:
            self.skips.append(Skip(reason, node.name))

    def _known_inputs(self, node: Node) -> list[Tensor] | None:
        if node.op in SHAPE_OPS:
            shapes = [self._static_shape(edge) for edge in node.inputs]
            if all(shape is not None for shape in shapes):
                return [_placeholder_tensor(shape) for shape in shapes if shape is not None]
            return None
        values = [self.values[edge] for edge in node.inputs if edge in self.values]
        return values if len(values) == len(node.inputs) else None

    def _static_shape(self, edge: Edge) -> tuple[int, ...] | None:
        if edge in self.values:
            return self.values[edge].shape
        source = self.graph[edge.node]
        shape = source.attrs.get("shape") if source.op == "Placeholder" else None
        return shape.sizes if isinstance(shape, Shape) and shape.is_known and shape.rank else None

    def _reason_to_stay(self, node: Node) -> str:
        if node.op in self.exclude_op:
            return f"exclude_op={node.op}"
        if node.name in self.exclude_node:
            return "the node is listed in exclude_node"
        if node.op in CONTROL_FLOW:
            return f"{node.op} belongs to a loop or a branch"
        definition = find_op(node.op)
        if definition is not None and definition.is_stateful:
            return f"{node.op} is stateful or random"
        return ""

    def _compute(self, node: Node, inputs: list[Tensor]) -> str:
        """Compute the node's values; return a reason if that is impossible, else an empty text."""
        controls = dict.fromkeys(name for edge in node.inputs for name in self.controls.get(edge.node, ()))
        for name in node.controls:
            is_folded = Edge(name) in self.values and not self.graph[name].is_constant
            controls.update(dict.fromkeys(self.controls.get(name, ()) if is_folded else (name,)))
        if node.op == "Identity" and not controls:
            self.values[Edge(node.name)] = inputs[0]
            self.aliases[Edge(node.name)] = self.aliases.get(node.inputs[0], node.inputs[0])
            return ""
        arrays = [tensor.array for tensor in inputs]
        if (num_bytes := kernels.output_bytes(node, arrays)) > self.limit:
            return self._too_large(num_bytes)
        try:
            results = self.evaluate(node, arrays)
        except (QuantkitError, ValueError, TypeError, IndexError, ArithmeticError) as error:
            return f"evaluation fails: {str(error).splitlines()[0]}"
        if results is None:
            return f"no NumPy kernel for {node.op}; use --evaluate-with tensorflow"
        num_bytes = sum(array.nbytes for array in results)
        if num_bytes > self.limit:
            return self._too_large(num_bytes)
        self._count(num_bytes)
        dtypes = output_dtypes(node) if num_outputs(node) == len(results) else (None,) * len(results)
        for port, (array, dtype) in enumerate(zip(results, dtypes, strict=True)):
            self.values[Edge(node.name, port)] = Tensor.of(array, dtype)
        self.controls[node.name] = tuple(controls)
        return ""

    def _too_large(self, num_bytes: int) -> str:
        return f"the value has {num_bytes:,} bytes, more than max_constant_size_in_bytes={self.limit}"

    def _count(self, num_bytes: int) -> None:
        """Add the size of a value to that of all values.

        Raises:
            GraphError: the sum exceeds the limit.
        """
        self.num_bytes += num_bytes
        limit = current_limits().max_constant_bytes
        if self.num_bytes > limit:
            raise GraphError(
                f"constant folding computes more than {limit:,} bytes",
                hint="raise the limit with --max-constant-bytes, or omit fold_constants",
            )

    def _replace_nodes(self, needed: set[str]) -> tuple[list[Node], list[str]]:
        """Return the remaining nodes, followed by the new constants that replace folded inputs."""
        folded = {edge.node for edge in self.values if not self.graph[edge.node].is_constant}
        consts: dict[Edge, Node] = {}
        nodes: list[Node] = []
        for name, node in self.graph.nodes.items():
            if name not in needed and name not in self.graph.input_names:
                continue
            if name in folded and name not in self.graph.output_names:
                continue
            if name in folded and Edge(name, 1) not in self.values:
                value = self.values[Edge(name)]
                nodes.append(constant(name, value).with_(controls=self.controls.get(name, ())))
                continue
            nodes.append(_drop_unused_default(self._reconnect(node, folded, consts), self.graph))
        changes = [f"{edge} ({self.graph[edge.node].op}) becomes {node.name}" for edge, node in consts.items()]
        return [*nodes, *consts.values()], changes

    def _reconnect(self, node: Node, folded: set[str], consts: dict[Edge, Node]) -> Node:
        inputs = tuple(self._source(edge, folded, consts) for edge in node.inputs)
        controls = node.controls
        if any(name in folded for name in controls):
            names = (self.controls.get(name, ()) if name in folded else (name,) for name in controls)
            controls = tuple(dict.fromkeys(name for group in names for name in group))
        if inputs == node.inputs and controls == node.controls:
            return node
        return node.with_(inputs=inputs, controls=controls)

    def _source(self, edge: Edge, folded: set[str], consts: dict[Edge, Node]) -> Edge:
        if edge.node not in folded or edge.node in self.graph.output_names:
            return edge
        if edge in self.aliases and self.aliases[edge].node not in folded:
            return self.aliases[edge]
        edge = self.aliases.get(edge, edge)
        if edge not in consts:
            number = len(consts)
            while (name := f"{edge.node}/_{edge.port}__cf__{number}") in self.graph:
                number += 1
            consts[edge] = constant(name, self.values[edge]).with_(controls=self.controls.get(edge.node, ()))
        return Edge(consts[edge].name)


def _remove_idle_controls(graph: Graph) -> tuple[Graph, list[str]]:
    """Remove control dependencies on constants, and bypass NoOps that have a single one.

    Returns:
        The graph, and one line per changed node.
    """
    if not any(node.controls for node in graph.nodes.values()):
        return graph, []
    replacements: dict[str, tuple[str, ...]] = {}
    changed: dict[str, Node] = {}
    for name in graph.order:
        node = graph[name]
        if any(control in replacements for control in node.controls):
            controls = (new for control in node.controls for new in replacements.get(control, (control,)))
            node = changed[name] = node.with_(controls=tuple(dict.fromkeys(controls)))
        if not node.inputs and (
            (node.is_constant and not node.controls) or (node.op == "NoOp" and len(node.controls) < 2)
        ):
            replacements[name] = node.controls
    if not changed:
        return graph, []
    nodes = [changed.get(name, node) for name, node in graph.nodes.items()]
    return graph.with_nodes(nodes), [f"{name} has fewer control dependencies" for name in changed]


def _placeholder_tensor(shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of a shape that takes no memory: shape ops do not use values."""
    return Tensor(DType.FLOAT, shape, lambda: np.broadcast_to(np.float32(0), shape))


def _drop_unused_default(node: Node, graph: Graph) -> Node:
    """Return a Placeholder for a PlaceholderWithDefault that is a graph input."""
    if node.op == "PlaceholderWithDefault" and node.name in graph.input_names:
        return node.with_(op="Placeholder", inputs=())
    return node
