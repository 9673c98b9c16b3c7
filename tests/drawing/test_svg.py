"""A page as SVG: well-formed, whatever the names are."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from quantkit.drawing import Item, Look, Page, render, shown

HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "<!--", "]]>", "\x00\x1b[31m", "a&b"]


def page(*titles: str) -> Page:
    items = tuple(Item(f"{number}{title}", (f"{number}{title}",)) for number, title in enumerate(titles))
    return Page("", None, items, tuple((number, number + 1, False) for number in range(len(items) - 1)))


def look(item: Item) -> Look:
    return Look((item.title, item.title), "same", 3, None, item.title)


def test_hostile_names_are_text() -> None:
    svg = render(page(*HOSTILE), look)
    root = ElementTree.fromstring(svg)
    assert {element.tag for element in root.iter()} == {"svg", "path", "g", "title", "rect", "text"}
    assert "<script" not in svg
    assert "<img" not in svg


@given(st.lists(st.text(max_size=50), max_size=5))
def test_any_names_make_xml(titles: list[str]) -> None:
    svg = render(page(*titles), look)
    ElementTree.fromstring(svg)
    assert svg == render(page(*titles), look)


def test_the_end_of_a_long_name_is_shown() -> None:
    svg = render(page("scope/" * 20 + "conv"), look)
    assert "…" in svg
    assert "scope/conv</text>" in svg


def test_unseen_characters_are_marked() -> None:
    assert shown("a\u202eb\x00<") == "a\ufffdb\ufffd&lt;"
