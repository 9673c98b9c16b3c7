from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quantkit.benchmark.machine import this_machine
from quantkit.benchmark.speedup import Speedup
from quantkit.data import PreprocessingOptions
from quantkit.evaluation.classification_metrics import ClassificationMetrics, Proportion
from quantkit.quantization import Scheme
from quantkit.quantization.census import Census
from quantkit.quantization.ranges import Provenance
from quantkit.quantization.report import AccuracyReport, Latency, NextStep, QuantizationReport
from quantkit.quantization.targets import find_target
from quantkit.quantization.workflow.next_steps import Commands, recommend
from quantkit.quantization.workflow.options import Options

SLOWER = Speedup(0.9, 0.8, 0.95, True)


def recommend_after(target: str = "onnx", **measurements: Any) -> NextStep | None:
    census = Census({}, 0, (), 1, 0, 1)
    scheme = Scheme.for_target(target)
    report = QuantizationReport("digits", None, scheme, Provenance(), (), 0, census, 1, 1, "", **measurements)
    return recommend(report, Commands.of("digits", find_target(target), Options(calibration="images")))


def test_the_eightbit_target_recommends_the_tensorflow_target() -> None:
    step = recommend_after("eightbit", latency=Latency(SLOWER))
    assert step is not None
    assert "reference kernels" in step.reason
    assert "--target tensorflow" in step.command


@pytest.mark.parametrize("isa", [(), ("avx512_bf16",), ("avx512_bf16", "amx_bf16")])
def test_bfloat16_is_recommended_on_processors_with_bfloat16(
    isa: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, machine = import_module("quantkit.quantization.workflow.host"), this_machine()
    monkeypatch.setattr(host, "this_machine", lambda: replace(machine, isa=isa))
    step = recommend_after(latency=Latency(SLOWER))
    assert step is not None
    assert ("bfloat16" in step.reason and step.command.endswith("--precision float32,bfloat16")) == bool(isa)
    assert ("not measured" in step.reason) == bool(isa)
    assert "amx_bf16" not in isa or "(amx_bf16)" in step.reason
    litert = recommend_after("litert", latency=Latency(SLOWER))
    assert litert is not None
    assert "bfloat16" not in litert.reason


@pytest.mark.parametrize("isa", [(), ("avx512_bf16",)])
def test_a_low_agreement_leads_to_max_drop_or_bfloat16(isa: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    host, machine = import_module("quantkit.quantization.workflow.host"), this_machine()
    monkeypatch.setattr(host, "this_machine", lambda: replace(machine, isa=isa))
    low = AccuracyReport(ClassificationMetrics(100, None, None, Proportion(70, 100), 0.1))
    step = recommend_after(accuracy=low)
    assert step is not None
    assert ("bfloat16" in step.reason and "quantkit evaluate" in step.command) == bool(isa)
    assert isa or "--max-drop 0.01" in step.command
    litert = recommend_after("litert", accuracy=low)
    assert litert is not None
    assert "--max-drop" in litert.command
    high = AccuracyReport(ClassificationMetrics(100, None, None, Proportion(99, 100), 0.1))
    assert recommend_after(accuracy=high) is None


def commands_after(**options: Any) -> Commands:
    return Commands.of("model.pb", find_target("eightbit"), Options(output=Path("out.pb"), **options))


def test_the_next_command_repeats_the_flags_of_this_one() -> None:
    commands = commands_after(
        calibration="my images", inputs=("a", "b"), preprocessing=PreprocessingOptions(mean=0.0), limit=30
    )
    assert commands.quantize_again("tensorflow") == (
        "quantkit quantize model.pb -o out_tensorflow.pb --target tensorflow --calibration 'my images' --limit 30 "
        "--inputs a,b --input-mean 0.0"
    )
    assert commands.evaluate("onnxruntime") == (
        "quantkit evaluate model.pb@onnxruntime --reference model.pb --data 'my images' --input-mean 0.0"
    )
    assert "--ranges r.json" in commands_after(ranges="r.json").quantize("onnx")
    assert commands_after(weights_only=True, held_out="others").data == "others"
    assert "--calibration DATA" in commands_after(weights_only=True).quantize("onnx")
