"""Layers that stay float because their int8 form takes more time, by scripted profiles."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.benchmark.profiling import AlternatingProfiles, ModelProfile, ProfileRow
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.benchmark.sampling.process import ProcessReserve
from quantkit.errors import UnavailableError
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.decision import COST, ERROR, as_decisions
from quantkit.quantization.report import Latency
from quantkit.quantization.workflow import calibrated_model, verb
from quantkit.quantization.workflow.trials import Trials
from quantkit.runtimes.session import RuntimeVersion

pytestmark = pytest.mark.engine
pytest.importorskip("onnxruntime")
IMAGES = np.random.default_rng(0).uniform(-1, 1, (8, 16, 16, 1)).astype(np.float32)


class Machine:
    """Machine with scripted times: each layer takes 1 ms in float, and 0.5 ms in int8 unless it is slow.

    Attributes:
        slow: layers whose int8 form takes 3 ms.
        speedup: speed-up that is measured for another form.
        pairs: pairs of models that were profiled or compared.
    """

    def __init__(self, slow: Sequence[str], speedup: float) -> None:
        self.slow, self.speedup, self.pairs = slow, speedup, list[tuple[Candidate, ...]]()

    def profile(
        self, _: AlternatingProfiles, candidates: Sequence[Candidate], rounds: int, seconds: float
    ) -> list[tuple[ModelProfile, ...]]:
        self.pairs.append(tuple(candidates))
        names = [
            node.name for node in qk.load(candidates[0].path).graph.nodes.values() if node.op in ("Conv", "MatMul")
        ]
        models = []
        for index, candidate in enumerate(candidates):
            int8 = {name: 3e-3 if name in self.slow else 0.5e-3 for name in names}
            times = int8 if index else dict.fromkeys(names, 1e-3)
            rows = tuple(ProfileRow(name, "", "int8" if index else "float", value) for name, value in times.items())
            latency = 10e-3
            runtime = RuntimeVersion(candidate.settings.runtime, "1")
            models.append((ModelProfile(candidate.label, runtime, rows, latency, latency, 0.0, 1),) * rounds)
        return models

    def compare(self, _: AlternatingProfiles, candidates: Sequence[Candidate], rounds: int, calls: int) -> list[float]:
        self.pairs.append(tuple(candidates))
        return [self.speedup] * rounds


@cache
def layers() -> list[str]:
    """Return the int8 layers of the network."""
    return [pattern.layer for pattern in quantize(runs=0).plan.patterns]


def quantize(**options: object) -> qk.QuantizationResult:
    return qk.quantize("digits", IMAGES, target="onnx", runtime="onnxruntime", limit=8, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "measure_latency", lambda *arguments: Latency(skipped="scripted"))


def use(monkeypatch: pytest.MonkeyPatch, slow: Sequence[str], speedup: float) -> Machine:
    machine = Machine(slow, speedup)
    monkeypatch.setattr(AlternatingProfiles, "start", lambda *arguments: None)
    monkeypatch.setattr(AlternatingProfiles, "compare", lambda *arguments: machine.compare(*arguments))
    monkeypatch.setattr(AlternatingProfiles, "measure", lambda *arguments: machine.profile(*arguments))
    # Only times decide here: the losses are those of a few random images.
    monkeypatch.setattr(policy, "MAX_FASTER_LOSS", 100.0)
    return machine


def test_a_slow_int8_layer_stays_float_with_its_saved_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = layers()[3]
    use(monkeypatch, [slow], 1.2)
    messages: list[str] = []
    result = quantize(on_message=messages.append, save_plan=tmp_path / "plan.json")
    (decision,) = [each for each in result.decisions if each.source == COST and each.saved_ms]
    assert (decision.unit, decision.precision) == (slow, "float")
    assert decision.saved_ms == pytest.approx(2.0)
    assert any("1.20 times as fast" in message and slow in message for message in messages)
    assert slow in qk.Plan.load(tmp_path / "plan.json").float_fallbacks


@pytest.mark.parametrize("speedup", [0.9, 1.01])
def test_a_prediction_without_a_measured_gain_does_not_count(monkeypatch: pytest.MonkeyPatch, speedup: float) -> None:
    names = layers()
    machine = use(monkeypatch, [names[3]], speedup)
    assert [pattern.layer for pattern in quantize().plan.patterns] == names
    assert len(machine.pairs) >= 2, "the alternative was measured"


def test_no_alternative_is_measured_without_a_predicted_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = use(monkeypatch, [], 1.2)
    quantize()
    assert len(machine.pairs) == 1


def test_a_model_whose_layers_are_all_slow_stays_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report states that the float model is faster; a file without int8 layers would only be a copy of it."""
    names = layers()
    machine = use(monkeypatch, names, 1.2)
    assert [pattern.layer for pattern in quantize().plan.patterns] == names
    assert len(machine.pairs) == 1


