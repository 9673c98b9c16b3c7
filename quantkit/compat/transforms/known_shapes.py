"""The shapes that TensorFlow's import knew, as far as the folding of constants asked for them."""

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

# Known shapes make shape ops constants, which may make more shapes known; this often at most.
SHAPE_ROUNDS = 4
# Tensors of more integers are no shapes.
LARGEST = 64
INTEGERS = (DType.INT32, DType.INT64)


def consumed_shapes(
    nodes: Sequence[NodeDef], context: ClassicContext
) -> dict[str, dict[int, Shape]]:
    """What is known of the shapes that somebody reads, by node and port."""
    defaults = (with_defaults(_unknown_scalar(node), context.library) for node in nodes)
    graph = Graph.of([as_node(node) for node in defaults])
    shapes = infer_shapes(graph)
    for _ in range(SHAPE_ROUNDS):
        known = {
            node.name: constant(node.name, value)
            for node in graph.nodes.values()
            if (value := _integers(graph, node, shapes)) is not None
        }
        if not known:
            break
        graph = graph.with_nodes({**graph.nodes, **known}.values())
        shapes = infer_shapes(graph)
    found: dict[str, dict[int, Shape]] = {}
    for node in nodes:
        for text in node.data_inputs:
            edge = Edge.parse(text)
            if edge in shapes:
                found.setdefault(edge.node, {})[edge.port] = shapes[edge]
    return found


def _unknown_scalar(node: NodeDef) -> NodeDef:
    """A placeholder that says scalar may mean that it does not know; so it was taken."""
    if node.op == "Placeholder" and node.attrs.get("shape") == Shape(()):
        return node.with_attrs(shape=Shape(None))
    return node


def _integers(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> Tensor | None:
    """The few integers that a node makes of shapes or of constants, if it does."""
    if node.op in ("Shape", "Rank", "Size"):
        values = values_of_shapes(node, [shapes.get(edge, Shape(None)) for edge in node.inputs])
        return values[0] if values else None
    op = find_op(node.op)
    if op is None or op.is_stateful or node.is_constant or not node.inputs:
        return None
    inputs = [graph.constant_of(edge) for edge in node.inputs]
    known = [
        one
        for one in inputs
        if one is not None and one.dtype in INTEGERS and one.num_elements <= LARGEST
    ]
    if len(known) < len(inputs):
        return None
    try:
        arrays = evaluate_with_kernels(node, [one.array for one in known])
    except (QuantkitError, ValueError, TypeError, IndexError, ArithmeticError):
        return None
    return Tensor.of(arrays[0]) if arrays and len(arrays) == 1 else None


def values_of_shapes(node: Node, shapes: Sequence[Shape]) -> list[Tensor] | None:
    """The outputs of an op that depends on shapes only, or None where they are not known."""
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
