"""Upper limits of the drop: exact ones, those from margins, and their coverage."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from quantkit.evaluation.classification_metrics import Proportion
from quantkit.evaluation.tasks import TASKS
from quantkit.ir.tensor import Array
from quantkit.optimize.drop import (
    ALPHA,
    compute_alpha,
    margin_limit,
    mean_limit,
    measure_drop,
    proportion_limit,
    samples_for,
)
from quantkit.quantization.workflow.float_reference import ComparedRun

RANDOM = np.random.default_rng(0)


class Reference:
    """Float outputs, and the outputs of a candidate in place of its session."""

    def __init__(self, expected: Array, labels: Array | None = None, task: str | None = None) -> None:
        self.expected, self.labels, self.task = expected, labels, TASKS.get(task or "")
        self.score_output = None if task else "y"
        self.top1 = None if labels is None else Proportion(1, 2)

    def runs(self, actual: Any) -> Iterator[ComparedRun]:
        for index, (before, after) in enumerate(zip(self.expected, actual, strict=True)):
            label = None if self.labels is None else int(self.labels[index])
            yield ComparedRun({"y": before[None]}, {"y": after[None]}, {}, (label,))

    def without_states(self, outputs: Any) -> Any:
        return outputs


def measure(reference: Reference, actual: Array, alpha: float = ALPHA / 2) -> Any:
    return measure_drop(actual, reference, alpha)  # type: ignore[arg-type]


def test_limits_of_proportions_are_exact() -> None:
    assert proportion_limit(0, 299, 0.05) == pytest.approx(1 - 0.05 ** (1 / 299))
    assert proportion_limit(5, 100, 0.05) == pytest.approx(0.1023, abs=1e-4)  # tables of Clopper and Pearson
    assert proportion_limit(7, 7, 0.05) == 1
    assert samples_for(0.01) == 437
    assert proportion_limit(0, 437, 0.0125) < 0.01 < proportion_limit(0, 435, 0.0125)


def test_limits_of_means_are_those_of_student() -> None:
    values = RANDOM.normal(0, 1, 5).tolist()
    # Quantile 0.95 of Student's t distribution with 4 degrees of freedom.
    expected = np.mean(values) + 2.1318 * np.std(values, ddof=1) / np.sqrt(5)
    assert mean_limit(values, 0.05) == pytest.approx(expected, abs=0.01)
    assert mean_limit([0.5] * 4, 0.05) == 1  # too few values for any limit


def _sure(count: int) -> Array:
    scores = RANDOM.normal(0, 1, (count, 10))
    scores[np.arange(count), RANDOM.integers(0, 10, count)] += 8
    return scores


def _without_knowledge(count: int) -> Array:
    return RANDOM.normal(0, 1, (count, 10))


def _probabilities(count: int) -> Array:
    scores = np.exp(_sure(count))
    probabilities: Array = scores / scores.sum(1, keepdims=True)
    return probabilities


@pytest.mark.parametrize("make", [_sure, _without_knowledge, _probabilities])
@pytest.mark.parametrize("noise", [0.003, 0.03, 0.3])
def test_limits_from_margins_hold_for_sure_and_unsure_networks(make: Callable[[int], Array], noise: float) -> None:
    def disturb(scores: Array) -> Array:
        if make is _probabilities:
            scores = np.exp(np.log(scores) + RANDOM.normal(0, noise, scores.shape))
            disturbed: Array = scores / scores.sum(1, keepdims=True)
            return disturbed
        return scores + RANDOM.normal(0, noise, scores.shape)

    population = make(20000)
    changed = float((disturb(population).argmax(1) != population.argmax(1)).mean())
    limits = []
    for _ in range(100):
        sample = population[RANDOM.choice(len(population), 60, replace=False)]
        limits.append(margin_limit(sample, disturb(sample), 0.05))
    assert np.mean(np.array(limits) >= changed) >= 0.95
    if make is not _without_knowledge and noise == 0.003:
        assert np.median(limits) < 0.01 < proportion_limit(0, 60, 0.05)


def test_margins_show_a_small_drop_with_few_samples() -> None:
    scores = _sure(60)
    drop = measure(Reference(scores), scores + RANDOM.normal(0, 0.01, scores.shape))
    assert (drop.metric, drop.value, drop.samples) == ("agreement", 0, 60)
    assert drop.high < 0.01
    broken = scores.copy()
    broken[0] = np.nan
    assert measure(Reference(scores), broken).high > 0.05


def test_gained_samples_count_for_labels() -> None:
    scores = np.tile([1.0, 0.0], (200, 1))
    labels = np.zeros(200)
    labels[:20] = 1
    other = scores.copy()
    other[10:30] = [0.0, 1.0]  # ten samples are gained, ten are lost
    drop = measure(Reference(scores, labels), other)
    assert (drop.metric, drop.value) == ("top-1", 0)
    assert 0 < drop.high < proportion_limit(10, 200, 0.0125)


def test_the_limit_of_a_task_is_that_of_the_mean() -> None:
    outputs = RANDOM.normal(0, 1, (30, 50))
    noise = RANDOM.normal(0, 0.05, outputs.shape)
    drop = measure(Reference(outputs, task="regression"), outputs + noise)
    assert drop.metric == "R2"
    assert 0 < drop.value < drop.high < 0.01


def test_candidates_beyond_the_bound_widen_the_limits_of_later_ones_and_those_within_do_not() -> None:
    scores = _sure(100)
    other = scores + RANDOM.normal(0, 0.1, scores.shape)
    earlier: Sequence[list[bool]] = ([], [False], [True])
    first, later, after = (measure(Reference(scores), other, compute_alpha(each)).high for each in earlier)
    assert after < first < later


@pytest.mark.parametrize("goods", [(), (0,), (0, 2), (1, 3), range(6), (0, 1, 2, 4, 5)])
def test_a_candidate_beyond_the_bound_is_used_with_a_small_probability(goods: Sequence[int]) -> None:
    used = 0
    for _ in range(4000):
        earlier: list[bool] = []
        for position in range(7):
            is_good = position in goods
            # The limit of a candidate at the bound is below it with the probability that the limit is exceeded.
            earlier.append(is_good or RANDOM.random() < compute_alpha(earlier))
            if earlier[-1] and not is_good:
                used += 1
                break
    assert used / 4000 < ALPHA + 0.01


def test_lost_samples_with_large_margins_leave_only_the_exact_limit() -> None:
    scores = _sure(400)
    order = np.argsort(np.sort(scores, 1)[:, -1] - np.sort(scores, 1)[:, -2])
    other = scores.copy()
    other[order[-60:]] = other[order[-60:]][:, ::-1]  # errors of the most confident samples
    drop = measure(Reference(scores), other)
    assert drop.value > 0.1
    assert drop.high == proportion_limit(round(400 * drop.value), 400, 0.0125)
