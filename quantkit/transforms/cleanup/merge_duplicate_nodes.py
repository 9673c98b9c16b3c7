"""Compute once what several nodes compute equally.

Two nodes are equal when op, inputs, device, attributes and what they wait for are, where inputs that are equal
themselves count as the same. One walk in execution order finds all of them: whatever a node reads was numbered
before it.
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

# Equal or not, each of these stands for a tensor of its own.
FED_OPS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg"})
# Tensors whose values nobody can compare.
UNREADABLE = (DType.RESOURCE, DType.VARIANT)
# Most constants differ in their first bytes; only those that do not are read to the end.
BEGINNING_BYTES = 64


@transform(dialects=("tensorflow", "onnx"))
def merge_duplicate_nodes(graph: Graph, *, commutative: bool = False) -> Outcome:
    """Merge nodes that compute the same, the first in file order stays.

    Before:  a = Relu(x)
             b = Relu(x)
             c = Add(a, b)
    After:   a = Relu(x)
             c = Add(a, a)

    Constants are equal when type, shape and bits are, however the file stores them. Inputs and outputs of the graph
    and placeholders are never merged. Safe before any other transform and after it; what is shared afterwards, folding
    may decline to change for one reader alone.

    Options:
        commutative: take Add(a, b) and Add(b, a) for equal, and the like for other ops of two inputs (false).

    Skips when an op keeps state (random numbers, variables, queues), or is not known, or a loop or branch of an
    ONNX graph refers to the node.

    Raises:
        GraphError: the nodes form a cycle, or one reads what is not there.

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
    keep: dict[str, str] = {}
    changes: list[str] = []
    skips: list[Skip] = []
    for first, *twins in _equal_nodes(graph, commutative):
        reason = _reason_to_stay(first.op, graph.dialect)
        for twin in twins:
            if reason:
                skips.append(Skip(f"it equals {first.name}, but {reason}", twin.name))
            else:
                keep[twin.name] = first.name
                changes.append(f"{twin.name} ({twin.op}) -> {first.name}")
    nodes = (_rewired(node, keep) for node in graph.nodes.values() if node.name not in keep)
    return Outcome(graph.with_nodes(nodes), tuple(changes), tuple(skips))


def _equal_nodes(graph: Graph, commutative: bool) -> list[list[Node]]:
    """Groups of two or more equal nodes, in file order."""
    tensor_keys = _tensor_keys(graph)
    kept = graph.endpoint_names | names_in_subgraphs(graph)
    groups: dict[Hashable, list[str]] = {}
    leaders: dict[str, str] = {}
    for name in graph.order:
        node = graph[name]
        key = (
            node.op,
            name if name in kept or node.op in FED_OPS else "",
            _reads(node, leaders, commutative and graph.dialect == "tensorflow"),
            frozenset(leaders.get(control, control) for control in node.controls),
            node.device,
            frozenset((attr, _attr_key(value, tensor_keys)) for attr, value in _compared(node).items()),
        )
        members = groups.setdefault(key, [])
        members.append(name)
        if not _reason_to_stay(node.op, graph.dialect):
            leaders[name] = members[0]
    place = {name: number for number, name in enumerate(graph.nodes)}
    found = [sorted(members, key=place.__getitem__) for members in groups.values() if len(members) > 1]
    return [[graph[name] for name in members] for members in sorted(found, key=lambda members: place[members[0]])]


def _reads(node: Node, leaders: Mapping[str, str], commutative: bool) -> tuple[tuple[str, int], ...]:
    """What the node reads; sorted where the order does not matter."""
    read = tuple((leaders.get(edge.node, edge.node), edge.port) for edge in node.inputs)
    if not commutative or len(read) != 2:
        return read
    known = find_op(node.op)
    # Add joins strings, too; of numbers it gives the same in either order.
    is_sum = node.op == "Add" and node.attrs.get("T") is not DType.STRING
    return tuple(sorted(read)) if is_sum or (known is not None and known.is_commutative) else read


def _compared(node: Node) -> Mapping[str, Attr]:
    """The attributes, with which values an ONNX node makes in place of what they are called."""
    names = node.attrs.get(onnx.OUTPUTS)
    if not isinstance(names, tuple):
        return node.attrs
    return {**node.attrs, onnx.OUTPUTS: tuple(bool(name) for name in names)}


@cache
def _reason_to_stay(op: str, dialect: str) -> str:
    if dialect == onnx.DIALECT:
        known_state = is_stateful_in_onnx(op)
        if known_state is None:
            return f"what {op} does is not known"
        return f"{op} gives another result each time" if known_state else ""
    known = find_op(op)
    if known is None:
        return f"what {op} does is not known"
    # TensorFlow's table calls an op that only changes what another holds (AssignAdd, QueueDequeue) stateless.
    return f"{op} keeps state" if known.is_stateful or any(arg.is_ref for arg in known.inputs) else ""


def _rewired(node: Node, keep: Mapping[str, str]) -> Node:
    if not any(edge.node in keep for edge in node.inputs) and not any(name in keep for name in node.controls):
        return node
    inputs = tuple(Edge(keep.get(edge.node, edge.node), edge.port) for edge in node.inputs)
    return node.with_(inputs=inputs, controls=tuple(dict.fromkeys(keep.get(name, name) for name in node.controls)))


def _tensor_keys(graph: Graph) -> dict[int, tuple[Hashable, ...]]:
    """For the id of each tensor, a key that only equal tensors share; each is read no further than that takes."""
    tensors = {
        id(value): value for node in graph.nodes.values() for value in node.attrs.values() if isinstance(value, Tensor)
    }
    keys: dict[int, tuple[Hashable, ...]] = {
        number: (one.dtype, one.shape, number if one.dtype in UNREADABLE else 0) for number, one in tensors.items()
    }
    refinements: tuple[Callable[[Tensor], bytes], ...] = (_beginning, _whole)
    for refine in refinements:
        counts = Counter(keys.values())
        for number, key in keys.items():
            if counts[key] > 1:
                keys[number] = (*key, refine(tensors[number]))
    return keys


def _beginning(tensor: Tensor) -> bytes:
    if not tensor.dtype.num_bytes:
        return b""
    return tensor.array.reshape(-1)[: BEGINNING_BYTES // tensor.dtype.num_bytes].tobytes()


def _whole(tensor: Tensor) -> bytes:
    return b"" if 0 < tensor.num_bytes <= BEGINNING_BYTES else tensor.digest


def _attr_key(value: Attr, tensor_keys: Mapping[int, tuple[Hashable, ...]]) -> Hashable:
    """Equal for equal attributes; unlike ``==``, it tells 1 from True and 0.0 from -0.0."""
    if isinstance(value, Tensor):
        return tensor_keys.get(id(value)) or value.digest
    if isinstance(value, tuple):
        return tuple(_attr_key(item, tensor_keys) for item in value)
    return (type(value), value.hex() if isinstance(value, float) else value)
