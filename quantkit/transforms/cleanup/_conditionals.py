"""Branches that are functions: If and Case, the control flow of TensorFlow 2."""

from quantkit.errors import QuantkitError
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Tensor
from quantkit.transforms.cleanup._switches import PASSING
from quantkit.transforms.functions._inlining import inlined

IFS = frozenset({"If", "StatelessIf"})
CASES = frozenset({"Case", "StatelessCase"})
LOOPS = frozenset({"While", "StatelessWhile"})


def take_constant_functions(graph: Graph) -> Outcome:
    """Write out the branch that each If or Case with a constant condition takes."""
    calls: dict[str, Node] = {}
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if node.op in LOOPS:
            skips.append(Skip(f"it is a loop, {node.op}", node.name))
        elif node.op in IFS or node.op in CASES:
            made = _call(graph, node)
            if isinstance(made, Skip):
                skips.append(made)
            else:
                calls[node.name] = made
    if not calls:
        return Outcome(graph, (), tuple(skips))
    with_calls = graph.with_nodes(calls.get(name, node) for name, node in graph.nodes.items())
    outcome = inlined(with_calls, lambda _, node: _function(node) if calls.get(node.name) is node else None)
    changes = tuple(f"{name} ({graph[name].op}) always runs {_function(call)}" for name, call in calls.items())
    return Outcome(outcome.graph, changes, (*skips, *outcome.skips))


def _call(graph: Graph, node: Node) -> Node | Skip:
    """A plain call of the branch that is taken."""
    if node.name in graph.input_names:
        return Skip("it is an input of the graph", node.name)
    condition = node.inputs[0]
    value, waits = _constant_behind(graph, condition)
    if value is None:
        return Skip(f"its condition {condition} is not constant", node.name)
    branch = _branch(node, value)
    if branch is None:
        return Skip("which functions it may call is not known", node.name)
    try:
        function = graph.library[branch.name]
    except KeyError:
        return Skip(f"function {branch.name!r} is not in the library", node.name)
    except QuantkitError as error:
        return Skip(error.message, node.name)
    if len(function.graph.inputs) != len(node.inputs) - 1:
        return Skip(f"{branch.name!r} takes another number of tensors than it gets", node.name)
    op = "PartitionedCall" if node.op.startswith("Stateless") else "StatefulPartitionedCall"
    kept = {key: value for key, value in node.attrs.items() if key in ("Tin", "Tout") or key.startswith("_")}
    controls = (*node.controls, condition.node) if waits else node.controls
    return node.with_(op=op, inputs=node.inputs[1:], controls=controls, attrs={**kept, "f": branch})


def _branch(node: Node, condition: Tensor) -> FunctionName | None:
    """The function that is run; a condition counts as true as TensorFlow counts it."""
    if node.op in IFS:
        if condition.shape:
            is_true = condition.num_elements > 0
        else:
            value = condition.array.item()
            is_true = len(value) > 0 if condition.dtype is DType.STRING else bool(value)
        found = node.attrs.get("then_branch" if is_true else "else_branch")
        return found if isinstance(found, FunctionName) else None
    branches = node.attrs.get("branches")
    if not isinstance(branches, tuple) or not branches or condition.shape:
        return None
    place = int(condition.array)
    found = branches[place if 0 <= place < len(branches) else -1]
    return found if isinstance(found, FunctionName) else None


def _constant_behind(graph: Graph, edge: Edge) -> tuple[Tensor | None, bool]:
    """The constant that reaches an edge, and whether anything on the way waits for a node."""
    seen: set[Edge] = set()
    waits = False
    while edge not in seen and edge.node not in graph.input_names:
        seen.add(edge)
        node = graph[edge.node]
        waits = waits or bool(node.controls)
        if node.op not in PASSING or not node.inputs:
            return graph.constant_of(edge), waits
        edge = node.inputs[0]
    return None, waits


def _function(call: Node) -> str:
    name = call.attrs["f"]
    return name.name if isinstance(name, FunctionName) else ""
