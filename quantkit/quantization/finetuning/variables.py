"""Variables of a fine-tuning, in quantization steps.

    constant = calibrated values + step * variable
    weights  = clip(constant, limits * exp(variable))        limits: calibrated limits of each channel
    scale    = calibrated scale * exp(variable)              of a range

All variables start at 0, the calibrated model. In steps, one learning rate suits every layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Tensor
from quantkit.quantization.finetuning.simulation import Simulation, Trainable
from quantkit.quantization.parameters import QuantizationParameters

Floats = npt.NDArray[np.float32]
T = TypeVar("T")
# Step of a bias that the target adds in 32 bits, as a fraction of its largest value.
BIAS_STEP = 1 / 128


@dataclass(frozen=True)
class TrainedConstant:
    """Constant with the size of a step.

    Attributes:
        trainable: description of the constant.
        values: calibrated values.
        step: broadcasts against ``values``.
        limits: lowest and highest value of each channel, both of the shape of ``step``; None without a number format.
        factor: calibrated scale over the smallest one that limits no pair of weights, at least 1, shape of ``step``.
    """

    trainable: Trainable
    values: Floats
    step: Floats
    limits: tuple[Floats, Floats] | None = None
    factor: Floats | None = None

    @classmethod
    def of(cls, simulation: Simulation, trainable: Trainable) -> "TrainedConstant":
        """Return a constant of the float graph with one quantization step of each channel."""
        values = simulation.source[trainable.name].value.array.astype(np.float32)
        spec = trainable.spec
        if spec is None:
            return cls(trainable, values, np.float32(max(np.abs(values).max(initial=0), 1e-3) * BIAS_STEP))  # type: ignore[arg-type]
        parameters = QuantizationParameters.of_weights(spec, values)
        sizes = [size if axis in spec.axes else 1 for axis, size in enumerate(values.shape)]
        step = parameters.scale.reshape(sizes)
        if spec.symmetric:
            first, last = spec.limits
            smallest = QuantizationParameters.of_weights(spec, values, (1.0,)).scale.reshape(sizes)
            factor = np.maximum(step / smallest, np.float32(1)) if spec.pair_axes else None
            limits = ((first * step).astype(np.float32), (last * step).astype(np.float32))
            return cls(trainable, values, step, limits, factor)
        # The rounded zero point moves the limits of the quantized values, which would give another scale.
        rest = tuple(axis for axis in range(values.ndim) if axis not in spec.axes)
        low, high = values.min(rest, initial=0, keepdims=True), values.max(rest, initial=0, keepdims=True)
        return cls(trainable, values, step, (low.reshape(step.shape), high.reshape(step.shape)))

    def compute_values(self, values: Floats, clipping: Floats | None) -> Floats:
        """Return the trained values.

        Args:
            values: variable of the values.
            clipping: variable of the limits; None without limits.
        """
        tuned = (self.values + self.step * values).astype(np.float32)
        if clipping is None or self.limits is None:
            return tuned
        low, high = (limit * np.exp(clipping) for limit in self.limits)
        tuned = np.clip(tuned, low, high).astype(np.float32)
        if self.factor is None or self.trainable.spec is None:
            return tuned
        # Rounded, so that the target finds the scale of the simulation instead of choosing another one for the pairs.
        parameters = QuantizationParameters.of_weights(self.trainable.spec, tuned, (1.0,))
        scale = parameters.scale * self.factor.reshape(parameters.scale.shape)
        return replace(parameters, scale=scale).fake_quantize(tuned)


@dataclass(frozen=True)
class Variables:
    """Variables of a simulation: of the constants, of the limits of weights, and of the scales, in this order.

    Attributes:
        constants: trained constants.
        scales: calibrated scale by owner of a trained range.
    """

    constants: tuple[TrainedConstant, ...]
    scales: Mapping[Edge, float]

    @classmethod
    def of(cls, simulation: Simulation) -> "Variables":
        """Return the variables of a simulation."""
        constants = tuple(TrainedConstant.of(simulation, trainable) for trainable in simulation.trainables)
        learned = (edge for edge in simulation.edges if edge.owner in simulation.learned)
        return cls(constants, {edge.owner: float(edge.parameters.scale) for edge in learned})

    @property
    def clipped(self) -> tuple[TrainedConstant, ...]:
        """Constants with trained limits."""
        return tuple(constant for constant in self.constants if constant.limits is not None)

    def zeros(self) -> list[Floats]:
        """Return the variables of the calibrated model."""
        shapes = [constant.values.shape for constant in self.constants]
        shapes += [constant.step.shape for constant in self.clipped]
        shapes += [() for _ in self.scales]
        return [np.zeros(shape, np.float32) for shape in shapes]

    @property
    def num_bytes(self) -> int:
        """Size of the variables in bytes."""
        return sum(array.nbytes for array in self.zeros())

    def split(self, values: Sequence[T]) -> tuple[Sequence[T], dict[str, T], Sequence[T]]:
        """Return the variables of the constants, of the limits by constant, and of the scales."""
        num_constants, num_clipped = len(self.constants), len(self.clipped)
        names = [constant.trainable.name for constant in self.clipped]
        clipping = dict(zip(names, values[num_constants : num_constants + num_clipped], strict=True))
        return values[:num_constants], clipping, values[num_constants + num_clipped :]

    def tensors(self, values: Sequence[Floats]) -> Iterator[tuple[str, Tensor]]:
        """Yield name and trained values of each constant."""
        constants, clipping, _ = self.split(values)
        for constant, value in zip(self.constants, constants, strict=True):
            name = constant.trainable.name
            yield name, Tensor.of(constant.compute_values(value, clipping.get(name)))

    def tuned_scales(self, values: Sequence[Floats]) -> dict[Edge, float]:
        """Return the trained scale by owner."""
        _, _, logarithms = self.split(values)
        return {
            owner: float(np.float32(scale) * np.exp(logarithm))
            for (owner, scale), logarithm in zip(self.scales.items(), logarithms, strict=True)
        }
