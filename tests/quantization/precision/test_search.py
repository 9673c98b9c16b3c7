"""Minimum cuts over float and int8 layers, next to an exhaustive search."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization import Scheme
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.precision.cost import CostModel, LayerTime
from quantkit.quantization.precision.error import ErrorModel, decibels
from quantkit.quantization.precision.search import FloatSearch
from quantkit.quantization.precision.switches import SwitchedGraph

pytest.importorskip("networkx", reason="pip install networkx")
LAYERS = ("a", "b", "c", "d")
SECONDS = st.floats(0, 1, allow_subnormal=False)


def search(times: list[LayerTime], boundaries: list[float], signals: np.ndarray) -> FloatSearch:
    """Return the search of a chain of layers, x -> a -> b -> c -> d.

    Args:
        times: time of each layer.
        boundaries: time of a boundary at x and after each layer.
        signals: error signals of the five edges, then of the four layers, (9, values).
    """
    names = ("x", *LAYERS)
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 4))})]
    nodes += [Node(name, "MatMul", (before, f"{name}/w")) for before, name in zip(names, LAYERS, strict=False)]
    graph = Graph.of(nodes, [Edge("x")], [Edge("d")], dialect="onnx")
    edges = [Edge(name) for name in names]
    patterns = tuple(
        FusedPattern(name, f"{name}/w", Edge(before), Edge(name)) for before, name in zip(names, LAYERS, strict=False)
    )
    plan = Plan(Scheme(), dict.fromkeys(edges), {}, (), patterns, (), (), tuple(edges))
    switched = SwitchedGraph(graph, "switches", tuple(frozenset({edge}) for edge in edges), LAYERS)
    costs = CostModel(dict(zip(LAYERS, times, strict=True)), dict(zip(edges, boundaries, strict=True)))
    return FloatSearch(graph, plan, ErrorModel(switched, (signals @ signals.T)[None]), costs)


def choices() -> list[frozenset[str]]:
    return [frozenset(names) for count in range(5) for names in combinations(LAYERS, count)]


@given(
    st.lists(st.builds(LayerTime, SECONDS, SECONDS), min_size=4, max_size=4),
    st.lists(SECONDS, min_size=5, max_size=5),
    st.lists(SECONDS, min_size=9, max_size=9),
)
def test_a_cut_is_the_best_of_all_choices(times: list[LayerTime], boundaries: list[float], noise: list[float]) -> None:
    problem = search(times, boundaries, np.zeros((9, 1)))

    def cost(choice: frozenset[str]) -> float:
        return problem.seconds(choice) + float(problem.switches(choice) @ noise)

    assert cost(problem.cut(np.array(noise))) == pytest.approx(min(map(cost, choices())), abs=1e-9)


def test_the_front_begins_with_the_noisiest_layer() -> None:
    signals = np.eye(9) * 0.01
    signals[6] *= 100  # the weights of the layer b
    problem = search([LayerTime(1.0, 3.0)] * 4, [0.1] * 5, signals)
    front = list(problem.front())
    assert front[0] == {"b"}
    assert problem.ranking()[0] == "b"
    assert sorted(problem.ranking()) == sorted(LAYERS)
    seconds = [problem.seconds(choice) for choice in front]
    assert seconds == sorted(seconds)


def test_layers_between_float_layers_become_float_with_them() -> None:
    """The boundaries of a small layer between two noisy ones cost more than the layer saves."""
    times = [LayerTime(1.0, 1.5), LayerTime(0.1, 0.2), LayerTime(1.0, 1.5), LayerTime(1.0, 9.0)]
    noise = np.zeros(9)
    noise[[5, 7]] = 4.0  # the weights of the layers a and c
    assert search(times, [0.5] * 5, np.zeros((9, 1))).cut(noise) == {"a", "b", "c"}


def test_predicted_noise_fits_measured_noise() -> None:
    signals = np.eye(9)
    problem = search([LayerTime(1.0, 2.0)] * 4, [0.1] * 5, signals)
    switches = problem.switches(frozenset({"a"}))
    model = problem.errors.fit([(switches, 2 * problem.errors.noise(switches))])
    assert model.gain == pytest.approx(2.0)
    assert model.rms_db == pytest.approx(0.0, abs=1e-9)
    assert decibels(model.noise(switches)) == pytest.approx(decibels(problem.errors.noise(switches)) - 3.01, abs=0.01)
