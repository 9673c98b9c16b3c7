"""The original's constant folding, which used TensorFlow's graph import with its shapes, and its constant folding.

Its side effects are part of the result: attributes get their default values, control inputs are
sorted by name, and nodes that no output depends on are removed. A folded tensor gets a name with
two counters: ``<node>/_<number of new names>__cf__<number of constants>``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quantkit.compat.transforms.defaults import with_defaults
from quantkit.compat.transforms.importing import (
    ImportedGraph,
    ImportedNode,
    Slot,
    add_feeds,
    add_fetches,
    append_inputs,
    as_node,
    export_nodes,
    import_nodes,
)
from quantkit.compat.transforms.nodes import NodeDef, by_name, node_of
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError, QuantkitError
from quantkit.formats.graphdef.tensors import with_typed_field
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.kernels import Evaluate
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import OpDef, find_op, output_dtypes
from quantkit.transforms.folding.fold_constants import (
    CONTROL_FLOW,
    SHAPE_OPS,
    evaluate_with_kernels,
)

# Maximum number of iterations: inferred shapes make shape ops constant, and these constants may
# determine further shapes.
MAX_ITERATIONS = 4
# Maximum number of elements of an integer tensor that is evaluated as a shape.
MAX_ELEMENTS = 64
INTEGERS = (DType.INT32, DType.INT64)
LIMIT = 10 << 20


@classic_transform()
def fold_constants(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Compute nodes that depend on constants only, and move the graph inputs to the end of the file.

    Raises:
        GraphError: TensorFlow would not import the graph, a graph input or output is missing, or a
            value cannot be computed.
    """
    if context.boolean("clear_output_shapes", True):
        nodes = [node.with_attrs(_output_shapes=None) for node in nodes]
    limit = context.int64("max_constant_size_in_bytes", LIMIT)
    graph = import_nodes(nodes, context)
    shapes = consumed_shapes(nodes, context)
    add_feeds(graph, context.inputs, context.outputs)
    add_fetches(graph, context.outputs)
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
    result = append_inputs(export_nodes(graph), nodes, context.inputs)
    return _select_required(_as_placeholders(result, context.inputs), context)


