from pathlib import Path
from xml.etree import ElementTree

from quantkit.drawing.bar_chart import BarChart

CHART = BarChart("SQNR <of> b", "dB", (("first", 40.0), ("last\x00", 5.0)), frozenset({"last\x00"}), threshold=10.0)


def test_chart_is_valid_svg_with_a_bar_per_value(tmp_path: Path) -> None:
    CHART.save(tmp_path / "chart.svg")
    root = ElementTree.parse(tmp_path / "chart.svg").getroot()
    bars = root.findall("{http://www.w3.org/2000/svg}rect")
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert widths[0] == 8 * widths[1]
    assert bars[0].attrib["fill"] != bars[1].attrib["fill"]
    assert CHART._repr_svg_() == (tmp_path / "chart.svg").read_text(encoding="utf-8")


def test_chart_as_text_marks_highlighted_bars() -> None:
    title, first, last = str(CHART).splitlines()
    assert title == "SQNR <of> b"
    assert first.count("#") == 8 * last.count("#") == 40
    assert last.endswith("5.0 dB !")


def test_empty_chart_has_a_title_only() -> None:
    chart = BarChart("nothing", "dB", ())
    assert str(chart) == "nothing"
    assert "<rect" not in chart.svg()
