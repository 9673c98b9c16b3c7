"""Drawings of graphs: pages, layout and SVG; bar charts and time series."""

from quantkit.drawing.bar_chart import BarChart
from quantkit.drawing.pages import Item, Page, split_into_pages
from quantkit.drawing.svg import BoxStyle, escape_text, render_svg
from quantkit.drawing.time_series import TimeSeries

__all__ = ["BarChart", "BoxStyle", "Item", "Page", "TimeSeries", "escape_text", "render_svg", "split_into_pages"]
