"""Registry of the original tool's transforms, and the rules by which they read their options."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantkit.compat.transforms.nodes import NodeDef, edges, from_graph, node_of, to_graph
from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.functions import Library
from quantkit.ir.graph import Graph, Versions
from quantkit.transforms.registry import BOOLEANS, REGISTRY, Transform

SPACES = " \t\n\v\f\r"
INTEGER = re.compile(r"-?[0-9]+")
FLOAT = re.compile(r"[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|inf|infinity|nan|0x[0-9a-f]+)")
# Maximum number of dangling inputs in the hint of the error.
MAX_LISTED_INPUTS = 5
# Transforms of the original that quantkit's own run in classic mode; errors in their options can be ignored too.
_EQUAL = ("remove_attribute", "remove_device", "rename_op")


@dataclass(frozen=True)
class ClassicContext:
    """Arguments of a transform of the original tool, other than the nodes.

    Attributes:
        inputs: graph inputs as spelled by the caller; ``x`` and ``x:0`` are different names.
        outputs: graph outputs as spelled by the caller.
        params: values of each option, in order.
        library: function library of the graph.
        versions: GraphDef versions before the transform.
        services: functions that the caller provides, for example ``evaluate``, which computes
            constants.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    params: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    library: Library[Graph] = field(default_factory=Library)
    versions: Versions = field(default_factory=Versions)
    services: Mapping[str, Any] = field(default_factory=dict)

    def values(self, name: str) -> tuple[str, ...]:
        """Return all values of an option."""
        return self.params.get(name, ())

    def value(self, name: str, default: str) -> str:
        """Return the value of an option.

        Raises:
            GraphError: the option has several values.
        """
        values = self.values(name)
        if len(values) > 1:
            raise GraphError(f"Expected a single '{name}' parameter, but found {len(values)} occurrences")
        return values[0] if values else default

    def int32(self, name: str, default: int) -> int:
        """Return the integer of an option.

        Raises:
            GraphError: the option has several values, or its value is not a 32-bit integer.
        """
        return self._integer(name, default, 32)

    def int64(self, name: str, default: int) -> int:
        """Return the integer of an option.

        Raises:
            GraphError: the option has several values, or its value is not a 64-bit integer.
        """
        return self._integer(name, default, 64)

    def _integer(self, name: str, default: int, bits: int) -> int:
        text = self.value(name, "")
        if name not in self.params:
            return default
        number = as_int64(text)
        if number is None or not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise GraphError(f"Couldn't interpret the {name} argument as a number:{text}")
        return number

    def float32(self, name: str, default: float) -> float:
        """Return the number of an option, rounded to 32 bits.

        Raises:
            GraphError: the option has several values, or its value is not a number.
        """
        text = self.value(name, "")
        if name not in self.params:
            return default
        number = text.strip(SPACES).lower()
        if not FLOAT.fullmatch(number):
            raise GraphError(f"Couldn't interpret the {name} argument as a float number:{text}")
        with np.errstate(over="ignore"):
            return float(np.float32(int(number, 16) if "0x" in number else float(number)))

    def boolean(self, name: str, default: bool) -> bool:
        """Return the boolean of an option.

        Raises:
            GraphError: the option has several values, or its value is not true, 1, false or 0.
        """
        text = self.value(name, "")
        if name not in self.params:
            return default
        if text in BOOLEANS:
            return BOOLEANS[text]
        raise GraphError(f"Couldn't interpret the {name} argument as a boolean:{text} (expected true, false, 0 or 1)")


def as_int64(text: str) -> int | None:
    """Parse an integer with optional surrounding spaces; None if it is not a 64-bit integer."""
    text = text.strip(SPACES)
    if not INTEGER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        return None
    return int(text)


def check_inputs(nodes: Sequence[NodeDef]) -> None:
    """Reject dangling inputs; the original checked them after each transform.

    Raises:
        GraphError: an input references a missing node; the hint lists the first such inputs.
    """
    names = {node.name for node in nodes}
    dangling = [(text, node.name) for node in nodes for text in node.inputs if node_of(text) not in names]
    if dangling:
        hint = "; ".join(f"Invalid input {text} for node {name}" for text, name in dangling[:MAX_LISTED_INPUTS])
        raise GraphError("Invalid graph with inputs referring to nonexistent nodes", hint=hint)


# A function that returns its argument, the same list object, keeps the GraphDef versions.
Function = Callable[[list[NodeDef], ClassicContext], list[NodeDef]]


@dataclass(frozen=True)
class ClassicTransform:
    """Named function from nodes to nodes.

    Attributes:
        name: name in a recipe.
        function: the function.
        keeps_versions: the graph keeps its GraphDef versions; the original lost them in all
            transforms except one.
        is_exact: outputs stay the same up to float32 rounding.
    """

    name: str
    function: Function
    keeps_versions: bool = False
    is_exact: bool = True

    def __call__(self, nodes: list[NodeDef], context: ClassicContext) -> list[NodeDef]:
        return self.function(nodes, context)


CLASSIC: dict[str, ClassicTransform] = {}


def classic_transform(*, keeps_versions: bool = False, exact: bool = True) -> Callable[[Function], Function]:
    """Register a function ``(nodes, context) -> nodes`` as the original's transform of its name.

    Args:
        keeps_versions: see `ClassicTransform`.
        exact: outputs stay the same; ``--verify`` checks this.

    Raises:
        RecipeError: the name is taken.
    """

    def register(function: Function) -> Function:
        name = function.__name__
        if name in CLASSIC:
            raise RecipeError(f"two classic transforms are named {name!r}")
        CLASSIC[name] = ClassicTransform(name, function, keeps_versions, exact)
        return function

    return register


def find_classic(name: str) -> ClassicTransform:
    """Return the original's transform with a name, else quantkit's own transform.

    Raises:
        RecipeError: the name is unknown.
    """
    if name in CLASSIC:
        return CLASSIC[name]
    if name in REGISTRY:
        return _adapt_transform(REGISTRY[name])
    raise RecipeError(
        f"Transform '{name}' not recognized.",
        hint=did_you_mean(name, {**CLASSIC, **REGISTRY}) or "run quantkit transforms list to see all names",
    )


def _adapt_transform(transform: Transform) -> ClassicTransform:
    """Return quantkit's own transform for a classic recipe.

    Unknown options are ignored, as in the original.
    """

    def function(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
        graph = to_graph(nodes, Graph({}), versions=context.versions, library=context.library)
        graph = graph.with_(inputs=edges(context.inputs, graph), outputs=edges(context.outputs, graph))
        options = {key: value for key, value in context.params.items() if key in transform.options}
        try:
            return from_graph(transform.apply(graph, options, context.services).graph)
        except RecipeError as error:
            if transform.name in _EQUAL:
                raise GraphError(error.message, error.hint) from error
            raise

    return ClassicTransform(transform.name, function, is_exact=transform.is_exact)
