"""Images in another order of dimensions.

Every value is at hand as the graph has it, turned, or both; the other form is made by a Transpose when something
wants it, once. So between ops that work on turned tensors there is none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import attribute, find_op, output_dtypes
from quantkit.transforms._names import FreeNames

# Which dimension of the other layout each dimension of this one is.
ORDERS = {"NCHW": (0, 3, 1, 2), "NHWC": (0, 2, 3, 1)}
SWEPT = ("Const", "Transpose")


@dataclass(frozen=True)
class Turned:
    """What a node becomes.

    Attributes:
        node: it reads turned tensors, and has the name of the one before.
        ports: its outputs that are turned.
        others: nodes that are made along, and stand in front of it.
    """

    node: Node
    ports: tuple[int, ...] = (0,)
    others: tuple[Node, ...] = ()


# The node on turned tensors; or why it stays as it is, in a clause (empty: there is nothing to say).
Handler = Callable[["Turning", Node], Turned | str]


@dataclass
class Turning:
    """One conversion of a graph.

    Attributes:
        graph: what is converted.
        to: ``NCHW`` or ``NHWC``.
        handlers: by op.
        turned: turned forms that are at hand.
        lost: edges that are made in their turned form only.
        back: the graph's form of them, where it was asked for.
        inner: new names of nodes whose own name goes to the Transpose behind them.
    """

    graph: Graph
    to: str
    handlers: Mapping[str, Handler]
    turned: dict[Edge, Edge] = field(default_factory=dict)
    lost: set[Edge] = field(default_factory=set)
    back: dict[Edge, Edge] = field(default_factory=dict)
    inner: dict[str, str] = field(default_factory=dict)
    made: dict[str, list[Node]] = field(default_factory=dict)
    behind: dict[str, list[Node]] = field(default_factory=dict)
    front: list[Node] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    orders: dict[tuple[int, ...], Edge] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        """Visit every node, then let those that stay read what they know."""
        names = self.graph.order
        for name in names:
            self._visit(self.graph[name])
        changes = [f"{name} ({self.graph[name].op})" for name in self.graph.nodes if name in self.made]
        for node in self.graph.nodes.values():
            if node.name not in self.made:
                inputs = tuple(map(self.plain, node.inputs))
                self.made[node.name] = [node if inputs == node.inputs else node.with_(inputs=inputs)]
        skips = [Skip(self.reasons[name], name) for name in self.graph.nodes if name in self.reasons]
        return Outcome(self.graph.with_nodes(self._swept()), tuple(changes), tuple(skips))

    def _visit(self, node: Node) -> None:
        if node.name in self.graph.input_names or node.is_constant:
            return
        handler = self.handlers.get(node.op)
        asked = {edge.port for edge in self.graph.outputs if edge.node == node.name}
        if handler is None:
            found: Turned | str = f"no {self.to} form of {node.op} is known"
        elif asked - {0}:
            found = "several of its outputs leave the graph"
        else:
            found = handler(self, node)
        if isinstance(found, Turned):
            self._take(node, found)
        elif found and (self._has_source_layout(node) or any(edge in self.lost for edge in node.inputs)):
            self.reasons[node.name] = found

    def _has_source_layout(self, node: Node) -> bool:
        op = find_op(node.op)
        return op is not None and "data_format" in op.attrs and attribute(node, "data_format") == self.source.encode()

    def _take(self, node: Node, found: Turned) -> None:
        new = found.node
        if found.ports and node.name in self.graph.output_names:
            new = new.with_(name=self.names.free(f"{node.name}/{self.to.lower()}"))
            self.inner[node.name] = new.name
        self.made[node.name] = [*found.others, new]
        for port in found.ports:
            edge = Edge(node.name, port)
            self.turned[edge] = Edge(new.name, port)
            self.lost.add(edge)
        if node.name in self.inner:
            self.plain(Edge(node.name))

    # What handlers ask

    @property
    def source(self) -> str:
        """The layout that is left."""
        return "NHWC" if self.to == "NCHW" else "NCHW"

    @property
    def order(self) -> tuple[int, ...]:
        return ORDERS[self.to]

    def at_hand(self, edge: Edge) -> bool:
        """Whether the turned form costs no Transpose."""
        return edge in self.turned

    def dims(self, edge: Edge) -> tuple[int | None, ...] | None:
        """The sizes of a tensor as the graph has it; None: not even their number is known."""
        found = self.shapes.get(edge, UNKNOWN).dims
        return (None,) * 4 if found is None and edge in self.turned else found

    def is_image(self, edge: Edge) -> bool:
        """Whether a tensor is known to have four dimensions."""
        return len(self.dims(edge) or ()) == 4

    def constant(self, edge: Edge) -> Tensor | None:
        """The tensor of a constant that nobody feeds."""
        return None if edge.node in self.graph.input_names else self.graph.constant_of(edge)

    def permuted(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """What is said of each dimension of the graph's form, for those of the turned one."""
        listed = tuple(values)
        return tuple(listed[axis] for axis in self.order)

    def axis(self, axis: int) -> int:
        """Where a dimension is in the turned form."""
        return self.order.index(int(axis) % 4)

    def keeps_order(self, axes: Iterable[int]) -> bool:
        """Whether dimensions follow one another in the turned form as in the graph's."""
        places = [self.axis(axis) for axis in axes]
        return places == sorted(places)

    def beside(self, node: Node, word: str, values: Array, instead: Edge) -> Node:
        """A constant for a node, instead of what one of its inputs says: it waits for the same nodes."""
        name = self.names.free(f"{node.name}/{word}")
        return constant(name, values).with_(controls=self.graph[instead.node].controls)

    # Forms of values

    def turn(self, edge: Edge) -> Edge:
        """The turned form of a tensor of four dimensions, or of a constant that broadcasts to such."""
        if edge not in self.turned:
            node, value = self.graph[edge.node], self.constant(edge)
            name = self.names.free(self._word(edge, self.to))
            if value is None:
                made = self._transpose(node, name, self.plain(edge), self.order, edge.port)
            else:
                shape = (1,) * (4 - len(value.shape)) + value.shape
                tensor = Tensor(value.dtype, self.permuted(shape), partial(_turn_now, value, shape, self.order))
                made = [node.with_(name=name).with_attrs(value=tensor)]
            self.behind.setdefault(node.name, []).extend(made)
            self.turned[edge] = Edge(name)
        return self.turned[edge]

    def plain(self, edge: Edge) -> Edge:
        """A tensor as the graph has it."""
        if edge not in self.lost:
            return Edge(self.inner[edge.node], edge.port) if edge.node in self.inner else edge
        if edge not in self.back:
            node = self.graph[edge.node]
            is_end = edge.node in self.inner and not edge.port
            name = edge.node if is_end else self.names.free(self._word(edge, self.source))
            order = ORDERS[self.source]
            self.behind.setdefault(node.name, []).extend(
                self._transpose(node, name, self.turned[edge], order, edge.port)
            )
            self.back[edge] = Edge(name)
        return self.back[edge]

    def _word(self, edge: Edge, layout: str) -> str:
        return "/".join([edge.node, *([str(edge.port)] if edge.port else []), layout.lower()])

    def _transpose(self, like: Node, name: str, edge: Edge, order: tuple[int, ...], port: int) -> list[Node]:
        """The nodes that turn an edge, the last one under a name."""
        made = []
        if order not in self.orders or self.has_loops:
            word = "".join(map(str, order))
            found = constant(self.names.free(f"order_{word}"), np.array(order, np.int32))
            if self.has_loops:
                made.append(found.with_(controls=(edge.node,)))
            else:
                self.front.append(found)
            self.orders[order] = Edge(found.name)
        known = output_dtypes(like)
        dtype = (known[port] if port < len(known) else None) or DType.FLOAT
        attrs: dict[str, Attr] = {"T": dtype, "Tperm": DType.INT32}
        return [*made, Node(name, "Transpose", (edge, self.orders[order]), attrs=attrs, device=like.device)]

    @cached_property
    def names(self) -> FreeNames:
        return FreeNames(self.graph)

    @cached_property
    def shapes(self) -> Mapping[Edge, Shape]:
        return infer_shapes(self.graph)

    @cached_property
    def has_loops(self) -> bool:
        """Whether new constants have to wait for something, to be of the same turn of a loop as who reads them."""
        return "Enter" in self.graph.op_counts

    # The new graph

    def _swept(self) -> list[Node]:
        """The new nodes in order, without constants and Transposes that nothing reads any more."""
        nodes = {node.name: node for node in self._all()}
        counts = dict.fromkeys(nodes, 0)
        for node in nodes.values():
            for source in node.sources:
                counts[source] += 1
        read = self.graph.node_uses.keys()
        idle = [
            name
            for name, node in nodes.items()
            if not counts[name]
            and node.op in SWEPT
            and name not in self.graph.endpoint_names
            and (name in read or name not in self.graph)
        ]
        while idle:
            for source in nodes.pop(idle.pop()).sources:
                counts[source] -= 1
                if not counts[source] and nodes[source].op in SWEPT and source not in self.graph.endpoint_names:
                    idle.append(source)
        return list(nodes.values())

    def _all(self) -> Iterator[Node]:
        yield from self.front
        for name in self.graph.nodes:
            yield from self.made[name]
            yield from self.behind.get(name, ())


def _turn_now(value: Tensor, shape: tuple[int, ...], order: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(value.array.reshape(shape).transpose(order))
