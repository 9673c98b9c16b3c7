"""Find the calls whose functions have no other caller: their signatures may change."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.formats.graphdef.function_library import names_in
from quantkit.ir.functions import Function, FunctionName, function_names
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType


@dataclass(frozen=True)
class CallKind:
    """Attributes and inputs by which an op calls functions.

    Attributes:
        functions: attributes that name the functions; of a loop the condition, then the body.
        argument_types: attribute with the types of the arguments.
        result_types: attribute with the types of the results.
        first_argument: index of the input that is the first argument.
        is_loop: the results of the body are the arguments of the next iteration.
    """

    functions: tuple[str, ...]
    argument_types: str
    result_types: str
    first_argument: int = 0
    is_loop: bool = False


_CALL = CallKind(("f",), "Tin", "Tout")
_IF = CallKind(("then_branch", "else_branch"), "Tin", "Tout", 1)
_CASE = CallKind(("branches",), "Tin", "Tout", 1)
_LOOP = CallKind(("cond", "body"), "T", "T", 0, True)
CALL_KINDS: Mapping[str, CallKind] = {
    "PartitionedCall": _CALL,
    "StatefulPartitionedCall": _CALL,
    "If": _IF,
    "StatelessIf": _IF,
    "Case": _CASE,
    "StatelessCase": _CASE,
    "While": _LOOP,
    "StatelessWhile": _LOOP,
}


@dataclass(frozen=True)
class Callee:
    """Function at a call site.

    Attributes:
        function: called function.
        returns_results: the results are those of the call; not so for a loop condition.
        feeds_back: the results are the arguments of the next iteration (loop body).
    """

    function: Function[Graph]
    returns_results: bool
    feeds_back: bool

    def is_invariant(self, index: int) -> bool:
        """Return True if an argument has the same value in the next iteration, if any."""
        return not self.feeds_back or self.function.graph.outputs[index] == self.function.graph.inputs[index]

    def uses_argument(self, index: int) -> bool:
        """Return True if an argument has consumers, not counting its own value in the next iteration."""
        graph = self.function.graph
        edge = graph.inputs[index]
        others = (output for number, output in enumerate(graph.outputs) if not self.feeds_back or number != index)
        return edge.node in graph.node_uses or edge in others


@dataclass(frozen=True)
class CallSite:
    """Node that calls functions.

    Attributes:
        node: calling node.
        kind: attributes and inputs of the call.
        callees: called functions.
    """

    node: Node
    kind: CallKind
    callees: tuple[Callee, ...]

    @property
    def arguments(self) -> tuple[Edge, ...]:
        """Inputs of the node that are arguments of the functions."""
        return self.node.inputs[self.kind.first_argument :]

    @property
    def num_results(self) -> int:
        """Number of results of the call."""
        return len(as_tuple(self.node.attrs[self.kind.result_types]))

    @property
    def has_iteration_counter(self) -> bool:
        """True if the first two variables may be iteration counter and limit, as in TensorFlow's loops."""
        types = as_tuple(self.node.attrs.get(self.kind.argument_types))
        if not self.kind.is_loop or types[:2] != (DType.INT32, DType.INT32):
            return False
        return all(
            callee.is_invariant(1) and (not callee.feeds_back or not callee.is_invariant(0)) for callee in self.callees
        )

    @property
    def is_consistent(self) -> bool:
        """True if the node and the functions agree on arguments and results."""
        num_arguments, num_results = (
            len(as_tuple(self.node.attrs.get(key))) for key in (self.kind.argument_types, self.kind.result_types)
        )
        return len(self.arguments) == num_arguments and all(
            len(callee.function.graph.inputs) == num_arguments
            and (
                not callee.returns_results
                or len(callee.function.results) == len(callee.function.graph.outputs) == num_results
            )
            for callee in self.callees
        )


def find_call_sites(
    graph: Graph, functions: Mapping[str, Function[Graph]], num_callers: Mapping[str, int]
) -> Iterator[CallSite]:
    """Yield the calls of a graph whose functions have no other caller.

    Args:
        graph: graph or function body that contains the calls.
        functions: functions that can be loaded.
        num_callers: number of references to each function.
    """
    for node in graph.nodes.values():
        kind = CALL_KINDS.get(node.op)
        if kind is None:
            continue
        groups = [as_tuple(node.attrs.get(key)) for key in kind.functions]
        names = [name for group in groups for name in group]
        if not all(groups) or (len(names) > len(groups) and kind is not _CASE):
            continue
        if not all(isinstance(name, FunctionName) and not name.extra for name in names):
            continue
        if all(name.name in functions and num_callers[name.name] == 1 for name in names):
            returns_results = [not kind.is_loop or number > 0 for number in range(len(names))]
            callees = (
                Callee(functions[name.name], returns, kind.is_loop and returns)
                for name, returns in zip(names, returns_results, strict=True)
            )
            site = CallSite(node, kind, tuple(callees))
            if site.is_consistent:
                yield site


def as_tuple(value: object) -> tuple[Any, ...]:
    """Return an attribute value as a tuple: a single function name in a tuple, empty if invalid."""
    return value if isinstance(value, tuple) else (value,) if isinstance(value, FunctionName) else ()


def reachable_functions(graph: Graph, errors: dict[str, str] | None = None) -> dict[str, Function[Graph]]:
    """Return the functions that a graph calls, directly or indirectly, callers before callees.

    Args:
        graph: graph with its library.
        errors: receives the message for each function that cannot be loaded.
    """
    library = graph.library
    functions: dict[str, Function[Graph]] = {}
    visited: set[str] = set()
    graphs = [graph]
    for current in graphs:
        for node in current.nodes.values():
            for name in (node.op, *function_names(node.attrs)):
                if name in library and name not in visited:
                    visited.add(name)
                    try:
                        functions[name] = library[name]
                    except QuantkitError as error:
                        if errors is not None:
                            errors[name] = error.message
                        continue
                    graphs.append(functions[name].graph)
    return functions


def count_callers(graph: Graph) -> Counter[str]:
    """Count the references to each function: by nodes of the graph and of all functions, and by gradients."""
    library = graph.library
    counts = Counter(name for node in graph.nodes.values() for name in (node.op, *function_names(node.attrs)))
    for name in library:
        counts.update(names_in(library, name))
    for pair in library.gradients.items():
        counts.update(pair * 2)
    return counts
