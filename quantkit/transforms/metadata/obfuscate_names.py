"""Replace node names by short, meaningless ones."""

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
    """Rename all nodes to 0, 1, ... z, A, ... Z, 10, ... in file order, except graph inputs and outputs.

    The file becomes slightly smaller, and node names do not reveal the structure of the source code.

    Before:  secret/layer = Relu(x)
             y = Neg(secret/layer)
    After:   0 = Relu(x)
             y = Neg(0)

    Options: none.

    Skips graph inputs and outputs, and nodes to which a subgraph of an ONNX graph refers. Their names
    are not used for other nodes.

    Raises:
        GraphError: an input of a node is not in the graph.

    Example:
        obfuscate_names
        inputs: x
        outputs: y
        x = Placeholder[4]()
        secret/layer = Relu(x)
        secret/barrier = NoOp(^secret/layer)
        y = Neg(secret/layer, ^secret/barrier)
    """
    for node in graph.nodes.values():
        for name in (*(edge.node for edge in node.inputs), *node.controls):
            if name not in graph:
                raise GraphError(f"No node named {name} for input to {node.name}")
    fixed = graph.endpoint_names | names_in_subgraphs(graph) | {ABSENT.name}
    short = (name for number in count() if (name := to_base_62(number)) not in fixed)
    names = {name: next(short) for name in graph.nodes if name not in fixed}
    changes = tuple(f"{old} -> {new}" for old, new in names.items() if old != new)
    if graph.dialect == DIALECT:  # ONNX nodes also have a name and a doc string, apart from their value names
        graph = graph.with_nodes(_drop_extra(node) for node in graph.nodes.values())
    return Outcome(rename_nodes(graph, names) if changes else graph, changes)


def _drop_extra(node: Node) -> Node:
    return node if node.op == "Placeholder" else node.with_(extra=b"")


def to_base_62(number: int) -> str:
    """Convert a number to base 62 with the digits 0-9, a-z, A-Z, most significant first.

    >>> to_base_62(9), to_base_62(10), to_base_62(61), to_base_62(62)
    ('9', 'a', 'Z', '10')
    """
    digits = DIGITS[number % 62]
    while number := number // 62:
        digits = DIGITS[number % 62] + digits
    return digits
