import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measurements import MACHINE, make_measurement

import quantkit as qk
from quantkit import formats
from quantkit.benchmark import BenchmarkInterrupted
from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow, Failure
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.rounds import SamplingOptions
from quantkit.benchmark.sweep import search as search_module
from quantkit.benchmark.sweep import workflow
from quantkit.benchmark.sweep.result import BestSettings
from quantkit.benchmark.sweep.search import combine
from quantkit.benchmark.sweep.space import Setting, find_settings
from quantkit.benchmark.sweep.state import MeasuredTrial, SweepState
from quantkit.errors import InputError, UsageError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.progress import ignore_progress
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import SessionOptions

HOST = Machine("a cpu", 4, 8, ("avx2", "avx512bw", "avx512_vnni"), affinity=tuple(range(8)))
Speed = Callable[[Settings], float]


class FakeBenchmark:
    """Replacement of `measure`: each call of a model takes the time that a function of its settings returns."""

    def __init__(self, seconds: Speed) -> None:
        self.seconds = seconds
        self.calls: list[tuple[list[str], SamplingOptions]] = []

    def __call__(
        self, candidates: Sequence[Candidate], options: SamplingOptions, on_progress: object = ignore_progress
    ) -> Benchmark:
        self.calls.append(([candidate.label for candidate in candidates], options))
        return Benchmark(tuple(self.row(candidate) for candidate in candidates))

    def row(self, candidate: Candidate) -> BenchmarkRow:
        settings = candidate.settings
        seconds = self.seconds(settings)
        if seconds < 0:
            return BenchmarkRow(candidate.label, settings.runtime, Failure("no such CPU"))
        samples = [seconds * factor for factor in (1.0, 1.001, 0.999, 1.0, 1.002)] * 5
        measurement = make_measurement(samples, 5, 5, runtime="onnxruntime", batch=1)
        return BenchmarkRow(candidate.label, "onnxruntime", measurement)

    def groups(self) -> list[list[str]]:
        """Return the settings of each measurement of the search, without the default."""
        return [labels[1:] for labels, options in self.calls if options.runs is not None and len(labels) > 1]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Speed], FakeBenchmark]:
    def replace_measure(seconds: Speed) -> FakeBenchmark:
        fake = FakeBenchmark(seconds)
        monkeypatch.setattr(search_module, "measure", fake)
        monkeypatch.setattr(workflow, "measure", fake)
        monkeypatch.setattr(workflow, "this_machine", lambda: MACHINE)
        return fake

    return replace_measure


def by_threads(settings: Settings) -> float:
    """Return a latency that is lowest with one thread in each of two parallel ops, and without spinning."""
    options = settings.options
    factor = 0.9 if options.spinning is False else 1.0
    return factor * (0.5 if (options.intra_op, options.inter_op) == (1, 2) else 1.0)


def test_best_settings_of_several_dimensions_are_combined(
    use: Callable[[Speed], FakeBenchmark], tiny_model: Path
) -> None:
    fake = use(by_threads)
    result = qk.sweep(tiny_model, runtime="onnxruntime", time_budget=60)
    document = json.loads(json.dumps(result.to_json()))
    best = document["best"]
    assert best["settings"]["intra_op"] == 1
    assert best["settings"]["inter_op"] == 2
    assert best["settings"]["spinning"] is False
    assert best["speedup"]["value"] == pytest.approx(1 / 0.45)
    assert best["speedup"]["low"] <= best["speedup"]["value"] <= best["speedup"]["high"]
    assert not best["is_default"]
    assert "--intra-op 1 --inter-op 2 --spinning false" in best["command"]
    assert "SessionOptions(intra_op=1, inter_op=2, spinning=False)" in best["python"]
    assert 'options.add_session_config_entry("session.intra_op.allow_spinning", "0")' in best["native"]
    assert all(len(group) <= 4 for group in fake.groups())
    labels, options = fake.calls[-1]
    assert labels == ["tiny.pb", "intra_op=1 inter_op=2 spinning=False"]
    assert options.runs is None, "the winner is measured as long as any benchmark"
    assert "KMP_* and OMP_* have no effect" in str(result)


