"""With ``isa``, evaluate, compare and benchmark limit the kernels of oneDNN to an instruction set, or refuse it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import UnavailableError, UsageError
from quantkit.runtimes import runtime
from quantkit.runtimes.session import SessionOptions

main = import_module("quantkit.cli").main
SAMPLES = np.random.default_rng(0).random((4, 16, 16, 1), np.float32)
LIMIT = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
AVX2 = frozenset({"avx", "avx2"})


@pytest.fixture
def avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the features of the processor by those of one with AVX2 only."""
    monkeypatch.setattr(runtime, "cpu_flags", lambda: AVX2)


def evaluate(model: Any, name: str, **options: Any) -> Any:
    return qk.evaluate(model, SAMPLES, runtime=name, **options)


def compare(model: Any, name: str, **options: Any) -> Any:
    return qk.compare(model, model, SAMPLES, runtimes=("reference", name), **options)


def benchmark(model: Any, name: str, **options: Any) -> Any:
    return qk.benchmark(model, name, runs=1, warmup=0, processes=1, **options)


VERBS = [evaluate, compare, benchmark]
needs_avx2 = pytest.mark.skipif("avx2" not in runtime.cpu_flags(), reason="needs AVX2")


@needs_avx2
@pytest.mark.engine
@pytest.mark.parametrize("name", ["openvino", "tensorflow"])
@pytest.mark.parametrize("verb", VERBS[:2])
def test_document_has_the_variable(verb: Callable[..., Any], name: str) -> None:
    result = verb("digits", name, isa="avx2")
    assert result.to_json()["environment"] == result.environment == LIMIT
    assert "ONEDNN_MAX_CPU_ISA" in str(result)
    free = verb("digits", name)
    assert free.to_json()["environment"] == {}
    if verb is evaluate:
        assert result.metrics.samples == free.metrics.samples == 4


@needs_avx2
@pytest.mark.engine
def test_benchmark_records_the_variable() -> None:
    result = benchmark("digits", "openvino", isa="avx2", environment={"OMP_NUM_THREADS": "1"})
    (measurement,) = result.measurements
    assert measurement.context.environment == {**LIMIT, "OMP_NUM_THREADS": "1"}
    assert measurement.context.to_json()["environment"] == measurement.context.environment


# Prints the kernels of the convolutions of a model in OpenVINO.
KERNELS = """
import openvino, sys
# By default, OpenVINO computes in bfloat16 on a processor that has it.
compiled = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
nodes = compiled.get_runtime_model().get_ops()
facts = [node.get_rt_info() for node in nodes]
print(*{fact["primitiveType"].astype(str) for fact in facts if fact["layerType"].astype(str) == "Convolution"})
"""


@pytest.mark.engine
@pytest.mark.parametrize(("limit", "name"), [("SSE41", "sse42"), pytest.param("AVX2", "avx2", marks=needs_avx2)])
def test_openvino_uses_the_kernels_of_the_variable(limit: str, name: str, tmp_path: Path) -> None:
    qk.save("digits", tmp_path / "m.onnx")
    environment = {**os.environ, runtime.ISA_VARIABLE: limit}
    command = [sys.executable, "-c", KERNELS, str(tmp_path / "m.onnx")]
    kernels = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert any(name in kernel for kernel in kernels), kernels
    assert name == "avx2" or not any("avx" in kernel for kernel in kernels), kernels


@pytest.mark.parametrize("verb", VERBS)
def test_missing_instructions_are_refused(verb: Callable[..., Any], avx2: None) -> None:
    with pytest.raises(UnavailableError, match=r"^this processor has no avx512 instructions$") as raised:
        verb("digits", "auto", isa="avx512")
    assert "--isa avx2" in str(raised.value.hint)
    with pytest.raises(UsageError, match="isa is 'avx3'"):
        verb("digits", "auto", isa="avx3")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["reference", pytest.param("onnxruntime", marks=pytest.mark.engine)])
def test_runtimes_without_a_switch_refuse(verb: Callable[..., Any], name: str, avx2: None, tmp_path: Path) -> None:
    model = "digits" if name == "reference" else tmp_path / "m.onnx"
    if isinstance(model, Path):
        qk.save("digits", model)
    with pytest.raises(UnavailableError, match="has no switch for the instruction set") as raised:
        verb(model, name, isa="avx2")
    assert "openvino" in str(raised.value.hint)


def test_litert_and_sessions_of_this_process_refuse(avx2: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(runtime.ISA_VARIABLE, raising=False)
    for name in ("litert", "onnxruntime", "reference"):
        with pytest.raises(UnavailableError, match="no switch"):
            import_module("quantkit.runtimes").find_runtime(name).check_isa("avx2")
    openvino = import_module("quantkit.runtimes").find_runtime("openvino")
    with pytest.raises(UsageError, match="reads the limit"):
        openvino._check_options(SessionOptions(isa="avx2"))
    monkeypatch.setenv(runtime.ISA_VARIABLE, "AVX2")
    openvino._check_options(SessionOptions(isa="avx2"))


def test_streams_are_refused(avx2: None) -> None:
    with pytest.raises(UsageError, match="another process"):
        qk.evaluate("digits", (sample[None] for sample in SAMPLES), isa="avx2")


@pytest.mark.parametrize("command", ["evaluate", "compare", "benchmark"])
def test_command_refuses_in_one_sentence(
    command: str, avx2: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", Mul=SAMPLES)
    models = ["digits", "digits"] if command == "compare" else ["digits"]
    data = ["--data", str(tmp_path / "x.npz")]
    assert main([command, *models, *data, "--isa", "avx512"]) == 4
    assert capsys.readouterr().err.splitlines()[0] == "quantkit: this processor has no avx512 instructions"
    assert main([command, *models, *data, "--isa", "avx512", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["exit_code"] == 4
    assert main([command, *models, *data, "--runtime", "reference", "--isa", "avx2"]) == 4
    assert "no switch" in capsys.readouterr().err
