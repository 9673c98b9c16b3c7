"""A page as SVG that stands in an HTML document; its colours come from the document's style sheet."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from quantkit.drawing.layout import Point, place
from quantkit.drawing.pages import Item, Page

LETTER = 6.7
LINE = 15.0
PADDING = 9.0
LONGEST = 30

# What has no shape on a screen, or breaks XML.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Look:
    """How an item is shown.

    Attributes:
        lines: what stands in the box, the first one in bold.
        kind: its class in the style sheet.
        node: number of the node whose details it opens; None: a group.
        page: number of the page that it opens; None: none.
        hint: shown while the pointer rests on it.
    """

    lines: tuple[str, ...]
    kind: str = ""
    node: int | None = None
    page: int | None = None
    hint: str = ""


def render(page: Page, look: Callable[[Item], Look]) -> str:
    """The SVG of a page.

    Args:
        page: what to draw.
        look: how to show each of its items.
    """
    looks = [look(item) for item in page.items]
    sizes = [_size(one) for one in looks]
    placement = place(sizes, [(start, end) for start, end, _ in page.edges])
    width, height = placement.width, placement.height
    parts = [f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">']
    for path, (_, _, is_order) in zip(placement.paths, page.edges, strict=True):
        if path:
            parts.append(f'<path class="{"order" if is_order else "edge"}" d="{_curve(path)}"/>')
    for one, center, size in zip(looks, placement.centers, sizes, strict=True):
        parts.extend(_box(one, center, size))
    return "\n".join([*parts, "</svg>"])


def shown(text: str) -> str:
    """Text for an HTML document: escaped, and with a mark for each character that is not seen."""
    return escape(_UNSEEN.sub("\ufffd", text))


def _size(look: Look) -> Point:
    letters = max(len(_short(line)) for line in look.lines)
    return letters * LETTER + 2 * PADDING, len(look.lines) * LINE + PADDING


def _short(text: str) -> str:
    """The end of a long name: that is where names differ."""
    return text if len(text) <= LONGEST else f"…{text[1 - LONGEST :]}"


def _box(look: Look, center: Point, size: Point) -> Iterator[str]:
    left, top = center[0] - size[0] / 2, center[1] - size[1] / 2
    target = "" if look.node is None else f' data-node="{look.node}"'
    target += "" if look.page is None else f' data-page="{look.page}"'
    yield f'<g class="box {look.kind}" tabindex="0"{target}><title>{shown(look.hint)}</title>'
    yield f'<rect x="{left:.1f}" y="{top:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" rx="5"/>'
    for number, line in enumerate(look.lines):
        y = top + PADDING / 2 + LINE * (number + 0.75)
        weight = ' class="first"' if not number else ""
        yield f'<text x="{center[0]:.1f}" y="{y:.1f}"{weight}>{shown(_short(line))}</text>'
    yield "</g>"


def _curve(path: tuple[Point, ...]) -> str:
    """A smooth line through the points, upright at each of them."""
    words = [f"M{path[0][0]:.1f} {path[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(path):
        half = (y + to_y) / 2
        words.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(words)
