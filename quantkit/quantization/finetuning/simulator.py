"""Simulator: the simulation as a TensorFlow function, its loss, and the gradients of the variables.

Rounding has the gradient of the identity (straight-through estimator). The gradient of a range is that of the learned
step size (LSQ, Esser et al., 2020): with y = fake_quant(x) and s the step,

    dy/ds  =  (y - x) / s  inside the range,  the limit in steps  outside
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from quantkit.errors import GraphError, QuantkitError
from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import Array, DType
from quantkit.quantization.finetuning.simulation import (
    FAKE_QUANT,
    GRADIENT_ATTRIBUTE,
    LEARNED_STEP,
    Simulation,
    limit_name,
)
from quantkit.quantization.finetuning.variables import Floats, Variables
from quantkit.quantization.spec import Spec
from quantkit.runtimes.tensorflow_library import graph_def, import_tensorflow, suppress_log, translate_error

NO_GRADIENT = b"QuantkitNoGradient"
# Probabilities below this are equal.
LEAST_PROBABILITY = 1e-7
# Weights of the parts of the loss: squared errors of the logits and of the features, and the cross entropy of labels.
LOGITS_WEIGHT, FEATURES_WEIGHT, LABELS_WEIGHT = 0.01, 0.1, 0.2
# Kinds of outputs.
PROBABILITIES, LOGITS, VALUES = "probabilities", "logits", "values"


class OutOfMemoryError(QuantkitError):
    """A training step that needs more memory than TensorFlow can allocate."""


@dataclass(frozen=True)
class Objective:
    """Distance of the simulation's outputs from those of the float model.

    Attributes:
        kind: `PROBABILITIES`, `LOGITS` or `VALUES`.
        powers: mean square of each output of the float model, which normalizes the errors.
        feature_power: mean square of the features, the last output: the input of the last layer, which has more
            values than the class scores; None without features.
    """

    kind: str
    powers: tuple[float, ...]
    feature_power: float | None = None

    def loss(self, tf: Any, outputs: Sequence[Any], expected: Sequence[Any], classes: Any) -> Any:
        """Return the mean loss of the samples for the training, a TensorFlow scalar.

        Args:
            tf: TensorFlow.
            outputs: outputs of the simulation, (n, ...) each.
            expected: outputs of the float model.
            classes: class index of each sample, -1 for a sample without a label.
        """
        loss = self._distance(tf, outputs, expected, classes)
        if self.feature_power is None:
            return loss
        errors = tf.math.squared_difference(outputs[-1], expected[-1])
        return loss + FEATURES_WEIGHT * tf.reduce_mean(errors) / self.feature_power

    def _distance(self, tf: Any, outputs: Sequence[Any], expected: Sequence[Any], classes: Any) -> Any:
        if self.kind == VALUES:
            errors = [
                tf.reduce_mean(tf.math.squared_difference(output, target)) / power
                for output, target, power in zip(outputs, expected, self.powers, strict=True)
            ]
            return tf.add_n(errors) / len(errors)
        logits, targets = (_center(tf, self._logits(tf, values[0])) for values in (outputs, expected))
        probabilities = tf.nn.softmax(targets)
        log_ratios = tf.nn.log_softmax(targets) - tf.nn.log_softmax(logits)
        divergence = tf.reduce_mean(tf.reduce_sum(probabilities * log_ratios, -1))
        squares = tf.reduce_mean(tf.math.squared_difference(logits, targets)) / self.powers[0]
        labeled = tf.cast(classes >= 0, tf.float32)
        entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(classes, 0), logits)
        return divergence + LOGITS_WEIGHT * squares + LABELS_WEIGHT * tf.reduce_mean(labeled * entropies)

    def measure(self, outputs: Sequence[Array], expected: Sequence[Array]) -> float:
        """Return the loss of arrays, without labels and features."""
        tf = import_tensorflow()
        computed, targets = ([tf.constant(array, tf.float32) for array in arrays] for arrays in (outputs, expected))
        return float(self._distance(tf, computed, targets, tf.fill([len(outputs[0])], -1)))

    def _logits(self, tf: Any, values: Any) -> Any:
        values = tf.reshape(values, [tf.shape(values)[0], -1])
        return tf.math.log(tf.maximum(values, LEAST_PROBABILITY)) if self.kind == PROBABILITIES else values


def _center(tf: Any, logits: Any) -> Any:
    return logits - tf.reduce_mean(logits, -1, keepdims=True)


class Simulator:
    """Simulation as TensorFlow functions of variables, feeds and expected outputs.

    Attributes:
        frozen_ops: op types without a gradient; no gradient passes them.
        unreached: indices of the variables that no gradient reaches, known after the first call of `gradients`.
    """

    def __init__(self, simulation: Simulation, variables: Variables, objective: Objective) -> None:
        self.simulation = simulation
        self.variables = variables
        self.objective = objective
        self.frozen_ops: set[str] = set()
        self.unreached: frozenset[int] = frozenset()
        with suppress_log():
            self.tf = import_tensorflow()
        _register_gradients(self.tf)
        self._ops = {node.name: node.op for node in simulation.graph.nodes.values()}

    def with_simulation(self, simulation: Simulation) -> "Simulator":
        """Return a simulator of another simulation, whose variables are 0, with the same objective."""
        return Simulator(simulation, Variables.of(simulation), self.objective)

    def outputs(self, values: Sequence[Floats], feeds: Sequence[Array]) -> list[Array]:
        """Return the outputs of the simulation.

        Args:
            values: value of each variable.
            feeds: array of each input, in the order of the graph's inputs.
        """
        return [np.asarray(output) for output in self._call(self._outputs, list(values), list(feeds))]

    def float_outputs(self, feeds: Sequence[Array]) -> list[Array]:
        """Return the outputs without quantization, for the constants of the graph itself."""
        return [np.asarray(output) for output in self._call(self._float_outputs, list(feeds))]

    def gradients(
        self, values: Sequence[Floats], feeds: Sequence[Array], expected: Sequence[Array], classes: Array
    ) -> tuple[float, list[Floats]]:
        """Return the loss of a batch and its gradient for each variable; 0 where no gradient arrives.

        Raises:
            OutOfMemoryError: the batch needs too much memory.
            GraphError: TensorFlow rejects the graph.
        """
        while True:
            try:
                loss, gradients = self._call(self._gradients, list(values), list(feeds), list(expected), classes)
            except LookupError as error:
                self._freeze(str(error))
                continue
            return float(loss), [np.asarray(gradient) for gradient in gradients]

    def compute(self, values: Sequence[Any], feeds: Sequence[Any]) -> list[Any]:
        """Return the output tensors of the simulation, inside of a ``tf.function``.

        Args:
            values: tensor of each variable.
            feeds: tensor of each input, in the order of the graph's inputs.
        """
        tf, graph = self.tf, self.simulation.graph
        scales = self._scales(self.variables.split(values)[2])
        mapped = dict(zip(map(_tensor_name, graph.inputs), feeds, strict=True))
        mapped.update(self._constant_tensors(values, scales))
        for edge in self.simulation.edges:
            for suffix, steps in zip(("low", "high"), edge.step_limits, strict=True):
                mapped[f"{limit_name(edge, suffix)}:0"] = scales[edge.owner] * np.float32(steps)
        message = graph_def(graph)
        for node in message.node:
            if node.op in self.frozen_ops:
                node.attr[GRADIENT_ATTRIBUTE].s = NO_GRADIENT
        names = [_tensor_name(edge) for edge in graph.outputs]
        results: list[Any] = tf.graph_util.import_graph_def(
            message, input_map=mapped, return_elements=names, name="simulation"
        )
        return results

    @property
    def frozen_layers(self) -> tuple[str, ...]:
        """Layers whose weights no gradient reaches."""
        unreached = [constant for index, constant in enumerate(self.variables.constants) if index in self.unreached]
        weights = (constant.trainable for constant in unreached if constant.limits is not None)
        return tuple(layer for trainable in weights for layer in trainable.layers)

    def _freeze(self, message: str) -> None:
        """Stop gradients at the op type that an error names.

        Raises:
            GraphError: the error names no op type of the graph.
        """
        ops = set(self._ops.values())
        names = [op for op in sorted(ops, key=len, reverse=True) if f"op type: {op})" in message]
        if not names or names[0] in self.frozen_ops:
            raise GraphError(f"no gradient of the graph is known: {message}", hint="use --finetune layerwise")
        self.frozen_ops.add(names[0])
        self.__dict__.pop("_gradients", None)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with suppress_log():
                return function(*arguments)
        except (self.tf.errors.ResourceExhaustedError, MemoryError) as error:
            raise OutOfMemoryError("a training step needs more memory than is available") from error
        except self.tf.errors.OpError as error:
            raise translate_error(error, self._ops) from error

    @cached_property
    def _outputs(self) -> Any:
        return self.tf.function(lambda values, feeds: self.compute(values, feeds), autograph=False)

    @cached_property
    def _float_outputs(self) -> Any:
        graph = self.simulation.graph
        nodes = (
            Node(node.name, "Identity", node.inputs[:1], attrs={"T": DType.FLOAT}) if node.op == FAKE_QUANT else node
            for node in graph.nodes.values()
        )
        message = graph_def(graph.with_nodes(nodes))
        names = [_tensor_name(edge) for edge in graph.outputs]

        def compute(feeds: list[Any]) -> Any:
            mapped = dict(zip(map(_tensor_name, graph.inputs), feeds, strict=True))
            return self.tf.graph_util.import_graph_def(message, input_map=mapped, return_elements=names, name="float")

        return self.tf.function(compute, autograph=False)

    @cached_property
    def _gradients(self) -> Any:
        tf = self.tf

        def compute(values: list[Any], feeds: list[Any], expected: list[Any], classes: Any) -> tuple[Any, list[Any]]:
            variables = [tf.identity(value) for value in values]
            loss = self.objective.loss(tf, self.compute(variables, feeds), expected, classes)
            gradients = tf.gradients(loss, variables)
            self.unreached = frozenset(index for index, gradient in enumerate(gradients) if gradient is None)
            return loss, [
                tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
                for variable, gradient in zip(variables, gradients, strict=True)
            ]

        return tf.function(compute, autograph=False)

    def _scales(self, logarithms: Sequence[Any]) -> dict[Edge, Any]:
        """Return the scale of each owner of a range."""
        tf = self.tf
        scales = {edge.owner: tf.constant(edge.parameters.scale, tf.float32) for edge in self.simulation.edges}
        for (owner, scale), logarithm in zip(self.variables.scales.items(), logarithms, strict=True):
            scales[owner] = np.float32(scale) * tf.exp(logarithm)
        return scales

    def _constant_tensors(self, values: Sequence[Any], scales: Mapping[Edge, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the tensors of the trained constants as the target computes with them, by tensor name."""
        tf = self.tf
        steps: dict[str, Any] = {}
        variables, clipping, _ = self.variables.split(values)
        for constant, value in zip(self.variables.constants, variables, strict=True):
            trainable = constant.trainable
            tensor = constant.values + constant.step * value
            if constant.limits is not None and trainable.spec is not None:
                low, high = (limit * tf.exp(clipping[trainable.name]) for limit in constant.limits)
                tensor = tf.clip_by_value(tensor, low, high)
                steps[trainable.name], zero = find_parameters(tf, tensor, trainable.spec)
                tensor = fake_quantize(tf, tensor, trainable.spec, steps[trainable.name], zero)
            elif trainable.step is not None and trainable.step[0] in steps:
                tensor = _round_bias(tf, tensor, steps[trainable.step[0]] * scales[trainable.step[1]])
            for use in self.simulation.uses[trainable.name]:
                moved = tensor if use.positions is None else tf.gather(tf.reshape(tensor, [-1]), use.positions)
                yield f"{use.node}:0", moved


