"""SVG of a page is well-formed for any names."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from quantkit.drawing import BoxStyle, Item, Page, escape_text, render_svg

HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "<!--", "]]>", "\x00\x1b[31m", "a&b"]


def page(*titles: str) -> Page:
    items = tuple(Item(f"{number}{title}", (f"{number}{title}",)) for number, title in enumerate(titles))
    return Page("", None, items, tuple((number, number + 1, False) for number in range(len(items) - 1)))


def style(item: Item) -> BoxStyle:
    return BoxStyle((item.title, item.title), "same", 3, None, item.title)


def test_markup_in_names_is_escaped() -> None:
    svg = render_svg(page(*HOSTILE), style)
    root = ElementTree.fromstring(svg)
    assert {element.tag for element in root.iter()} == {"svg", "path", "g", "title", "rect", "text"}
    assert "<script" not in svg
    assert "<img" not in svg


@given(st.lists(st.text(max_size=50), max_size=5))
def test_svg_is_valid_xml_for_any_names(titles: list[str]) -> None:
    svg = render_svg(page(*titles), style)
    ElementTree.fromstring(svg)
    assert svg == render_svg(page(*titles), style)


def test_long_name_is_shortened_to_its_end() -> None:
    svg = render_svg(page("scope/" * 20 + "conv"), style)
    assert "…" in svg
    assert "scope/conv</text>" in svg


def test_invisible_characters_are_marked() -> None:
    assert escape_text("a\u202eb\x00<") == "a\ufffdb\ufffd&lt;"
