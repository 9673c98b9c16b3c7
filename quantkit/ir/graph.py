"""Graphs as values: nodes that never change, and indexes built once.

A node's identity is its name. A node has data inputs (`inputs`, edges in order) and control
dependencies (`controls`, names of nodes that must run before). A transform returns a new `Graph`;
unchanged nodes and all tensors are shared with the old one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from quantkit.arguments import public
from quantkit.errors import GraphError, UsageError, did_you_mean
from quantkit.ir.functions import FunctionName, Library
from quantkit.ir.names import split_reference
from quantkit.ir.tensor import DType, Shape, Tensor

# The first input of a loop's Merge is computed before the second: one input is enough to run it.
LOOP_MERGES = frozenset({"Merge", "RefMerge", "_XlaMerge"})
# A Switch runs for both values of its predicate: a control dependency on a consumer of one output must not become one
# on the Switch itself.
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})


class Edge(NamedTuple):
    """One tensor: an output of a node."""

    node: str
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "Edge":
        """Parse ``name`` or ``name:port``.

        >>> Edge.parse("split:1")
        Edge(node='split', port=1)
        """
        node, port = split_reference(text)
        return cls(node, int(port or 0))

    @property
    def reference(self) -> str:
        """Text that `parse` reads as this edge: `str`, except for an ONNX value such as ``y:0``.

        >>> Edge("split", 1).reference, Edge("y:0").reference
        ('split:1', 'y:0:0')
        """
        text = str(self)
        return text if Edge.parse(text) == self else f"{text}:0"

    def __str__(self) -> str:
        return f"{self.node}:{self.port}" if self.port else self.node


@dataclass(frozen=True, slots=True)
class Opaque:
    """Attribute that quantkit does not interpret: its bytes in the format of its file."""

    data: bytes


# bytes, int, float and bool are the plain kinds; a tuple is a list of one kind.
Attr = bytes | int | float | bool | DType | Shape | Tensor | FunctionName | Opaque | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """Operation of a graph.

    Attributes:
        name: name, unique in the graph.
        op: op type.
        inputs: input tensors, in order; texts such as ``split:1`` are parsed.
        controls: control dependencies: names of nodes that must run before this one.
        attrs: attributes by name; must not be changed.
        device: device string; empty if none.
        extra: fields of the file format that quantkit does not interpret; they survive a round trip.
        spelling: inputs as the file writes them, if the file uses an unusual notation; see `written_inputs`.
    """

    name: str
    op: str
    inputs: tuple[Edge, ...] = ()
    controls: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    extra: bytes = b""
    spelling: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if str in map(type, self.inputs):
            edges = (Edge.parse(edge) if isinstance(edge, str) else edge for edge in self.inputs)
            object.__setattr__(self, "inputs", tuple(edges))

    @classmethod
    def of_written(
        cls,
        name: str,
        op: str,
        written: Iterable[str],
        attrs: Mapping[str, Attr],
        device: str = "",
        extra: bytes = b"",
    ) -> Self:
        """Create a node from the inputs of a GraphDef: ``node``, ``node:port`` or ``^node``."""
        written = tuple(written)
        edges, controls = _read_inputs(written)
        usual = (*map(str, edges), *(f"^{control}" for control in controls))
        return cls(name, op, edges, controls, attrs, device, extra, () if usual == written else written)

    @property
    def written_inputs(self) -> tuple[str, ...]:
        """Inputs in GraphDef notation: the notation of the file, unless the inputs have changed since."""
        if self.spelling and _read_inputs(self.spelling) == (self.inputs, self.controls):
            return self.spelling
        return (*map(str, self.inputs), *(f"^{control}" for control in self.controls))

    def with_(self, **changes: Any) -> Self:
        """Return a copy with other fields.

        >>> Node("a", "Relu").with_(name="b").name
        'b'
        """
        return replace(self, **changes)

    def with_attrs(self, **changes: Attr | None) -> Self:
        """Return a copy with attributes set; None removes an attribute."""
        merged = {**self.attrs, **changes}
        return replace(self, attrs={key: value for key, value in merged.items() if value is not None})

    def with_input(self, slot: int, edge: Edge | str) -> Self:
        """Return a copy whose input ``slot`` is another edge."""
        new = Edge.parse(edge) if isinstance(edge, str) else edge
        return replace(self, inputs=(*self.inputs[:slot], new, *self.inputs[slot + 1 :]))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the producers of the inputs, slot by slot, then of the control dependencies."""
        return (*(edge.node for edge in self.inputs), *self.controls)

    @property
    def is_constant(self) -> bool:
        return self.op in ("Const", "Constant")

    @property
    def value(self) -> Tensor:
        """Tensor of a constant.

        Raises:
            GraphError: the node is not a constant, or has no value.
        """
        value = self.attrs.get("value")
        if not isinstance(value, Tensor):
            raise GraphError(f"node {self.name!r} ({self.op}) has no constant value")
        return value


