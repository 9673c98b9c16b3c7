"""Decide which tensors of a graph are quantized, before any data is seen.

`quantkit.quantization.plan` defines fused patterns and pass-through nodes.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from quantkit.arguments import public
from quantkit.errors import GraphError
from quantkit.ir.graph import Graph
from quantkit.quantization.annotation.edge_annotation import EdgeAnnotation
from quantkit.quantization.annotation.float_graph import FloatGraph
from quantkit.quantization.annotation.node_annotation import NodeAnnotation
from quantkit.quantization.annotation.target_graph import TargetGraph
from quantkit.quantization.plan import Plan
from quantkit.quantization.precision.decision import Decision
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets.capabilities import RuntimeRules


@public
def annotate(
    graph: Graph, scheme: Scheme | None = None, *, float_nodes: Mapping[str, str | Decision] = MappingProxyType({})
) -> Plan:
    """Decide which tensors of a graph are quantized.

    Args:
        graph: float graph with inputs and outputs; batch norms folded. A graph of the other dialect than that of the
            target is converted, and the plan is one of the converted graph.
        scheme: None for the default scheme of the target ``onnx``.
        float_nodes: decisions about nodes that stay float, or their reasons, by name, in addition to ``keep_float`` of
            the scheme; decisions about int8 layers and tables select other forms, see `Plan.refined`.

    Raises:
        GraphError: the graph has no outputs.
        UnavailableError: a node has no equivalent in the dialect of the target.
        UsageError: ``keep_float`` names a node, layer or op type that is not in the graph.
    """
    if not graph.outputs:
        raise GraphError("the graph has no outputs", hint="name them: --outputs softmax")
    converted = TargetGraph.of(graph, scheme or Scheme())
    facts = FloatGraph.of(converted.graph, converted.scheme)
    nodes = NodeAnnotation(facts, float_nodes)
    return _weights_only_plan(nodes) if facts.scheme.weights_only else _plan(nodes)


def _plan(nodes: NodeAnnotation) -> Plan:
    patterns = nodes.find_patterns()
    pass_through = nodes.find_pass_through(patterns)
    edges = EdgeAnnotation(nodes.facts, patterns, pass_through)
    plan = Plan(
        nodes.scheme,
        edges.specs(),
        {pattern.weights: nodes.weights[pattern.weights] for pattern in patterns if pattern.weights}
        | nodes.find_tables(),
        edges.groups,
        patterns,
        tuple(pass_through),
        nodes.decide_all(patterns, pass_through),
        edges.observed_edges(),
    )
    target = nodes.facts.target
    if not isinstance(target, RuntimeRules):
        return plan
    formats = target.edge_formats(nodes.facts.graph, plan)
    return replace(plan, activations=formats, edges=tuple(edge for edge in plan.edges if edge in formats))


def _weights_only_plan(nodes: NodeAnnotation) -> Plan:
    """Return a plan of `Scheme.weights_only`: weights are quantized, activations are not."""
    nodes.store_weights()
    return Plan(nodes.scheme, {}, dict(nodes.weights), (), (), (), tuple(nodes.decisions.values()), ())
