"""TensorFlow's graph import, pruning and export, on which the original's constant folding ran."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from quantkit.compat.transforms.defaults import with_defaults
from quantkit.compat.transforms.merge_duplicate_nodes import murmur
from quantkit.compat.transforms.nodes import NodeDef, by_name, node_of
from quantkit.compat.transforms.table import ClassicContext
from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Node
from quantkit.ops.tensorflow.signatures import find_op, num_outputs

# Bucket counts of the growing hash table whose iteration order is the order of the graph inputs.
BUCKETS = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)

Slot = tuple[int, int]


@dataclass
class ImportedNode:
    """Mutable node: its input slots and its control dependencies."""

    node: NodeDef
    inputs: list[Slot] = field(default_factory=list)
    controls: set[int] = field(default_factory=set)
    is_endpoint: bool = False  # feed or fetch


class ImportedGraph(dict[int, ImportedNode]):
    """Nodes by number; a new node gets the next number."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[str, int] = {}
        self.num_names = 0
        self.feeds: dict[int, Edge] = {}

    def add(self, op: ImportedNode) -> int:
        number = self.ids[op.node.name] = len(self.ids)
        self[number] = op
        return number

    def prune(self) -> None:
        """Remove the nodes that no fetch depends on."""
        stack = [number for number, op in self.items() if op.node.op == "_Send"]
        needed: set[int] = set()
        while stack:
            number = stack.pop()
            if number not in needed:
                needed.add(number)
                stack += [*(source for source, _ in self[number].inputs), *self[number].controls]
        for number in [number for number in self if number not in needed]:
            del self[number]

    def node_uses(self) -> dict[Slot, list[tuple[int, int]]]:
        """Return the consumers of each tensor: node number and input index."""
        uses: dict[Slot, list[tuple[int, int]]] = {}
        for number, op in self.items():
            for index, slot in enumerate(op.inputs):
                uses.setdefault(slot, []).append((number, index))
        return uses

    def new_name(self, name: str) -> str:
        self.num_names += 1
        return f"{name}/_{self.num_names - 1}"


def import_nodes(nodes: Sequence[NodeDef], context: ClassicContext) -> ImportedGraph:
    """Return the nodes in the order in which TensorFlow's import adds them."""
    index: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if node.name in index:
            raise GraphError(f"Node '{node.name}' is not unique")
        index[node.name] = number
        data = len(node.data_inputs)
        if any(text.startswith("^") for text in node.inputs[:data]):
            raise GraphError(f"Node '{node.name}': Control dependencies must come after regular dependencies")
    graph = ImportedGraph()
    for number in _import_order(nodes, index):
        _check_colocation(nodes[number], index)
        node = with_defaults(nodes[number], context.library)
        _check_version(node, context.versions.producer)
        graph.add(ImportedNode(node))
    for op in graph.values():
        for text in op.node.inputs:
            edge = Edge.parse(text.removeprefix("^"))
            source = graph.ids[edge.node]
            if text.startswith("^"):
                op.controls.add(source)
                continue
            count = num_outputs(as_node(graph[source].node))
            if count is not None and edge.port >= count:
                raise GraphError(
                    f"Node '{op.node.name}': Connecting to invalid output {edge.port} of source node {edge.node} "
                    f"which has {count} outputs."
                )
            op.inputs.append((source, edge.port))
    return graph


def _import_order(nodes: Sequence[NodeDef], index: Mapping[str, int]) -> Iterator[int]:
    """Yield node numbers: next is the first node of the file whose producers are all imported."""
    num_pending: list[int] = []
    consumers: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        sources = [node_of(text) for text in node.inputs]
        for text, source in zip(node.inputs, sources, strict=True):
            if source not in index:
                raise GraphError(f"Node '{node.name}': Unknown input node '{text}'")
            consumers[index[source]].append(number)
        is_loop = node.op == "Merge" and any(nodes[index[source]].op == "NextIteration" for source in sources)
        num_controls = len(node.inputs) - len(node.data_inputs)
        num_pending.append(1 + num_controls if is_loop else len(node.inputs))
    ready = [number for number, count in enumerate(num_pending) if not count]
    heapify(ready)
    done = 0
    while ready:
        number = heappop(ready)
        done += 1
        yield number
        for consumer in consumers[number]:
            num_pending[consumer] -= 1
            if not num_pending[consumer]:
                heappush(ready, consumer)
    if done < len(nodes):
        raise GraphError(f"{len(nodes) - done} nodes in a cycle")


def _check_colocation(node: NodeDef, index: Mapping[str, int]) -> None:
    classes = node.attrs.get("_class")
    for value in classes if isinstance(classes, tuple) else ():
        location = value.decode() if isinstance(value, bytes) else ""
        name = location.removeprefix("loc:@")
        if location.startswith("loc:@") and name not in index:
            raise GraphError(
                f"Node '{node.name}' expects to be colocated with unknown node '{name}'",
                hint="run remove_attribute(attribute_name=_class) first",
            )


