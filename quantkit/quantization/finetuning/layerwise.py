"""Layer-wise fine-tuning: the weights are rounded such that each layer computes its float output from quantized inputs.

With X the inputs of a layer in the float model, Q those in the quantized model and W the weights, this minimizes

    |X W - Q V|^2,  the sum over samples        V: quantized weights

1. Least squares without rounding: V = (Q'Q)^-1 Q'X W.
2. Rounding row by row: the error of each row is compensated in the rows that are not rounded yet
   (GPTQ, Frantar et al., 2023). The scale of each channel is searched before. W itself is rounded, too: the better one
   of both is taken.
3. The bias takes the difference of the means: X and Q have zero means above in a layer with a bias.

No gradients are needed. Memory holds the matrices Q'Q and Q'X of the layers of one pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, Tensor
from quantkit.progress import OnProgress, Progress, ignore_progress
from quantkit.quantization.finetuning.simulation import Simulation, Trainable
from quantkit.quantization.finetuning.simulator import Simulator
from quantkit.quantization.finetuning.training import Training, TrainingResult
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.spec import Spec

Doubles = npt.NDArray[np.float64]
# Memory of the matrices of one pass in bytes, and the largest number of passes that smaller passes may cause.
PASS_BYTES, NUM_PASSES = 512 << 20, 16
# Rows of the input matrix of a layer that all samples contribute.
ROWS = 1 << 15
# Regularization of the least squares, as a fraction of the mean diagonal element.
DAMPING = 0.01
# Limits that the scale search tries, as fractions of the largest weight.
FRACTIONS = np.linspace(1.0, 0.5, 26)
# Repetitions of the rounding with the scale that the largest rounded weight implies.
ATTEMPTS = 3
# Products of matrices, with the attributes that transpose the first and the second one.
PRODUCTS = {"MatMul": ("transpose_a", "transpose_b"), "BatchMatMulV2": ("adj_x", "adj_y")}


@dataclass(frozen=True)
class _Layer:
    """Layer of the simulation with trained weights.

    Attributes:
        node: layer of the TensorFlow graph.
        trainable: its weights.
        bias: name of its bias in the float graph; empty without a bias of its own.
    """

    node: Node
    trainable: Trainable
    bias: str

    @property
    def is_depthwise(self) -> bool:
        return self.node.op == "DepthwiseConv2dNative"

    @property
    def is_transposed(self) -> bool:
        """True if the layer multiplies by its transposed weights."""
        return bool(self.node.attrs.get(PRODUCTS[self.node.op][1]))

    def matrices(self, weights: Array) -> Doubles:
        """Return weights in TensorFlow's layout as matrices (g, d, c), one for each group of input channels."""
        if self.node.op in PRODUCTS:
            return np.asarray(weights.T if self.is_transposed else weights, np.float64)[None]
        height, width, channels, last = weights.shape
        if self.is_depthwise:
            return np.asarray(weights, np.float64).reshape(height * width, channels, last).transpose(1, 0, 2)
        return np.asarray(weights, np.float64).reshape(1, height * width * channels, last)

    def weights(self, matrices: Doubles, shape: tuple[int, ...]) -> Array:
        """Return the weights of matrices; the inverse of `matrices`."""
        if self.node.op in PRODUCTS:
            matrix: Array = matrices[0].T if self.is_transposed else matrices[0]
            return matrix
        return np.asarray(matrices.transpose(1, 0, 2) if self.is_depthwise else matrices).reshape(shape)

    def rows(self, tf: Any, inputs: Array, shape: tuple[int, ...], count: int) -> Array:
        """Return rows (g, r, d) of the input matrices.

        Args:
            tf: TensorFlow.
            inputs: input tensor of the layer.
            shape: shape of the weights.
            count: largest number of rows of each sample; they are evenly distributed.
        """
        if self.node.op in PRODUCTS:
            return _spread(inputs.reshape(-1, inputs.shape[-1]), count * len(inputs))[None]
        # Patches of all samples together would need kh * kw times the memory of the input.
        patches = (
            _patches(tf, self.node, image[None], shape).reshape(-1, shape[0] * shape[1], shape[2]) for image in inputs
        )
        rows = np.concatenate([_spread(image, count) for image in patches])
        if self.is_depthwise:
            return rows.transpose(2, 0, 1)
        return rows.reshape(1, len(rows), -1)


