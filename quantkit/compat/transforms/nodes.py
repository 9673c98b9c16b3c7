"""Graphs as the original tool saw them: a list of nodes whose inputs are texts.

Here the order of control inputs among the others, ``a`` against ``a:0``, and two nodes of one name are all told apart,
because the original told them apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Tensor


@dataclass(frozen=True, slots=True)
class NodeDef:
    """A node as a GraphDef writes it.

    Attributes:
        name: need not be unique.
        op: operation type.
        inputs: ``node``, ``node:port`` or ``^node``, as written.
        attrs: attributes by name; must not be changed.
        device: device string, or nothing.
        extra: fields that quantkit does not interpret.
    """

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    device: str = ""
    extra: bytes = b""

    def with_(self, **changes: Any) -> Self:
        """A copy with other fields."""
        return replace(self, **changes)

    def with_attrs(self, **changes: Attr | None) -> Self:
        """A copy with attributes set, or removed where the value is None."""
        merged = {**self.attrs, **changes}
        return replace(self, attrs={key: value for key, value in merged.items() if value is not None})

    @property
    def data_inputs(self) -> tuple[str, ...]:
        """The inputs that are no control inputs."""
        return tuple(text for text in self.inputs if not text.startswith("^"))

    @property
    def value(self) -> Tensor:
        """The tensor of a constant.

        Raises:
            GraphError: it holds none.
        """
        value = self.attribute("value")
        if not isinstance(value, Tensor):
            raise GraphError(f"node {self.name!r} ({self.op}) holds no constant tensor")
        return value

    def attribute(self, name: str) -> Attr:
        """The value of an attribute.

        Raises:
            GraphError: the node lacks it.
        """
        if name not in self.attrs:
            raise GraphError(f"CHECK failed: it != end(): key not found: {name}", hint=f"{self.name} lacks {name!r}")
        return self.attrs[name]


class Parts(NamedTuple):
    """An input text in its parts: ``^`` or nothing, the node, and ``:port`` or nothing."""

    prefix: str
    node: str
    suffix: str


def split(text: str) -> Parts:
    """The parts of an input text.

    >>> split("^a"), split("b:1")
    (Parts(prefix='^', node='a', suffix=''), Parts(prefix='', node='b', suffix=':1'))
    """
    pieces = text.split(":")
    suffix = f":{pieces[1]}" if len(pieces) > 1 else ""
    return Parts("^", pieces[0][1:], suffix) if pieces[0].startswith("^") else Parts("", pieces[0], suffix)


def node_of(text: str) -> str:
    """The node that an input text names."""
    return split(text).node


def canonical(text: str) -> str:
    """The text with a port, which is 0 where it has none, even in a control input."""
    prefix, node, suffix = split(text)
    return f"{prefix}{node}{suffix or ':0'}"


def constant(name: str, values: Array | Tensor | Sequence[Any] | float, dtype: DType | None = None) -> NodeDef:
    """A ``Const`` as the original wrote it: type and packed values, and nothing else."""
    tensor = values if isinstance(values, Tensor) else Tensor.of(values, dtype)
    return NodeDef(name, "Const", attrs={"dtype": tensor.dtype, "value": tensor})


def by_name(nodes: Iterable[NodeDef]) -> dict[str, NodeDef]:
    """Nodes by name; of two with one name the later one counts."""
    return {node.name: node for node in nodes}


def from_graph(graph: Graph) -> list[NodeDef]:
    """The nodes of a graph, with inputs as its file spelled them."""
    return [
        NodeDef(node.name, node.op, node.written_inputs, node.attrs, node.device, node.extra)
        for node in graph.nodes.values()
    ]


def to_graph(nodes: Iterable[NodeDef], like: Graph, **changes: Any) -> Graph:
    """A graph of nodes.

    Args:
        nodes: in file order.
        like: where the other fields come from.
        changes: fields that differ from it.

    Raises:
        GraphError: two nodes have one name.
    """
    made = Graph.of([Node.of_written(n.name, n.op, n.inputs, n.attrs, n.device, n.extra) for n in nodes])
    return like.with_(nodes=made.nodes, **changes)


def edges(names: Iterable[str], graph: Graph) -> tuple[Edge, ...]:
    """The tensors that names mean, where the graph still has them."""
    found = (Edge.parse(name) for name in names)
    return tuple(edge for edge in found if edge.node in graph.nodes)
