"""Nodes in file order, as an architecture is written down."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from quantkit.ir.graph import Attr, Edge, Node, constant
from quantkit.ir.tensor import DType

FLOAT: dict[str, Attr] = {"T": DType.FLOAT}


class Signal(NamedTuple):
    """What a node puts out, as far as the next layer's random parameters need to know it.

    Attributes:
        node: its name.
        channels: size of its last dimension.
        power: mean square of its numbers, by estimate.
    """

    node: str
    channels: int
    power: float


# What 3x3 pooling behind ReLU changes the mean square by, when neighbours are nearly independent.
_POOL_GAINS = {"AvgPool": 0.6, "MaxPool": 2.2}


def pooled(node: str, op: str, source: Signal) -> Signal:
    """What a 3x3 pool of ``source`` puts out."""
    return Signal(node, source.channels, source.power * _POOL_GAINS[op])


def concatenated(node: str, sources: Sequence[Signal]) -> Signal:
    """What a concatenation along the channels puts out."""
    channels = sum(source.channels for source in sources)
    return Signal(node, channels, sum(source.channels * source.power for source in sources) / channels)


class Writer:
    """Collects nodes; each method returns the name of the node it added.

    Attributes:
        nodes: so far, in file order.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, name: str, op: str, *inputs: str, **attrs: Attr) -> str:
        """A node that reads output 0 of each of ``inputs``."""
        self.nodes.append(Node(name, op, tuple(Edge(source) for source in inputs), attrs=attrs))
        return name

    def const(self, name: str, values: Any) -> str:
        """A constant: a `Tensor` or anything `Tensor.of` takes."""
        self.nodes.append(constant(name, values))
        return name
