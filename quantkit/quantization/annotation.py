"""Decide which tensors of a graph become 8 bits, before any data is seen.

`quantkit.quantization.plan` defines fused patterns and pass-through nodes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quantkit.errors import GraphError, UsageError, did_you_mean
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.layers import LAYER_OPS, WEIGHTS_SLOT, broadcast_channels, find_layer
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.plan import (
    ACTIVATIONS,
    ADDS,
    AVERAGES,
    CONCATS,
    NOT_FINITE,
    PASS_THROUGH_OPS,
    PATTERN_LAYER_OPS,
    FusedPattern,
    Plan,
)
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets import find_target

_SOURCES = frozenset({"Const", "Placeholder", "NoOp"})
_REASONS = {
    "Softmax": "its small probabilities would all become one code",
    "Conv2DBackpropInput": "engines have no 8-bit form of it that is faster",
    "BatchNormWithGlobalNormalization": "it is not folded into its layer: run fold_old_batch_norms first",
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        "it is not folded into its layer: run fold_batch_norms first",
    ),
    "BiasAdd": "the layer it belongs to is float",
    "CheckNumerics": "it only watches: remove_nodes(op=CheckNumerics) takes it out",
}


def annotate(graph: Graph, scheme: Scheme | None = None) -> Plan:
    """Decide which tensors of a graph become 8 bits.

    Args:
        graph: a TensorFlow graph in float with inputs and outputs; batch norms folded.
        scheme: what is wanted; None: what suits the target ``onnx``.

    Raises:
        GraphError: the graph is not TensorFlow's, or has no outputs.
        UsageError: ``keep_float`` names what is not there.
    """
    if graph.dialect != "tensorflow":
        raise GraphError(
            f"8 bits are planned on TensorFlow graphs, and this is one of {graph.dialect} ops",
            hint="give the graph that the file was made from",
        )
    if not graph.outputs:
        raise GraphError("the graph has no outputs, so nothing in it is needed", hint="name them: --outputs softmax")
    annotation = _Annotation(graph, scheme or Scheme())
    return annotation.weights_alone() if annotation.scheme.weights_only else annotation.plan()


class _Annotation:
    """The state of one call of `annotate`."""

    def __init__(self, graph: Graph, scheme: Scheme) -> None:
        self.graph = graph
        self.scheme = scheme
        self.target = find_target(scheme.target)
        self.shapes = infer_shapes(graph)
        needed = graph.reachable()
        self.nodes = [graph[name] for name in graph.order if name in needed]
        self.place = {node.name: number for number, node in enumerate(self.nodes)}
        self.reasons: dict[str, str] = {}
        self.weights: dict[str, Spec] = {}
        present = {*graph.nodes, *graph.op_counts, *PATTERN_LAYER_OPS, *PASS_THROUGH_OPS}
        for word in scheme.keep_float:
            if word not in present:
                raise UsageError(
                    f"keep_float names {word!r}, which is neither a node nor an op of the graph",
                    hint=did_you_mean(word, present) or "quantkit summarize lists the ops",
                )

    def plan(self) -> Plan:
        patterns = self._patterns()
        inside = {name for pattern in patterns for name in pattern.nodes}
        pass_through = self._pass_through(patterns, inside)
        activations = self._quantized_edges(patterns, pass_through)
        groups = self._groups(pass_through, activations)
        specs = self._specs(activations, groups)
        return Plan(
            self.scheme,
            specs,
            {pattern.weights: self.weights[pattern.weights] for pattern in patterns},
            groups,
            patterns,
            tuple(pass_through),
            self._kept(inside, pass_through),
            self._observed(activations, groups, pass_through),
        )

    def weights_alone(self) -> Plan:
        """A plan of `Scheme.weights_only`: no edge has codes, but constants of layers have."""
        for node in self.nodes:
            if node.op in LAYER_OPS and self._may_quantize(node):
                self.reasons[node.name] = self._objection_to_storing(node)
        kept = {name: reason for name, reason in self.reasons.items() if reason}
        return Plan(self.scheme, {}, dict(self.weights), (), (), (), kept, ())

    def _objection_to_storing(self, layer: Node) -> str:
        """Why a layer's weights can not be stored as codes; empty: they can."""
        weights = self.graph.constant_of(layer.inputs[WEIGHTS_SLOT])
        if weights is None or layer.inputs[WEIGHTS_SLOT].node in self.graph.endpoint_names:
            return "its weights are not constant"
        if weights.dtype is not DType.FLOAT:
            return "its weights are not float"
        return self._objection_to_weights(layer, weights)

    def _objection_to_weights(self, layer: Node, weights: Tensor) -> str:
        """Why no codes serve a layer's weights; empty: they take a form, which all that share them then have."""
        name, spec = layer.inputs[WEIGHTS_SLOT].node, self._weights_spec(layer)
        if self.weights.get(name, spec) != spec:
            return "it shares its weights with a layer that numbers their channels otherwise"
        if not np.isfinite(weights.array).all():
            return f"its weights {name} {NOT_FINITE}"
        self.weights[name] = spec
        return ""

    # Patterns

    def _patterns(self) -> tuple[FusedPattern, ...]:
        patterns: list[FusedPattern] = []
        for node in self.nodes:
            if node.op in PATTERN_LAYER_OPS and self._may_quantize(node):
                reason = self._objection(node)
                if reason:
                    self.reasons[node.name] = reason
                else:
                    patterns.append(self._with_bias(node))
        tails = {pattern.output: pattern for pattern in patterns}
        biases = {pattern.bias for pattern in patterns}
        for node in self.nodes:
            if node.op in ADDS and node.name not in biases and self._may_quantize(node):
                self._take_residual(node, tails)
        return tuple(sorted(map(self._activated, tails.values()), key=lambda pattern: self.place[pattern.name]))

    def _may_quantize(self, node: Node) -> bool:
        if node.name in self.graph.input_names:
            return False
        if node.name in self.scheme.keep_float or node.op in self.scheme.keep_float:
            self.reasons[node.name] = "the scheme keeps it in float"
            return False
        return True

    def _objection(self, node: Node) -> str:
        """Why a layer can not be 8 bits; empty: it can."""
        if node.attrs.get("T", DType.FLOAT) is not DType.FLOAT:
            return "it does not compute in float"
        if find_layer(node) is None or node.attrs.get("data_format", b"NHWC") != b"NHWC":
            return f"its data format {_word(node.attrs.get('data_format'))} is not NHWC"
        weights = self.graph.constant_of(node.inputs[WEIGHTS_SLOT])
        if weights is None:
            return "its weights are computed, not constant"
        if node.attrs.get("transpose_a"):
            return "it transposes what it reads"
        return self._missing_kernel(node) or self._objection_to_weights(node, weights)

    def _missing_kernel(self, node: Node) -> str:
        return self.target.missing_kernel(self.graph, node, self.shapes)

    def _sole_reader(self, edge: Edge) -> tuple[Node, int] | None:
        """The only node that reads an edge, and in which slot."""
        uses = self.graph.uses.get(edge, ())
        if len(uses) != 1 or edge.node in self.graph.endpoint_names or uses[0].node.name not in self.place:
            return None
        return uses[0].node, uses[0].slot

    def _with_bias(self, layer: Node) -> FusedPattern:
        output = Edge(layer.name)
        weights = layer.inputs[WEIGHTS_SLOT].node
        pattern = FusedPattern(layer.name, weights, layer.inputs[0], output)
        found = self._sole_reader(output)
        if found and self._is_bias(layer, *found) and self._may_quantize(found[0]):
            return replace(pattern, bias=found[0].name, output=Edge(found[0].name))
        return pattern

    def _is_bias(self, layer: Node, node: Node, slot: int) -> bool:
        if node.op not in ADDS | {"BiasAdd"} or (node.op == "BiasAdd" and slot != 0):
            return False
        value = self.graph.constant_of(node.inputs[1 - slot])
        facts = find_layer(layer)
        weights = self.graph.constant_of(layer.inputs[WEIGHTS_SLOT])
        if value is None or facts is None or weights is None:
            return False
        if not np.isfinite(value.array).all():
            self.reasons[node.name] = f"its constants {node.inputs[1 - slot].node} {NOT_FINITE}"
            return False
        if reason := self._missing_kernel(node):
            self.reasons[node.name] = reason
            return False
        channels = facts.num_channels(weights.shape)
        return broadcast_channels(value, rank=facts.rank, axis=facts.axis, num_channels=channels) is not None

    def _take_residual(self, add: Node, tails: dict[Edge, FusedPattern]) -> None:
        """Let the operand that is computed last, if it is a pattern nobody else reads, add the other one."""
        if len(add.inputs) != 2:
            return
        slots = [slot for slot in (0, 1) if add.inputs[slot] in tails and self._sole_reader(add.inputs[slot])]
        slots = [slot for slot in slots if not tails[add.inputs[slot]].add]
        shapes = [self.shapes.get(edge) for edge in add.inputs]
        if any(self.graph.constant_of(edge) for edge in add.inputs):
            self.reasons[add.name] = "it adds a constant that is no bias of a layer"
        elif not slots:
            self.reasons[add.name] = "neither of what it adds is a layer's own result that only it reads"
        elif None in shapes or shapes[0] != shapes[1]:
            self.reasons[add.name] = "its operands are not known to have one shape"
        elif reason := self._missing_kernel(add):
            self.reasons[add.name] = reason
        else:
            slot = max(slots, key=lambda one: self.place[add.inputs[one].node])
            inner, summand = add.inputs[slot], add.inputs[1 - slot]
            pattern = tails.pop(inner)
            output = Edge(add.name)
            tails[output] = replace(pattern, add=add.name, inner=inner, summand=summand, output=output)

    def _activated(self, pattern: FusedPattern) -> FusedPattern:
        found = self._sole_reader(pattern.output)
        if found and found[0].op in ACTIVATIONS and self._may_quantize(found[0]):
            return replace(pattern, activation=found[0].name, output=Edge(found[0].name))
        return pattern

    # Pass-through nodes

    def _pass_through(self, patterns: tuple[FusedPattern, ...], inside: set[str]) -> dict[str, tuple[Edge, ...]]:
        """The data edges that each pass-through node reads: those whose results somebody wants as codes."""
        wanted = {edge for pattern in patterns for edge in pattern.reads}
        found: dict[str, tuple[Edge, ...]] = {}
        for node in reversed(self.nodes):
            if node.op not in PASS_THROUGH_OPS or node.name in inside or not self._may_quantize(node):
                continue
            reads = self._pass_through_inputs(node)
            if not reads:
                self.reasons[node.name] = "it computes in a way that codes can not follow"
            elif Edge(node.name) not in wanted:
                self.reasons[node.name] = "nothing that reads it computes in 8 bits"
            elif node.op in AVERAGES and self.scheme.float_global_pools and self._is_global(node):
                self.reasons[node.name] = "averaging all positions is little work, and codes cut off what it gains"
            elif node.op in ACTIVATIONS and not self._may_be_coded(reads[0], inside):
                self.reasons[node.name] = "what it reads is float"
            elif reason := self._missing_kernel(node):
                self.reasons[node.name] = reason
            else:
                found[node.name] = reads
                wanted.update(reads)
        return dict(reversed(found.items()))

    def _may_be_coded(self, edge: Edge, inside: set[str]) -> bool:
        """Whether an edge comes as codes anyway; else an activation works on floats, and half the codes are saved."""
        return edge.node in inside or self.graph[edge.node].op in PASS_THROUGH_OPS

    def _pass_through_inputs(self, node: Node) -> tuple[Edge, ...]:
        """The data inputs of a pass-through node; empty: the node cannot pass quantized values through."""
        if node.attrs.get("T", DType.FLOAT) is not DType.FLOAT:
            return ()
        if node.attrs.get("data_format", b"NHWC") != b"NHWC":
            return ()
        if node.op in CONCATS:
            reads = node.inputs[1:] if node.op == "Concat" else node.inputs[:-1]
            return () if any(self.graph.constant_of(edge) for edge in reads) else reads
        if node.op == "Mean" and not self._is_spatial_mean(node):
            return ()
        return node.inputs[:1]

    def _is_global(self, node: Node) -> bool:
        dims = self.shapes[Edge(node.name)].dims if Edge(node.name) in self.shapes else None
        return node.op == "Mean" or (dims is not None and dims[1:3] == (1, 1))

    def _is_averaged(self, edge: Edge) -> bool:
        """Whether nothing but averages over all positions reads an edge, by itself or joined with others."""
        readers = [use.node for use in self.graph.node_uses.get(edge.node, ())]
        return (
            bool(readers)
            and edge.node not in self.graph.endpoint_names
            and all(
                self._is_averaged(Edge(node.name))
                if node.op in CONCATS
                else node.op in AVERAGES and self._is_global(node)
                for node in readers
            )
        )

    def _is_spatial_mean(self, node: Node) -> bool:
        axes = self.graph.constant_of(node.inputs[1])
        shape = self.shapes.get(node.inputs[0])
        return (
            axes is not None
            and shape is not None
            and shape.rank == 4
            and sorted(int(axis) % 4 for axis in axes.array.reshape(-1)) == [1, 2]
        )

    # Edges

    def _quantized_edges(
        self, patterns: tuple[FusedPattern, ...], pass_through: Mapping[str, tuple[Edge, ...]]
    ) -> list[Edge]:
        edges = {edge for pattern in patterns for edge in pattern.reads}
        edges |= {edge for reads in pass_through.values() for edge in reads}
        # An engine that does not fuse the add quantizes what it reads.
        edges |= {pattern.inner for pattern in patterns if pattern.inner is not None}
        if self.scheme.quantize_outputs:
            edges |= {pattern.output for pattern in patterns}
        if self.scheme.float_global_pools:
            # Codes that nobody computes with: the kernels that write them are faster than those that write floats.
            edges |= {
                pattern.output for pattern in patterns if pattern.activation and self._is_averaged(pattern.output)
            }
        if self.scheme.split_patterns:
            edges |= {Edge(name) for pattern in patterns for name in pattern.nodes}
        return sorted(edges, key=self._edge_place)

    def _edge_place(self, edge: Edge) -> tuple[int, int]:
        return self.place[edge.node], edge.port

    def _groups(
        self, pass_through: Mapping[str, tuple[Edge, ...]], activations: Iterable[Edge]
    ) -> tuple[frozenset[Edge], ...]:
        leader: dict[Edge, Edge] = {edge: edge for edge in activations}

        def find(edge: Edge) -> Edge:
            while leader[edge] != edge:
                leader[edge] = leader[leader[edge]]  # long chains are walked once, not for each edge
                edge = leader[edge]
            return edge

        for name, reads in pass_through.items():
            if self._shares_range(self.graph[name]):
                for edge in reads:
                    leader[find(edge)] = find(Edge(name))
        groups: dict[Edge, list[Edge]] = {}
        for edge in leader:
            groups.setdefault(find(edge), []).append(edge)
        return tuple(frozenset(group) for group in groups.values() if len(group) > 1)

    def _shares_range(self, node: Node) -> bool:
        if node.op in CONCATS:
            return self.scheme.share_concat_ranges
        if node.op in AVERAGES:
            return self.scheme.share_pool_ranges and not self._is_clamped(Edge(node.name))
        return node.op not in ACTIVATIONS or self._is_clamped(node.inputs[0])

    def _is_clamped(self, edge: Edge) -> bool:
        """Whether only an activation reads an edge: codes that end where the activation does cut it off themselves."""
        found = self._sole_reader(edge)
        return found is not None and found[0].op in ACTIVATIONS

    def _specs(self, activations: list[Edge], groups: tuple[frozenset[Edge], ...]) -> dict[Edge, Spec]:
        signed = self.scheme.signed_activations
        if signed is None:
            return dict.fromkeys(activations, self.scheme.activations)
        shared = {edge: group for group in groups for edge in group}
        positive = self._non_negative() | set(filter(self._is_clamped, activations))
        return {
            edge: self.scheme.activations if shared.get(edge, {edge}) <= positive else signed for edge in activations
        }

    def _non_negative(self) -> set[Edge]:
        """Edges that never hold negative numbers."""
        found: set[Edge] = set()
        for node in self.nodes:
            reads = self._pass_through_inputs(node) if node.op in PASS_THROUGH_OPS else ()
            if node.op in ACTIVATIONS | {"Sigmoid", "Softmax"} or (reads and found.issuperset(reads)):
                found.add(Edge(node.name))
        return found

    def _observed(
        self, activations: list[Edge], groups: tuple[frozenset[Edge], ...], pass_through: Mapping[str, tuple[Edge, ...]]
    ) -> tuple[Edge, ...]:
        """All but what a pass-through node copies from edges that are observed, and what an activation cuts off."""
        shared = {edge: group for group in groups for edge in group}
        left_out = set()
        for name, reads in pass_through.items():
            if self.graph[name].op not in ACTIVATIONS:
                left_out |= {Edge(name)} if shared.get(Edge(name), frozenset()).issuperset(reads) else set()
            elif self._is_clamped(reads[0]):
                left_out.add(reads[0])
        return tuple(edge for edge in activations if edge not in left_out)

    # Constants and the rest

    def _weights_spec(self, layer: Node) -> Spec:
        facts = find_layer(layer)
        spec = self.scheme.weights
        return replace(spec, axes=facts.weights_axes) if facts and spec.per_channel else spec

    def _kept(self, inside: set[str], pass_through: Mapping[str, tuple[Edge, ...]]) -> dict[str, str]:
        return {
            node.name: self.reasons.get(node.name) or _REASONS.get(node.op) or f"no 8-bit form of {node.op} is known"
            for node in self._computing()
            if node.name not in inside and node.name not in pass_through
        }

    def _computing(self) -> Iterator[Node]:
        for node in self.nodes:
            if node.op not in _SOURCES and node.name not in self.graph.input_names:
                yield node


def _word(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
