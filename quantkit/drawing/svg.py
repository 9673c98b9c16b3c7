"""SVG of a page, for an HTML document whose style sheet sets the colours."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from quantkit.drawing.layout import Point, place_boxes
from quantkit.drawing.pages import RANGE, Item, Page

LETTER_WIDTH = 6.7
LINE_HEIGHT = 15.0
PADDING = 9.0
MAX_LETTERS = 30

# Characters that are invisible or not allowed in XML.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class BoxStyle:
    """Appearance of an item.

    Attributes:
        lines: text of the box; the first line is bold.
        kind: class in the style sheet.
        node: index of the node whose details open on click; None for a group.
        page: index of the page that opens on click; None for a node.
        hint: tooltip.
    """

    lines: tuple[str, ...]
    kind: str = ""
    node: int | None = None
    page: int | None = None
    hint: str = ""


def render_svg(page: Page, style: Callable[[Item], BoxStyle]) -> str:
    """Return the SVG of a page.

    Args:
        page: page to draw.
        style: function that returns the appearance of an item.
    """
    styles = [style(item) for item in page.items]
    sizes = [_size(box) for box in styles]
    placement = place_boxes(sizes, [(start, end) for start, end, _ in page.edges])
    width, height = placement.width, placement.height
    parts = [f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">']
    for path, (_, _, is_order) in zip(placement.paths, page.edges, strict=True):
        if path:
            parts.append(f'<path class="{"order" if is_order else "edge"}" d="{_curve(path)}"/>')
    for box, center, size in zip(styles, placement.centers, sizes, strict=True):
        parts.extend(_render_box(box, center, size))
    return "\n".join([*parts, "</svg>"])


def escape_text(text: str) -> str:
    """Escape text for HTML, and replace invisible characters with a visible mark."""
    return escape(_INVISIBLE.sub("\ufffd", text))


def _size(style: BoxStyle) -> Point:
    letters = max(len(_shorten(line)) for line in style.lines)
    return letters * LETTER_WIDTH + 2 * PADDING, len(style.lines) * LINE_HEIGHT + PADDING


def _shorten(text: str, letters: int = MAX_LETTERS) -> str:
    """Return the end of a long name, where names differ; of a range, those of both names."""
    if len(text) <= letters:
        return text
    if RANGE in text:
        return RANGE.join(_shorten(name, (letters - len(RANGE)) // 2) for name in text.split(RANGE, 1))
    return f"…{text[1 - letters :]}"


def _render_box(style: BoxStyle, center: Point, size: Point) -> Iterator[str]:
    left, top = center[0] - size[0] / 2, center[1] - size[1] / 2
    target = "" if style.node is None else f' data-node="{style.node}"'
    target += "" if style.page is None else f' data-page="{style.page}"'
    yield f'<g class="box {style.kind}" tabindex="0"{target}><title>{escape_text(style.hint)}</title>'
    yield f'<rect x="{left:.1f}" y="{top:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" rx="5"/>'
    for number, line in enumerate(style.lines):
        y = top + PADDING / 2 + LINE_HEIGHT * (number + 0.75)
        weight = ' class="first"' if not number else ""
        yield f'<text x="{center[0]:.1f}" y="{y:.1f}"{weight}>{escape_text(_shorten(line))}</text>'
    yield "</g>"


def _curve(path: tuple[Point, ...]) -> str:
    """Return a smooth path through the points, vertical at each of them."""
    commands = [f"M{path[0][0]:.1f} {path[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(path):
        half = (y + to_y) / 2
        commands.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(commands)
