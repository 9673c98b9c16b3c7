import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from plugin_distribution import forget_plugins, write_distribution

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array
from quantkit.quantization.observers import (
    REGISTRY,
    Entropy,
    Histogram,
    MeanSquaredError,
    MinMax,
    Observer,
    create_observer,
    find_observer,
    observers,
)
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.ranges import Range
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import AFFINE, UNSIGNED, Spec

OBSERVERS = tuple(observers())
ANY = arrays.arrays(np.float32, arrays.array_shapes(min_side=0, max_dims=4, max_side=9), elements=st.floats(width=32))
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)
BATCHES = st.lists(arrays.arrays(np.float32, st.integers(0, 40), elements=FINITE), max_size=5)
SIGNED = Spec.parse("qint8 symmetric")
SPECS = st.sampled_from([AFFINE, SIGNED, Spec.parse("qint8 affine")])


def observe(observer: Observer, batches: list[Array]) -> Observer:
    for batch in batches:
        observer.observe(batch)
    return observer


@given(st.lists(ANY, max_size=4), st.sampled_from(OBSERVERS), SPECS)
@settings(max_examples=150, deadline=None)
def test_every_range_is_finite_and_within_the_extremes(batches: list[Array], name: str, spec: Spec) -> None:
    observer = observe(create_observer(name, spec), batches)
    low, high = observer.range()
    values = np.concatenate([np.zeros(0, np.float32), *(batch.reshape(-1) for batch in batches)])
    finite = values[np.isfinite(values)]
    assert np.isfinite([low, high]).all()
    assert low <= high
    assert observer.num_nan == np.isnan(values).sum()
    assert observer.num_infinite == np.isinf(values).sum()
    if finite.size:
        assert finite.min() <= low
        assert high <= finite.max()
    else:
        assert (low, high) == (0, 0)


@given(FINITE, st.sampled_from(OBSERVERS), st.integers(1, 30))
@settings(deadline=None)
def test_the_range_of_a_constant_contains_it(value: float, name: str, count: int) -> None:
    observer = observe(create_observer(name, AFFINE), [np.full(count, value, np.float32)] * 2)
    low, high = observer.range()
    assert low <= value <= high
    assert abs(low - value) <= abs(value) + 1e-30
    assert np.isfinite([low, high]).all()


@given(BATCHES)
def test_extremes_do_not_depend_on_the_batches(batches: list[Array]) -> None:
    whole = np.concatenate([np.zeros(0, np.float32), *batches])
    assert observe(MinMax(), batches).range() == observe(MinMax(), [whole]).range()


@given(BATCHES)
def test_a_histogram_keeps_all_values_when_it_grows(batches: list[Array]) -> None:
    histogram = Histogram(64)
    values = np.concatenate([np.zeros(0, np.float32), *batches]).astype(np.float64)
    for batch in batches:
        histogram.add(batch)
    assert histogram.counts.sum() + histogram.zeros == values.size
    values = values[values != 0]
    if values.size:
        positions = np.floor(values / histogram.width).astype(np.int64) - histogram.first
        assert np.array_equal(np.bincount(positions, minlength=64), histogram.counts), "rebinned exactly"


@given(BATCHES, BATCHES, st.sampled_from(OBSERVERS))
@settings(deadline=None)
def test_a_restored_observer_continues(before: list[Array], after: list[Array], name: str) -> None:
    first = observe(create_observer(name, AFFINE), before)
    second = create_observer(name, AFFINE)
    second.restore(first.state())
    assert observe(second, after).range() == observe(first, after).range()


@pytest.mark.parametrize("name", ["percentile(99.9)", "entropy", "mean_squared_error"])
def test_a_rare_outlier_is_excluded(name: str) -> None:
    values = np.random.default_rng(0).laplace(size=1_000_000).astype(np.float32)
    values[7] = 200.0
    low, high = observe(create_observer(name, AFFINE), [values]).range()
    assert high < 150
    assert low < -5


@pytest.mark.parametrize("spec", [AFFINE, SIGNED, UNSIGNED])
def test_the_least_squared_error_is_below_that_of_the_extremes(spec: Spec) -> None:
    values = np.random.default_rng(1).laplace(size=8000).astype(np.float32)
    values = np.abs(values) if spec is UNSIGNED else values
    errors = {}
    for name in ("min_max", "mean_squared_error"):
        parameters = QuantizationParameters.of_range(spec, observe(create_observer(name, spec), [values]).range())
        errors[name] = float(np.square(parameters.fake_quantize(values) - values).mean())
    assert errors["mean_squared_error"] < errors["min_max"] * 1.01, "the histogram rounds values to half a bin"


