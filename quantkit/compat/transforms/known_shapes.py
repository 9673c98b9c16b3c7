"""Shapes that TensorFlow's graph import inferred and the original's constant folding used."""

from collections.abc import Mapping, Sequence

from quantkit.compat.transforms.defaults import with_defaults
from quantkit.compat.transforms.importing import as_node
from quantkit.compat.transforms.nodes import NodeDef
from quantkit.compat.transforms.table import ClassicContext
from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import find_op
from quantkit.transforms.folding.fold_constants import evaluate_with_kernels

# Maximum number of iterations: inferred shapes make shape ops constant, and these constants may
# determine further shapes.
MAX_ITERATIONS = 4
# Maximum number of elements of an integer tensor that is evaluated as a shape.
MAX_ELEMENTS = 64
INTEGERS = (DType.INT32, DType.INT64)


def consumed_shapes(nodes: Sequence[NodeDef], context: ClassicContext) -> dict[str, dict[int, Shape]]:
    """Return the inferred shapes of tensors with consumers, by node name and port."""
    defaults = (with_defaults(_unknown_scalar(node), context.library) for node in nodes)
    graph = Graph.of([as_node(node) for node in defaults])
    shapes = infer_shapes(graph)
    for _ in range(MAX_ITERATIONS):
        constants = {
            node.name: constant(node.name, value)
            for node in graph.nodes.values()
            if (value := _integers(graph, node, shapes)) is not None
        }
        if not constants:
            break
        graph = graph.with_nodes({**graph.nodes, **constants}.values())
        shapes = infer_shapes(graph)
    consumed: dict[str, dict[int, Shape]] = {}
    for node in nodes:
        for text in node.data_inputs:
            edge = Edge.parse(text)
            if edge in shapes:
                consumed.setdefault(edge.node, {})[edge.port] = shapes[edge]
    return consumed


def _unknown_scalar(node: NodeDef) -> NodeDef:
    """Replace the scalar shape of a placeholder by the unknown shape, as TensorFlow's import did."""
    if node.op == "Placeholder" and node.attrs.get("shape") == Shape(()):
        return node.with_attrs(shape=Shape(None))
    return node


def _integers(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> Tensor | None:
    """Return a node's output if it is a small integer tensor computed from shapes or constants."""
    if node.op in ("Shape", "Rank", "Size"):
        values = values_of_shapes(node, [shapes.get(edge, Shape(None)) for edge in node.inputs])
        return values[0] if values else None
    op = find_op(node.op)
    if op is None or op.is_stateful or node.is_constant or not node.inputs:
        return None
    inputs = [graph.constant_of(edge) for edge in node.inputs]
    integers = [
        tensor
        for tensor in inputs
        if tensor is not None and tensor.dtype in INTEGERS and tensor.num_elements <= MAX_ELEMENTS
    ]
    if len(integers) < len(inputs):
        return None
    try:
        arrays = evaluate_with_kernels(node, [tensor.array for tensor in integers])
    except (QuantkitError, ValueError, TypeError, IndexError, ArithmeticError):
        return None
    return Tensor.of(arrays[0]) if arrays and len(arrays) == 1 else None


def values_of_shapes(node: Node, shapes: Sequence[Shape]) -> list[Tensor] | None:
    """Return the outputs of an op that depends on shapes only; None if a shape is unknown."""
    dtype = node.attrs.get("out_type", DType.INT32)
    if not isinstance(dtype, DType):
        return None
    if node.op == "Rank":
        return None if shapes[0].rank is None else [Tensor.of(shapes[0].rank, DType.INT32)]
    if not all(shape.is_known for shape in shapes):
        return None
    if node.op == "Size":
        count = 1
        for size in shapes[0].sizes:
            count *= size
        return [Tensor.of(count, dtype)]
    return [Tensor.of(list(shape.sizes), dtype) for shape in shapes]
