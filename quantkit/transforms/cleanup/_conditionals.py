"""Inline the branch of a constant If or Case, the control flow of TensorFlow 2."""

from quantkit.errors import QuantkitError
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.semantics import CASE_OPS, IF_OPS, LOOP_OPS
from quantkit.transforms.cleanup._switches import FORWARDING_OPS
from quantkit.transforms.functions._inlining import inline_calls


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