def test_uniform_values_keep_their_range() -> None:
    values = np.linspace(-1, 1, 4001, dtype=np.float32)
    for name in ("entropy", "mean_squared_error"):
        low, high = observe(create_observer(name, AFFINE), [values]).range()
        assert low < -0.98
        assert high > 0.98


@pytest.mark.parametrize("side", [1, -1])
def test_rare_large_values_are_all_counted(side: int) -> None:
    random = np.random.default_rng(2)
    ranges = []
    for _ in range(10):  # positions of the large values, of which a sample counts between none and some
        values = random.laplace(size=400_000).astype(np.float32)
        values[random.permutation(values.size)[:20]] = 60.0 * side
        ranges.append(observe(create_observer("mean_squared_error", AFFINE), [values]).range())
    clipped = [max(-limits.low, limits.high) for limits in ranges]
    assert max(clipped) < 1.2 * min(clipped)


@given(st.integers(1, 3))
def test_sampled_values_count_for_those_between_them(count: int) -> None:
    observer = MeanSquaredError(AFFINE)
    size = 3 * 8192 + 5
    values = np.random.default_rng(count).normal(size=size).astype(np.float32)
    observe(observer, [values] * count)
    assert abs(int(observer.histogram.counts.sum()) / (count * size) - 1) < 0.02


@pytest.mark.parametrize("channel", [(..., 5), (0, 31)])
def test_a_sample_of_a_large_array_contains_all_channels(channel: tuple[Any, ...]) -> None:
    values = np.zeros((1, 32, 112, 112) if channel[0] == 0 else (1, 64, 64, 32), np.float32)
    values[channel] = 3.0
    observer = Entropy(UNSIGNED)
    for _ in range(3):
        observer.observe(values)
    assert observer.range() == Range(0.0, 3.0)
    assert 0.02 < observer.histogram.counts.sum() / (observer.histogram.counts.sum() + observer.histogram.zeros) < 0.04


def test_a_moving_average_weights_recent_batches() -> None:
    observer = create_observer("moving_average(0.5)", AFFINE)
    observe(observer, [np.array(values, np.float32) for values in ([0, 8], [0, 4], [-2, 4])])
    assert observer.range() == Range(-1.0, 5.0)


@pytest.mark.parametrize("text", ["percentile(20)", "moving_average(1.5)"])
def test_numbers_out_of_bounds_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        create_observer(text, AFFINE)


def test_an_observer_text_may_have_a_number() -> None:
    assert [find_observer(name)[1] for name in OBSERVERS] == [None] * len(OBSERVERS)
    kind, number = find_observer("percentile(99.5)")
    assert (kind.name, number) == ("percentile", 99.5)
    with pytest.raises(UsageError, match="the observer entropy takes no number"):
        find_observer("entropy(3)")
    with pytest.raises(UsageError, match="'percentil' is not") as caught:
        find_observer("percentil(99)")
    assert "percentile" in caught.value.hint


PLUGIN = """
from quantkit.quantization.observers import MinMax, Observer, observer
from quantkit.quantization.ranges import Range
from quantkit.quantization.spec import Spec


class Doubled(MinMax):
    def range(self) -> Range:
        return Range(*(2 * limit for limit in super().range()))


@observer
def doubled(spec: Spec) -> Observer:
    return Doubled()
"""


def test_an_installed_package_can_register_an_observer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(tmp_path, "doubled_observer", PLUGIN, {REGISTRY.group: {"doubled": "doubled_observer:doubled"}})
    monkeypatch.syspath_prepend(tmp_path)
    forget_plugins(REGISTRY)
    try:
        assert Scheme(observer="doubled").observer == "doubled"
        assert observe(create_observer("doubled", AFFINE), [np.array([-1, 3], np.float32)]).range() == Range(-2.0, 6.0)
    finally:
        monkeypatch.undo()
        sys.modules.pop("doubled_observer", None)
        forget_plugins(REGISTRY)
    with pytest.raises(UsageError):
        Scheme(observer="doubled")