@dataclass
class _ClassicFolding:
    """One run of constant folding.

    Attributes:
        graph: graph after TensorFlow's import; folded tensors replace its inputs.
        shapes: inferred shapes by node name and port.
        limit: maximum size of a folded tensor in bytes.
        exclude_op, exclude_node: op types and names of nodes that are not folded.
        evaluate: function that computes a node.
        control_dependencies: nodes that a foldable node's value depends on.
        shape_values: outputs of nodes that depend on shapes only.
        order: foldable nodes in topological order.
        values: computed outputs.
        num_constants: number of folded tensors.
    """

    graph: ImportedGraph
    shapes: Mapping[str, Mapping[int, Shape]]
    limit: int
    exclude_op: frozenset[str]
    exclude_node: frozenset[str]
    evaluate: Evaluate
    control_dependencies: dict[int, set[int]] = field(default_factory=dict)
    shape_values: dict[int, list[Tensor]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    values: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    num_constants: int = 0

    def run(self) -> None:
        for number in self._topological_order():
            self._add_if_foldable(number)
        if all(self.graph[number].node.op == "Const" for number in self.order):
            return
        consumed = self._consumed_tensors()
        values = [self._value(number)[port] for _, number, port in consumed]
        consumers = self.graph.node_uses()
        for (_, number, port), value in zip(consumed, values, strict=True):
            self._replace(number, value, consumers[number, port])

    def _topological_order(self) -> Iterator[int]:
        """Yield node numbers in topological order; producers of one node in reverse name order."""
        producers = {
            source for op in self.graph.values() for source in (*(data for data, _ in op.inputs), *op.controls)
        }
        stack = [(number, False) for number in self._by_name(set(self.graph) - producers)]
        visited: set[int] = set()
        while stack:
            number, is_expanded = stack.pop()
            if is_expanded:
                yield number
            elif number not in visited:
                visited.add(number)
                op = self.graph[number]
                sources = {*(source for source, _ in op.inputs), *op.controls}
                stack.append((number, True))
                stack += [(source, False) for source in self._by_name(sources - visited)]

    def _by_name(self, numbers: set[int]) -> list[int]:
        return sorted(numbers, key=lambda number: self.graph[number].node.name)

    def _add_if_foldable(self, number: int) -> None:
        op = self.graph[number]
        if not self._is_foldable(number):
            return
        has_unfoldable_input = any(source not in self.control_dependencies for source, _ in op.inputs)
        if number not in self.shape_values and has_unfoldable_input:
            return
        dependencies = self.control_dependencies[number] = set()
        for source in {*(source for source, _ in op.inputs), *op.controls}:
            if source is not number:
                dependencies |= self.control_dependencies.get(source, {source})
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
                self.shape_values[number] = values
                return True
        if op.is_endpoint or definition is None or definition.is_stateful or node.op in CONTROL_FLOW:
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

    def _consumed_tensors(self) -> list[tuple[str, int, int]]:
        """Return the foldable tensors with a consumer that is not foldable.

        Returns:
            Name during folding, node number and port of each tensor, sorted by name.
        """
        names: dict[int, list[str]] = {}
        count = 0
        for number in self.order:
            name = self.graph[number].node.name
            if number in self.shape_values:
                names[number] = []
                for _ in self.shape_values[number]:
                    names[number].append(f"{name}/_{count}__cf__{self.num_constants}")
                    count += 1
                    self.num_constants += 1
            else:
                names[number] = [name]
        slots = {
            slot
            for number, op in self.graph.items()
            if number not in self.control_dependencies
            for slot in op.inputs
            if slot[0] in names
        }
        consumed = [
            (names[number][port if number in self.shape_values else 0], number, port) for number, port in sorted(slots)
        ]
        return sorted(consumed, key=lambda entry: entry[0])

    def _value(self, number: int) -> tuple[Tensor, ...]:
        """Return the values of a node's outputs.

        Raises:
            GraphError: the node cannot be computed.
        """
        stack = [number]
        while stack:
            top = stack[-1]
            missing = [source for source, _ in self.graph[top].inputs if source not in self.values]
            if top in self.values or top in self.shape_values or not missing:
                if top not in self.values:
                    self.values[top] = self._compute(top)
                stack.pop()
            else:
                stack += missing
        return self.values[number]

    def _compute(self, number: int) -> tuple[Tensor, ...]:
        op = self.graph[number]
        node = op.node
        if number in self.shape_values:
            return tuple(self.shape_values[number])
        if node.op == "Const":
            return (node.value,)
        if node.op in ("Placeholder", "PlaceholderV2"):
            raise GraphError(_missing_feed_message(node), hint=f"add {node.name} to --inputs")
        inputs = [self.values[source][port].array for source, port in op.inputs]
        try:
            arrays = self.evaluate(as_node(node), inputs)
        except QuantkitError as error:
            raise GraphError(f"{node.name} cannot be computed: {error.message}", hint=error.hint) from None
        except (ValueError, TypeError, IndexError, ArithmeticError) as error:
            raise GraphError(f"{node.name} cannot be computed: {str(error).splitlines()[0]}") from None
        if arrays is None:
            raise GraphError(
                f"{node.name} cannot be computed: there is no NumPy kernel for {node.op}",
                hint=f"use --evaluate-with tensorflow, or fold_constants(exclude_op={node.op})",
            )
        return _tensors(node, arrays)

    def _replace(self, number: int, value: Tensor, consumers: Sequence[tuple[int, int]]) -> None:
        op = self.graph[number]
        if op.node.op == "Const" or value.num_bytes > self.limit:
            return
        name = f"{self.graph.new_name(op.node.name)}__cf__{self.num_constants}"
        self.num_constants += 1
        attrs: dict[str, Attr] = {"dtype": value.dtype, "value": _encode_as_tensorflow(value)}
        constant = ImportedNode(NodeDef(name, "Const", attrs=attrs), controls=set(self.control_dependencies[number]))
        new = self.graph.add(constant)
        for consumer, index in consumers:
            self.graph[consumer].inputs[index] = (new, 0)


def _missing_feed_message(node: NodeDef) -> str:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    type_name = dtype.value if isinstance(dtype, DType) else "?"
    text = f"You must feed a value for placeholder tensor '{node.name}' with dtype {type_name}"
    if isinstance(shape, Shape) and shape.rank:
        text += f" and shape [{','.join('?' if size is None else str(size) for size in shape.dims or ())}]"
    return f"{text}\n\t [[{{{{node {node.name}}}}}]]"


def _tensors(node: NodeDef, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
    dtypes = output_dtypes(as_node(node))
    types = dtypes if len(dtypes) == len(arrays) else (None,) * len(arrays)
    return tuple(Tensor.of(array, dtype) for array, dtype in zip(arrays, types, strict=True))


def _encode_as_tensorflow(value: Tensor) -> Tensor:
    """Return the tensor in TensorFlow's encoding: packed if it has several values."""
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


def _select_required(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Return the graph inputs and the nodes that the graph outputs depend on."""
    nodes_by_name = by_name(nodes)
    required = {Edge.parse(text).node for text in context.inputs}
    stack = [Edge.parse(text).node for text in context.outputs]
    while stack:
        name = stack.pop()
        if name not in required:
            required.add(name)
            stack += [node_of(text) for text in nodes_by_name[name].inputs]
    return [node for node in nodes if node.name in required]


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
