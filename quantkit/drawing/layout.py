"""Boxes in rows, each below what it reads: Sugiyama's method in its plainest form.

1. A box stands one row below the lowest of those it reads; sources stand right above their first reader.
2. An edge over several rows gets a bend in each row it passes, so that it runs between the boxes.
3. Rows are put in order by the mean place of the neighbours, downwards and upwards in turn.
4. Boxes move sideways towards their neighbours as far as the order allows (least squares: isotonic regression).
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
    """Where everything is.

    Attributes:
        centers: of the boxes.
        paths: for each edge the points it runs through, from the bottom of a box to the top of another.
        width, height: of the whole.
    """

    centers: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def place(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Placement:
    """Place boxes.

    Args:
        sizes: (width, height) of each box, in an order in which they may be computed.
        edges: (from, to) box numbers; an edge against that order is drawn, but moves nothing.
    """
    if not sizes:
        return Placement((), (), 0.0, 0.0)
    forward = [(start, end) for start, end in edges if start < end]
    rows = _rows(len(sizes), forward)
    grid = _Grid(sizes, rows, forward)
    grid.sort()
    grid.spread()
    return grid.placement(edges)


def _rows(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The row of each box."""
    sources: list[list[int]] = [[] for _ in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    for start, end in edges:
        sources[end].append(start)
        readers[start].append(end)
    rows = [0] * count
    for box in range(count):
        rows[box] = 1 + max((rows[source] for source in sources[box]), default=-1)
    for box in range(count):
        if not sources[box] and readers[box]:
            rows[box] = min(rows[reader] for reader in readers[box]) - 1
    return rows


class _Grid:
    """Boxes and bends in rows; a bend is numbered on from the boxes."""

    def __init__(self, sizes: Sequence[Point], rows: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        self.count = len(sizes)
        self.widths = [width for width, _ in sizes]
        self.heights = [height for _, height in sizes]
        self.row_of = list(rows)
        self.above: list[list[int]] = [[] for _ in sizes]
        self.below: list[list[int]] = [[] for _ in sizes]
        self.bends: dict[tuple[int, int], list[int]] = {}
        for start, end in dict.fromkeys(edges):
            self._join(start, end)
        self.rows: list[list[int]] = [[] for _ in range(max(self.row_of) + 1)]
        for one, row in enumerate(self.row_of):
            self.rows[row].append(one)
        self.x = [0.0] * len(self.widths)

    def _join(self, start: int, end: int) -> None:
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
        """Put each row in order by the mean place of the neighbours."""
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                place = self._places()
                keys = {
                    one: (sum(place[other] for other in neighbours[one]) / len(neighbours[one]))
                    if neighbours[one]
                    else place[one]
                    for one in row
                }
                row.sort(key=lambda one: (keys[one], one))

    def _places(self) -> dict[int, float]:
        """The place of each box within its row, as a part of it."""
        return {one: (place + 0.5) / len(row) for row in self.rows for place, one in enumerate(row)}

    def spread(self) -> None:
        """Move everything sideways towards what it is joined with."""
        for row in self.rows:
            self._settle(row, [0.0] * len(row))
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                wanted = [
                    sum(self.x[other] for other in neighbours[one]) / len(neighbours[one])
                    if neighbours[one]
                    else self.x[one]
                    for one in row
                ]
                self._settle(row, wanted)

    def _settle(self, row: Sequence[int], wanted: Sequence[float]) -> None:
        """Give a row the places nearest to the wanted ones that keep its order and its gaps."""
        offsets = [0.0]
        for left, right in pairwise(row):
            offsets.append(offsets[-1] + (self.widths[left] + self.widths[right]) / 2 + GAP)
        blocks: list[tuple[float, int]] = []  # mean, how many
        for want, offset in zip(wanted, offsets, strict=True):
            mean, size = want - offset, 1
            while blocks and blocks[-1][0] >= mean:
                other, count = blocks.pop()
                mean, size = (mean * size + other * count) / (size + count), size + count
            blocks.append((mean, size))
        means = [mean for mean, size in blocks for _ in range(size)]
        for one, mean, offset in zip(row, means, offsets, strict=True):
            self.x[one] = mean + offset

    def placement(self, edges: Sequence[tuple[int, int]]) -> Placement:
        """The finished places, moved to where nothing is negative."""
        left = min(x - width / 2 for x, width in zip(self.x, self.widths, strict=True)) - GAP
        right = max(x + width / 2 for x, width in zip(self.x, self.widths, strict=True)) + GAP
        tops = [ROW_GAP / 2]
        for row in self.rows:
            tops.append(tops[-1] + max((self.heights[one] for one in row), default=0.0) + ROW_GAP)
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