def _spread(rows: Array, count: int) -> Array:
    """Return at most ``count`` rows, evenly distributed."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))]


def _patches(tf: Any, node: Node, images: Array, shape: tuple[int, ...]) -> Array:
    attrs: Mapping[str, Any] = node.attrs
    padding = attrs["padding"].decode()
    if padding == "EXPLICIT":
        images = np.pad(images, np.reshape(attrs["explicit_paddings"], (4, 2)).tolist())
        padding = "VALID"
    patches: Array = tf.image.extract_patches(
        images,
        [1, shape[0], shape[1], 1],
        list(attrs["strides"]),
        list(attrs.get("dilations", (1, 1, 1, 1))),
        padding,
    ).numpy()
    return patches


@dataclass
class _Moments:
    """Sums over the rows of the input matrices of a layer.

    Attributes:
        products, crossed: Q'Q and Q'X, (g, d, d).
        quantized_sum, float_sum: sums of the rows of Q and X, (g, d).
        count: number of rows.
    """

    products: Doubles
    crossed: Doubles
    quantized_sum: Doubles
    float_sum: Doubles
    count: int = 0

    @classmethod
    def of(cls, groups: int, depth: int) -> "_Moments":
        products, sums = (groups, depth, depth), (groups, depth)
        return cls(np.zeros(products), np.zeros(products), np.zeros(sums), np.zeros(sums))

    def add(self, quantized: Array, floats: Array) -> None:
        """Add rows, (g, r, d) each."""
        self.products += _product(quantized, quantized)
        self.crossed += _product(quantized, floats)
        self.quantized_sum += quantized.sum(1, dtype=np.float64)
        self.float_sum += floats.sum(1, dtype=np.float64)
        self.count += quantized.shape[1]

    def center(self) -> tuple[Doubles, Doubles]:
        """Return Q'Q and Q'X of rows whose mean is subtracted."""
        means = self.quantized_sum[:, :, None] / self.count
        return (
            self.products - means * self.quantized_sum[:, None, :],
            self.crossed - means * self.float_sum[:, None, :],
        )


def _product(first: Array, second: Array) -> Doubles:
    """Return A'B, (g, d, d), of rows (g, r, d).

    Only the deviations from the means are multiplied in float32: the rounding of large means could exceed the smallest
    eigenvalue of centered rows.
    """
    means = [rows.mean(1, dtype=np.float64, keepdims=True) for rows in (first, second)]
    deviations = [(rows - mean).astype(np.float32) for rows, mean in zip((first, second), means, strict=True)]
    product: Doubles = first.shape[1] * (means[0].transpose(0, 2, 1) @ means[1])
    product += deviations[0].transpose(0, 2, 1) @ deviations[1]
    return product


def tune_layers(
    training: Training,
    float_simulation: Simulation,
    biases: Mapping[str, Array],
    seconds: float,
    on_progress: OnProgress = ignore_progress,
) -> TrainingResult:
    """Round the weights of each layer for its float output, in the order of the graph.

    Args:
        training: samples and evaluation; its simulator has the calibrated simulation.
        float_simulation: simulation of the same plan whose biases are those of the float model.
        biases: values of each trained bias in the float model.
        seconds: time budget; no group of layers starts that would exceed it if it took as long as the slowest one.
        on_progress: callback for the finished layers.
    """
    simulator = training.simulator
    best = before = training.evaluate_start()
    layers = _find_layers(simulator.simulation)
    start = last = training.clock()
    done, slowest, stopped = 0, 0.0, ""
    for group in _passes(layers, simulator.simulation):
        now = training.clock()
        slowest, last = max(slowest, now - last), now
        if now - start + slowest > seconds:
            stopped = f"time budget exhausted after {done} of {len(layers)} layers"
            break
        moments = _observe(simulator, float_simulation, group, training)
        tensors: dict[str, Tensor] = {}
        for layer in group:
            tensors.update(_tune_layer(simulator.simulation, layer, moments.get(layer.node.name), biases))
            done += 1
            on_progress(Progress("fine-tuning", done, len(layers), layer.trainable.layers[0]))
        tuned = simulator.with_source(simulator.simulation.source.with_values(tensors))
        loss = replace(training, simulator=tuned).evaluate_start()
        if loss < best:
            simulator, best = tuned, loss
    return TrainingResult(simulator, simulator.variables.zeros(), before, best, done, stopped)


def _find_layers(simulation: Simulation) -> list[_Layer]:
    """Return the layers with weights of their own, in execution order."""
    graph = simulation.graph
    biases = {trainable.step[0]: trainable.name for trainable in simulation.trainables if trainable.step is not None}
    layers = []
    for trainable in simulation.trainables:
        uses = simulation.uses[trainable.name]
        consumers = [use.node for use in graph.node_uses.get(uses[0].node, ())]
        is_own = len(uses) == len(consumers) == 1 and trainable.spec is not None
        if is_own and _is_supported(consumers[0], graph[uses[0].node]):
            layers.append(_Layer(consumers[0], trainable, biases.get(trainable.name, "")))
    position = {name: number for number, name in enumerate(graph.order)}
    return sorted(layers, key=lambda layer: position[layer.node.name])


def _is_supported(node: Node, weights: Node) -> bool:
    if node.op in PRODUCTS:
        is_second = node.inputs[1].node == weights.name and weights.value.array.ndim == 2
        return is_second and not node.attrs.get(PRODUCTS[node.op][0])
    return node.op in ("Conv2D", "DepthwiseConv2dNative") and node.attrs.get("data_format", b"NHWC") == b"NHWC"


def _weights_of(simulation: Simulation, layer: _Layer) -> Array:
    """Return the weights of a layer in TensorFlow's layout."""
    values = simulation.source[layer.trainable.name].value.array
    positions = simulation.uses[layer.trainable.name][0].positions
    return values if positions is None else values.reshape(-1)[positions]


