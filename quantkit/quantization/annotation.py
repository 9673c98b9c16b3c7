"""Decide which tensors of a graph are quantized, before any data is seen.

`quantkit.quantization.plan` defines fused patterns and pass-through nodes.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from quantkit.arguments import public
from quantkit.errors import GraphError, UsageError, did_you_mean
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.frames import find_loop_nodes
from quantkit.quantization.plan import (
    NOT_FINITE,
    FusedPattern,
    Plan,
)
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import WEIGHTS, Spec
from quantkit.quantization.targets import find_target


@public
def annotate(graph: Graph, scheme: Scheme | None = None) -> Plan:
    """Decide which tensors of a graph are quantized.

    Args:
        graph: float graph of either dialect with inputs and outputs; batch norms folded.
        scheme: None for the default scheme of the target ``onnx``.

    Raises:
        GraphError: the target does not quantize graphs of this dialect, or the graph has no outputs.
        UsageError: ``keep_float`` names a node, layer or op type that is not in the graph.
    """
    target = find_target((scheme or Scheme()).target)
    if graph.dialect not in target.graph_dialects:
        raise GraphError(
            f"the target {target.name} does not quantize graphs of {graph.dialect} ops",
            hint="convert the graph first, or use --target onnx",
        )
    if not graph.outputs:
        raise GraphError("the graph has no outputs", hint="name them: --outputs softmax")
    annotation = _Annotation(graph, scheme or Scheme())
    return annotation.weights_only_plan() if annotation.scheme.weights_only else annotation.plan()


class _Annotation:
    """State of one call of `annotate`."""

    def __init__(self, graph: Graph, scheme: Scheme) -> None:
        self.graph = graph
        self.scheme = scheme
        self.target = find_target(scheme.target)
        self.roles = find_roles(graph)
        self.shapes = infer_shapes(graph)
        needed = graph.reachable()
        self.nodes = [graph[name] for name in graph.order if name in needed]
        self.position = {node.name: number for number, node in enumerate(self.nodes)}
        self.loop_nodes = find_loop_nodes(graph)
        self.reasons = dict.fromkeys(self.loop_nodes, "while loops of TensorFlow 1 stay float")
        self.weights: dict[str, Spec] = {}
        self.float_nodes = {node for name in scheme.keep_float for node in self._find_nodes(name)}

    def plan(self) -> Plan:
        patterns = self._find_patterns()
        inside = {name for pattern in patterns for name in pattern.nodes}
        pass_through = self._find_pass_through(patterns, inside)
        activations = self._quantized_edges(patterns, pass_through)
        groups = self._range_groups(pass_through, activations)
        specs = {**self._specs(activations, groups), **self._operand_specs(patterns, groups)}
        return Plan(
            self.scheme,
            specs,
            {pattern.weights: self.weights[pattern.weights] for pattern in patterns if pattern.weights},
            groups,
            patterns,
            tuple(pass_through),
            self._float_fallbacks(inside, pass_through),
            self._observed_edges(activations, groups, pass_through),
        )

    def weights_only_plan(self) -> Plan:
        """Return a plan of `Scheme.weights_only`: weights are quantized, activations are not."""
        for node in self.nodes:
            if node.op in self.roles.weights_ops and self._may_quantize(node):
                slots = self.roles.weights_axes(self.graph, node)
                if max(slots, default=0) >= len(node.inputs):
                    self.reasons[node.name] = "an input is missing"
                    continue
                reasons = [self._objection_to_storing(node.inputs[slot], axes) for slot, axes in slots.items()]
                self.reasons[node.name] = next(filter(None, reasons), "")
        fallbacks = {name: reason for name, reason in self.reasons.items() if reason}
        return Plan(self.scheme, {}, dict(self.weights), (), (), (), fallbacks, ())

    def _objection_to_storing(self, edge: Edge, axes: tuple[int, ...]) -> str:
        """Return why weights cannot be stored in int8, or an empty string."""
        weights = self.graph.constant_of(edge)
        if weights is None or edge.node in self.graph.endpoint_names:
            return "the weights are not constant"
        if weights.dtype is not DType.FLOAT:
            return "the weights are not float"
        if not weights.shape:
            return "the weights are a single number"
        return self._objection_to_weights(edge.node, weights, axes)

    def _objection_to_weights(self, name: str, weights: Tensor, axes: tuple[int, ...]) -> str:
        """Return why weights cannot be quantized, or an empty string.

        The spec of quantizable weights is noted: all layers that share the weights use it.
        """
        spec = replace(self.scheme.weights, axes=axes) if self.scheme.weights.per_channel else self.scheme.weights
        if self.weights.get(name, spec) != spec:
            return "a layer with other channel dimensions shares the weights"
        if not np.isfinite(weights.array).all():
            return f"the weights {name} {NOT_FINITE}"
        self.weights[name] = spec
        return ""

    # Fused patterns

    def _find_patterns(self) -> tuple[FusedPattern, ...]:
        patterns: list[FusedPattern] = []
        front_end = self._find_front_end()
        for node in self.nodes:
            if node.op in self.roles.layer_ops and self._may_quantize(node):
                amplified = "a logarithm before other layers amplifies its errors" if node.name in front_end else ""
                reason = amplified or self._objection(node) or self._bias_objection(node)
                if reason:
                    self.reasons[node.name] = reason
                else:
                    patterns.append(self._with_bias(node))
        pattern_of_output = {pattern.output: pattern for pattern in patterns}
        biases = {pattern.bias for pattern in patterns}
        for node in self.nodes:
            if node.op in self.roles.sum_ops and node.name not in biases and self._may_quantize(node):
                self._fuse_residual(node, pattern_of_output)
        fused = map(self._with_activation, pattern_of_output.values())
        return tuple(sorted(fused, key=lambda pattern: self.position[pattern.name]))

    def _find_nodes(self, name: str) -> Collection[str]:
        """Return the nodes of a name in ``keep_float``: a node, an op type, or a layer, whose name is their scope.

        Raises:
            UsageError: the graph has no such node, op type or layer; the hint suggests similar names.
        """
        nodes = self.graph.nodes
        # The output of a Keras model is an Identity with the name of its last layer.
        if name in nodes and nodes[name].op != "Identity":
            return (name,)
        ops = {*self.graph.op_counts, *self.roles.layer_ops, *self.roles.pass_through_ops}
        scope = self._scope_of_layer.get(name, name)
        names = [node.name for node in nodes.values() if node.op == name or f"/{scope}/" in f"/{node.name}"]
        if name in nodes:
            return [name, *names]
        if names or name in ops:
            return names
        scopes = {*(scope for node in nodes for scope in node.split("/")[:-1]), *self._scope_of_layer}
        raise UsageError(
            f"keep_float names {name!r}, which is not a node, layer or op type of the graph",
            hint=did_you_mean(name, {*nodes, *scopes, *ops}) or "quantkit summarize lists the op types",
        )

    def _find_front_end(self) -> set[str]:
        """Return the nodes before an amplifying op that has layers after it, for example a spectrogram."""
        before_layers: set[str] = set()
        amplified: set[str] = set()
        for node in reversed(self.nodes):
            consumers = {use.node.name for use in self.graph.node_uses.get(node.name, ())}
            if any(name in before_layers or self.graph[name].op in self.roles.layer_ops for name in consumers):
                before_layers.add(node.name)
            is_amplifying = any(
                self.graph[name].op in self.roles.amplifying_ops and name in before_layers for name in consumers
            )
            if is_amplifying or not amplified.isdisjoint(consumers):
                amplified.add(node.name)
        return amplified

    @cached_property
    def _scope_of_layer(self) -> Mapping[str, str]:
        """Scope of each layer of Keras, which appends a number to the names of all layers; else empty."""
        layers = [node.name.split("/") for node in self.nodes if node.op in self.roles.layer_ops]
        scopes = list(dict.fromkeys(path[-2] for path in layers if len(path) > 1))
        names = [re.fullmatch(r"(.+)_\d+", scope) for scope in scopes]
        counts = Counter(match[1] for match in names if match)
        if None in names or max(counts.values(), default=0) > 1:
            return {}
        return dict(zip(counts, scopes, strict=True))

    def _may_quantize(self, node: Node) -> bool:
        if node.name in self.graph.input_names or node.name in self.loop_nodes:
            return False
        if not self.roles.is_valid(node):
            self.reasons[node.name] = "a required input is missing"
            return False
        if node.name in self.float_nodes:
            self.reasons[node.name] = "the scheme keeps it in float"
            return False
        return True

    def _objection(self, node: Node) -> str:
        """Return why a layer cannot be quantized, or an empty string."""
        if reason := self.roles.layer_objection(self.graph, node):
            return reason
        edge = node.inputs[WEIGHTS_INDEX]
        weights = self.graph.constant_of(edge)
        if weights is None:
            return self.roles.product_objection(self.graph, node) or self._missing_kernel(node)
        return (
            self.roles.weights_objection(self.graph, node, weights)
            or self._missing_kernel(node)
            or self._objection_to_weights(edge.node, weights, self.roles.weights_axes(self.graph, node)[WEIGHTS_INDEX])
        )

    def _missing_kernel(self, node: Node) -> str:
        return self.target.missing_kernel(self.graph, node, self.shapes)

    def _sole_consumer(self, edge: Edge) -> tuple[Node, int] | None:
        """Return the only consumer of an edge and its input index; None for several, or a graph output."""
        uses = self.graph.uses.get(edge, ())
        if len(uses) != 1 or edge.node in self.graph.endpoint_names or uses[0].node.name not in self.position:
            return None
        return uses[0].node, uses[0].slot

    def _with_bias(self, layer: Node) -> FusedPattern:
        """Return the pattern of a layer, with the bias that follows it."""
        output = Edge(layer.name)
        weights = layer.inputs[WEIGHTS_INDEX]
        if self.graph.constant_of(weights) is None:
            return FusedPattern(layer.name, "", layer.inputs[0], output, operand=weights)
        pattern = FusedPattern(layer.name, weights.node, layer.inputs[0], output)
        consumer = self._sole_consumer(output)
        if consumer and self._is_bias(layer, *consumer) and self._may_quantize(consumer[0]):
            return replace(pattern, bias=consumer[0].name, output=Edge(consumer[0].name))
        return pattern

    def _bias_objection(self, layer: Node) -> str:
        """Return why the bias after a layer prevents an int8 kernel, which would add it, or an empty string."""
        consumer = self._sole_consumer(Edge(layer.name))
        if consumer is None or consumer[0].op not in self.roles.bias_ops or not self.roles.is_valid(consumer[0]):
            return ""
        edge = consumer[0].inputs[1 - consumer[1]]
        value = self.graph.constant_of(edge)
        return "" if value is None or np.isfinite(value.array).all() else f"the constants {edge.node} {NOT_FINITE}"

    def _is_bias(self, layer: Node, node: Node, slot: int) -> bool:
        """Return True if a node adds one constant per channel of a layer, its input ``slot``."""
        if node.op not in self.roles.bias_ops or not self.roles.is_valid(node):
            return False
        if node.op not in self.roles.sum_ops and slot != 0:
            return False
        value = self.graph.constant_of(node.inputs[1 - slot])
        if value is None:
            return False
        if not np.isfinite(value.array).all():
            self.reasons[node.name] = f"the constants {node.inputs[1 - slot].node} {NOT_FINITE}"
            return False
        if reason := self._missing_kernel(node):
            self.reasons[node.name] = reason
            return False
        return self.roles.is_bias(self.graph, layer, value)

    def _fuse_residual(self, add: Node, pattern_of_output: dict[Edge, FusedPattern]) -> None:
        """Fuse an Add with the pattern of its last computed operand that has no other consumer."""
        if len(add.inputs) != 2:
            return
        slots = [
            slot
            for slot in (0, 1)
            if add.inputs[slot] in pattern_of_output
            and self.graph[pattern_of_output[add.inputs[slot]].layer].op in self.roles.sum_layer_ops
            and self._sole_consumer(add.inputs[slot])
            and not pattern_of_output[add.inputs[slot]].add
        ]
        first, second = map(self.shapes.get, add.inputs)
        if any(self.graph.constant_of(edge) for edge in add.inputs):
            self.reasons[add.name] = "the added constant is not a layer's bias"
        elif not slots:
            self.reasons[add.name] = "neither operand is a single-consumer layer output"
        elif reason := self.roles.sum_objection((first, second)) or self._missing_kernel(add):
            self.reasons[add.name] = reason
        else:
            slot = max(slots, key=lambda slot: self.position[add.inputs[slot].node])
            inner, summand = add.inputs[slot], add.inputs[1 - slot]
            pattern = pattern_of_output.pop(inner)
            output = Edge(add.name)
            pattern_of_output[output] = replace(pattern, add=add.name, inner=inner, summand=summand, output=output)

    def _with_activation(self, pattern: FusedPattern) -> FusedPattern:
        consumer = self._sole_consumer(pattern.output)
        if consumer and self._is_activation(consumer[0]) and self._may_quantize(consumer[0]):
            return replace(pattern, activation=consumer[0].name, output=Edge(consumer[0].name))
        return pattern

    # Pass-through nodes

    def _find_pass_through(self, patterns: tuple[FusedPattern, ...], inside: set[str]) -> dict[str, tuple[Edge, ...]]:
        """Return the data inputs of each pass-through node: one whose output has a quantized consumer."""
        needed = {edge.node for pattern in patterns for edge in pattern.inputs}
        int8_nodes = self._find_int8_nodes(inside)
        pass_through: dict[str, tuple[Edge, ...]] = {}
        for node in reversed(self.nodes):
            if node.op not in self.roles.pass_through_ops or node.name in inside or not self._may_quantize(node):
                continue
            inputs = self.roles.pass_through_inputs(self.graph, node, self.shapes)
            if not inputs:
                self.reasons[node.name] = "the attributes or inputs have no int8 form"
            elif node.name not in needed:
                self.reasons[node.name] = "no quantized consumer"
            elif self._is_average(node) and self.scheme.float_global_pools and self._is_global(node):
                self.reasons[node.name] = "a global average costs little, and int8 would reduce its precision"
            elif self._is_activation(node) and not self._is_quantizable(inputs[0], inside):
                self.reasons[node.name] = "the input is float"
            elif node.op in self.roles.selection_ops and inputs[0].node not in int8_nodes:
                self.reasons[node.name] = "the input is float, and may have a wider range than this part"
            elif node.op in self.roles.elementwise_ops and not int8_nodes.issuperset(edge.node for edge in inputs):
                self.reasons[node.name] = "an input is float"
            elif reason := self._missing_kernel(node):
                self.reasons[node.name] = reason
            else:
                pass_through[node.name] = inputs
                needed.update(edge.node for edge in inputs)
        return dict(reversed(pass_through.items()))

    def _find_int8_nodes(self, inside: set[str]) -> set[str]:
        """Return nodes of patterns, and pass-through nodes with a path of such nodes from each input to a pattern."""
        names = set(inside)
        for node in self.nodes:
            is_pass_through = node.op in self.roles.pass_through_ops and node.name not in self.float_nodes
            if is_pass_through and self.roles.is_valid(node):
                inputs = self.roles.pass_through_inputs(self.graph, node, self.shapes)
                if inputs and names.issuperset(edge.node for edge in inputs):
                    names.add(node.name)
        return names

    def _is_quantizable(self, edge: Edge, inside: set[str]) -> bool:
        """Return True if an edge is quantized even without the activation that consumes it.

        Otherwise the activation is computed in float, and its output is quantized: half of the
        quantized values would stand for negative numbers.
        """
        return edge.node in inside or self.graph[edge.node].op in self.roles.pass_through_ops

    def _is_activation(self, node: Node) -> bool:
        return node.op in self.roles.activation_ops and self.roles.is_activation(self.graph, node)

    def _is_average(self, node: Node) -> bool:
        return node.op in self.roles.average_ops

    def _is_global(self, node: Node) -> bool:
        return self.roles.is_global(node, self.shapes)

    def _is_averaged(self, edge: Edge) -> bool:
        """Return True if all consumers are global averages, of the edge or of its concatenation."""
        consumers = [use.node for use in self.graph.node_uses.get(edge.node, ())]
        return (
            bool(consumers)
            and edge.node not in self.graph.endpoint_names
            and all(
                self._is_averaged(Edge(node.name))
                if node.op in self.roles.concat_ops
                else self._is_average(node) and self._is_global(node)
                for node in consumers
            )
        )

    # Edges

    def _quantized_edges(
        self, patterns: tuple[FusedPattern, ...], pass_through: Mapping[str, tuple[Edge, ...]]
    ) -> list[Edge]:
        edges = {edge for pattern in patterns for edge in pattern.inputs}
        edges |= {edge for inputs in pass_through.values() for edge in inputs}
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
        return sorted(edges, key=lambda edge: (self.position[edge.node], edge.port))

    def _has_quantized_output(self, pattern: FusedPattern) -> bool:
        return self.scheme.quantize_outputs or self.graph[pattern.layer].op in self.roles.quantized_output_ops

    def _range_groups(
        self, pass_through: Mapping[str, tuple[Edge, ...]], activations: Iterable[Edge]
    ) -> tuple[frozenset[Edge], ...]:
        """Return the sets of edges that share a range, by union-find."""
        leader: dict[Edge, Edge] = {edge: edge for edge in activations}
        outputs: dict[str, list[Edge]] = {}
        for edge in leader:
            outputs.setdefault(edge.node, []).append(edge)

        def find(edge: Edge) -> Edge:
            while leader[edge] != edge:
                leader[edge] = leader[leader[edge]]  # path halving: long chains are walked once
                edge = leader[edge]
            return edge

        for name, inputs in pass_through.items():
            if self._shares_range(self.graph[name]):
                first, *others = outputs[name]
                for edge in (*inputs, *others):
                    leader[find(edge)] = find(first)
        groups: dict[Edge, list[Edge]] = {}
        for edge in leader:
            groups.setdefault(find(edge), []).append(edge)
        return tuple(frozenset(group) for group in groups.values() if len(group) > 1)

    def _shares_range(self, node: Node) -> bool:
        if node.op in self.roles.elementwise_ops:
            return False
        if node.op in self.roles.concat_ops:
            return self.scheme.share_concat_ranges
        if self._is_average(node):
            return self.scheme.share_pool_ranges and not self._is_clamped(Edge(node.name))
        return not self._is_activation(node) or self._is_clamped(node.inputs[0])

    def _is_clamped(self, edge: Edge) -> bool:
        """Return True if an activation is the only consumer: the edge takes the activation's range."""
        consumer = self._sole_consumer(edge)
        return consumer is not None and self._is_activation(consumer[0])

    def _specs(self, activations: list[Edge], groups: tuple[frozenset[Edge], ...]) -> dict[Edge, Spec]:
        signed = self.scheme.signed_activations
        if signed is None:
            return dict.fromkeys(activations, self.scheme.activations)
        group_of = {edge: group for group in groups for edge in group}
        positive = self._non_negative() | set(filter(self._is_clamped, activations))
        return {
            edge: self.scheme.activations if group_of.get(edge, {edge}) <= positive else signed for edge in activations
        }

    def _operand_specs(
        self, patterns: tuple[FusedPattern, ...], groups: tuple[frozenset[Edge], ...]
    ) -> dict[Edge, Spec]:
        """Return the specs of second operands of products: signed and symmetric, as the kernels take weights.

        An operand keeps the spec of activations if an edge with its range is also an input of a layer.
        """
        group_of = {edge: group for group in groups for edge in group}
        inputs = {pattern.input for pattern in patterns}
        spec = replace(WEIGHTS, per_channel=False, reduce_range=self.scheme.weights.reduce_range)
        operands = (pattern.operand for pattern in patterns if pattern.operand is not None)
        related = (group_of.get(edge, frozenset({edge})) for edge in operands)
        return {edge: spec for edges in related if not edges & inputs for edge in edges}

    def _non_negative(self) -> set[Edge]:
        """Return the edges that never have negative values."""
        edges: set[Edge] = set()
        for node in self.nodes:
            is_pass_through = node.op in self.roles.pass_through_ops
            inputs = self.roles.pass_through_inputs(self.graph, node, self.shapes) if is_pass_through else ()
            is_nonnegative = self._is_activation(node) or node.op in self.roles.nonnegative_ops
            if is_nonnegative or (inputs and edges.issuperset(inputs)):
                edges.add(Edge(node.name))
        return edges

    def _observed_edges(
        self,
        activations: list[Edge],
        groups: tuple[frozenset[Edge], ...],
        pass_through: Mapping[str, tuple[Edge, ...]],
    ) -> tuple[Edge, ...]:
        """Return the edges to observe: all but copies of observed edges and clamped edges."""
        group_of = {edge: group for group in groups for edge in group}
        implied = set()
        for name, inputs in pass_through.items():
            if self._is_activation(self.graph[name]):
                implied |= {inputs[0]} if self._is_clamped(inputs[0]) else set()
            elif group_of.get(Edge(name), frozenset()).issuperset(inputs):
                implied.add(Edge(name))
        return tuple(edge for edge in activations if edge not in implied)

    # Constants and float fallbacks

    def _float_fallbacks(self, inside: set[str], pass_through: Mapping[str, tuple[Edge, ...]]) -> dict[str, str]:
        return {
            node.name: self.reasons.get(node.name)
            or self.roles.float_reasons.get(node.op)
            or f"{node.op} has no int8 form"
            for node in self._computing_nodes()
            if node.name not in inside and node.name not in pass_through
        }

    def _computing_nodes(self) -> Iterator[Node]:
        for node in self.nodes:
            if node.op not in self.roles.source_ops and node.name not in self.graph.input_names:
                yield node
