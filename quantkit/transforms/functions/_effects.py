"""Find stateful nodes and functions, and nodes with side effects."""

from collections.abc import Callable

from quantkit.errors import QuantkitError
from quantkit.ir.functions import Library, function_names
from quantkit.ir.graph import LOOP_MERGES, Graph, Node
from quantkit.ops.semantics import CALL_OPS, CASE_OPS, IF_OPS, LOOP_OPS
from quantkit.ops.tensorflow.signatures import find_op

# Ops that are stateful only if the functions that they call are.
FUNCTION_OPS = CALL_OPS | IF_OPS | CASE_OPS | LOOP_OPS
# Stateful ops without side effects: random values, and reads of state.
STATEFUL_WITHOUT_EFFECT = frozenset(
    {"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2"}
    | {"RandomShuffle", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "StatelessRandomGetAlg"}
    | {"Empty", "VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}
)
ARGUMENTS_AND_RESULTS = frozenset({"_Arg", "_Retval"})


class Effects:
    """State and side effects of nodes that may call functions.

    Args:
        library: functions that the nodes call.

    Attributes:
        stateful: names of the stateful functions.
    """

    def __init__(self, library: Library[Graph]) -> None:
        self._library = library
        self.stateful = _find_stateful_functions(library)

    def is_stateful(self, node: Node) -> bool:
        """Return True if the outputs may differ between runs, or the node changes a state."""
        names = _callees(node, self._library)
        return _is_stateful_op(node) if names is None else not self.stateful.isdisjoint(names)

    def has_effect(self, node: Node) -> bool:
        """Return True if the node must run even if its outputs are unused."""
        return node.op not in STATEFUL_WITHOUT_EFFECT and self.is_stateful(node)

    def find_stateful(self, graph: Graph) -> set[str]:
        """Return the stateful nodes and all nodes downstream of them.

        A control dependency on any other node has no effect.
        """
        return _with_downstream(graph, self.is_stateful)

    def find_effects(self, graph: Graph) -> set[str]:
        """Return the nodes with side effects and all nodes downstream of them.

        Any other node can be removed if its outputs are unused.
        """
        return _with_downstream(graph, self.has_effect)


def _with_downstream(graph: Graph, is_selected: Callable[[Node], bool]) -> set[str]:
    if not LOOP_MERGES.isdisjoint(graph.op_counts):
        return set(graph.nodes)  # every node of a loop is downstream of its NextIteration
    selected: set[str] = set()
    for name in graph.order:
        node = graph[name]
        if not selected.isdisjoint(node.sources) or is_selected(node):
            selected.add(name)
    return selected


def _is_stateful_op(node: Node) -> bool:
    op = find_op(node.op)
    return node.op not in ARGUMENTS_AND_RESULTS and (
        op is None or op.is_stateful or any(arg.is_ref for arg in op.inputs)
    )


def _callees(node: Node, library: Library[Graph]) -> tuple[str, ...] | None:
    """Return the functions that a node calls, None if the node is not a call."""
    if node.op in library:
        return (node.op,)
    return function_names(node.attrs) if node.op in FUNCTION_OPS else None


def _find_stateful_functions(library: Library[Graph]) -> frozenset[str]:
    """Return the functions that contain a stateful node or call a stateful or missing function.

    Missing functions are included.
    """
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
            if names is None and _is_stateful_op(node):
                stack.append(name)
                break
    stack.extend(name for name in callers if name not in library)
    stateful: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in stateful:
            stateful.add(name)
            stack.extend(callers.get(name, ()))
    return frozenset(stateful)
