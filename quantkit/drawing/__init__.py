"""Drawings of graphs: pages, layout and SVG; bar charts and time series; HTML pages of reports."""

from quantkit.drawing.bar_chart import BarChart
from quantkit.drawing.html_page import html_body, html_code, html_list, html_page, html_section, html_table
from quantkit.drawing.pages import Item, Page, split_into_pages
from quantkit.drawing.svg import BoxStyle, escape_text, render_svg
from quantkit.drawing.time_series import TimeSeries, fraction_bar

__all__ = [
    "BarChart",
    "BoxStyle",
    "Item",
    "Page",
    "TimeSeries",
    "escape_text",
    "fraction_bar",
    "html_body",
    "html_code",
    "html_list",
    "html_page",
    "html_section",
    "html_table",
    "render_svg",
    "split_into_pages",
]
