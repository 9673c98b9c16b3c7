"""Line chart of values over time as SVG, for an HTML document whose style sheet sets the colours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, log10

from quantkit.drawing.svg import escape_text

WIDTH, HEIGHT = 640, 150
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 8, 22
# Classes of the lines in the style sheet: line0 to line5.
NUM_COLOURS = 6
NUM_TIMES = 6


@dataclass(frozen=True)
class TimeSeries:
    """Lines of several quantities with one time axis.

    Attributes:
        title: name of the chart.
        measure: symbol of the values, for example MB/s.
        seconds: time of each value.
        lines: values of each quantity by name; None for a gap.
        maximum: top of the value axis; None if it fits the values.
    """

    title: str
    measure: str
    seconds: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]
    maximum: float | None = None

    @property
    def top(self) -> float:
        """Value at the top of the axis."""
        values = [value for line in self.lines.values() for value in line if value is not None]
        return self.maximum or round_up(max(values, default=0.0))

    def html(self) -> str:
        """Return a figure with its title, legend and SVG."""
        legend = "".join(
            f'<span class="line{index % NUM_COLOURS}">{escape_text(name)}</span>'
            for index, name in enumerate(self.lines)
        )
        title = f"{escape_text(self.title)} [{escape_text(self.measure)}]"
        return f"<figure><figcaption><b>{title}</b> {legend}</figcaption>{self.svg()}</figure>"

    def svg(self) -> str:
        """Return the SVG element."""
        parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape_text(self.title)}">']
        parts += self._axes()
        for index, (name, values) in enumerate(self.lines.items()):
            path = "".join(self._segments(values))
            title = f"<title>{escape_text(name)}</title>"
            parts.append(f'<path class="line{index % NUM_COLOURS}" d="{path}">{title}</path>')
        return "\n".join([*parts, "</svg>"])

    def _axes(self) -> Iterator[str]:
        for fraction in (0.0, 0.5, 1.0):
            y = self._y(fraction * self.top)
            yield f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{fraction * self.top:,.4g}</text>'
        end = self.seconds[-1] if self.seconds else 0.0
        step = round_up(end / NUM_TIMES)
        for number in range(int(end / step) + 1):
            x = self._x(number * step)
            yield f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{number * step:,.4g} s</text>'

    def _segments(self, values: Sequence[float | None]) -> Iterator[str]:
        """Yield the path of each run of values without a gap."""
        points = zip(self.seconds, values, strict=True)
        for has_value, run in groupby(points, key=lambda point: point[1] is not None):
            if has_value:
                corners = [f"{self._x(seconds):.1f} {self._y(value or 0.0):.1f}" for seconds, value in run]
                yield f"M{'L'.join(corners)}"

    def _x(self, seconds: float) -> float:
        end = self.seconds[-1] if self.seconds and self.seconds[-1] else 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / end

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value / self.top, 1.0)


def round_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten.

    >>> round_up(0.3), round_up(130)
    (0.5, 200.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** ceil(log10(value) - 1)
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9)))
