"""Weights alone in 8 bits: a quarter of the size, no pictures to calibrate with, and all arithmetic in float.

    weights ~= codes * scale[c]        one scale for each output channel, codes -127 .. 127

    onnx, tensorflow      Const[int8] -> Cast -> Mul(scale)
    eightbit              Const[quint8] -> Dequantize, one range for each constant, as the classic tool stores it
    litert                the float graph: the converter stores its weights itself

Engines compute Cast and Mul of constants once, when they load a graph. ONNX's own DequantizeLinear they do not: ONNX
Runtime runs it for every picture, and is then a fifth slower than with weights in float.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from quantkit.convert import translate
from quantkit.convert.tensorflow_to_onnx.translator import transposed
from quantkit.errors import UnavailableError
from quantkit.formats.onnx import DIALECT
from quantkit.formats.onnx.schema import NUMBERS
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.quantization.parameters import Grid
from quantkit.quantization.plan import Plan
from quantkit.quantization.spec import Spec
from quantkit.transforms.precision.quantize_weights import quantize_weights

# What a layer's constant is called in ONNX, behind its name, and the order of its dimensions there.
LAYOUTS: Mapping[str, tuple[int, ...]] = {"/oihw": (3, 2, 0, 1), "/depthwise": (2, 3, 0, 1), "": ()}


def store_weights(graph: Graph, plan: Plan) -> Graph:
    """The float graph with its layers' weights as codes, in the ops of the plan's target.

    Args:
        graph: the one that was annotated.
        plan: with `Scheme.weights_only`.

    Raises:
        UnavailableError: the target is ``onnx``, and an op has no ONNX form; or it is ``litert``, and some weights are
            to stay float.
    """
    target = plan.scheme.target
    if target == "litert":
        if plan.float_fallbacks:
            name, reason = next(iter(plan.float_fallbacks.items()))
            raise UnavailableError(
                f"TensorFlow's converter stores all weights in 8 bits or none, and {name} is to stay float: {reason}",
                hint="choose another target, or leave keep_float out",
            )
        return graph
    if target == "eightbit":
        return _replaced(graph, {name: _classic(graph[name]) for name in plan.weights})
    if target == "onnx":
        return _in_onnx(graph, plan)
    made = {}
    for name, spec in plan.weights.items():
        values = graph[name].value
        grid = Grid.of_weights(spec, values.array)
        shape = [size if axis in spec.axes else 1 for axis, size in enumerate(values.shape)]
        codes = Tensor(DType.INT8, values.shape, partial(_codes, values, grid))
        made[name] = _widened(graph, graph[name], codes, grid.scale.reshape(shape if spec.axes else ()))
    return _replaced(graph, made)


def _in_onnx(graph: Graph, plan: Plan) -> Graph:
    translated = translate(graph).graph
    made = {}
    for source, spec in plan.weights.items():
        for ending, order in LAYOUTS.items():
            name = f"{source}{ending}"
            if name in translated:
                made[name] = _constant_in_onnx(translated, translated[name], graph[source].value, spec, order)
    return _replaced(translated, made)


def _constant_in_onnx(
    translated: Graph, node: Node, values: Tensor, spec: Spec, order: tuple[int, ...]
) -> tuple[Node, ...]:
    grid = Grid.of_weights(spec, values.array)
    codes = Tensor(DType.INT8, values.shape, partial(_codes, values, grid))
    scale = grid.scale
    if order:
        codes = transposed(codes, order, node.value.shape)
    if spec.axes:
        shape = [1] * len(node.value.shape)
        shape[0 if order else spec.axes[0]] = -1  # the first one numbers channels where the order is ONNX's
        scale = scale.reshape(shape)
    return _widened(translated, node, codes, scale)


def _codes(values: Tensor, grid: Grid) -> Array:
    return grid.encode(values.array)


def _widened(graph: Graph, node: Node, codes: Tensor, scale: Array) -> tuple[Node, ...]:
    """The codes of a constant, and what makes numbers of them under its name."""
    code, step, wide = (free_name(graph, f"{node.name}/{word}") for word in ("codes", "scale", "wide"))
    is_onnx = graph.dialect == DIALECT
    cast: dict[str, Attr] = {"to": NUMBERS[DType.FLOAT]} if is_onnx else {"SrcT": DType.INT8, "DstT": DType.FLOAT}
    return (
        _kept(node, code, codes),
        _kept(node, step, Tensor.of(scale)),
        Node(wide, "Cast", (Edge(code),), attrs=cast, device=node.device),
        Node(
            node.name,
            "Mul",
            (Edge(wide), Edge(step)),
            attrs={} if is_onnx else {"T": DType.FLOAT},
            device=node.device,
        ),
    )


def _kept(node: Node, name: str, value: Tensor) -> Node:
    """A constant that waits for what another one waited for."""
    attrs: dict[str, Attr] = {"value": value, **({"dtype": value.dtype} if node.op == "Const" else {})}
    return node.with_(name=name, attrs=attrs)


def _classic(node: Node) -> tuple[Node, ...]:
    """A constant as the transform quantize_weights stores it."""
    alone = Graph.of([node.with_(controls=())], (), (node.name,))
    coded = quantize_weights(alone, minimum_size=1).nodes.values()
    return tuple(one.with_(controls=node.controls) if one.is_constant else one for one in coded)


def _replaced(graph: Graph, made: Mapping[str, tuple[Node, ...]]) -> Graph:
    def nodes() -> Iterator[Node]:
        for node in graph.nodes.values():
            yield from made.get(node.name, (node,))

    return graph.with_nodes(nodes())
