"""Inference of the type attributes that a graph omits, from the inputs of the nodes."""

from collections.abc import Iterator

from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import find_op, output_dtype


def complete_types(graph: Graph) -> Graph:
    """Return the graph with the required type attributes that the inputs determine.

    Graphs from text may omit ``T=float``, which TensorFlow requires. The inference goes through the nodes in file
    order; the output of a later node has an unknown type.

    Returns:
        The same object if no attribute is missing.
    """
    if graph.dialect != "tensorflow":
        return graph
    nodes: dict[str, Node] = {}
    for node in graph.nodes.values():
        missing = dict(_missing_types(node, nodes))
        nodes[node.name] = node.with_attrs(**missing) if missing else node
    is_changed = any(graph.nodes[name] is not node for name, node in nodes.items())
    return graph.with_nodes(nodes.values()) if is_changed else graph


def _missing_types(node: Node, nodes: dict[str, Node]) -> Iterator[tuple[str, DType]]:
    """Yield the missing type attributes of a node, from inputs that are single tensors or lists of one type."""
    op = find_op(node.op)
    if op is None:
        return
    slot = 0
    for arg in op.inputs:
        count = node.attrs.get(arg.number_attr, len(node.inputs) - len(op.inputs) + 1) if arg.number_attr else 1
        if arg.type_list_attr or slot >= len(node.inputs) or not isinstance(count, int):
            return
        name = arg.type_attr
        if name and name not in node.attrs and op.attrs[name].default is None:
            edge = node.inputs[slot]
            dtype = output_dtype(nodes[edge.node], edge.port) if edge.node in nodes else None
            if dtype is not None:
                yield name, dtype
        slot += count
