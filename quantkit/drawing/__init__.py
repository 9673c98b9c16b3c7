"""Graphs as pictures: what to draw together, where to put it, and the SVG of that."""

from quantkit.drawing.pages import Item, Page, paged
from quantkit.drawing.svg import Look, render, shown

__all__ = ["Item", "Look", "Page", "paged", "render", "shown"]
