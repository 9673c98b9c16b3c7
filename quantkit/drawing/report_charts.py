"""Charts of measurements as SVG: latency with intervals, distributions, layers side by side, and a roofline.

Positions are percentages of the width, and texts have a fixed size: a chart fills a wide window and a narrow one, and
its texts stay readable. The colours are those of `colours.css`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from statistics import median

from quantkit.drawing.html_page import read_style
from quantkit.drawing.svg import LETTER_WIDTH, escape_text

# Width of an SVG file in pixels; a chart in a page has the width of the page.
WIDTH, MARGIN = 760, 20
LINE, BAR, THIN_BAR, GAP = 18, 14, 15, 10
# Largest width of a bar in percent; the value is at its right.
BAR_PERCENT = 70
# Least width of the longest bar in percent, next to a very long text.
LEAST_PERCENT = 10
# Width of the narrowest page, and of a letter, in pixels.
NARROW, LETTER = 360, 7.5
# Largest drawn sample of a distribution, relative to the median: other programs delay some calls much longer.
MAX_SPREAD = 3.0
# Largest drawn end of an interval, relative to the largest median; the title of the bar has the interval.
MAX_INTERVAL = 1.5
BINS = 60
MAX_LETTERS = 46


@dataclass(frozen=True)
class ChartSeries:
    """Name and appearance of bars or points.

    Attributes:
        name: name in the key.
        colour: index of the colour.
        opacity: 1 for the full colour.
    """

    name: str
    colour: int
    opacity: float = 1.0

    @property
    def attributes(self) -> str:
        """Attributes of an SVG element with this appearance."""
        return f'class="fill series-{self.colour}" fill-opacity="{self.opacity:.2f}"'


@dataclass(frozen=True)
class Bar:
    """Median with its interval.

    Attributes:
        name: text above the bar.
        series: appearance.
        value, low, high: median, and the limits of its interval.
        text: the value with its symbol.
        note: text after the value.
        mark: text after the name of an emphasized bar; empty without emphasis.
    """

    name: str
    series: ChartSeries
    value: float
    low: float
    high: float
    text: str
    note: str = ""
    mark: str = ""


@dataclass(frozen=True)
class RooflinePoint:
    """Layer of a roofline.

    Attributes:
        name: layer.
        series: appearance.
        intensity: operations per byte.
        rate: operations per second.
    """

    name: str
    series: ChartSeries
    intensity: float
    rate: float


def html_key(series: Sequence[ChartSeries]) -> str:
    """Return the names of series with their colours."""
    items = "".join(
        f'<span class="series-{each.colour}"><i style="opacity:{each.opacity:.2f}"></i>{escape_text(each.name)}</span>'
        for each in series
    )
    return f'<p class="key">{items}</p>'


def draw_intervals(bars: Sequence[Bar]) -> str:
    """Return bars of medians with their intervals, from top to bottom."""
    largest = MAX_INTERVAL * max((bar.value for bar in bars), default=0.0)
    ends = ((min(bar.high, largest), _room(f"→ {bar.text}  {bar.note}")) for bar in bars)
    scale = min((room / end for end, room in ends if end), default=1.0)
    parts, top = [], 0.0
    for bar in bars:
        title = f"{bar.name}: {bar.text} ({bar.low:.4g} to {bar.high:.4g})"
        middle = top + LINE + BAR / 2
        kind = "strong" if bar.mark else ""
        end, arrow = min(bar.high, largest) * scale, "→ " if bar.high > largest else ""
        parts += [
            _text(
                shorten_name(bar.name), 0, top + 13, kind, note=f"  {bar.mark}" if bar.mark else "", note_kind="mark"
            ),
            _rect(0, bar.value * scale, top + LINE, BAR, bar.series.attributes, title),
            f'<line class="whisker" x1="{bar.low * scale:.2f}%" x2="{end:.2f}%" y1="{middle}" y2="{middle}"/>',
            _text(f"{arrow}{bar.text}", end, middle + 4, kind, dx=7, note=f"  {bar.note}"),
        ]
        top += LINE + BAR + GAP
    return _svg(parts, top)


def draw_distributions(rows: Sequence[tuple[str, ChartSeries, Sequence[float]]]) -> str:
    """Return one histogram of the samples relative to their median for each row, with a common axis.

    Args:
        rows: name, appearance and samples; the largest hundredth of all samples, and those above `MAX_SPREAD` times
            the median, are at the right end.
    """
    rows = [(name, series, [value / median(samples) for value in samples]) for name, series, samples in rows if samples]
    values = sorted(value for *_, samples in rows for value in samples)
    if not values:
        return ""
    largest = min(values[min(len(values) - 1, floor(0.99 * len(values)))], MAX_SPREAD)
    low, high = values[0], max(largest, values[0] * 1.001)
    parts, top, height, width = [], 0.0, 26, 100 / BINS
    for name, series, samples in rows:
        counts = [0] * BINS
        for value in samples:
            counts[min(int((value - low) / (high - low) * BINS), BINS - 1)] += 1
        bottom = top + LINE + height
        parts.append(_text(shorten_name(name), 0, top + 13))
        for index, count in enumerate(counts):
            if count:
                size = count / max(counts) * height
                parts.append(_rect(index * width, 0.9 * width, bottom - size, size, series.attributes))
        middle = 100 * (1 - low) / (high - low)
        parts += [
            f'<line class="rule" x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/>',
            f'<line class="whisker" x1="{middle:.2f}%" x2="{middle:.2f}%" y1="{top + LINE}" y2="{bottom + 3}"/>',
        ]
        top = bottom + GAP
    parts += [
        _text(f"{low:.2f} of the median", 0, top + 12, "faint"),
        _text(f"{high:.2f}{' and more' if values[-1] > high else ''}", 100, top + 12, "faint end"),
    ]
    return _svg(parts, top + LINE)


def draw_layers(rows: Sequence[tuple[str, Sequence[float]]], series: Sequence[ChartSeries], measure: str) -> str:
    """Return the values of each layer as one bar for each model.

    Args:
        rows: layer, and the value of each model.
        series: appearance of each model.
        measure: symbol of the values, for example ms.
    """
    scale = BAR_PERCENT / (max((max(values) for _, values in rows), default=0.0) or 1.0)
    parts, top = [], 0.0
    for name, values in rows:
        parts.append(_text(shorten_name(name), 0, top + 13))
        top += LINE
        for each, value in zip(series, values, strict=True):
            text = f"{value:.3g} {measure}" if value else "-"
            parts += [
                _rect(0, value * scale, top, THIN_BAR, each.attributes),
                _text(text, value * scale, top + 12, "faint", dx=6),
            ]
            top += THIN_BAR + 2
        top += GAP
    return _svg(parts, top)


def draw_roofline(points: Sequence[RooflinePoint], peaks: Sequence[tuple[str, float]], bandwidth: float) -> str:
    """Return operations per second over operations per byte on logarithmic axes, below the measured peaks.

    Args:
        points: layers.
        peaks: name and operations per second of each peak.
        bandwidth: bytes per second.
    """
    if not points or not peaks:
        return ""
    left, right, top, bottom = 18.0, 98.0, 10, 300
    x_range = _decades([point.intensity for point in points] + [rate / bandwidth for _, rate in peaks])
    y_range = _decades([point.rate for point in points] + [rate for _, rate in peaks])

    def x_of(value: float) -> float:
        return left + (log10(value) - x_range[0]) / (x_range[1] - x_range[0]) * (right - left)

    def y_of(value: float) -> float:
        return bottom - (log10(value) - y_range[0]) / (y_range[1] - y_range[0]) * (bottom - top)

    def line(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
        (x, y), (to_x, to_y) = start, end
        return f'<line class="{kind}" x1="{x:.2f}%" y1="{y:.1f}" x2="{to_x:.2f}%" y2="{to_y:.1f}"/>'

    parts = []
    for exponent in range(y_range[0], y_range[1] + 1):
        y = y_of(10.0**exponent)
        parts += [
            line((left, y), (right, y), "rule"),
            _text(f"{10.0 ** (exponent - 9):g} G/s", left, y + 4, "faint end", dx=-6),
        ]
    for exponent in range(x_range[0], x_range[1] + 1):
        parts.append(_text(f"{10.0**exponent:g}", x_of(10.0**exponent), bottom + 18, "faint middle"))
    for name, rate in peaks:
        is_highest = rate == max(other for _, other in peaks)
        start = max(10.0 ** x_range[0], 10.0 ** y_range[0] / bandwidth)
        ridge = (x_of(rate / bandwidth), y_of(rate))
        parts += [
            line((x_of(start), y_of(start * bandwidth)), ridge, "whisker"),
            line(ridge, (right, y_of(rate)), "whisker"),
            _text(name, right, y_of(rate) + (-5 if is_highest else 14), "end"),
        ]
    for point in points:
        title = f"{point.name}: {point.rate / 1e9:.3g} G operations/s, {point.intensity:.3g} operations/byte"
        parts.append(
            f'<circle cx="{x_of(point.intensity):.2f}%" cy="{y_of(point.rate):.1f}" r="4.5" {point.series.attributes}>'
            f"<title>{escape_text(title)}</title></circle>"
        )
    parts.append(_text("operations per byte", (left + right) / 2, bottom + 36, "middle"))
    return _svg(parts, bottom + 42)


def svg_document(title: str, subtitle: str, key: Sequence[ChartSeries], chart: str) -> str:
    """Return a chart as an SVG file with its colours, light and dark.

    Args:
        title, subtitle: lines above the chart.
        key: series of the chart.
        chart: result of another function of this module.
    """
    height = float(chart.split('height="', 1)[1].split('"', 1)[0])
    parts = [
        '<rect class="back" width="100%" height="100%" rx="8"/>',
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}">',
        _text(title, 0, 14, "title"),
        _text(subtitle, 0, 34, "faint"),
        *_svg_key(key, 46),
        "</svg>",
        f'<svg x="{MARGIN}" y="{MARGIN + 78}" width="{WIDTH - 2 * MARGIN}">{chart}</svg>',
    ]
    size = f'width="{WIDTH}" height="{height + 2 * MARGIN + 78:.0f}"'
    style = f"<style>\n{read_style('colours.css')}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="quantkit" {size} role="img">'
    return "\n".join([head, style, *parts, "</svg>\n"])


def _svg_key(series: Sequence[ChartSeries], top: float) -> Iterator[str]:
    left = 0.0
    for each in series:
        yield f'<rect x="{left:.0f}" y="{top}" width="11" height="11" rx="2" {each.attributes}/>'
        yield f'<text x="{left + 17:.0f}" y="{top + 10}">{escape_text(each.name)}</text>'
        left += 40 + LETTER_WIDTH * len(each.name)


def _svg(parts: Sequence[str], height: float) -> str:
    return "\n".join([f'<svg class="chart" height="{height:.0f}" role="img">', *parts, "</svg>"])


def _rect(left: float, width: float, top: float, height: float, attributes: str, title: str = "") -> str:
    """Return a rectangle; ``left`` and ``width`` are percentages."""
    size = f'x="{left:.2f}%" width="{width:.2f}%" y="{top:.1f}" height="{height:.1f}"'
    return f"<rect {size} {attributes}>{f'<title>{escape_text(title)}</title>' if title else ''}</rect>"


def _text(
    text: str, left: float, bottom: float, kind: str = "", *, dx: float = 0, note: str = "", note_kind: str = "faint"
) -> str:
    """Return a text that begins at a percentage of the width, and a note after it."""
    own = f'<tspan class="{note_kind}" xml:space="preserve">{escape_text(note)}</tspan>' if note.strip() else ""
    return f'<text class="{kind}" x="{left:.2f}%" y="{bottom:.1f}" dx="{dx}">{escape_text(text)}{own}</text>'


def _room(text: str) -> float:
    """Return the width in percent that a text at the right of a bar leaves on the narrowest page."""
    return max(LEAST_PERCENT, min(BAR_PERCENT, 100 * (1 - (7 + LETTER * len(text)) / NARROW)))


def shorten_name(name: str) -> str:
    """Return the end of a long name, where names differ."""
    return name if len(name) <= MAX_LETTERS else f"…{name[1 - MAX_LETTERS :]}"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(positive))), ceil(log10(max(positive)))
    return low, max(high, low + 1)
