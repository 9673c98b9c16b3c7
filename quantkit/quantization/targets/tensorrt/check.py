"""Faults of quantized files, of any tool, in TensorRT.

TensorRT computes signed, symmetric int8, and refuses zero points other than 0. It reads uint8 values with the zero
point 0 as int8 without an error: all values above half of the range, which CPU files use after each Relu, are clipped.
"""

from collections.abc import Iterator

from quantkit.formats import onnx
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.roles import find_roles
from quantkit.ops.table import Fact, find_ops
from quantkit.quantization.portability import LAYER_OPS
from quantkit.quantization.targets.finding import EFFECTS, REFUSED, SLOW, WRONG, Finding
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes
from quantkit.quantization.targets.tensorrt.rules import ACTIVATION_OPS, UNSUPPORTED_OPS, find_producer, find_small_size

FLOAT_TYPES = {NUMBERS[DType.FLOAT], NUMBERS[DType.HALF]}
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
# Ops between an activation and the quantization of its values.
FORWARDING_OPS = find_ops(Fact.PASS_THROUGH, "onnx") - find_ops(Fact.REQUANTIZING | Fact.FUSED, "onnx")
FORWARDING_OPS |= {QUANTIZE, DEQUANTIZE, "Concat"}
# Prefix of the domains of TensorRT's own ops and plugins.
OWN_DOMAINS = "trt"
AGAIN = "quantize the float model with --target tensorrt"


def examine(graph: Graph) -> tuple[Finding, ...]:
    """Return the faults of a quantized graph in TensorRT, the gravest first.

    Args:
        graph: quantized ONNX or TensorFlow graph.
    """
    if graph.dialect != onnx.DIALECT:
        return tuple(_examine_tensorflow(graph))
    graph = _without_casts(graph)
    findings = [*_examine_ops(graph), *_examine_values(graph), *_examine_layers(graph), *_examine_sums(graph)]
    return tuple(sorted(findings, key=lambda finding: EFFECTS.index(finding.effect)))


def find_int8_layers(graph: Graph) -> frozenset[str]:
    """Return the convolutions and products of a quantized ONNX graph whose operands are both int8."""
    graph = _without_casts(graph)
    layers = (node for node in graph.nodes.values() if node.op in LAYER_OPS)
    return frozenset(node.name for node in layers if all(_is_int8(graph, edge) for edge in node.inputs[:2]))


def _without_casts(graph: Graph) -> Graph:
    """Return the graph without casts to float32 and float16, which are a part of the kernels."""
    names = {name for name, node in graph.nodes.items() if node.op == "Cast" and node.attrs.get("to") in FLOAT_TYPES}
    draft = Draft(graph)
    captured = {name for node in graph.nodes.values() for name in node.controls}
    for name in names - graph.output_names:
        draft.redirect(Edge(name), graph[name].inputs[0])
    draft.remove(*names - graph.output_names - captured)
    return draft.graph()


def _examine_tensorflow(graph: Graph) -> Iterator[Finding]:
    """Yield the faults of a TensorFlow graph: the format, and the activations that a conversion would clip."""
    quantized = [node for node in graph.nodes.values() if "Quantize" in node.op]
    for node in quantized:
        if DType.QUINT8 in node.attrs.values() and "Relu" in node.op:
            reason = f"{_clip_reason('Relu', node.name)}, after a conversion to ONNX"
            yield Finding("clipped", WRONG, node.name, node.op, reason, AGAIN)
    for node in quantized[:1]:
        yield Finding("format", REFUSED, node.name, node.op, "TensorRT reads only ONNX files", AGAIN)


def _examine_ops(graph: Graph) -> Iterator[Finding]:
    for node in graph.nodes.values():
        domain = node.op.rpartition(".")[0]
        if node.op in UNSUPPORTED_OPS or (domain and not domain.startswith(OWN_DOMAINS)):
            reason = "TensorRT has no such op" + (", unless a plugin adds it" if domain else "")
            yield Finding("op", REFUSED, node.name, node.op, reason, "export the model with standard ops")


def _examine_values(graph: Graph) -> Iterator[Finding]:
    """Yield the faults of types and zero points."""
    for node in graph.nodes.values():
        if node.op not in (QUANTIZE, DEQUANTIZE):
            continue
        values = graph.constant_of(node.inputs[0])
        zero, dtype = _zero_point(graph, node), _find_type(graph, node)
        if node.op == DEQUANTIZE and dtype is DType.INT32:
            fix = "keep the bias in float"
            yield Finding("bias", REFUSED, node.name, node.op, "TensorRT quantizes no biases", fix)
        elif node.op == DEQUANTIZE and values is None and graph[node.inputs[0].node].op == QUANTIZE:
            continue  # the QuantizeLinear has the same parameters
        elif zero is not None and zero.array.any():
            reason = f"the zero point is {zero.array[zero.array != 0][0]}, not 0"
            yield Finding("zero_point", REFUSED, node.name, node.op, reason, f"use symmetric int8 values: {AGAIN}")
        elif dtype is DType.UINT8:
            source = find_producer(graph, node.inputs[0], FORWARDING_OPS)
            reason = _clip_reason(source.op, source.name)
            yield Finding("clipped", WRONG, node.name, node.op, reason, f"use symmetric int8 values: {AGAIN}")


