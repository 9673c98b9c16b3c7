"""Assignments to variables at run time, which a frozen graph cannot have.

Recurrent layers of Keras advance the random state of dropout, which is a variable, even if dropout
is inactive: assignments that no output depends on are removed, and those that do not change the
value. If an output depends on an assigned variable, freezing would change the outputs, so that the
model is rejected.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.functions import function_names
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import find_op, input_dtypes, output_dtypes

# Nodes that only read a variable are Identity nodes at this point.
CHANGING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign", "Rng")
_HINT = (
    "a frozen graph keeps no state: call dropout and random layers with training=False, "
    "and make recurrent layers with stateful=False"
)


def changes_variables(ops: Iterable[str]) -> bool:
    """Return True if one of the ops assigns to a variable."""
    return any(op.startswith(CHANGING) for op in ops)


def remove_assignments(graph: Graph, variables: Mapping[str, str]) -> Graph:
    """Remove assignments to variables that are constants, and nodes that only they depend on.

    Args:
        graph: graph with its outputs.
        variables: names of the variables, by the names of their constants.

    Raises:
        GraphError: an output depends on an assigned variable.
    """
    assignments = [node for node in graph.nodes.values() if _assigns_to_constant(graph, node)]
    origins = _origins(graph)
    assigned = {origins[node.inputs[0].node] for node in assignments if not _keeps_value(graph, node, origins)}
    copies = {name for name, origin in origins.items() if origin in assigned}
    removed = {*copies, *(node.name for node in assignments)}
    needed: set[str] = set()
    checked_functions: set[str] = set()
    stack = [edge.node for edge in graph.outputs]
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        if name in removed:
            variable = origins[name if name in copies else graph[name].inputs[0].node]
            raise _assigned_error(variables.get(variable, variable))
        needed.add(name)
        node = graph[name]
        _check_functions(graph, node, checked_functions)
        stack.extend(edge.node for edge in node.inputs)
        stack.extend(control for control in node.controls if control not in removed)
    needed |= graph.input_names
    return graph.with_nodes(
        node.with_(controls=tuple(name for name in node.controls if name not in removed))
        for node in graph.nodes.values()
        if node.name in needed
    )


def _origins(graph: Graph) -> dict[str, str]:
    """Return the first node of the chain of Identity nodes that ends in each node."""
    origins: dict[str, str] = {}
    for name in graph.order:
        node = graph[name]
        origins[name] = origins[node.inputs[0].node] if node.op == "Identity" else name
    return origins


def _assigns_to_constant(graph: Graph, node: Node) -> bool:
    """Return True if a node assigns to a constant that replaces a variable or an argument."""
    if not node.op.startswith(CHANGING) or not node.inputs or input_dtypes(node)[:1] != (DType.RESOURCE,):
        return False
    source = graph[node.inputs[0].node]
    return find_op(source.op) is not None and output_dtypes(source)[node.inputs[0].port] is not DType.RESOURCE


def _keeps_value(graph: Graph, node: Node, origins: Mapping[str, str]) -> bool:
    """Return True if a node assigns the product of a variable and a mask, and the variable is already masked.

    The pruning wrappers of TF-MOT apply their masks in every run.
    """
    product = graph[origins[node.inputs[1].node]] if node.op == "AssignVariableOp" and len(node.inputs) > 1 else None
    if product is None or product.op != "Mul":
        return False
    variable, *factors = (graph[origins[edge.node]] for edge in (node.inputs[0], *product.inputs))
    if not variable.is_constant or not all(factor.is_constant for factor in factors):
        return False
    masked = factors[0].value.array * factors[1].value.array
    return bool(np.array_equal(masked, variable.value.array))


def _check_functions(graph: Graph, node: Node, checked: set[str]) -> None:
    """Reject a call of a function that assigns to a variable; ``checked`` functions do not."""
    stack = list(function_names(node.attrs))
    while stack:
        name = stack.pop()
        if name not in checked and name in graph.library:
            checked.add(name)
            body = graph.library[name].graph
            for inner in body.nodes.values():
                if _assigns_to_constant(body, inner):
                    raise _assigned_error(inner.inputs[0].node)
                stack.extend(function_names(inner.attrs))


def _assigned_error(variable: str) -> GraphError:
    return GraphError(f"the outputs depend on the variable {variable!r}, which every run changes", hint=_HINT)
