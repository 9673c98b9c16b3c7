"""Drawings of graphs: pages, layout and SVG; and bar charts."""

from quantkit.drawing.bar_chart import BarChart
from quantkit.drawing.pages import Item, Page, split_into_pages
from quantkit.drawing.svg import BoxStyle, escape_text, render_svg

__all__ = ["BarChart", "BoxStyle", "Item", "Page", "escape_text", "render_svg", "split_into_pages"]
