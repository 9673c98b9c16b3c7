from dataclasses import replace
from functools import cache

import pytest

from quantkit.benchmark.speedup import Speedup
from quantkit.quantization import Scheme
from quantkit.quantization.census import Census, FloatFallback
from quantkit.quantization.ranges import Provenance
from quantkit.quantization.report import Latency, QuantizationReport


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


def test_html_consists_of_tables_with_escaped_cells() -> None:
    page = report()._repr_html_()
    assert page.count("<table>") == page.count("</table>") == 3
    assert "<tr><td>Conv2D</td><td>2</td><td></td></tr>" in page
    assert "<td>a&lt;b&gt;</td><td>Softmax</td><td>0.2 million</td><td>no int8 kernel &amp; no data</td>" in page
    assert "<td>int8 fraction of the MACs</td><td>90.0 %</td>" in page
    assert "<td>model</td><td>net&lt;1&gt;</td>" in page
    for text in ("<b>", "<1>", "<x>", "<max", "<them>"):
        assert text not in page


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [((0.16, 0.2), "0.16 -> 0.20 ms"), ((1.25, 0.014), "1.250 -> 0.014 ms"), ((120.0, 30.04), "120.0 -> 30.0 ms")],
)
def test_latencies_have_the_same_number_of_decimals(milliseconds: tuple[float, float], text: str) -> None:
    latency = Latency(Speedup(1.2, 1.1, 1.3, True), milliseconds)
    measured = replace(report(), latency=latency)
    assert text in str(measured)
    assert f"<td>{text.replace('>', '&gt;')}</td>" in measured._repr_html_()
