"""What does more than compute: nodes that keep state, themselves or in the functions that they call."""

from collections.abc import Callable

from quantkit.errors import QuantkitError
from quantkit.ir.functions import Library, function_names
from quantkit.ir.graph import LOOP_MERGES, Graph, Node
from quantkit.ops.tensorflow.signatures import find_op

# They do what the functions do that they name.
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
CONTROL_FLOW = frozenset({"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"})
# They give other numbers each time, or what others left; nobody sees whether they ran.
UNSEEN = frozenset(
    {"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2"}
    | {"RandomShuffle", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "StatelessRandomGetAlg"}
    | {"Empty", "VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}
)
ENDS = frozenset({"_Arg", "_Retval"})


class Effects:
    """Which nodes keep state, where some call functions.

    Args:
        library: the functions.

    Attributes:
        stateful: names of functions that keep state.
    """

    def __init__(self, library: Library[Graph]) -> None:
        self._library = library
        self.stateful = _stateful_functions(library)

    def keeps_state(self, node: Node) -> bool:
        """Whether it may give another result each time, or change what others see."""
        names = _callees(node, self._library)
        return _keeps_state(node) if names is None else not self.stateful.isdisjoint(names)

    def must_run(self, node: Node) -> bool:
        """Whether somebody may see that it ran, even if nobody reads what it gives."""
        return node.op not in UNSEEN and self.keeps_state(node)

    def ordered(self, graph: Graph) -> set[str]:
        """Nodes that keep state or come after such: who waits for another node waits for nothing."""
        return _with_followers(graph, self.keeps_state)

    def acting(self, graph: Graph) -> set[str]:
        """Nodes that must run or come after such: who needs another node may as well not."""
        return _with_followers(graph, self.must_run)


def _with_followers(graph: Graph, is_meant: Callable[[Node], bool]) -> set[str]:
    if not LOOP_MERGES.isdisjoint(graph.op_counts):
        return set(graph.nodes)  # what comes back in a loop comes after all that is in it
    found: set[str] = set()
    for name in graph.order:
        node = graph[name]
        if not found.isdisjoint(node.sources) or is_meant(node):
            found.add(name)
    return found


def _keeps_state(node: Node) -> bool:
    op = find_op(node.op)
    return node.op not in ENDS and (op is None or op.is_stateful or any(arg.is_ref for arg in op.inputs))


def _callees(node: Node, library: Library[Graph]) -> tuple[str, ...] | None:
    """The functions that do what a node does; None: it is no call."""
    if node.op in library:
        return (node.op,)
    return function_names(node.attrs) if node.op in CALLS | CONTROL_FLOW else None


def _stateful_functions(library: Library[Graph]) -> frozenset[str]:
    """Functions that hold a node which keeps state, or call such a function, or one that is missing; and that one."""
    callers: dict[str, list[str]] = {}
    stack: list[str] = []
    for name in library:
        try:
            nodes = library[name].graph.nodes.values()
        except QuantkitError:
            stack.append(name)
            continue
        for node in nodes:
            names = _callees(node, library)
            for callee in names or ():
                callers.setdefault(callee, []).append(name)
            if names is None and _keeps_state(node):
                stack.append(name)
                break
    stack.extend(name for name in callers if name not in library)
    found: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(callers.get(name, ()))
    return frozenset(found)
