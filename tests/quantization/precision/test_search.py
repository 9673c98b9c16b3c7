"""Minimum cuts over float and int8 layers, next to an exhaustive search."""

from itertools import combinations
from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.benchmark.profiling import ModelProfile, ProfileRow
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization import Scheme
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.precision.cost import CostModel, KernelTime, measure_costs
from quantkit.quantization.precision.error import ErrorModel, decibels
from quantkit.quantization.precision.search import FloatSearch, TimeCut
from quantkit.quantization.precision.switches import SwitchedGraph
from quantkit.runtimes.session import RuntimeVersion

LAYERS = ("a", "b", "c", "d")
INPUTS = tuple(frozenset({number}) for number in range(4))
SECONDS = st.floats(0, 1, allow_subnormal=False)


def search(times: list[KernelTime], boundaries: list[float], signals: np.ndarray) -> FloatSearch:
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
    switched = SwitchedGraph(graph, "switches", tuple(frozenset({edge}) for edge in edges), LAYERS, INPUTS)
    costs = CostModel(dict(zip(LAYERS, times, strict=True)), dict(zip(edges, boundaries, strict=True)))
    return FloatSearch(graph, plan, ErrorModel(switched, (signals @ signals.T)[None], np.zeros(9, np.int64)), costs)


def choices() -> list[frozenset[str]]:
    return [frozenset(names) for count in range(5) for names in combinations(LAYERS, count)]


@given(
    st.lists(st.builds(KernelTime, SECONDS, SECONDS), min_size=4, max_size=4),
    st.lists(SECONDS, min_size=5, max_size=5),
    st.lists(SECONDS, min_size=9, max_size=9),
)
def test_a_cut_is_the_best_of_all_choices(times: list[KernelTime], boundaries: list[float], noise: list[float]) -> None:
    problem = search(times, boundaries, np.zeros((9, 1)))

    def cost(choice: frozenset[str]) -> float:
        return problem.seconds(choice) + float(problem.switches(choice) @ noise)

    assert cost(problem.choose(zip(problem.owners, noise, strict=True))) == pytest.approx(
        min(map(cost, choices())), abs=1e-9
    )


def test_of_equal_choices_the_one_with_the_fewest_float_layers_is_taken() -> None:
    """Sums of tenths in binary depend on their order, which depends on the process."""
    random = np.random.default_rng(0)
    for _ in range(200):
        tenths = random.integers(0, [[10]] * 8 + [[5]] * 14, (22, 1)).ravel()
        exact, problem = (
            search([KernelTime(*pair) for pair in values[:8].reshape(4, 2)], list(values[8:13]), np.zeros((9, 1)))
            for values in (tenths, tenths / 10)
        )
        noise = tenths[13:]
        costs = {choice: exact.seconds(choice) + exact.switches(choice) @ noise for choice in choices()}
        best = [choice for choice, cost in costs.items() if cost == min(costs.values())]
        choice = problem.choose(zip(problem.owners, (noise / 10).tolist(), strict=True))
        assert choice == frozenset.intersection(*best)


def test_the_front_begins_with_the_noisiest_layer() -> None:
    signals = np.eye(9) * 0.01
    signals[6] *= 100  # the weights of the layer b
    problem = search([KernelTime(1.0, 3.0)] * 4, [0.1] * 5, signals)
    front = list(problem.front())
    assert front[0] == {"b"}
    assert problem.ranking()[0] == "b"
    assert sorted(problem.ranking()) == sorted(LAYERS)
    seconds = [problem.seconds(choice) for choice in front]
    assert seconds == sorted(seconds)


def test_layers_between_float_layers_become_float_with_them() -> None:
    """The boundaries of a small layer between two noisy ones cost more than the layer saves."""
    times = [KernelTime(1.0, 1.5), KernelTime(0.1, 0.2), KernelTime(1.0, 1.5), KernelTime(1.0, 9.0)]
    noise = np.zeros(9)
    noise[[5, 7]] = 4.0  # the weights of the layers a and c
    problem = search(times, [0.5] * 5, np.zeros((9, 1)))
    assert problem.choose(zip(problem.owners, noise, strict=True)) == {"a", "b", "c"}


def fork() -> tuple[Graph, Plan]:
    """Return a graph with two consumers of an edge, x -> a -> p -> (b, c), p a pass-through node, and its plan."""
    sources = {"a": "x", "p": "a", "b": "p", "c": "p"}
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 4))})]
    nodes += [Node(name, "MaxPool" if name == "p" else "MatMul", (source,)) for name, source in sources.items()]
    graph = Graph.of(nodes, [Edge("x")], [Edge("b"), Edge("c")], dialect="onnx")
    layers = tuple(FusedPattern(name, "w", Edge(sources[name]), Edge(name)) for name in ("a", "b", "c"))
    edges = [Edge(name) for name in ("x", *sources)]
    return graph, Plan(Scheme(), dict.fromkeys(edges), {}, (), layers, ("p",), (), tuple(edges))


