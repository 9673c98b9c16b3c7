"""Graphs as values: nodes that never change, and indexes built once.

A node's identity is its name. What it reads is data (`inputs`, edges in order) and order
(`controls`, names of nodes that must have run). A transform makes a new `Graph`; unchanged nodes and
all tensors are shared with the old one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from quantkit.errors import GraphError, UsageError, did_you_mean
from quantkit.ir.functions import FunctionName, Library
from quantkit.ir.tensor import DType, Shape, Tensor

# The first input of a loop's merge arrives before the second exists: one arrival is enough.
LOOP_MERGES = frozenset({"Merge", "RefMerge", "_XlaMerge"})
# They run whichever way they send their tensor: who waits for a reader of one way must not wait for them instead.
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})


class Edge(NamedTuple):
    """One tensor: an output of a node."""

    node: str
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "Edge":
        """``name`` or ``name:port``.

        >>> Edge.parse("split:1")
        Edge(node='split', port=1)
        """
        node, colon, port = text.rpartition(":")
        return cls(node, int(port)) if colon and port.isdecimal() else cls(text)

    def __str__(self) -> str:
        return f"{self.node}:{self.port}" if self.port else self.node


@dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute that quantkit does not interpret: its bytes in the format it came from."""

    data: bytes


# bytes, int, float and bool are the plain kinds; a tuple is a list of one kind.
Attr = bytes | int | float | bool | DType | Shape | Tensor | FunctionName | Opaque | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An operation.

    Attributes:
        name: unique in its graph.
        op: operation type.
        inputs: the tensors it reads, in order.
        controls: nodes that must run before it.
        attrs: attributes by name; must not be changed.
        device: device string, or nothing.
        extra: fields of the file format that quantkit does not interpret; they survive a round trip.
        spelling: how a file writes its inputs, where that is not the usual way; see `written_inputs`.
    """

    name: str
    op: str
    inputs: tuple[Edge, ...] = ()
    controls: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    device: str = ""
    extra: bytes = b""
    spelling: tuple[str, ...] = field(default=(), compare=False, repr=False)

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
        """A node whose inputs are given as a GraphDef writes them: ``node``, ``node:port`` or ``^node``."""
        written = tuple(written)
        edges, controls = _read_inputs(written)
        usual = (*map(str, edges), *(f"^{control}" for control in controls))
        return cls(name, op, edges, controls, attrs, device, extra, () if usual == written else written)

    @property
    def written_inputs(self) -> tuple[str, ...]:
        """Its inputs as a GraphDef writes them: as its file spelled them, unless they have changed since."""
        if self.spelling and _read_inputs(self.spelling) == (self.inputs, self.controls):
            return self.spelling
        return (*map(str, self.inputs), *(f"^{control}" for control in self.controls))

    def with_(self, **changes: Any) -> Self:
        """A copy with other fields.

        >>> Node("a", "Relu").with_(name="b").name
        'b'
        """
        return replace(self, **changes)

    def with_attrs(self, **changes: Attr | None) -> Self:
        """A copy with attributes set, or removed where the value is None."""
        merged = {**self.attrs, **changes}
        return replace(self, attrs={key: value for key, value in merged.items() if value is not None})

    def with_input(self, slot: int, edge: Edge | str) -> Self:
        """A copy whose input ``slot`` is another edge."""
        new = Edge.parse(edge) if isinstance(edge, str) else edge
        return replace(self, inputs=(*self.inputs[:slot], new, *self.inputs[slot + 1 :]))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the nodes it reads, slot by slot, then of those it waits for."""
        return (*(edge.node for edge in self.inputs), *self.controls)

    @property
    def is_constant(self) -> bool:
        return self.op in ("Const", "Constant")

    @property
    def value(self) -> Tensor:
        """The tensor of a constant.

        Raises:
            GraphError: the node is no constant, or holds no value.
        """
        value = self.attrs.get("value")
        if not isinstance(value, Tensor):
            raise GraphError(f"node {self.name!r} ({self.op}) holds no constant tensor")
        return value


