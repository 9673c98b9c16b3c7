"""States of recurrent models: outputs of a run that are inputs of the next run.

Consecutive samples show them: the values of a state input are those of the state output in the run before. A quantized
model is then compared with its own states, in which errors accumulate as they do in use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quantkit.ir.tensor import Array
from quantkit.quantization.precision import policy

Feeds = dict[str, Array]
# Largest number of runs in which states are searched.
MAX_RUNS = 32


def find_states(feeds: Sequence[Mapping[str, Array]], outputs: Sequence[Mapping[str, Array]]) -> dict[str, str]:
    """Return the output of each state by the name of its input; empty if consecutive samples are not a sequence.

    Args:
        feeds: feeds of consecutive runs, by input name.
        outputs: outputs of the same runs, by output name.
    """
    feeds, outputs = feeds[:MAX_RUNS], outputs[:MAX_RUNS]
    states: dict[str, str] = {}
    for name in feeds[0] if len(feeds) > 2 else ():
        for output in outputs[0]:
            if output not in states.values() and _is_state([each[name] for each in feeds], outputs, output):
                states[name] = output
                break
    return states


def _is_state(values: Sequence[Array], outputs: Sequence[Mapping[str, Array]], name: str) -> bool:
    """Return True if an input is the output of the run before in most runs, and changes."""
    if values[0].dtype.kind != "f" or all(_is_equal(values[0], other) for other in values[1:]):
        return False
    pairs = zip(values[1:], outputs, strict=False)
    num_equal = sum(_is_equal(value, output[name]) for value, output in pairs)
    return num_equal > policy.MIN_STATE_FRACTION * (len(values) - 1)


def _is_equal(value: Array, other: Array) -> bool:
    if value.size != other.size or other.dtype.kind != "f":
        return False
    difference = np.abs(value.reshape(-1) - other.reshape(-1))
    return bool(difference.max(initial=0) <= policy.STATE_TOLERANCE * np.abs(value).max(initial=0))


@dataclass
class StateLoop:
    """Runs of a model with its own states instead of the recorded ones.

    Attributes:
        states: result of `find_states`.
    """

    states: Mapping[str, str]
    _expected: Mapping[str, Array] = field(default_factory=dict)
    _actual: Mapping[str, Array] = field(default_factory=dict)

    def feeds(self, recorded: Feeds) -> Feeds:
        """Return the feeds of the next run: the recorded ones, with the model's own states inside of a sequence."""
        own = {
            name: self._actual[output].reshape(recorded[name].shape).astype(recorded[name].dtype)
            for name, output in self.states.items()
            if output in self._expected and _is_equal(recorded[name], self._expected[output])
        }
        return {**recorded, **own}

    def add(self, expected: Mapping[str, Array], actual: Mapping[str, Array]) -> None:
        """Add the recorded outputs and the model's outputs of the last run."""
        self._expected, self._actual = expected, actual