@given(
    st.lists(st.builds(KernelTime, SECONDS, SECONDS), min_size=4, max_size=4),
    st.lists(SECONDS, min_size=5, max_size=5),
)
def test_an_edge_is_converted_once_for_all_consumers(times: list[KernelTime], boundaries: list[float]) -> None:
    graph, plan = fork()
    names = ("a", "p", "b", "c")
    costs = CostModel(dict(zip(names, times, strict=True)), dict(zip(plan.activations, boundaries, strict=True)))
    cut = TimeCut(graph, plan, costs)
    assert cut.seconds(frozenset("bc")) == pytest.approx(
        times[0].int8 + times[1].int8 + times[2].float + times[3].float + boundaries[0] + boundaries[2]
    )
    others = [frozenset(each) for count in range(5) for each in combinations(names, count)]
    assert cut.seconds(cut.choose()) == pytest.approx(min(map(cut.seconds, others)), abs=1e-9)


def test_equal_times_stay_int8() -> None:
    graph, plan = fork()
    costs = CostModel(dict.fromkeys("apbc", KernelTime(0.0, 0.0)), dict.fromkeys(plan.activations, 0.0))
    assert TimeCut(graph, plan, costs).choose() == frozenset()


def test_noise_that_is_not_a_number_has_no_price() -> None:
    graph, plan = fork()
    costs = CostModel(dict.fromkeys("apbc", KernelTime(1.0, 2.0)), dict.fromkeys(plan.activations, 0.0))
    assert TimeCut(graph, plan, costs).choose([(["a"], nan)]) == frozenset()


def profile(*rows: tuple[str, str, float]) -> ModelProfile:
    layers = tuple(ProfileRow(name, "", precision, seconds) for name, precision, seconds in rows)
    return ModelProfile("m", RuntimeVersion("r", "1"), layers, 1.0, 1.0, 0.0, 1)


def test_measured_conversions_next_to_float_nodes_are_boundaries() -> None:
    """x is float: its conversion is a boundary. The conversion at p belongs to its int8 form, between int8 kernels."""
    graph, plan = fork()
    table = CostModel({}, dict.fromkeys(plan.activations, 1.0))
    int8 = [("a", "int8", 1.0), ("a", "conversion", 6.0), ("p", "int8", 0.5), ("p", "conversion", 0.25)]
    quantized = profile(*int8, ("b", "int8", 3.0))
    costs = measure_costs(graph, plan, table, [profile(("a", "float", 2.0), ("p", "float", 1.0))] * 3, [quantized] * 3)
    assert costs.kernels["a"] == KernelTime(1.0, 2.0)
    assert costs.kernels["p"] == KernelTime(0.75, 1.0)
    assert costs.kernels["b"] == KernelTime(3.0, 3.0), "the float model shows no time of its own"
    assert costs.kernels["c"] == KernelTime(0.0, 0.0)
    # The boundaries of x, b and c: the outputs of the graph are float.
    assert set(costs.boundaries.values()) == {2.0}


def test_the_form_for_several_runtimes_minimizes_the_mean_of_relative_times() -> None:
    edge = Edge("x")
    slow = CostModel({"a": KernelTime(4.0, 8.0)}, {edge: 1.0})
    fast = CostModel({"a": KernelTime(3.0, 2.0)}, {edge: 0.5})
    mean = CostModel.mean([slow, fast])
    assert mean.kernels["a"].float == pytest.approx(5.0)
    assert mean.kernels["a"].int8 == pytest.approx((4 * 5 / 8 + 3 * 5 / 2) / 2)
    assert CostModel.mean([slow]) == slow


def test_predicted_noise_fits_measured_noise() -> None:
    signals = np.eye(9)
    problem = search([KernelTime(1.0, 2.0)] * 4, [0.1] * 5, signals)
    switches = problem.switches(frozenset({"a"}))
    model = problem.errors.fit([(switches, 2 * problem.errors.noise(switches))])
    assert model.noise(switches) == pytest.approx(2 * problem.errors.noise(switches), rel=0.01)
    assert model.rms_db == pytest.approx(3.01, abs=0.01)
    assert decibels(model.noise(switches)) == pytest.approx(decibels(problem.errors.noise(switches)) - 3.01, abs=0.01)
