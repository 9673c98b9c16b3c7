"""Horizontal bar chart as SVG or as text."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from quantkit.drawing.svg import LETTER_WIDTH, escape_text

ROW_HEIGHT = 16
BAR_WIDTH = 400
MARGIN = 8
TEXT_BAR_CELLS = 40
BLUE, RED, GREY = "#4477aa", "#cc3311", "#888888"


@dataclass(frozen=True)
class BarChart:
    """Named values as horizontal bars.

    Attributes:
        title: line above the bars.
        measure: symbol after each value, for example dB.
        bars: name and value of each bar; values are not negative.
        highlighted: names of bars in the second colour.
        threshold: value of a dashed vertical line; None for no line.
    """

    title: str
    measure: str
    bars: tuple[tuple[str, float], ...]
    highlighted: frozenset[str] = field(default_factory=frozenset)
    threshold: float | None = None

    @property
    def _maximum(self) -> float:
        return max([value for _, value in self.bars] + [self.threshold or 0.0]) or 1.0

    def svg(self) -> str:
        """Return the chart as an SVG document."""
        left = MARGIN + LETTER_WIDTH * max((len(name) for name, _ in self.bars), default=0)
        width, height = left + BAR_WIDTH + 10 * MARGIN, (len(self.bars) + 1) * ROW_HEIGHT + 2 * MARGIN
        scale = BAR_WIDTH / self._maximum
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            'font-family="sans-serif" font-size="11">',
            f'<text x="{left:.0f}" y="{MARGIN + 8}" font-weight="bold">{escape_text(self.title)}</text>',
        ]
        for row, (name, value) in enumerate(self.bars, 1):
            top = MARGIN + row * ROW_HEIGHT
            colour = RED if name in self.highlighted else BLUE
            parts += [
                f'<text x="{left - 4:.0f}" y="{top + 10}" text-anchor="end">{escape_text(name)}</text>',
                f'<rect x="{left:.0f}" y="{top + 1}" width="{value * scale:.1f}" height="{ROW_HEIGHT - 4}" '
                f'fill="{colour}"><title>{escape_text(name)}: {value:.1f} {escape_text(self.measure)}</title></rect>',
                f'<text x="{left + value * scale + 4:.1f}" y="{top + 10}">{value:.1f}</text>',
            ]
        if self.threshold is not None:
            x = left + self.threshold * scale
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN + ROW_HEIGHT}" y2="{height - MARGIN}" '
                f'stroke="{GREY}" stroke-dasharray="4"/>'
            )
        return "\n".join([*parts, "</svg>"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the chart to an SVG file."""
        Path(path).write_text(self.svg(), encoding="utf-8")

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.bars), default=0)
        lines = [self.title]
        for name, value in self.bars:
            cells = round(value / self._maximum * TEXT_BAR_CELLS)
            mark = " !" if name in self.highlighted else ""
            lines.append(f"{name:<{width}}  {'#' * cells:<{TEXT_BAR_CELLS}} {value:.1f} {self.measure}{mark}")
        return "\n".join(lines)

    def _repr_svg_(self) -> str:
        """Return the chart as SVG for notebooks."""
        return self.svg()
