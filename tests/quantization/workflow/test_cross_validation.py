"""Fine-tuning takes the ranges of the observer that suits samples outside of its calibration."""

from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.quantization.fallback import ERROR, Loss
from quantkit.quantization.finetuning.report import FineTuning, MetricGain
from quantkit.quantization.workflow import cross_validation

pytest.importorskip("onnxruntime")
pytest.importorskip("tensorflow")
pytestmark = pytest.mark.engine
FLOAT = {"T": DType.FLOAT}


def perceptron() -> Graph:
    """Return two products with a Relu between them; the output has values."""
    random = np.random.default_rng(2)
    nodes = (
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 8))}),
        constant("w1", random.normal(0, 0.4, (8, 16)).astype(np.float32)),
        Node("product", "MatMul", ("x", "w1"), attrs=FLOAT),
        Node("relu", "Relu", ("product",), attrs=FLOAT),
        constant("w2", random.normal(0, 0.3, (16, 4)).astype(np.float32)),
        Node("y", "MatMul", ("relu", "w2"), attrs=FLOAT),
    )
    return Graph.of(nodes, ["x"], ["y"])


def samples(sizes: Array) -> Array:
    values: Array = np.random.default_rng(3).normal(0, 1, (len(sizes), 8)) * sizes[:, None]
    return values.astype(np.float32)


def fine_tune(data: Array, observer: str, **options: Any) -> tuple[qk.QuantizationResult, FineTuning]:
    scheme = {"target": "onnx", "observer": observer}
    result = qk.quantize(perceptron(), data, runs=0, scheme=scheme, finetune="layerwise", **options)
    assert result.report.fine_tuning is not None
    return result, result.report.fine_tuning


def test_ranges_that_cut_off_values_are_replaced() -> None:
    data = samples(np.linspace(1, 2, 20))
    result, tuning = fine_tune(data, "percentile(80)")
    assert tuning.ranges is not None
    assert result.conversion.plan.scheme.observer == tuning.ranges.observer != "percentile(80)"
    assert tuning.ranges.gain.kind == ERROR
    assert tuning.ranges.gain.after < 0.2 * tuning.ranges.gain.before
    assert tuning.ranges.gain.source == "20 samples, cross-validated"
    narrow = qk.quantize(perceptron(), data[:15], runs=0, scheme={"target": "onnx", "observer": "percentile(80)"})
    (edge,) = narrow.conversion.graph.inputs
    assert result.conversion.ranges[edge].high > 1.2 * narrow.conversion.ranges[edge].high
    assert result.to_json()["fine_tuning"]["ranges"]["observer"] == tuning.ranges.observer
    assert f"ranges of the observer {tuning.ranges.observer}: {tuning.ranges.gain}" in str(result)


def test_the_samples_of_a_range_do_not_judge_it() -> None:
    """The extremes of the other samples cut off the values of the sixteenth, which are three times as large."""
    data = samples(np.array([1.0] * 15 + [3.0] + [1.0] * 4))
    counts: list[int] = []
    observation = cross_validation.Observation

    class RecordedObservation(observation):  # type: ignore[misc, valid-type]
        def ranges(self) -> Any:
            counts.append(self.count)
            return super().ranges()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_validation, "Observation", RecordedObservation)
        _, tuning = fine_tune(data, "percentile(80)")
    assert {*counts} == {16}
    assert tuning.ranges is not None
    assert tuning.ranges.gain.after > 0.03


def test_ranges_of_a_good_model_and_of_an_observer_of_the_caller_stay() -> None:
    data = samples(np.ones(20))
    _, tuning = fine_tune(data, "min_max")
    assert tuning.ranges is None
    result = qk.quantize(perceptron(), data, runs=0, observer="percentile(80)", finetune="layerwise")
    assert result.report.fine_tuning is not None
    assert result.report.fine_tuning.ranges is None
    assert result.conversion.plan.scheme.observer == "percentile(80)"


def test_an_observer_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cross_validate = cross_validation._cross_validate

    def fail(conversion: Any, observer: str, *arguments: Any) -> list[Loss]:
        if observer != "percentile(80)":
            raise UsageError("no histogram")
        return cross_validate(conversion, observer, *arguments)

    monkeypatch.setattr(cross_validation, "_cross_validate", fail)
    messages: list[str] = []
    _, tuning = fine_tune(samples(np.ones(20)), "percentile(80)", on_message=messages.append)
    assert tuning.ranges is None
    assert "warning: the observer min_max is not compared: no histogram" in messages


def test_the_gain_of_blocks_has_the_interval_of_a_jackknife() -> None:
    before, after = (
        [Loss(drop, 0.0, ERROR) for drop in drops] for drops in ((0.5, 0.6, 0.4, 0.5), (0.3, 0.3, 0.3, 0.3))
    )
    gain = MetricGain.of_blocks(before, after, "")
    assert (gain.before, gain.after) == (0.5, 0.3)
    assert gain.low is not None
    assert gain.high is not None
    # sqrt(2/3 * 0.02) * t(2)
    assert gain.high - 0.2 == pytest.approx(0.11547 * 4.30265, rel=1e-3)
    assert gain.low + gain.high == pytest.approx(0.4)
    assert MetricGain.of_blocks(before[:2], after[:2], "").low is None


@pytest.mark.parametrize(
    ("loss", "is_smaller"),
    [
        (Loss(0.1, 0.10), True),
        (Loss(0.1, 0.18), True),
        (Loss(0.1, 0.197), False),
        (Loss(0.05, 0.3), False),
        (Loss(0.2, 0.1), False),
    ],
)
def test_the_agreement_of_few_samples_selects_no_observer(loss: Loss, is_smaller: bool) -> None:
    assert cross_validation._is_smaller(loss, Loss(0.1, 0.2)) == is_smaller
