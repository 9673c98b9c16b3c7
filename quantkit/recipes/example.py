"""Examples of transforms: a docstring holds a recipe and a graph, and the new graph is computed."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from quantkit.errors import GraphError, QuantkitError, RecipeError
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
    """A recipe, with a graph before and after it."""

    recipe: Recipe
    before: Graph
    after: Graph
    trace: Trace

    def __str__(self) -> str:
        """Return both graphs as text; ``-`` marks removed lines, and ``+`` marks new and moved lines."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        before, after = (to_text(graph).splitlines() for graph in (self.before, self.after))
        yield str(self.recipe)
        same = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        numbers = ({block[side] + at for block in same for at in range(block.size)} for side in (0, 1))
        for title, lines, unchanged, mark in zip(("before", "after"), (before, after), numbers, "-+", strict=True):
            yield f"  {title}:"
            for number, line in enumerate(lines):
                yield f"    {' ' if number in unchanged else mark} {line}"
        skips = [skip for record in self.trace.records for skip in record.skips]
        if skips:
            yield "  skipped:"
            yield from (f"      {skip}" for skip in skips)

    def to_json(self) -> dict[str, Any]:
        """Return the example as JSON values."""
        return {
            "recipe": str(self.recipe),
            "before": to_text(self.before),
            "after": to_text(self.after),
            "steps": [record.to_json() for record in self.trace.records],
        }


def run_examples(transform: Transform) -> tuple[Example, ...]:
    """Run the examples of a transform's docstring.

    Raises:
        RecipeError: the docstring has no example.
        GraphError: an example cannot be read or run.
    """
    examples = []
    for recipe, graph in read_examples(transform):
        try:
            after, trace = run(recipe, graph)
        except QuantkitError as error:
            raise GraphError(f"the example of {transform.name} fails: {error.message}", error.hint) from error
        examples.append(Example(recipe, graph, after, trace))
    return tuple(examples)


def read_examples(transform: Transform) -> tuple[tuple[Recipe, Graph], ...]:
    """Return the recipes and the graphs of the examples in a transform's docstring.

    Raises:
        RecipeError: the docstring has no example.
        GraphError: an example cannot be read or does not name the transform.
    """
    if not transform.examples:
        raise RecipeError(
            f"{transform.name} has no example",
            hint="end its docstring with 'Example:', a recipe of one line, and a graph as text below it",
        )
    return tuple(_read_example(transform, text) for text in transform.examples)


def _read_example(transform: Transform, text: str) -> tuple[Recipe, Graph]:
    line, _, graph_text = text.partition("\n")
    try:
        recipe, graph = parse(line), from_text(graph_text)
        verify(graph)
    except QuantkitError as error:
        raise GraphError(f"the example of {transform.name} cannot be read: {error.message}", error.hint) from error
    if transform.name not in [step.name for step in recipe.steps]:
        raise GraphError(
            f"the example of {transform.name} applies only {recipe.steps[0].name}",
            hint=f"write a recipe that contains {transform.name}",
        )
    return recipe, graph


def runnable(graph: Graph) -> Graph:
    """Return the graph with the attributes that TensorFlow requires and a text omits: float, stride 1, SAME."""
    if graph.dialect != "tensorflow":
        return graph
    return graph.with_nodes(_complete(node) for node in graph.nodes.values())


def _complete(node: Node) -> Node:
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
