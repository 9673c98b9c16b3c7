"""Nodes with another float type in a graph of either dialect: casts at their borders, and converted constants."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from quantkit.formats.onnx import DIALECT, retyped_infos, value_infos, value_name
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.onnx.types import NUMBERS, TYPE_ATTRS, infer_types
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import CONTROL_FLOW_OPS
from quantkit.ops.tensorflow.signatures import find_op, output_dtypes
from quantkit.transforms._names import FreeNames, names_in_subgraphs
from quantkit.transforms.onnx._facts import num_outputs

# Float types that quantization widens to float32.
OTHER_FLOATS = (DType.HALF, DType.BFLOAT16, DType.DOUBLE)
# Suffix of an output of a graph before it is cast back.
SUFFIX = "/float32"
# Ops that take any type.
SIZE_OPS = frozenset({"Shape", "ShapeN", "Size"})


@dataclass(frozen=True)
class TypeChange:
    """Changes of one node.

    Attributes:
        slots: indexes of the inputs that change their type.
        attrs: attributes that change.
        keeps_outputs: True if the outputs keep their type.
    """

    slots: Collection[int]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    keeps_outputs: bool = False


def find_types(graph: Graph) -> Mapping[Edge, DType]:
    """Return the element types of the edges of a graph of either dialect; edges of unknown type are missing."""
    if graph.dialect == DIALECT:
        stated = {edge: dtype for edge, (dtype, _) in value_infos(graph).items() if dtype is not None}
        while True:
            types = infer_types(graph, stated)
            # Float ops of other domains usually have outputs of the type of their first input; a Cast accepts any type.
            others = [node for node in graph.nodes.values() if "." in node.op and Edge(node.name) not in types]
            guesses = {
                Edge(node.name): types[node.inputs[0]]
                for node in others
                if node.inputs and types.get(node.inputs[0]) in OTHER_FLOATS
            }
            if not guesses:
                return types
            stated |= guesses
    return {
        Edge(node.name, port): dtype
        for node in graph.nodes.values()
        if find_op(node.op) is not None
        for port, dtype in enumerate(output_dtypes(node))
        if dtype is not None
    }


def convert_tensor(tensor: Tensor, dtype: DType) -> Tensor:
    """Return a float tensor in another float type, rounded to nearest on access."""
    return Tensor(dtype, tensor.shape, partial(_round, tensor, dtype))


def _round(tensor: Tensor, dtype: DType) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return tensor.array.astype(dtype.numpy)


def widen(graph: Graph) -> Graph:
    """Return the graph with float32 in place of float16, bfloat16 and double; inputs and outputs keep their types.

    Computations that end in integers, for example sizes, keep their types, except in graphs whose functions change.
    """
    for source in OTHER_FLOATS:
        types = find_types(graph)
        if source not in types.values():
            continue
        functions = _widen_functions(graph, source)
        nodes = _find_typed_nodes(graph, types, source) if functions else _find_wide_nodes(graph, types, source)
        if nodes:
            graph = graph.with_(library=graph.library.with_(*functions))
            graph = retype(graph, nodes, source, DType.FLOAT, types)
    return graph


def _widen_functions(graph: Graph, source: DType) -> list[Function[Graph]]:
    """Return the functions of a TensorFlow graph that have a float type, with float32 in its place."""
    functions = []
    for name in graph.library:
        function = None if graph.library.is_open(name) else graph.library[name]
        if function is None or source not in find_types(function.graph).values():
            continue
        nodes = []
        for node in function.graph.nodes.values():
            new = node.with_attrs(**_retyped_attrs(graph, node, source))
            is_identity = new.op == "Cast" and new.attrs.get("SrcT") is new.attrs.get("DstT") is DType.FLOAT
            nodes.append(new.with_(op="Identity", attrs={"T": DType.FLOAT}) if is_identity else new)
        results = {key: DType.FLOAT if dtype is source else dtype for key, dtype in function.results.items()}
        functions.append(replace(function, graph=function.graph.with_nodes(nodes), results=results))
    return functions


def _find_typed_nodes(graph: Graph, types: Mapping[Edge, DType], source: DType) -> dict[str, TypeChange]:
    """Return all nodes with a float type, calls of functions and lists included."""
    changes = {}
    for node in graph.nodes.values():
        slots = [slot for slot, edge in enumerate(node.inputs) if types.get(edge) is source]
        attrs = _retyped_attrs(graph, node, source)
        if attrs and find_op(node.op) and not (node.is_constant or node.op == "Placeholder"):
            changes[node.name] = TypeChange(slots, attrs)
    return changes


def _find_wide_nodes(graph: Graph, types: Mapping[Edge, DType], source: DType) -> dict[str, TypeChange]:
    """Return the nodes with a float type that a layer or an output of the graph depends on."""
    layer_ops = find_roles(graph).weights_ops
    reaching = set(graph.output_names)
    nodes: dict[str, TypeChange] = {}
    for name in reversed(graph.order):
        node = graph[name]
        uses = graph.node_uses.get(name, ())
        is_used = any(
            use.node.name in reaching and (edge := use.node.inputs[use.slot]) in types and types[edge].is_float
            for use in uses
            if use.slot >= 0
        )
        if is_used or node.op in layer_ops or node.op in SIZE_OPS:
            reaching.add(name)
        slots = [slot for slot, edge in enumerate(node.inputs) if types.get(edge) is source]
        if name in reaching and (slots or types.get(Edge(name)) is source) and not _is_opaque(graph, node):
            nodes[name] = TypeChange(slots, _retyped_attrs(graph, node, source))
    return nodes


def _is_opaque(graph: Graph, node: Node) -> bool:
    """Return True for inputs, constants, calls, lists, and ops of other domains."""
    if node.is_constant or node.name in graph.input_names or node.op.startswith(("Placeholder", "TensorList")):
        return True
    if graph.dialect == DIALECT:
        return "." in node.op or node.op in CONTROL_FLOW_OPS or "Sequence" in node.op
    op = find_op(node.op)
    has_functions = any(isinstance(value, FunctionName) for value in node.attrs.values())
    return op is None or op.is_stateful or has_functions


def _retyped_attrs(graph: Graph, node: Node, source: DType) -> dict[str, Attr]:
    """Return the attributes with a float type as float32."""
    attrs: dict[str, Attr] = {}
    for name, value in node.attrs.items():
        if value is source:
            attrs[name] = DType.FLOAT
        elif isinstance(value, tuple) and source in value:
            attrs[name] = tuple(DType.FLOAT if item is source else item for item in value)
        elif isinstance(value, Tensor) and value.dtype is source:
            attrs[name] = convert_tensor(value, DType.FLOAT)
        elif graph.dialect == DIALECT and name == TYPE_ATTRS.get(node.op, ("",))[0] and value == NUMBERS[source]:
            attrs[name] = NUMBERS[DType.FLOAT]
    return attrs


def restore_half(graph: Graph, original: Graph, names: Collection[str]) -> Graph:
    """Return a float32 graph in which nodes compute in float16 again, as in the graph that `widen` took.

    Args:
        graph: graph of the same dialect as ``original``, which may be rewritten.
        original: graph before `widen`.
        names: names of nodes to restore; those with another op type than in ``original`` are omitted.
    """
    types = find_types(original)
    nodes: dict[str, TypeChange] = {}
    for name in names:
        before, node = original.nodes.get(name.removesuffix(SUFFIX)), graph[name]
        if before is None or (before.op, len(before.inputs)) != (node.op, len(node.inputs)) or _is_opaque(graph, node):
            continue
        slots = [slot for slot, edge in enumerate(before.inputs) if types.get(edge) is DType.HALF]
        keeps_outputs = types.get(Edge(before.name)) is not DType.HALF
        if slots or not keeps_outputs:
            attrs = {attr: before.attrs[attr] for attr in _retyped_attrs(original, before, DType.HALF)}
            nodes[name] = TypeChange(slots, attrs, keeps_outputs)
    return retype(graph, nodes, DType.FLOAT, DType.HALF, find_types(graph)) if nodes else graph


def retype(
    graph: Graph,
    nodes: Mapping[str, TypeChange],
    source: DType,
    target: DType,
    types: Mapping[Edge, DType] | None = None,
) -> Graph:
    """Return the graph with some nodes in another float type, and casts between both types, at most one per edge.

    Args:
        graph: graph of either dialect.
        nodes: changed nodes.
        source: present type.
        target: new type.
        types: element types by edge; None if all outputs of the changed nodes have the type ``source``.
    """
    return _Retyping(graph, nodes, source, target, types).graph_of_nodes()


@dataclass
class _Retyping:
    """Conversion of one graph.

    Attributes:
        constants: names of constants that change their type in their place.
        casts: edge of the tensor in the other type, by edge.
        following: new nodes after each old node.
    """

    graph: Graph
    nodes: Mapping[str, TypeChange]
    source: DType
    target: DType
    types: Mapping[Edge, DType] | None
    constants: set[str] = field(default_factory=set)
    casts: dict[Edge, Edge] = field(default_factory=dict)
    following: dict[str, list[Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A value of a node with several outputs cannot get another name.
        several = {edge.node for edge in (*self.graph.outputs, *self.graph.uses) if edge.port}
        self.nodes = {name: each for name, each in self.nodes.items() if name not in several & self.fixed_names}
        self.nodes = {name: each for name, each in self.nodes.items() if not self._is_border(self.graph[name])}
        self.constants = {
            node.name
            for node in self.graph.nodes.values()
            if node.is_constant and node.name not in self.graph.endpoint_names and self._is_replaced(node)
        }

    @cached_property
    def fixed_names(self) -> frozenset[str]:
        """Nodes whose name means a value of the present type: outputs, and values that subgraphs of ONNX nodes use."""
        return names_in_subgraphs(self.graph) | set(self.graph.output_names)

    def _is_border(self, node: Node) -> bool:
        """Return True for a Cast between a changed node and an unchanged one, or before an output."""
        if node.op != "Cast":
            return False
        if self._changes(Edge(node.name)):
            consumers = {use.node.name for use in self.graph.node_uses.get(node.name, ())}
            return node.name in self.fixed_names or consumers.isdisjoint(self.nodes)
        return node.inputs[0].node not in self.nodes

    def _is_replaced(self, constant: Node) -> bool:
        """Return True if all consumers of a constant take the new type."""
        value = self.graph.constant_of(Edge(constant.name))
        uses = self.graph.node_uses.get(constant.name, ())
        is_used = bool(uses) and all(
            use.node.name in self.nodes and use.slot in self.nodes[use.node.name].slots for use in uses
        )
        return is_used and value is not None and value.dtype is self.source

    def graph_of_nodes(self) -> Graph:
        """Return the new graph."""
        new_nodes = {node.name: self._convert(node) for node in self.graph.nodes.values()}
        ordered = [node for name, nodes in new_nodes.items() for node in (*nodes, *self.following.get(name, ()))]
        graph = self.graph.with_nodes(ordered)
        unused = {name for name in self.graph.node_uses if name not in graph.node_uses} - graph.endpoint_names
        graph = graph.with_nodes(node for node in ordered if node.name not in unused)
        if graph.dialect != DIALECT:
            return graph
        names = {
            value_name(self.graph[name], port)
            for name in (*self.nodes, *self.constants)
            for port in range(num_outputs(self.graph[name]))
            if name not in self.inner_names and self._changes(Edge(name, port))
        }
        return graph.with_(extra=retyped_infos(graph.extra, names, self.target))

    def _convert(self, node: Node) -> list[Node]:
        """Return the replacement of a node; its last node has the old name."""
        if node.name in self.constants:
            return [self._converted_constant(node, node.name)]
        if node.op == "Cast" and self.types is not None and self._is_identity(node, self.types):
            edge = node.inputs[0]
            attrs: dict[str, Attr] = {} if self.graph.dialect == DIALECT else {"T": self.target}
            edge = edge if self.types.get(edge) is self.target else self._in_target(edge)
            return [node.with_(op="Identity", inputs=(edge,), attrs=attrs)]
        change = self.nodes.get(node.name, TypeChange(()))
        inputs = tuple(
            self._in_target(edge) if slot in change.slots else self._in_source(edge)
            for slot, edge in enumerate(node.inputs)
        )
        new = node if inputs == node.inputs else node.with_(inputs=inputs)
        new = new.with_attrs(**change.attrs) if change.attrs else new
        if node.name not in self.inner_names:
            return [new]
        edge = Edge(self.inner_names[node.name])
        return [new.with_(name=edge.node), self._cast(node, node.name, edge, self.source)]

    def _is_identity(self, cast: Node, types: Mapping[Edge, DType]) -> bool:
        """Return True if the input and the output of a Cast get the new type."""
        edge, result = cast.inputs[0], Edge(cast.name)
        is_converted = cast.name in self.nodes and 0 in self.nodes[cast.name].slots
        is_before = self._changes(edge) or is_converted or types.get(edge) is self.target
        is_after = self._changes(result) or types.get(result) is self.target
        return is_before and is_after and cast.name not in self.inner_names

    @cached_property
    def inner_names(self) -> dict[str, str]:
        """New names of nodes whose values are named; the Cast after such a node takes the old name."""
        names = [name for name in self.graph.nodes if name in self.nodes and name in self.fixed_names]
        names = [name for name in names if self._changes(Edge(name))]
        return {name: self.names.free(f"{name}/{self.target.numpy.name}") for name in names}

    @cached_property
    def names(self) -> FreeNames:
        return FreeNames(self.graph)

    def _changes(self, edge: Edge) -> bool:
        """Return True if an edge has the new type."""
        is_changed = edge.node in self.nodes and not self.nodes[edge.node].keeps_outputs
        is_source = self.types is None or self.types.get(edge) is self.source
        return edge.node in self.constants or (is_changed and is_source)

    def _in_target(self, edge: Edge) -> Edge:
        """Return an edge in the new type."""
        node = self.graph[edge.node]
        if self._changes(edge):
            return Edge(self.inner_names.get(edge.node, edge.node), edge.port)
        if node.op == "Cast" and node.name not in self.graph.input_names and self._type_of_cast(node) is self.target:
            return node.inputs[0]
        return self._cast_edge(edge, self.target)

    def _type_of_cast(self, cast: Node) -> Attr | None:
        """Return the type of the input of a Cast."""
        return self.types.get(cast.inputs[0]) if self.types is not None else cast.attrs.get("SrcT")

    def _in_source(self, edge: Edge) -> Edge:
        """Return an edge in the present type."""
        return self._cast_edge(edge, self.source) if self._changes(edge) and edge.node not in self.inner_names else edge

    def _cast_edge(self, edge: Edge, to: DType) -> Edge:
        """Return an edge in another type; consumers share the Cast, or the converted constant."""
        if edge not in self.casts:
            node = self.graph[edge.node]
            name = self.names.free("/".join([node.name, *([str(edge.port)] if edge.port else []), to.numpy.name]))
            self.casts[edge] = Edge(name)
            value = None if node.name in self.graph.input_names else self.graph.constant_of(edge)
            is_constant = value is not None and to is self.target
            new = self._converted_constant(node, name) if is_constant else self._cast(node, name, edge, to)
            self.following.setdefault(node.name, []).append(new)
        return self.casts[edge]

    def _converted_constant(self, node: Node, name: str) -> Node:
        new = node.with_(name=name).with_attrs(value=convert_tensor(node.value, self.target))
        return new if self.graph.dialect == DIALECT else new.with_attrs(dtype=self.target)

    def _cast(self, like: Node, name: str, edge: Edge, to: DType) -> Node:
        attrs: dict[str, Attr] = {"to": NUMBERS[to]}
        if self.graph.dialect != DIALECT:
            attrs = {"SrcT": self.target if to is self.source else self.source, "DstT": to}
        return Node(name, "Cast", (edge,), attrs=attrs, device=like.device)
