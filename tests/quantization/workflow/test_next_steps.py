from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measurements import make_latency, make_model_profile

from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.profiling import Profile
from quantkit.evaluation.classification_metrics import ClassificationMetrics, Proportion
from quantkit.quantization import Scheme
from quantkit.quantization.ranges import Provenance
from quantkit.quantization.report import AccuracyReport, NextStep, QuantizationReport
from quantkit.quantization.report.census import Census, FloatFallback
from quantkit.quantization.targets import find_target
from quantkit.quantization.workflow.next_steps import Commands, recommend
from quantkit.quantization.workflow.options import Options

SLOWER = make_latency({"float tensorflow": 1.0, "int8 tensorflow": 1.2})
FASTER = make_latency({"float openvino": 1.0, "int8 openvino": 0.5, "float onnxruntime": 0.8, "int8 onnxruntime": 0.9})
GOOD = AccuracyReport(ClassificationMetrics(100, None, None, Proportion(99, 100), 0.1))


def recommend_after(
    target: str = "onnx", census: Census = Census({}, 0, (), 1, 0, 1), held_out: str | None = None, **measurements: Any
) -> NextStep:
    scheme = Scheme.for_target(target)
    report = QuantizationReport("digits", None, scheme, Provenance(), (), 0, census, 1, 1, "", **measurements)
    options = Options(None, calibration="images", held_out=held_out)
    return recommend(report, Commands("digits", find_target(target), options))


def test_the_eightbit_target_recommends_the_tensorflow_target() -> None:
    step = recommend_after("eightbit", latency=SLOWER)
    assert "reference kernels" in step.reason
    assert "--target tensorflow" in step.command


