"""Bias correction and cross-layer equalization.

Bias correction: rounding the weights shifts the mean of each output channel by

    E[y_q - y] = sum over positions and input channels of (W_q - W) * E[x]     (Nagel et al., 2019)

and the bias is corrected by the same amount. Clipping and rounding the activations shifts it by

    E[y_q - y] = sum over positions and input channels of W_q * E[x_q - x]

which is corrected, too, if these errors were measured.

Cross-layer equalization: relu(s * y) = s * relu(y) for s > 0, so that a channel's scale can move
through a ReLU, from the weights and bias of one layer to the weights of the next one:

    s = sqrt(max |W_2| of this input channel / max |W_1| of this output channel)

With the largest values of the channels, s also equalizes the tensor between both layers, and passes a Relu6 or a Clip
in channels that stay below its limit.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from quantkit.formats.onnx import DIALECT
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name, remove_unused
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import CONVOLUTION_OPS, clip_limits
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Ranges

Floats = npt.NDArray[np.float64]
# Largest factor for one channel: a nearly dead channel must not increase the noise of the next layer.
MAX_SCALING = 16.0
# Iterations over all pairs of layers: a layer between two others has factors at both sides.
SWEEPS = 8
# Fraction of the limit of a Relu6 or Clip for the largest observed value: other samples may have larger ones.
RELU6_LIMIT, LIMIT_FRACTION = 6.0, 0.85
# Common factors of the channels of a tensor that the search tries.
COMMON_FACTORS = np.exp2(np.arange(-4, 4.01, 0.25))


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
    return remove_unused(graph, draft.graph())


def _constant(graph: Graph, name: str, values: Array) -> Node:
    if graph.dialect == DIALECT:
        return Node(free_name(graph, name), "Constant", attrs={"value": Tensor.of(values)})
    return constant(name, values)


def _by_channel(value: Tensor, count: int) -> Array:
    return np.broadcast_to(value.array.reshape(-1), (count,))


def equalize(
    graph: Graph,
    plan: Plan,
    maxima: Mapping[Edge, Array] = MappingProxyType({}),
    float_patterns: Sequence[FusedPattern] = (),
) -> Graph:
    """Return a graph with equalized scales of consecutive layers.

    Only where it is exact: the first pattern ends in Relu or has no activation, its output has
    one consumer, and it adds no residual.

    Args:
        graph: float graph.
        plan: plan of ``graph``.
        maxima: largest absolute value of each channel by edge. With them, the tensor between both
            layers is equalized, too, and weights that have a scale per channel are ignored. The
            first pattern may end in Relu6 or Clip: the result is exact for inputs within the maxima.
        float_patterns: patterns of layers that stay float. Their weights take every factor without an error, so that
            only the tensor and the quantized layer before or after them count. They need maxima.
    """
    maxima = {edge: values for edge, values in maxima.items() if np.isfinite(values).all()}
    patterns = (*plan.patterns, *float_patterns)
    consumer_of = {pattern.input: pattern for pattern in patterns if pattern.weights}
    pairs = []
    for first in patterns:
        second = consumer_of.get(first.output)
        if first.weights and second is not None and _is_equalizable(graph, first, second, maxima):
            pairs.append(_Pair(graph, plan, first, second, maxima.get(first.output)))
    values: dict[str, Floats] = {}
    for _ in range(SWEEPS if maxima else 1):
        for pair in pairs:
            pair.equalize(values)
    draft = Draft(graph)
    for name, value in values.items():
        tensor = Tensor.of(value.astype(np.float32))
        node = graph[name].with_attrs(value=tensor) if graph.dialect == DIALECT else constant(name, tensor.array)
        draft.replace(name, node)
    return draft.graph()


def _is_equalizable(graph: Graph, first: FusedPattern, second: FusedPattern, maxima: Mapping[Edge, Array]) -> bool:
    constants = [first.weights, second.weights]
    constants += [bias] if (bias := find_roles(graph).bias_constant(graph, graph[first.layer], first.bias)) else []
    return (
        not first.add
        and (_find_limit(graph, first) == np.inf or first.output in maxima)
        and all(_find_layer_axes(graph, pattern) is not None for pattern in (first, second))
        and _channel_axis(graph, first) == _channel_axis(graph, second)
        and len(graph.uses.get(first.output, ())) == 1
        and first.output.node not in graph.endpoint_names
        and all(len(graph.uses.get(Edge(name), ())) == 1 and name not in graph.endpoint_names for name in constants)
    )


def _find_limit(graph: Graph, pattern: FusedPattern) -> float:
    """Return the upper limit of the activation of a pattern, 0 if it is computed."""
    if not pattern.activation or graph[pattern.activation].op == "Relu":
        return np.inf
    node = graph[pattern.activation]
    if graph.dialect != DIALECT:
        return RELU6_LIMIT if node.op == "Relu6" else 0.0
    is_constant = len(node.inputs) < 3 or not node.inputs[2].node or graph.constant_of(node.inputs[2]) is not None
    upper = clip_limits(graph, node)[1] if is_constant else 0.0
    return np.inf if upper is None else upper


def _channel_axis(graph: Graph, pattern: FusedPattern) -> int:
    """Return the axis of the channels in the inputs and outputs of a layer."""
    return 1 if graph.dialect == DIALECT and graph[pattern.layer].op in CONVOLUTION_OPS else -1


def _find_layer_axes(graph: Graph, pattern: FusedPattern) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the axes of the weights with the output channels, and those with the input channels; None if unknown."""
    layer = graph[pattern.layer]
    facts = find_roles(graph).find_layer(graph, layer)
    input_axes = _input_axes(graph, layer)
    return None if facts is None or not input_axes else (facts.weights_axes, input_axes)