def _check_version(node: NodeDef, producer: int) -> None:
    op = find_op(node.op)
    if op is not None and op.deprecated and producer >= op.deprecated:
        raise GraphError(
            f"Op {node.op} is not available in GraphDef version {producer}. "
            f"It has been removed in version {op.deprecated}.",
            hint=f"fold {node.name} first",
        )


def as_node(node: NodeDef) -> Node:
    """Convert to a node of `Graph`."""
    return Node.of_written(node.name, node.op, node.inputs, node.attrs)


def add_feeds(graph: ImportedGraph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Replace each graph input by a feed node."""
    for number, text in enumerate(inputs):
        if text in inputs[:number]:
            raise GraphError(f'Endpoint "{text}" fed more than once.')
    for text in outputs:
        if text in inputs:
            raise GraphError(f"{text} is both fed and fetched.")
    if not outputs:
        raise GraphError("Must specify at least one target to fetch or execute.")
    for text in inputs:
        edge = Edge.parse(text)
        if edge.node not in graph.ids:
            raise GraphError(f"FeedInputs: unable to find feed output {text}")
        source = graph.ids[edge.node]
        count = num_outputs(as_node(graph[source].node))
        if count is not None and edge.port >= count:
            raise GraphError(f"FeedInputs: {text} should have output index < {count}")
        feed = graph.add(ImportedNode(NodeDef(f"_recv_{edge.node}_{edge.port}", "_Recv"), is_endpoint=True))
        graph.feeds[feed] = edge
        is_placeholder = graph[source].node.op in ("Placeholder", "PlaceholderV2")
        for op in graph.values():
            op.inputs = [(feed, 0) if slot == (source, edge.port) else slot for slot in op.inputs]
            if is_placeholder and source in op.controls:
                op.controls = {feed if control == source else control for control in op.controls}


def add_fetches(graph: ImportedGraph, outputs: Sequence[str]) -> None:
    """Add a fetch node as a consumer of each graph output, as a run of the graph does."""
    for text in outputs:
        edge = Edge.parse(text)
        if edge.node not in graph.ids:
            raise GraphError(f"FetchOutputs node {text}: not found")
        number = graph.ids[edge.node]
        count = num_outputs(as_node(graph[number].node))
        if count is not None and edge.port >= count:
            raise GraphError(f"FetchOutputs {text}: output index too large, must be < {count}")
        graph.add(
            ImportedNode(
                NodeDef(f"_send_{text}_{len(graph.ids)}", "_Send"),
                [(number, edge.port)],
                is_endpoint=True,
            )
        )


def export_nodes(graph: ImportedGraph) -> list[NodeDef]:
    """Return the nodes with input texts: data inputs, then control inputs sorted by name."""
    result = []
    for number in sorted(graph):
        op = graph[number]
        if op.is_endpoint:
            continue
        texts = [_input_text(graph, source, port) for source, port in op.inputs]
        for source in sorted(op.controls, key=lambda control: graph[control].node.name):
            name = graph.feeds[source].node if source in graph.feeds else graph[source].node.name
            texts.append(f"^{name}")
        result.append(op.node.with_(inputs=tuple(texts)))
    return result


def _input_text(graph: ImportedGraph, source: int, port: int) -> str:
    if source in graph.feeds:
        edge = graph.feeds[source]
        return f"{edge.node}:{edge.port}"
    name = graph[source].node.name
    return f"{name}:{port}" if port else name


def append_inputs(result: list[NodeDef], nodes: Sequence[NodeDef], inputs: Sequence[str]) -> list[NodeDef]:
    """Append the graph inputs that were replaced by feeds."""
    present = {node.name for node in result}
    nodes_by_name = by_name(nodes)
    names = _hash_order([Edge.parse(text).node for text in inputs])
    return [*result, *(nodes_by_name[name] for name in names if name not in present)]


def _hash_order(names: Sequence[str]) -> list[str]:
    """Sort names in the iteration order of the C++ standard library's hash table.

    A new name is inserted before the names of its bucket, which are adjacent, or first if the
    bucket is empty. When the table grows, all names are inserted again.
    """
    table: list[str] = []
    num_buckets = BUCKETS[0]
    for name in dict.fromkeys(names):
        if len(table) == num_buckets:
            larger = (count for count in BUCKETS if count > 2 * num_buckets)
            num_buckets = next(larger, 2 * num_buckets + 1)
            rehashed: list[str] = []
            for entry in table:
                _insert(entry, rehashed, num_buckets)
            table = rehashed
        _insert(name, table, num_buckets)
    return table


def _insert(name: str, table: list[str], num_buckets: int) -> None:
    buckets = [murmur(entry.encode()) % num_buckets for entry in table]
    bucket = murmur(name.encode()) % num_buckets
    table.insert(buckets.index(bucket) if bucket in buckets else 0, name)
