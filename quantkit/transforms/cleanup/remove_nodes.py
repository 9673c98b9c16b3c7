"""Remove no-op nodes."""

from typing import NamedTuple

from quantkit.errors import RecipeError
from quantkit.ir.graph import SWITCHES, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.onnx import _identities as onnx_identities
from quantkit.transforms.registry import transform

# Ops whose output i is input i.
ELEMENTWISE_IDENTITIES = frozenset({"IdentityN"})


@transform(dialects=("tensorflow", "onnx"))
def remove_nodes(graph: Graph, *, op: tuple[str, ...], max_inputs: int = 1) -> Outcome:
    """Remove nodes of some op types, and connect their consumers to their first input.

    Consumers of output i of an IdentityN are connected to its input i. A control dependency on a
    removed node becomes control dependencies on its inputs and its own control dependencies.

    Before:  x -> Identity -> Relu
    After:   x -> Relu

    Options:
        op: op types to remove, for example ``remove_nodes(op=Identity, op=CheckNumerics)``.
        max_inputs: maximum number of data inputs of a removed node (default: 1).

    Skips graph inputs and outputs, nodes without inputs or with too many, nodes whose second or later
    output has consumers, nodes to which a subgraph of an ONNX graph refers, and consumers of a Switch
    that are control dependencies (they run in one branch, the Switch in both). In graphs with
    Switches, an IdentityN with several inputs stays: it may join branches. In an ONNX graph an output
    is removed if the producer of its input can take its name.

    Example:
        remove_nodes(op=Identity, op=CheckNumerics)
        inputs: x
        outputs: y
        x = Placeholder[2]()
        check = CheckNumerics(x, message=bad)
        same = Identity(x, ^check)
        y = Relu(same)

    Example:
        remove_nodes(op=Identity)
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[2]()
        same = Identity(x)
        positive = Relu(same)
        y = Identity(positive)
    """
    if max_inputs < 1:
        raise RecipeError(
            f"remove_nodes: max_inputs must be at least 1, not {max_inputs}", hint="omit the option; the default is 1"
        )
    if graph.dialect == onnx_identities.DIALECT:
        return onnx_identities.remove(graph, op, max_inputs)
    last_ports: dict[str, int] = {}
    for edge in graph.uses:
        last_ports[edge.node] = max(last_ports.get(edge.node, 0), edge.port)
    removed: dict[str, _Replacement] = {}
    changes: list[str] = []
    skips: list[Skip] = []
    for name in graph.order:
        node = graph[name]
        if node.op not in op:
            continue
        reason = _skip_reason(graph, node, max_inputs, last_ports.get(name, 0)) or _branch_reason(graph, node, removed)
        if reason:
            skips.append(Skip(reason, name))
        else:
            removed[name] = _Replacement.of(node, removed)
            changes.append(f"{name} ({node.op})")
    nodes = (_reconnect(node, removed) for node in graph.nodes.values() if node.name not in removed)
    return Outcome(graph.with_nodes(nodes), tuple(changes), tuple(skips))


class _Replacement(NamedTuple):
    """Replacement of a removed node.

    Attributes:
        outputs: edge that replaces each output.
        data_controls: control dependencies that data consumers take over.
        controls: control dependencies that replace one on the node.
    """

    outputs: tuple[Edge, ...]
    data_controls: tuple[str, ...]
    controls: tuple[str, ...]

    @classmethod
    def of(cls, node: Node, removed: "dict[str, _Replacement]") -> "_Replacement":
        new = _reconnect(node, removed)
        outputs = new.inputs if node.op in ELEMENTWISE_IDENTITIES else new.inputs[:1]
        return cls(outputs, new.controls, tuple(dict.fromkeys(new.sources)))


def _reconnect(node: Node, removed: dict[str, _Replacement]) -> Node:
    """Return the node with the inputs and control dependencies of removed nodes in their place."""
    removed_inputs = [removed[edge.node] for edge in node.inputs if edge.node in removed]
    if not removed_inputs and not any(name in removed for name in node.controls):
        return node
    inputs = tuple(removed[edge.node].outputs[edge.port] if edge.node in removed else edge for edge in node.inputs)
    controls = [name for replacement in removed_inputs for name in replacement.data_controls]
    for name in node.controls:
        controls.extend(removed[name].controls if name in removed else (name,))
    producers = {edge.node for edge in inputs}
    return node.with_(inputs=inputs, controls=tuple(name for name in dict.fromkeys(controls) if name not in producers))


def _skip_reason(graph: Graph, node: Node, max_inputs: int, last_port: int) -> str:
    if node.name in graph.endpoint_names:
        return "the node is a graph input or output"
    if not node.inputs:
        return "the node has no input"
    if node.op in ELEMENTWISE_IDENTITIES:
        return "" if last_port < len(node.inputs) else f"the node has no output {last_port}, but it has a consumer"
    if len(node.inputs) > max_inputs:
        return f"the node has {len(node.inputs)} inputs; max_inputs is {max_inputs}"
    return f"output {last_port} has consumers" if last_port else ""


def _branch_reason(graph: Graph, node: Node, removed: dict[str, _Replacement]) -> str:
    """Return a clause if the node assigns others to a branch, or may join branches; else empty."""
    if len(node.inputs) > 1 and node.op in ELEMENTWISE_IDENTITIES and not SWITCHES.isdisjoint(graph.op_counts):
        return "the inputs may come from several branches"
    source = _reconnect(node, removed).inputs[0].node
    if source not in graph or graph[source].op not in SWITCHES:
        return ""
    dependent = next((use.node.name for use in graph.node_uses.get(node.name, ()) if use.slot < 0), "")
    return f"a control dependency assigns {dependent} to a branch of {source}" if dependent else ""
