"""Search for float fallbacks on synthetic networks with known sensitivities."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import InputError
from quantkit.quantization.fallback import ERROR, LayerRanking, Loss, Measure, search
from quantkit.quantization.precision.decision import ErrorPrediction


class Network:
    """Network whose layers each cost some accuracy in int8; costs add up."""

    def __init__(self, costs: Mapping[str, float], seconds: float = 1.0) -> None:
        self.costs = costs
        self.seconds = seconds
        self.now = 0.0
        self.choices: list[frozenset[str]] = []

    def error(self, floats: frozenset[str]) -> float:
        return sum(cost for name, cost in self.costs.items() if name not in floats)

    def measure(self, floats: frozenset[str]) -> Loss:
        self.now += self.seconds
        self.choices.append(floats)
        return Loss(self.error(floats), self.error(floats) / 2, ERROR)

    def clock(self) -> float:
        return self.now


def rank(layers: Sequence[str], predict: Callable[[frozenset[str]], float]) -> LayerRanking:
    return LayerRanking(layers, predict, ErrorPrediction({}, 0.5, 1.0, True, 8))


def run(network: Network, *, max_drop: float = 0.01, seconds: float = 1e6, **options: object) -> object:
    measure: Measure = network.measure
    return search(network.costs, measure, max_drop=max_drop, seconds=seconds, clock=network.clock, **options)


def test_no_layer_stays_float_without_a_drop() -> None:
    network = Network({"a": 0.001, "b": 0.002})
    result = run(network)
    assert result.keep_float == frozenset()
    assert (result.is_reached, result.is_complete) == (True, True)
    assert len(network.choices) == 1, "sensitivities are not measured if the baseline suffices"


def test_a_sensitive_layer_stays_float() -> None:
    result = run(Network({"a": 0.001, "bad": 0.4, "b": 0.002, "c": 0.0}))
    assert result.keep_float == {"bad"}
    assert result.is_reached
    assert result.loss.drop == pytest.approx(0.003)
    assert result.layers[0].layer == "bad"
    assert result.layers[0].gain == Loss(pytest.approx(0.4), pytest.approx(0.2))
    assert result.layers[0].contribution == Loss(pytest.approx(0.4), pytest.approx(0.2))


def test_only_the_needed_layers_stay_float() -> None:
    result = run(Network({"a": 0.05, "b": 0.04, "c": 0.03, "d": 0.001}))
    assert result.keep_float == {"a", "b", "c"}


def test_a_layer_that_is_not_needed_is_quantized_again() -> None:
    """One of two sensitive layers in float may remove the whole drop."""

    def measure(floats: frozenset[str]) -> Loss:
        return Loss(0.0 if "second" in floats else 0.2 - 0.1 * ("first" in floats), 0.0)

    result = search(["first", "second"], measure, max_drop=0.01, seconds=1e6)
    assert result.keep_float == {"second"}


@pytest.mark.parametrize("needed", [2, 7, 12, 31, 40])
@pytest.mark.parametrize("predicted", [1, 10, 12, 14, 40])
def test_the_search_starts_at_the_predicted_number_of_layers(needed: int, predicted: int) -> None:
    names = [f"layer{number:02}" for number in range(40)]
    network = Network({name: 0.1 if number < needed else 0.0 for number, name in enumerate(names)})
    ranking = rank(names, lambda choice: 1.0 if len(choice) < predicted else 0.001)
    result = run(network, max_drop=0.05, rank=lambda: ranking)
    assert result.keep_float == set(names[:needed])
    assert result.prediction is ranking.prediction
    assert network.choices[1] == frozenset(names[:predicted])
    if needed == predicted:
        assert network.choices[2] == frozenset(names[: needed - 1])
        assert len(network.choices) == 3


def test_a_drop_without_a_small_predicted_error_is_searched_by_bisection() -> None:
    ranking = rank("abcdefg", lambda choice: 1.0)
    network = Network({name: 0.1 if name in "ab" else 0.0 for name in "abcdefg"})
    assert run(network, max_drop=0.05, rank=lambda: ranking).keep_float == {"a", "b"}
    assert network.choices[1] == frozenset("abcd")


def test_layers_that_are_predicted_to_be_needed_are_not_measured_again_one_by_one() -> None:
    network = Network({f"layer{number}": 0.1 if number < 8 else 0.0 for number in range(16)})
    result = run(network, max_drop=0.05, rank=lambda: rank(list(network.costs), network.error))
    assert result.keep_float == {f"layer{number}" for number in range(8)}
    # All layers in int8, the predicted number of float layers, one less.
    assert len(network.choices) == 3


def test_layers_of_a_ranking_that_are_not_needed_are_quantized_again() -> None:
    """The ranking also considers the time: a layer that saves little time comes first, with a small error, too."""
    network = Network({"slow": 0.01, "bad": 0.5, "worse": 0.6, "other": 0.02})
    result = run(network, max_drop=0.04, rank=lambda: rank(list(network.costs), network.error))
    assert result.keep_float == {"bad", "worse"}
    assert len(network.choices) == 5


@pytest.mark.parametrize("seed", [0, 1, 1966])  # in the last one, the second search measures no choice
def test_a_search_resumes_with_another_limit_and_little_time(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    network = Network({f"layer{index}": random.random() ** 3 for index in range(random.randint(3, 9))})
    names, total = list(network.costs), network.error(frozenset())
    ranking = rank(random.sample(names, len(names)), network.error)

    def measure(floats: frozenset[str]) -> Loss:
        network.now += 1
        return Loss(network.error(floats) * Random(str(sorted(floats))).uniform(0.7, 1.4), 0.0, ERROR)

    for _ in range(2):
        network.now, seconds, limit = 0.0, random.randint(0, 4), random.random() * total
        options = {"rank": lambda: ranking, "state": tmp_path / "state.json", "clock": network.clock}
        result = search(names, measure, max_drop=limit, seconds=seconds, **options)
        assert result.loss == measure(result.keep_float)


def test_a_drop_that_float_does_not_remove_is_reported() -> None:
    result = search(["a", "b"], lambda floats: Loss(0.5, 1.0), max_drop=0.01, seconds=1e6)
    assert not result.is_reached
    assert result.keep_float == frozenset()


def test_an_exhausted_time_budget_ends_the_search() -> None:
    network = Network({f"u{number}": 0.01 for number in range(50)} | {"bad": 0.4})
    result = run(network, max_drop=0.55, seconds=10, suspects=["bad", "unknown"])
    assert not result.is_complete
    assert result.keep_float == {"bad"}, "suspects are measured first"
    assert result.is_reached
    assert network.now <= 11


def test_time_remains_to_choose_among_measured_layers() -> None:
    """Two of many layers are sensitive, and both were measured within the time budget."""
    network = Network({f"u{number}": 0.0 for number in range(50)} | {"bad": 0.4, "worse": 0.5})
    result = run(network, max_drop=0.01, seconds=20, suspects=["bad", "worse"])
    assert result.keep_float == {"bad", "worse"}
    assert result.is_reached
    assert not result.is_complete
    assert network.now <= 21


def test_an_interrupted_search_resumes(tmp_path: Path) -> None:
    costs = {"a": 0.05, "b": 0.04, "c": 0.0}
    state = tmp_path / "search.json"
    first = Network(costs)
    run(first, seconds=3, state=state)
    second = Network(costs)
    result = run(second, state=state)
    assert result.keep_float == {"a", "b"}
    assert result.baseline.kind == ERROR
    assert not set(first.choices) & set(second.choices)


def test_a_damaged_state_is_an_error(tmp_path: Path) -> None:
    state = tmp_path / "search.json"
    rows = '{"schema": "quantkit.fallback_state/1", "measured": [{"float": ["a"], "loss": %s}]}'
    wrong = "is not the state of a search"
    cases = [("{", "is not a JSON file"), ("{}", wrong), ("[" * 100_000, "deep"), (rows % "[0.1]", wrong)]
    for text, message in (*cases, (rows % '["a", "b", "c"]', wrong)):
        state.write_text(text)
        with pytest.raises(InputError, match=message):
            run(Network({"a": 1.0}), state=state)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.floats(0, 0.3), max_size=12), st.floats(0, 0.5))
def test_costs_that_add_up_can_always_be_removed(costs: dict[str, float], max_drop: float) -> None:
    network = Network(costs)
    result = run(network, max_drop=max_drop)
    assert result.is_reached
    assert result.loss == network.measure(result.keep_float)
    for name in result.keep_float:
        assert network.measure(result.keep_float - {name}).drop > max_drop
    assert {row.layer for row in result.layers} == set(costs)
    assert result.to_json()["keep_float"] == sorted(result.keep_float)
