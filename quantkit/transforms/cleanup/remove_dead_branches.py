"""Remove branches that never run."""

from collections.abc import Mapping

import numpy as np

from quantkit.errors import QuantkitError, RecipeError, did_you_mean
from quantkit.formats import onnx
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.semantics import CASE_OPS, IF_OPS, LOOP_OPS
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.transforms.cleanup._switches import FORWARDING_OPS, remove_constant_switches
from quantkit.transforms.functions._inlining import inline_calls
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


def inline_constant_branches(graph: Graph) -> Outcome:
    """Replace each If or Case with a constant condition by the nodes of the selected branch."""
    calls: dict[str, Node] = {}
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if node.op in LOOP_OPS:
            skips.append(Skip(f"{node.op} is a loop", node.name))
        elif node.op in IF_OPS or node.op in CASE_OPS:
            call = _call_branch(graph, node)
            if isinstance(call, Skip):
                skips.append(call)
            else:
                calls[node.name] = call
    if not calls:
        return Outcome(graph, (), tuple(skips))
    with_calls = graph.with_nodes(calls.get(name, node) for name, node in graph.nodes.items())
    outcome = inline_calls(with_calls, lambda _, node: _callee(node) if calls.get(node.name) is node else None)
    changes = tuple(f"{name} ({graph[name].op}) always calls {_callee(call)}" for name, call in calls.items())
    return Outcome(outcome.graph, changes, (*skips, *outcome.skips))


def _call_branch(graph: Graph, node: Node) -> Node | Skip:
    """Return a PartitionedCall of the selected branch."""
    if node.name in graph.input_names:
        return Skip("the node is a graph input", node.name)
    condition = node.inputs[0]
    value, has_controls = _find_constant(graph, condition)
    if value is None:
        return Skip(f"condition {condition} is not constant", node.name)
    branch = _select_branch(node, value)
    if branch is None:
        return Skip("the attributes do not name the branch functions", node.name)
    try:
        function = graph.library[branch.name]
    except KeyError:
        return Skip(f"function {branch.name!r} is not in the library", node.name)
    except QuantkitError as error:
        return Skip(error.message, node.name)
    num_arguments = len(node.inputs) - 1
    if len(function.graph.inputs) != num_arguments:
        return Skip(f"{branch.name!r} has {len(function.graph.inputs)} arguments, not {num_arguments}", node.name)
    op = "PartitionedCall" if node.op.startswith("Stateless") else "StatefulPartitionedCall"
    attrs = {key: value for key, value in node.attrs.items() if key in ("Tin", "Tout") or key.startswith("_")}
    controls = (*node.controls, condition.node) if has_controls else node.controls
    return node.with_(op=op, inputs=node.inputs[1:], controls=controls, attrs={**attrs, "f": branch})


def _select_branch(node: Node, condition: Tensor) -> FunctionName | None:
    """Return the function that runs, by TensorFlow's rules for conditions of any type and shape."""
    if node.op in IF_OPS:
        if condition.shape:
            is_true = condition.num_elements > 0
        else:
            value = condition.array.item()
            is_true = len(value) > 0 if condition.dtype is DType.STRING else bool(value)
        branch = node.attrs.get("then_branch" if is_true else "else_branch")
        return branch if isinstance(branch, FunctionName) else None
    branches = node.attrs.get("branches")
    if not isinstance(branches, tuple) or not branches or condition.shape:
        return None
    index = int(condition.array)
    branch = branches[index if 0 <= index < len(branches) else -1]
    return branch if isinstance(branch, FunctionName) else None


def _find_constant(graph: Graph, edge: Edge) -> tuple[Tensor | None, bool]:
    """Return the constant that an edge forwards, and True if a node on the way has control dependencies."""
    visited: set[Edge] = set()
    has_controls = False
    while edge not in visited and edge.node not in graph.input_names:
        visited.add(edge)
        node = graph[edge.node]
        has_controls = has_controls or bool(node.controls)
        if node.op not in FORWARDING_OPS or not node.inputs:
            return graph.constant_of(edge), has_controls
        edge = node.inputs[0]
    return None, has_controls


def _callee(call: Node) -> str:
    function = call.attrs["f"]
    return function.name if isinstance(function, FunctionName) else ""
