"""Splice out nodes that only pass a tensor on."""

from typing import NamedTuple

from quantkit.errors import RecipeError
from quantkit.ir.graph import SWITCHES, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms._names import names_in_subgraphs
from quantkit.transforms.registry import transform

# Their outputs are their inputs, one for one.
ONE_FOR_ONE = frozenset({"IdentityN"})


@transform(dialects=("tensorflow", "onnx"))
def remove_nodes(graph: Graph, *, op: tuple[str, ...], max_inputs: int = 1) -> Outcome:
    """Splice out nodes of the given types: their readers read their first input instead.

    An IdentityN passes each of its inputs on. Whoever waits for a removed node waits for what that node read and waited
    for.

    Before:  x -> Identity -> Relu
    After:   x -> Relu

    Options:
        op: node types to remove, e.g. ``remove_nodes(op=Identity, op=CheckNumerics)``.
        max_inputs: remove nodes with up to so many data inputs (1).

    Skips when a node is an input or output of the graph, has no or too many inputs, another of its outputs than
    the first is read, a loop or branch of an ONNX graph refers to it, or it stands behind a Switch and others wait for
    it: it runs in one branch only, and the Switch in both. Where there are Switches, an IdentityN of several inputs
    may join branches, and stays.

    Example:
        remove_nodes(op=Identity, op=CheckNumerics)
        inputs: x
        outputs: y
        x = Placeholder[2]()
        check = CheckNumerics(x, message=bad)
        same = Identity(x, ^check)
        y = Relu(same)
    """
    if max_inputs < 1:
        raise RecipeError(
            f"remove_nodes: max_inputs must be at least 1, not {max_inputs}", hint="leave it out: 1 is the default"
        )
    last_ports: dict[str, int] = {}
    for edge in graph.uses:
        last_ports[edge.node] = max(last_ports.get(edge.node, 0), edge.port)
    fixed = names_in_subgraphs(graph)
    gone: dict[str, _Removed] = {}
    changes: list[str] = []
    skips: list[Skip] = []
    for name in graph.order:
        node = graph[name]
        if node.op not in op:
            continue
        reason = _reason_to_stay(graph, node, max_inputs, last_ports.get(name, 0)) or _branch(graph, node, gone)
        reason = reason or ("a loop or branch refers to it by name" if name in fixed else "")
        if reason:
            skips.append(Skip(reason, name))
        else:
            gone[name] = _Removed.of(node, gone)
            changes.append(f"{name} ({node.op})")
    kept = (_rewired(node, gone) for node in graph.nodes.values() if node.name not in gone)
    return Outcome(graph.with_nodes(kept), tuple(changes), tuple(skips))


class _Removed(NamedTuple):
    """What stands for a removed node: the tensor that each of its outputs passed on, and what had to run before it."""

    passed: tuple[Edge, ...]
    before_readers: tuple[str, ...]
    before_waiters: tuple[str, ...]

    @classmethod
    def of(cls, node: Node, gone: "dict[str, _Removed]") -> "_Removed":
        rewired = _rewired(node, gone)
        sources = [edge.node for edge in rewired.inputs]
        passed = rewired.inputs if node.op in ONE_FOR_ONE else rewired.inputs[:1]
        return cls(passed, rewired.controls, tuple(dict.fromkeys((*sources, *rewired.controls))))


def _rewired(node: Node, gone: dict[str, _Removed]) -> Node:
    """The node, reading around what is gone; it waits for all that a removed node waited for."""
    removed_inputs = [gone[edge.node] for edge in node.inputs if edge.node in gone]
    if not removed_inputs and not any(name in gone for name in node.controls):
        return node
    inputs = tuple(gone[edge.node].passed[edge.port] if edge.node in gone else edge for edge in node.inputs)
    waited = [name for one in removed_inputs for name in one.before_readers]
    for name in node.controls:
        waited.extend(gone[name].before_waiters if name in gone else (name,))
    read = {edge.node for edge in inputs}
    return node.with_(inputs=inputs, controls=tuple(name for name in dict.fromkeys(waited) if name not in read))


def _reason_to_stay(graph: Graph, node: Node, max_inputs: int, last_port: int) -> str:
    if node.name in graph.endpoint_names:
        return "it is an input or output of the graph"
    if not node.inputs:
        return "it reads nothing that could take its place"
    if node.op in ONE_FOR_ONE:
        return "" if last_port < len(node.inputs) else f"it has no output {last_port}, which is read"
    if len(node.inputs) > max_inputs:
        return f"it reads {len(node.inputs)} tensors; max_inputs is {max_inputs}"
    return f"its output {last_port} is read, too" if last_port else ""


def _branch(graph: Graph, node: Node, gone: dict[str, _Removed]) -> str:
    """A clause, if somebody waits for the node to know which branch is taken."""
    if len(node.inputs) > 1 and node.op in ONE_FOR_ONE and not graph.op_counts.keys().isdisjoint(SWITCHES):
        return "its inputs may be of several branches, of which one runs"
    source = _rewired(node, gone).inputs[0].node
    if source not in graph or graph[source].op not in SWITCHES:
        return ""
    waiting = next((use.node.name for use in graph.node_uses.get(node.name, ()) if use.slot < 0), "")
    return f"{waiting} waits for the branch of {source} that it is in" if waiting else ""
