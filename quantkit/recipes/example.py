"""The example of a transform, run: its docstring gives a recipe and a graph, and what comes of them is computed."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from quantkit.errors import QuantkitError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text, to_text
from quantkit.ops.tensorflow.signatures import find_op
from quantkit.recipes.driver import run
from quantkit.recipes.recipe import Recipe, parse
from quantkit.recipes.trace import Trace
from quantkit.transforms.registry import Transform

_USUAL_ATTRS: dict[str, Attr] = {"strides": (1, 1, 1, 1), "padding": b"SAME"}


@dataclass(frozen=True)
class Example:
    """A recipe, and a graph before and after it."""

    recipe: Recipe
    before: Graph
    after: Graph
    trace: Trace

    def __str__(self) -> str:
        """Both graphs as text; what goes is marked with ``-`` and what is new, or stands elsewhere, with ``+``."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        before, after = (to_text(graph).splitlines() for graph in (self.before, self.after))
        yield str(self.recipe)
        same = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        stay = ({block[side] + at for block in same for at in range(block.size)} for side in (0, 1))
        for title, lines, kept, mark in zip(("before", "after"), (before, after), stay, "-+", strict=True):
            yield f"  {title}:"
            for place, line in enumerate(lines):
                yield f"    {' ' if place in kept else mark} {line}"
        skips = [skip for record in self.trace.records for skip in record.skips]
        if skips:
            yield "  declined:"
            yield from (f"      {skip}" for skip in skips)

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "recipe": str(self.recipe),
            "before": to_text(self.before),
            "after": to_text(self.after),
            "steps": self.trace.to_json(),
        }


def run_example(transform: Transform) -> Example:
    """The example of a transform's docstring, run.

    Raises:
        RecipeError: there is none, or it can not be read or run.
    """
    recipe, graph = read_example(transform)
    try:
        after, trace = run(recipe, graph)
    except QuantkitError as error:
        raise RecipeError(f"the example of {transform.name} fails: {error.message}", error.hint) from error
    return Example(recipe, graph, after, trace)


def read_example(transform: Transform) -> tuple[Recipe, Graph]:
    """The recipe and the graph of a transform's docstring.

    Raises:
        RecipeError: there are none, they can not be read, or the recipe does not name the transform.
    """
    line, _, text = next(iter(transform.examples), "").partition("\n")
    if not text:
        raise RecipeError(
            f"{transform.name} has no example",
            hint="end its docstring with 'Example:', a recipe of one line, and a graph as text below it",
        )
    try:
        recipe, graph = parse(line), from_text(text)
        verify(graph)
    except QuantkitError as error:
        raise RecipeError(f"the example of {transform.name} can not be read: {error.message}", error.hint) from error
    if transform.name not in [step.name for step in recipe.steps]:
        raise RecipeError(
            f"the example of {transform.name} is one of {recipe.steps[0].name}",
            hint=f"write a recipe with {transform.name} in it",
        )
    return recipe, graph


def runnable(graph: Graph) -> Graph:
    """The graph with the attributes that TensorFlow demands and a text leaves out: float, stride 1, SAME."""
    return graph.with_nodes(_completed(node) for node in graph.nodes.values())


def _completed(node: Node) -> Node:
    op = find_op(node.op)
    missing: dict[str, Attr] = {}
    for name, attr in op.attrs.items() if op else ():
        if name not in node.attrs and attr.default is None:
            if name in _USUAL_ATTRS:
                missing[name] = _USUAL_ATTRS[name]
            elif attr.kind == "type":
                missing[name] = DType.FLOAT
            elif name == "N":
                missing[name] = len(node.inputs) - node.op.startswith("Concat")
    return node.with_(attrs={**missing, **node.attrs}) if missing else node
