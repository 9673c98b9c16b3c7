"""Models that change their variables while they run.

Recurrent layers of Keras draw what dropout would need, and count their draws in a variable, also where nothing is
dropped: what no output needs goes. Where an output needs a variable that is changed, freezing would change the answers.
"""

from collections.abc import Iterable, Mapping

from quantkit.errors import GraphError
from quantkit.ir.functions import function_names
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import find_op, input_dtypes, output_dtypes

# What only reads a variable is an Identity by now.
CHANGING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign", "Rng")
_HINT = (
    "a frozen graph keeps no state: call dropout and random layers with training=False, "
    "and make recurrent layers with stateful=False"
)


def changes_variables(ops: Iterable[str]) -> bool:
    """Whether some of these ops change variables."""
    return any(op.startswith(CHANGING) for op in ops)


def without_changes(graph: Graph, variables: Mapping[str, str]) -> Graph:
    """A graph whose variables became constants, without what changed them, and all that only this needed.

    Args:
        graph: with its outputs.
        variables: names of variables, by those of the constants.

    Raises:
        GraphError: an output needs a variable that was changed.
    """
    changes = [node for node in graph.nodes.values() if _changes_a_constant(graph, node)]
    origins = _origins(graph)
    changed = {origins[node.inputs[0].node] for node in changes}
    read = {name for name, origin in origins.items() if origin in changed}
    gone = {*read, *(node.name for node in changes)}
    kept: set[str] = set()
    seen: set[str] = set()
    stack = [edge.node for edge in graph.outputs]
    while stack:
        name = stack.pop()
        if name in kept:
            continue
        if name in gone:
            variable = origins[name if name in read else graph[name].inputs[0].node]
            raise _refusal(variables.get(variable, variable))
        kept.add(name)
        node = graph[name]
        _check_functions(graph, node, seen)
        stack.extend(edge.node for edge in node.inputs)
        stack.extend(control for control in node.controls if control not in gone)
    kept |= graph.input_names
    return graph.with_nodes(
        node.with_(controls=tuple(name for name in node.controls if name not in gone))
        for node in graph.nodes.values()
        if node.name in kept
    )


def _origins(graph: Graph) -> dict[str, str]:
    """What each node passes on: where the chain of Identities begins that it ends."""
    found: dict[str, str] = {}
    for name in graph.order:
        node = graph[name]
        found[name] = found[node.inputs[0].node] if node.op == "Identity" else name
    return found


def _changes_a_constant(graph: Graph, node: Node) -> bool:
    """Whether a node does what needs a variable with what became a constant, or an argument that is one."""
    if not node.op.startswith(CHANGING) or not node.inputs or input_dtypes(node)[:1] != (DType.RESOURCE,):
        return False
    source = graph[node.inputs[0].node]
    return find_op(source.op) is not None and output_dtypes(source)[node.inputs[0].port] is not DType.RESOURCE


def _check_functions(graph: Graph, node: Node, seen: set[str]) -> None:
    """Refuse a call of a function that changes a variable; those that were ``seen`` change none."""
    stack = list(function_names(node.attrs))
    while stack:
        name = stack.pop()
        if name not in seen and name in graph.library:
            seen.add(name)
            body = graph.library[name].graph
            for inner in body.nodes.values():
                if _changes_a_constant(body, inner):
                    raise _refusal(inner.inputs[0].node)
                stack.extend(function_names(inner.attrs))


def _refusal(variable: str) -> GraphError:
    return GraphError(f"the outputs need the variable {variable!r}, which the model changes each time", hint=_HINT)
