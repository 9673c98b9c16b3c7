"""Edges that are quantized, their number formats, and the edges that share a range."""

from collections.abc import Mapping
from dataclasses import replace

from quantkit.ir.graph import Edge, Node
from quantkit.quantization.annotation.float_graph import FloatGraph
from quantkit.quantization.plan import FusedPattern
from quantkit.quantization.spec import WEIGHTS, Spec


class EdgeAnnotation:
    """Decisions about the edges of a float graph whose int8 nodes are known.

    Attributes:
        facts: the float graph.
        patterns: its fused patterns.
        pass_through: data inputs of each pass-through node.
        activations: quantized edges in topological order.
        groups: sets of edges that share a range.
    """

    def __init__(
        self,
        facts: FloatGraph,
        patterns: tuple[FusedPattern, ...],
        pass_through: Mapping[str, tuple[Edge, ...]],
    ) -> None:
        self.facts = facts
        self.graph, self.scheme, self.roles = facts.graph, facts.scheme, facts.roles
        self.patterns, self.pass_through = patterns, pass_through
        self.activations = self._quantized_edges()
        self.groups = self._range_groups()

    def specs(self) -> dict[Edge, Spec]:
        """Return the number format of each quantized edge."""
        return {**self._activation_specs(), **self._operand_specs()}

    def observed_edges(self) -> tuple[Edge, ...]:
        """Return the edges to observe: all but copies of observed edges and clamped edges."""
        group_of = {edge: group for group in self.groups for edge in group}
        implied = set()
        for name, inputs in self.pass_through.items():
            if self.facts.is_activation(self.graph[name]):
                implied |= {inputs[0]} if self._is_clamped(inputs[0]) else set()
            elif group_of.get(Edge(name), frozenset()).issuperset(inputs):
                implied.add(Edge(name))
        return tuple(edge for edge in self.activations if edge not in implied)

    def _quantized_edges(self) -> list[Edge]:
        patterns = self.patterns
        edges = {edge for pattern in patterns for edge in pattern.inputs}
        edges |= {edge for inputs in self.pass_through.values() for edge in inputs}
        # A runtime that does not fuse the Add quantizes its inputs.
        edges |= {pattern.inner for pattern in patterns if pattern.inner is not None}
        edges |= {pattern.output for pattern in patterns if self._has_quantized_output(pattern)}
        if self.scheme.float_global_pools:
            # No int8 op consumes these edges, but kernels with int8 outputs are faster than those with float ones.
            edges |= {
                pattern.output for pattern in patterns if pattern.activation and self._is_averaged(pattern.output)
            }
        if self.scheme.split_patterns:
            edges |= {Edge(name) for pattern in patterns for name in pattern.nodes}
        return sorted(edges, key=lambda edge: (self.facts.position[edge.node], edge.port))

    def _has_quantized_output(self, pattern: FusedPattern) -> bool:
        op = self.graph[pattern.layer].op
        has_float_kernel = self.scheme.float_outputs or op not in self.roles.quantized_output_ops
        return self.scheme.quantize_outputs or not has_float_kernel

    def _is_averaged(self, edge: Edge) -> bool:
        """Return True if all consumers are global averages, of the edge or of its concatenation."""
        consumers = [use.node for use in self.graph.node_uses.get(edge.node, ())]
        return (
            bool(consumers)
            and edge.node not in self.graph.endpoint_names
            and all(
                self._is_averaged(Edge(node.name))
                if node.op in self.roles.concat_ops
                else self.facts.is_average(node) and self.facts.is_global(node)
                for node in consumers
            )
        )

    def _range_groups(self) -> tuple[frozenset[Edge], ...]:
        """Return the sets of edges that share a range."""
        group_of: dict[Edge, set[Edge]] = {edge: {edge} for edge in self.activations}
        outputs: dict[str, list[Edge]] = {}
        for edge in self.activations:
            outputs.setdefault(edge.node, []).append(edge)

        def join(edge: Edge, other: Edge) -> None:
            small, large = sorted((group_of[edge], group_of[other]), key=len)
            if small is not large:
                large |= small
                group_of.update(dict.fromkeys(small, large))

        for name, inputs in self.pass_through.items():
            if self._shares_range(self.graph[name]):
                first, *others = outputs[name]
                for edge in (*inputs, *others):
                    join(edge, first)
        for name, inputs in self.pass_through.items():
            is_elementwise_concat = self.graph[name].op in self.roles.concat_ops & self.roles.elementwise_ops
            for edge in inputs if is_elementwise_concat else ():
                if self._have_one_consumer(group_of[edge], name):
                    join(edge, Edge(name))
        groups = {id(group): group for group in group_of.values() if len(group) > 1}
        return tuple(map(frozenset, groups.values()))

    def _have_one_consumer(self, group: set[Edge], name: str) -> bool:
        """Return True if a node is the only consumer of edges with one range, next to the nodes that copy them.

        Its inputs then take the range of its output: a range of their own would only round their values twice.
        """
        consumers = {use.node.name for edge in group for use in self.graph.uses.get(edge, ())}
        return consumers <= {name, *(edge.node for edge in group)} and group.isdisjoint(self.graph.outputs)

    def _shares_range(self, node: Node) -> bool:
        if node.op in self.roles.elementwise_ops:
            return False
        if node.op in self.roles.concat_ops:
            return self.scheme.share_concat_ranges
        if self.facts.is_average(node):
            return self.scheme.share_pool_ranges and not self._is_clamped(Edge(node.name))
        return not self.facts.is_activation(node) or self._is_clamped(node.inputs[0])

    def _is_clamped(self, edge: Edge) -> bool:
        """Return True if an activation is the only consumer: the edge takes the activation's range."""
        consumer = self.facts.sole_consumer(edge)
        return consumer is not None and self.facts.is_activation(consumer[0])

    def _activation_specs(self) -> dict[Edge, Spec]:
        activations = self.activations
        signed = self.scheme.signed_activations
        if signed is None:
            return dict.fromkeys(activations, self.scheme.activations)
        group_of = {edge: group for group in self.groups for edge in group}
        positive = self._non_negative() | set(filter(self._is_clamped, activations))
        return {
            edge: self.scheme.activations if group_of.get(edge, {edge}) <= positive else signed for edge in activations
        }

    def _operand_specs(self) -> dict[Edge, Spec]:
        """Return the specs of second operands of products: signed and symmetric, as the kernels take weights.

        An operand keeps the spec of activations if an edge with its range is also an input of a layer. Pairs of
        computed operands cannot be limited: they have 7 bits unless ``saturation`` is ignored.
        """
        group_of = {edge: group for group in self.groups for edge in group}
        inputs = {pattern.input for pattern in self.patterns}
        has_reduced_range = self.scheme.weights_format.reduce_range or self.facts.limits_pairs
        spec = replace(WEIGHTS, per_channel=False, reduce_range=has_reduced_range)
        operands = (pattern.operand for pattern in self.patterns if pattern.operand is not None)
        related = (group_of.get(edge, frozenset({edge})) for edge in operands)
        return {edge: spec for edges in related if not edges & inputs for edge in edges}

    def _non_negative(self) -> set[Edge]:
        """Return the edges that never have negative values."""
        edges: set[Edge] = set()
        for node in self.facts.nodes:
            is_pass_through = node.op in self.roles.pass_through_ops
            inputs = self.roles.pass_through_inputs(self.graph, node, self.facts.shapes) if is_pass_through else ()
            is_nonnegative = self.facts.is_activation(node) or node.op in self.roles.nonnegative_ops
            if is_nonnegative or (inputs and edges.issuperset(inputs)):
                edges.add(Edge(node.name))
        return edges