def _passes(layers: Sequence[_Layer], simulation: Simulation) -> Iterator[list[_Layer]]:
    """Yield groups of layers whose inputs are observed together."""
    group: list[_Layer] = []
    size = 0
    for layer in layers:
        groups, depth, _ = layer.matrices(_weights_of(simulation, layer)).shape
        num_bytes = 2 * groups * depth * depth * 8
        if group and (size + num_bytes > PASS_BYTES or len(group) >= ceil(len(layers) / NUM_PASSES)):
            yield group
            group, size = [], 0
        group.append(layer)
        size += num_bytes
    if group:
        yield group


def _observe(
    simulator: Simulator, float_simulation: Simulation, layers: Sequence[_Layer], training: Training
) -> dict[str, _Moments]:
    """Return the moments of the inputs of some layers over the training samples."""
    simulation, variables = simulator.simulation, simulator.variables
    edges = list(dict.fromkeys(layer.node.inputs[0] for layer in layers))
    quantized, floats = (
        Simulator(replace(each, graph=each.graph.with_endpoints(None, edges)), variables, simulator.objective)
        for each in (simulation, float_simulation)
    )
    tensors = quantized.quantize(variables.zeros())
    shapes = {layer.node.name: _weights_of(simulation, layer).shape for layer in layers}
    count = ceil(ROWS / sum(training.store.counts[run] for run in training.training_runs))
    moments: dict[str, _Moments] = {}
    for runs in training.micro_batches(training.training_runs):
        feeds, _, _ = training.store.read(runs)
        inputs = dict(zip(edges, quantized.run(tensors, feeds), strict=True))
        float_inputs = dict(zip(edges, floats.float_outputs(feeds), strict=True))
        for layer in layers:
            edge, name = layer.node.inputs[0], layer.node.name
            if not _is_whole(layer, inputs[edge], shapes[name]):
                continue
            rows, float_rows = (
                layer.rows(simulator.tf, values[edge], shapes[name], count) for values in (inputs, float_inputs)
            )
            moments.setdefault(name, _Moments.of(rows.shape[0], rows.shape[2])).add(rows, float_rows)
    return moments


def _is_whole(layer: _Layer, inputs: Array, shape: tuple[int, ...]) -> bool:
    """Return True if a layer uses all input channels for each output: a grouped convolution does not."""
    return layer.node.op in PRODUCTS or inputs.shape[-1] == shape[2]