class _Pair:
    """Two consecutive layers, and the scale of each channel between them.

    Attributes:
        maxima: largest absolute value of each channel between the layers, or None.
        scale: product of the factors so far; None before the first iteration.
        output_axes: axes of the first weights with the channels.
        input_axes: axes of the second weights with the channels.
        counts_first, counts_second: False for float weights, and for weights whose channels have their own quantization
            parameters.
        ceiling: largest value of a channel after scaling.
    """

    def __init__(
        self, graph: Graph, plan: Plan, first: FusedPattern, second: FusedPattern, maxima: Array | None
    ) -> None:
        self.graph = graph
        self.first, self.second = first, second
        self.maxima = None if maxima is None else maxima.astype(np.float64)
        self.scale: Floats | None = None
        first_axes, second_axes = _find_layer_axes(graph, first), _find_layer_axes(graph, second)
        assert first_axes is not None, "the axes of equalizable layers are known"
        assert second_axes is not None, "the axes of equalizable layers are known"
        self.output_axes, self.input_axes = first_axes[0], second_axes[1]
        # Float weights, and a scale per channel of the weights, absorb the factors of their channels.
        first_spec, second_spec = (plan.weights.get(pattern.weights) for pattern in (first, second))
        is_depthwise = set(self.input_axes) <= set(second_axes[0])
        self.counts_first = maxima is None or not (first_spec is None or first_spec.axes)
        self.counts_second = maxima is None or not (second_spec is None or (second_spec.axes and is_depthwise))
        self.ceiling = LIMIT_FRACTION * _find_limit(graph, first)

    def equalize(self, values: dict[str, Floats]) -> None:
        """Move the factors of the channels from the first to the second layer.

        Args:
            values: constants that are equalized already; it receives those of this pair.
        """

        def value(name: str) -> Floats:
            return values.get(name, self.graph[name].value.array.astype(np.float64))

        before, after = value(self.first.weights), value(self.second.weights)
        sizes_out, sizes_in = _max_abs(before, self.output_axes), _max_abs(after, self.input_axes)
        if len(sizes_out) != len(sizes_in) or (self.maxima is not None and len(self.maxima) != len(sizes_in)):
            return
        factor = self._find_factor(sizes_out, sizes_in)
        values[self.first.weights] = before * _broadcast(factor, before.shape, self.output_axes)
        layer = self.graph[self.first.layer]
        if name := find_roles(self.graph).bias_constant(self.graph, layer, self.first.bias):
            values[name] = (
                _by_channel(self.graph[name].value, len(factor)) * factor
                if name not in values
                else (values[name] * factor)
            )
        values[self.second.weights] = after / _broadcast(factor, after.shape, self.input_axes)

    def _find_factor(self, sizes_out: Floats, sizes_in: Floats) -> Floats:
        """Return the factor of each channel, relative to the present scale."""
        scale = np.ones_like(sizes_out) if self.scale is None else self.scale
        multiplied = [sizes_out] if self.counts_first else []
        if self.maxima is not None:
            multiplied.append(self.maxima * scale)
        divided = [sizes_in] if self.counts_second else []
        used = np.all([sizes > 0 for sizes in (sizes_out, sizes_in, *multiplied)], axis=0)
        # target = (prod(divided) / prod(multiplied)) ** (1 / n): prod(multiplied * target) == prod(divided / target)
        target = np.ones_like(scale)
        ratios = [1 / sizes[used] for sizes in multiplied] + [sizes[used] for sizes in divided]
        target[used] = np.prod(ratios, axis=0) ** (1 / len(ratios)) if ratios else 1.0
        self.scale = self._limit(scale * target, [sizes / scale for sizes in multiplied], [x * scale for x in divided])
        return np.asarray(self.scale / scale)

    def _limit(self, target: Floats, multiplied: list[Floats], divided: list[Floats]) -> Floats:
        """Return scales within the limits, multiplied by the common factor that loses the fewest bits."""
        upper = np.full_like(target, MAX_SCALING)
        lower = 1 / upper
        if self.maxima is not None and np.isfinite(self.ceiling):
            is_clamped = self.maxima >= self.ceiling
            upper = np.where(is_clamped, 1.0, np.minimum(upper, self.ceiling / np.maximum(self.maxima, 1e-12)))
            lower = np.where(is_clamped, 1.0, lower)
        best, least = target, np.inf
        for factor in COMMON_FACTORS if self.maxima is not None else (1.0,):
            scale = np.clip(factor * target, lower, upper)
            tensors = [sizes * scale for sizes in multiplied] + [sizes / scale for sizes in divided]
            lost_bits = sum(float(np.log2(sizes.max() / np.maximum(sizes, 1e-12)).sum()) for sizes in tensors)
            if lost_bits < least:
                best, least = scale, lost_bits
        return np.asarray(best)


