"""A graph as TensorFlow imported, cut and wrote it, which is what the original's folding of constants worked on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from quantkit.compat.transforms.defaults import with_defaults
from quantkit.compat.transforms.merge_duplicate_nodes import murmur
from quantkit.compat.transforms.nodes import NodeDef, node_of
from quantkit.compat.transforms.table import ClassicContext
from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Node
from quantkit.ops.tensorflow.signatures import find_op, num_outputs

# The number of buckets of the hash table whose order the inputs come in, as it grows.
BUCKETS = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)

Slot = tuple[int, int]


@dataclass
class ImportedNode:
    """A node while its graph is changed: the slots it reads, and the nodes it waits for."""

    node: NodeDef
    inputs: list[Slot] = field(default_factory=list)
    controls: set[int] = field(default_factory=set)
    is_end: bool = False  # it stands for a feed or a fetch


class ImportedGraph(dict[int, ImportedNode]):
    """Nodes by number; new ones get the next number."""

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
        """Keep what the fetches need."""
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
        """Who reads each tensor: node, and number of its input."""
        found: dict[Slot, list[tuple[int, int]]] = {}
        for number, op in self.items():
            for place, slot in enumerate(op.inputs):
                found.setdefault(slot, []).append((number, place))
        return found

    def new_name(self, name: str) -> str:
        self.num_names += 1
        return f"{name}/_{self.num_names - 1}"


def import_nodes(nodes: Sequence[NodeDef], context: ClassicContext) -> ImportedGraph:
    """The nodes in the order in which TensorFlow's import adds them."""
    index: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if node.name in index:
            raise GraphError(f"Node '{node.name}' is not unique")
        index[node.name] = number
        data = len(node.data_inputs)
        if any(text.startswith("^") for text in node.inputs[:data]):
            raise GraphError(
                f"Node '{node.name}': Control dependencies must come after regular dependencies"
            )
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
    """Of the nodes whose inputs are there, the first of the file comes next."""
    waiting: list[int] = []
    readers: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        sources = [node_of(text) for text in node.inputs]
        for text, source in zip(node.inputs, sources, strict=True):
            if source not in index:
                raise GraphError(f"Node '{node.name}': Unknown input node '{text}'")
            readers[index[source]].append(number)
        loops = node.op == "Merge" and any(
            nodes[index[source]].op == "NextIteration" for source in sources
        )
        waiting.append(1 + len(node.inputs) - len(node.data_inputs) if loops else len(node.inputs))
    ready = [number for number, count in enumerate(waiting) if not count]
    heapify(ready)
    done = 0
    while ready:
        number = heappop(ready)
        done += 1
        yield number
        for reader in readers[number]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, reader)
    if done < len(nodes):
        raise GraphError(f"{len(nodes) - done} nodes in a cycle")


def _check_colocation(node: NodeDef, index: Mapping[str, int]) -> None:
    classes = node.attrs.get("_class")
    for one in classes if isinstance(classes, tuple) else ():
        place = one.decode() if isinstance(one, bytes) else ""
        if place.startswith("loc:@") and place.removeprefix("loc:@") not in index:
            raise GraphError(
                f"Node '{node.name}' expects to be colocated with unknown node '{place.removeprefix('loc:@')}'",
                hint="remove_attribute(attribute_name=_class) forgets where nodes belong",
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
    """The node as graphs hold it."""
    return Node.of_written(node.name, node.op, node.inputs, node.attrs)


def feed(graph: ImportedGraph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Put a feed in the place of each input."""
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
        fed = graph.ids[edge.node]
        count = num_outputs(as_node(graph[fed].node))
        if count is not None and edge.port >= count:
            raise GraphError(f"FeedInputs: {text} should have output index < {count}")
        feed = graph.add(
            ImportedNode(NodeDef(f"_recv_{edge.node}_{edge.port}", "_Recv"), is_end=True)
        )
        graph.feeds[feed] = edge
        takes_controls = graph[fed].node.op in ("Placeholder", "PlaceholderV2")
        for op in graph.values():
            op.inputs = [(feed, 0) if slot == (fed, edge.port) else slot for slot in op.inputs]
            if takes_controls and fed in op.controls:
                op.controls = {feed if source == fed else source for source in op.controls}


def fetch(graph: ImportedGraph, outputs: Sequence[str]) -> None:
    """Let something read each output, as running the graph would."""
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
                is_end=True,
            )
        )


def exported(graph: ImportedGraph) -> list[NodeDef]:
    """The nodes with their inputs written out: controls behind the others, by name."""
    result = []
    for number in sorted(graph):
        op = graph[number]
        if op.is_end:
            continue
        texts = [_text(graph, source, port) for source, port in op.inputs]
        for source in sorted(op.controls, key=lambda one: graph[one].node.name):
            name = graph.feeds[source].node if source in graph.feeds else graph[source].node.name
            texts.append(f"^{name}")
        result.append(op.node.with_(inputs=tuple(texts)))
    return result


def _text(graph: ImportedGraph, source: int, port: int) -> str:
    if source in graph.feeds:
        edge = graph.feeds[source]
        return f"{edge.node}:{edge.port}"
    name = graph[source].node.name
    return f"{name}:{port}" if port else name


def with_inputs(
    result: list[NodeDef], nodes: Sequence[NodeDef], inputs: Sequence[str]
) -> list[NodeDef]:
    """The nodes, and behind them the inputs that feeding took away."""
    there = {node.name for node in result}
    named = {node.name: node for node in nodes}
    missing = [
        name
        for name in _hash_order([Edge.parse(text).node for text in inputs])
        if name not in there
    ]
    return [*result, *(named[name] for name in missing)]


def _hash_order(names: Sequence[str]) -> list[str]:
    """Names in the order in which a hash table of the C++ standard library holds them.

    A name is put before those of its bucket, which stand together, or before all where it has none; when the table
    grows, all names are put in anew.
    """
    held: list[str] = []
    size = BUCKETS[0]
    for name in dict.fromkeys(names):
        if len(held) == size:
            size = next((count for count in BUCKETS if count > 2 * size), 2 * size + 1)
            again: list[str] = []
            for one in held:
                _put(one, again, size)
            held = again
        _put(name, held, size)
    return held


def _put(name: str, held: list[str], size: int) -> None:
    bucket = murmur(name.encode()) % size
    place = next(
        (number for number, one in enumerate(held) if murmur(one.encode()) % size == bucket), 0
    )
    held.insert(place, name)
