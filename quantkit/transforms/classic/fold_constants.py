"""The original's folding of constants, which went through TensorFlow's import and its constant folding.

So attributes get their defaults, control inputs are sorted by name, what the outputs do not need goes, and each tensor
that is computed beforehand gets a name with two counters: ``<node>/_<new names so far>__cf__<constants so far>``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from quantkit.errors import GraphError, QuantkitError
from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.inference import infer_shapes
from quantkit.ops.tensorflow import OpDef, find_op, num_outputs, output_dtypes
from quantkit.transforms.classic.defaults import with_defaults
from quantkit.transforms.classic.merge_duplicate_nodes import murmur
from quantkit.transforms.classic.nodes import NodeDef, node_of
from quantkit.transforms.classic.table import Context, classic_transform
from quantkit.transforms.fold_constants import CONTROL_FLOW, SHAPE_OPS, Evaluate, evaluate_with_kernels

LIMIT = 10 << 20
# Known shapes make shape ops constants, which may make more shapes known; this often at most.
SHAPE_ROUNDS = 4
# The number of buckets of the hash table whose order the inputs come in, as it grows.
BUCKETS = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)

Slot = tuple[int, int]


@classic_transform
def fold_constants(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """What depends on constants only is computed; inputs go to the end of the file.

    Raises:
        GraphError: TensorFlow would not import the graph, an end is not in it, or a value can not be computed.
    """
    if context.truth("clear_output_shapes", True):
        nodes = [node.with_attrs(_output_shapes=None) for node in nodes]
    limit = context.int64("max_constant_size_in_bytes", LIMIT)
    graph = _import(nodes, context)
    shapes = _consumed_shapes(nodes, context)
    _feed(graph, context.inputs, context.outputs)
    _fetch(graph, context.outputs)
    graph.prune()
    folding = _Folding(
        graph,
        shapes,
        limit,
        frozenset(context.words("exclude_op")),
        frozenset(context.words("exclude_node")),
        context.services.get("evaluate", evaluate_with_kernels),
    )
    folding.run()
    result = _with_inputs(_exported(graph), nodes, context.inputs)
    return _needed(_as_placeholders(result, context.inputs), context)


@dataclass
class _Op:
    """A node while its graph is changed: the slots it reads, and the nodes it waits for."""

    node: NodeDef
    inputs: list[Slot] = field(default_factory=list)
    controls: set[int] = field(default_factory=set)
    is_end: bool = False  # it stands for a feed or a fetch


class _Ops(dict[int, _Op]):
    """Nodes by number; new ones get the next number."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[str, int] = {}
        self.num_names = 0
        self.feeds: dict[int, Edge] = {}

    def add(self, op: _Op) -> int:
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

    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """(reader, input slot) of every node."""
        found: dict[int, list[tuple[int, int]]] = {}
        for number, op in self.items():
            for slot, (source, _) in enumerate(op.inputs):
                found.setdefault(source, []).append((number, slot))
        return found

    def new_name(self, name: str) -> str:
        self.num_names += 1
        return f"{name}/_{self.num_names - 1}"


def _import(nodes: Sequence[NodeDef], context: Context) -> _Ops:
    """The nodes in the order in which TensorFlow's import adds them."""
    index: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if node.name in index:
            raise GraphError(f"Node '{node.name}' is not unique")
        index[node.name] = number
        data = len(node.data_inputs)
        if any(text.startswith("^") for text in node.inputs[:data]):
            raise GraphError(f"Node '{node.name}': Control dependencies must come after regular dependencies")
    graph = _Ops()
    for number in _import_order(nodes, index):
        node = with_defaults(nodes[number], context.library)
        _check_version(node, context.versions.producer)
        graph.add(_Op(node))
    for op in graph.values():
        for text in op.node.inputs:
            edge = Edge.parse(text.removeprefix("^"))
            source = graph.ids[edge.node]
            if text.startswith("^"):
                op.controls.add(source)
                continue
            count = num_outputs(_as_node(graph[source].node))
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
        loops = node.op == "Merge" and any(nodes[index[source]].op == "NextIteration" for source in sources)
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


