"""Simulator: the simulation as a TensorFlow function, its loss, and the gradients of the variables.

Rounding has the gradient of the identity (straight-through estimator). The gradient of a range is that of the learned
step size (LSQ, Esser et al., 2020): with y = fake_quant(x) and s the step,

    dy/ds  =  (y - x) / s  inside the range,  the limit in steps  outside
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from quantkit.errors import GraphError, QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType
from quantkit.quantization.finetuning.quantized_constants import QuantizedConstants
from quantkit.quantization.finetuning.simulation import (
    FAKE_QUANT,
    GRADIENT_ATTRIBUTE,
    LEARNED_STEP,
    Simulation,
    limit_name,
)
from quantkit.quantization.finetuning.sums import STRAIGHT_THROUGH, restore_operands, sum_tensors
from quantkit.quantization.finetuning.variables import Floats, Variables
from quantkit.runtimes.tensorflow_library import graph_def, import_tensorflow, suppress_log, translate_error

NO_GRADIENT = b"QuantkitNoGradient"
# Probabilities below this are equal.
LEAST_PROBABILITY = 1e-7
# Weights of the parts of the loss: squared errors of the logits and of the features, and the cross entropy of labels.
LOGITS_WEIGHT, FEATURES_WEIGHT, LABELS_WEIGHT = 0.01, 0.1, 0.2
# Part of the weight of a sample that grows with the doubt of the float model.
DOUBT_WEIGHT = 0.5
# Smallest mean doubt: few doubtful samples of a certain model must not outweigh all others.
LEAST_DOUBT = 0.05
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
        doubt: mean doubt of the float model about its class, by which the weights of the samples are divided.
    """

    kind: str
    powers: tuple[float, ...]
    feature_power: float | None = None
    doubt: float = 1.0

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
        weights = 1 - DOUBT_WEIGHT + DOUBT_WEIGHT * compute_doubts(tf, probabilities) / self.doubt
        divergence = tf.reduce_mean(weights * tf.reduce_sum(probabilities * log_ratios, -1))
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


def compute_doubts(tf: Any, probabilities: Any) -> Any:
    """Return the doubt about the class of each sample, (n,): 1 - the probability of the class + that of the next one.

    A small error of the scores changes the class of a sample with a large doubt only. The weights of the samples are
    those of the focal loss (Lin et al., 2017) with the margin in place of the probability, and a constant part, so that
    every sample counts.
    """
    largest = tf.math.top_k(probabilities, 2).values
    return 1 - largest[:, 0] + largest[:, 1]


def _center(tf: Any, logits: Any) -> Any:
    return logits - tf.reduce_mean(logits, -1, keepdims=True)


@dataclass(frozen=True)
class MicroBatch:
    """Samples that are computed together.

    Attributes:
        feeds: array of each input, in the order of the graph's inputs.
        expected: outputs of the float model.
        classes: class index of each sample, -1 for a sample without a label.
        weight: fraction of the samples of the step.
    """

    feeds: Sequence[Array]
    expected: Sequence[Array]
    classes: Array
    weight: float = 1.0


