"""Layered layout of a graph (Sugiyama's method): boxes in rows, each below its producers.

1. A box is one row below its lowest producer; a box without producers is one row above its first consumer.
2. An edge across several rows gets a bend in each row between, so that it passes between the boxes.
3. Rows are sorted by the mean position of the neighbours, alternating downwards and upwards.
4. Boxes move sideways towards their neighbours without changing the order (isotonic regression).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP = 24.0
ROW_GAP = 44.0
SWEEPS = 6
BEND_WIDTH = 6.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Placement:
    """Coordinates of boxes and edges.

    Attributes:
        centers: center of each box.
        paths: points of each edge, from the bottom of one box to the top of another.
        width, height: size of the drawing.
    """

    centers: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def place_boxes(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Placement:
    """Compute the layout of boxes.

    Args:
        sizes: (width, height) of each box, in topological order.
        edges: (from, to) indices of boxes; an edge against the order is drawn, but does not affect the layout.
    """
    if not sizes:
        return Placement((), (), 0.0, 0.0)
    forward = [(start, end) for start, end in edges if start < end]
    rows = _rows(len(sizes), forward)
    layout = _RowLayout(sizes, rows, forward)
    layout.sort()
    layout.spread()
    return layout.placement(edges)


def _rows(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the row of each box."""
    sources: list[list[int]] = [[] for _ in range(count)]
    consumers: list[list[int]] = [[] for _ in range(count)]
    for start, end in edges:
        sources[end].append(start)
        consumers[start].append(end)
    rows = [0] * count
    for box in range(count):
        rows[box] = 1 + max((rows[source] for source in sources[box]), default=-1)
    for box in range(count):
        if not sources[box] and consumers[box]:
            rows[box] = min(rows[consumer] for consumer in consumers[box]) - 1
    return rows


class _RowLayout:
    """Boxes and bends in rows; the indices of bends follow those of the boxes."""

    def __init__(self, sizes: Sequence[Point], rows: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        self.count = len(sizes)
        self.widths = [width for width, _ in sizes]
        self.heights = [height for _, height in sizes]
        self.row_of = list(rows)
        self.above: list[list[int]] = [[] for _ in sizes]
        self.below: list[list[int]] = [[] for _ in sizes]
        self.bends: dict[tuple[int, int], list[int]] = {}
        for start, end in dict.fromkeys(edges):
            self._add_edge(start, end)
        self.rows: list[list[int]] = [[] for _ in range(max(self.row_of) + 1)]
        for box, row in enumerate(self.row_of):
            self.rows[row].append(box)
        self.x = [0.0] * len(self.widths)

    def _add_edge(self, start: int, end: int) -> None:
        bends = []
        last = start
        for row in range(self.row_of[start] + 1, self.row_of[end]):
            bend = len(self.widths)
            self.widths.append(BEND_WIDTH)
            self.heights.append(0.0)
            self.row_of.append(row)
            self.above.append([])
            self.below.append([])
            bends.append(bend)
            self._link(last, bend)
            last = bend
        self._link(last, end)
        self.bends[start, end] = bends

    def _link(self, upper: int, lower: int) -> None:
        self.below[upper].append(lower)
        self.above[lower].append(upper)

    def sort(self) -> None:
        """Sort each row by the mean position of the neighbours."""
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                positions = self._positions()
                keys = {
                    box: (sum(positions[other] for other in neighbours[box]) / len(neighbours[box]))
                    if neighbours[box]
                    else positions[box]
                    for box in row
                }
                row.sort(key=lambda box: (keys[box], box))

    def _positions(self) -> dict[int, float]:
        """Return the position of each box within its row, in [0, 1]."""
        return {box: (index + 0.5) / len(row) for row in self.rows for index, box in enumerate(row)}

    def spread(self) -> None:
        """Move boxes and bends sideways towards their neighbours."""
        for row in self.rows:
            self._set_row(row, [0.0] * len(row))
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                targets = [
                    sum(self.x[other] for other in neighbours[box]) / len(neighbours[box])
                    if neighbours[box]
                    else self.x[box]
                    for box in row
                ]
                self._set_row(row, targets)

    def _set_row(self, row: Sequence[int], targets: Sequence[float]) -> None:
        """Set the coordinates of a row: those closest to the targets that keep its order and its gaps."""
        offsets = [0.0]
        for left, right in pairwise(row):
            offsets.append(offsets[-1] + (self.widths[left] + self.widths[right]) / 2 + GAP)
        blocks: list[tuple[float, int]] = []  # mean and size
        for target, offset in zip(targets, offsets, strict=True):
            mean, size = target - offset, 1
            while blocks and blocks[-1][0] >= mean:
                other, count = blocks.pop()
                mean, size = (mean * size + other * count) / (size + count), size + count
            blocks.append((mean, size))
        means = [mean for mean, size in blocks for _ in range(size)]
        for box, mean, offset in zip(row, means, offsets, strict=True):
            self.x[box] = mean + offset

    def placement(self, edges: Sequence[tuple[int, int]]) -> Placement:
        """Return the layout, shifted so that no coordinate is negative."""
        left = min(x - width / 2 for x, width in zip(self.x, self.widths, strict=True)) - GAP
        right = max(x + width / 2 for x, width in zip(self.x, self.widths, strict=True)) + GAP
        tops = [ROW_GAP / 2]
        for row in self.rows:
            tops.append(tops[-1] + max((self.heights[box] for box in row), default=0.0) + ROW_GAP)
        middle = [(top + bottom - ROW_GAP) / 2 for top, bottom in pairwise(tops)]
        points = [(x - left, middle[row]) for x, row in zip(self.x, self.row_of, strict=True)]

        def path(start: int, end: int) -> tuple[Point, ...]:
            (x, y), (to_x, to_y) = points[start], points[end]
            bends = [points[bend] for bend in self.bends.get((start, end), ())]
            if start == end:
                return ()
            return ((x, y + self.heights[start] / 2), *bends, (to_x, to_y - self.heights[end] / 2))

        paths = tuple(path(start, end) for start, end in edges)
        return Placement(tuple(points[: self.count]), paths, right - left, tops[-1])
