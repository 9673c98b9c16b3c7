"""Convert a graph from one image layout to the other.

Every tensor exists in the source layout, in the target layout, or in both. A missing form is
computed by a single Transpose if a node needs it; no Transpose is needed between converted nodes.
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
from quantkit.ops.tensorflow.signatures import attribute, find_op, output_dtype
from quantkit.transforms._names import FreeNames

# Permutation of the dimensions for the Transpose into each layout.
ORDERS = {"NCHW": (0, 3, 1, 2), "NHWC": (0, 2, 3, 1)}
# Op types of nodes that are removed if they become unused.
REMOVABLE = ("Const", "Transpose")


@dataclass(frozen=True)
class ConvertedNode:
    """Replacement of a node, with inputs in the target layout.

    Attributes:
        node: new node, with the name of the old one.
        ports: outputs in the target layout.
        others: additional new nodes, which precede the new node.
    """

    node: Node
    ports: tuple[int, ...] = (0,)
    others: tuple[Node, ...] = ()


# Returns the converted node, or the reason why the node stays (empty if no skip is needed).
Handler = Callable[["LayoutConverter", Node], ConvertedNode | str]


@dataclass
class LayoutConverter:
    """Conversion of one graph.

    Attributes:
        graph: graph to convert.
        target: target layout, ``NCHW`` or ``NHWC``.
        handlers: handlers by op type.
        converted: existing target-layout forms of edges.
        target_only: edges whose producer was converted, so that only the target-layout form exists.
        restored: source-layout forms of `target_only` edges, after a Transpose.
        inner_names: new names of nodes whose own name the Transpose after them takes.
        new_nodes: replacements by the name of the old node.
        following: new nodes after each old node.
        leading: new nodes at the start of the graph.
        reasons: reasons of skips by node name.
        orders: constants of permutations.
    """

    graph: Graph
    target: str
    handlers: Mapping[str, Handler]
    converted: dict[Edge, Edge] = field(default_factory=dict)
    target_only: set[Edge] = field(default_factory=set)
    restored: dict[Edge, Edge] = field(default_factory=dict)
    inner_names: dict[str, str] = field(default_factory=dict)
    new_nodes: dict[str, list[Node]] = field(default_factory=dict)
    following: dict[str, list[Node]] = field(default_factory=dict)
    leading: list[Node] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    orders: dict[tuple[int, ...], Edge] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        """Convert the supported nodes, then connect the others to tensors in the source layout."""
        for name in self.graph.order:
            self._visit(self.graph[name])
        changes = [f"{name} ({self.graph[name].op})" for name in self.graph.nodes if name in self.new_nodes]
        for node in self.graph.nodes.values():
            if node.name not in self.new_nodes:
                inputs = tuple(map(self.to_source, node.inputs))
                self.new_nodes[node.name] = [node if inputs == node.inputs else node.with_(inputs=inputs)]
        skips = [Skip(self.reasons[name], name) for name in self.graph.nodes if name in self.reasons]
        return Outcome(self.graph.with_nodes(self._remove_unused()), tuple(changes), tuple(skips))

    def _visit(self, node: Node) -> None:
        if node.name in self.graph.input_names or node.is_constant:
            return
        handler = self.handlers.get(node.op)
        output_ports = {edge.port for edge in self.graph.outputs if edge.node == node.name}
        if handler is None:
            result: ConvertedNode | str = f"no {self.target} form of {node.op} is supported"
        elif output_ports - {0}:
            result = "several of the node's outputs are graph outputs"
        else:
            result = handler(self, node)
        if isinstance(result, ConvertedNode):
            self._replace(node, result)
        elif result and (self._has_source_layout(node) or any(edge in self.target_only for edge in node.inputs)):
            self.reasons[node.name] = result

    def _has_source_layout(self, node: Node) -> bool:
        op = find_op(node.op)
        return op is not None and "data_format" in op.attrs and attribute(node, "data_format") == self.source.encode()

    def _replace(self, node: Node, converted: ConvertedNode) -> None:
        new = converted.node
        if converted.ports and node.name in self.graph.output_names:
            new = new.with_(name=self.names.free(f"{node.name}/{self.target.lower()}"))
            self.inner_names[node.name] = new.name
        self.new_nodes[node.name] = [*converted.others, new]
        for port in converted.ports:
            edge = Edge(node.name, port)
            self.converted[edge] = Edge(new.name, port)
            self.target_only.add(edge)
        if node.name in self.inner_names:
            self.to_source(Edge(node.name))

    # Used by handlers

    @property
    def source(self) -> str:
        """Source layout."""
        return "NHWC" if self.target == "NCHW" else "NCHW"

    @property
    def order(self) -> tuple[int, ...]:
        return ORDERS[self.target]

    def is_converted(self, edge: Edge) -> bool:
        """Return True if the target-layout form exists, so that it needs no Transpose."""
        return edge in self.converted

    def dims(self, edge: Edge) -> tuple[int | None, ...] | None:
        """Return the sizes of a tensor in the source layout; None if the rank is unknown."""
        dims = self.shapes.get(edge, UNKNOWN).dims
        return (None,) * 4 if dims is None and edge in self.converted else dims

    def is_image(self, edge: Edge) -> bool:
        """Return True if a tensor is known to have four dimensions."""
        return len(self.dims(edge) or ()) == 4

    def constant(self, edge: Edge) -> Tensor | None:
        """Return the value of a constant that is not a graph input."""
        return None if edge.node in self.graph.input_names else self.graph.constant_of(edge)

    def permute(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Return values per source dimension in the order of the target dimensions."""
        source_values = tuple(values)
        return tuple(source_values[axis] for axis in self.order)

    def convert_axis(self, axis: int) -> int:
        """Return the axis in the target layout of an axis in the source layout."""
        return self.order.index(int(axis) % 4)

    def keeps_order(self, axes: Iterable[int]) -> bool:
        """Return True if axes have the same order in both layouts."""
        target_axes = [self.convert_axis(axis) for axis in axes]
        return target_axes == sorted(target_axes)

    def new_operand(self, node: Node, suffix: str, values: Array, old: Edge) -> Node:
        """Return a constant that replaces an input, with the same control dependencies."""
        name = self.names.free(f"{node.name}/{suffix}")
        return constant(name, values).with_(controls=self.graph[old.node].controls)

    # Conversion of tensors

    def to_target(self, edge: Edge) -> Edge:
        """Return the target-layout form of a tensor of rank 4, or of a constant that broadcasts."""
        if edge not in self.converted:
            node, value = self.graph[edge.node], self.constant(edge)
            name = self.names.free(self._name_in_layout(edge, self.target))
            if value is None:
                nodes = self._transpose(node, name, self.to_source(edge), self.order, edge.port)
            else:
                shape = (1,) * (4 - len(value.shape)) + value.shape
                tensor = Tensor(value.dtype, self.permute(shape), partial(_transpose_array, value, shape, self.order))
                nodes = [node.with_(name=name).with_attrs(value=tensor)]
            self.following.setdefault(node.name, []).extend(nodes)
            self.converted[edge] = Edge(name)
        return self.converted[edge]

    def to_source(self, edge: Edge) -> Edge:
        """Return the source-layout form of a tensor."""
        if edge not in self.target_only:
            return Edge(self.inner_names[edge.node], edge.port) if edge.node in self.inner_names else edge
        if edge not in self.restored:
            node = self.graph[edge.node]
            is_output = edge.node in self.inner_names and not edge.port
            name = edge.node if is_output else self.names.free(self._name_in_layout(edge, self.source))
            order = ORDERS[self.source]
            self.following.setdefault(node.name, []).extend(
                self._transpose(node, name, self.converted[edge], order, edge.port)
            )
            self.restored[edge] = Edge(name)
        return self.restored[edge]

    def _name_in_layout(self, edge: Edge, layout: str) -> str:
        return "/".join([edge.node, *([str(edge.port)] if edge.port else []), layout.lower()])

    def _transpose(self, like: Node, name: str, edge: Edge, order: tuple[int, ...], port: int) -> list[Node]:
        """Return a Transpose of an edge, after the constant of its permutation if it is new."""
        new_constants = []
        if order not in self.orders or self.has_loops:
            digits = "".join(map(str, order))
            permutation = constant(self.names.free(f"order_{digits}"), np.array(order, np.int32))
            if self.has_loops:
                new_constants.append(permutation.with_(controls=(edge.node,)))
            else:
                self.leading.append(permutation)
            self.orders[order] = Edge(permutation.name)
        attrs: dict[str, Attr] = {"T": output_dtype(like, port) or DType.FLOAT, "Tperm": DType.INT32}
        transpose = Node(name, "Transpose", (edge, self.orders[order]), attrs=attrs, device=like.device)
        return [*new_constants, transpose]

    @cached_property
    def names(self) -> FreeNames:
        return FreeNames(self.graph)

    @cached_property
    def shapes(self) -> Mapping[Edge, Shape]:
        return infer_shapes(self.graph)

    @cached_property
    def has_loops(self) -> bool:
        """True if new constants need a control dependency, to belong to a loop frame."""
        return "Enter" in self.graph.op_counts

    # New graph

    def _remove_unused(self) -> list[Node]:
        """Return the new nodes in order, without unused new constants and Transposes."""
        nodes = {node.name: node for node in self._ordered_nodes()}
        counts = dict.fromkeys(nodes, 0)
        for node in nodes.values():
            for source in node.sources:
                counts[source] += 1
        used_before = self.graph.node_uses.keys()
        unused = [
            name
            for name, node in nodes.items()
            if not counts[name]
            and node.op in REMOVABLE
            and name not in self.graph.endpoint_names
            and (name in used_before or name not in self.graph)
        ]
        while unused:
            for source in nodes.pop(unused.pop()).sources:
                counts[source] -= 1
                if not counts[source] and nodes[source].op in REMOVABLE and source not in self.graph.endpoint_names:
                    unused.append(source)
        return list(nodes.values())

    def _ordered_nodes(self) -> Iterator[Node]:
        yield from self.leading
        for name in self.graph.nodes:
            yield from self.new_nodes[name]
            yield from self.following.get(name, ())


def _transpose_array(value: Tensor, shape: tuple[int, ...], order: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(value.array.reshape(shape).transpose(order))
