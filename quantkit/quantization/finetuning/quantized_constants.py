"""Quantized constants of a simulation: TensorFlow computations of the variables, and the gradients of the variables.

    weights  = fake_quantize(clip(calibrated weights + step * variable))        scale: the largest weight of a channel
    bias     = round(calibrated bias + step * variable)        step: product of the scales of weights and input

The constants are computed one layer after the other. The intermediate tensors of all layers at once would need many
times the memory of the constants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Array
from quantkit.quantization.finetuning.simulation import Simulation
from quantkit.quantization.finetuning.variables import Variables
from quantkit.quantization.pair_sums import MAX_SUM, find_pairs
from quantkit.quantization.spec import Spec


@dataclass(frozen=True, eq=False)
class QuantizedConstants:
    """Constants of a simulation as the target computes with them, and the scales of the ranges.

    Attributes:
        tf: TensorFlow.
        simulation: simulation that uses the constants.
        variables: its variables.
    """

    tf: Any
    simulation: Simulation
    variables: Variables

    @cached_property
    def nodes(self) -> list[str]:
        """Constants of the simulation, in the order of the tensors."""
        names = [self.variables.constants[index].trainable.name for group in self._groups for index in group]
        return [use.node for name in names for use in self.simulation.uses[name]]

    def compute(self, values: Sequence[Any]) -> list[Any]:
        """Return the tensors of `nodes`, and then the scales with a variable.

        Args:
            values: tensor of each variable.
        """
        scales = self._scales(values)
        tensors: list[Any] = []
        finished: list[Any] = []
        for group in self._groups:
            with self.tf.control_dependencies(finished):
                finished = self._quantize(group, values, scales)
            tensors += finished
        return [*tensors, *(scales[owner] for owner in self.variables.scales)]

    def pull_back(self, values: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Return the gradient for each variable, None where none arrives, inside of a ``tf.function``.

        Args:
            values: tensor of each variable.
            gradients: gradient for each tensor of `compute`, or None.
        """
        tf = self.tf
        values = [tf.identity(value) for value in values]
        scales = self._scales(values)
        parts: list[list[Any]] = [[] for _ in values]
        arriving = list(gradients)

        def add(tensors: Sequence[Any], indices: Sequence[int]) -> list[Any]:
            """Add the gradients of the next tensors for some variables, and return them."""
            pairs = [(tensor, arriving.pop(0)) for tensor in tensors]
            reached = [(tensor, gradient) for tensor, gradient in pairs if gradient is not None]
            if not reached:
                return []
            targets, weights = map(list, zip(*reached, strict=True))
            results = tf.gradients(targets, [values[index] for index in indices], weights)
            for index, result in zip(indices, results, strict=True):
                parts[index] += [] if result is None else [tf.convert_to_tensor(result)]
            return [result for result in results if result is not None]

        finished: list[Any] = []
        for group in self._groups:
            with tf.control_dependencies(finished):
                finished = add(self._quantize(group, values, scales), self._find_variables(group))
        add([scales[owner] for owner in self.variables.scales], range(self._first_scale, len(values)))
        return [tf.add_n(part) if part else None for part in parts]

    @cached_property
    def _groups(self) -> list[list[int]]:
        """Indices of the constants of a layer: weights, and the biases that have the steps of their products."""
        groups: dict[str, list[int]] = {}
        for index, constant in enumerate(self.variables.constants):
            step = constant.trainable.step
            groups.setdefault(constant.trainable.name if step is None else step[0], []).append(index)
        return list(groups.values())

    @cached_property
    def _first_scale(self) -> int:
        """Index of the first variable of a scale."""
        return len(self.variables.constants) + len(self.variables.clipped)

    def _find_variables(self, group: Sequence[int]) -> list[int]:
        """Return the indices of the variables that determine a group of constants."""
        constants = self.variables.constants
        clipped = [constant.trainable.name for constant in self.variables.clipped]
        owners = list(self.variables.scales)
        indices = set(group)
        for trainable in (constants[index].trainable for index in group):
            if trainable.name in clipped:
                indices.add(len(constants) + clipped.index(trainable.name))
            if trainable.step is not None and trainable.step[1] in owners:
                indices.add(self._first_scale + owners.index(trainable.step[1]))
        return sorted(indices)

    @cached_property
    def _calibrated(self) -> list[Any]:
        """Tensors of the calibrated constants; a constant in a graph would need several copies of its values."""
        with self.tf.init_scope():
            return [self.tf.constant(constant.values) for constant in self.variables.constants]

    @cached_property
    def _positions(self) -> dict[str, Any]:
        """Positions of the values of a constant of the simulation in the trained constant."""
        uses = (use for group in self.simulation.uses.values() for use in group)
        with self.tf.init_scope():
            return {use.node: self.tf.constant(use.positions) for use in uses if use.positions is not None}

    def _scales(self, values: Sequence[Any]) -> dict[Edge, Any]:
        """Return the scale of each owner of a range."""
        tf = self.tf
        scales = {edge.owner: tf.constant(edge.parameters.scale, tf.float32) for edge in self.simulation.edges}
        _, _, logarithms = self.variables.split(values)
        for (owner, scale), logarithm in zip(self.variables.scales.items(), logarithms, strict=True):
            scales[owner] = np.float32(scale) * tf.exp(logarithm)
        return scales

    def _quantize(self, group: Sequence[int], values: Sequence[Any], scales: Mapping[Edge, Any]) -> list[Any]:
        """Return the tensors of a group of constants, one for each use."""
        tf = self.tf
        variables, clipping, _ = self.variables.split(values)
        weights_step = None
        tensors = []
        for index in group:
            constant = self.variables.constants[index]
            trainable = constant.trainable
            tensor = self._calibrated[index] + constant.step * variables[index]
            if constant.limits is not None and trainable.spec is not None:
                low, high = (limit * tf.exp(clipping[trainable.name]) for limit in constant.limits)
                tensor = tf.clip_by_value(tensor, low, high)
                weights_step, zero = _find_parameters(tf, tensor, trainable.spec, constant.factor)
                tensor = _fake_quantize(tf, tensor, trainable.spec, weights_step, zero)
            elif trainable.step is not None and weights_step is not None:
                tensor = _round_bias(tf, tensor, weights_step * scales[trainable.step[1]])
            tensors += [self._move(tensor, use.node) for use in self.simulation.uses[trainable.name]]
        return tensors

    def _move(self, tensor: Any, node: str) -> Any:
        """Return the values of a trained constant in the order of a constant of the simulation."""
        positions = self._positions.get(node)
        return tensor if positions is None else self.tf.gather(self.tf.reshape(tensor, [-1]), positions)


