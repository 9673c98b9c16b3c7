"""Graphs as pictures: what to draw together, where to put it, and the SVG of that."""

from quantkit.drawing.pages import Item, Page, paged
from quantkit.drawing.svg import render

__all__ = ["Item", "Page", "paged", "render"]