def constant(name: str, values: Any, dtype: DType | None = None) -> Node:
    """A ``Const`` node.

    Args:
        name: of the node.
        values: a `Tensor`, or anything `Tensor.of` takes.
        dtype: element type where NumPy has no own one.
    """
    tensor = values if isinstance(values, Tensor) else Tensor.of(values, dtype)
    return Node(name, "Const", attrs={"dtype": tensor.dtype, "value": tensor})


class Use(NamedTuple):
    """One reading of an edge: who reads it, and in which input slot (-1: waits for it)."""

    node: Node
    slot: int


@dataclass(frozen=True)
class Versions:
    """GraphDef versions: which producer wrote the graph, and who may read it."""

    producer: int = 0
    min_consumer: int = 0
    bad_consumers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Graph:
    """A network.

    Attributes:
        nodes: by name, in file order; `order` gives the execution order.
        inputs: the tensors that are fed.
        outputs: the tensors that are asked for.
        dialect: whose op names and attributes these are: ``tensorflow`` or ``onnx``.
        versions: of a GraphDef (opset imports of an ONNX model live in `extra`).
        library: the functions of a GraphDef; they are decoded when they are asked for.
        extra: what else the file said, serialized; it survives a round trip.
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
        """A graph of nodes in order.

        Raises:
            GraphError: two nodes have one name.
        """
        named: dict[str, Node] = {}
        for node in nodes:
            if node.name in named:
                raise GraphError(
                    f"two nodes are named {node.name!r} ({named[node.name].op} and {node.op})",
                    hint="a graph's names must be unique: rename one of them where the graph is made",
                )
            named[node.name] = node
        return cls(named, _edges(inputs), _edges(outputs), **fields)

    def with_(self, **changes: Any) -> Self:
        """A copy with other fields."""
        return replace(self, **changes)

    def with_nodes(self, nodes: Iterable[Node]) -> Self:
        """The same graph with other nodes."""
        return replace(self, nodes={node.name: node for node in nodes})

    def with_endpoints(self, inputs: Iterable[Edge | str] | None, outputs: Iterable[Edge | str] | None) -> Self:
        """The same graph with other inputs and outputs (None keeps them); every name is looked up.

        Raises:
            UsageError: a name is not in the graph; the hint gives the nearest ones.
        """
        graph = replace(
            self,
            inputs=self.inputs if inputs is None else _edges(inputs),
            outputs=self.outputs if outputs is None else _edges(outputs),
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

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def endpoint_names(self) -> frozenset[str]:
        """Names of the nodes whose tensors are fed or asked for: they keep their names."""
        return frozenset(edge.node for edge in (*self.inputs, *self.outputs))

    @cached_property
    def input_names(self) -> frozenset[str]:
        """Names of the nodes that are fed."""
        return frozenset(edge.node for edge in self.inputs)

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the nodes whose tensors are asked for."""
        return frozenset(edge.node for edge in self.outputs)

    @cached_property
    def uses(self) -> Mapping[Edge, tuple[Use, ...]]:
        """Who reads each edge, and in which slot; graph outputs are not in it."""
        found: dict[Edge, list[Use]] = {}
        for node in self.nodes.values():
            for slot, edge in enumerate(node.inputs):
                found.setdefault(edge, []).append(Use(node, slot))
        return {edge: tuple(uses) for edge, uses in found.items()}

    @cached_property
    def node_uses(self) -> Mapping[str, tuple[Use, ...]]:
        """Who reads any tensor of a node or waits for it (slot -1), in file order."""
        found: dict[str, list[Use]] = {}
        for node in self.nodes.values():
            for slot, edge in enumerate(node.inputs):
                found.setdefault(edge.node, []).append(Use(node, slot))
            for name in node.controls:
                found.setdefault(name, []).append(Use(node, -1))
        return {name: tuple(uses) for name, uses in found.items()}

    def is_shared(self, node: Node) -> bool:
        """Whether more than one reader, or the graph's caller, sees the node."""
        return len(self.node_uses.get(node.name, ())) + (node.name in self.endpoint_names) > 1

    def constant_of(self, edge: Edge) -> Tensor | None:
        """The tensor that a constant puts on the edge, or None."""
        node = self.nodes.get(edge.node)
        if node is None or not node.is_constant or edge.port:
            return None
        value = node.attrs.get("value")
        return value if isinstance(value, Tensor) else None

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names in execution order: Kahn's algorithm with a stack, as the classic tool orders.

        Nodes without inputs are pushed in file order; the last one pushed runs first. A loop's Merge
        waits for one data input only, which lets loops through.

        Raises:
            GraphError: an input names no node, or the nodes form a cycle.
        """
        waiting: dict[str, int] = {}
        stack: list[str] = []
        for node in self.nodes.values():
            for name in node.sources:
                if name not in self.nodes:
                    raise GraphError(
                        f"node {node.name!r} reads {name!r}, which is not in the graph",
                        hint=did_you_mean(name, self.nodes) or "run strip_unused_nodes before removing nodes",
                    )
            count = min(1, len(node.inputs)) if node.op in LOOP_MERGES else len(node.inputs)
            waiting[node.name] = count + len(node.controls)
            if not waiting[node.name]:
                stack.append(node.name)
        readers = self.node_uses
        done: list[str] = []
        while stack:
            name = stack.pop()
            done.append(name)
            for use in readers.get(name, ()):
                reader = use.node.name
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    stack.append(reader)
        if len(done) != len(self.nodes):
            stuck = set(self.nodes) - set(done)
            raise GraphError(
                f"{len(stuck)} nodes wait for each other in a cycle: {', '.join(self._cycle(stuck))}",
                hint="a frozen graph may loop only through Merge nodes",
            )
        return tuple(done)

    def _cycle(self, stuck: set[str]) -> list[str]:
        """Names along one cycle, for the message."""
        path: list[str] = []
        name = min(stuck)
        while name not in path:
            path.append(name)
            name = next(source for source in self.nodes[name].sources if source in stuck)
        return [*path[path.index(name) :][::-1][:6], "..."]

    def reachable(self, stop_at_inputs: bool = True) -> set[str]:
        """Names of the nodes that the outputs need, by data or by control.

        Args:
            stop_at_inputs: do not look behind a node that is fed.

        Raises:
            GraphError: a name on the way is not in the graph.
        """
        stop = self.input_names if stop_at_inputs else frozenset()
        found: set[str] = set()
        stack = [edge.node for edge in self.outputs]
        while stack:
            name = stack.pop()
            if name in found:
                continue
            node = self.nodes.get(name)
            if node is None:
                # Of a broken file, a name may go over several lines.
                said = repr(name)[1:-1]
                reader = next((node.name for node in self.nodes.values() if name in node.sources), "")
                raise GraphError(
                    f"Input node {said} not found in graph" + (f": {reader} reads it" if reader else ""),
                    hint=did_you_mean(name, self.nodes) or "check --outputs: quantkit summarize lists the outputs",
                )
            found.add(name)
            if name not in stop:
                stack.extend(node.sources)
        return found

    @cached_property
    def op_counts(self) -> Mapping[str, int]:
        """How many nodes there are of each op, most first."""
        counts: dict[str, int] = {}
        for node in self.nodes.values():
            counts[node.op] = counts.get(node.op, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def __repr__(self) -> str:
        ends = f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}"
        return f"Graph({len(self.nodes)} nodes, {ends})"


def _read_inputs(written: Iterable[str]) -> tuple[tuple[Edge, ...], tuple[str, ...]]:
    """What inputs that are given as texts read, and what they wait for."""
    edges: list[Edge] = []
    controls: list[str] = []
    for text in written:
        if text.startswith("^"):
            controls.append(text[1:])
        else:
            edges.append(Edge.parse(text) if ":" in text else Edge(text))
    return tuple(edges), tuple(controls)


def _edges(names: Iterable[Edge | str]) -> tuple[Edge, ...]:
    return tuple(name if isinstance(name, Edge) else Edge.parse(name) for name in names)