def _find_parameters(tf: Any, values: Any, spec: Spec, factor: Array | None) -> tuple[Any, Any]:
    """Return scale and zero point of weights, as `QuantizationParameters.of_weights`, with gradients."""
    first, last = spec.limits
    rest = [axis for axis in range(values.shape.rank) if axis not in spec.axes] if spec.axes else None
    low = tf.minimum(tf.reduce_min(values, rest, keepdims=True), 0.0)
    high = tf.maximum(tf.reduce_max(values, rest, keepdims=True), 0.0)
    scale = tf.maximum(-low, high) / last if spec.symmetric else (high - low) / (last - first)
    if spec.pair_axes:
        scale = tf.maximum(scale, _find_pair_sums(tf, values, spec, rest) / MAX_SUM)
    if factor is not None:
        scale *= factor
    scale = tf.where(scale < np.finfo(np.float32).tiny, tf.ones_like(scale), scale)
    if spec.symmetric:
        return scale, tf.zeros_like(scale)
    return scale, tf.stop_gradient(tf.clip_by_value(tf.round(first - low / scale), first, last))


def _find_pair_sums(tf: Any, values: Any, spec: Spec, rest: Sequence[int] | None) -> Any:
    """Return the largest sum of the weights of one sign in a pair, see `pair_sums`, in the shape of the scale."""
    order = [*(axis for axis in range(values.shape.rank) if axis not in spec.pair_axes), *spec.pair_axes]
    sizes = [values.shape[axis] for axis in order]
    rank = len(order) - len(spec.pair_axes)
    flat = tf.reshape(tf.transpose(values, order), [*sizes[:rank], -1])
    largest = tf.zeros(sizes[:rank])
    for indices in find_pairs(sizes[rank:]):
        pairs = tf.gather(flat, indices, axis=-1)
        for signed in (pairs, -pairs):
            sums = tf.reduce_sum(tf.maximum(signed, 0.0), -1)
            largest = tf.maximum(largest, tf.reduce_max(sums, -1) if sums.shape[-1] else 0.0)
    largest = tf.transpose(tf.reshape(largest, [*sizes[:rank], *[1] * len(spec.pair_axes)]), np.argsort(order))
    return tf.reduce_max(largest, rest, keepdims=True)


def _fake_quantize(tf: Any, values: Any, spec: Spec, scale: Any, zero: Any) -> Any:
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
