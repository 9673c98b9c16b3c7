"""Nodes that call functions which nobody else calls: what those take and give may change."""

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
class Kind:
    """How an op calls.

    Attributes:
        functions: attributes that name what it calls; of a loop the condition, then the body.
        taken, given: attributes that list the types of arguments and results.
        first: the input that is the first argument.
        is_loop: whether the results of the body become the arguments of the next turn.
    """

    functions: tuple[str, ...]
    taken: str
    given: str
    first: int = 0
    is_loop: bool = False


_CALL = Kind(("f",), "Tin", "Tout")
_IF = Kind(("then_branch", "else_branch"), "Tin", "Tout", 1)
_CASE = Kind(("branches",), "Tin", "Tout", 1)
_LOOP = Kind(("cond", "body"), "T", "T", 0, True)
KINDS: Mapping[str, Kind] = {
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
    """A function that is called.

    Attributes:
        function: what it does.
        gives: whether its results are those of the call.
        is_tied: whether its results are its arguments in the next turn.
    """

    function: Function[Graph]
    gives: bool
    is_tied: bool

    def hands_on(self, place: int) -> bool:
        """Whether an argument is the same in the next turn, if there is one."""
        return not self.is_tied or self.function.graph.outputs[place] == self.function.graph.inputs[place]

    def reads(self, place: int) -> bool:
        """Whether it does anything else with an argument."""
        graph = self.function.graph
        edge = graph.inputs[place]
        others = (one for number, one in enumerate(graph.outputs) if not self.is_tied or number != place)
        return edge.node in graph.node_uses or edge in others


@dataclass(frozen=True)
class Site:
    """A call.

    Attributes:
        node: what calls.
        kind: how.
        callees: what it calls.
    """

    node: Node
    kind: Kind
    callees: tuple[Callee, ...]

    @property
    def arguments(self) -> tuple[Edge, ...]:
        """What it gives to what it calls."""
        return self.node.inputs[self.kind.first :]

    @property
    def counts_turns(self) -> bool:
        """Whether its first two variables may be the number of turns and their limit, as in TensorFlow's own loops."""
        if not self.kind.is_loop or listed(self.node.attrs.get(self.kind.taken))[:2] != (DType.INT32, DType.INT32):
            return False
        return all(one.hands_on(1) and (not one.is_tied or not one.hands_on(0)) for one in self.callees)

    @property
    def is_sound(self) -> bool:
        """Whether node and functions agree on how much is taken and given."""
        taken, given = (len(listed(self.node.attrs.get(key))) for key in (self.kind.taken, self.kind.given))
        return len(self.arguments) == taken and all(
            len(one.function.graph.inputs) == taken
            and (not one.gives or len(one.function.results) == len(one.function.graph.outputs) == given)
            for one in self.callees
        )


def sites(graph: Graph, functions: Mapping[str, Function[Graph]], num_callers: Mapping[str, int]) -> Iterator[Site]:
    """The calls in a graph whose functions nobody else calls.

    Args:
        graph: what calls.
        functions: that can be opened.
        num_callers: how often each function is named.
    """
    for node in graph.nodes.values():
        kind = KINDS.get(node.op)
        if kind is None:
            continue
        groups = [listed(node.attrs.get(key)) for key in kind.functions]
        named = [one for group in groups for one in group]
        if not all(groups) or (len(named) > len(groups) and kind is not _CASE):
            continue
        if not all(isinstance(one, FunctionName) and not one.extra for one in named):
            continue
        if all(one.name in functions and num_callers[one.name] == 1 for one in named):
            gives = [not kind.is_loop or number > 0 for number in range(len(named))]
            callees = (
                Callee(functions[one.name], giving, kind.is_loop and giving)
                for one, giving in zip(named, gives, strict=True)
            )
            site = Site(node, kind, tuple(callees))
            if site.is_sound:
                yield site


def listed(value: object) -> tuple[Any, ...]:
    """What an attribute lists; the name of a function is a list of one, and what is damaged lists nothing."""
    return value if isinstance(value, tuple) else (value,) if isinstance(value, FunctionName) else ()


def needed_functions(graph: Graph, closed: dict[str, str] | None = None) -> dict[str, Function[Graph]]:
    """The functions that a graph needs and that can be opened, each behind one that calls it.

    Args:
        graph: with its library.
        closed: told of the others, and why they can not be opened.
    """
    library = graph.library
    found: dict[str, Function[Graph]] = {}
    seen: set[str] = set()
    graphs = [graph]
    for one in graphs:
        for node in one.nodes.values():
            for name in (node.op, *function_names(node.attrs)):
                if name in library and name not in seen:
                    seen.add(name)
                    try:
                        found[name] = library[name]
                    except QuantkitError as error:
                        if closed is not None:
                            closed[name] = error.message
                        continue
                    graphs.append(found[name].graph)
    return found


def num_callers(graph: Graph) -> Counter[str]:
    """How often each function is named: by nodes of the graph and of all functions, and where gradients are told."""
    library = graph.library
    counts = Counter(name for node in graph.nodes.values() for name in (node.op, *function_names(node.attrs)))
    for name in library:
        counts.update(names_in(library, name))
    for pair in library.gradients.items():
        counts.update(pair * 2)
    return counts