def _tensor_name(edge: Any) -> str:
    return f"{edge.node}:{edge.port}"


def find_parameters(tf: Any, values: Any, spec: Spec) -> tuple[Any, Any]:
    """Return scale and zero point of weights, as `QuantizationParameters.of_weights`, with gradients."""
    first, last = spec.limits
    rest = [axis for axis in range(values.shape.rank) if axis not in spec.axes] if spec.axes else None
    low = tf.minimum(tf.reduce_min(values, rest, keepdims=True), 0.0)
    high = tf.maximum(tf.reduce_max(values, rest, keepdims=True), 0.0)
    scale = tf.maximum(-low, high) / last if spec.symmetric else (high - low) / (last - first)
    scale = tf.where(scale < np.finfo(np.float32).tiny, tf.ones_like(scale), scale)
    if spec.symmetric:
        return scale, tf.zeros_like(scale)
    return scale, tf.stop_gradient(tf.clip_by_value(tf.round(first - low / scale), first, last))


def fake_quantize(tf: Any, values: Any, spec: Spec, scale: Any, zero: Any) -> Any:
    """Return quantized and dequantized values."""
    first, last = spec.limits
    return (tf.clip_by_value(_round(tf, values / scale) + zero, first, last) - zero) * scale


def _round_bias(tf: Any, bias: Any, step: Any) -> Any:
    """Return a bias of 32 bits; a bias whose size is not that of the channels stays float."""
    if step.shape.num_elements() not in (1, bias.shape.num_elements()):
        return bias
    step = tf.reshape(step, [] if step.shape.num_elements() == 1 else bias.shape)
    return _round(tf, bias / step) * step


def _round(tf: Any, values: Any) -> Any:
    """Round with the gradient of the identity."""
    return values + tf.stop_gradient(tf.round(values) - values)


def _register_gradients(tf: Any) -> None:
    """Register the gradients that nodes of the simulation name, once per process."""
    try:
        tf.RegisterGradient(LEARNED_STEP.decode())(_learned_step_gradient)
        tf.RegisterGradient(NO_GRADIENT.decode())(lambda op, *gradients: [None] * len(op.inputs))
    except KeyError:
        return  # they are registered


def _learned_step_gradient(op: Any, gradient: Any) -> list[Any]:
    """Return the gradients of the input and of both limits of a FakeQuant."""
    tf = import_tensorflow()
    values, low, high = op.inputs
    below, above = values < low, values > high
    zeros = tf.zeros_like(gradient)
    inside = tf.where(tf.logical_or(below, above), zeros, gradient)
    # The part of the step: (y - x) / step, shared by both limits, whose distance is the number of steps.
    error = tf.reduce_sum(inside * (op.outputs[0] - values)) / (high - low)
    return [
        inside,
        tf.reduce_sum(tf.where(below, gradient, zeros)) - error,
        tf.reduce_sum(tf.where(above, gradient, zeros)) + error,
    ]
