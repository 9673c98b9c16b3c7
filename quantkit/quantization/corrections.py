"""Bias correction and cross-layer equalization.

Bias correction: rounding the weights shifts the mean of each output channel by

    E[y_q - y] = sum over positions and input channels of (W_q - W) * E[x]     (Nagel et al., 2019)

and the bias is corrected by the same amount. Clipping and rounding the activations shifts it by

    E[y_q - y] = sum over positions and input channels of W_q * E[x_q - x]

which is corrected, too, if these errors were measured.

Cross-layer equalization: relu(s * y) = s * relu(y) for s > 0, so that a channel's scale can move
through a ReLU, from the weights and bias of one layer to the weights of the next one:

    s = sqrt(max |W_2| of this input channel / max |W_1| of this output channel)
"""

import numpy as np
import numpy.typing as npt

from quantkit.formats.onnx import DIALECT
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.layers import find_layer
from quantkit.ops.roles import find_roles
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Ranges

Floats = npt.NDArray[np.float64]
# Largest factor for one channel: a nearly dead channel must not increase the noise of the next layer.
MAX_SCALING = 16.0


def correct_biases(graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
    """Return the float graph with biases that cancel the shift by rounded weights.

    Args:
        graph: float graph.
        plan: plan of ``graph``.
        ranges: with the mean of each input channel (`Ranges.means`). Patterns without one keep
            their bias. `Ranges.mean_errors` may be empty.
    """
    draft = Draft(graph)
    roles = find_roles(graph)
    for pattern in plan.patterns:
        layer, means = graph[pattern.layer], ranges.means.get(pattern.input)
        bias_input = roles.bias_input(graph, layer, pattern.bias) if means and pattern.weights else None
        if bias_input is None:
            continue
        weights = graph[pattern.weights].value.array
        parameters = QuantizationParameters.of_weights(plan.weights[pattern.weights], weights)
        rounded = parameters.fake_quantize(weights).astype(np.float64)
        shift = roles.mean_outputs(layer, rounded - weights, np.asarray(means))
        if shift is None:
            continue
        if (mean_errors := ranges.mean_errors.get(pattern.input)) is not None:
            activation_shift = roles.mean_outputs(layer, rounded, np.asarray(mean_errors))
            shift = shift if activation_shift is None else shift + activation_shift
        node, slot = bias_input
        value = graph[node.inputs[slot].node].value if slot < len(node.inputs) else Tensor.of(np.float32(0))
        corrected = (_by_channel(value, len(shift)).astype(np.float64) - shift).astype(np.float32)
        bias = _constant(graph, f"{node.name}/corrected", corrected)
        inputs = (*node.inputs[:slot], Edge(bias.name), *node.inputs[slot + 1 :])
        draft.replace(node.name, bias, node.with_(inputs=inputs))
    return draft.graph()


def _constant(graph: Graph, name: str, values: Array) -> Node:
    if graph.dialect == DIALECT:
        return Node(free_name(graph, name), "Constant", attrs={"value": Tensor.of(values)})
    return constant(name, values)


def _by_channel(value: Tensor, count: int) -> Array:
    return np.broadcast_to(value.array.reshape(-1), (count,))


def equalize(graph: Graph, plan: Plan) -> Graph:
    """Return an equal graph with equalized scales of consecutive layers.

    Only where it is exact: the first pattern ends in Relu or has no activation, its output has
    one consumer, and it adds no residual.
    """
    values: dict[str, Floats] = {}
    consumer_of = {pattern.input: pattern for pattern in plan.patterns}
    for first in plan.patterns:
        second = consumer_of.get(first.output)
        if second is not None and _is_exact(graph, first, second):
            _equalize_pair(graph, first, second, values)
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


def _equalize_pair(graph: Graph, first: FusedPattern, second: FusedPattern, values: dict[str, Floats]) -> None:
    def value(name: str) -> Floats:
        return values.get(name, graph[name].value.array.astype(np.float64))

    before, after = value(first.weights), value(second.weights)
    producer, consumer = graph[first.layer], graph[second.layer]
    facts = find_layer(producer)
    assert facts is not None
    sizes_out = _max_abs(before, facts.weights_axes)
    sizes_in = _max_abs(after, _input_axes(consumer))
    if len(sizes_out) != len(sizes_in):
        return
    nonzero = (sizes_out > 0) & (sizes_in > 0)
    scale = np.ones_like(sizes_out)
    scale[nonzero] = np.clip(np.sqrt(sizes_in[nonzero] / sizes_out[nonzero]), 1 / MAX_SCALING, MAX_SCALING)
    values[first.weights] = before * facts.reshape_for_weights(scale, before.shape)
    if first.bias:
        name = _bias_of(graph, first)
        values[name] = (
            _by_channel(graph[name].value, len(scale)) * scale if name not in values else values[name] * scale
        )
    shape = [size if axis in _input_axes(consumer) else 1 for axis, size in enumerate(after.shape)]
    values[second.weights] = after / scale.reshape(shape)


def _input_axes(layer: Node) -> tuple[int, ...]:
    """Return the dimensions of the weights that index the input channels."""
    if layer.op == "MatMul":
        return (1,) if layer.attrs.get("transpose_b") else (0,)
    return (2,)


def _max_abs(weights: Floats, axes: tuple[int, ...]) -> Floats:
    rest = tuple(axis for axis in range(weights.ndim) if axis not in axes)
    sizes: Floats = np.abs(weights).max(rest).reshape(-1)
    return sizes
