"""Nodes in file order, as an architecture is written down."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from quantkit.ir.graph import Attr, Edge, Node, constant
from quantkit.ir.tensor import DType

FLOAT: dict[str, Attr] = {"T": DType.FLOAT}


class Signal(NamedTuple):
    """Output of a node: the facts that the random weights of the next layer depend on.

    Attributes:
        node: its name.
        channels: size of its last dimension.
        power: estimated mean square of the values.
    """

    node: str
    channels: int
    power: float


# Factor of the mean square of 3x3 pooling after a ReLU, for nearly independent neighbors.
_POOL_GAINS = {"AvgPool": 0.6, "MaxPool": 2.2}


def pool_output(node: str, op: str, source: Signal) -> Signal:
    """Return the output of a 3x3 pool of ``source``."""
    return Signal(node, source.channels, source.power * _POOL_GAINS[op])


def concatenation_output(node: str, sources: Sequence[Signal]) -> Signal:
    """Return the output of a concatenation along the channels."""
    channels = sum(source.channels for source in sources)
    return Signal(node, channels, sum(source.channels * source.power for source in sources) / channels)


class Writer:
    """Collects nodes; each method returns the name of the node it added.

    Attributes:
        nodes: nodes that were added, in file order.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, name: str, op: str, *inputs: str, **attrs: Attr) -> str:
        """Add a node whose inputs are the first outputs of ``inputs``."""
        self.nodes.append(Node(name, op, tuple(Edge(source) for source in inputs), attrs=attrs))
        return name

    def const(self, name: str, values: Any) -> str:
        """Add a constant from a `Tensor`, or from any value that `Tensor.of` takes."""
        self.nodes.append(constant(name, values))
        return name
