import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from measurements import MACHINE

from quantkit.benchmark import diagnosis
from quantkit.benchmark.diagnosis import (
    Diagnosis,
    RuntimeDiagnosis,
    TargetDiagnosis,
    thread_advice,
)
from quantkit.benchmark.profiling.peak_models import float_product
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sweep import BestSettings, ModelSweep, Sweep
from quantkit.quantization.targets.diagnosis import diagnose_targets
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.availability import Availability
from quantkit.runtimes.session import SessionOptions

TENSORFLOW = RuntimeDiagnosis(
    "tensorflow", "2.21", gpu="this machine has no GPU", onednn=("oneDNN v3.7.3", "isa:Intel AVX2")
)
MKL_BUILD = RuntimeDiagnosis("tensorflow", "1.15", gpu="yes", openmp=("libiomp5",))
MISSING = RuntimeDiagnosis("openvino", problem="OpenVINO is not installed: pip install 'openvino>=2025.0'")


def test_advice_without_openmp_names_no_affinity() -> None:
    text = "\n".join(thread_advice(MACHINE, [TENSORFLOW, MISSING]))
    assert "no effect in tensorflow" in text
    assert "openvino" not in text
    assert "KMP_AFFINITY=" not in text


@pytest.mark.parametrize(
    ("logical", "affinity"), [(2, "granularity=fine,compact;"), (4, "granularity=fine,compact,1,0;")]
)
def test_advice_with_openmp_depends_on_hyper_threading(logical: int, affinity: str) -> None:
    text = "\n".join(thread_advice(replace(MACHINE, logical_cores=logical), [MKL_BUILD]))
    assert f"KMP_AFFINITY={affinity}" in text
    assert "OMP_NUM_THREADS=2" in text
    assert "measure it" in text


def test_text_lists_working_and_missing_runtimes() -> None:
    text = str(Diagnosis(MACHINE, (TENSORFLOW, MISSING)))
    assert "a processor, 2 cores" in text
    assert "tensorflow: oneDNN v3.7.3, isa:Intel AVX2" in text
    assert "pip install 'openvino>=2025.0'" in text
    assert "tensorflow: no GPU: this machine has no GPU" in text


def test_runtimes_of_gpus_do_not_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []

    def try_open(candidate: Candidate, name: str, device: str) -> tuple[dict[str, Any], str]:
        devices.append(device)
        return {"version": "1.31", "openmp": (), "build": (), "telemetry": "none"}, ""

    monkeypatch.setattr(diagnosis, "_try_open", try_open)
    runtime = replace(find_runtime("tensorrt"), available=lambda: Availability.yes("1.31"))
    monkeypatch.setattr(diagnosis, "runtimes", lambda: {"tensorrt": runtime})
    machine = replace(MACHINE, gpus=("NVIDIA H100",))
    monkeypatch.setattr(diagnosis, "this_machine", lambda: machine)
    state = diagnosis.diagnose()
    assert devices == ["gpu", "gpu"]
    assert "tensorrt  1.31     no   yes  none" in str(state)


def test_text_has_builds_telemetry_and_targets() -> None:
    state = replace(TENSORFLOW, build=("cuda_version: 12.5",), telemetry="none")
    targets = (TargetDiagnosis("eightbit", ("tensorflow",), "only reference kernels"), TargetDiagnosis("litert", ()))
    text = str(Diagnosis(replace(MACHINE, cpu_quota=1.5, numa_nodes=2), (state,), targets=targets))
    assert "tensorflow: cuda_version: 12.5\ntensorflow: telemetry none\n" in text
    assert "target eightbit  tensorflow         only reference kernels\ntarget litert    does not run here\n" in text
    assert "one hardware thread per core; memory nodes: 2" in text
    assert "quota         1.5 CPUs" in text


