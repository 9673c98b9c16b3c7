from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.errors import InputError, UsageError
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.ir.text import from_text
from quantkit.progress import Progress
from quantkit.quantization import Plan, Range, Ranges, Scheme, annotate, calibrate
from quantkit.quantization.calibration import (
    Batch,
    choose_batch,
    collect_ranges,
    estimate_memory,
    open_calibration_session,
    split_batches,
)
from quantkit.quantization.calibration.observation import ChannelMeans
from quantkit.quantization.significant_bits import round_range

TEXT = """
inputs: x
outputs: y
x = Placeholder[<?x4>]()
w = Const[4x6]()
b = Const[6]()
v = Const[6x3]()
m = MatMul(x, w, T=float)
n = BiasAdd(m, b, T=float)
r = Relu(n, T=float)
y = MatMul(r, v, T=float)
"""
SAMPLES = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
SCHEME = Scheme.for_target("tensorflow", observer="min_max")


def network() -> Graph:
    return from_text(TEXT)


def ranges_of(
    plan: Plan, batches: Iterable[Batch], graph: Graph | None = None, size: int = 1, **options: Any
) -> Ranges:
    with open_calibration_session(graph or network(), plan, "reference") as session:
        return collect_ranges(session, plan, split_batches(session.inputs, batches, size), **options)


def read_some(samples: Array) -> Iterator[Array]:
    """Yield seven samples before the interrupt of the user."""
    yield samples[:7]
    raise KeyboardInterrupt


def test_ranges_are_those_of_the_data() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    reports: list[Progress] = []
    batches = [SAMPLES[:8], SAMPLES[8:]]
    ranges = ranges_of(plan, batches, size=3, total=20, on_progress=reports.append)
    hidden = np.maximum(SAMPLES @ graph["w"].value.array + graph["b"].value.array, 0)
    assert ranges[Edge("x")] == Range(float(SAMPLES.min()), float(SAMPLES.max()))
    assert ranges[Edge("r")] == round_range(Range(float(hidden.min()), float(hidden.max())))
    assert (reports[-2], ranges.provenance.count) == (Progress("calibrating", 20, 20), 20)
    assert ranges.provenance.scheme == plan.scheme.digest


@pytest.mark.engine
def test_reused_outputs_are_observed_before_the_session_overwrites_them() -> None:
    pytest.importorskip("openvino")
    graph = network()
    plan = annotate(graph, SCHEME)
    samples = SAMPLES * np.linspace(1, 20, len(SAMPLES), dtype=np.float32)[:, None]
    outputs: list[Array] = []
    with open_calibration_session(graph, plan, "openvino") as session:
        runs = (({"x": sample[None]}, 1) for sample in samples)
        ranges = collect_ranges(session, plan, runs, on_run=lambda feeds, values: outputs.append(values["y"].copy()))
    hidden = np.maximum(samples @ graph["w"].value.array + graph["b"].value.array, 0)
    np.testing.assert_allclose(np.concatenate(outputs), hidden @ graph["v"].value.array, rtol=1e-4, atol=1e-4)
    assert ranges[Edge("r")] == round_range(Range(float(hidden.min()), float(hidden.max())))


def test_the_data_digest_does_not_depend_on_the_batches() -> None:
    plan = annotate(network(), SCHEME)
    first, second = ranges_of(plan, [SAMPLES]), ranges_of(plan, [SAMPLES[:5], SAMPLES[5:]])
    assert first == second
    assert ranges_of(plan, [SAMPLES[1:]]).provenance.data != first.provenance.data


def test_an_interrupted_calibration_resumes(tmp_path: Path) -> None:
    plan = annotate(network(), Scheme(bias_correction=True))
    state = tmp_path / "ranges.state.npz"

    with pytest.raises(KeyboardInterrupt):
        ranges_of(plan, read_some(SAMPLES), resume=state)
    assert state.exists()
    reports: list[Progress] = []
    resumed = ranges_of(plan, [SAMPLES], resume=state, on_progress=reports.append)
    assert reports[0].done == 8, "the first seven samples do not run again"
    assert resumed.to_json() == ranges_of(plan, [SAMPLES]).to_json()
    assert not state.exists()


def test_channel_means_ignore_positions_that_are_not_finite() -> None:
    means = ChannelMeans()
    means.add(Edge("x"), np.array([[1.0, 2.0], [np.nan, 5.0], [3.0, 4.0], [7.0, np.inf]]))
    means.add(Edge("x"), np.full((2, 2), np.nan))
    means.add(Edge("y"), np.full((2, 2), np.inf))
    assert means.by_edge() == {Edge("x"): (2.0, 3.0)}


def test_warnings_survive_an_interruption(tmp_path: Path) -> None:
    graph = from_text(TEXT.replace("b = Const[6]()", "b = Const([-99, -99, -99, -99, -99, -99.0])"))
    plan = annotate(graph, SCHEME)
    state = tmp_path / "ranges.state.npz"
    first = SAMPLES.copy()
    first[2, 1] = np.nan

    with pytest.raises(KeyboardInterrupt):
        ranges_of(plan, read_some(first), graph, resume=state)
    warnings = ranges_of(plan, [first], graph, resume=state).warnings
    assert warnings == ranges_of(plan, [first], graph).warnings
    assert warnings[0].startswith("x: NaN in 1 values")


