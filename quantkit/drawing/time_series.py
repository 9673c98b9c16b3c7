"""Chart of values over time as SVG, for an HTML document whose style sheet sets the colours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, log10

from quantkit.drawing.html_page import NUM_SERIES
from quantkit.drawing.svg import escape_text

HEIGHT, TOP, BOTTOM = 178, 8, 40
BAR_HEIGHT = 28
# Left end and width of the plot in percent: it grows with the page, and the texts keep their size.
LEFT, WIDTH = 13, 85
# Coordinates of the plot from left to right.
PLOT_WIDTH = 1000
NUM_TIMES = 5
# Limits of the number of points of a line, and the number of samples in one point between these limits.
MIN_POINTS, MAX_POINTS, MIN_SAMPLES = 16, 60, 4


@dataclass(frozen=True)
class TimeSeries:
    """Lines of several quantities, or the parts of a whole, with one time axis.

    Attributes:
        title: name of the chart.
        measure: symbol of the values, for example MB/s.
        seconds: time of each value.
        lines: values of each quantity by name; None for a gap.
        maximum: top of the value axis; None if it fits the values.
        focus: begin and end of the part that is not faded; None for all.
        is_stacked: the quantities are parts of a whole, drawn as areas one above the other.
        resolution: sentence about averaged points; empty for single samples.
    """

    title: str
    measure: str
    seconds: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]
    maximum: float | None = None
    focus: tuple[float, float] | None = None
    is_stacked: bool = False
    resolution: str = ""

    def average_samples(self) -> "TimeSeries":
        """Return the chart with at most `MAX_POINTS` points, each the mean of the samples of an equal time."""
        count = min(max(len(self.seconds) // MIN_SAMPLES, MIN_POINTS), MAX_POINTS)
        if len(self.seconds) <= count:
            return self
        width = self.seconds[-1] / count
        numbers = [min(int(seconds / width), count - 1) for seconds in self.seconds]

        def means(values: Sequence[float | None]) -> list[float | None]:
            parts: dict[int, list[float]] = {number: [] for number in numbers}
            for number, value in zip(numbers, values, strict=True):
                parts[number] += [] if value is None else [value]
            return [sum(part) / len(part) if part else None for part in parts.values()]

        seconds = [(number + 0.5) * width for number in dict.fromkeys(numbers)]
        lines = {name: means(values) for name, values in self.lines.items()}
        resolution = f"Each point is the mean of {width:.2g} s."
        return replace(self, seconds=[0.0, *seconds[1:-1], self.seconds[-1]], lines=lines, resolution=resolution)

    @property
    def top(self) -> float:
        """Value at the top of the axis."""
        values = [value for line in self.lines.values() for value in line if value is not None]
        return self.maximum or round_up(max(values, default=0.0))

    def html(self, note: str = "") -> str:
        """Return a figure with its title, legend and SVG.

        Args:
            note: text below an emphasized figure; empty for a figure without emphasis.
        """
        legend = "".join(
            f'<span class="series-{index % NUM_SERIES}"><i></i>{escape_text(name)}</span>'
            for index, name in enumerate(self.lines)
        )
        title = f"{escape_text(self.title)} [{escape_text(self.measure)}]"
        mark, text = (' class="marked"', f'<p class="small">{escape_text(note)}</p>') if note else ("", "")
        return f"<figure{mark}><figcaption><b>{title}</b> {legend}</figcaption>{self.svg()}{text}</figure>"

    def svg(self) -> str:
        """Return the SVG element."""
        parts = [f'<svg class="chart" height="{HEIGHT}" role="img" aria-label="{escape_text(self.title)}">']
        parts += self._axes()
        parts.append(
            f'<svg x="{LEFT}%" width="{WIDTH}%" height="{HEIGHT}" viewBox="0 0 {PLOT_WIDTH} {HEIGHT}" '
            'preserveAspectRatio="none">'
        )
        base = [0.0] * len(self.seconds)
        for index, (name, values) in enumerate(self.lines.items()):
            if self.is_stacked:
                upper = [low + (value or 0.0) for low, value in zip(base, values, strict=True)]
                kind, path = "fill", f"M{self._corners(self.seconds, upper)}L{self._corners(self.seconds, base, -1)}Z"
                base = upper
            else:
                kind, path = "curve", "".join(self._segments(values))
            title = f"<title>{escape_text(name)}</title>"
            parts.append(f'<path class="{kind} series-{index % NUM_SERIES}" d="{path}">{title}</path>')
        return "\n".join([*parts, *self._draw_faded_parts(), "</svg></svg>"])

    def _draw_faded_parts(self) -> Iterator[str]:
        """Yield the parts before and after the judged time."""
        start, end = self.focus or (0.0, self.seconds[-1] if self.seconds else 0.0)
        for left, right in ((0.0, self._x(start)), (self._x(end), PLOT_WIDTH)):
            if right - left > 1:
                size = f'x="{left:.1f}" width="{right - left:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
                yield f'<rect class="faded" y="{TOP}" {size}/>'

    def _axes(self) -> Iterator[str]:
        for fraction in (0.0, 0.5, 1.0):
            y = self._y(fraction * self.top)
            text = _format(fraction * self.top)
            yield f'<line class="rule" x1="{LEFT}%" x2="{LEFT + WIDTH}%" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="faint end" x="{LEFT}%" dx="-6" y="{y + 4:.1f}">{text}</text>'
        end = self.seconds[-1] if self.seconds else 0.0
        step = round_up(end / NUM_TIMES)
        for number in range(int(end / step) + 1):
            x = LEFT + WIDTH * self._x(number * step) / PLOT_WIDTH
            yield f'<text class="faint middle" x="{x:.1f}%" y="{HEIGHT - 24}">{_format(number * step)} s</text>'
        yield f'<text class="faint middle" x="{LEFT + WIDTH / 2}%" y="{HEIGHT - 6}">time since the start</text>'

    def _segments(self, values: Sequence[float | None]) -> Iterator[str]:
        """Yield the path of each run of values without a gap."""
        points = zip(self.seconds, values, strict=True)
        for has_value, run in groupby(points, key=lambda point: point[1] is not None):
            if has_value:
                times, present = zip(*run, strict=True)
                yield f"M{self._corners(times, present)}"

    def _corners(self, seconds: Sequence[float], values: Sequence[float | None], step: int = 1) -> str:
        """Return the points of a line, from the last one to the first one with the step -1."""
        corners = [
            f"{self._x(each):.1f} {self._y(value or 0.0):.1f}" for each, value in zip(seconds, values, strict=True)
        ]
        return "L".join(corners[::step])

    def _x(self, seconds: float) -> float:
        end = self.seconds[-1] if self.seconds and self.seconds[-1] else 1.0
        return PLOT_WIDTH * seconds / end

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value / self.top, 1.0)


def fraction_bar(title: str, fractions: Mapping[str, float], note: str) -> str:
    """Return an emphasized figure with one bar that is divided into fractions of a whole.

    Args:
        title: name of the figure.
        fractions: fractions by name; those below half a percent are not drawn.
        note: text below the bar.
    """
    drawn = {name: fraction for name, fraction in fractions.items() if fraction >= 0.005}
    legend, parts, start = [], [], 0.0
    for index, (name, fraction) in enumerate(drawn.items()):
        kind, text = f"series-{index % NUM_SERIES}", f"{escape_text(name)} {fraction:.0%}"
        legend.append(f'<span class="{kind}"><i></i>{text}</span>')
        size = f'x="{100 * start:.2f}%" width="{100 * fraction:.2f}%" height="{BAR_HEIGHT}"'
        parts.append(f'<rect class="fill {kind}" {size}><title>{text}</title></rect>')
        start += fraction
    bar = (
        f'<svg class="chart" height="{BAR_HEIGHT}" role="img" aria-label="{escape_text(title)}">{"".join(parts)}</svg>'
    )
    caption = f"<figcaption><b>{escape_text(title)}</b> {''.join(legend)}</figcaption>"
    return f'<figure class="marked">{caption}{bar}<p class="small">{escape_text(note)}</p></figure>'


def _format(value: float) -> str:
    """Format a number of an axis.

    >>> _format(20000.0), _format(0.25)
    ('20,000', '0.25')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def round_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten.

    >>> round_up(0.3), round_up(130)
    (0.5, 200.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** ceil(log10(value) - 1)
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9)))
