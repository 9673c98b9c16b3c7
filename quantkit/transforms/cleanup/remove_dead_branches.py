"""Remove branches that never run."""

from collections.abc import Mapping

import numpy as np

from quantkit.errors import RecipeError, did_you_mean
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.transforms.cleanup._conditionals import inline_constant_branches
from quantkit.transforms.cleanup._switches import remove_constant_switches
from quantkit.transforms.onnx import _branches as onnx_branches
from quantkit.transforms.registry import BOOLEANS, transform


@transform(dialects=("tensorflow", "onnx"))
def remove_dead_branches(graph: Graph, *, pred: tuple[str, ...] = ()) -> Outcome:
    """Remove the branches that a constant predicate disables.

    TensorFlow 1 models select training or inference by ``is_training`` with Switch and Merge in each
    BatchNorm and dropout; TensorFlow 2 models with If and Case. If the predicate is computed, run
    fold_constants first. Run strip_unused_nodes and remove_unused_functions afterwards.

    Before:  s = Switch(x, false)    y = Merge(Relu(s:0), Dropout(s:1))
    After:   y = Relu(x)

    Options:
        pred: constant value of a node, ``remove_dead_branches(pred="is_training:false")``; the node
            becomes a constant, and is removed from the inputs of the graph.

    A PlaceholderWithDefault that is not an input of the graph has its default value. If, StatelessIf,
    Case and StatelessCase are replaced by the nodes of the selected branch. In ONNX graphs, an If
    whose condition is known after constant folding is replaced by the nodes of its branch.

    Skips predicates that are not constant, loops, switches that disable an output of the graph, and
    branches that are not in the library.

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
    if graph.dialect == onnx.DIALECT:
        if pred:
            raise RecipeError("pred is for TensorFlow graphs", hint="conditions of ONNX graphs must be constant")
        return onnx_branches.inline_branches(graph)
    changes = [f"{text.rpartition(':')[0]} is always {text.rpartition(':')[2]}" for text in pred]
    current = _with_constants(graph, pred)
    while True:
        conditionals = inline_constant_branches(current)
        switches = remove_constant_switches(conditionals.graph)
        changes.extend((*conditionals.changes, *switches.changes))
        if not conditionals.changes and not switches.changes:
            return Outcome(current, tuple(changes), (*conditionals.skips, *switches.skips))
        current = switches.graph


def _with_constants(graph: Graph, pred: tuple[str, ...]) -> Graph:
    """Replace the nodes that ``pred`` names by constants."""
    if not pred:
        return graph
    shapes = infer_shapes(graph)
    constants = dict(_parse_constant(graph, text, shapes) for text in pred)
    inputs = tuple(edge for edge in graph.inputs if edge.node not in constants)
    return graph.with_nodes(constants.get(name, node) for name, node in graph.nodes.items()).with_(inputs=inputs)


def _parse_constant(graph: Graph, text: str, shapes: Mapping[Edge, Shape]) -> tuple[str, Node]:
    name, _, truth = text.rpartition(":")
    if not name or truth not in BOOLEANS:
        raise RecipeError(
            f"remove_dead_branches: '{text}' gives no value for a node", hint='write pred="is_training:false"'
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
            hint="name the producer of the predicate",
        )
    dtype = dtypes[0] if dtypes and dtypes[0] is not None else DType.BOOL
    shape = shapes.get(Edge(name), Shape(None))
    # Old graphs also use integers as predicates: 1 for training.
    is_predicate = dtype is not DType.STRING and dtype.numpy.kind in "biu"
    if not is_predicate or None in (shape.dims or ()):
        problem = f"of shape {shape}" if is_predicate else f"of type {dtype.value}"
        raise RecipeError(
            f"remove_dead_branches: pred names {name!r}, whose values are {problem}",
            hint="name the producer of one boolean or integer",
        )
    values = np.full(shape.sizes if shape.dims else (), BOOLEANS[truth])
    return name, constant(name, values.astype(dtype.numpy), dtype)
