"""Error of the outputs for any choice of int8 layers, predicted from the error signals of single quantizations.

    d_i = outputs(only quantization i) - outputs(float)
    noise(S) = | sum of d_i over S |^2 = 1_S' G 1_S        G_ij = <d_i, d_j>

This is a model of first order: errors add up, with their signs. It holds while the network is nearly linear for errors
of their size; `ErrorModel.fit` adapts it to measured choices, and states the deviation that remains and where the model
does not hold. The outputs are taken before a final softmax or sigmoid, which saturates. The errors of a recurrent model
contain its drift: it runs with its own states.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

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
# Coherences that a fit tries, and number of the fitted parameters.
COHERENCES, NUM_FITTED = (0.0, 0.25, 0.5, 0.75, 1.0), 2


@dataclass(frozen=True)
class ErrorModel:
    """Predicted error of the outputs.

    Later roundings depend on earlier errors, so that errors of different quantizations agree less than their signals:
    the noise is between the energy of the sum and the sum of the energies.

    Attributes:
        switched: graph with a switch for each quantization.
        grams: products of the error signals relative to the power of each output, (outputs, n, n).
        coherence: fraction of the products of different signals that counts, between 0 and 1.
        gain: measured noise relative to that of the first order.
        rms_db: deviation of predicted from measured noise in dB, root mean square; infinite before `fit`.
        interval_db: largest deviation from a measured choice that the fit does not use, in dB. By the order statistics
            of n = 24 choices, 90 % of all choices deviate by no more, with a confidence of 1 - 0.9^n = 92 %.
    """

    switched: SwitchedGraph
    grams: Floats
    coherence: float = 1.0
    gain: float = 1.0
    rms_db: float = inf
    interval_db: float = inf

    def noise(self, switches: Array) -> float:
        """Return the predicted ratio of noise and signal of the worst output.

        Args:
            switches: (n,), 1 for int8.
        """
        return self.gain * float(max(self._noise(gram, switches, self.coherence) for gram in self.grams))

    def contributions(self, switches: Array) -> Floats:
        """Return the noise that each quantization contributes to the worst output of a choice, (n,), at least 0."""
        worst = max(self.grams, key=lambda gram: self._noise(gram, switches, self.coherence))
        energies = np.diag(worst)
        shared = worst @ switches - energies * switches
        noise: Floats = self.gain * np.maximum(energies + self.coherence * shared, 0.0)
        return noise

    @property
    def holds(self) -> bool:
        """True if the predictions are near the measured choices: the network is nearly linear for its errors."""
        return self.rms_db <= policy.MAX_DEVIATION

    def fit(self, measured: Sequence[tuple[Array, float]]) -> "ErrorModel":
        """Return the model with the coherence and the gain that are nearest to measured choices.

        Args:
            measured: switches and noise of each choice, above 0; all choices differ.
        """
        models = [replace(self, coherence=coherence, gain=1.0) for coherence in COHERENCES]
        deviations = np.array(
            [[decibels(model.noise(switches)) - decibels(noise) for switches, noise in measured] for model in models]
        ).reshape(len(models), len(measured))
        best, mean_db, rms_db = _choose_row(deviations)
        others = [np.delete(deviations, column, axis=1) for column in range(len(measured))]
        left_out = (deviations[row, column] - mean for column, (row, mean, _) in enumerate(map(_choose_row, others)))
        interval_db = max((float(abs(deviation)) for deviation in left_out), default=0.0)
        return replace(models[best], gain=10 ** (mean_db / 10), rms_db=rms_db, interval_db=interval_db)

    @staticmethod
    def _noise(gram: Floats, switches: Array, coherence: float) -> float:
        energy = float(np.diag(gram) @ switches)
        return max(coherence * float(switches @ gram @ switches) + (1 - coherence) * energy, 0.0)


def _choose_row(deviations: Floats) -> tuple[int, float, float]:
    """Return the row with the least deviation from its mean, that mean, and the deviation; zeros without a column."""
    rows, columns = deviations.shape
    if not columns:
        return rows - 1, 0.0, 0.0
    means = deviations.mean(1)
    rms = np.sqrt(((deviations - means[:, None]) ** 2).sum(1) / max(columns - NUM_FITTED, 1))
    best = int(rms.argmin())
    return best, float(means[best]), float(rms[best])


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
        """Run each quantization alone, and return the error model.

        Args:
            on_run: callback for the number of finished quantizations.
        """
        signals = []
        for number, row in enumerate(np.eye(len(self.switched), dtype=bool)):
            signals.append(self._signals(row))
            on_run(number + 1)
        stacked = [np.stack(arrays) for arrays in zip(*signals, strict=True)]
        grams = [array @ array.T / power for array, power in zip(stacked, self._power, strict=True)]
        return ErrorModel(self.switched, np.stack(grams))

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
