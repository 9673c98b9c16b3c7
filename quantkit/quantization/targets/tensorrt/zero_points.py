"""Zero points of TensorRT's symmetric values, as constants that the biases of layers take.

    x ~= scale * (q - zero) = x' - scale * zero        x' = scale * q

A layer without padding computes W x = W x' - scale * zero * sum(W), so that its bias takes the second term: values
after a Relu have all 256 levels, not half of them. The bias of the layer before takes scale * zero, and the limits of
int8 clamp as the Relu does. Other ops get an Add. A padded convolution would take 0 for x' at the border, not for x:
its input has no zero point, or a Pad with the value of x = 0, where `Plan.refined` or affine activations in the scheme
select it:

    QuantizeLinear -> DequantizeLinear -> Pad -> QuantizeLinear -> DequantizeLinear -> Conv without padding

TensorRT-RTX computes the three ops in the middle in one kernel, with a bias and an activation before them. Its builder
accepts no Pad of int8 values.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import BIAS_INDEX, INTEGER_BIAS_OPS, clip_limits
from quantkit.ops.table import Fact, find_ops
from quantkit.quantization.plan import Plan
from quantkit.quantization.spec import Spec
from quantkit.transforms._names import FreeNames

AFFINE = Spec(DType.QINT8, symmetric=False)
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
# Layers whose outputs are sums over all weights of a channel, without padding.
LAYER_OPS = INTEGER_BIAS_OPS | {"MatMul"}
# Ops that copy, select, average or compare values: op(x + c) = op(x) + c.
TRANSLATED_OPS = find_ops(Fact.PASS_THROUGH, "onnx") - find_ops(Fact.REQUANTIZING | Fact.FUSED, "onnx")
TRANSLATED_OPS |= {"Concat", "GlobalAveragePool", "ReduceMean"}
# Fraction of the upper limit of a Clip by which the largest quantized value may exceed it.
CLIP_TOLERANCE = 1e-3


def find_affine_edges(graph: Graph, plan: Plan) -> Mapping[Edge, Spec]:
    """Return the number format of the quantized edges of a plan: affine where all consumers can take a zero point.

    Args:
        graph: float ONNX graph.
        plan: plan of ``graph``.
    """
    layers = {pattern.layer: pattern for pattern in plan.patterns}
    has_pads = not plan.scheme.activations.symmetric

    def is_suited(layer: Node) -> bool:
        return _is_unpadded(layer) or ((has_pads or layer.name in plan.refined) and _is_padded(layer))

    def takes_zero_point(edge: Edge) -> bool:
        if edge in graph.outputs:
            return False
        for node, slot in graph.uses.get(edge, ()):
            if (pattern := layers.get(node.name)) and not (pattern.weights and slot == 0 and is_suited(node)):
                return False
        return True

    suited = {edge for edge in plan.activations if all(map(takes_zero_point, plan.group_of(edge)))}
    return {edge: replace(spec, symmetric=edge not in suited) for edge, spec in plan.activations.items()}


def find_padded_layers(graph: Graph, plan: Plan) -> list[str]:
    """Return the convolutions of a plan that a Pad would give an input with a zero point, if all consumers can take it.

    Args:
        graph: float ONNX graph.
        plan: plan of ``graph``.
    """
    layers = [
        pattern.layer for pattern in plan.patterns if pattern.weights and plan.activations[pattern.input].symmetric
    ]
    return [name for name in layers if _is_padded(graph[name])]


def _is_unpadded(layer: Node) -> bool:
    """Return True for a layer whose outputs are sums over all weights of a channel."""
    pads: Any = layer.attrs.get("pads", ())
    is_stated = layer.attrs.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    return layer.op in LAYER_OPS and is_stated and not any(pads)


def _is_padded(layer: Node) -> bool:
    """Return True for a convolution that states the widths of its padding."""
    return layer.op == "Conv" and layer.attrs.get("auto_pad", b"NOTSET") == b"NOTSET" and not _is_unpadded(layer)


def fold_zero_points(graph: Graph) -> Graph:
    """Return a quantized ONNX graph with zero points of 0, and constants that restore the values.

    Args:
        graph: graph of `native.convert`, with float biases, and zero points on edges of `find_affine_edges` alone.
    """
    return _ZeroPointFolding(graph).fold()


class _ZeroPointFolding:
    """State of one rewrite.

    Attributes:
        nodes: nodes of the new graph by name.
        shifts: new value less old value, by edge, for the edges whose values change.
        restored: edges with the old values, by edge.
        padded: edges with the padded values, by the producer and the widths.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = dict(graph.nodes)
        self.shifts: dict[Edge, float] = {}
        self.restored: dict[Edge, Edge] = {}
        self.padded: dict[tuple[Any, ...], Edge] = {}
        self.names = FreeNames(graph)
        self.roles = find_roles(graph)

    def fold(self) -> Graph:
        """Return the new graph."""
        for name in self.graph.order:
            if name in self.nodes:
                self._rewrite(self.nodes[name])
        graph = self.graph.with_nodes(self.nodes.values())
        used = graph.node_uses.keys() | graph.endpoint_names
        return graph.with_nodes(node for node in graph.nodes.values() if not node.is_constant or node.name in used)

    def _rewrite(self, node: Node) -> None:
        shift = self.shifts.get(node.inputs[0], 0.0) if node.inputs else 0.0
        if node.op == DEQUANTIZE:
            if offset := self._take_zero_point(node):
                self.shifts[Edge(node.name)] = offset
        elif node.op == QUANTIZE:
            if (offset := self._take_zero_point(node)) != shift:
                self._shift_input(node, offset - shift)
        elif shift and self._ensure_whole_sums(node, shift):
            self._add_to_layer(node, -shift)
        elif not self._translate(node):
            for slot, edge in enumerate(node.inputs):
                if edge in self.shifts:
                    self.nodes[node.name] = self.nodes[node.name].with_input(slot, self._restore(edge))

    def _take_zero_point(self, node: Node) -> float:
        """Set the zero point of a node to 0; return the shift of its real values."""
        scale, zero = (self.graph[edge.node].value.array for edge in node.inputs[1:3])
        if not zero.any():
            return 0.0
        self.nodes[node.name] = node.with_input(2, self._add_constant(f"{node.name}/zero", 0, zero.dtype))
        return float(scale) * int(zero)

    def _shift_input(self, quantize: Node, shift: float) -> None:
        """Add a constant to the values before a QuantizeLinear, which takes the place of a Relu."""
        edge = quantize.inputs[0]
        activation = self.nodes[edge.node]
        if self._is_clamped(activation, quantize) and self._is_only_use(edge) and edge not in self.shifts:
            del self.nodes[activation.name]
            edge = activation.inputs[0]
        self.nodes[quantize.name] = self.nodes[quantize.name].with_input(0, self._shift(edge, shift))

    def _is_clamped(self, activation: Node, quantize: Node) -> bool:
        """Return True if the limits of the quantized values are those of an activation."""
        scale, zero = (self.graph[edge.node].value.array for edge in quantize.inputs[1:3])
        if activation.op not in ("Relu", "Clip") or zero != AFFINE.limits[0]:
            return False
        low, high = (0.0, None) if activation.op == "Relu" else clip_limits(self.graph, activation)
        is_constant = all(self.graph.constant_of(edge) is not None for edge in activation.inputs[1:] if edge.node)
        return is_constant and low == 0 and (high is None or 255 * float(scale) <= (1 + CLIP_TOLERANCE) * high)

    def _shift(self, edge: Edge, shift: float) -> Edge:
        """Add a constant to the values of an edge for its only consumer; return the edge with the sum."""
        if self._is_only_use(edge) and self._absorb(edge, shift):
            return edge
        value = self._add_constant(f"{edge.node}/offset", shift)
        return self._add(Node(f"{edge.node}/shifted", "Add", (edge, value)))

    def _absorb(self, edge: Edge, shift: float) -> bool:
        """Add a constant to a bias before an edge; return False without a bias."""
        node = self.nodes[edge.node]
        if node.op in INTEGER_BIAS_OPS and self._sum_weights(node) is not None:
            self._add_to_layer(node, shift, is_sum=False)
            return True
        if node.op != "Add":
            return False
        for slot, source in enumerate(node.inputs):
            if (value := self._value_of(source)) is not None:
                self._set_constant(node, slot, value + np.float32(shift))
                return True
        return any(self._is_only_use(source) and self._absorb(source, shift) for source in node.inputs)

    def _add_to_layer(self, layer: Node, factor: float, *, is_sum: bool = True) -> None:
        """Add a constant, or its product with the sum of the weights, to each channel of a layer.

        The constants become part of the bias, of the Add after a MatMul, or of a new Add.
        """
        layer, sums = self.nodes[layer.name], self._sum_weights(layer)
        assert sums is not None, "the caller checks it"
        values = factor * (sums if is_sum else np.ones_like(sums))
        if layer.op in INTEGER_BIAS_OPS:
            inputs = (*layer.inputs[:BIAS_INDEX], *(layer.inputs[BIAS_INDEX:] or [Edge("")]))
            bias = self._value_of(inputs[BIAS_INDEX])
            self._set_constant(
                layer.with_(inputs=inputs), BIAS_INDEX, values + (0.0 if bias is None else bias.reshape(-1))
            )
            return
        consumers = self.graph.consumers(layer.name) if self._is_only_use(Edge(layer.name)) else ()
        for node in (self.nodes[consumer.name] for consumer in consumers if consumer.op == "Add"):
            for slot, source in enumerate(node.inputs):
                if (value := self._value_of(source)) is not None:
                    self._set_constant(node, slot, value + values)
                    return
        product = self._add(layer.with_(name=f"{layer.name}/product"))
        offset = self._add_constant(f"{layer.name}/offset", values)
        self.nodes[layer.name] = Node(layer.name, "Add", (product, offset))

    def _sum_weights(self, layer: Node) -> Array | None:
        """Return the sum of the weights of each output channel, float64; None for a layer whose bias is not its own."""
        source = self.graph[layer.inputs[WEIGHTS_INDEX].node]
        weights = self.graph.constant_of(source.inputs[0] if source.op == DEQUANTIZE else layer.inputs[WEIGHTS_INDEX])
        bias = layer.inputs[BIAS_INDEX:] if layer.op in INTEGER_BIAS_OPS else ()
        is_computed = any(edge.node and self._value_of(edge) is None for edge in bias)
        if weights is None or is_computed or self.roles.layer_objection(self.graph, layer):
            return None
        values = weights.array.astype(np.float64)
        if source.op == DEQUANTIZE:
            scale, axis = self.graph[source.inputs[1].node].value.array, source.attrs.get("axis")
            values *= (
                scale.reshape([-1 if index == axis else 1 for index in range(values.ndim)]) if scale.ndim else scale
            )
        if layer.op == "Conv":
            return np.asarray(values.reshape(len(values), -1).sum(1))
        if layer.op == "Gemm":
            return np.asarray(values.sum(1 if layer.attrs.get("transB") else 0))
        return np.asarray(values.sum(-2, keepdims=values.ndim > 2))

    def _ensure_whole_sums(self, layer: Node, shift: float) -> bool:
        """Add a Pad before a padded convolution; return True if the outputs of the layer are sums over all weights.

        Args:
            layer: node of the new graph.
            shift: shift of its input, the value that stands for 0.
        """
        if not (_is_unpadded(layer) or _is_padded(layer)) or self._sum_weights(layer) is None:
            return False
        source, pads = self.nodes[layer.inputs[0].node], layer.attrs.get("pads", ())
        if _is_unpadded(layer) or source.op != DEQUANTIZE:
            return _is_unpadded(layer)
        assert isinstance(pads, tuple), "a convolution states its padding as a list"
        key = (source.name, pads)
        if key not in self.padded:
            widths = [0, 0, *pads[: len(pads) // 2], 0, 0, *pads[len(pads) // 2 :]]
            constants = (
                self._add_constant(f"{layer.name}/pads", widths, np.int64),
                self._add_constant(f"{layer.name}/border", shift),
            )
            edge = self._add(Node(f"{layer.name}/padded", "Pad", (layer.inputs[0], *constants)))
            for op in (QUANTIZE, DEQUANTIZE):
                edge = self._add(Node(f"{layer.name}/{op}", op, (edge, *source.inputs[1:3])))
            self.padded[key] = edge
        self.nodes[layer.name] = layer.with_input(0, self.padded[key]).with_attrs(pads=(0,) * len(pads))
        return True

    def _translate(self, node: Node) -> bool:
        """Pass the shift of the inputs on to the outputs; return False if the op does not allow that."""
        shifts = [self.shifts.get(edge, 0.0) for edge in node.inputs]
        if not any(shifts):
            return True
        uses = self.graph.node_uses.get(node.name, ())
        if node.name in self.graph.output_names or any(use.slot < 0 or use.node.inputs[use.slot].port for use in uses):
            return False
        data = shifts if node.op == "Concat" else shifts[:1]
        if node.op != "Add":
            is_average = node.op == "AveragePool" and node.attrs.get("count_include_pad")
            is_resize = node.op in ("Resize", "Upsample") and node.attrs.get("mode", b"nearest") != b"nearest"
            is_other = node.op not in TRANSLATED_OPS or is_average or is_resize
            if is_other or len({*data}) > 1 or any(shifts[len(data) :]):
                return False
        shift = sum(shifts) if node.op == "Add" else data[0]
        self.shifts.update({use.node.inputs[use.slot]: shift for use in uses})
        return True

    def _restore(self, edge: Edge) -> Edge:
        """Return an edge with the old values of an edge."""
        if edge not in self.restored:
            self.restored[edge] = self._shift(edge, -self.shifts[edge])
        return self.restored[edge]

    def _is_only_use(self, edge: Edge) -> bool:
        uses = self.graph.node_uses.get(edge.node, ())
        return len(uses) == 1 and edge.node not in self.graph.endpoint_names

    def _value_of(self, edge: Edge) -> Array | None:
        """Return the float constant of an edge of the new graph, or None."""
        node = self.nodes.get(edge.node)
        return node.value.array if node is not None and node.is_constant and node.value.dtype is DType.FLOAT else None

    def _set_constant(self, node: Node, slot: int, values: Array) -> None:
        edge = self._add_constant(f"{node.name}/bias", values)
        self.nodes[node.name] = node.with_(inputs=(*node.inputs[:slot], edge, *node.inputs[slot + 1 :]))

    def _add_constant(self, name: str, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> Edge:
        return self._add(Node(name, "Constant", attrs={"value": Tensor.of(np.asarray(values, dtype))}))

    def _add(self, node: Node) -> Edge:
        """Add a node under its name, or the next free one; return its edge."""
        name = self.names.free(node.name)
        self.nodes[name] = node.with_(name=name)
        return Edge(name)
