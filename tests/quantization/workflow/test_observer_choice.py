"""Default observer: the better one of two on the calibration samples; the caller's own is kept."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.data import as_dataset
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.quantization import Range, Scheme
from quantkit.quantization.annotation import in_target_dialect
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.report import AccuracyReport
from quantkit.quantization.workflow import observer_choice
from quantkit.quantization.workflow import trials as trials_module
from quantkit.quantization.workflow.accuracy import open_conversion
from quantkit.quantization.workflow.calibration_run import compute_ranges
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.observer_choice import choose_observer
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.planning import choose_plan
from quantkit.quantization.workflow.trials import Trials

pytestmark = pytest.mark.engine
FLOAT = {"T": DType.FLOAT}
SAMPLES = np.random.default_rng(0).normal(0, 1, (24, 16)).astype(np.float32)


def network() -> Graph:
    """Return two dense layers."""
    random = np.random.default_rng(1)
    nodes = (
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 16))}),
        constant("v", random.normal(0, 1, (16, 16)).astype(np.float32)),
        Node("h", "MatMul", ("x", "v"), attrs=FLOAT),
        Node("r", "Relu", ("h",), attrs=FLOAT),
        constant("w", random.normal(0, 1, (16, 8)).astype(np.float32)),
        Node("y", "MatMul", ("r", "w"), attrs=FLOAT),
    )
    return in_target_dialect(Graph.of(nodes, ["x"], ["y"]), "onnx")


def calibrate(options: Options, samples: Array = SAMPLES) -> tuple[Conversion, FloatReference]:
    graph = network()
    plan = choose_plan(
        options, graph, Scheme.for_target("onnx", **({"observer": options.observer} if options.observer else {}))
    )
    ranges, reference = compute_ranges(qk.load(graph), graph, plan, as_dataset(samples), options)
    return Conversion(graph, plan, ranges), reference


def scale(ranges: Ranges, factor: float) -> dict[Any, Range]:
    return {edge: Range(factor * low, factor * high) for edge, (low, high) in ranges.items()}


def test_one_calibration_collects_the_extremes_too() -> None:
    conversion, _ = calibrate(Options(None, calibration=SAMPLES))
    ranges = conversion.ranges
    assert ranges.extremes.keys() == ranges.keys()
    expected, _ = calibrate(Options(None, calibration=SAMPLES, observer="min_max"))
    assert ranges.extremes == expected.ranges.ranges
    assert Ranges.from_json(ranges.to_json()) == ranges


def test_the_extremes_replace_ranges_that_clip_the_signal() -> None:
    messages: list[str] = []
    options = Options(None, calibration=SAMPLES, on_message=messages.append)
    conversion, reference = calibrate(options)
    clipped = replace(conversion, ranges=replace(conversion.ranges, ranges=scale(conversion.ranges, 0.1)))
    best = Trials(reference, options).improve(clipped, [choose_observer])
    assert best.plan.scheme.observer == "min_max"
    assert best.ranges.ranges == conversion.ranges.extremes
    assert best.ranges.provenance.scheme == best.plan.scheme.digest
    assert "observer min_max instead of mean_squared_error" in messages[-1]


def test_ranges_stay_if_the_extremes_are_worse_or_the_ranges_are_good() -> None:
    options = Options(None, calibration=SAMPLES)
    conversion, reference = calibrate(options)
    assert Trials(reference, options).improve(conversion, [choose_observer]) is conversion
    wide = replace(conversion.ranges, ranges=scale(conversion.ranges, 0.5), extremes=scale(conversion.ranges, 1e4))
    clipped = replace(conversion, ranges=wide)
    assert Trials(reference, options).improve(clipped, [choose_observer]) is clipped


def test_the_observer_of_the_caller_is_kept() -> None:
    stated = Options(None, calibration=SAMPLES, observer="mean_squared_error")
    conversion, reference = calibrate(stated)
    clipped = replace(conversion, ranges=replace(conversion.ranges, ranges=scale(conversion.ranges, 0.1)))
    assert Trials(reference, stated).improve(clipped, [choose_observer]) is clipped


def test_a_scheme_of_the_caller_has_no_trials() -> None:
    stated = Options(None, calibration=SAMPLES, scheme=Scheme())
    _, reference = calibrate(stated)
    assert not Trials(reference, stated).is_possible
    assert Trials(reference, replace(stated, scheme=None)).is_possible


def test_the_present_conversion_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[Path] = []
    measure_accuracy = trials_module.measure_accuracy

    def measure(file: Path, *arguments: Any, **keywords: Any) -> AccuracyReport:
        files.append(file)
        return measure_accuracy(file, *arguments, **keywords)

    monkeypatch.setattr(trials_module, "measure_accuracy", measure)
    options = Options(None, calibration=SAMPLES)
    conversion, reference = calibrate(options)
    trials = Trials(reference, options)
    assert trials.is_good(conversion)
    assert trials.is_good(conversion)
    assert len(files) == 1
    worse = replace(conversion, ranges=replace(conversion.ranges, ranges=scale(conversion.ranges, 0.1)))
    assert not trials.is_better(worse, conversion, 0.9)
    assert trials.is_better(conversion, worse, 0.9)
    assert len(files) == 5
    assert trials.is_good(conversion)
    assert len(files) == 5


@pytest.mark.parametrize(
    ("row", "factor", "clipping", "num_wins"),
    [(9, 8.0, 0.6, range(-16, 0)), (0, 0.2, 0.6, range(1, 4)), (0, 0.2, 0.4, range(4, 17))],
)
def test_a_correction_is_better_in_more_runs_than_by_chance(
    row: int, factor: float, clipping: float, num_wins: range
) -> None:
    """In 16 runs, the difference by chance is 4; one run with large values decides about the sum of the errors."""
    samples = SAMPLES.copy()
    samples[row] *= factor
    options = Options(None, calibration=samples)
    conversion, reference = calibrate(options, samples)
    wide = replace(conversion, ranges=replace(conversion.ranges, ranges=dict(conversion.ranges.extremes)))
    narrow = replace(conversion, ranges=replace(conversion.ranges, ranges=scale(wide.ranges, clipping)))
    with open_conversion(wide) as first, open_conversion(narrow) as second:
        pairs = zip(*(Trials(reference, options).samples.losses(each) for each in (first, second)), strict=True)
        assert sum(np.sign(other.kl_divergence - loss.kl_divergence) for loss, other in pairs) in num_wins
    assert Trials(reference, options).is_better(wide, narrow, 0.9)
    assert Trials(reference, options).is_better(wide, narrow, 0.9, in_most_runs=True) is (4 in num_wins)


def test_the_report_of_a_good_conversion_needs_no_further_measurement() -> None:
    options = Options(None, calibration=SAMPLES)
    conversion, reference = calibrate(options)
    trials = Trials(reference, options)
    assert trials.find_accuracy(conversion, reference) is None
    assert trials.is_good(conversion)
    accuracy = trials.find_accuracy(conversion, reference)
    assert accuracy is not None
    assert accuracy.metrics is not None
    assert accuracy.runtime is not None
    assert accuracy.runtime.name == conversion.runtimes[0]
    assert accuracy.samples == reference.source
    assert trials.find_accuracy(conversion, reference.first_runs(16)) is None
    assert trials.find_accuracy(replace(conversion), reference) is None


def test_held_out_samples_leave_the_measurement_of_all_samples_to_the_report() -> None:
    options = Options(None, calibration=SAMPLES, held_out=SAMPLES)
    conversion, reference = calibrate(options)
    trials = Trials(reference, options)
    assert trials.is_good(conversion)
    assert trials.find_accuracy(conversion, reference) is None


def test_the_chosen_ranges_are_written_and_read_without_a_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantkit.quantization.observers.error_search import MeanSquaredError

    monkeypatch.setattr(
        MeanSquaredError, "_compute_range", lambda self, extremes: Range(0.05 * extremes.low, 0.05 * extremes.high)
    )
    graph, file = network(), tmp_path / "r.json"
    first = qk.quantize(graph, SAMPLES, runs=0, save_ranges=file, save_plan=tmp_path / "p.json")
    assert first.plan.scheme.observer == "min_max"
    assert first.report.scheme.observer == "min_max"
    assert Ranges.load(file) == first.ranges
    messages: list[str] = []
    again = qk.quantize(graph, ranges=file, runs=0, on_message=messages.append)
    assert again.ranges == first.ranges
    assert not [message for message in messages if "another scheme" in message]
    explicit = qk.quantize(graph, SAMPLES, runs=0, observer="mean_squared_error")
    assert explicit.plan.scheme.observer == "mean_squared_error"


@pytest.mark.parametrize(
    ("losses", "best", "num_tried"),
    [
        ({(0.5, False): 0.02, (0.75, False): 0.01}, (0.75, False), 2),  # both cost no latency
        ({(0.5, False): 0.5, (0.75, False): 0.4, (0.75, True): 0.1}, (0.75, True), 3),
        ({(0.5, False): 0.4, (0.75, False): 0.5, (0.75, True): 0.39}, (0.5, False), 3),
    ],
)
def test_all_migrations_without_a_cost_in_latency_are_compared(
    losses: dict[tuple[float, bool], float], best: tuple[float, bool], num_tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that is good is not always the best one."""
    tried = []

    class FixedTrials(Trials):
        def is_good(self, conversion: Any) -> bool:
            return bool(conversion.loss <= 0.025)

        def is_better(self, alternative: Any, conversion: Any, max_loss: float, *arguments: Any, **flags: Any) -> bool:
            assert flags == {"in_most_runs": True}
            tried.append(alternative)
            return bool(alternative.loss < max_loss * conversion.loss)

    def conversion(scales: dict[Edge, Any], loss: float) -> Any:
        ranges = SimpleNamespace(scales=scales)
        return SimpleNamespace(graph=SimpleNamespace(dialect="onnx"), plan=None, ranges=ranges, loss=loss)

    def find_scales(graph: Any, plan: Any, ranges: Any, strength: float = 0.5, *, inserts: bool) -> dict[Edge, Any]:
        return {Edge("x"): (strength, inserts)}

    monkeypatch.setattr(observer_choice, "find_scales", find_scales)
    monkeypatch.setattr(observer_choice, "with_channel_maxima", lambda graph, plan, ranges, *_: ranges)
    monkeypatch.setattr(
        observer_choice, "with_migrated_scales", lambda graph, plan, ranges, scales, *_: SimpleNamespace(scales=scales)
    )
    monkeypatch.setattr(
        observer_choice, "replace", lambda _, ranges: conversion(ranges.scales, losses[ranges.scales[Edge("x")]])
    )
    trials = FixedTrials(FloatReference(), Options(None))
    trials.is_possible = True
    result = trials.improve(conversion({}, 1.0), [observer_choice.choose_scales])
    assert result.ranges.scales == {Edge("x"): best}
    assert len(tried) == num_tried
