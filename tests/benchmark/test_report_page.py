"""The HTML page and the SVG chart of a benchmark and a profile."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from measurements import make_measurement, make_model_profile

from quantkit.benchmark import report_page
from quantkit.benchmark.profiling import Profile
from quantkit.benchmark.profiling.layer_work import LayerWork, Peaks
from quantkit.benchmark.report_page import format_command, median_chart, render_page, save_page
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow
from quantkit.drawing.report_charts import (
    LETTER,
    NARROW,
    Bar,
    ChartSeries,
    RooflinePoint,
    draw_distributions,
    draw_intervals,
    draw_layers,
    draw_roofline,
)
from quantkit.errors import UnavailableError

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
    slow = make_measurement([0.02, 0.021] * 9, 3, 3, model="float <b>.pb", runtime="tensorflow")
    fast = make_measurement([0.01, 0.011] * 9, 3, 3, model="int8.onnx", intra_op=2, runtime="openvino")
    rows = [BenchmarkRow("float.pb", "tensorflow", slow), BenchmarkRow("int8.onnx", "openvino", fast)]
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
    assert headings == [
        *("Latency of one call: median and 95 % interval", "Slowest layers", "Roofline in openvino"),
        *("What limits the int8 model", "Latency relative to its median", "Load time and memory", "Command", "Notes"),
    ]
    assert "<h1>int8.onnx in openvino, threads 2,.: 10.50 ms, 1.95x as fast as float &lt;b&gt;.pb in tensorflow" in page
    assert "<b>" not in page
    assert "conv &lt;1&gt;" in page
    assert page.count("1 of 2 ms in &lt;conversions&gt;") == 1
    for feature in ("prefers-color-scheme: dark", "@media print", "max-width: 40rem", 'name="viewport"'):
        assert feature in page
    assert "http:" not in re.sub(r"xmlns=\S+", "", page)
    assert "https:" not in page


def test_rows_are_sorted_and_the_fastest_is_marked() -> None:
    page = render_page(make_benchmark(), None)
    chart = page[page.index("<svg") : page.index("</svg>")]
    assert re.findall(r'<text class="(\w*)" x="0.00%"[^>]*>([^<]*)', chart) == [
        ("strong", "int8.onnx in openvino, threads 2,."),
        ("", "float &lt;b&gt;.pb in tensorflow"),
    ]
    assert re.findall(r"<tspan[^>]*>\s*([^<]*)", chart) == ["fastest", "1.95x", "baseline"]
    rows = re.findall(r"<tr( class=\"marked\")?><td>([^<]*)", page)
    assert rows == [(' class="marked"', "int8.onnx"), ("", "float.pb")] * 2


def test_colour_is_that_of_the_runtime() -> None:
    """In all charts, and on all pages: two models of one runtime have one hue, and two runtimes have two."""
    page = render_page(make_benchmark(), None)
    bars = re.findall(r'<rect [^>]*class="fill series-(\d)" fill-opacity="([\d.]+)"><title>([^:]*)', page)
    colours = {name.split(" in ")[1].split(",")[0]: colour for colour, _, name in bars}
    assert len(set(colours.values())) == 2
    assert colours["openvino"] == "0"
    assert {opacity for _, opacity, _ in bars} == {"1.00"}
    layers = render_page(None, make_profile())
    key = re.findall(r'<span class="series-(\d)"><i style="opacity:([\d.]+)"></i>([^<]*)', layers)[:2]
    assert key == [("0", "0.65", "a in openvino"), ("0", "1.00", "b in openvino")]
    assert set(re.findall(r"fill series-(\d)", layers)) == {"0"}
    other = BenchmarkRow("a", "another runtime", make_measurement([0.01] * 9, runtime="another runtime"))
    assert "series-5" in render_page(Benchmark((other,)), None)


def test_positions_are_relative_to_the_width_of_the_page() -> None:
    """No chart has a view box that scales its texts, or a bar beyond the right end."""
    page = render_page(make_benchmark(), make_profile())
    assert "viewBox" not in page
    ends = [float(x) + float(width) for x, width in re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', page)]
    assert len(ends) > 8
    assert max(ends) <= 100.01
    assert re.findall(r' x="[\d.]+"', page) == []


def test_notes_are_after_the_charts() -> None:
    page = render_page(make_benchmark(), make_profile())
    assert page.index("median: ms per call") > page.rindex("</svg>")
    assert page.index("Slowest layers") < page.index("Latency relative to its median")


def test_single_medians_are_not_tested_for_differences() -> None:
    rows = [
        BenchmarkRow(name, "openvino", make_measurement([value], model=name)) for name, value in (("a", 1), ("b", 9))
    ]
    page = render_page(Benchmark(tuple(rows)), None)
    assert "Not shown to be slower" not in page
    assert "single medians, without intervals" in page


def test_a_page_without_a_decision_has_no_fastest_row() -> None:
    seconds = [0.01, 0.02, 0.04, 0.08]
    rows = [BenchmarkRow(name, "openvino", make_measurement(seconds, 4, 4, model=name)) for name in ("a", "b")]
    page = render_page(Benchmark(tuple(rows)), None)
    (heading,) = re.findall("<h1>(.*?)</h1>", page)
    assert heading.endswith("the lowest median, not shown to be the fastest: latencies are unstable")
    assert "fastest</tspan>" not in page
    assert "lowest median</tspan>" in page


def test_times_of_the_profile_are_named() -> None:
    page = render_page(make_benchmark(), make_profile())
    section = page[page.index("Slowest layers") : page.index("Roofline in openvino")]
    assert "a run of its own" in section
    assert re.search(r"One call took [\d.]+ ms for a in openvino, [\d.]+ ms for b in openvino there", section)
    assert "a in openvino, ms</th><th>precision</th>" in section
    assert "a run of its own" in render_page(make_benchmark(), None)


def test_layers_above_the_peaks_are_explained() -> None:
    profile = make_profile()
    assert "Layers above the lines" not in render_page(None, profile)
    assert "Layers above the lines" in render_page(None, replace(profile, peaks={"openvino": Peaks(1e8, 2e8, 1e10)}))


def test_values_fit_their_bars_and_wide_intervals_are_cut() -> None:
    series = ChartSeries("a", 0)
    heights = re.findall(r'height="([\d.]+)" class="fill', draw_layers([("conv", [1.0, 2.0])], [series] * 2, "ms"))
    assert [float(height) >= 13 for height in heights] == [True, True]
    bars = [Bar("a", series, 2.0, 1.9, 138.0, "2 ms"), Bar("b", series, 6.0, 5.0, 7.0, "6 ms")]
    chart = draw_intervals(bars)
    widths = [float(width) for width in re.findall(r'width="([\d.]+)%" y', chart)]
    assert max(widths) > 40
    assert "→ 2 ms" in chart
    assert "→ 6 ms" not in chart


def test_texts_at_the_right_of_bars_fit_the_narrowest_page() -> None:
    bars = [
        Bar("a", ChartSeries("a", 0), 0.5, 0.4, 9.0, "0.5 ms", "drop unknown"),
        Bar("b", ChartSeries("a", 0), 0.1, 0.1, 0.1, "0.1 ms"),
    ]
    chart = draw_intervals(bars)
    texts = re.findall(r'<text class="[^"]*" x="([\d.]+)%"[^>]*dx="7"[^>]*>(.*?)</text>', chart)
    assert len(texts) == 2
    for position, text in texts:
        letters = len(re.sub("<.*?>", "", text))
        assert float(position) / 100 * NARROW + 7 + LETTER * letters <= NARROW


def test_a_page_without_layers_has_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise UnavailableError("the worker ended", hint="")

    monkeypatch.setattr(report_page, "profile_layers", fail)
    report_page.save_page_with_layers(tmp_path / "page.html", make_benchmark(), ["a.onnx"])
    assert "<li>layers are not measured: the worker ended</li>" in (tmp_path / "page.html").read_text()


def test_command_of_the_page_is_the_given_one() -> None:
    command = "quantkit benchmark ../a/float.onnx --html page.html"
    assert f"<pre>{command}</pre>" in render_page(make_benchmark(), None, command)


def test_commands_repeat_the_measurements() -> None:
    contexts = [measurement.context for measurement in make_benchmark().measurements]
    contexts[0] = replace(contexts[0], intra_op=1, cpus=(0, 1), seed=3, environment={"KMP_BLOCKTIME": "1"})
    assert format_command(contexts) == (
        "KMP_BLOCKTIME=1 quantkit benchmark 'float <b>.pb@tensorflow' int8.onnx@openvino "
        "--intra-op 1 --cpus 0,1 --seed 3"
    )


def test_chart_is_an_svg_file(tmp_path: Path) -> None:
    save_page(tmp_path / "chart.svg", make_benchmark())
    text = (tmp_path / "chart.svg").read_text()
    assert text == median_chart(make_benchmark())
    root = ElementTree.fromstring(text)
    bars = [bar for bar in root.iter("{http://www.w3.org/2000/svg}rect") if "%" in bar.attrib.get("x", "")]
    widths = [float(bar.attrib["width"].rstrip("%")) for bar in bars]
    assert len(widths) == 2
    assert 1.8 < widths[1] / widths[0] < 2.1
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(src|href)=|url\(|<script", text)
    save_page(tmp_path / "page.html", profile=make_profile())
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_distribution_has_all_samples_and_the_median() -> None:
    series = ChartSeries("a", 0)
    chart = draw_distributions([("a", series, [1.0, 2.0, 2.0, 3.0]), ("b", series, [2.0])])
    assert chart.count("<rect") == 3 + 1
    assert chart.count('class="whisker"') == 2
    assert "0.50 of the median" in chart
    assert ">1.50</text>" in chart
    disturbed = draw_distributions([("a", series, [1.0] * 50 + [40.0] * 50 + [1.0])])
    assert ">3.00 and more</text>" in disturbed
    assert draw_distributions([("a", series, [])]) == ""
    assert draw_intervals([]).count("<rect") == 0


def test_roofline_keeps_points_inside_the_axes() -> None:
    points = [
        RooflinePoint("conv", ChartSeries("a", 0), 100.0, 5e10),
        RooflinePoint("pool", ChartSeries("a", 0), 0.1, 1e8),
    ]
    chart = draw_roofline(points, [("float peak", 1e11)], 1e10)
    centers = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.-]+)%" cy="([\d.-]+)"', chart)]
    assert len(centers) == 2
    assert all(18 <= x <= 98 and 10 <= y <= 300 for x, y in centers)
    assert centers[0][0] > centers[1][0]
    assert centers[0][1] < centers[1][1]
    assert draw_roofline([], [("float peak", 1e11)], 1e10) == ""
