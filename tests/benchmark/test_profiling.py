"""Profiles: the time of ops by layer of the original graph, in each runtime and from scripted traces."""

import json
import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measurements import MACHINE, make_measurement, make_model_profile, scripted_clock

import quantkit as qk
from quantkit.benchmark import profile_layers
from quantkit.benchmark.profiling import AlternatingProfiles, tracing
from quantkit.benchmark.profiling.candidates import profile_candidates
from quantkit.benchmark.profiling.layer_names import LayerNames
from quantkit.benchmark.profiling.layer_work import LayerWork, Peaks
from quantkit.benchmark.profiling.model_profile import profile_model
from quantkit.benchmark.profiling.peak_models import float_product, int8_product
from quantkit.benchmark.profiling.peaks import COPIES, copy_rate
from quantkit.benchmark.profiling.profile import Profile
from quantkit.benchmark.profiling.profile_text import precision_text
from quantkit.benchmark.profiling.tracing import TracedCalls, trace_calls
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.process import WorkerError, WorkerProcess, start_worker
from quantkit.benchmark.sampling.sampler import LEAST_PAIRS, time_pairs
from quantkit.benchmark.verdict import explain_speedup
from quantkit.errors import UnavailableError, UsageError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.progress import OnProgress, ignore_progress
from quantkit.runtimes import find_runtime
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.session import CONVERSION, FLOAT, INT8, OpTime, OpTrace, RuntimeVersion, SessionOptions

HELD_OUT = Path(__file__).parent.parent.parent / "assets" / "digits_heldout.npz"
RUNTIME = RuntimeVersion("onnxruntime", "1")


