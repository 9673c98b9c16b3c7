"""Error of the outputs for any choice of int8 layers, predicted from the error signals of single quantizations.

    d_i = outputs(only quantization i) - outputs(float)          of an edge
    d_i = outputs(i and the inputs of i) - outputs(float) - sum of d_j over the inputs j of i          of a layer
    noise(S) = sum of <d_i, d_j> over i and j in S

If errors are independent, only the products of an input and the layers that use it count: the noise is the sum of the
energies of these signals, at least 0.

This is a model of first order: errors add up, with their signs. It holds while the network is nearly linear for errors
of their size; `ErrorModel.fit` adapts it to measured choices, and states the deviation that remains and where the model
does not hold. The outputs are taken before a final softmax or sigmoid, which saturates. The errors of a recurrent model
contain its drift: it runs with its own states.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantkit.errors import UnavailableError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.switches import SwitchedGraph
from quantkit.quantization.states import StateLoop
from quantkit.runtimes.session import Session

Floats = npt.NDArray[np.float64]
# Ops that hide small errors; their inputs are compared.
SATURATING_OPS = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})
# Largest number of values of an error signal, of each output over all samples.
MAX_VALUES = 1 << 16
# Variances in dB^2 and lengths of the kernel of `Correction` that a fit tries, variances of the deviation of single
# choices, and variance of the mean of the deviations.
VARIANCES, LENGTHS, NOISES, MEAN_VARIANCE = (1.0, 4.0, 16.0), (0.1, 0.3, 1.0, 3.0), (0.05, 0.25, 1.0, 4.0), 100.0


class Correction(NamedTuple):
    """Deviation of measured choices from the noise of first order, a Gaussian process (Rasmussen and Williams, 2006).

        k(a, b) = MEAN_VARIANCE + variance exp(-sum of w_i (a_i - b_i)^2 / length)

    Two choices have similar deviations if the quantizations in which they differ cause little noise.

    Attributes:
        scales: square roots of the weights w, (n,).
        points: scaled switches of the measured choices, (m, n).
        weights: (K + noise I)^-1 times the deviations in dB, (m,).
        variance, length: parameters of the kernel.
    """

    scales: Floats
    points: Floats
    weights: Floats
    variance: float
    length: float

    def predict_db(self, switches: Array) -> float:
        """Return the predicted deviation of a choice in dB."""
        distances = np.square(self.points - self.scales * switches).sum(1)
        return float(_kernel(distances, self.variance, self.length) @ self.weights)


@dataclass(frozen=True)
class ErrorModel:
    """Predicted error of the outputs.

    Later roundings depend on earlier errors, so that errors of different quantizations agree less than their signals:
    the noise is between the energy of the sum and the sum of the energies. The errors of an input and of the layers
    that use it are one signal: corrected biases cancel a part of the error of the input.

    Attributes:
        switched: graph with a switch for each quantization.
        grams: products of the error signals relative to the power of each output, (outputs, n, n).
        parts: number of the signal that each quantization belongs to, the same for a layer and its inputs, (n,).
        is_coherent: True if all products count, False if only those within a signal do.
        correction: deviation of the measured choices; None before `fit`.
        rms_db: deviation of predicted from measured noise in dB, root mean square over choices that the fit does not
            use; infinite before `fit`.
        interval_db: largest deviation from a measured choice that the fit does not use, in dB. By the order statistics
            of n choices, 90 % of all choices deviate by no more, with a confidence of 1 - 0.9^n: 99 % for n = 48.
    """

    switched: SwitchedGraph
    grams: Floats
    parts: npt.NDArray[np.int64]
    is_coherent: bool = True
    correction: Correction | None = None
    rms_db: float = inf
    interval_db: float = inf

    def noise(self, switches: Array) -> float:
        """Return the predicted ratio of noise and signal of the worst output.

        Args:
            switches: (n,), 1 for int8.
        """
        return self._gain(switches) * float(max(0.0, *(switches @ products @ switches for products in self._products)))

    def contributions(self, switches: Array) -> Floats:
        """Return the noise that each quantization contributes to the worst output of a choice, (n,), at least 0."""
        worst = max(self._products, key=lambda products: float(switches @ products @ switches))
        noise: Floats = self._gain(switches) * np.maximum(worst @ switches + np.diag(worst) * (1 - switches), 0.0)
        return noise

    @property
    def holds(self) -> bool:
        """True if the predictions are near the measured choices: the network is nearly linear for its errors."""
        return self.rms_db <= policy.MAX_DEVIATION

    def fit(self, measured: Sequence[tuple[Array, float]]) -> "ErrorModel":
        """Return the model with the products and the correction that make the measured choices most likely.

        The deviations of choices that the fit does not use are those of as many fits, in closed form.

        Args:
            measured: switches and noise of each choice, above 0.
        """
        if not measured:
            return replace(self, rms_db=0.0, interval_db=0.0)
        amplitudes = np.sqrt(np.diagonal(self.grams, axis1=1, axis2=2).max(0))
        scales = np.sqrt(amplitudes / max(amplitudes.sum(), np.finfo(np.float64).tiny))
        points = scales * np.array([switches for switches, _ in measured])
        distances = np.square(points[:, None] - points).sum(2)
        fits = list(product((False, True), ((0.0, 1.0), *product(VARIANCES, LENGTHS)), NOISES))
        models = [replace(self, is_coherent=is_coherent) for is_coherent in (False, True)]
        by_model = [[decibels(noise) - decibels(model.noise(row)) for row, noise in measured] for model in models]
        deviations = np.array([by_model[is_coherent] for is_coherent, *_ in fits])
        kernels = [_kernel(distances, *kernel) + noise * np.eye(len(measured)) for _, kernel, noise in fits]
        inverses = np.linalg.inv(np.stack(kernels))
        weights = (inverses @ deviations[:, :, None])[:, :, 0]
        evidence = (np.linalg.slogdet(inverses)[1] - (deviations * weights).sum(1)) / 2
        precisions = np.diagonal(inverses, axis1=1, axis2=2)
        residuals = weights / precisions
        # log p(all) = log p(others) + log p(one | others)
        others = evidence[:, None] - (np.log(precisions) - residuals**2 * precisions) / 2
        unused = residuals[others.argmax(0), np.arange(len(measured))]
        best = int(evidence.argmax())
        correction = Correction(scales, points, weights[best], *fits[best][1])
        rms_db, interval_db = float(np.sqrt(np.square(unused).mean())), float(abs(unused).max())
        return replace(models[fits[best][0]], correction=correction, rms_db=rms_db, interval_db=interval_db)

    @cached_property
    def _products(self) -> Floats:
        return self.grams if self.is_coherent else self.grams * (self.parts[:, None] == self.parts)

    def _gain(self, switches: Array) -> float:
        return 1.0 if self.correction is None else float(10 ** (-self.correction.predict_db(switches) / 10))


def _kernel(distances: Floats, variance: float, length: float) -> Floats:
    kernel: Floats = MEAN_VARIANCE + variance * np.exp(-distances / length)
    return kernel


def decibels(noise: float) -> float:
    """Return the SQNR of a ratio of noise and signal in dB."""
    return float(-10 * np.log10(max(noise, 1e-20)))


class ErrorProbe:
    """Runs of a switched graph on a few samples.

    Attributes:
        switched: graph with a switch for each quantization.
    """

    def __init__(
        self,
        switched: SwitchedGraph,
        session: Session,
        feeds: Sequence[Mapping[str, Array]],
        outputs: Sequence[Mapping[str, Array]],
        states: Mapping[str, str],
    ) -> None:
        """Run the float model.

        Args:
            switched: graph with a switch for each quantization.
            session: session of `tap_outputs` of the graph.
            feeds: feeds of the runs.
            outputs: outputs of the float model, by name.
            states: output of each state by the name of its input, for a recurrent model.

        Raises:
            UnavailableError: the graph has no real output, or the sizes of an output depend on values.
        """
        self.switched = switched
        self._session, self._feeds, self._recorded, self._states = session, feeds, outputs, states
        self._float = self._outputs(np.zeros(len(switched), bool))
        if not self._float:
            raise UnavailableError("no output has real values, whose errors could be added")
        self._power = [max(float(values @ values), np.finfo(np.float64).tiny) for values in self._float]

    @property
    def num_runs(self) -> int:
        """Number of runs of each choice."""
        return len(self._feeds)

    def measure(self, on_run: Callable[[int], None]) -> ErrorModel:
        """Run each quantization alone, that of a layer with those of its inputs, and return the error model.

        Args:
            on_run: callback for the number of finished quantizations.
        """
        basis, parts = np.eye(len(self.switched)), np.arange(len(self.switched))
        for number, inputs in enumerate(self.switched.inputs, len(self.switched.groups)):
            basis[number, list(inputs)] = -1
            parts[np.isin(parts, parts[[number, *inputs]])] = number
        signals = []
        for number, row in enumerate(basis != 0):
            signals.append(self._signals(row))
            on_run(number + 1)
        stacked = [basis @ np.stack(arrays) for arrays in zip(*signals, strict=True)]
        grams = [array @ array.T / power for array, power in zip(stacked, self._power, strict=True)]
        return ErrorModel(self.switched, np.stack(grams), parts)

    def noise(self, switches: Array) -> float:
        """Return the measured ratio of noise and signal of the worst output."""
        return float(self.noises(switches).max())

    def noises(self, switches: Array) -> Floats:
        """Return the measured ratio of noise and signal of each output, (outputs,)."""
        return np.array([values @ values for values in self._signals(switches)]) / self._power

    def _signals(self, switches: Array) -> list[Floats]:
        """Return the error of each output on all samples."""
        return [after - before for after, before in zip(self._outputs(switches), self._float, strict=True)]

    def _outputs(self, switches: Array) -> list[Floats]:
        """Return the values of each real output that is not a state, on all samples."""
        loop, runs = StateLoop(self._states), list[list[Floats]]()
        states = set(self._states.values())
        for recorded, expected in zip(self._feeds, self._recorded, strict=True):
            feeds = loop.feeds(dict(recorded))
            values = self._session.run({**feeds, self.switched.input: switches})
            outputs = {name: values[info.name] for name, info in zip(expected, self._session.outputs, strict=True)}
            for name, array in outputs.items():
                if array.size != expected[name].size:  # recorded states have an axis for the samples
                    raise UnavailableError(f"the sizes of output {name!r} depend on values: its errors do not add up")
            loop.add(expected, {name: array.copy() for name, array in outputs.items()})
            names = [name for name in outputs if name not in states] or list(outputs)
            runs.append(
                [outputs[name].astype(np.float64).reshape(-1) for name in names if outputs[name].dtype.kind == "f"]
            )
        return [_thin(np.concatenate(arrays)) for arrays in zip(*runs, strict=True)]


def tap_outputs(graph: Graph) -> Graph:
    """Return the graph with its outputs, those of a final softmax or sigmoid before it."""
    tapped = [graph[edge.node].inputs[0] if graph[edge.node].op in SATURATING_OPS else edge for edge in graph.outputs]
    return graph.with_endpoints(None, tapped)


def _thin(values: Floats) -> Floats:
    """Return at most `MAX_VALUES` values: one at random, always the same, of each of as many equal parts.

    A stride that shares a factor with a dimension would select some of its indices only, such as one column of images.
    """
    if len(values) <= MAX_VALUES:
        return values
    limits = np.arange(MAX_VALUES + 1) * len(values) // MAX_VALUES
    return values[np.random.default_rng(0).integers(limits[:-1], limits[1:])]
