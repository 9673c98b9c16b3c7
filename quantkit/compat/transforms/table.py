"""The table of transforms as the original tool had them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from quantkit.compat.transforms.nodes import NodeDef, edges, from_graph, node_of, to_graph
from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.functions import Library
from quantkit.ir.graph import Graph, Versions
from quantkit.transforms.registry import BOOLEANS, REGISTRY, Transform

SPACES = " \t\n\v\f\r"
INTEGER = re.compile(r"-?[0-9]+")
FLOAT = re.compile(r"[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|inf|infinity|nan|0x[0-9a-f]+)")
# How many dangling inputs the hint of the error lists.
SHOWN = 5


@dataclass(frozen=True)
class Context:
    """What a transform of the original tool was told beside the nodes.

    Attributes:
        inputs: names of what is fed, as the caller wrote them: ``x`` and ``x:0`` are two.
        outputs: names of what is asked for, as written.
        params: for each option the words given, in order.
        library: the functions of the graph.
        versions: of the graph before.
        services: what the caller provides (``evaluate``: how constants are computed).
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    params: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    library: Library[Graph] = field(default_factory=Library)
    versions: Versions = field(default_factory=Versions)
    services: Mapping[str, Any] = field(default_factory=dict)

    def words(self, name: str) -> tuple[str, ...]:
        """All words given for an option."""
        return self.params.get(name, ())

    def word(self, name: str, default: str) -> str:
        """The one word of an option.

        Raises:
            GraphError: it is given twice.
        """
        words = self.words(name)
        if len(words) > 1:
            raise GraphError(f"Expected a single '{name}' parameter, but found {len(words)} occurrences")
        return words[0] if words else default

    def int32(self, name: str, default: int) -> int:
        """The one number of an option.

        Raises:
            GraphError: it is given twice, or is no 32-bit integer.
        """
        return self._integer(name, default, 32)

    def int64(self, name: str, default: int) -> int:
        """The one number of an option.

        Raises:
            GraphError: it is given twice, or is no 64-bit integer.
        """
        return self._integer(name, default, 64)

    def _integer(self, name: str, default: int, bits: int) -> int:
        word = self.word(name, "")
        if name not in self.params:
            return default
        number = as_int64(word)
        if number is None or not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise GraphError(f"Couldn't interpret the {name} argument as a number:{word}")
        return number

    def float32(self, name: str, default: float) -> float:
        """The one number of an option, rounded to 32 bits.

        Raises:
            GraphError: it is given twice, or is no number.
        """
        word = self.word(name, "")
        if name not in self.params:
            return default
        number = word.strip(SPACES).lower()
        if not FLOAT.fullmatch(number):
            raise GraphError(f"Couldn't interpret the {name} argument as a float number:{word}")
        with np.errstate(over="ignore"):
            return float(np.float32(int(number, 16) if "0x" in number else float(number)))

    def truth(self, name: str, default: bool) -> bool:
        """The one truth of an option.

        Raises:
            GraphError: it is given twice, or is neither true, 1, false nor 0.
        """
        word = self.word(name, "")
        if name not in self.params:
            return default
        if word in BOOLEANS:
            return BOOLEANS[word]
        raise GraphError(f"Couldn't interpret the {name} argument as a boolean:{word} (expected true, false, 0 or 1)")


def as_int64(word: str) -> int | None:
    """The integer that a word is, spaces around it allowed; None: it is none of 64 bits."""
    word = word.strip(SPACES)
    if not INTEGER.fullmatch(word) or not -(1 << 63) <= int(word) < 1 << 63:
        return None
    return int(word)


def check_inputs(nodes: Sequence[NodeDef]) -> None:
    """Refuse inputs that name no node, as the original did after each transform.

    Raises:
        GraphError: there are some; the hint lists the first.
    """
    names = {node.name for node in nodes}
    bad = [(text, node.name) for node in nodes for text in node.inputs if node_of(text) not in names]
    if bad:
        listed = "; ".join(f"Invalid input {text} for node {name}" for text, name in bad[:SHOWN])
        raise GraphError("Invalid graph with inputs referring to nonexistent nodes", hint=listed)


# A transform that returns the very list it was given has copied the whole graph, versions included.
Function = Callable[[list[NodeDef], Context], list[NodeDef]]


@dataclass(frozen=True)
class ClassicTransform:
    """A named function from nodes to nodes.

    Attributes:
        name: the recipe word.
        function: what it does.
        keeps_versions: whether the graph keeps its GraphDef versions, which the original lost in all but one.
        is_exact: whether answers are meant to stay the same up to float32 rounding.
    """

    name: str
    function: Function
    keeps_versions: bool = False
    is_exact: bool = True

    def __call__(self, nodes: list[NodeDef], context: Context) -> list[NodeDef]:
        return self.function(nodes, context)


CLASSIC: dict[str, ClassicTransform] = {}


@overload
def classic_transform(function: Function, /) -> Function: ...
@overload
def classic_transform(*, keeps_versions: bool = False, exact: bool = True) -> Callable[[Function], Function]: ...
def classic_transform(
    function: Function | None = None, /, *, keeps_versions: bool = False, exact: bool = True
) -> Function | Callable[[Function], Function]:
    """Register a function ``(nodes, context) -> nodes`` under its own name, as the original's transform.

    Args:
        function: what it does.
        keeps_versions: see `ClassicTransform`.
        exact: whether answers are meant to stay the same; ``--verify`` holds it to that.

    Raises:
        RecipeError: the name is taken.
    """

    def registered(one: Function) -> Function:
        name = one.__name__
        if name in CLASSIC:
            raise RecipeError(f"two classic transforms are named {name!r}")
        CLASSIC[name] = ClassicTransform(name, one, keeps_versions, exact)
        return one

    return registered if function is None else registered(function)


def find_classic(name: str) -> ClassicTransform:
    """The original's transform of a name, or ours where the original had none of that name.

    Raises:
        RecipeError: there is neither.
    """
    if name in CLASSIC:
        return CLASSIC[name]
    if name in REGISTRY:
        return _adapted(REGISTRY[name])
    raise RecipeError(
        f"Transform '{name}' not recognized.",
        hint=did_you_mean(name, {**CLASSIC, **REGISTRY}) or "quantkit transforms list names them all",
    )


def _adapted(transform: Transform) -> ClassicTransform:
    """One of our own transforms in a classic recipe: options it does not know are ignored, as the original did."""

    def function(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
        graph = to_graph(nodes, Graph({}), versions=context.versions, library=context.library)
        graph = graph.with_(inputs=edges(context.inputs, graph), outputs=edges(context.outputs, graph))
        words = {key: given for key, given in context.params.items() if key in transform.options}
        return from_graph(transform.apply(graph, words, context.services).graph)

    return ClassicTransform(transform.name, function, is_exact=transform.is_exact)