@pytest.mark.parametrize("isa", [(), ("avx512_bf16",), ("avx512_bf16", "amx_bf16")])
def test_bfloat16_is_recommended_on_processors_with_bfloat16(
    isa: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, machine = import_module("quantkit.quantization.workflow.host"), this_machine()
    monkeypatch.setattr(host, "this_machine", lambda: replace(machine, isa=isa))
    step = recommend_after(latency=SLOWER)
    assert ("bfloat16" in step.reason and step.command.endswith("--precision float32,bfloat16")) == bool(isa)
    assert ("not measured" in step.reason) == bool(isa)
    assert "amx_bf16" not in isa or "(amx_bf16)" in step.reason
    litert = recommend_after("litert", latency=SLOWER)
    assert "bfloat16" not in litert.reason
    in_onnxruntime = recommend_after(latency=make_latency({"float onnxruntime": 1.0, "int8 onnxruntime": 1.2}))
    assert "bfloat16" not in in_onnxruntime.reason + in_onnxruntime.command


def test_an_interval_that_spans_1_is_undecided() -> None:
    """The claim "not faster" needs an interval below 1, or within the margin."""
    step = recommend_after(latency=make_latency({"float openvino": 1.0, "int8 openvino": 0.9}, spread=0.2))
    assert step.reason.startswith("undecided: int8 in openvino and float in openvino: differences below")
    assert "not faster" not in step.reason
    assert "quantkit benchmark digits@openvino OUTPUT.onnx@openvino --processes" in step.command
    step = recommend_after(latency=make_latency({"float openvino": 1.0, "int8 openvino": 1.0}, spread=1.0))
    assert "processes per model: measure on a quiet machine" in step.reason
    assert "--processes" not in step.command


LATENCIES = {
    "faster": make_latency({"float openvino": 1.0, "int8 openvino": 0.5}),
    "same": make_latency({"float openvino": 1.0, "int8 openvino": 1.0}),
    "slower": make_latency({"float openvino": 1.0, "int8 openvino": 1.5}),
    "slower in tensorflow": make_latency({"float tensorflow": 1.0, "int8 tensorflow": 1.5}),
    "float in the runtime of no other target": make_latency({"float reference": 0.1, "int8 openvino": 1.5}),
    "negligible": make_latency({"float openvino": 1.0, "int8 openvino": 1.0}, spread=0.06),
}


@pytest.mark.parametrize("held_out", [None, "others"])
@pytest.mark.parametrize("name", LATENCIES)
def test_no_step_repeats_a_measurement(name: str, held_out: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.quantization.workflow.next_steps.find_bfloat16_instruction", lambda: "")
    latency = LATENCIES[name]
    target = "tensorflow" if "tensorflow" in name else "onnx"
    for census in (Census({}, 0, (), 1, 0, 1), Census({}, 0, (fallback("Conv", "b"),), 0, 1, 0)):
        step = recommend_after(target, census, held_out=held_out, latency=latency, accuracy=GOOD)
        assert not step.command.startswith("quantkit benchmark"), step
    assert (name == "negligible") == (latency.overall is not None and latency.overall.is_negligible)


@pytest.mark.parametrize(
    ("metrics", "command"),
    [
        (GOOD.metrics, "quantkit evaluate digits --data images"),
        (None, "quantkit run digits --data images -o outputs"),  # evaluate needs class scores, or a reference
    ],
)
def test_doubts_lead_to_the_outputs_of_the_float_model(metrics: Any, command: str) -> None:
    step = recommend_after(accuracy=AccuracyReport(metrics, doubts=("the outputs barely vary",)))
    assert step == NextStep("check the float model first", command)


def test_a_model_that_is_not_faster_leads_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.quantization.workflow.next_steps.find_bfloat16_instruction", lambda: "")
    step = recommend_after(latency=SLOWER, held_out="others", target="tensorflow")
    assert step.command == "quantkit optimize digits -o OUTPUT_best --data images --held-out others"
    assert "float and int8 files of all runtimes" in step.reason


def test_commands_repeat_the_options_of_the_caller() -> None:
    options = Options(
        "net.onnx",
        "images",
        held_out="others",
        runtime="openvino",
        reduce_range=True,
        uint8_input=True,
        task="segmentation",
        input_height=192,
        input_mean=np.array([1.5, 2.5]),
        input_std=(-1.0, 1.0),
        input_shapes={"x": (1, 3, 192, 192)},
        outputs=("y", "z"),
    )
    commands = Commands("net.onnx", find_target("onnx"), options)
    form, sizes = "--reduce-range --runtime openvino", "--input-height 192 --input-shape x:1x3x192x192"
    normalization, loading = "--input-mean 1.5,2.5 --input-std=-1.0,1.0", f"--outputs y,z {sizes}"
    shared = f"{loading} --uint8-input {normalization} --task segmentation"
    data = "--calibration images --limit 100 --held-out others"
    start = "quantkit quantize net.onnx -o OUTPUT"
    assert commands.quantize("onnx") == f"{start}.onnx --target onnx {data} {form} {shared}"
    assert commands.quantize_again("litert") == f"{start}_litert.tflite --target litert {data} {shared}"
    assert commands.optimize() == (
        "quantkit optimize net.onnx -o OUTPUT_best --data images --held-out others "
        f"{loading} {normalization} --task segmentation"
    )
    assert commands.compare() == f"quantkit compare net.onnx OUTPUT.onnx --data others {normalization}"


def test_equal_latency_is_not_faster() -> None:
    step = recommend_after(latency=make_latency({"float openvino": 1.0, "int8 openvino": 1.0}))
    assert step.reason.startswith("not faster: int8 in openvino and float in openvino: same within 2 %")


def test_the_cause_of_a_missing_speed_up_is_measured() -> None:
    times = {("conv", "int8"): 0.3, ("s", "float"): 0.5, ("conv", "conversion"): 0.2}
    profile = Profile((make_model_profile({("conv", "float"): 1.0}, "float"), make_model_profile(times)))
    latency = replace(make_latency({"float openvino": 1.0, "int8 openvino": 1.25}), profile=profile)
    assert latency.to_json()["time_by_precision"] == {"int8": 0.3, "float": 0.5, "conversion": 0.2, "transfer": 0.0}
    step = recommend_after(latency=latency)
    expected = "30 % of the time of its ops is in int8, 50 % in float, 20 % in conversions, above all s (S)"
    assert expected in step.reason
    assert "outweigh" not in step.reason


def test_a_good_model_leads_to_the_check_that_is_left() -> None:
    assert recommend_after(accuracy=GOOD).command == "quantkit benchmark digits OUTPUT.onnx"
    further = recommend_after(accuracy=GOOD, latency=FASTER)
    assert further.command == "quantkit evaluate OUTPUT.onnx --reference digits --data DATA"
    checked = recommend_after(accuracy=GOOD, latency=FASTER, held_out="others")
    assert checked.command == "quantkit optimize digits -o OUTPUT_best --data images --held-out others"
    assert recommend_after(accuracy=AccuracyReport(failures=("no kernel",))).command == "quantkit doctor"


def fallback(op: str, reason: str, *, is_layer: bool = True) -> FloatFallback:
    return FloatFallback("n", op, reason, 1, is_layer)


@pytest.mark.parametrize(
    ("fallbacks", "reason", "command"),
    [
        ([fallback("Softmax", "?", is_layer=False)], "the model has no convolution or matrix product", "optimize"),
        ([fallback("Gemm", "alpha")], "no layer is int8: alpha", "--precisions float32,bfloat16"),
        ([fallback("Gemm", "alpha")] * 2 + [fallback("Conv", "b")], "no layer is int8: alpha (2 of 3 layers)", ""),
        ([fallback("LSTM", "no kernel: --weights-only stores it")], "no layer is int8: no kernel", "--weights-only"),
    ],
)
def test_a_model_without_int8_layers_leads_to_the_reason(
    fallbacks: list[FloatFallback], reason: str, command: str
) -> None:
    """Two equal models are not compared, and no step quantizes the same layers again."""
    step = recommend_after(census=Census({}, 0, tuple(fallbacks), 0, 1, 0), latency=SLOWER, accuracy=GOOD)
    assert step.reason.startswith(reason)
    assert command in step.command
    assert "faster" not in step.reason
    assert "--calibration" not in step.command


def test_the_fastest_runtimes_are_compared() -> None:
    latencies = {"float openvino": 1.0, "int8 openvino": 0.9, "float onnxruntime": 0.5, "int8 onnxruntime": 0.7}
    step = recommend_after(latency=make_latency(latencies))
    assert step.reason.startswith("not faster: int8 in onnxruntime and float in onnxruntime: 0.71x as fast")


def test_another_runtime_that_is_faster_leads_to_its_target() -> None:
    step = recommend_after(latency=make_latency({"float litert": 0.1, "float openvino": 1.0, "int8 openvino": 0.5}))
    assert "float in litert takes 0.100 ms and int8 in openvino takes 0.500 ms" in step.reason
    assert "--target litert" in step.command


@pytest.mark.parametrize("isa", [(), ("avx512_bf16",)])
def test_a_low_agreement_leads_to_max_drop_or_bfloat16(isa: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    host, machine = import_module("quantkit.quantization.workflow.host"), this_machine()
    monkeypatch.setattr(host, "this_machine", lambda: replace(machine, isa=isa))
    low = AccuracyReport(ClassificationMetrics(100, None, None, Proportion(70, 100), 0.1))
    step = recommend_after(accuracy=low)
    assert ("bfloat16" in step.reason and "quantkit evaluate" in step.command) == bool(isa)
    assert isa or "--max-drop 0.01" in step.command
    litert = recommend_after("litert", accuracy=low)
    assert litert is not None
    assert "--max-drop" in litert.command
    assert "--max-drop" not in recommend_after(accuracy=GOOD).command


def commands_after(**options: Any) -> Commands:
    return Commands("model.pb", find_target("eightbit"), Options(None, output=Path("out.pb"), **options))


def test_the_next_command_repeats_the_flags_of_this_one() -> None:
    commands = commands_after(calibration="my images", inputs=("a", "b"), input_mean=0.0, limit=30)
    assert commands.quantize_again("tensorflow") == (
        "quantkit quantize model.pb -o out_tensorflow.pb --target tensorflow --calibration 'my images' --limit 30 "
        "--inputs a,b --input-mean 0.0"
    )
    assert " -o out_onnx.onnx --target onnx " in commands.quantize_again("onnx")
    assert " -o out_litert.tflite --target litert " in commands.quantize_again("litert")
    assert commands.evaluate("onnxruntime") == (
        "quantkit evaluate model.pb@onnxruntime --reference model.pb --data 'my images' --input-mean 0.0"
    )
    assert "--ranges r.json" in commands_after(ranges="r.json").quantize("onnx")
    assert commands_after(weights_only=True, held_out="others").data == "others"
    assert "--calibration DATA" in commands_after(weights_only=True).quantize("onnx")


def test_benchmark_commands_have_the_sizes_of_dynamic_inputs() -> None:
    """Without data, a benchmark of dynamic inputs needs their sizes."""
    shapes = {"ids": (1, 16), "mask": (1, 16)}
    commands = Commands("text.onnx", find_target("onnx"), Options(None, output=Path("out.onnx")), shapes=shapes)
    sizes = "--input-shape ids:1x16 --input-shape mask:1x16"
    assert commands.benchmark("openvino", "litert") == f"quantkit benchmark text.onnx@openvino out.onnx@litert {sizes}"
    assert sizes not in commands.compare()
