"""Short names that tell nothing."""

from collections.abc import Iterator
from itertools import count

from quantkit.errors import GraphError
from quantkit.formats.onnx import ABSENT, DIALECT
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome
from quantkit.transforms._names import names_in_subgraphs, rename_nodes
from quantkit.transforms.registry import transform

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@transform(dialects=("tensorflow", "onnx"))
def obfuscate_names(graph: Graph) -> Outcome:
    """Rename all nodes but the inputs and outputs of the graph to 0, 1, ... z, A, ... Z, 10, ... in file order.

    The file becomes a little smaller, and does not tell how the network was written.

    Before:  secret/layer = Relu(x)
             y = Neg(secret/layer)
    After:   0 = Relu(x)
             y = Neg(0)

    Options: none.

    Skips when a node is an input or output of the graph, or a loop or branch of an ONNX graph refers to it: it
    keeps its name, and no other gets it.

    Raises:
        GraphError: a node reads what is not in the graph.

    Example:
        obfuscate_names
        inputs: x
        outputs: y
        x = Placeholder[4]()
        secret/layer = Relu(x)
        secret/wait = NoOp(^secret/layer)
        y = Neg(secret/layer, ^secret/wait)
    """
    for node in graph.nodes.values():
        for name in (*(edge.node for edge in node.inputs), *node.controls):
            if name not in graph:
                raise GraphError(f"No node named {name} for input to {node.name}")
    kept = graph.endpoint_names | names_in_subgraphs(graph) | {ABSENT.name}
    short = _short_names(kept)
    names = {name: next(short) for name in graph.nodes if name not in kept}
    changes = tuple(f"{old} -> {new}" for old, new in names.items() if old != new)
    if graph.dialect == DIALECT:  # beside the names of values, nodes have names and remarks there
        graph = graph.with_nodes(_untold(node) for node in graph.nodes.values())
    return Outcome(rename_nodes(graph, names) if changes else graph, changes)


def _untold(node: Node) -> Node:
    return node if node.op == "Placeholder" else node.with_(extra=b"")


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