@pytest.mark.engine
def test_targets_without_a_working_runtime_have_a_problem() -> None:
    states = {state.name: state for state in diagnose_targets(["tensorflow"])}
    assert (states["tensorflow"].runtimes, states["tensorflow"].problem) == (("tensorflow",), "")
    assert "reference kernels" in states["eightbit"].problem
    assert states["onnx"] == TargetDiagnosis("onnx", (), "none of its runtimes works here: openvino, onnxruntime")


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_telemetry_is_disabled_in_processes_of_quantkit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name, reason=f"pip install {name}")
    runtime = find_runtime(name)
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    with open_session(float_product("onnx", 4), name):
        assert runtime.describe_telemetry().startswith("disabled: ")
    assert any("CPU" in fact for fact in runtime.describe_build())
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    monkeypatch.setitem(sys.modules, "openvino_telemetry", sys)
    assert runtime.describe_telemetry().startswith("enabled: ")


def make_sweep(speedup: Speedup | None) -> Sweep:
    candidate = Candidate("digits", Path("digits.pb"), Settings("onnxruntime", SessionOptions(1, 2)))
    best = BestSettings("digits", "digits", candidate, speedup=speedup)
    return Sweep((ModelSweep(best, 0.02, 0.01),), MACHINE)


def test_a_measurement_replaces_the_fixed_thread_advice() -> None:
    state = Diagnosis(MACHINE, (TENSORFLOW,), sweep=make_sweep(None))
    assert "start with --intra-op" in str(replace(state, sweep=None))
    for text in (str(state), "\n".join(state.to_json()["advice"])):
        assert "start with" not in text
        assert "often fastest" not in text
        assert "threads: digits in ONNX Runtime: keep the default: no setting is faster" in text
    faster = replace(state, sweep=make_sweep(Speedup(2.0, 1.9, 2.1, True, 5)))
    assert "digits: 2.00x as fast (95 % CI 1.90-2.10) over the default" in str(faster)
    assert "quantkit benchmark digits@onnxruntime --intra-op 1 --inter-op 2" in str(faster)


@pytest.fixture
def only_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    only = {"reference": diagnosis.find_runtime("reference")}
    monkeypatch.setattr(diagnosis, "runtimes", lambda: only)


def doctor(*arguments: str) -> int:
    code: int = import_module("quantkit.cli").main(["doctor", "-q", *arguments])
    return code


def test_command_runs_the_model_in_each_runtime(only_numpy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "quantkit.doctor/2"
    (state,) = document["engines"]
    assert (state["name"], state["problem"]) == ("reference", "")
    assert document["machine"]["logical_cores"] >= 1


def test_exit_code_is_4_if_no_runtime_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = import_module("quantkit.cli.doctor")
    monkeypatch.setattr(command, "diagnose", lambda *_, **__: Diagnosis(MACHINE, (MISSING,)))
    assert doctor() == 4
    assert "no runtime works here" in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.parametrize("name", ["tensorflow", "openvino"])
def test_log_of_onednn_is_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    runtime = diagnosis.find_runtime(name)
    if not runtime.available().ok:
        pytest.skip(runtime.available().detail)
    monkeypatch.setattr(diagnosis, "runtimes", lambda: {name: runtime})
    (state,) = diagnosis.diagnose().runtimes
    assert state.problem == ""
    assert state.version


def test_measurement_is_a_sweep_of_the_prepared_model(
    only_numpy: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(diagnosis, "SWEEP_BUDGET", 2.0)
    assert doctor("--json", "--measure", "--runtime", "reference") == 0
    document = json.loads(capsys.readouterr().out)["measured"]
    assert document["schema"] == "quantkit.sweep/1"
    assert document["best"]["command"].startswith("quantkit benchmark digits@reference")


def test_library_and_command_give_the_same_document(only_numpy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--json") == 0
    document = json.loads(capsys.readouterr().out)
    state = replace(diagnosis.diagnose(), targets=diagnose_targets(["reference"]))
    expected = json.loads(json.dumps(state.to_json()))
    document["machine"].pop("load")
    expected["machine"].pop("load")
    assert document == expected


def test_problems_of_plugins_are_listed() -> None:
    problem = "runtime plugin toy:RUNTIME of toy cannot be loaded: ImportError"
    state = Diagnosis(MACHINE, (TENSORFLOW,), (problem,))
    assert problem in str(state)
    assert state.to_json()["plugin_problems"] == [problem]
    assert problem in state._repr_html_()


def test_unknown_runtime_is_rejected_before_a_model_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--measure", "--runtime", "onnxruntim") == 2
    assert "did you mean 'onnxruntime'?" in capsys.readouterr().err
