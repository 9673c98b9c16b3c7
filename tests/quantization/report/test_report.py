from dataclasses import replace
from functools import cache

import pytest
from measurements import make_latency

from quantkit.benchmark.results.report import Benchmark, BenchmarkRow, Failure
from quantkit.evaluation.classification_metrics import ClassificationMetrics, Proportion
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.formats.sizes import format_size
from quantkit.quantization import Scheme
from quantkit.quantization.ranges import Provenance
from quantkit.quantization.report import AccuracyReport, Latency, QuantizationReport
from quantkit.quantization.report.census import Census, FloatFallback


@cache
def report() -> QuantizationReport:
    """Return a report whose names contain HTML."""
    fallbacks = (FloatFallback("a<b>", "Softmax", "no int8 kernel & no data", 200_000),)
    census = Census({"Conv2D": (2, 0), "Soft<max": (0, 1)}, 2, fallbacks, 900, 100, 2)
    return QuantizationReport(
        "net<1>", None, Scheme(), Provenance(), ("range of <x> is constant",), 2, census, 1000, 4000, "keep <them>"
    )


def test_repr_is_one_short_line() -> None:
    assert repr(report()).startswith("QuantizationReport('net<1>', target='onnx', ")
    assert len(repr(report())) < 80


def test_html_is_the_escaped_text() -> None:
    page = report()._repr_html_()
    assert "  float fallback: a&lt;b&gt; (Softmax, 0.2 million MACs): no int8 kernel &amp; no data" in page
    assert "90.0 % of the MACs are int8" in page
    assert "net&lt;1&gt;" in page
    for text in ("<b>", "<1>", "<x>", "<max", "<them>"):
        assert text not in page


def test_agreement_and_accuracy_have_a_line_each() -> None:
    metrics = ClassificationMetrics(50, Proportion(40, 50), None, Proportion(49, 50), 0.125)
    accuracy = AccuracyReport(metrics, samples="50 images", float_top1=Proportion(45, 50))
    measured = replace(report(), accuracy=accuracy)
    lines = str(measured).splitlines()
    agreement = f"agreement with the float model {Proportion(49, 50)}"
    assert f"{agreement}, KL 0.1250, on 50 images" in lines
    assert f"top-1 {Proportion(40, 50)}, float model {Proportion(45, 50)}" in lines
    doubtful = str(replace(measured, accuracy=replace(accuracy, doubts=("outputs barely vary",)))).splitlines()
    assert f"{agreement}, KL 0.1250, on 50 images (meaningless: see the warnings)" in doubtful
    document = measured.to_json()
    assert (document["quality"]["agreement"]["value"], document["quality"]["samples"]) == (0.98, 50)
    assert document["sqnr"] is None
    assert report().to_json()["quality"] is None
    assert "agreement" not in str(report())


def test_other_outputs_have_their_sqnr() -> None:
    sqnr = OutputSqnr(7, {"boxes": 31.5}, not_finite=2)
    measured = replace(report(), accuracy=AccuracyReport(sqnr, samples="7 images"))
    assert f"{sqnr}, on 7 images" in str(measured)
    assert "  2 outputs contain NaN or infinity" in str(measured)
    assert measured.to_json()["sqnr"]["sqnr"] == {"boxes": 31.5}
    assert measured.to_json()["quality"] is None


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [((0.16, 0.2), "0.16 -> 0.20 ms"), ((1.25, 0.014), "1.250 -> 0.014 ms"), ((120.0, 30.04), "120.0 -> 30.0 ms")],
)
def test_latencies_have_the_same_number_of_decimals(milliseconds: tuple[float, float], text: str) -> None:
    before, after = milliseconds
    measured = replace(report(), latency=make_latency({"float openvino": before, "int8 openvino": after}))
    assert text in str(measured)


def test_each_speed_up_names_its_runtime() -> None:
    """All installed runtimes of the target are measured, and one line compares them."""
    latencies = {"float openvino": 1.0, "int8 openvino": 0.5, "float onnxruntime": 0.3, "int8 onnxruntime": 0.4}
    measured = replace(report(), latency=make_latency(latencies | {"float litert": 0.2}))
    text = str(measured)
    assert "in openvino 1: 2.00x as fast (" in text
    assert "in onnxruntime 1: 0.75x as fast (" in text
    line = (
        "on this machine, fastest first: float in litert 0.200 ms, float in onnxruntime 0.300 ms, "
        "int8 in onnxruntime 0.400 ms, int8 in openvino 0.500 ms, float in openvino 1.000 ms"
    )
    assert line in text.splitlines()
    document = measured.to_json()
    assert document["runtime"]["name"] == "onnxruntime"
    assert document["speed_up"]["ratio"] == pytest.approx(0.75)
    assert document["speed_ups"]["openvino"]["outcome"] == "faster"
    assert document["overall_speed_up"]["ratio"] == pytest.approx(0.5)
    assert document["latencies"][4] == {"model": "float", "runtime": "litert", "milliseconds": 0.2, "failure": None}