def _check_version(node: NodeDef, producer: int) -> None:
    op = find_op(node.op)
    if op is not None and op.deprecated and producer >= op.deprecated:
        raise GraphError(
            f"Op {node.op} is not available in GraphDef version {producer}. "
            f"It has been removed in version {op.deprecated}.",
            hint=f"fold {node.name} first",
        )


def _as_node(node: NodeDef) -> Node:
    return Node.of_written(node.name, node.op, node.inputs, node.attrs)


def _consumed_shapes(nodes: Sequence[NodeDef], context: Context) -> dict[str, dict[int, Shape]]:
    """What is known of the shapes that somebody reads, by node and port."""
    versions = context.versions
    graph = Graph.of(
        [_as_node(with_defaults(_unknown_scalar(node, versions.producer), context.library)) for node in nodes]
    )
    shapes = infer_shapes(graph)
    for _ in range(SHAPE_ROUNDS):
        known = [
            constant(node.name, value)
            for node in graph.nodes.values()
            if node.op in ("Shape", "Rank", "Size") and (value := _shape_value(node, shapes)) is not None
        ]
        if not known:
            break
        graph = graph.with_nodes({**graph.nodes, **{node.name: node for node in known}}.values())
        shapes = infer_shapes(graph)
    found: dict[str, dict[int, Shape]] = {}
    for node in nodes:
        for text in node.data_inputs:
            edge = Edge.parse(text)
            if edge in shapes:
                found.setdefault(edge.node, {})[edge.port] = shapes[edge]
    return found


def _unknown_scalar(node: NodeDef, producer: int) -> NodeDef:
    """Old graphs said scalar where they did not know the shape of what is fed."""
    if node.op == "Placeholder" and node.attrs.get("shape") == Shape(()) and producer < 24:
        return node.with_attrs(shape=Shape(None))
    return node


def _shape_value(node: Node, shapes: Mapping[Edge, Shape]) -> Tensor | None:
    values = _values_of_shapes(node, [shapes.get(edge, Shape(None)) for edge in node.inputs])
    return values[0] if values else None


def _values_of_shapes(node: Node, shapes: Sequence[Shape]) -> list[Tensor] | None:
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
        for size in shapes[0].known:
            count *= size
        return [Tensor.of(count, dtype)]
    return [Tensor.of(list(shape.known), dtype) for shape in shapes]


def _feed(graph: _Ops, inputs: Sequence[str], outputs: Sequence[str]) -> None:
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
        count = num_outputs(_as_node(graph[fed].node))
        if count is not None and edge.port >= count:
            raise GraphError(f"FeedInputs: {text} should have output index < {count}")
        feed = graph.add(_Op(NodeDef(f"_recv_{edge.node}_{edge.port}", "_Recv"), is_end=True))
        graph.feeds[feed] = edge
        takes_controls = graph[fed].node.op in ("Placeholder", "PlaceholderV2")
        for op in graph.values():
            op.inputs = [(feed, 0) if slot == (fed, edge.port) else slot for slot in op.inputs]
            if takes_controls and fed in op.controls:
                op.controls = {feed if source == fed else source for source in op.controls}


def _fetch(graph: _Ops, outputs: Sequence[str]) -> None:
    for text in outputs:
        edge = Edge.parse(text)
        if edge.node not in graph.ids:
            raise GraphError(f"FetchOutputs node {text}: not found")
        number = graph.ids[edge.node]
        count = num_outputs(_as_node(graph[number].node))
        if count is not None and edge.port >= count:
            raise GraphError(f"FetchOutputs {text}: output index too large, must be < {count}")
        graph.add(_Op(NodeDef(f"_send_{text}_{len(graph.ids)}", "_Send"), [(number, edge.port)], is_end=True))