class Simulator:
    """Simulation as TensorFlow functions of variables, feeds and expected outputs.

        variables -> quantized constants and scales -> outputs -> loss

    The first step is computed once for all micro-batches, and one layer after the other: the intermediate tensors of
    all weights would need many times the memory of the weights.

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
        self._constants = QuantizedConstants(self.tf, simulation, variables)
        # For each tensor of `quantize`: True if a gradient reaches it.
        self._are_reached: list[bool] = []

    def with_simulation(self, simulation: Simulation) -> "Simulator":
        """Return a simulator of another simulation, whose variables are 0, with the same objective."""
        return Simulator(simulation, Variables.of(simulation), self.objective)

    def with_source(self, source: Graph) -> "Simulator":
        """Return a simulator of a float graph with other constants, whose variables are 0."""
        simulator = self.with_simulation(replace(self.simulation, source=source))
        # The constants are tensors of this function, which takes a second to trace.
        simulator.__dict__["_outputs"] = self._outputs
        return simulator

    def quantize(self, values: Sequence[Any]) -> list[Any]:
        """Return the quantized constants and the scales of the ranges, as tensors for `run`.

        Args:
            values: value of each variable.
        """
        # Not traced: the operations of one call take less time than a trace.
        return list(self._call(self._constants.compute, list(map(self.tf.convert_to_tensor, values))))

    def run(self, tensors: Sequence[Any], feeds: Sequence[Array]) -> list[Array]:
        """Return the outputs of the simulation.

        Args:
            tensors: tensors of `quantize`.
            feeds: array of each input, in the order of the graph's inputs.
        """
        return [np.asarray(output) for output in self._call(self._outputs, list(tensors), list(feeds))]

    def outputs(self, values: Sequence[Floats], feeds: Sequence[Array]) -> list[Array]:
        """Return the outputs of the simulation for a value of each variable, as `run` of `quantize`."""
        return self.run(self.quantize(values), feeds)

    def float_outputs(self, feeds: Sequence[Array]) -> list[Array]:
        """Return the outputs without quantization, for the constants of the graph itself."""
        return [np.asarray(output) for output in self._call(self._float_outputs, list(feeds))]

    def gradients(self, values: Sequence[Floats], batches: Iterable[MicroBatch]) -> tuple[float, list[Floats]]:
        """Return the mean loss of a batch and its gradient for each variable; 0 where no gradient arrives.

        Args:
            values: value of each variable.
            batches: parts of the batch.

        Raises:
            OutOfMemoryError: a micro-batch needs too much memory.
            GraphError: TensorFlow rejects the graph.
        """
        variables = [self._call(self.tf.convert_to_tensor, value) for value in values]
        tensors = list(self._call(self._quantize, variables))
        mean_loss = 0.0
        sums: list[Any] = []
        for batch in batches:
            loss, gradients = self._batch_gradients(tensors, batch)
            mean_loss += float(loss)
            pairs = zip(sums, gradients, strict=True)
            sums = [self._call(self.tf.add, sum_, gradient) for sum_, gradient in pairs] if sums else gradients
        return mean_loss, [np.asarray(gradient) for gradient in self._call(self._pull_back, variables, sums)]

    def _batch_gradients(self, tensors: list[Any], batch: MicroBatch) -> tuple[Any, list[Any]]:
        """Return the weighted loss of a micro-batch, and its gradients for the tensors that a gradient reaches."""
        arrays = list(batch.feeds), list(batch.expected), batch.classes, np.full((), batch.weight, np.float32)
        while True:
            try:
                loss, gradients = self._call(self._gradients, tensors, *arrays)
            except LookupError as error:
                self._freeze(str(error))
                continue
            return loss, list(gradients)

    def compute(self, values: Sequence[Any], feeds: Sequence[Any]) -> list[Any]:
        """Return the output tensors of the simulation, inside of a ``tf.function``.

        Args:
            values: tensor of each variable.
            feeds: tensor of each input, in the order of the graph's inputs.
        """
        return self._compute_outputs(self._constants.compute(values), feeds)

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
    def _quantize(self) -> Any:
        return self.tf.function(self._constants.compute, autograph=False)

    @cached_property
    def _outputs(self) -> Any:
        return self.tf.function(self._compute_outputs, autograph=False)

    @cached_property
    def _float_outputs(self) -> Any:
        graph = self.simulation.graph
        restored = {node.name: node for node in restore_operands(graph, self.simulation.sums)}
        nodes = (
            Node(node.name, "Identity", node.inputs[:1], attrs={"T": DType.FLOAT})
            if node.op == FAKE_QUANT
            else restored.get(node.name, node)
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
        """Function of the loss of a micro-batch, and of its gradients for the tensors of `quantize`."""
        tf = self.tf

        def compute(
            tensors: list[Any], feeds: list[Any], expected: list[Any], classes: Any, weight: Any
        ) -> tuple[Any, list[Any]]:
            tensors = [tf.identity(tensor) for tensor in tensors]
            loss = weight * self.objective.loss(tf, self._compute_outputs(tensors, feeds), expected, classes)
            gradients = tf.gradients(loss, tensors)
            self._are_reached = [gradient is not None for gradient in gradients]
            return loss, [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

        return tf.function(compute, autograph=False)

    @cached_property
    def _pull_back(self) -> Any:
        """Function of the gradients for the variables, from those for the tensors that a gradient reaches."""

        def compute(values: list[Any], gradients: list[Any]) -> list[Any]:
            remaining = iter(gradients)
            arriving = [next(remaining) if is_reached else None for is_reached in self._are_reached]
            results = self._constants.pull_back(values, arriving)
            self.unreached = frozenset(index for index, result in enumerate(results) if result is None)
            zeros = map(self.tf.zeros_like, values)
            return [zero if result is None else result for result, zero in zip(results, zeros, strict=True)]

        return self.tf.function(compute, autograph=False)

    def _compute_outputs(self, tensors: Sequence[Any], feeds: Sequence[Any]) -> list[Any]:
        """Return the output tensors of the simulation for the tensors of `quantize`."""
        tf, graph = self.tf, self.simulation.graph
        constants = self._constants.nodes
        mapped = dict(zip(map(_tensor_name, graph.inputs), feeds, strict=True))
        mapped.update({f"{node}:0": tensor for node, tensor in zip(constants, tensors, strict=False)})
        scales: dict[Edge, Any] = {edge.owner: edge.parameters.scale for edge in self.simulation.edges}
        scales.update(zip(self.variables.scales, tensors[len(constants) :], strict=True))
        for edge in self.simulation.edges:
            for suffix, steps in zip(("low", "high"), edge.parameters.step_limits, strict=True):
                mapped[f"{limit_name(edge, suffix)}:0"] = tf.convert_to_tensor(
                    scales[edge.owner] * np.float32(steps), tf.float32
                )
        mapped.update(self._sum_tensors(dict(zip(constants, tensors, strict=False)), scales))
        replaced = {node: Node(node, "Placeholder", attrs={"dtype": DType.FLOAT}) for node in constants}
        message = graph_def(graph.with_nodes(replaced.get(name, node) for name, node in graph.nodes.items()))
        for node in message.node:
            if node.op in self.frozen_ops:
                node.attr[GRADIENT_ATTRIBUTE].s = NO_GRADIENT
        outputs = [_tensor_name(edge) for edge in graph.outputs]
        results: list[Any] = tf.graph_util.import_graph_def(
            message, input_map=mapped, return_elements=outputs, name="simulation"
        )
        return results

    def _sum_tensors(self, constants: Mapping[str, Any], scales: Mapping[Edge, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the placeholders of the sums, by tensor name.

        Args:
            constants: quantized values of the trained constants, by node of the simulation.
            scales: scale of each owner of a range.
        """
        tf, simulation = self.tf, self.simulation
        edge_scales = {edge: scales[quantized.owner] for edge, quantized in simulation.edge_of.items()}
        limits: dict[Edge | str, tuple[Any, Any]] = {}
        for operand in {operand for quantized_sum in simulation.sums for operand in quantized_sum.operands}:
            if isinstance(operand, Edge):
                low, high = (
                    edge_scales[operand] * np.float32(steps)
                    for steps in simulation.edge_of[operand].parameters.step_limits
                )
            else:
                values = constants[simulation.uses[operand][0].node]
                low, high = tf.minimum(tf.reduce_min(values), 0.0), tf.maximum(tf.reduce_max(values), 0.0)
            limits[operand] = low, high
        for quantized_sum in simulation.sums:
            for name, value in sum_tensors(tf, quantized_sum, limits, edge_scales):
                yield f"{name}:0", value