def _input_axes(graph: Graph, layer: Node) -> tuple[int, ...]:
    """Return the dimensions of the weights that index the input channels; empty if they are not known."""
    if layer.op in ("MatMul", "Gemm"):
        return (1,) if layer.attrs.get("transpose_b") or layer.attrs.get("transB") else (0,)
    if graph.dialect != DIALECT:
        return (3,) if layer.op == "Conv2DBackpropInput" else (2,)
    if layer.op not in CONVOLUTION_OPS:
        return ()
    if layer.attrs.get("group", 1) == 1:
        return (1,) if layer.op == "Conv" else (0,)
    weights = graph.constant_of(layer.inputs[WEIGHTS_INDEX])
    is_depthwise = layer.op == "Conv" and weights is not None and weights.shape[0] == layer.attrs["group"]
    return (0,) if is_depthwise else ()


def _broadcast(factor: Floats, shape: tuple[int, ...], axes: tuple[int, ...]) -> Floats:
    """Return factors in a shape that broadcasts against weights."""
    return factor.reshape([size if axis in axes else 1 for axis, size in enumerate(shape)])


def _max_abs(weights: Floats, axes: tuple[int, ...]) -> Floats:
    rest = tuple(axis for axis in range(weights.ndim) if axis not in axes)
    sizes: Floats = np.abs(weights).max(rest).reshape(-1)
    return sizes
