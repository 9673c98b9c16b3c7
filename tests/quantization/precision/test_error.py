"""Error signals: noise of layers that share an input, and sample of the values of large outputs."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from quantkit.ir.graph import Edge, Graph
from quantkit.quantization.precision.error import MAX_VALUES, ErrorProbe, _thin
from quantkit.quantization.precision.switches import SwitchedGraph


class Output(NamedTuple):
    """Output of `LinearSession`."""

    name: str


class LinearSession:
    """Session with the output 1 + the sum of the signals that are switched on.

    Attributes:
        signals: error signals, (n, values).
    """

    outputs = (Output("y"),)

    def __init__(self, signals: np.ndarray) -> None:
        self.signals = signals

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": 1 + feeds["switches"].astype(np.float64) @ self.signals}


def test_layers_that_cancel_the_error_of_their_input_have_noise() -> None:
    """Each of three layers cancels 90 % of the error of their input; a second input and its layer are independent."""
    signals = np.array([[2, 0], [0, 2], [-1.8, 0], [-1.8, 0], [-1.8, 0], [2, 0]]) / np.sqrt(2)
    groups = (frozenset({Edge("x")}), frozenset({Edge("z")}))
    inputs = tuple(frozenset({number}) for number in (0, 0, 0, 1))
    switched = SwitchedGraph(Graph({}), "switches", groups, ("a", "b", "c", "d"), inputs)
    probe = ErrorProbe(switched, LinearSession(signals), [{}], [{"y": np.ones(2)}], {})  # type: ignore[arg-type]
    model = replace(probe.measure(lambda number: None), is_coherent=False)
    for row in np.array(list(product((0.0, 1.0), repeat=6))):
        energies = [np.square(row[part] @ signals[part]).sum() / 2 for part in ([0, 2, 3, 4], [1, 5])]
        assert model.noise(row) == pytest.approx(sum(energies))
    assert model.noise(np.ones(6)) == pytest.approx(1.7**2 + 2)


def test_a_sample_of_images_has_all_columns() -> None:
    columns = np.tile(np.arange(8.0), MAX_VALUES)
    sample = _thin(columns)
    assert len(sample) == MAX_VALUES
    counts = np.bincount(sample.astype(int), minlength=8)
    assert counts.min() > 0.95 * MAX_VALUES / 8, "a stride of 8 selects one column"


def test_samples_of_equal_sizes_have_the_same_positions() -> None:
    values = np.arange(2.5 * MAX_VALUES)
    sample = _thin(values)
    assert np.array_equal(_thin(-values), -sample)
    assert np.all(np.diff(sample) > 0)
    assert sample.max() > 0.999 * len(values)


def test_few_values_are_complete() -> None:
    values = np.arange(float(MAX_VALUES))
    assert _thin(values) is values