@public
def constant(name: str, values: Any, dtype: DType | None = None) -> Node:
    """Create a ``Const`` node.

    Args:
        name: name of the node.
        values: a `Tensor`, or any argument of `Tensor.of`.
        dtype: element type, if NumPy has no equivalent type.
    """
    tensor = values if isinstance(values, Tensor) else Tensor.of(values, dtype)
    return Node(name, "Const", attrs={"dtype": tensor.dtype, "value": tensor})


class Use(NamedTuple):
    """Use of an edge: the consumer and its input index (-1 for a control dependency)."""

    node: Node
    slot: int


@dataclass(frozen=True)
class Versions:
    """GraphDef versions: the producer that wrote the graph, and the consumers that may load it."""

    producer: int = 0
    min_consumer: int = 0
    bad_consumers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Graph(Mapping[str, Node]):
    """Computation graph of a network: a mapping of nodes by name that iterates in topological order.

    Attributes:
        nodes: nodes by name, in file order; `order` is the topological order.
        inputs: tensors that the caller feeds.
        outputs: tensors that the caller fetches.
        dialect: op set of the nodes: ``tensorflow`` or ``onnx``.
        versions: versions of a GraphDef (`extra` has the opset imports of an ONNX model).
        library: functions of a GraphDef, decoded on first access.
        extra: all other fields of the file, serialized; they survive a round trip.
    """

    nodes: Mapping[str, Node]
    inputs: tuple[Edge, ...] = ()
    outputs: tuple[Edge, ...] = ()
    dialect: str = "tensorflow"
    versions: Versions = Versions()
    library: Library["Graph"] = field(default_factory=Library)
    extra: bytes = b""

    @classmethod
    def of(
        cls,
        nodes: Iterable[Node],
        inputs: Iterable[Edge | str] = (),
        outputs: Iterable[Edge | str] = (),
        **fields: Any,
    ) -> Self:
        """Create a graph from nodes in file order.

        Raises:
            GraphError: two nodes have the same name.
        """
        nodes_by_name: dict[str, Node] = {}
        for node in nodes:
            if node.name in nodes_by_name:
                raise GraphError(
                    f"two nodes are named {node.name!r} ({nodes_by_name[node.name].op} and {node.op})",
                    hint="node names must be unique: rename one of the two nodes in the program that writes the graph",
                )
            nodes_by_name[node.name] = node
        return cls(nodes_by_name, _edges(nodes_by_name, inputs), _edges(nodes_by_name, outputs), **fields)

    def with_(self, **changes: Any) -> Self:
        """Return a copy with other fields."""
        return replace(self, **changes)

    def with_nodes(self, nodes: Iterable[Node]) -> Self:
        """Return the same graph with other nodes."""
        return replace(self, nodes={node.name: node for node in nodes})

    def with_values(self, values: Mapping[str, Tensor]) -> Self:
        """Return the same graph with other values of some constants, by name."""
        changes = {name: self.nodes[name].with_attrs(value=tensor) for name, tensor in values.items()}
        return replace(self, nodes={**self.nodes, **changes})

    def with_endpoints(self, inputs: Iterable[Edge | str] | None, outputs: Iterable[Edge | str] | None) -> Self:
        """Return the same graph with other inputs and outputs; None keeps the present ones.

        Raises:
            UsageError: a name is not in the graph; the hint has the nearest names.
        """
        graph = replace(
            self,
            inputs=self.inputs if inputs is None else _edges(self.nodes, inputs),
            outputs=self.outputs if outputs is None else _edges(self.nodes, outputs),
        )
        for role, edges in (("input", graph.inputs), ("output", graph.outputs)):
            for edge in edges:
                if edge.node not in graph.nodes:
                    near = did_you_mean(edge.node, graph.nodes)
                    raise UsageError(
                        f"{role} {edge.node!r} is not in the graph",
                        hint=near or "quantkit summarize lists the inputs and outputs of a graph",
                    )
        return graph

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __contains__(self, name: object) -> bool:
        return name in self.nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.nodes)

    def edge(self, text: str) -> Edge:
        """Return the edge of a reference; the name of a node, such as ``y:0`` in ONNX, precedes ``name:port``."""
        return _find_edge(self.nodes, text)

    def consumers(self, producer: str | Edge) -> tuple[Node, ...]:
        """Return the nodes that take an output of a node as an input, in file order.

        Args:
            producer: name of a node, for all of its outputs, or one edge.

        Raises:
            UsageError: the node is not in the graph.
        """
        name = producer.node if isinstance(producer, Edge) else producer
        if name not in self.nodes:
            hint = did_you_mean(name, self.nodes) or "quantkit summarize lists the inputs and outputs of a graph"
            raise UsageError(f"node {name!r} is not in the graph", hint=hint)
        uses = self.uses.get(producer, ()) if isinstance(producer, Edge) else self.node_uses.get(name, ())
        return tuple({use.node.name: use.node for use in uses if use.slot >= 0}.values())

    @cached_property
    def analyses(self) -> dict[str, Any]:
        """Results of analyses of this graph, by the name of the analysis: each is computed once."""
        return {}

    @cached_property
    def endpoint_names(self) -> frozenset[str]:
        """Names of the nodes of graph inputs and outputs; transforms keep these names."""
        return frozenset(edge.node for edge in (*self.inputs, *self.outputs))

    @cached_property
    def referenced_names(self) -> frozenset[str]:
        """Names of the nodes that have more than consumers: endpoints, and values that ONNX subgraphs capture."""
        return self.endpoint_names.union(*(node.controls for node in self.nodes.values()))

    @cached_property
    def input_names(self) -> frozenset[str]:
        """Names of the nodes of graph inputs."""
        return frozenset(edge.node for edge in self.inputs)

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the nodes of graph outputs."""
        return frozenset(edge.node for edge in self.outputs)

    @cached_property
    def uses(self) -> Mapping[Edge, tuple[Use, ...]]:
        """Consumers of each edge with the input index; graph outputs do not count as uses."""
        table: dict[Edge, list[Use]] = {}
        for node in self.nodes.values():
            for slot, edge in enumerate(node.inputs):
                table.setdefault(edge, []).append(Use(node, slot))
        return {edge: tuple(uses) for edge, uses in table.items()}

    @cached_property
    def node_uses(self) -> Mapping[str, tuple[Use, ...]]:
        """Consumers of any output of a node and control dependencies on it (index -1), in file order."""
        table: dict[str, list[Use]] = {}
        for node in self.nodes.values():
            for slot, edge in enumerate(node.inputs):
                table.setdefault(edge.node, []).append(Use(node, slot))
            for name in node.controls:
                table.setdefault(name, []).append(Use(node, -1))
        return {name: tuple(uses) for name, uses in table.items()}

    def is_shared(self, node: Node) -> bool:
        """Return True if the node has several uses; being a graph input or output counts as one."""
        return len(self.node_uses.get(node.name, ())) + (node.name in self.endpoint_names) > 1

    def constant_of(self, edge: Edge) -> Tensor | None:
        """Return the tensor of an edge whose producer is a constant, else None."""
        node = self.nodes.get(edge.node)
        if node is None or not node.is_constant or edge.port:
            return None
        value = node.attrs.get("value")
        return value if isinstance(value, Tensor) else None

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names in topological order: Kahn's algorithm with a stack, the order of transform_graph.

        Nodes without inputs are pushed in file order; the node pushed last runs first. The Merge of a
        loop needs only one data input, so that loops are not cycles.

        Raises:
            GraphError: an input names no node, or the nodes form a cycle.
        """
        missing_inputs: dict[str, int] = {}
        stack: list[str] = []
        for node in self.nodes.values():
            for name in node.sources:
                if name not in self.nodes:
                    raise GraphError(
                        f"node {node.name!r} has input {name!r}, which is not in the graph",
                        hint=did_you_mean(name, self.nodes) or "run strip_unused_nodes before removing nodes",
                    )
            count = min(1, len(node.inputs)) if node.op in LOOP_MERGES else len(node.inputs)
            missing_inputs[node.name] = count + len(node.controls)
            if not missing_inputs[node.name]:
                stack.append(node.name)
        order: list[str] = []
        while stack:
            name = stack.pop()
            order.append(name)
            for use in self.node_uses.get(name, ()):
                consumer = use.node.name
                missing_inputs[consumer] -= 1
                if missing_inputs[consumer] == 0:
                    stack.append(consumer)
        if len(order) != len(self.nodes):
            unsorted = set(self.nodes) - set(order)
            raise GraphError(
                f"{len(unsorted)} nodes depend on each other in a cycle: {', '.join(self._find_cycle(unsorted))}",
                hint="a frozen graph may loop only through Merge nodes",
            )
        return tuple(order)

    def _find_cycle(self, unsorted: set[str]) -> list[str]:
        """Return names along one cycle, for the message."""
        path: list[str] = []
        name = min(unsorted)
        while name not in path:
            path.append(name)
            name = next(source for source in self.nodes[name].sources if source in unsorted)
        return [*path[path.index(name) :][::-1][:6], "..."]

    def reachable(self, stop_at_inputs: bool = True) -> set[str]:
        """Return the names of the nodes that the outputs need, as data or as control dependencies.

        Args:
            stop_at_inputs: do not include the producers of graph inputs.

        Raises:
            GraphError: an input of a reachable node is not in the graph.
        """
        stop = self.input_names if stop_at_inputs else frozenset()
        names: set[str] = set()
        stack = [edge.node for edge in self.outputs]
        while stack:
            name = stack.pop()
            if name in names:
                continue
            node = self.nodes.get(name)
            if node is None:
                # A name in a broken file may have several lines.
                quoted = repr(name)[1:-1]
                consumer = next((node.name for node in self.nodes.values() if name in node.sources), "")
                raise GraphError(
                    f"Input node {quoted} not found in graph" + (f": it is an input of {consumer}" if consumer else ""),
                    hint=did_you_mean(name, self.nodes) or "check --outputs: quantkit summarize lists the outputs",
                )
            names.add(name)
            if name not in stop:
                stack.extend(node.sources)
        return names

    def without_unused_nodes(self, stop_at_inputs: bool = True) -> "Graph":
        """Return the graph with the nodes that the outputs need, and the inputs; unchanged without outputs.

        Args:
            stop_at_inputs: do not keep the producers of graph inputs.

        Raises:
            GraphError: an input of a needed node is not in the graph.
        """
        roots = self if stop_at_inputs else self.with_(outputs=(*self.outputs, *self.inputs))
        needed = roots.reachable(stop_at_inputs) | self.input_names
        if not self.outputs or needed.issuperset(self.nodes):
            return self
        return self.with_nodes(node for node in self.nodes.values() if node.name in needed)

    @cached_property
    def op_counts(self) -> Mapping[str, int]:
        """Number of nodes of each op type, most frequent first."""
        counts: dict[str, int] = {}
        for node in self.nodes.values():
            counts[node.op] = counts.get(node.op, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def __repr__(self) -> str:
        endpoints = f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}"
        return f"Graph({len(self.nodes)} nodes, {endpoints})"


def _read_inputs(written: Iterable[str]) -> tuple[tuple[Edge, ...], tuple[str, ...]]:
    """Split inputs in GraphDef notation into edges and control dependencies."""
    edges: list[Edge] = []
    controls: list[str] = []
    for text in written:
        if text.startswith("^"):
            controls.append(text[1:])
        else:
            edges.append(Edge.parse(text) if ":" in text else Edge(text))
    return tuple(edges), tuple(controls)


def _edges(nodes: Mapping[str, Node], edges: Iterable[Edge | str]) -> tuple[Edge, ...]:
    return tuple(edge if isinstance(edge, Edge) else _find_edge(nodes, edge) for edge in edges)


def _find_edge(nodes: Mapping[str, Node], text: str) -> Edge:
    return Edge(text) if text in nodes else Edge.parse(text)