@pytest.fixture(scope="module")
def int8_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the int8 model of each target."""
    folder = tmp_path_factory.mktemp("profile")
    files = {"onnx": folder / "digits.onnx", "tensorflow": folder / "digits.pb"}
    for target, path in files.items():
        qk.quantize("digits", HELD_OUT, target=target, limit=8, runs=0, runtime="reference", output=path)
    return files


@pytest.mark.engine
@pytest.mark.parametrize(
    ("runtime", "target"), [("onnxruntime", "onnx"), ("openvino", "onnx"), ("tensorflow", "tensorflow")]
)
def test_time_of_int8_ops_has_original_names(runtime: str, target: str, int8_files: dict[str, Path]) -> None:
    pytest.importorskip(runtime, reason=f"pip install {runtime}")
    graph = qk.load("digits").graph
    calls = trace_calls(_candidate(int8_files[target], runtime, graph))
    profile = profile_model("int8", calls, LayerNames(graph, calls.input_shapes))
    assert profile.coverage >= 0.95
    assert {row.name for row in profile.rows} - {""} <= set(graph)
    convolutions = {name for name, node in graph.nodes.items() if node.op == "Conv2D"}
    int8_layers = {row.name for row in profile.rows if row.precision == INT8}
    assert len(convolutions & int8_layers) >= 0.8 * len(convolutions)
    assert all(row.kernels for row in profile.rows)
    total = profile.seconds + profile.overhead_seconds
    assert total == pytest.approx(profile.untraced_seconds)
    assert profile.fractions[INT8] > 0.2


def _candidate(path: Path, runtime: str, graph: Graph) -> Candidate:
    settings = Settings(runtime)
    if path.suffix == ".pb":
        names = (tuple(map(str, edges)) for edges in (graph.inputs, graph.outputs))
        settings = Settings(runtime, **dict(zip(("inputs", "outputs"), names, strict=True)))
    return Candidate("int8", path, settings)


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_session_without_a_profile_has_no_trace(runtime: str, int8_files: dict[str, Path]) -> None:
    pytest.importorskip(runtime, reason=f"pip install {runtime}")
    image = np.zeros((1, 16, 16, 1), np.float32)
    with qk.open_session(int8_files["onnx"], runtime) as session:
        session.run(image)
        assert session.op_trace == OpTrace()
    with qk.open_session(int8_files["onnx"], runtime, SessionOptions(profile=True)) as session:
        expected = session.run(image)
        session.run(image)
        assert {len(op.seconds) for op in session.op_trace.ops} == {2}
    assert next(iter(expected.values())).shape == (1, 10)


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorflow"])
def test_products_of_the_peaks_run_in_float_and_int8(runtime: str) -> None:
    pytest.importorskip(runtime, reason=f"pip install {runtime}")
    dialect = find_runtime(runtime).native_dialect
    for make, precision in ((float_product, FLOAT), (int8_product, INT8)):
        with qk.open_session(make(dialect, 64), runtime, SessionOptions(profile=True)) as session:
            session.run(np.ones((64, 64), np.float32))
            products = [op for op in session.op_trace.ops if "mul" in f"{op.op}{op.kernel}".lower() or "Fully" in op.op]
        assert [op.precision for op in products] == [precision], session.op_trace


def test_runtime_that_measures_no_ops_is_unavailable(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = Candidate("tiny", tiny_model, Settings("reference"))
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "start_worker", None)  # no process starts
        with pytest.raises(UnavailableError, match="does not measure the time") as caught:
            trace_calls(candidate)
    assert caught.value.hint == "--profile works in openvino, onnxruntime and tensorflow on the CPU"
    with pytest.raises(UnavailableError, match="reference .* does not measure the time of the ops of tiny"):
        trace_calls(candidate)
    with pytest.raises(UnavailableError, match="missing.pb"):
        trace_calls(replace(candidate, path=tmp_path / "missing.pb", settings=Settings()))
    with pytest.raises(UsageError, match="no model"):
        profile_layers([])


def test_all_processes_end_with_the_time_limit(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers: list[WorkerProcess] = []

    def start(settings: Settings) -> WorkerProcess:
        workers.append(start_worker(settings))
        return workers[-1]

    monkeypatch.setattr(tracing, "start_worker", start)
    candidates = [Candidate(name, tiny_model, Settings("reference")) for name in ("first", "second")]
    with AlternatingProfiles(candidates[0], seconds=600) as profiles:
        assert len(profiles.compare((candidates[0], candidates[1]), rounds=3, calls=1)) == 3
    with (
        pytest.raises(WorkerError, match="did not respond within 0 s"),
        AlternatingProfiles(candidates[0], seconds=0) as profiles,
    ):
        profiles.compare((candidates[0], candidates[1]), rounds=1, calls=1)
    assert len(workers) == 4
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)


def layered_graph() -> Graph:
    """Return x -> conv -> batchnorm -> conv_1 (Relu) -> pool -> scores, with the names of the Inception file."""
    attrs: dict[str, Any] = {"T": DType.FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME"}
    pool: dict[str, Any] = {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "padding": b"SAME"}
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 4, 4, 3))}),
            constant("w", np.ones((1, 1, 3, 8), np.float32)),
            constant("b", np.ones(8, np.float32)),
            Node("conv_1/Conv2D", "Conv2D", (Edge("x"), Edge("w")), attrs=attrs),
            Node("conv_1/batchnorm", "BiasAdd", (Edge("conv_1/Conv2D"), Edge("b")), attrs={"T": DType.FLOAT}),
            Node("conv_1", "Relu", (Edge("conv_1/batchnorm"),), attrs={"T": DType.FLOAT}),
            Node("pool", "MaxPool", (Edge("conv_1"),), attrs={"T": DType.FLOAT, **pool}),
        ],
        ["x"],
        ["pool"],
    )


@pytest.fixture
def layers() -> LayerNames:
    return LayerNames(layered_graph(), {"x": Shape((2, 4, 4, 3))})


@pytest.mark.parametrize(
    ("sources", "layer"),
    [
        (("conv_1",), "conv_1/Conv2D"),
        (("pool", "conv_1/batchnorm"), "conv_1/Conv2D"),
        (("half_0/conv_1/codes",), "conv_1/Conv2D"),
        (("conv_1/Conv2D_eightbit/x/quantize",), "conv_1/Conv2D"),
        (("x/codes",), "x"),
        (("pool/values", "Multiply_12"), "pool"),
        (("conv_12",), ""),
        (("w", "b"), ""),
    ],
)
def test_names_of_runtimes_and_quantizer_belong_to_layers(
    layers: LayerNames, sources: tuple[str, ...], layer: str
) -> None:
    assert layers.find_layer(sources) == layer


def op_time(name: str, *seconds: float, precision: str = FLOAT, **facts: Any) -> OpTime:
    return OpTime(name, "Op", precision, seconds, kernel=f"{name} kernel", **facts)


def test_added_op_belongs_to_a_neighbour(layers: LayerNames) -> None:
    ops = [
        op_time("reorder", 1.0),
        op_time("conv", 1.0, sources=("conv_1",), producers=("reorder",)),
        op_time("reorder back", 1.0, producers=("conv",)),
        op_time("alone", 1.0),
    ]
    assert layers.find_layers(ops) == ["conv_1/Conv2D", "conv_1/Conv2D", "conv_1/Conv2D", ""]


def make_calls(ops: tuple[OpTime, ...], untraced: float = 10.0, run_seconds: tuple[float, ...] = ()) -> TracedCalls:
    count = len(ops[0].seconds)
    shapes = {"x": Shape((2, 4, 4, 3))}
    return TracedCalls(RUNTIME, shapes, (untraced,) * count, (20.0,) * count, OpTrace(ops, run_seconds))


OPS = (
    op_time("a", 6.0, 6.0, 60.0, precision=INT8, sources=("conv_1",), is_reference=True),
    op_time("q", 2.0, 2.0, 2.0, precision=CONVERSION, sources=("conv_1/codes",)),
    op_time("lost", 4.0, 4.0, 4.0),
    op_time("p", 4.0, 4.0, 4.0, sources=("pool",)),
)


def test_rows_and_overhead_sum_to_the_untraced_latency(layers: LayerNames) -> None:
    profile = profile_model("int8", make_calls(OPS), layers)
    # Medians of 16 seconds in calls of 20: the rows are 80 % of the untraced latency.
    assert profile.overhead_seconds == pytest.approx(2.0)
    assert profile.seconds == pytest.approx(8.0)
    assert {(row.name, row.precision): row.seconds for row in profile.rows} == pytest.approx(
        {("conv_1/Conv2D", INT8): 3.0, ("conv_1/Conv2D", CONVERSION): 1.0, ("pool", FLOAT): 2.0, ("", FLOAT): 2.0}
    )
    assert profile.rows[0].reference_seconds == pytest.approx(3.0)
    assert profile.coverage == pytest.approx(0.75)
    assert profile.tracing_cost == pytest.approx(1.0)
    busy = profile_model("int8", replace(make_calls(OPS, run_seconds=(16.0, 16.0, 70.0)), on_gpu=True), layers)
    assert (profile.on_gpu, busy.on_gpu) == (False, True)
    assert (busy.overhead_seconds, busy.seconds) == pytest.approx((0.0, 10.0))


def test_work_of_a_layer(layers: LayerNames) -> None:
    inputs, outputs, weights = 2 * 4 * 4 * 3, 2 * 4 * 4 * 8, 3 * 8 + 8
    work = LayerWork.of(layers, "conv_1/Conv2D", INT8)
    assert work == LayerWork(2 * outputs * 3, inputs + outputs + weights)
    pool = LayerWork.of(layers, "pool", FLOAT)
    assert pool == LayerWork(0, 4 * (outputs + outputs // 4))


@pytest.mark.parametrize(
    ("operations", "num_bytes", "bound"),
    [(80, 40, "compute"), (40, 80, "memory"), (80, 80, ""), (40, 40, "")],
)
def test_layer_is_bound_by_the_resource_it_uses_most(operations: int, num_bytes: int, bound: str) -> None:
    peaks = Peaks(100.0, None, 100.0)
    assert peaks.bound(LayerWork(operations, num_bytes), 1.0, FLOAT) == bound
    assert peaks.bound(LayerWork(80, 80), 1.0, INT8) == "memory"


def test_a_layer_whose_time_is_0_has_no_rates() -> None:
    work = LayerWork(10, 20)
    assert work.to_json(0.0) == {"operations": 10, "num_bytes": 20}
    assert work.to_json(0.5)["bytes_per_second"] == 40


def test_copy_rate_is_that_of_the_fastest_round() -> None:
    clock = scripted_clock([9.0, 2.0, *([4.0] * (COPIES - 2))])
    assert copy_rate(2, MACHINE, clock) == 2 * 2 * (32 << 20) / 2.0


def test_pairs_time_the_second_of_two_calls() -> None:
    calls: list[str] = []
    durations = [50.0] * 8 + [9.0, 1.0, 9.0, 2.0] * LEAST_PAIRS
    pairs = time_pairs(
        lambda: calls.append("untraced"),
        lambda: calls.append("traced"),
        pairs=100,
        seconds=1.0,
        warmup=2,
        clock=scripted_clock(durations),
    )
    assert pairs == [(1.0, 2.0)] * LEAST_PAIRS
    assert calls == ["untraced", "untraced", "traced", "traced"] * (2 + LEAST_PAIRS)


@pytest.fixture
def profile(layers: LayerNames) -> Profile:
    models = (profile_model("float", make_calls(OPS[3:]), layers), profile_model("int8", make_calls(OPS), layers))
    return Profile(models, {"onnxruntime": Peaks(1e3, 2e3, 1e4)}, ("a machine",))


def test_json_has_rows_of_original_names(profile: Profile) -> None:
    document = json.loads(json.dumps(profile.to_json()))
    assert document["schema"] == "quantkit.profile/1"
    assert document["untraced_seconds"] == 20.0
    assert document["coverage"] == pytest.approx((2.0 + 6.0) / (2.0 + 8.0))
    total = sum(row["seconds"] for row in document["rows"])
    assert total + sum(model["overhead_seconds"] for model in document["models"]) == pytest.approx(20.0)
    assert {row["model"] for row in document["rows"]} == {0, 1}
    assert document["rows"][1]["work"]["operations_per_second"] == pytest.approx(2 * 256 * 3 / 3.0)


def test_text_has_the_layers_side_by_side(profile: Profile) -> None:
    lines = str(profile).splitlines()
    assert lines[0].split() == [
        *("layer", "op", "float", "in", "onnxruntime,", "ms", "precision"),
        *("int8", "in", "onnxruntime,", "ms", "precision"),
    ]
    assert lines[1].split() == ["pool", "MaxPool", "2000.0", "float", "2000.0", "float"]
    assert lines[2].split() == ["conv_1/Conv2D", "Conv2D", "-", "4000.0", "int8,", "conversion"]
    assert "38 % of the time of its ops is in int8, 50 % in float, 12 % in conversions" in str(profile)
    assert "75.0 % of the time of the ops has a name of the original graph" in str(profile)
    assert "the trace changed the latency by +100 %" in str(profile)
    assert "measured peaks in onnxruntime: 0 GFLOP/s in float, 0 GOP/s in int8, 0.0 GB/s copied" in str(profile)
    assert profile._repr_html_().count("<th") == 6 + 1  # with thead
    assert "coverage 0.80" in repr(profile)


def test_the_slowest_row_outside_int8_is_named(profile: Profile) -> None:
    assert precision_text(profile.models[1]).endswith("above all pool (MaxPool)")
    assert "above all" not in precision_text(profile.models[0])
    assert precision_text(make_model_profile({("a", INT8): 1.0})).startswith("100 % of the time of its ops is in int8")


def test_profile_of_the_worker_times_both_sessions_after_their_first_calls(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantkit.benchmark.sampling.worker import serve

    run, runs_of = FunctionSession.run, dict[FunctionSession, int]()

    def count_run(session: FunctionSession, feeds: Any) -> Any:
        runs_of[session] = runs_of.get(session, 0) + 1
        return run(session, feeds)

    monkeypatch.setattr(FunctionSession, "run", count_run)
    requests = [
        Candidate("tiny", tiny_model, Settings("reference")).to_request(seed=0),
        {"do": "open_profile"},
        {"do": "time_profile", "pairs": 5, "seconds": 1.0, "warmup": 0},
        {"do": "read_profile"},
    ]
    responses: list[str] = []
    serve(map(json.dumps, requests), responses.append, scripted_clock([1.0] * (1 + 4 * LEAST_PAIRS)))
    response = json.loads(responses[-1])
    assert response["untraced_seconds"] == response["traced_seconds"] == [1.0] * LEAST_PAIRS
    assert response["ops"] == []
    assert list(runs_of.values()) == [1 + 2 * LEAST_PAIRS] * 2


@pytest.mark.parametrize(
    ("intra_op", "limit", "kinds"),
    [
        (2, {"affinity": (0,)}, ["oversubscription"]),
        # By default, runtimes ignore the quota of a container, and regard the affinity.
        (None, {"cpu_quota": 1.5}, ["oversubscription", "cpu quota"]),
        (None, {"affinity": (0,)}, []),
        (1, {"cpu_quota": 1.5}, ["cpu quota"]),
    ],
)
def test_too_many_threads_are_measured_against_the_usable_ones(
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    intra_op: int | None,
    limit: dict[str, Any],
    kinds: list[str],
) -> None:
    threads: list[int | None] = []

    def trace(candidate: Candidate) -> TracedCalls:
        options = candidate.settings.options
        threads.append(options.intra_op)
        return make_calls(OPS[3:], untraced=10.0 * (options.intra_op or 2))

    module = import_module("quantkit.benchmark.profiling.candidates")
    monkeypatch.setattr(module, "trace_calls", trace)
    monkeypatch.setattr(module, "this_machine", lambda: replace(MACHINE, isa=("avx512_vnni",), **limit))
    candidate = Candidate("tiny.pb", tiny_model, Settings("reference", SessionOptions(intra_op=intra_op)))
    profile = profile_candidates([candidate])
    assert [reason.kind for reason in profile.reasons] == kinds
    is_oversubscribed = "oversubscription" in kinds
    assert threads == ([intra_op, 1] if is_oversubscribed else [intra_op])
    assert profile.models[0].oversubscription_seconds == (10.0 if is_oversubscribed else 0.0)
    if is_oversubscribed:
        assert f"quantkit benchmark {tiny_model}@onnxruntime" in profile.reasons[0].command
        assert "time that limits tiny.pb, the largest first:\n  oversubscription: 2 threads on 1 CPU" in str(profile)


def test_benchmark_explains_an_int8_model_that_is_not_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graphs = {"float": float_product("onnx", 4), "int8": int8_product("onnx", 4)}
    for name, graph in graphs.items():
        qk.save(graph, tmp_path / f"{name}.onnx")
    candidates = [Candidate(name, tmp_path / f"{name}.onnx") for name in graphs]
    rows = (BenchmarkRow("float", "openvino", make_measurement([1.0] * 9, 3, 3)),) * 2
    result = Benchmark((rows[0], replace(rows[1], label="int8")))
    reason = Reason("boundaries", 1.0, "all of it", "quantkit doctor")
    pairs: list[list[Candidate]] = []

    def profile(pair: list[Candidate], on_progress: OnProgress) -> Profile:
        pairs.append(pair)
        return Profile((make_model_profile({}),), reasons=(reason,))

    monkeypatch.setattr(import_module("quantkit.benchmark.verdict"), "profile_candidates", profile)
    assert explain_speedup(result, candidates, ignore_progress) == (reason,)
    assert [candidate.settings.runtime for candidate in pairs[0]] == ["openvino", "openvino"]
    assert explain_speedup(result, candidates[:1] * 2, ignore_progress) == ()
    explained = replace(result, reasons=(reason,))
    assert "not faster in int8; measured time, the largest first:\n  boundaries: all of it" in str(explained)
    assert Benchmark.from_json(explained.to_json()) == explained
