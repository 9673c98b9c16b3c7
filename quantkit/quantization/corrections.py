"""Take out what quantizing would do to the float graph's answers, as far as constants can.

Bias correction: rounded weights shift the mean of each output channel, by what they were rounded times the mean input

    E[y_q - y] = sum over positions and input channels of (W_q - W) * E[x]        (Nagel and others, 2019)

and the bias takes that out again.

Cross-layer equalization: where a ReLU stands between two layers, relu(s * y) = s * relu(y) for s > 0, so a channel's
scale moves from the first layer's weights and bias to the second's weights without changing any answer:

    s = sqrt(reach of the second's weights for this channel / reach of the first's)
"""

import numpy as np
import numpy.typing as npt

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.layers import find_layer
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Ranges

Floats = npt.NDArray[np.float64]
# A channel's scale moves by no more than this: a channel that is all but dead must not make noise of another layer.
MOST_SCALING = 16.0


def correct_biases(graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
    """The float graph with biases that cancel what rounding the weights shifts.

    Args:
        graph: in float.
        plan: of it.
        ranges: with the mean of each input channel (`Ranges.means`). Patterns without one keep
            their bias.
    """
    draft = Draft(graph)
    for pattern in plan.patterns:
        means = ranges.means.get(pattern.input)
        if means and pattern.bias:
            node = graph[pattern.bias]
            slot = next(slot for slot, edge in enumerate(node.inputs) if graph.constant_of(edge) is not None)
            value = graph[node.inputs[slot].node].value
            weights = graph[pattern.weights].value.array
            shift = _shift(graph[pattern.layer], weights, plan, pattern, np.asarray(means))
            corrected = _by_channel(value, len(shift)).astype(np.float64) - shift
            bias = constant(f"{pattern.bias}/corrected", corrected.astype(np.float32))
            draft.replace(pattern.bias, bias, node.with_input(slot, bias.name))
    return draft.graph()


def _shift(layer: Node, weights: Array, plan: Plan, pattern: FusedPattern, means: Floats) -> Floats:
    """Mean of what rounded weights add to each output channel."""
    rounded = (
        QuantizationParameters.of_weights(plan.weights[pattern.weights], weights)
        .fake_quantize(weights)
        .astype(np.float64)
        - weights
    )
    if layer.op == "DepthwiseConv2dNative":
        separate: Floats = (rounded.sum((0, 1)) * means[:, None]).reshape(-1)
        return separate
    if layer.op == "Conv2D":
        summed = rounded.sum((0, 1))
        # Of grouped channels, each reads as many neighbours as there are weights for it.
        read = means.reshape(-1, len(summed))
        found: Floats = np.einsum("ij,ji->j", summed, np.repeat(read, summed.shape[1] // len(read), axis=0))
        return found
    shift: Floats = np.einsum("ji,i->j" if layer.attrs.get("transpose_b") else "ij,i->j", rounded, means)
    return shift


def _by_channel(value: Tensor, count: int) -> Array:
    return np.broadcast_to(value.array.reshape(-1), (count,))


def equalize(graph: Graph, plan: Plan) -> Graph:
    """The same function, with scales evened out between layers that follow each other.

    Only where it is exact: the first pattern ends in Relu or has no activation, its output has
    one consumer, and it adds no residual.
    """
    values: dict[str, Floats] = {}
    readers = {pattern.input: pattern for pattern in plan.patterns}
    for first in plan.patterns:
        second = readers.get(first.output)
        if second is not None and _is_exact(graph, first, second):
            _even_out(graph, first, second, values)
    draft = Draft(graph)
    for name, value in values.items():
        draft.replace(name, constant(name, value.astype(np.float32)))
    return draft.graph()


def _is_exact(graph: Graph, first: FusedPattern, second: FusedPattern) -> bool:
    constants = [first.weights, second.weights, *([_bias_of(graph, first)] if first.bias else [])]
    return (
        not first.add
        and (not first.activation or graph[first.activation].op == "Relu")
        and len(graph.uses.get(first.output, ())) == 1
        and first.output.node not in graph.endpoint_names
        and all(len(graph.uses.get(Edge(name), ())) == 1 and name not in graph.endpoint_names for name in constants)
    )


def _bias_of(graph: Graph, pattern: FusedPattern) -> str:
    return next(edge.node for edge in graph[pattern.bias].inputs if graph.constant_of(edge) is not None)


def _even_out(graph: Graph, first: FusedPattern, second: FusedPattern, values: dict[str, Floats]) -> None:
    def value(name: str) -> Floats:
        return values.get(name, graph[name].value.array.astype(np.float64))

    before, after = value(first.weights), value(second.weights)
    out, into = graph[first.layer], graph[second.layer]
    facts = find_layer(out)
    assert facts is not None
    sent = _reach(before, facts.weights_axes)
    taken = _reach(after, _input_axes(into))
    if len(sent) != len(taken):
        return
    alive = (sent > 0) & (taken > 0)
    scale = np.ones_like(sent)
    scale[alive] = np.clip(np.sqrt(taken[alive] / sent[alive]), 1 / MOST_SCALING, MOST_SCALING)
    values[first.weights] = before * facts.along_weights(scale, before.shape)
    if first.bias:
        name = _bias_of(graph, first)
        values[name] = (
            _by_channel(graph[name].value, len(scale)) * scale if name not in values else values[name] * scale
        )
    shape = [size if axis in _input_axes(into) else 1 for axis, size in enumerate(after.shape)]
    values[second.weights] = after / scale.reshape(shape)


def _input_axes(layer: Node) -> tuple[int, ...]:
    """Dimensions of the weights that number what the layer reads."""
    if layer.op == "MatMul":
        return (1,) if layer.attrs.get("transpose_b") else (0,)
    return (2,)


def _reach(weights: Floats, axes: tuple[int, ...]) -> Floats:
    rest = tuple(axis for axis in range(weights.ndim) if axis not in axes)
    found: Floats = np.abs(weights).max(rest).reshape(-1)
    return found
