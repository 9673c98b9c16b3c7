"""Nodes that are computed in int8: layers in fused patterns and pass-through nodes; for all others the reason."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.tensorflow.frames import find_loop_nodes
from quantkit.quantization.annotation.float_graph import FloatGraph
from quantkit.quantization.annotation.float_nodes import find_float_nodes
from quantkit.quantization.bodies import find_body_layers, has_bodies
from quantkit.quantization.plan import NOT_FINITE, FusedPattern
from quantkit.quantization.precision.decision import (
    COST,
    ERROR,
    FLOAT,
    INT8,
    KERNEL,
    OP,
    USER,
    Decision,
    as_decisions,
)
from quantkit.quantization.spec import Spec


class NodeAnnotation:
    """Decisions about the nodes of a float graph.

    Attributes:
        facts: the float graph.
        decisions: decision about each float node that has a better reason than its op type.
        weights: number format of the quantized weights constants, by name.
        float_nodes: decision about each node that the caller or the scheme keeps in float.
        refined: decision about each int8 layer or table for which the caller selects another form.
    """

    def __init__(self, facts: FloatGraph, float_nodes: Mapping[str, str | Decision]) -> None:
        self.facts = facts
        self.graph, self.scheme, self.roles, self.nodes = facts.graph, facts.scheme, facts.roles, facts.nodes
        self.loop_nodes = find_loop_nodes(facts.graph)
        loops = dict.fromkeys(self.loop_nodes, "while loops of TensorFlow 1 stay float")
        self.decisions = as_decisions(loops, OP)
        self.weights: dict[str, Spec] = {}
        stated = find_float_nodes(facts.graph, facts.scheme.keep_float)
        decisions = as_decisions({**float_nodes, **dict.fromkeys(stated, "the scheme keeps it in float")}, USER)
        self.refined = {name: decision for name, decision in decisions.items() if decision.is_refined}
        self.float_nodes = {name: decision for name, decision in decisions.items() if name not in self.refined}

    def store_weights(self) -> None:
        """Decide which weights are stored in int8, for `Scheme.weights_only`."""
        for node in self.nodes:
            if node.op in self.roles.weights_ops and self._may_quantize(node):
                slots = self.roles.weights_axes(self.graph, node)
                reasons = [self._objection_to_storing(node.inputs[slot], axes) for slot, axes in slots.items()]
                reason = next(filter(None, reasons), "")
                self._decide(node, reason or "constant float weights are stored in int8", OP, FLOAT if reason else INT8)

    def find_patterns(self) -> tuple[FusedPattern, ...]:
        """Return the fused patterns in topological order; layers without one get their reason."""
        patterns: list[FusedPattern] = []
        for node in self.nodes:
            if node.op in self.roles.layer_ops and self._may_quantize(node):
                reason, source = self._find_objection(node)
                if reason:
                    self._decide(node, reason, source)
                else:
                    patterns.append(self._with_bias(node))
        pattern_of_output = {pattern.output: pattern for pattern in patterns}
        biases = {pattern.bias for pattern in patterns}
        for node in self.nodes:
            if node.op in self.roles.sum_ops and node.name not in biases and self._may_quantize(node):
                self._fuse_residual(node, pattern_of_output)
        fused = map(self._with_activation, pattern_of_output.values())
        return tuple(sorted(fused, key=lambda pattern: self.facts.position[pattern.name]))

    def find_pass_through(self, patterns: tuple[FusedPattern, ...]) -> dict[str, tuple[Edge, ...]]:
        """Return the data inputs of each pass-through node: one whose output has a quantized consumer."""
        inside = {name for pattern in patterns for name in pattern.nodes}
        needed = {edge.node for pattern in patterns for edge in pattern.inputs}
        int8_nodes = self._find_int8_nodes(inside)
        pass_through: dict[str, tuple[Edge, ...]] = {}
        for node in reversed(self.nodes):
            if node.op not in self.roles.pass_through_ops or node.name in inside or not self._may_quantize(node):
                continue
            inputs = self.roles.pass_through_inputs(self.graph, node, self.facts.shapes)
            if not inputs:
                self._decide(node, "the attributes or inputs have no int8 form", OP)
            elif node.name not in needed:
                self._decide(node, "no quantized consumer", COST)
            elif self.facts.is_average(node) and self.scheme.float_global_pools and self.facts.is_global(node):
                self._decide(node, "a global average costs little, and int8 would reduce its precision", ERROR)
            elif self.facts.is_activation(node) and not self._is_quantizable(inputs[0], int8_nodes):
                self._decide(node, "the input is float", COST)
            elif node.op in self.roles.selection_ops and inputs[0].node not in int8_nodes:
                self._decide(node, "the input is float, and may have a wider range than this part", ERROR)
            elif node.op in self.roles.view_ops and self.facts.is_input(inputs[0]):
                pass_through[node.name] = inputs
                needed.add(inputs[0].node)
            elif node.op in self.roles.non_growing_ops and inputs[0].node not in int8_nodes | needed:
                self._decide(node, "the input is float, and the output has no more values to quantize", COST)
            elif node.op in self.roles.elementwise_ops and not int8_nodes.issuperset(edge.node for edge in inputs):
                self._decide(node, "an input is float", COST)
            elif reason := self.facts.missing_kernel(node):
                self._decide(node, reason, KERNEL)
            else:
                pass_through[node.name] = inputs
                needed.update(edge.node for edge in inputs)
        return dict(reversed(pass_through.items()))

    def find_tables(self) -> dict[str, Spec]:
        """Return the number format of each table that the caller stores in int8, with one scale for each row."""
        tables = [self.graph[name].inputs[0].node for name, decision in self.refined.items() if decision.stores_table]
        return dict.fromkeys(tables, Spec(DType.QINT8, symmetric=True, per_channel=True, axes=(0,)))

    def decide_all(
        self, patterns: tuple[FusedPattern, ...], pass_through: Mapping[str, tuple[Edge, ...]]
    ) -> tuple[Decision, ...]:
        """Return the decision about each pattern and each other node that computes, in topological order."""
        inside = {name: pattern for pattern in patterns for name in pattern.nodes}
        for node in self._computing_nodes():
            if pattern := inside.get(node.name):
                if node.name == pattern.layer:
                    ops = " + ".join(self.graph[name].op for name in pattern.nodes)
                    self._decide(node, f"one int8 kernel computes {ops}", KERNEL, INT8)
                    self.decisions |= {node.name: self.refined.get(node.name, self.decisions[node.name])}
            elif node.name in pass_through:
                self._decide(node, f"{node.op} between quantized tensors computes quantized values", OP, INT8)
            elif node.name in self.refined:
                self.decisions[node.name] = self.refined[node.name]
            elif node.name not in self.decisions:
                op_reason = self.roles.float_reasons.get(node.op) or f"{node.op} has no int8 form"
                self._decide(node, self._reason_of_bodies(node) or op_reason, OP)
        names = (node.name for node in self._computing_nodes())
        return tuple(self.decisions[name] for name in names if name not in inside or inside[name].layer == name)

    def _decide(self, node: Node, reason: str, source: str, precision: str = FLOAT) -> None:
        self.decisions[node.name] = Decision(node.name, precision, reason, source)

    def _reason_of_bodies(self, node: Node) -> str:
        """Return the reason of a node with layers in its subgraphs, or an empty string."""
        if not has_bodies(self.graph, node):
            return ""
        return find_body_layers(self.graph, node, self.facts.shapes).reason

    def _may_quantize(self, node: Node) -> bool:
        if node.name in self.graph.input_names or node.name in self.loop_nodes:
            return False
        if not self.roles.is_valid(node):
            self._decide(node, "a required input is missing", OP)
            return False
        if node.name in self.float_nodes:
            self.decisions[node.name] = self.float_nodes[node.name]
            return False
        return True

    def _find_objection(self, node: Node) -> tuple[str, str]:
        """Return the first cause of a layer in float and its source, or empty strings; store the format of its weights.

        Only layers that share the weights, and come first, change the result between plans of a graph.
        """
        weights = node.inputs[WEIGHTS_INDEX].node
        key, objections = (node.name, self.weights.get(weights)), self.facts.objections
        if key not in objections:
            reason, source = next((objection for objection in self._objections(node) if objection[0]), ("", ""))
            objections[key] = (reason, source, self.weights.get(weights))
        reason, source, spec = objections[key]
        if spec is not None:
            self.weights[weights] = spec
        return reason, source

    def _objections(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yield reason and source of each cause of a layer in float, empty reasons too; the first one counts."""
        if node.name in self.facts.shape_only:
            yield "only the shape of its result is used", OP
        if node.name in self.facts.front_end:
            yield "a logarithm before other layers amplifies its errors", ERROR
        yield self.roles.layer_objection(self.graph, node), OP
        edge = node.inputs[WEIGHTS_INDEX]
        weights = self.graph.constant_of(edge)
        if weights is None:
            yield self.roles.product_objection(self.graph, node), OP
            yield self.facts.missing_kernel(node), KERNEL
        else:
            yield self.roles.weights_objection(self.graph, node, weights), OP
            yield self.facts.missing_kernel(node), KERNEL
            axes = self.roles.weights_axes(self.graph, node)[WEIGHTS_INDEX]
            pair_axes = self.roles.pair_axes(self.graph, node) if self.facts.limits_pairs else ()
            yield self._objection_to_weights(edge.node, weights, axes, pair_axes), OP
        yield self._bias_objection(node), OP

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

    def _objection_to_weights(
        self, name: str, weights: Tensor, axes: tuple[int, ...], pair_axes: tuple[int, ...] = ()
    ) -> str:
        """Return why weights cannot be quantized, or an empty string.

        The spec of quantizable weights is noted: all layers that share the weights use it.
        """
        weights_format = self.scheme.weights_format
        spec = replace(weights_format, axes=axes if weights_format.per_channel else (), pair_axes=pair_axes)
        if self.weights.get(name, spec) != spec:
            return "a layer with other channel dimensions shares the weights"
        if not np.isfinite(weights.array).all():
            return f"the weights {name} {NOT_FINITE}"
        self.weights[name] = spec
        return ""

    def _with_bias(self, layer: Node) -> FusedPattern:
        """Return the pattern of a layer, with the bias that follows it."""
        output = Edge(layer.name)
        weights = layer.inputs[WEIGHTS_INDEX]
        if self.graph.constant_of(weights) is None:
            return FusedPattern(layer.name, "", layer.inputs[0], output, operand=weights)
        pattern = FusedPattern(layer.name, weights.node, layer.inputs[0], output)
        consumer = self.facts.sole_consumer(output)
        if consumer and self._is_bias(layer, *consumer) and self._may_quantize(consumer[0]):
            return replace(pattern, bias=consumer[0].name, output=Edge(consumer[0].name))
        return pattern

    def _bias_objection(self, layer: Node) -> str:
        """Return why the bias of a layer prevents an int8 kernel, which would add it, or an empty string."""
        if own := self.roles.bias_constant(self.graph, layer):
            return "" if np.isfinite(self.graph[own].value.array).all() else f"the constants {own} {NOT_FINITE}"
        consumer = self.facts.sole_consumer(Edge(layer.name))
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
            self._decide(node, f"the constants {node.inputs[1 - slot].node} {NOT_FINITE}", OP)
            return False
        if reason := self.facts.missing_kernel(node):
            self._decide(node, reason, KERNEL)
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
            and self.facts.sole_consumer(add.inputs[slot])
            and not pattern_of_output[add.inputs[slot]].add
        ]
        first, second = map(self.facts.shapes.get, add.inputs)
        if any(self.graph.constant_of(edge) for edge in add.inputs):
            self._decide(add, "the added constant is not a layer's bias", KERNEL)
        elif not slots:
            self._decide(add, "neither operand is a single-consumer layer output", KERNEL)
        elif reason := self.roles.sum_objection((first, second)) or self.facts.missing_kernel(add):
            self._decide(add, reason, KERNEL)
        else:
            slot = max(slots, key=lambda slot: self.facts.position[add.inputs[slot].node])
            inner, summand = add.inputs[slot], add.inputs[1 - slot]
            pattern = pattern_of_output.pop(inner)
            output = Edge(add.name)
            pattern_of_output[output] = replace(pattern, add=add.name, inner=inner, summand=summand, output=output)

    def _with_activation(self, pattern: FusedPattern) -> FusedPattern:
        consumer = self.facts.sole_consumer(pattern.output)
        if consumer and self.facts.is_activation(consumer[0]) and self._may_quantize(consumer[0]):
            return replace(pattern, activation=consumer[0].name, output=Edge(consumer[0].name))
        return pattern

    def _find_int8_nodes(self, inside: set[str]) -> set[str]:
        """Return nodes of patterns, and pass-through nodes with a path of such nodes from each input to a pattern."""
        names = set(inside)
        for node in self.nodes:
            is_pass_through = node.op in self.roles.pass_through_ops and node.name not in self.float_nodes
            if is_pass_through and self.roles.is_valid(node):
                inputs = self.roles.pass_through_inputs(self.graph, node, self.facts.shapes)
                if inputs and names.issuperset(edge.node for edge in inputs):
                    names.add(node.name)
        return names

    def _is_quantizable(self, edge: Edge, int8_nodes: set[str]) -> bool:
        """Return True if an edge is quantized even without the activation that consumes it.

        Otherwise the activation is computed in float, and its output is quantized: half of the
        quantized values would stand for negative numbers.
        """
        return edge.node in int8_nodes or self.graph[edge.node].op in (
            self.roles.pass_through_ops - self.roles.elementwise_ops
        )

    def _computing_nodes(self) -> Iterator[Node]:
        for node in self.nodes:
            if node.op not in self.roles.source_ops and node.name not in self.graph.input_names:
                yield node