def test_a_state_of_other_data_is_an_error(tmp_path: Path) -> None:
    plan = annotate(network(), SCHEME)
    state = tmp_path / "ranges.state.npz"

    with pytest.raises(KeyboardInterrupt):
        ranges_of(plan, read_some(SAMPLES), resume=state)
    with pytest.raises(InputError, match="ran on other data"):
        ranges_of(plan, [SAMPLES[::-1]], resume=state)
    with pytest.raises(InputError, match="ran on other data"):
        ranges_of(plan, [SAMPLES[:3]], resume=state)
    other = annotate(network())
    assert ranges_of(other, [SAMPLES], resume=state).provenance.count == 20, "the state of another scheme is ignored"


def test_a_damaged_state_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "state.npz").write_bytes(b"PK broken")
    assert ranges_of(annotate(network(), SCHEME), [SAMPLES], resume=tmp_path / "state.npz").provenance.count == 20


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("b = Const[6]()", "b = Const([nan, 0, 0, 0, 0, 0.0])", "r: NaN in 20 values"),
        ("b = Const[6]()", "b = Const([-99, -99, -99, -99, -99, -99.0])", "r: constant 0; its range has no width"),
        ("b = Const[6]()", "b = Const([inf, 0, 0, 0, 0, 0.0])", "m: the constants b hold NaN or infinity"),
        ("b = Const[6]()", "b = Const([0, 0, 9000, 0, 0, 0.0])", "r: channel 2 reaches"),
    ],
)
def test_a_warning_names_the_tensor(old: str, new: str, warning: str) -> None:
    graph = from_text(TEXT.replace(old, new))
    ranges = ranges_of(annotate(graph, SCHEME), [SAMPLES], graph)
    assert any(text.startswith(warning) for text in ranges.warnings), ranges.warnings


def test_a_constant_branch_of_a_concat_leads_to_a_warning() -> None:
    """The inputs of a concat have a common range, which has a width even if one input is constant."""
    text = TEXT.replace("outputs: y", "outputs: z")
    text += "k = Const(0.0)\nzero = Mul(x, k, T=float)\nh = Const(0.5)\none = AddV2(zero, h, T=float)\n"
    text += "axis = Const[int32](1)\nc = ConcatV2(r, one, axis, T=float, N=2)\nu = Const[10x3]()\n"
    text += "z = MatMul(c, u, T=float)\n"
    graph = from_text(text)
    plan = annotate(graph, SCHEME)
    assert plan.group_of(Edge("one")) > {Edge("one")}
    assert "one: constant 0.5; its range has no width" in ranges_of(plan, [SAMPLES], graph).warnings


def test_data_that_does_not_fit_is_an_error() -> None:
    plan = annotate(network(), SCHEME)
    with pytest.raises(InputError, match="no samples"):
        ranges_of(plan, [])
    with pytest.raises(UsageError, match="takes shape"):
        ranges_of(plan, [SAMPLES[:, :3]])
    with pytest.raises(UsageError, match="is not an input"):
        ranges_of(plan, [{"z": SAMPLES}])


def test_calibrate_returns_the_ranges_of_a_plan() -> None:
    plan = annotate(network(), Scheme.for_target("litert"))
    ranges = calibrate(network(), plan, [SAMPLES], runtime="reference")
    assert ranges.provenance.scheme == plan.scheme.digest
    assert set(ranges) >= set(plan.activations)


def test_float64_data_is_cast_to_the_input_type() -> None:
    plan = annotate(network(), SCHEME)
    assert ranges_of(plan, [SAMPLES.astype(np.float64)]) == ranges_of(plan, [SAMPLES])


def test_memory_and_batch_follow_from_shapes() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    assert choose_batch(graph, plan) == 64
    fixed = from_text(TEXT.replace("<?x4>", "<2x4>"))
    assert choose_batch(fixed, plan) == 2
    assert estimate_memory(graph, plan) < estimate_memory(graph, plan, batch=64)


def test_runs_have_their_own_number_of_samples() -> None:
    """An input without a batch axis: an array of four values is one sample."""
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[<4>]()
        first = Const[int32](0)
        row = ExpandDims(x, first, T=float, Tdim=int32)
        w = Const[4x6]()
        y = MatMul(row, w, T=float)
        """
    )
    plan = annotate(graph, SCHEME)
    with open_calibration_session(graph, plan, "reference") as session:
        ranges = collect_ranges(session, plan, (({"x": sample}, 1) for sample in SAMPLES))
    assert ranges.provenance.count == 20
    assert ranges[Edge("row")] == Range(float(SAMPLES.min()), float(SAMPLES.max()))


@pytest.mark.engine
def test_encoded_images_have_a_digest() -> None:
    graph = from_text(
        """
        inputs: text
        outputs: y
        text = Placeholder[<>](dtype=string)
        number = StringToNumber(text, out_type=float)
        sizes = Const[int32]([1, 1])
        x = Reshape(number, sizes, T=float)
        w = Const[1x3]()
        y = MatMul(x, w, T=float)
        """
    )
    plan = annotate(graph, SCHEME)
    with open_calibration_session(graph, plan, "tensorflow") as session:
        runs = [({"text": np.array(text, object)}, 1) for text in (b"1.5", b"-2")]
        ranges = collect_ranges(session, plan, runs)
    assert ranges[Edge("x")] == Range(-2.0, 1.5)
    assert ranges.provenance.count == 2
