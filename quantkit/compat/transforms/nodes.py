"""Graph representation of the original tool: a list of nodes whose inputs are texts.

The representation keeps three distinctions that the original made and `Graph` does not: the position of
control inputs among the other inputs, ``a`` against ``a:0``, and two nodes with one name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.names import split_reference
from quantkit.ir.tensor import Array, DType, Tensor


@dataclass(frozen=True, slots=True)
class NodeDef:
    """Node of a GraphDef.

    Attributes:
        name: node name, not necessarily unique.
        op: op type.
        inputs: ``node``, ``node:port`` or ``^node``, as in the file.
        attrs: attributes by name; must not be changed.
        device: device string; empty if the node has no device.
        extra: serialized fields that quantkit does not interpret.
    """

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    device: str = ""
    extra: bytes = b""

    def with_(self, **changes: Any) -> Self:
        """Return a copy with other fields."""
        return replace(self, **changes)

    def with_attrs(self, **changes: Attr | None) -> Self:
        """Return a copy with attributes set, or removed for the value None."""
        merged = {**self.attrs, **changes}
        attrs = {key: value for key, value in merged.items() if value is not None}
        return replace(self, attrs=attrs)

    @property
    def data_inputs(self) -> tuple[str, ...]:
        """Inputs other than control inputs."""
        return tuple(text for text in self.inputs if not text.startswith("^"))

    @property
    def value(self) -> Tensor:
        """Tensor of a constant.

        Raises:
            GraphError: the node has no tensor.
        """
        value = self.attribute("value")
        if not isinstance(value, Tensor):
            raise GraphError(f"node {self.name!r} ({self.op}) has no constant tensor")
        return value

    def attribute(self, name: str) -> Attr:
        """Return the value of an attribute.

        Raises:
            GraphError: the node lacks the attribute.
        """
        if name not in self.attrs:
            raise GraphError(
                f"CHECK failed: it != end(): key not found: {name}",
                hint=f"run add_default_attributes first: {self.name} lacks {name!r}",
            )
        return self.attrs[name]


class Parts(NamedTuple):
    """Parts of an input text: ``^`` or empty, the node name, and ``:port`` or empty."""

    prefix: str
    node: str
    suffix: str


def split(text: str) -> Parts:
    """Split an input text; ``b:*`` stands for all outputs.

    >>> split("^a"), split("b:1")
    (Parts(prefix='^', node='a', suffix=''), Parts(prefix='', node='b', suffix=':1'))
    """
    name, port = (text[:-2], "*") if text.endswith(":*") else split_reference(text)
    prefix = "^" if name.startswith("^") else ""
    return Parts(prefix, name.removeprefix("^"), f":{port}" if port else "")


def node_of(text: str) -> str:
    """Return the node name in an input text."""
    return split(text).node


def canonical(text: str) -> str:
    """Return the input text with a port; the default is 0, also for a control input."""
    prefix, node, suffix = split(text)
    return f"{prefix}{node}{suffix or ':0'}"


def constant(name: str, values: Array | Tensor | Sequence[Any] | float, dtype: DType | None = None) -> NodeDef:
    """Return a ``Const`` with the attributes that the original wrote: type and packed values."""
    tensor = values if isinstance(values, Tensor) else Tensor.of(values, dtype)
    return NodeDef(name, "Const", attrs={"dtype": tensor.dtype, "value": tensor})


def by_name(nodes: Iterable[NodeDef]) -> dict[str, NodeDef]:
    """Return the nodes by name; of two nodes with one name, the later node."""
    return {node.name: node for node in nodes}


def from_graph(graph: Graph) -> list[NodeDef]:
    """Return the nodes of a graph, with the inputs as spelled in its file."""
    return [
        NodeDef(node.name, node.op, node.written_inputs, node.attrs, node.device, node.extra)
        for node in graph.nodes.values()
    ]


def to_graph(nodes: Iterable[NodeDef], like: Graph, **changes: Any) -> Graph:
    """Return a graph of the nodes.

    Args:
        nodes: nodes in file order.
        like: graph that the other fields are copied from.
        changes: fields that differ from those of `like`.

    Raises:
        GraphError: two nodes have one name.
    """
    graph = Graph.of([Node.of_written(n.name, n.op, n.inputs, n.attrs, n.device, n.extra) for n in nodes])
    return like.with_(nodes=graph.nodes, **changes)


def edges(names: Iterable[str], graph: Graph) -> tuple[Edge, ...]:
    """Return the edges with these names whose node is in the graph."""
    parsed = (Edge.parse(name) for name in names)
    return tuple(edge for edge in parsed if edge.node in graph.nodes)