def _tune_layer(
    simulation: Simulation, layer: _Layer, moments: _Moments | None, biases: Mapping[str, Array]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tuned weights and bias of a layer by name; empty without moments."""
    spec = layer.trainable.spec
    if moments is None or spec is None:
        return
    weights = _weights_of(simulation, layer)
    matrices = layer.matrices(weights)
    bias = biases.get(layer.bias)
    has_bias = bias is not None and bias.size == matrices.shape[0] * matrices.shape[2]
    products, crossed = moments.center() if has_bias else (moments.products, moments.crossed)
    rounded = _fit(matrices, products, crossed @ matrices, spec)
    tuned = layer.weights(rounded, weights.shape).astype(np.float32)
    source = simulation.source[layer.trainable.name].value
    positions = simulation.uses[layer.trainable.name][0].positions
    values = tuned
    if positions is not None:
        values = np.empty(source.num_elements, np.float32)
        values[positions] = tuned
    yield layer.trainable.name, Tensor.of(values.reshape(source.shape))
    if bias is not None and has_bias:
        means = (
            np.einsum("gd,gdc->gc", moments.float_sum, matrices)
            - np.einsum("gd,gdc->gc", moments.quantized_sum, rounded)
        ) / moments.count
        yield layer.bias, Tensor.of((bias + means.reshape(bias.shape)).astype(np.float32))


def _fit(matrices: Doubles, products: Doubles, expected: Doubles, spec: Spec) -> Doubles:
    """Return matrices of quantized weights.

    Args:
        matrices: float weights W, (g, d, c).
        products: Q'Q, (g, d, d).
        expected: Q'X W, (g, d, c).
        spec: number format.
    """
    damping = DAMPING * np.trace(products, axis1=1, axis2=2)[:, None, None] / matrices.shape[1] + 1e-12
    damped = products + damping * np.eye(matrices.shape[1])
    solved = np.linalg.solve(damped, expected + damping * matrices)
    candidates = [_round_matrices(targets, damped, spec) for targets in (solved, matrices)]
    # |X W - Q V|^2 without the term that V does not change.
    errors = [np.sum(values * (products @ values - 2 * expected)) for values in candidates]
    return candidates[int(np.argmin(errors))]


def _round_matrices(targets: Doubles, products: Doubles, spec: Spec) -> Doubles:
    """Return matrices of quantized weights; the largest one of each channel gives back the scale."""
    parameters = _search_scale(targets, products, spec)
    inverse_factors = np.linalg.cholesky(np.linalg.inv(products)).transpose(0, 2, 1)
    for _ in range(ATTEMPTS):
        rounded = _compensate(targets, inverse_factors, parameters)
        implied = _parameters_of(rounded, spec, 1.0)
        if np.allclose(implied.scale, parameters.scale, rtol=1e-5):
            break
        parameters = implied
    return rounded


def _parameters_of(matrices: Doubles, spec: Spec, fraction: float) -> QuantizationParameters:
    """Return the parameters of a fraction of the weights' range: (g, 1, c) per channel, else (1, 1, 1)."""
    axes = 1 if spec.axes else None
    low, high = matrices.min(axes, keepdims=True), matrices.max(axes, keepdims=True)
    return QuantizationParameters.of_limits(spec, fraction * low, fraction * high)


def _search_scale(targets: Doubles, products: Doubles, spec: Spec) -> QuantizationParameters:
    """Return the parameters with the smallest error, weighted by the power of the inputs."""
    power = np.diagonal(products, axis1=1, axis2=2)[:, :, None]
    axes = 1 if spec.axes else None
    candidates = [_parameters_of(targets, spec, fraction) for fraction in FRACTIONS]
    errors = [
        (power * (_quantize(targets, candidate) - targets) ** 2).sum(axes, keepdims=True) for candidate in candidates
    ]
    best = np.argmin(errors, 0)[None]
    scale, zero = (
        np.take_along_axis(np.stack([getattr(candidate, name) for candidate in candidates]), best, 0)[0]
        for name in ("scale", "zero_point")
    )
    return QuantizationParameters(spec, scale, zero)


def _quantize(values: Doubles, parameters: QuantizationParameters) -> Doubles:
    levels = np.clip(np.rint(values / parameters.scale) + parameters.zero_point, *parameters.spec.limits)
    return np.asarray((levels - parameters.zero_point) * np.float64(parameters.scale), np.float64)


def _compensate(targets: Doubles, inverse_factors: Doubles, parameters: QuantizationParameters) -> Doubles:
    """Round row by row, and move each row's error to the rows after it.

    Args:
        targets: matrices (g, d, c).
        inverse_factors: upper Cholesky factors of the inverse of Q'Q, (g, d, d).
        parameters: broadcast against rows (g, 1, c).
    """
    remaining, rounded = targets.copy(), np.empty_like(targets)
    for row in range(targets.shape[1]):
        current = remaining[:, row : row + 1]
        rounded[:, row : row + 1] = _quantize(current, parameters)
        error = (current - rounded[:, row : row + 1]) / inverse_factors[:, row, row, None, None]
        remaining[:, row + 1 :] -= inverse_factors[:, row, row + 1 :, None] * error
    return rounded