@pytest.mark.parametrize(
    ("macs", "unknown", "executed", "lines"),
    [
        ((0, 0), {"MatMul": 3}, {}, ["2 of 3 layers are int8 (MACs unknown for 3 MatMul); 2 quantize"]),
        (
            (300, 100),
            {"Loop": 1},
            {"openvino": 0.5},
            [
                "2 of 3 layers are int8, 75.0 % of the known MACs (MACs unknown for 1 Loop); 2 quantize",
                "OpenVINO: 50.0 % of the known MACs",
            ],
        ),
        ((0, 100), {"MatMul": 2}, {}, ["2 of 3 layers are int8 (MACs unknown for 2 MatMul); 2 quantize"]),
    ],
)
def test_unknown_macs_are_not_zero(
    macs: tuple[int, int], unknown: dict[str, int], executed: dict[str, float], lines: list[str]
) -> None:
    layer = FloatFallback("m", "MatMul", "the weights are computed, not constant", None, is_layer=True)
    text = str(replace(report(), census=Census({}, 2, (layer,), *macs, 2, unknown, executed)))
    assert all(any(line.startswith(start) for line in text.splitlines()) for start in lines)
    assert "0.0 %" not in text.replace("50.0 %", "")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [(4000, 1000, "4.0 times smaller"), (5136600, 6505275, "1.3 times larger"), (0, 90, "90.0 times larger")],
)
def test_both_sizes_are_stated(before: int, after: int, text: str) -> None:
    line = str(replace(report(), num_bytes=after, float_num_bytes=before)).splitlines()[0]
    assert f"{text} than the float model ({format_size(before)})" in line
    assert f": {format_size(after)}, " in line


def test_equal_rows_are_named() -> None:
    latency = make_latency({"float openvino": 1.0, "int8 openvino": 0.98}, spread=0.2)
    text = str(replace(report(), latency=latency))
    assert "int8 in openvino is not shown to be faster than float in openvino" in text
    assert "on this machine, by median: int8 in openvino" in text
    several = make_latency({"float openvino": 1.0, "int8 openvino": 0.98, "float onnxruntime": 0.99}, spread=0.2)
    text = str(replace(report(), latency=several))
    assert "not shown to be faster than float in openvino or float in onnxruntime" in text
    assert "fastest first" not in text


def test_a_runtime_that_fails_is_named() -> None:
    latency = make_latency({"float openvino": 1.0, "int8 openvino": 0.5})
    assert latency.benchmark is not None
    failed = BenchmarkRow("int8", "onnxruntime", Failure("no kernel for Foo"))
    measured = replace(report(), latency=Latency(Benchmark((*latency.benchmark.rows, failed))))
    assert "  int8 in onnxruntime not measured: no kernel for Foo" in str(measured)
    assert measured.to_json()["latencies"][2]["failure"] == "no kernel for Foo"


@pytest.mark.parametrize(
    ("latencies", "line"),
    [
        ((1.0, 0.5), "int8 is 2.00x as fast (95 % CI 2.00-2.00): 0.500 ms in openvino, float 1.000 ms in openvino"),
        ((1.0, 1.25), "keep the float model: 1.000 ms in openvino, int8 1.250 ms in openvino: 0.80x as fast"),
        ((1.0, 1.0), "keep the float model: 1.000 ms in openvino, int8 1.000 ms in openvino: same within 2 %"),
    ],
)
def test_the_first_line_names_the_fastest_model(latencies: tuple[float, float], line: str) -> None:
    before, after = latencies
    measured = replace(report(), latency=make_latency({"float openvino": before, "int8 openvino": after}))
    assert str(measured).splitlines()[0].startswith(line)
    assert ("keep the float model in this runtime" in str(measured)) is (after >= before)
    weights_only = replace(measured, scheme=Scheme(weights_only=True))
    assert "times smaller" in str(weights_only).splitlines()[0]