@dataclass
class _Folding:
    """One run of constant folding."""

    graph: _Ops
    shapes: Mapping[str, Mapping[int, Shape]]
    limit: int
    exclude_op: frozenset[str]
    exclude_node: frozenset[str]
    evaluate: Evaluate
    waits: dict[int, set[int]] = field(default_factory=dict)
    known: dict[int, list[Tensor]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    values: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    num_constants: int = 0

    def run(self) -> None:
        for number in self._behind_first():
            self._consider(number)
        if all(self.graph[number].node.op == "Const" for number in self.order):
            return
        wanted = self._wanted()
        found = [self._value(number)[port] for _, number, port in wanted]
        for (_, number, port), value in zip(wanted, found, strict=True):
            self._replace(number, port, value)

    def _behind_first(self) -> Iterator[int]:
        """Numbers such that all that a node reads comes before it; of its sources the last by name comes first."""
        read = {source for op in self.graph.values() for source in (*(one for one, _ in op.inputs), *op.controls)}
        stack = [(number, False) for number in self._by_name(set(self.graph) - read)]
        visited: set[int] = set()
        while stack:
            number, is_left = stack.pop()
            if is_left:
                yield number
            elif number not in visited:
                visited.add(number)
                op = self.graph[number]
                sources = {*(source for source, _ in op.inputs), *op.controls}
                stack.append((number, True))
                stack += [(source, False) for source in self._by_name(sources - visited)]

    def _by_name(self, numbers: set[int]) -> list[int]:
        return sorted(numbers, key=lambda number: self.graph[number].node.name)

    def _consider(self, number: int) -> None:
        op = self.graph[number]
        if not self._is_foldable(number):
            return
        if number not in self.known and any(source not in self.waits for source, _ in op.inputs):
            return
        waits = self.waits[number] = set()
        for source in {*(source for source, _ in op.inputs), *op.controls}:
            if source is not number:
                waits |= self.waits.get(source, {source})
        self.order.append(number)

    def _is_foldable(self, number: int) -> bool:
        op = self.graph[number]
        node, definition = op.node, find_op(op.node.op)
        if node.op == "Const":
            return node.attrs.get("dtype") is not DType.RESOURCE
        if node.op in SHAPE_OPS:
            shapes = [self._shape(slot) for slot in op.inputs]
            values = _values_of_shapes(_as_node(node), shapes)
            if values is not None:
                self.known[number] = values
                return True
        if op.is_end or definition is None or definition.is_stateful or node.op in CONTROL_FLOW:
            return False
        if node.op in self.exclude_op or node.name in self.exclude_node:
            return False
        return not self._is_oversized(node, definition)

    def _shape(self, slot: Slot) -> Shape:
        number, port = slot
        edge = self.graph.feeds.get(number, Edge(self.graph[number].node.name, port))
        return self.shapes.get(edge.node, {}).get(edge.port, Shape(None))

    def _is_oversized(self, node: NodeDef, definition: OpDef) -> bool:
        dtypes = output_dtypes(_as_node(node)) if definition.outputs else ()
        for port, shape in self.shapes.get(node.name, {}).items():
            dtype = dtypes[port] if port < len(dtypes) else None
            if shape.is_known and dtype is not None:
                size = dtype.num_bytes
                for count in shape.known:
                    size *= count
                if size > self.limit:
                    return True
        return False

    def _wanted(self) -> list[tuple[str, int, int]]:
        """(name while computing, node, port) of each tensor that a node reads which is not computed, by name."""
        names: dict[int, list[str]] = {}
        count = 0
        for number in self.order:
            name = self.graph[number].node.name
            if number in self.known:
                names[number] = []
                for _ in self.known[number]:
                    names[number].append(f"{name}/_{count}__cf__{self.num_constants}")
                    count += 1
                    self.num_constants += 1
            else:
                names[number] = [name]
        slots = {
            slot
            for number, op in self.graph.items()
            if number not in self.waits
            for slot in op.inputs
            if slot[0] in names
        }
        wanted = [(names[number][port if number in self.known else 0], number, port) for number, port in sorted(slots)]
        return sorted(wanted, key=lambda entry: entry[0])

    def _value(self, number: int) -> tuple[Tensor, ...]:
        """The values of a node's outputs.

        Raises:
            GraphError: they can not be computed.
        """
        stack = [number]
        while stack:
            top = stack[-1]
            missing = [source for source, _ in self.graph[top].inputs if source not in self.values]
            if top in self.values or top in self.known or not missing:
                if top not in self.values:
                    self.values[top] = self._compute(top)
                stack.pop()
            else:
                stack += missing
        return self.values[number]

    def _compute(self, number: int) -> tuple[Tensor, ...]:
        op = self.graph[number]
        node = op.node
        if number in self.known:
            return tuple(self.known[number])
        if node.op == "Const":
            return (node.value,)
        if node.op in ("Placeholder", "PlaceholderV2"):
            raise GraphError(_unfed(node), hint="name it in --inputs")
        inputs = [self.values[source][port].array for source, port in op.inputs]
        try:
            arrays = self.evaluate(_as_node(node), inputs)
        except QuantkitError as error:
            raise GraphError(f"{node.name} can not be computed: {error.message}", hint=error.hint) from None
        except (ValueError, TypeError, IndexError, ArithmeticError) as error:
            raise GraphError(f"{node.name} can not be computed: {str(error).splitlines()[0]}") from None
        if arrays is None:
            raise GraphError(
                f"{node.name} can not be computed: there is no NumPy kernel for {node.op}",
                hint="--evaluate-with tensorflow has one, and exclude_op leaves it as it is",
            )
        return _tensors(node, arrays)

    def _replace(self, number: int, port: int, value: Tensor) -> None:
        op = self.graph[number]
        if op.node.op == "Const" or value.num_bytes > self.limit:
            return
        readers = [
            (reader, slot)
            for reader, slot in self._readers.get(number, ())
            if self.graph[reader].inputs[slot] == (number, port)
        ]
        name = f"{self.graph.new_name(op.node.name)}__cf__{self.num_constants}"
        self.num_constants += 1
        made = NodeDef(name, "Const", attrs={"dtype": value.dtype, "value": _stored(value)})
        new = self.graph.add(_Op(made, controls=set(self.waits[number])))
        for reader, slot in readers:
            self.graph[reader].inputs[slot] = (new, 0)

    @property
    def _readers(self) -> Mapping[int, list[tuple[int, int]]]:
        if not hasattr(self, "_found_readers"):
            self._found_readers = self.graph.readers()
        return self._found_readers


def _unfed(node: NodeDef) -> str:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    text = f"You must feed a value for placeholder tensor '{node.name}' with dtype {dtype.value if isinstance(dtype, DType) else '?'}"
    if isinstance(shape, Shape) and shape.rank:
        text += f" and shape [{','.join('?' if size is None else str(size) for size in shape.dims or ())}]"
    return f"{text}\n\t [[{{{{node {node.name}}}}}]]"


def _tensors(node: NodeDef, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
    dtypes = output_dtypes(_as_node(node))
    known = dtypes if len(dtypes) == len(arrays) else (None,) * len(arrays)
    return tuple(Tensor.of(array, dtype) for array, dtype in zip(arrays, known, strict=True))


def _stored(value: Tensor) -> Tensor:
    """As TensorFlow writes it: packed if it has several values."""
    return value if value.num_elements > 1 else graphdef.listed(value)


def _exported(graph: _Ops) -> list[NodeDef]:
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


def _text(graph: _Ops, source: int, port: int) -> str:
    if source in graph.feeds:
        edge = graph.feeds[source]
        return f"{edge.node}:{edge.port}"
    name = graph[source].node.name
    return f"{name}:{port}" if port else name


def _with_inputs(result: list[NodeDef], nodes: Sequence[NodeDef], inputs: Sequence[str]) -> list[NodeDef]:
    """The nodes, and behind them the inputs that feeding took away."""
    there = {node.name for node in result}
    named = {node.name: node for node in nodes}
    missing = [name for name in _hash_order([Edge.parse(text).node for text in inputs]) if name not in there]
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
    place = next((number for number, one in enumerate(held) if murmur(one.encode()) % size == bucket), 0)
    held.insert(place, name)


def _as_placeholders(nodes: Sequence[NodeDef], inputs: Sequence[str]) -> list[NodeDef]:
    names = {Edge.parse(text).node for text in inputs}
    result = []
    for node in nodes:
        if node.name in names and node.op == "PlaceholderWithDefault":
            node = node.with_(op="Placeholder", inputs=())
        elif node.name in names and node.op != "Placeholder":
            raise GraphError(
                f"Input '{node.name}' was expected to be a Placeholder or PlaceholderWithDefault op, but was {node.op}"
            )
        result.append(node)
    return result


def _needed(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """The nodes that the outputs need, and the inputs."""
    named = {node.name: node for node in nodes}
    needed = {Edge.parse(text).node for text in context.inputs}
    stack = [Edge.parse(text).node for text in context.outputs]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack += [node_of(text) for text in named[name].inputs]
    return [node for node in nodes if node.name in needed]
