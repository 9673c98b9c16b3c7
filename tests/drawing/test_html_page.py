"""Pages of reports: self-contained, safe for any text, and equal in a notebook."""

import base64
import re
from hashlib import sha256
from pathlib import Path

from quantkit import drawing
from quantkit.drawing import TimeSeries, html_body, html_code, html_list, html_page, html_section, html_table
from quantkit.drawing.html_page import NUM_SERIES

HOSTILE = '</style><script>alert(1)</script>"&'


def test_page_allows_no_script_and_no_other_file() -> None:
    page = html_page(HOSTILE, [html_list([HOSTILE]), html_table([HOSTILE], [[HOSTILE]]), html_section(HOSTILE)])
    assert "<script" not in page
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in page
    assert page.count("</style>") == 1
    assert page.count("&lt;/style&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&amp;") == 5
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_policy_names_the_script_of_the_page() -> None:
    digest = base64.b64encode(sha256(b"f()").digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html_page("", [], script="f()")


def test_notebook_and_page_have_the_same_style() -> None:
    body, page = html_body(["<p>a</p>"]), html_page("", ["<p>a</p>"], style=".b {}")
    (style,) = re.findall("<style>(.*)</style>", body, re.DOTALL)
    assert style in page
    assert "prefers-color-scheme: dark" in style
    assert ".b {}" in page


def test_rules_of_the_style_do_not_reach_other_parts_of_a_notebook() -> None:
    for file in ("colours.css", "page.css"):
        text = (Path(drawing.__file__).parent / file).read_text()
        selectors = re.findall(r"(?:^|[}{])\s*([^@{}]+?)\s*{", re.sub(r"@media[^{]*{", "", text))
        assert len(selectors) > 5
        parts = [part.strip() for selector in selectors for part in selector.split(",")]
        assert not [part for part in parts if ".quantkit" not in part]


def test_each_series_has_a_colour() -> None:
    text = (Path(drawing.__file__).parent / "colours.css").read_text()
    assert {text.count(f"--series-{number}: ") for number in range(NUM_SERIES)} == {2}
    assert {text.count(f".series-{number} ") for number in range(NUM_SERIES)} == {1}


def test_table_aligns_numbers_and_marks_rows() -> None:
    table = html_table(("model", "ms"), [("a", 1.5), ("b", 2)], numbers=(1,), marked=(0,))
    assert '<th>model</th><th class="number">ms</th>' in table
    assert '<tr class="marked"><td>a</td><td class="number">1.5</td></tr>' in table
    assert '<tr><td>b</td><td class="number">2</td></tr>' in table


def test_code_keeps_its_lines() -> None:
    assert html_code("if a < b:\n    c()\n") == "<pre>if a &lt; b:\n    c()</pre>"


def test_collapsed_section_is_a_details_element() -> None:
    assert html_section("a", "<p>b</p>", is_collapsed=True).startswith('<details class="part"><summary><h2>a</h2>')
    assert html_section("a", "<p>b</p>") == "<section><h2>a</h2>\n<p>b</p>\n</section>"


def test_time_series_has_gaps_and_texts_of_fixed_size() -> None:
    chart = TimeSeries("memory", "MB", (0.0, 1.0, 2.0, 3.0), {"a": (1.0, None, 2.0, 4.0), "b": (0.0,) * 4})
    paths = re.findall(r'<path class="curve series-(\d)" d="([^"]*)">', chart.svg())
    assert [number for number, _ in paths] == ["0", "1"]
    assert [path.count("M") for _, path in paths] == [2, 1]
    # Only the plot is stretched; the outer element has no scale.
    assert re.match(r'<svg class="chart" height="\d+" role="img"', chart.svg())
    assert all("%" in x for x in re.findall(r'<text[^>]* x="([^"]*)"', chart.svg()))


def test_many_samples_are_averaged_and_parts_of_a_whole_are_stacked() -> None:
    seconds = [0.5 * number for number in range(1, 41)]
    lines = {
        "running": [100.0 * (number % 2) for number in range(40)],
        "lock": [100.0 - 100.0 * (number % 2) for number in range(40)],
    }
    chart = TimeSeries(
        "run states", "% of the time", seconds, lines, 100.0, (5.0, 15.0), is_stacked=True
    ).average_samples()
    assert len(chart.seconds) == 16
    assert chart.resolution == "Each point is the mean of 1.2 s."
    assert all(20 <= value <= 80 for line in chart.lines.values() for value in line if value is not None)
    svg = chart.svg()
    assert svg.count('<path class="fill series-') == 2
    assert svg.count('<rect class="faded"') == 2
    assert "time since the start" in svg
    assert TimeSeries("a", "MB", seconds[:9], {"a": seconds[:9]}).average_samples().resolution == ""


def test_tables_show_that_they_scroll() -> None:
    style = (Path(drawing.__file__).parent / "page.css").read_text()
    (rule,) = re.findall(r"\.quantkit \.wide {([^}]*scrollbar[^}]*)}", style)
    assert "overflow-x: auto" in rule
    assert rule.count("local") == rule.count("scroll;") + rule.count("scroll,") == 2  # covers move, shadows stay
    assert '<div class="wide"><table>' in html_table(["a"], [["b"]])
