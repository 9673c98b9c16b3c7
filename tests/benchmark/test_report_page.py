"""The HTML page and the SVG chart of a benchmark and a profile."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from measurements import make_measurement, make_model_profile

from quantkit.benchmark.profiling import Profile
from quantkit.benchmark.profiling.layer_work import LayerWork, Peaks
from quantkit.benchmark.report_page import command_line, median_chart, render_page, save_page
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow
from quantkit.drawing.report_charts import RooflinePoint, draw_distributions, draw_intervals, draw_roofline

REASON = Reason("boundaries", 0.001, "1 of 2 ms in <conversions>", "quantkit quantize x -o y")
VOID = {"meta", "br"}


class Tags(HTMLParser):
    """Checker of the nesting of tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        assert not any(name in ("src", "href") for name, _ in attrs), "the page is not self-contained"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def make_benchmark() -> Benchmark:
    rows = [
        BenchmarkRow("float.pb", "tensorflow", make_measurement([0.02, 0.021] * 9, 3, 3, model="float <b>.pb")),
        BenchmarkRow("int8.onnx", "openvino", make_measurement([0.01, 0.011] * 9, 3, 3, model="int8.onnx", intra_op=2)),
    ]
    return Benchmark(tuple(rows), reasons=(REASON,))


def make_profile() -> Profile:
    models = [make_model_profile({("conv <1>", "int8"): 0.01, ("pool", "float"): 0.002}, name) for name in ("a", "b")]
    rows = tuple(replace(row, work=LayerWork(10**8, 10**6)) for row in models[1].rows)
    return Profile((models[0], replace(models[1], rows=rows)), {"openvino": Peaks(1e11, 4e11, 1e10)}, reasons=(REASON,))


def test_page_is_complete_and_well_formed() -> None:
    page = render_page(make_benchmark(), make_profile())
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.tags.count("svg") == 4
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    limits = "What limits the int8 model"
    expected = ["Latency", "Distributions", limits, "Machine", "Commands", "Layers", "Roofline in openvino", limits]
    assert headings == expected
    assert "fastest on this machine" in page
    assert "float &lt;b&gt;.pb" in page
    assert "<b>" not in page
    assert "conv &lt;1&gt;" in page
    for feature in ("prefers-color-scheme: dark", "@media print", "max-width: 40rem", 'name="viewport"'):
        assert feature in page
    assert "http:" not in re.sub(r"xmlns=\S+", "", page)
    assert "https:" not in page


def test_commands_repeat_the_measurements() -> None:
    contexts = [measurement.context for measurement in make_benchmark().measurements]
    contexts[0] = replace(contexts[0], intra_op=1, cpus=(0, 1), seed=3, environment={"KMP_BLOCKTIME": "1"})
    assert command_line(contexts) == (
        "KMP_BLOCKTIME=1 quantkit benchmark 'float <b>.pb@reference' int8.onnx@reference "
        "--intra-op 1 --cpus 0,1 --seed 3"
    )


def test_chart_is_an_svg_file(tmp_path: Path) -> None:
    save_page(tmp_path / "chart.svg", make_benchmark())
    text = (tmp_path / "chart.svg").read_text()
    assert text == median_chart(make_benchmark())
    root = ElementTree.fromstring(text)
    namespace = "{http://www.w3.org/2000/svg}"
    bars = root.findall(f"{namespace}rect")
    assert len(bars) == 2
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert 1.8 < widths[0] / widths[1] < 2.1
    save_page(tmp_path / "page.html", profile=make_profile())
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_distribution_has_all_samples_and_the_median() -> None:
    chart = draw_distributions([("a", [1.0, 2.0, 2.0, 3.0]), ("b", [2.0])], "ms")
    assert chart.count("<rect") == 3 + 1
    assert draw_distributions([("a", [])], "ms") == ""
    assert draw_intervals([], "ms").count("<rect") == 0


def test_roofline_keeps_points_inside_the_axes() -> None:
    points = [RooflinePoint("conv", 0, 100.0, 5e10), RooflinePoint("pool", 1, 0.1, 1e8)]
    chart = draw_roofline(points, [("float peak", 1e11)], 1e10)
    centers = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.-]+)" cy="([\d.-]+)"', chart)]
    assert len(centers) == 2
    assert all(60 <= x <= 700 and 10 <= y <= 300 for x, y in centers)
    assert centers[0][0] > centers[1][0]
    assert centers[0][1] < centers[1][1]
    assert draw_roofline([], [("float peak", 1e11)], 1e10) == ""