def test_no_time_is_measured_without_runs_or_with_decisions_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = quantize(runs=0).plan
    machine = use(monkeypatch, layers()[:1], 1.2)
    quantize(runs=0)
    qk.quantize("digits", IMAGES, plan=plan, limit=8)
    qk.quantize("digits", IMAGES, scheme=plan.scheme, limit=8)
    assert not machine.pairs


def cut_by_the_table(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
    """Replace the float layers of the table of costs, without other choices."""

    def cut(trials: Trials) -> None:
        trials.present = trials.present.cut(names)

    monkeypatch.setattr(calibrated_model, "exclude_costly_kernels", cut)
    monkeypatch.setattr(calibrated_model, "CHOICES", ())


def test_layers_that_the_table_keeps_in_float_return_to_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    names = layers()
    machine = use(monkeypatch, [], 1.2)
    cut_by_the_table(monkeypatch, names[2:4])
    messages: list[str] = []
    result = quantize(on_message=messages.append)
    assert {*names[2:4]} <= {pattern.layer for pattern in result.plan.patterns}
    assert any(
        "2 layers return to int8" in message and names[2] in message and "1.20 times" in message for message in messages
    )
    assert machine.pairs[-1][0].path != machine.pairs[-1][1].path


@pytest.mark.parametrize(("slow", "speedup"), [(True, 1.2), (False, 1.01)])
def test_the_choice_of_the_table_stays_unless_int8_is_faster(
    monkeypatch: pytest.MonkeyPatch, *, slow: bool, speedup: float
) -> None:
    names = layers()
    use(monkeypatch, names[2:4] if slow else [], speedup)
    cut_by_the_table(monkeypatch, names[2:4])
    plan = quantize().plan
    assert [pattern.layer for pattern in plan.patterns] == [*names[:2], *names[4:]]


def test_a_layer_that_a_trial_keeps_in_float_stays_float_without_the_cut() -> None:
    names = layers()
    conversion = quantize(runs=0).conversion
    cut = conversion.cut(names[5:7])
    for name in [*names[:5], *names[7:]]:
        noisy = as_decisions({name: "noisy"}, ERROR)
        assert cut.decide(noisy).without_cut().plan == conversion.decide(noisy).plan, name
    assert conversion.without_cut() is conversion


def test_processes_start_before_the_files_that_they_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []

    def start(reserve: ProcessReserve, runtimes: Sequence[str]) -> None:
        assert set(runtimes) == {"onnxruntime"}
        stages.append(f"{len(runtimes)} processes")

    use(monkeypatch, [], 1.2)
    monkeypatch.setattr(ProcessReserve, "start", start)
    for runs, processes in ((None, ["4 processes", "2 processes"]), (0, [])):
        stages.clear()
        quantize(runs=runs, on_progress=lambda progress: stages.append(progress.stage))
        assert [stage for stage in stages if stage.endswith("processes")] == processes
        assert not processes or stages.index(processes[0]) < stages.index("calibrating")
        assert not processes or stages.index(processes[1]) < stages.index("writing the model")


def test_a_runtime_without_times_of_ops_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def profile(*arguments: object) -> list[tuple[ModelProfile, ...]]:
        raise UnavailableError("no times", hint="")

    monkeypatch.setattr(AlternatingProfiles, "measure", profile)
    messages: list[str] = []
    result = quantize(on_message=messages.append)
    assert result.plan.patterns
    assert "the time of the layers is not measured: no times" in messages