def _tensor_name(edge: Any) -> str:
    return f"{edge.node}:{edge.port}"


def _register_gradients(tf: Any) -> None:
    """Register the gradients that nodes of the simulation name, once per process."""
    try:
        tf.RegisterGradient(LEARNED_STEP.decode())(_learned_step_gradient)
        tf.RegisterGradient(STRAIGHT_THROUGH.decode())(lambda op, gradient: gradient)
        tf.RegisterGradient(NO_GRADIENT.decode())(lambda op, *gradients: [None] * len(op.inputs))
    except KeyError:
        return  # they are registered


def _learned_step_gradient(op: Any, gradient: Any) -> list[Any]:
    """Return the gradients of the input and of both limits of a FakeQuant."""
    tf = import_tensorflow()
    values, low, high = op.inputs
    # TensorFlow would compute these large tensors early, in the forward pass, and keep them until here.
    with tf.control_dependencies([gradient]):
        below, above = values < low, values > high
        difference = op.outputs[0] - values
    zeros = tf.zeros_like(gradient)
    inside = tf.where(tf.logical_or(below, above), zeros, gradient)
    # The part of the step: (y - x) / step, shared by both limits, whose distance is the number of steps.
    error = tf.reduce_sum(inside * difference) / (high - low)
    return [
        inside,
        tf.reduce_sum(tf.where(below, gradient, zeros)) - error,
        tf.reduce_sum(tf.where(above, gradient, zeros)) + error,
    ]
