"""Line chart of values over time as SVG, for an HTML document whose style sheet sets the colours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, log10

from quantkit.drawing.html_page import NUM_SERIES
from quantkit.drawing.svg import escape_text

HEIGHT, TOP, BOTTOM = 160, 8, 22
BAR_HEIGHT = 28
# Left end and width of the plot in percent: it grows with the page, and the texts keep their size.
LEFT, WIDTH = 13, 85
# Coordinates of the plot from left to right.
PLOT_WIDTH = 1000
NUM_TIMES = 5


@dataclass(frozen=True)
class TimeSeries:
    """Lines of several quantities with one time axis.

    Attributes:
        title: name of the chart.
        measure: symbol of the values, for example MB/s.
        seconds: time of each value.
        lines: values of each quantity by name; None for a gap.
        maximum: top of the value axis; None if it fits the values.
        start: end of a shaded part at the beginning.
    """

    title: str
    measure: str
    seconds: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]
    maximum: float | None = None
    start: float = 0.0

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
        for index, (name, values) in enumerate(self.lines.items()):
            path = "".join(self._segments(values))
            title = f"<title>{escape_text(name)}</title>"
            parts.append(f'<path class="curve series-{index % NUM_SERIES}" d="{path}">{title}</path>')
        return "\n".join([*parts, "</svg></svg>"])

    def _axes(self) -> Iterator[str]:
        if self.start > 0:
            width = WIDTH * self._x(self.start) / PLOT_WIDTH
            yield f'<rect class="start" x="{LEFT}%" y="{TOP}" width="{width:.1f}%" height="{HEIGHT - TOP - BOTTOM}"/>'
        for fraction in (0.0, 0.5, 1.0):
            y = self._y(fraction * self.top)
            text = _format(fraction * self.top)
            yield f'<line class="rule" x1="{LEFT}%" x2="{LEFT + WIDTH}%" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="faint end" x="{LEFT}%" dx="-6" y="{y + 4:.1f}">{text}</text>'
        end = self.seconds[-1] if self.seconds else 0.0
        step = round_up(end / NUM_TIMES)
        for number in range(int(end / step) + 1):
            x = LEFT + WIDTH * self._x(number * step) / PLOT_WIDTH
            yield f'<text class="faint middle" x="{x:.1f}%" y="{HEIGHT - 6}">{_format(number * step)} s</text>'

    def _segments(self, values: Sequence[float | None]) -> Iterator[str]:
        """Yield the path of each run of values without a gap."""
        points = zip(self.seconds, values, strict=True)
        for has_value, run in groupby(points, key=lambda point: point[1] is not None):
            if has_value:
                corners = [f"{self._x(seconds):.1f} {self._y(value or 0.0):.1f}" for seconds, value in run]
                yield f"M{'L'.join(corners)}"

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
