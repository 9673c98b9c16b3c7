"""Pages of a drawn graph, each with at most `MAX_BOXES` boxes, divided by name scopes.

A graph that fits is one page. In a larger graph, a scope becomes a box that opens its own page; small scopes are
drawn in place while there is room. Names without scopes are divided into runs in topological order. Constants with
consumers are not drawn: they belong to their consumers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from quantkit.ir.graph import Graph, Node

# Text between the first and the last name of a group.
RANGE = " ... "
MAX_BOXES = 60
# Neighbours outside a page that are drawn at its margin, in each direction.
MAX_NEIGHBOURS = 8


@dataclass(frozen=True)
class Item:
    """A box: a node, a group of nodes with a page of its own, or a node outside the page.

    Attributes:
        title: name of the node or the group.
        nodes: names of the nodes of the box.
        page: index of the page that a group opens; None for a node.
        is_outside: True if the node is drawn on another page.
    """

    title: str
    nodes: tuple[str, ...]
    page: int | None = None
    is_outside: bool = False


@dataclass(frozen=True)
class Page:
    """One drawing.

    Attributes:
        title: scope, or first and last node of a run; empty for the whole graph.
        parent: index of the page with the box that opens this page; None for the first page.
        items: boxes in topological order.
        edges: (from, to, is_control) between items, each pair once.
    """

    title: str
    parent: int | None
    items: tuple[Item, ...]
    edges: tuple[tuple[int, int, bool], ...]


@dataclass(frozen=True)
class _Group:
    """Nodes with a page of their own."""

    title: str
    members: "tuple[_Group | str, ...]"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(_leaves(self))


def split_into_pages(graph: Graph, max_boxes: int = MAX_BOXES) -> tuple[Page, ...]:
    """Divide a graph into pages; the first page shows the whole graph.

    Args:
        graph: graph to draw.
        max_boxes: maximum number of boxes on a page, without those at its margin.

    Raises:
        GraphError: the nodes form a cycle.
    """
    drawn = [name for name in graph.order if not is_inlined(graph, graph[name])]
    return _PageBuilder(graph, drawn, max_boxes).pages()


def is_inlined(graph: Graph, node: Node) -> bool:
    """Return True if a node is not drawn: a constant with consumers."""
    return node.is_constant and node.name in graph.node_uses and node.name not in graph.output_names


class _PageBuilder:
    """Builder of the pages of one graph."""

    def __init__(self, graph: Graph, drawn: Sequence[str], max_boxes: int) -> None:
        self.graph = graph
        self.max_boxes = max_boxes
        self.top = _Group("", self._members(drawn, 0))
        self.numbers: dict[int, int] = {}
        self.titles: list[tuple[str, int | None, _Group]] = []
        self._number(self.top, None)
        self.positions = {name: position for position, name in enumerate(drawn)}

    def _number(self, group: _Group, parent: int | None) -> None:
        number = len(self.titles)
        self.numbers[id(group)] = number
        self.titles.append((group.title, parent, group))
        for member in group.members:
            if isinstance(member, _Group):
                self._number(member, number)

    def _members(self, names: Sequence[str], depth: int) -> tuple[_Group | str, ...]:
        """Return the boxes of a page for nodes whose first ``depth`` name parts are equal."""
        if len(names) <= self.max_boxes:
            return tuple(names)
        scopes: dict[str, list[str]] = {}
        order: dict[str, None] = {}
        for name in names:
            parts = name.split("/", depth + 1)
            key = "/".join(parts[: depth + 1]) + "/" if len(parts) > depth + 1 else name
            order[key] = None
            scopes.setdefault(key, []).append(name)
        if len(order) == 1:
            return self._members(names, depth + 1)
        inlined = self._inlined_scopes(order, scopes)
        members: list[_Group | str] = []
        for key in order:
            if key in inlined or len(scopes[key]) == 1:
                members.extend(scopes[key])
            else:
                members.append(_Group(key, self._members(scopes[key], depth + 1)))
        return self._divide_into_runs(members)

    def _inlined_scopes(self, order: Iterable[str], scopes: dict[str, list[str]]) -> set[str]:
        """Return the smallest scopes that fit on the page."""
        room = self.max_boxes - len(scopes)
        inlined: set[str] = set()
        for key in sorted(order, key=lambda key: len(scopes[key])):
            room -= len(scopes[key]) - 1
            if room < 0:
                break
            inlined.add(key)
        return inlined

    def _divide_into_runs(self, members: Sequence[_Group | str]) -> tuple[_Group | str, ...]:
        """Divide members in topological order into runs until they fit a page."""
        while len(members) > self.max_boxes:
            starts = range(0, len(members), self.max_boxes)
            runs = [members[start : start + self.max_boxes] for start in starts]
            members = [_Group(_range_title(run), tuple(run)) if len(run) > 1 else run[0] for run in runs]
        return tuple(members)

    def pages(self) -> tuple[Page, ...]:
        """Return all pages, parents first."""
        return tuple(self._page(title, parent, group) for title, parent, group in self.titles)

    def _page(self, title: str, parent: int | None, group: _Group) -> Page:
        items = [self._item(member) for member in group.members]
        items = self._sort(items)
        home = {name: item for item in items for name in item.nodes}
        before, after = self._outside_neighbours(home)
        items = [*(Item(name, (name,), None, True) for name in before), *items]
        items += [Item(name, (name,), None, True) for name in after]
        index_of = {name: index for index, item in enumerate(items) for name in item.nodes if not item.is_outside}
        outside_above = {name: index for index, name in enumerate(before)}
        outside_below = {name: len(items) - len(after) + index for index, name in enumerate(after)}
        edges: dict[tuple[int, int], bool] = {}
        for producer, consumer, is_control in self._edges(home):
            start = index_of.get(producer, outside_above.get(producer))
            end = index_of.get(consumer, outside_below.get(consumer))
            if start is not None and end is not None and start != end:
                edges[start, end] = edges.get((start, end), True) and is_control
        return Page(title, parent, tuple(items), tuple((*pair, is_control) for pair, is_control in edges.items()))

    def _sort(self, items: Sequence[Item]) -> list[Item]:
        """Sort items topologically; in a cycle of groups, the group with the fewest producers comes first."""
        item_of = {name: index for index, item in enumerate(items) for name in item.nodes}
        producers: list[set[int]] = [set() for _ in items]
        consumers: list[set[int]] = [set() for _ in items]
        for name, index in item_of.items():
            for other in {item_of[source] for source in self.graph[name].sources if source in item_of} - {index}:
                producers[index].add(other)
                consumers[other].add(index)
        positions = [min(self.positions[name] for name in item.nodes) for item in items]
        ready = [(positions[index], index) for index in range(len(items)) if not producers[index]]
        heapify(ready)
        order: dict[int, None] = {}
        while len(order) < len(items):
            if ready:
                _, index = heappop(ready)
            else:
                remaining = (other for other in range(len(items)) if other not in order)
                index = min(remaining, key=lambda other: (len(producers[other]), positions[other]))
            order[index] = None
            for consumer in consumers[index] - order.keys():
                producers[consumer].discard(index)
                if not producers[consumer]:
                    heappush(ready, (positions[consumer], consumer))
        return [items[index] for index in order]

    def _item(self, member: _Group | str) -> Item:
        if isinstance(member, str):
            return Item(member, (member,))
        return Item(member.title, member.names, self.numbers[id(member)])

    def _edges(self, home: dict[str, Item]) -> Iterator[tuple[str, str, bool]]:
        """Yield (producer, consumer, is_control) of each edge that begins or ends on a page."""
        for name in home:
            node = self.graph[name]
            for position, source in enumerate(node.sources):
                yield source, name, position >= len(node.inputs)
            for use in self.graph.node_uses.get(name, ()):
                if use.node.name not in home:
                    yield name, use.node.name, use.slot < 0

    def _outside_neighbours(self, home: dict[str, Item]) -> tuple[list[str], list[str]]:
        """Return the first producers and the first consumers of a page that are drawn on other pages."""
        before: dict[str, None] = {}
        after: dict[str, None] = {}
        for producer, consumer, _ in self._edges(home):
            if producer not in home and producer in self.positions:
                before[producer] = None
            elif consumer not in home and consumer in self.positions:
                after[consumer] = None
        first, last = (sorted(names, key=self.positions.__getitem__)[:MAX_NEIGHBOURS] for names in (before, after))
        return first, last


def _leaves(group: _Group) -> Iterator[str]:
    for member in group.members:
        if isinstance(member, str):
            yield member
        else:
            yield from _leaves(member)


def _range_title(run: Sequence[_Group | str]) -> str:
    """Return the first and the last name of a run, without the empty names of nodes and scopes."""
    titles = [member if isinstance(member, str) else member.title.partition(RANGE)[0] for member in run]
    names = [title for title in titles if title] or [""]
    return f"{names[0]}{RANGE}{names[-1]}"
