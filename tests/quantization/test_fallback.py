"""The search for the layers that must stay float, on made-up networks whose truth is known."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import InputError
from quantkit.quantization.fallback import Loss, Measure, search


class Network:
    """Every unit costs some accuracy in 8 bits; costs add up."""

    def __init__(self, costs: Mapping[str, float], seconds: float = 1.0) -> None:
        self.costs = costs
        self.seconds = seconds
        self.now = 0.0
        self.asked: list[frozenset[str]] = []

    def measure(self, floats: frozenset[str]) -> Loss:
        self.now += self.seconds
        self.asked.append(floats)
        drop = sum(cost for name, cost in self.costs.items() if name not in floats)
        return Loss(drop, drop / 2)

    def clock(self) -> float:
        return self.now


def run(network: Network, *, max_drop: float = 0.01, seconds: float = 1e6, **options: object) -> object:
    measure: Measure = network.measure
    return search(network.costs, measure, max_drop=max_drop, seconds=seconds, clock=network.clock, **options)


def test_nothing_is_kept_where_nothing_is_lost() -> None:
    network = Network({"a": 0.001, "b": 0.002})
    found = run(network)
    assert found.keep_float == frozenset()
    assert (found.is_reached, found.is_complete) == (True, True)
    assert len(network.asked) == 1, "the search is not made where it is not needed"


def test_the_guilty_layer_is_found() -> None:
    found = run(Network({"a": 0.001, "bad": 0.4, "b": 0.002, "c": 0.0}))
    assert found.keep_float == {"bad"}
    assert found.is_reached
    assert found.loss.drop == pytest.approx(0.003)
    assert found.rows[0].unit == "bad"
    assert found.rows[0].gain == Loss(pytest.approx(0.4), pytest.approx(0.2))
    assert found.rows[0].bought == Loss(pytest.approx(0.4), pytest.approx(0.2))


def test_no_more_than_needed_stays_float() -> None:
    found = run(Network({"a": 0.05, "b": 0.04, "c": 0.03, "d": 0.001}))
    assert found.keep_float == {"a", "b", "c"}


def test_a_layer_that_another_makes_harmless_goes_back() -> None:
    """Two layers that hurt alone may be cured by one of them."""

    def measure(floats: frozenset[str]) -> Loss:
        return Loss(0.0 if "second" in floats else 0.2 - 0.1 * ("first" in floats), 0.0)

    found = search(["first", "second"], measure, max_drop=0.01, seconds=1e6)
    assert found.keep_float == {"second"}


def test_what_float_can_not_cure_is_said() -> None:
    found = search(["a", "b"], lambda floats: Loss(0.5, 1.0), max_drop=0.01, seconds=1e6)
    assert not found.is_reached
    assert found.keep_float == frozenset()


def test_time_ends_the_search_with_what_is_known() -> None:
    network = Network({f"u{number}": 0.01 for number in range(50)} | {"bad": 0.4})
    found = run(network, max_drop=0.55, seconds=10, likely=["bad", "stranger"])
    assert not found.is_complete
    assert found.keep_float == {"bad"}, "what is likely is measured first"
    assert found.is_reached
    assert network.now <= 11


def test_time_is_left_to_choose_by_what_is_known() -> None:
    """Two layers of many are guilty, and both were measured before time ran short."""
    network = Network({f"u{number}": 0.0 for number in range(50)} | {"bad": 0.4, "worse": 0.5})
    found = run(network, max_drop=0.01, seconds=20, likely=["bad", "worse"])
    assert found.keep_float == {"bad", "worse"}
    assert found.is_reached
    assert not found.is_complete
    assert network.now <= 21


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    costs = {"a": 0.05, "b": 0.04, "c": 0.0}
    state = tmp_path / "search.json"
    first = Network(costs)
    run(first, seconds=3, state=state)
    second = Network(costs)
    found = run(second, state=state)
    assert found.keep_float == {"a", "b"}
    assert not set(first.asked) & set(second.asked)


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "search.json"
    state.write_text("{")
    with pytest.raises(InputError, match="is no state of a search"):
        run(Network({"a": 1.0}), state=state)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.floats(0, 0.3), max_size=12), st.floats(0, 0.5))
def test_costs_that_add_up_are_always_cured(costs: dict[str, float], max_drop: float) -> None:
    network = Network(costs)
    found = run(network, max_drop=max_drop)
    assert found.is_reached
    assert found.loss == network.measure(found.keep_float)
    for name in found.keep_float:
        assert network.measure(found.keep_float - {name}).drop > max_drop
    assert {row.unit for row in found.rows} == set(costs)
    assert found.to_json()["keep_float"] == sorted(found.keep_float)
