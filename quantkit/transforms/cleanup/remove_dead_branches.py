"""Remove branches that are never taken."""

from collections.abc import Mapping

import numpy as np

from quantkit.errors import RecipeError, did_you_mean
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.transforms.cleanup._conditionals import take_constant_functions
from quantkit.transforms.cleanup._switches import take_constant_branches
from quantkit.transforms.registry import BOOLEANS, transform


@transform
def remove_dead_branches(graph: Graph, *, pred: tuple[str, ...] = ()) -> Outcome:
    """Keep only the branch that is taken where a predicate is constant.

    Networks of TensorFlow 1 ask ``is_training`` in each batch norm and dropout, by Switch and Merge; later ones hold
    the branches as functions. Run fold_constants first where the predicate is computed, and strip_unused_nodes and
    remove_unused_functions afterwards.

    Before:  s = Switch(x, false)    y = Merge(Relu(s:0), Dropout(s:1))
    After:   y = Relu(x)

    Options:
        pred: what a node always is, ``remove_dead_branches(pred="is_training:false")``; a placeholder of that name
            becomes a constant, and is no input of the graph any more.

    A PlaceholderWithDefault that is no input of the graph is its default. The branch that If, StatelessIf, Case or
    StatelessCase take is written out in its place.

    Skips when a predicate is not constant, for loops (their conditions change), when an output of the graph would
    never be computed, or when a branch is not in the library.

    Example:
        remove_dead_branches(pred="is_training:false")
        inputs: x, is_training
        outputs: y
        x = Placeholder[2]()
        is_training = Placeholder[bool]()
        s = Switch(x, is_training)
        twice = Add(s:1, s:1)
        same = Relu(s:0)
        merged = Merge(same, twice, N=2)
        y = Neg(merged)
    """
    changes = [f"{text.rpartition(':')[0]} is always {text.rpartition(':')[2]}" for text in pred]
    given = _with_constants(graph, pred)
    while True:
        functions = take_constant_functions(given)
        outcome = take_constant_branches(functions.graph)
        changes.extend((*functions.changes, *outcome.changes))
        if not functions.changes and not outcome.changes:
            return Outcome(given, tuple(changes), (*functions.skips, *outcome.skips))
        given = outcome.graph


def _with_constants(graph: Graph, pred: tuple[str, ...]) -> Graph:
    """The graph with constants in the place of named nodes."""
    if not pred:
        return graph
    shapes = infer_shapes(graph)
    made = dict(_constant_of(graph, text, shapes) for text in pred)
    inputs = [edge for edge in graph.inputs if edge.node not in made]
    return graph.with_nodes(made.get(name, node) for name, node in graph.nodes.items()).with_(inputs=tuple(inputs))


def _constant_of(graph: Graph, text: str, shapes: Mapping[Edge, Shape]) -> tuple[str, Node]:
    name, _, word = text.rpartition(":")
    if not name or word not in BOOLEANS:
        raise RecipeError(
            f"remove_dead_branches: '{text}' does not say what a node is", hint='write pred="is_training:false"'
        )
    if name not in graph:
        raise RecipeError(
            f"remove_dead_branches: pred names {name!r}, which is not in the graph",
            hint=did_you_mean(name, graph.nodes) or "quantkit summarize lists the inputs of a graph",
        )
    dtypes = output_dtypes(graph[name])
    if len(dtypes) > 1:
        raise RecipeError(
            f"remove_dead_branches: pred names {name!r} ({graph[name].op}), which has {len(dtypes)} outputs",
            hint="name the node that makes the predicate",
        )
    dtype = dtypes[0] if dtypes and dtypes[0] is not None else DType.BOOL
    shape = shapes.get(Edge(name), Shape(None))
    # Old graphs ask whole numbers, too: 1 while they train.
    may_decide = dtype is not DType.STRING and dtype.numpy.kind in "biu"
    if not may_decide or None in (shape.dims or ()):
        what = f"of shape {shape}" if may_decide else f"of type {dtype.value}"
        raise RecipeError(
            f"remove_dead_branches: pred names {name!r}, whose values are {what}",
            hint="name the node that makes one truth value",
        )
    return name, constant(name, np.full(shape.sizes if shape.dims else (), BOOLEANS[word]).astype(dtype.numpy), dtype)
