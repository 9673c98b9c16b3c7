"""Charts of measurements as SVG: latency with intervals, distributions, layers side by side, and a roofline.

The colours are those of `colours.css`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from statistics import median

from quantkit.drawing.html_page import read_style
from quantkit.drawing.svg import LETTER_WIDTH, escape_text

WIDTH, ROW_HEIGHT, GAP = 720, 26, 8
BINS = 60
MAX_LETTERS = 34


@dataclass(frozen=True)
class RooflinePoint:
    """Layer of a roofline.

    Attributes:
        name: layer.
        series: index of the model.
        intensity: operations per byte.
        rate: operations per second.
    """

    name: str
    series: int
    intensity: float
    rate: float


def draw_intervals(rows: Sequence[tuple[str, float, float, float]], measure: str) -> str:
    """Return bars of medians with their intervals.

    Args:
        rows: name, median, lower and upper end of the interval.
        measure: symbol of the values, for example ms.
    """
    left = _label_width([name for name, *_ in rows])
    scale = (WIDTH - left - 90) / (max((high for *_, high in rows), default=0.0) or 1.0)
    parts = []
    for index, (name, middle, low, high) in enumerate(rows):
        top = index * ROW_HEIGHT + GAP
        text = f"{name}: {middle:.4g} {measure} ({low:.4g} to {high:.4g})"
        parts += [
            _label(name, left, top),
            f'<rect x="{left}" y="{top}" width="{middle * scale:.1f}" height="14" fill="var(--series-{index % 4})">'
            f"<title>{escape_text(text)}</title></rect>",
            f'<path d="M{left + low * scale:.1f} {top + 7}H{left + high * scale:.1f}" stroke="var(--ink)"/>',
            f'<text x="{left + high * scale + 6:.1f}" y="{top + 11}">{middle:.4g} {escape_text(measure)}</text>',
        ]
    return _svg(parts, len(rows) * ROW_HEIGHT + 2 * GAP)


def draw_distributions(rows: Sequence[tuple[str, Sequence[float]]], measure: str) -> str:
    """Return a histogram of the samples of each row on one axis, with the median as a line.

    Args:
        rows: name and samples; the slowest hundredth of all samples is at the right end.
        measure: symbol of the values, for example ms.
    """
    values = sorted(value for _, samples in rows for value in samples)
    if not values:
        return ""
    low, high = values[0], max(values[min(len(values) - 1, floor(0.99 * len(values)))], values[0] * 1.001)
    left, height = _label_width([name for name, _ in rows]), 2 * ROW_HEIGHT
    scale = (WIDTH - left - 50) / (high - low)
    parts = []
    for index, (name, samples) in enumerate(rows):
        bottom = (index + 1) * height
        counts = [0] * BINS
        for value in samples:
            counts[min(int((value - low) / (high - low) * BINS), BINS - 1)] += 1
        width = (WIDTH - left - 50) / BINS
        for position, count in enumerate(counts):
            if count:
                size = count / max(counts) * (height - 2 * GAP)
                parts.append(
                    f'<rect x="{left + position * width:.1f}" y="{bottom - size:.1f}" width="{width - 1:.1f}" '
                    f'height="{size:.1f}" fill="var(--series-{index % 4})"/>'
                )
        middle = left + (min(median(samples), high) - low) * scale
        parts += [
            _label(name, left, bottom - 18),
            f'<path d="M{middle:.1f} {bottom - height + GAP}V{bottom}" stroke="var(--ink)"/>',
        ]
    bottom = len(rows) * height
    parts += _axis([(left, low), (left + (high - low) * scale, high)], bottom, measure)
    return _svg(parts, bottom + 3 * GAP)


def draw_layers(rows: Sequence[tuple[str, Sequence[float]]], measure: str) -> str:
    """Return the values of each layer as one bar for each model.

    Args:
        rows: layer, and the value of each model.
        measure: symbol of the values, for example ms.
    """
    left = _label_width([name for name, _ in rows])
    scale = (WIDTH - left - 70) / (max((max(values) for _, values in rows), default=0.0) or 1.0)
    parts, top = [], GAP
    for name, values in rows:
        parts.append(_label(name, left, top))
        for index, value in enumerate(values):
            parts += [
                f'<rect x="{left}" y="{top}" width="{value * scale:.1f}" height="10" '
                f'fill="var(--series-{index % 4})"/>',
                f'<text x="{left + value * scale + 4:.1f}" y="{top + 9}">{value:.3g} {escape_text(measure)}</text>',
            ]
            top += 12
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
    left, bottom, top = 60, 300, 10
    x_range = _decades([point.intensity for point in points] + [rate / bandwidth for _, rate in peaks])
    y_range = _decades([point.rate for point in points] + [rate for _, rate in peaks])

    def x_of(value: float) -> float:
        return left + (log10(value) - x_range[0]) / (x_range[1] - x_range[0]) * (WIDTH - left - 20)

    def y_of(value: float) -> float:
        return bottom - (log10(value) - y_range[0]) / (y_range[1] - y_range[0]) * (bottom - top)

    parts = []
    for name, rate in peaks:
        ridge, start = rate / bandwidth, max(10.0 ** x_range[0], 10.0 ** y_range[0] / bandwidth)
        parts += [
            f'<path d="M{x_of(start):.1f} {y_of(start * bandwidth):.1f}L{x_of(ridge):.1f} {y_of(rate):.1f}'
            f'H{WIDTH - 20}" stroke="var(--faint)" fill="none"/>',
            f'<text x="{WIDTH - 24}" y="{y_of(rate) - 4:.1f}" text-anchor="end">{escape_text(name)}</text>',
        ]
    for point in points:
        text = f"{point.name}: {point.rate / 1e9:.3g} G operations/s, {point.intensity:.3g} operations/byte"
        parts.append(
            f'<circle cx="{x_of(point.intensity):.1f}" cy="{y_of(point.rate):.1f}" r="4" fill-opacity="0.7" '
            f'fill="var(--series-{point.series % 4})"><title>{escape_text(text)}</title></circle>'
        )
    for exponent in range(x_range[0], x_range[1] + 1):
        parts += _axis([(x_of(10.0**exponent), 10.0**exponent)], bottom, "")
    for exponent in range(y_range[0], y_range[1] + 1):
        y = y_of(10.0**exponent) + 4
        parts.append(f'<text x="{left - 6}" y="{y:.1f}" text-anchor="end">{10.0 ** (exponent - 9):g} G/s</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{bottom + 34}" text-anchor="middle">operations per byte</text>')
    return _svg(parts, bottom + 44)


def as_document(svg: str) -> str:
    """Return a chart as an SVG file that contains its colours."""
    head, body = svg.split(">", 1)
    style = read_style("colours.css")
    return f'{head} class="quantkit" xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{body}'


def _svg(parts: Sequence[str], height: float) -> str:
    return "\n".join([f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">', *parts, "</svg>"])


def _label_width(names: Sequence[str]) -> float:
    return LETTER_WIDTH * min(max(map(len, names), default=0), MAX_LETTERS) + GAP


def _label(name: str, left: float, top: float) -> str:
    text = name if len(name) <= MAX_LETTERS else f"…{name[1 - MAX_LETTERS :]}"
    return f'<text x="{left - 6:.1f}" y="{top + 11:.1f}" text-anchor="end">{escape_text(text)}</text>'


def _axis(marks: Sequence[tuple[float, float]], bottom: float, measure: str) -> Iterator[str]:
    for x, value in marks:
        yield f'<path d="M{x:.1f} {bottom}v4" stroke="var(--faint)"/>'
        text = f"{value:.4g} {measure}".strip()
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape_text(text)}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = floor(log10(min(positive))), ceil(log10(max(positive)))
    return low, max(high, low + 1)
