"""The contract of runtimes and sessions, checked for each runtime."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conformance_cases import CASES, Case, node, placeholder

from quantkit.cores import available_cpus
from quantkit.errors import GraphError, UnavailableError, UsageError
from quantkit.formats.kinds import kind_of
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization import Ranges, Scheme, annotate, convert
from quantkit.quantization.targets import Target, targets
from quantkit.quantization.targets.capabilities import NeedsPackage
from quantkit.runtimes import Runtime, find_runtime
from quantkit.runtimes.session import PRECISIONS, Session, SessionOptions
from quantkit.transforms.precision.convert_precision import convert_precision


@pytest.fixture
def session(runtime: Runtime) -> Iterator[Session]:
    with runtime.open(CASES["dense"].graph) as opened:
        yield opened


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_inputs_and_outputs_are_those_of_the_graph(runtime: Runtime, case: Case) -> None:
    with runtime.open(case.graph) as session:
        assert {info.name: (info.dtype, info.shape) for info in session.inputs} == {
            name: (dtype, Shape(dims)) for name, (dtype, dims) in case.inputs.items()
        }
        assert [(info.name, info.dtype) for info in session.outputs] == list(case.outputs.items())


@pytest.mark.parametrize("batch", [1, 3])
def test_outputs_agree_with_numpy(runtime: Runtime, case: Case, batch: int) -> None:
    feeds = case.feeds(batch)
    with runtime.open(case.graph) as session:
        results = session.run(feeds)
    expected = case.expected(feeds)
    assert list(results) == list(case.outputs)
    for name, result in results.items():
        assert result.dtype == case.outputs[name].numpy
        assert result.shape == np.shape(expected[name])
        np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_batch_size_may_change_between_runs(session: Session) -> None:
    case = CASES["dense"]
    for batch in (1, 5, 2, 5):
        feeds = case.feeds(batch)
        np.testing.assert_allclose(session.run(feeds)["y"], case.expected(feeds)["y"], rtol=1e-5, atol=1e-6)


def test_caller_owns_the_outputs(session: Session) -> None:
    feeds = CASES["dense"].feeds(2)
    first = session.run(feeds)
    copies = {name: array.copy() for name, array in first.items()}
    second = session.run({"x": feeds["x"] * 2})
    for name, array in first.items():
        np.testing.assert_array_equal(array, copies[name])
        array[...] = 7
    again = session.run(feeds)
    assert all(array.max() != 7 for array in second.values())
    for name, array in again.items():
        np.testing.assert_array_equal(array, copies[name])


@pytest.mark.skipif(len(available_cpus()) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("threads", [{}, {"intra_op": 2}, {"inter_op": 2}])
def test_threads_stay_on_the_cpus_of_the_process(runtime: Runtime, threads: dict[str, int]) -> None:
    cpus, before = available_cpus(), set(os.listdir("/proc/self/task"))
    os.sched_setaffinity(0, cpus[:1])
    try:
        with runtime.open(CASES["dense"].graph, SessionOptions(**threads)) as session:
            for _ in range(3):
                session.run(CASES["dense"].feeds(2))
            started = set(os.listdir("/proc/self/task")) - before
            affinities = {thread: os.sched_getaffinity(int(thread)) for thread in started}
    finally:
        os.sched_setaffinity(0, cpus)
    assert not {thread: cpu for thread, cpu in affinities.items() if cpu != {cpus[0]}}


def test_inputs_are_not_changed(session: Session) -> None:
    x = CASES["dense"].feeds(2)["x"]
    copy = x.copy()
    for array in session.run({"x": x}).values():
        array[...] = 7
    np.testing.assert_array_equal(x, copy)


def test_inputs_need_not_be_contiguous(session: Session) -> None:
    x = np.asfortranarray(CASES["dense"].feeds(6)["x"])
    x.flags.writeable = False
    np.testing.assert_array_equal(session.run({"x": x[::2]})["y"], session.run({"x": x[::2].copy()})["y"])


@pytest.mark.parametrize(
    ("feeds", "message", "hint"),
    [
        ({}, "no array for input 'x'", "float"),
        ({"x": np.zeros((1, 4), np.float32), "z": np.zeros(1)}, "'z' is not an input", "x"),
        ({"x": np.zeros((1, 4))}, "takes float, not float64", "astype"),
        ({"x": np.zeros((1, 5), np.float32)}, r"takes shape \?x4, not 1x5", "resize"),
        ({"x": np.zeros(4, np.float32)}, r"takes shape \?x4, not 4", "batch"),
    ],
)
def test_wrong_inputs_are_rejected(session: Session, feeds: dict[str, np.ndarray], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        session.run(feeds)
    assert hint in caught.value.hint


def test_closed_session_does_not_run(runtime: Runtime) -> None:
    case = CASES["dense"]
    with runtime.open(case.graph) as session:
        session.run(case.feeds(1))
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run(case.feeds(1))


def test_session_reports_runtime_and_version(session: Session, runtime: Runtime) -> None:
    assert session.runtime.name == runtime.name
    assert str(session.runtime).split()[1][0].isdigit()
    assert session.skipped == ()


@pytest.mark.parametrize(("intra_op", "inter_op"), [(1, None), (2, 1), (None, 2)])
def test_thread_options_are_accepted(runtime: Runtime, intra_op: int | None, inter_op: int | None) -> None:
    case = CASES["dense"]
    with runtime.open(case.graph, SessionOptions(intra_op=intra_op, inter_op=inter_op)) as session:
        feeds = case.feeds(1)
        np.testing.assert_allclose(session.run(feeds)["y"], case.expected(feeds)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_is_applied_or_rejected(runtime: Runtime, precision: str) -> None:
    case = CASES["dense"]
    try:
        session, hint = runtime.open(case.graph, SessionOptions(precision=precision)), ""
    except UnavailableError as error:
        session, hint = None, error.hint
    if session is None:
        assert precision != "float32"
        assert "--precision float32" in hint
        return
    assert precision in runtime.precisions
    with session:
        feeds = case.feeds(4)
        result, expected = session.run(feeds)["y"], case.expected(feeds)["y"]
    assert result.dtype == np.float32
    step = {"float32": 1e-6, "bfloat16": 2.0**-7, "float16": 2.0**-9}[precision]
    np.testing.assert_allclose(result, expected, rtol=0, atol=4 * step * np.abs(expected).max())


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_weights_of_16_bits_run(runtime: Runtime, to: str) -> None:
    case = CASES["dense"]
    graph = convert_precision(case.graph, to=to, minimum_size=1)
    assert "Cast" in graph.op_counts
    feeds = case.feeds(2)
    with runtime.open(graph) as session, find_runtime("reference").open(graph) as reference:
        np.testing.assert_allclose(session.run(feeds)["y"], reference.run(feeds)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", targets().values(), ids=lambda target: target.name)
def test_weights_of_8_bits_run(runtime: Runtime, target: Target, tmp_path: Path) -> None:
    case = CASES["dense"]
    plan = annotate(case.graph, Scheme.for_target(target.name, weights_only=True))
    assert len(plan.weights) > 0
    quantized = convert(case.graph, plan, Ranges({}))
    path = tmp_path / f"small{target.suffixes[0]}"
    try:
        if isinstance(target, NeedsPackage):
            target.check_installation(weights_only=True)
    except UnavailableError as error:
        pytest.skip(error.message)
    target.write(quantized, path, weights_only=True)
    feeds = case.feeds(2)
    expected = case.expected(feeds)["y"]
    try:
        with runtime.open(path if kind_of(path) in runtime.kinds else quantized) as session:
            result = session.run(feeds)["y"]
    except UnavailableError as error:
        pytest.skip(error.message)
    np.testing.assert_allclose(result, expected, rtol=0, atol=0.02 * np.abs(expected).max())


def test_placement_names_the_ops(runtime: Runtime) -> None:
    case = CASES["dense"]
    with runtime.open(case.graph, SessionOptions(log_placement=True)) as session:
        session.run(case.feeds(1))
    assert any("CPU" in line for line in session.placement)


def test_unknown_op_is_named(runtime: Runtime) -> None:
    graph = Graph.of([placeholder("x", DType.FLOAT, 1), node("y", "Frobnicate", "x")], ["x"], ["y"])
    with pytest.raises((UnavailableError, GraphError), match="Frobnicate"):
        runtime.open(graph).run({"x": np.zeros(1, np.float32)})


def test_missing_gpu_is_unavailable(runtime: Runtime) -> None:
    with pytest.raises(UnavailableError) as caught:
        runtime.open(CASES["dense"].graph, SessionOptions(device="gpu:99"))
    assert caught.value.hint


def test_unknown_device_is_rejected(runtime: Runtime) -> None:
    with pytest.raises(UsageError, match="'tpu' is not a device"):
        runtime.open(CASES["dense"].graph, SessionOptions(device="tpu"))
