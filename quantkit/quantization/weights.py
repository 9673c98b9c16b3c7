"""Weights alone in int8: a quarter of the size, no calibration, and all arithmetic in float.

    weights ~= quantized * scale[c]        one scale per output channel, quantized values -127 .. 127
    Const[int8] -> Cast -> Mul(scale)

Runtimes compute Cast and Mul of constants once, when they load a graph. They do not fold ONNX's
DequantizeLinear: ONNX Runtime runs it in every call, which costs a fifth of the speed.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from quantkit.formats.onnx import DIALECT
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.onnx.types import NUMBERS
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.transforms.precision.quantize_weights import quantize_weights


def store_weights(graph: Graph, plan: Plan) -> Graph:
    """Return a graph of either dialect whose layers' weights are int8 constants, cast and scaled.

    Args:
        graph: the float graph that was annotated.
        plan: a plan of `Scheme.weights_only`.
    """
    replacements = {}
    for name, spec in plan.weights.items():
        if not spec.symmetric:
            replacements[name] = _dequantize_constant(graph[name])
            continue
        values = graph[name].value
        parameters = QuantizationParameters.of_weights(spec, values.array)
        shape = [size if axis in spec.axes else 1 for axis, size in enumerate(values.shape)]
        scale = parameters.scale.reshape(shape if spec.axes else ())
        replacements[name] = dequantized_constant(graph, graph[name], quantize_constant(values, parameters), scale)
    return replace_constants(graph, replacements)


def _dequantize_constant(node: Node) -> tuple[Node, ...]:
    """Return a constant as the transform quantize_weights stores it: affine, before a Dequantize."""
    alone = Graph.of([node.with_(controls=())], (), (node.name,))
    stored = quantize_weights(alone, minimum_size=1).nodes.values()
    return tuple(
        replacement.with_(controls=node.controls) if replacement.is_constant else replacement for replacement in stored
    )


def quantize_constant(values: Tensor, parameters: QuantizationParameters) -> Tensor:
    """Return the int8 tensor of a constant; it is computed when it is needed."""
    return Tensor(DType.INT8, values.shape, partial(_quantize, values, parameters))


def _quantize(values: Tensor, parameters: QuantizationParameters) -> Array:
    return parameters.quantize(values.array)


def dequantized_constant(graph: Graph, node: Node, values: Tensor, scale: Array) -> tuple[Node, ...]:
    """Return the nodes that compute a constant, under its name, from its quantized values.

    Args:
        graph: graph of ``node``, of either dialect.
        node: float constant.
        values: its quantized values, int8.
        scale: broadcasts against ``values``, float32.
    """
    stored, step, wide = (free_name(graph, f"{node.name}/{suffix}") for suffix in ("codes", "scale", "wide"))
    is_onnx = graph.dialect == DIALECT
    cast: dict[str, Attr] = {"to": NUMBERS[DType.FLOAT]} if is_onnx else {"SrcT": DType.INT8, "DstT": DType.FLOAT}
    return (
        _constant_like(node, stored, values),
        _constant_like(node, step, Tensor.of(scale)),
        Node(wide, "Cast", (Edge(stored),), attrs=cast, device=node.device),
        Node(
            node.name,
            "Mul",
            (Edge(wide), Edge(step)),
            attrs={} if is_onnx else {"T": DType.FLOAT},
            device=node.device,
        ),
    )


def _constant_like(node: Node, name: str, value: Tensor) -> Node:
    """Return a constant with the control dependencies and the device of another one."""
    attrs: dict[str, Attr] = {"value": value, **({"dtype": value.dtype} if node.op == "Const" else {})}
    return node.with_(name=name, attrs=attrs)


def replace_constants(graph: Graph, replacements: Mapping[str, tuple[Node, ...]]) -> Graph:
    """Return the graph with nodes in the place of constants, by their names."""

    def nodes() -> Iterator[Node]:
        for node in graph.nodes.values():
            yield from replacements.get(node.name, (node,))

    return graph.with_nodes(nodes())
