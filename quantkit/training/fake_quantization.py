"""Quantization-aware Keras models: a Keras layer that computes the simulation of a calibrated model.

The layer has the FakeQuant nodes of the plan. Its variables are the weights, their limits and the scales of the ranges.
It computes what `quantize --finetune` trains; here the user's optimizer and loss train it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt
from typing import Any, Self

import numpy as np

from quantkit.errors import InputError, UsageError
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.calibration.observation import tensor_name
from quantkit.quantization.finetuning.simulation import Simulation, simulate
from quantkit.quantization.finetuning.simulator import VALUES, MicroBatch, Objective, Simulator
from quantkit.quantization.finetuning.variables import Floats, Variables
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.fine_tuning import apply_values, correct
from quantkit.training.keras_models import import_keras


@dataclass(frozen=True)
class TrainingProblem:
    """A calibrated model and its simulation.

    Attributes:
        model: float model.
        conversion: calibrated model with corrected biases.
        simulator: its simulation in TensorFlow.
        frozen: indices of the variables that no gradient reaches.
        frozen_layers: layers whose weights are among them.
    """

    model: Model
    conversion: Conversion
    simulator: Simulator
    frozen: frozenset[int]
    frozen_layers: tuple[str, ...]

    @classmethod
    def of(cls, model: Model, conversion: Conversion, feeds: Mapping[str, Array]) -> Self:
        """Return the simulation of a calibrated model; no gradient passes its ops without one.

        Args:
            model: float model.
            conversion: calibrated model.
            feeds: array of each input by name, for one run.

        Raises:
            UsageError: no output is float.
        """
        corrected = correct(conversion)
        simulation = simulate(corrected.graph, corrected.plan, corrected.ranges)
        simulator = _create_simulator(simulation)
        graph, arrays = (
            simulation.graph,
            [feeds[tensor_name(conversion.graph, edge)] for edge in conversion.graph.inputs],
        )
        outputs = simulator.outputs(simulator.variables.zeros(), arrays)
        indices = [index for index, output in enumerate(outputs) if output.dtype == np.float32]
        if not indices:
            raise UsageError("all outputs of the model are integers, which have no gradient", hint="end in the logits")
        probe = _create_simulator(
            replace(simulation, graph=graph.with_endpoints(None, [graph.outputs[index] for index in indices]))
        )
        expected = [outputs[index] for index in indices]
        batch = MicroBatch(arrays, expected, np.full(len(outputs[0]), -1))
        probe.gradients(probe.variables.zeros(), [batch])
        simulator.frozen_ops.update(probe.frozen_ops)
        return cls(model, corrected, simulator, probe.unreached, probe.frozen_layers)

    def convert(self, values: Sequence[Floats]) -> tuple[Model, Conversion]:
        """Return the float model, and the calibrated model with trained constants and ranges.

        Args:
            values: trained variables.

        Raises:
            InputError: a variable is NaN or infinite.
        """
        if not all(np.isfinite(value).all() for value in values):
            raise InputError("the trained weights are NaN or infinite", hint="train again with a lower learning rate")
        simulator = self.simulator
        return self.model, apply_values(self.conversion, simulator.simulation, simulator.variables, values)


def _create_simulator(simulation: Simulation) -> Simulator:
    objective = Objective(VALUES, (1.0,) * len(simulation.graph.outputs))
    return Simulator(simulation, Variables.of(simulation), objective)


def build_model(original: Any, problem: TrainingProblem) -> Any:
    """Return a Keras model that computes a simulation, with the inputs and outputs of the float model.

    Args:
        original: float model of Keras 3.
        problem: its simulation.
    """
    keras = import_keras()
    inputs = [keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name) for tensor in original.inputs]
    names = getattr(original, "output_names", None) or [original.layers[-1].name]  # a Sequential has no names
    simulated = simulated_layer()(problem, [tensor.shape for tensor in original.outputs])
    outputs = [keras.layers.Identity(name=name)(tensor) for name, tensor in zip(names, simulated(inputs), strict=True)]

    def pack(name: str, before: Sequence[Any], after: Sequence[Any]) -> Any:
        """Return tensors in the structure of an attribute of the float model; a Sequential has one tensor."""
        replacements = {id(tensor): replacement for tensor, replacement in zip(before, after, strict=True)}
        structure = getattr(original, name, before[0])
        return keras.tree.map_structure(lambda tensor: replacements[id(tensor)], structure)

    return aware_model()(
        pack("input", original.inputs, inputs), pack("output", original.outputs, outputs), name=original.name
    )


@cache
def aware_model() -> Any:
    """Return the class of quantization-aware models; the first call imports Keras."""

    class QuantizationAwareModel(import_keras().Model):  # type: ignore[misc]
        """Keras model that computes with the rounding of its quantized form."""

        def trained_conversion(self) -> tuple[Model, Conversion]:
            """Return the float model, and the calibrated model with trained weights and ranges; for `quantize`.

            Raises:
                InputError: a trained value is NaN or infinite.
            """
            layer = next(layer for layer in self.layers if isinstance(layer, simulated_layer()))
            problem: TrainingProblem = layer.problem
            return problem.convert(layer.values())

    return QuantizationAwareModel


@cache
def simulated_layer() -> Any:
    """Return the class of the layer with the fake quantization; the first call imports Keras."""

    class SimulatedLayer(import_keras().layers.Layer):  # type: ignore[misc]
        """Layer that computes a simulation.

        Its variables are the constants of the float graph, and the logarithms of two scales: those of the limits of the
        weights, and those of the ranges.

        Attributes:
            problem: the simulation.
        """

        def __init__(self, problem: TrainingProblem, output_shapes: Sequence[Any]) -> None:
            super().__init__(name="fake_quantization", dtype="float32", autocast=False)
            self.supports_jit = False
            self.problem = problem
            self._output_shapes = tuple(output_shapes)
            simulator = problem.simulator
            self._compute = simulator.tf.function(simulator.compute, autograph=False, reduce_retracing=True)
            self._factors = _gradient_factors(simulator)
            variables = simulator.variables
            names = [constant.trainable.name for constant in variables.constants]
            names += [f"{constant.trainable.name}_limits" for constant in variables.clipped]
            names += [f"{owner}_range" for owner in variables.scales]
            initial = [constant.values for constant in variables.constants]
            initial += variables.zeros()[len(initial) :]
            self._values = tuple(
                self._add_variable(name, values, index not in problem.frozen)
                for index, (name, values) in enumerate(zip(names, initial, strict=True))
            )

        def _add_variable(self, name: str, values: Array, trainable: bool) -> Any:
            def initialize(shape: Any, dtype: Any) -> Any:
                return self.problem.simulator.tf.constant(values, dtype)

            name = re.sub(r"[/:]", "_", name)
            return self.add_weight(name=name, shape=values.shape, initializer=initialize, trainable=trainable)

        def call(self, inputs: Sequence[Any]) -> list[Any]:
            """Return the outputs of the simulation."""
            tf = self.problem.simulator.tf
            constants = self.problem.simulator.variables.constants
            weights = [tf.convert_to_tensor(weight) for weight in self._values]
            scales = zip(weights[len(constants) :], self._factors, strict=True)
            values = [
                *self._in_steps(weights[: len(constants)]),
                *(_scale_gradient(tf, weight, factor) for weight, factor in scales),
            ]
            outputs = self._compute(values, list(inputs))
            for output, shape in zip(outputs, self._output_shapes, strict=True):
                output.set_shape(shape)
            return list(outputs)

        def values(self) -> list[Floats]:
            """Return the variables of the simulation."""
            arrays = [weight.numpy() for weight in self._values]
            num_constants = len(self.problem.simulator.variables.constants)
            return [*self._in_steps(arrays[:num_constants]), *arrays[num_constants:]]

        def _in_steps(self, weights: Sequence[Any]) -> list[Any]:
            """Return the changes of constants in quantization steps, the variables of the simulation."""
            constants = self.problem.simulator.variables.constants
            return [
                (weight - constant.values) / constant.step for weight, constant in zip(weights, constants, strict=True)
            ]

        def get_config(self) -> dict[str, Any]:
            """Reject the whole model: only its weights are saved.

            Raises:
                UsageError: always.
            """
            raise UsageError(
                "a quantization-aware model is saved by its weights",
                hint="save_weights(FILE), and load_weights(FILE) after the same call of quantization_aware; "
                "quantkit.quantize writes the int8 model",
            )

    return SimulatedLayer


def _scale_gradient(tf: Any, value: Any, factor: float) -> Any:
    """Return a value whose gradient is multiplied by a factor."""

    def scale(tensor: Any) -> Any:
        return tf.identity(tensor), lambda gradient: gradient * factor

    return tf.custom_gradient(scale)(value)


def _gradient_factors(simulator: Simulator) -> list[float]:
    """Return the factors of the gradients of limits and ranges.

    A gradient sums over all elements with the same scale. With 1 / sqrt(elements * steps) it suits the learning rate of
    the weights (Esser et al., "Learned step size quantization", 2020, section 2.2).
    """
    simulation, variables = simulator.simulation, simulator.variables
    shapes = infer_shapes(simulation.source)
    steps_of = {edge.owner: edge.steps for edge in simulation.edges}
    sizes = [
        (constant.values.size // constant.step.size, constant.trainable.spec.limits[1])
        for constant in variables.clipped
        if constant.trainable.spec is not None
    ]
    for owner in variables.scales:
        dims = shapes[owner].dims if owner in shapes else None
        sizes.append((prod(size or 1 for size in (dims or ())[1:]), steps_of[owner]))
    return [1 / sqrt(elements * steps) for elements, steps in sizes]