def _clip_reason(op: str, name: str) -> str:
    return f"TensorRT reads uint8 values as int8: it clips the upper half of the range of {op} {name!r}"


def _zero_point(graph: Graph, node: Node) -> Tensor | None:
    return graph.constant_of(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2].node else None


def _find_type(graph: Graph, node: Node) -> DType | None:
    """Return the type of the quantized values of a QuantizeLinear or DequantizeLinear; None if it is not known."""
    if (zero := _zero_point(graph, node)) is not None:
        return zero.dtype
    values = graph.constant_of(node.inputs[0])
    if node.op == QUANTIZE or values is None:
        return DType.UINT8 if node.op == QUANTIZE else None
    return values.dtype


def _is_int8(graph: Graph, edge: Edge) -> bool:
    """Return True for values that TensorRT reads as int8."""
    node = graph[edge.node]
    zero = _zero_point(graph, node) if node.op == DEQUANTIZE else None
    return node.op == DEQUANTIZE and _find_type(graph, node) in (DType.INT8, None) and not (zero and zero.array.any())


def _examine_layers(graph: Graph) -> Iterator[Finding]:
    """Yield layers that are not one int8 kernel with their activation."""
    int8_layers, shapes = find_int8_layers(graph), infer_shapes(graph)
    for node in graph.nodes.values():
        if node.op not in LAYER_OPS:
            continue
        if node.name not in int8_layers:
            if sum(graph[edge.node].op == DEQUANTIZE for edge in node.inputs[:2]) == 1:
                fix = "quantize both operands, or neither"
                yield Finding("operand", SLOW, node.name, node.op, "one operand alone is int8: the layer is float", fix)
            continue
        if reason := find_small_size(graph, node, shapes):
            yield Finding("small", SLOW, node.name, node.op, reason, "keep the layer in float")
        consumers = _consumers_after_pair(graph, Edge(node.name))
        if consumers and all(each.op in ACTIVATION_OPS | {"Mul"} for each in consumers):
            reason = f"the values between the layer and {consumers[0].op} {consumers[0].name!r} are quantized"
            yield Finding("activation", SLOW, node.name, node.op, reason, "quantize after the activation only")


def _examine_sums(graph: Graph) -> Iterator[Finding]:
    """Yield residuals that are not added in the kernel of a convolution."""
    layers = {name for name in find_int8_layers(graph) if graph[name].op in find_roles(graph).sum_layer_ops}
    for node in graph.nodes.values():
        if node.op != "Add" or any(graph.constant_of(edge) is not None for edge in node.inputs):
            continue
        if not any(use.op == QUANTIZE for use in _consumers_after_activation(graph, node)):
            continue
        producers = [graph[edge.node] for edge in node.inputs]
        fused = [each for each in producers if each.name in layers and len(graph.node_uses[each.name]) == 1]
        others = [each for each in producers if each not in fused[:1]]
        pairs = [name for name in layers if _consumers_after_pair(graph, Edge(name)) == (node,)]
        if fused and others[0].op != DEQUANTIZE:
            reason = f"the residual {others[0].name!r} has no {QUANTIZE} and {DEQUANTIZE}"
            yield Finding("residual", SLOW, node.name, node.op, reason, "quantize the residual")
        elif pairs and not fused:
            reason = f"the values between {graph[pairs[0]].op} {pairs[0]!r} and the sum are quantized"
            yield Finding("residual", SLOW, node.name, node.op, reason, "quantize the other operand alone")


def _consumers_after_activation(graph: Graph, node: Node) -> tuple[Node, ...]:
    """Return the consumers of a node, or of the activation that is its only consumer."""
    consumers = graph.consumers(node.name)
    is_activated = len(consumers) == 1 and consumers[0].op in ACTIVATION_OPS
    return graph.consumers(consumers[0].name) if is_activated else consumers


def _consumers_after_pair(graph: Graph, edge: Edge) -> tuple[Node, ...]:
    """Return the consumers of an edge after a QuantizeLinear and a DequantizeLinear; empty without such a pair."""
    for op in (QUANTIZE, DEQUANTIZE):
        consumers = graph.consumers(edge)
        if [node.op for node in consumers] != [op] or edge in graph.outputs:
            return ()
        edge = Edge(consumers[0].name)
    return graph.consumers(edge)
