"""Short names that tell nothing."""

from collections.abc import Iterator
from itertools import count

from quantkit.errors import GraphError
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms._names import renamed
from quantkit.transforms.registry import transform

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@transform
def obfuscate_names(graph: Graph) -> Outcome:
    """Rename all nodes but the inputs and outputs of the graph to 0, 1, ... z, A, ... Z, 10, ... in file order.

    The file becomes a little smaller, and does not tell how the network was written.

    Before:  secret/layer = Relu(x)
             y = Neg(secret/layer)
    After:   0 = Relu(x)
             y = Neg(0)

    Options: none.

    Declines when a node is an input or output of the graph: it keeps its name, and no other gets it.

    Raises:
        GraphError: a node reads what is not in the graph.
    """
    for node in graph.nodes.values():
        for name in (*(edge.node for edge in node.inputs), *node.controls):
            if name not in graph:
                raise GraphError(f"No node named {name} for input to {node.name}")
    short = _short_names(graph.ends)
    names = {name: next(short) for name in graph.nodes if name not in graph.ends}
    changes = tuple(f"{old} -> {new}" for old, new in names.items() if old != new)
    return Outcome(renamed(graph, names) if changes else graph, changes)


def _short_names(taken: frozenset[str]) -> Iterator[str]:
    return (name for number in count() if (name := in_base_62(number)) not in taken)


def in_base_62(number: int) -> str:
    """A number in digits, small and capital letters, the most significant first.

    >>> in_base_62(9), in_base_62(10), in_base_62(61), in_base_62(62)
    ('9', 'a', 'Z', '10')
    """
    digits = DIGITS[number % 62]
    while number := number // 62:
        digits = DIGITS[number % 62] + digits
    return digits