def test_winner_that_new_processes_do_not_confirm_is_rejected(
    use: Callable[[Speed], FakeBenchmark], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(by_threads)
    monkeypatch.setattr(workflow, "measure", FakeBenchmark(lambda _: 1.0))
    result = qk.sweep(tiny_model, runtime="onnxruntime", time_budget=60)
    assert result.best.is_default
    assert result.to_json()["best"]["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert result.to_json()["best"]["settings"]["intra_op"] is None
    assert "keep the default: the fastest setting of the search, intra_op=1 inter_op=2" in str(result)
    assert "same within 2 %" in result.models[0].verdict


def test_winner_without_time_for_new_processes_is_rejected(
    use: Callable[[Speed], FakeBenchmark], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(by_threads)
    monkeypatch.setattr(
        workflow, "measure", FakeBenchmark(lambda settings: 1.0 if settings.options == SessionOptions() else -1.0)
    )
    result = qk.sweep(tiny_model, runtime="onnxruntime", time_budget=60)
    assert result.best.is_default
    assert "the time budget is too short to confirm intra_op=1 inter_op=2" in str(result)
    assert result.to_json()["models"][0]["rejected"]["speedup"] is None


def test_default_stays_if_it_is_the_fastest(use: Callable[[Speed], FakeBenchmark], tiny_model: Path) -> None:
    fake = use(lambda settings: 1.0 if settings.options == SessionOptions() and not settings.cpus else 2.0)
    result = qk.sweep(tiny_model, runtime="onnxruntime", time_budget=60)
    assert result.best.is_default
    assert "keep the default: no setting is faster" in str(result)
    assert all(options.runs is not None for _, options in fake.calls), "nothing is confirmed"


def test_failed_settings_are_listed(use: Callable[[Speed], FakeBenchmark], tiny_model: Path) -> None:
    use(lambda settings: -1.0 if settings.cpus else by_threads(settings))
    result = qk.sweep(tiny_model, runtime="onnxruntime", time_budget=60)
    assert [trial.failure for text, trial in result.models[0].trials if "cpus" in text] == ["no such CPU"] * len(
        [text for text, _ in result.models[0].trials if "cpus" in text]
    )
    assert result.best.settings["intra_op"] == 1


def test_fastest_model_is_the_best(use: Callable[[Speed], FakeBenchmark], tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pb"
    other.write_bytes(tiny_model.read_bytes())
    use(lambda settings: by_threads(settings) * (0.1 if settings.environment else 1.0))
    result = qk.sweep([tiny_model, other], runtime="onnxruntime", time_budget=60)
    assert [model.best.model for model in result.models] == ["tiny.pb", "other.pb"]
    assert "fastest with its best settings: tiny.pb" in str(result)


def test_stated_options_are_not_varied(tiny_model: Path) -> None:
    runtime = find_runtime("onnxruntime")
    stated = Settings(options=SessionOptions(intra_op=2, spinning=True), cpus=(0,))
    assert find_settings(Candidate("a", tiny_model, stated), runtime, HOST) == ()


@pytest.mark.parametrize(
    ("runtime", "openmp", "dimensions"),
    [
        ("onnxruntime", (), {"threads", "spinning", "cpus"}),
        ("tensorflow", (), {"threads", "TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "cpus"}),
        ("openvino", (), {"threads", "ONEDNN_MAX_CPU_ISA", "cpus"}),
        ("reference", (), {"cpus", "OMP_NUM_THREADS"}),
        ("onnxruntime", ("libgomp",), {"threads", "spinning", "cpus", "OMP_NUM_THREADS"}),
        (
            "onnxruntime",
            ("libiomp5",),
            {"threads", "spinning", "cpus", "OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME"},
        ),
    ],
)
def test_each_runtime_has_its_dimensions(
    runtime: str, openmp: tuple[str, ...], dimensions: set[str], tiny_model: Path
) -> None:
    settings = find_settings(Candidate("a", tiny_model), find_runtime(runtime), HOST, openmp)
    assert {setting.dimension for setting in settings} == dimensions
    assert len({setting.key for setting in settings}) == len(settings)


def test_limits_of_onednn_need_instructions_beyond_them(tiny_model: Path) -> None:
    settings = find_settings(Candidate("a", tiny_model), find_runtime("openvino"), HOST)
    limits = [setting.values["ONEDNN_MAX_CPU_ISA"] for setting in settings if "ONEDNN_MAX_CPU_ISA" in setting.values]
    assert limits == ["AVX2", "AVX512_CORE"]


def test_throughput_varies_streams_and_batch(tiny_model: Path) -> None:
    candidate = Candidate("a", tiny_model, Settings(streams=1))
    settings = find_settings(candidate, find_runtime("onnxruntime"), HOST)
    assert {setting.values["streams"] for setting in settings if setting.dimension == "streams"} == {1, 2, 4, 8}
    assert {setting.values["batch"] for setting in settings if setting.dimension == "batch"} == {1, 4, 16}
    applied = settings[-1].apply(candidate)
    assert applied.settings.streams == 1


def test_setting_changes_only_its_values(tiny_model: Path) -> None:
    candidate = Candidate("a", tiny_model, Settings(environment={"A": "1"}))
    setting = Setting("mixed", {"intra_op": 2, "cpus": [0, 1], "TF_ENABLE_ONEDNN_OPTS": "0"})
    settings = setting.apply(candidate).settings
    assert settings == Settings(
        options=SessionOptions(intra_op=2), cpus=(0, 1), environment={"A": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    )
    converted = replace(candidate, path=Path("converted.pb"))
    assert Setting("layout", {"layout": "NCHW"}).apply(candidate, converted).path == Path("converted.pb")


def test_combinations_have_one_setting_of_each_dimension() -> None:
    ranked = [
        (Setting("threads", {"intra_op": 1}), 1.5),
        (Setting("threads", {"intra_op": 2}), 1.4),
        (Setting("spinning", {"spinning": False}), 1.2),
        (Setting("cpus", {"cpus": [0]}), 0.9),
    ]
    assert [setting.values for setting in combine(ranked)] == [{"intra_op": 1, "spinning": False}]


def test_interrupted_sweep_resumes(use: Callable[[Speed], FakeBenchmark], tiny_model: Path, tmp_path: Path) -> None:
    """The trials of finished groups are not measured again."""
    state = tmp_path / "state.json"

    def run(seconds: Speed) -> list[list[str]]:
        fake = use(seconds)
        qk.sweep(tiny_model, runtime="onnxruntime", time_budget=60, resume=state)
        return fake.groups()

    def interrupt(settings: Settings) -> float:
        if settings.options.spinning is False:
            raise BenchmarkInterrupted(Benchmark(()))
        return by_threads(settings)

    with pytest.raises(BenchmarkInterrupted):
        run(interrupt)
    finished = {trial["candidate"] for rows in json.loads(state.read_text())["trials"].values() for trial in rows}
    assert finished
    groups = run(by_threads)
    labels = {str(Setting("", json.loads(key))) for key in finished}
    measured = {label for label in groups[0] if "+" not in label}
    assert not labels & measured
    assert run(by_threads) == [], "a finished search is only confirmed"


def test_state_of_another_machine_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    SweepState(HOST, path).add("model", [MeasuredTrial(0, "{}", 1.5, 0.1)])
    assert SweepState.read(path, HOST).find("model", 0, "{}") == MeasuredTrial(0, "{}", 1.5, 0.1)
    with pytest.raises(UsageError, match="trials of another machine: a cpu"):
        SweepState.read(path, MACHINE)
    trials = ('{"candidate": 3}', '{"stage": 0, "candidate": "1", "ratio": null, "seconds": null, "failure": ""}')
    texts = [json.dumps(json.loads(path.read_text()) | {"trials": {"model": [json.loads(text)]}}) for text in trials]
    for text in ("{}", *texts):
        path.write_text(text)
        with pytest.raises(InputError, match="is not the state of a search"):
            SweepState.read(path, HOST)
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is nested too deeply"):
        SweepState.read(path, HOST)


def test_layout_is_converted_for_tensorflow(tmp_path: Path) -> None:
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 6, 6, 2))}),
        constant("w", np.ones((3, 3, 2, 4), np.float32)),
        Node(
            "y",
            "Conv2D",
            (Edge("x"), Edge("w")),
            attrs={"T": DType.FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME", "data_format": b"NHWC"},
        ),
    ]
    path = tmp_path / "conv.pb"
    formats.save(Graph.of(nodes, ["x"], ["y"]), path)
    candidate = Candidate("conv.pb", path, Settings(runtime="tensorflow"))
    converted = workflow._convert_layout(candidate, tmp_path)
    assert converted is not None
    convolutions = [node for node in formats.load(converted.path).nodes.values() if node.op == "Conv2D"]
    assert [node.attrs["data_format"] for node in convolutions] == [b"NCHW"]
    assert workflow._convert_layout(replace(candidate, settings=Settings(runtime="onnxruntime")), tmp_path) is None


def quantkit(*arguments: str) -> int:
    code: int = import_module("quantkit.cli").main(["benchmark", *arguments])
    return code


def test_command_prints_and_saves_the_sweep(
    use: Callable[[Speed], FakeBenchmark], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use(by_threads)
    saved = tmp_path / "sweep.json"
    arguments = (f"{tiny_model}@onnxruntime", "--sweep", "--time-budget", "60s", "--save", str(saved), "--json")
    assert quantkit(*arguments) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document == json.loads(saved.read_text())
    assert document["schema"] == "quantkit.sweep/1"
    assert document["best"]["settings"]["inter_op"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sweep", "--runs", "3"), "--runs does not apply to --sweep"),
        (("--resume", "state.json"), "--resume is an option of --sweep"),
        (("--env", "X"), "'X' is not a variable"),
    ],
)
def test_wrong_combination_is_rejected(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert quantkit(str(tiny_model), *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("intra_op", "threads"), [(None, 2), (1, 1)])
def test_native_code_sets_the_threads_of_a_process_with_fewer_cpus(intra_op: int | None, threads: int) -> None:
    settings = Settings("onnxruntime", SessionOptions(intra_op=intra_op), cpus=(0, 3))
    lines = BestSettings("m.onnx", "m.onnx", Candidate("m.onnx", Path("m.onnx"), settings)).native.splitlines()
    assert lines[:2] == ["import os", "os.sched_setaffinity(0, {0, 3})"]
    assert f"options.intra_op_num_threads = {threads}" in lines
    assert lines[-1].startswith("session = onnxruntime.InferenceSession('m.onnx', ")


@pytest.mark.parametrize(
    ("runtime", "model", "lines"),
    [
        ("litert", "my.tflite", ["interpreter = Interpreter('my.tflite', num_threads=1)"]),
        (
            "litert",
            "my.pb",
            ["# quantkit transform my.pb -o model.tflite", "interpreter = Interpreter('model.tflite', num_threads=1)"],
        ),
    ],
)
def test_native_code_opens_the_file_of_the_model(runtime: str, model: str, lines: list[str]) -> None:
    candidate = Candidate(model, Path(model), Settings(runtime, SessionOptions(intra_op=1)))
    assert BestSettings(model, model, candidate).native.splitlines() == lines
