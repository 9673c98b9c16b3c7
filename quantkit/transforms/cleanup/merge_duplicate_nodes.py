"""Eliminate common subexpressions.

Two nodes are equal if op type, inputs, device, attributes and control dependencies are equal, where
inputs from equal nodes count as the same. One pass in topological order finds all duplicates: the
producers of a node's inputs are grouped before the node.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import cache

from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.onnx.shapes import is_stateful as is_stateful_in_onnx
from quantkit.ops.tensorflow.signatures import find_op
from quantkit.transforms._names import names_in_subgraphs
from quantkit.transforms.registry import transform

# Ops of inputs and arguments: each node is a tensor of its own, even if the attributes are equal.
INPUT_OPS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg"})
# Element types whose values cannot be compared.
OPAQUE_TYPES = (DType.RESOURCE, DType.VARIANT)
# Length of the prefix that is compared first. Most constants differ there; only the others are hashed completely.
PREFIX_BYTES = 64


@transform(dialects=("tensorflow", "onnx"))
def merge_duplicate_nodes(graph: Graph, *, commutative: bool = False) -> Outcome:
    """Merge nodes that compute the same value into the first in file order.

    Before:  a = Relu(x)
             b = Relu(x)
             c = Add(a, b)
    After:   a = Relu(x)
             c = Add(a, a)

    Constants are equal if type, shape and bits are equal, in any storage format. Graph inputs, graph
    outputs and placeholders are never merged. The transform may run before or after any other, but
    folding skips layers whose constants have become shared.

    Options:
        commutative: treat Add(a, b) and Add(b, a) as equal, and other commutative ops of two inputs
            (default: false).

    Skips stateful ops (random numbers, variables, queues), unknown ops, and nodes to which a
    subgraph of an ONNX graph refers.

    Raises:
        GraphError: the graph has a cycle, or an input that is not in the graph.

    Example:
        merge_duplicate_nodes
        inputs: x
        outputs: y
        x = Placeholder[2]()
        a = Relu(x)
        b = Relu(x)
        c = Neg(a)
        d = Neg(b)
        y = Add(c, d)
    """
    replacements: dict[str, str] = {}
    changes: list[str] = []
    skips: list[Skip] = []
    for first, *duplicates in _group_equal_nodes(graph, commutative):
        reason = _skip_reason(first.op, graph.dialect)
        for duplicate in duplicates:
            if reason:
                skips.append(Skip(f"duplicate of {first.name}, but {reason}", duplicate.name))
            else:
                replacements[duplicate.name] = first.name
                changes.append(f"{duplicate.name} ({duplicate.op}) -> {first.name}")
    nodes = (_reconnect(node, replacements) for node in graph.nodes.values() if node.name not in replacements)
    return Outcome(graph.with_nodes(nodes), tuple(changes), tuple(skips))


def _group_equal_nodes(graph: Graph, commutative: bool) -> list[list[Node]]:
    """Return groups of two or more equal nodes, in file order."""
    tensor_keys = _tensor_keys(graph)
    unmergeable = graph.endpoint_names | names_in_subgraphs(graph)
    groups: dict[Hashable, list[str]] = {}
    leaders: dict[str, str] = {}
    for name in graph.order:
        node = graph[name]
        key = (
            node.op,
            name if name in unmergeable or node.op in INPUT_OPS else "",
            _input_key(node, leaders, commutative and graph.dialect == "tensorflow"),
            frozenset(leaders.get(control, control) for control in node.controls),
            node.device,
            frozenset((attr, _attr_key(value, tensor_keys)) for attr, value in _compared_attrs(node).items()),
        )
        members = groups.setdefault(key, [])
        members.append(name)
        if not _skip_reason(node.op, graph.dialect):
            leaders[name] = members[0]
    position = {name: number for number, name in enumerate(graph.nodes)}
    duplicates = [sorted(members, key=position.__getitem__) for members in groups.values() if len(members) > 1]
    duplicates.sort(key=lambda members: position[members[0]])
    return [[graph[name] for name in members] for members in duplicates]


def _input_key(node: Node, leaders: Mapping[str, str], commutative: bool) -> tuple[tuple[str, int], ...]:
    """Return the inputs with duplicates replaced, sorted if the op is commutative."""
    inputs = tuple((leaders.get(edge.node, edge.node), edge.port) for edge in node.inputs)
    if not commutative or len(inputs) != 2:
        return inputs
    definition = find_op(node.op)
    # Add concatenates strings; otherwise Add is commutative.
    is_sum = node.op == "Add" and node.attrs.get("T") is not DType.STRING
    return tuple(sorted(inputs)) if is_sum or (definition is not None and definition.is_commutative) else inputs


def _compared_attrs(node: Node) -> Mapping[str, Attr]:
    """Return the attributes; the value names of an ONNX node become flags for omitted values."""
    names = node.attrs.get(onnx.OUTPUTS)
    if not isinstance(names, tuple):
        return node.attrs
    return {**node.attrs, onnx.OUTPUTS: tuple(bool(name) for name in names)}


@cache
def _skip_reason(op: str, dialect: str) -> str:
    if dialect == onnx.DIALECT:
        is_stateful = is_stateful_in_onnx(op)
        if is_stateful is None:
            return f"{op} is an unknown op"
        return f"{op} returns different values in each run" if is_stateful else ""
    definition = find_op(op)
    if definition is None:
        return f"{op} is an unknown op"
    # TensorFlow's op table lists ops that change the state of another op (AssignAdd, QueueDequeue) as stateless.
    return f"{op} is stateful" if definition.is_stateful or any(arg.is_ref for arg in definition.inputs) else ""


def _reconnect(node: Node, replacements: Mapping[str, str]) -> Node:
    if not any(name in replacements for name in node.sources):
        return node
    inputs = tuple(Edge(replacements.get(edge.node, edge.node), edge.port) for edge in node.inputs)
    controls = tuple(dict.fromkeys(replacements.get(name, name) for name in node.controls))
    return node.with_(inputs=inputs, controls=controls)


def _tensor_keys(graph: Graph) -> dict[int, tuple[Hashable, ...]]:
    """Return a key for the id of each tensor; equal tensors, and only they, have equal keys.

    A key contains as much of a tensor's data as distinguishes it from the others.
    """
    tensors = {
        id(value): value for node in graph.nodes.values() for value in node.attrs.values() if isinstance(value, Tensor)
    }
    keys: dict[int, tuple[Hashable, ...]] = {
        number: (tensor.dtype, tensor.shape, number if tensor.dtype in OPAQUE_TYPES else 0)
        for number, tensor in tensors.items()
    }
    refinements: tuple[Callable[[Tensor], bytes], ...] = (_prefix, _digest)
    for refine in refinements:
        counts = Counter(keys.values())
        for number, key in keys.items():
            if counts[key] > 1:
                keys[number] = (*key, refine(tensors[number]))
    return keys


def _prefix(tensor: Tensor) -> bytes:
    if not tensor.dtype.num_bytes:
        return b""
    return tensor.array.reshape(-1)[: PREFIX_BYTES // tensor.dtype.num_bytes].tobytes()


def _digest(tensor: Tensor) -> bytes:
    return b"" if 0 < tensor.num_bytes <= PREFIX_BYTES else tensor.digest


def _attr_key(value: Attr, tensor_keys: Mapping[int, tuple[Hashable, ...]]) -> Hashable:
    """Return a key that is equal for equal attributes; 1 and True differ, 0.0 and -0.0 differ."""
    if isinstance(value, Tensor):
        return tensor_keys.get(id(value)) or value.digest
    if isinstance(value, tuple):
        return tuple(_attr_key(item, tensor_keys) for item in value)
    return (type(value), value.hex() if isinstance(value, float) else value)
