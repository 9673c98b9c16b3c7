"""The original's folding of constants, which went through TensorFlow's import and its constant folding.

So attributes get their defaults, control inputs are sorted by name, what the outputs do not need goes, and each tensor
that is computed beforehand gets a name with two counters: ``<node>/_<new names so far>__cf__<constants so far>``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quantkit.compat.transforms.importing import (
    ImportedGraph,
    ImportedNode,
    Slot,
    as_node,
    exported,
    feed,
    fetch,
    import_nodes,
    with_inputs,
)
from quantkit.compat.transforms.known_shapes import consumed_shapes, values_of_shapes
from quantkit.compat.transforms.nodes import NodeDef, node_of
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError, QuantkitError
from quantkit.formats.graphdef.tensors import with_typed_field
from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.tensorflow.signatures import OpDef, find_op, output_dtypes
from quantkit.transforms.folding.fold_constants import (
    CONTROL_FLOW,
    SHAPE_OPS,
    Evaluate,
    evaluate_with_kernels,
)

LIMIT = 10 << 20


@classic_transform
def fold_constants(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """What depends on constants only is computed; inputs go to the end of the file.

    Raises:
        GraphError: TensorFlow would not import the graph, an end is not in it, or a value can not be computed.
    """
    if context.boolean("clear_output_shapes", True):
        nodes = [node.with_attrs(_output_shapes=None) for node in nodes]
    limit = context.int64("max_constant_size_in_bytes", LIMIT)
    graph = import_nodes(nodes, context)
    shapes = consumed_shapes(nodes, context)
    feed(graph, context.inputs, context.outputs)
    fetch(graph, context.outputs)
    graph.prune()
    folding = _ClassicFolding(
        graph,
        shapes,
        limit,
        frozenset(context.values("exclude_op")),
        frozenset(context.values("exclude_node")),
        context.services.get("evaluate", evaluate_with_kernels),
    )
    folding.run()
    result = with_inputs(exported(graph), nodes, context.inputs)
    return _needed(_as_placeholders(result, context.inputs), context)


@dataclass
class _ClassicFolding:
    """One run of constant folding."""

    graph: ImportedGraph
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
        readers = self.graph.node_uses()
        for (_, number, port), value in zip(wanted, found, strict=True):
            self._replace(number, value, readers[number, port])

    def _behind_first(self) -> Iterator[int]:
        """Numbers such that all that a node reads comes before it; of its sources the last by name comes first."""
        read = {
            source
            for op in self.graph.values()
            for source in (*(one for one, _ in op.inputs), *op.controls)
        }
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
            values = values_of_shapes(as_node(node), shapes)
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
        dtypes = output_dtypes(as_node(node)) if definition.outputs else ()
        for port, shape in self.shapes.get(node.name, {}).items():
            dtype = dtypes[port] if port < len(dtypes) else None
            if shape.is_known and dtype is not None:
                size = dtype.num_bytes
                for count in shape.sizes:
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
        wanted = [
            (names[number][port if number in self.known else 0], number, port)
            for number, port in sorted(slots)
        ]
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
            arrays = self.evaluate(as_node(node), inputs)
        except QuantkitError as error:
            raise GraphError(
                f"{node.name} can not be computed: {error.message}", hint=error.hint
            ) from None
        except (ValueError, TypeError, IndexError, ArithmeticError) as error:
            raise GraphError(
                f"{node.name} can not be computed: {str(error).splitlines()[0]}"
            ) from None
        if arrays is None:
            raise GraphError(
                f"{node.name} can not be computed: there is no NumPy kernel for {node.op}",
                hint="--evaluate-with tensorflow has one, and exclude_op leaves it as it is",
            )
        return _tensors(node, arrays)

    def _replace(self, number: int, value: Tensor, readers: Sequence[tuple[int, int]]) -> None:
        op = self.graph[number]
        if op.node.op == "Const" or value.num_bytes > self.limit:
            return
        name = f"{self.graph.new_name(op.node.name)}__cf__{self.num_constants}"
        self.num_constants += 1
        made = NodeDef(name, "Const", attrs={"dtype": value.dtype, "value": _stored(value)})
        new = self.graph.add(ImportedNode(made, controls=set(self.waits[number])))
        for reader, place in readers:
            self.graph[reader].inputs[place] = (new, 0)


def _unfed(node: NodeDef) -> str:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    word = dtype.value if isinstance(dtype, DType) else "?"
    text = f"You must feed a value for placeholder tensor '{node.name}' with dtype {word}"
    if isinstance(shape, Shape) and shape.rank:
        text += f" and shape [{','.join('?' if size is None else str(size) for size in shape.dims or ())}]"
    return f"{text}\n\t [[{{{{node {node.name}}}}}]]"


def _tensors(node: NodeDef, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
    dtypes = output_dtypes(as_node(node))
    known = dtypes if len(dtypes) == len(arrays) else (None,) * len(arrays)
    return tuple(Tensor.of(array, dtype) for array, dtype in zip(arrays, known, strict=True))


def _stored(value: Tensor) -> Tensor:
    """As TensorFlow writes it: packed if it has several values."""
    return value if value.num_elements > 1 else with_typed_field(value)


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


def _needed(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
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
