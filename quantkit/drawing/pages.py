"""What to draw together: pages of at most `LIMIT` boxes, cut along name scopes.

A graph that fits is one page. Of a larger one the scopes become boxes that open a page of their own, the small ones
drawn in place as long as there is room; where names have no scopes, nodes are cut into runs in execution order.
Constants that are only read are not drawn: they belong to what reads them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from quantkit.ir.graph import Graph, Node

LIMIT = 60
# Neighbours outside a page that are shown at its rim, in each direction.
RIM = 8


@dataclass(frozen=True)
class Item:
    """A box: a node, a group of nodes with a page of its own, or a node outside the page.

    Attributes:
        title: name of the node or the group.
        nodes: names of the nodes it stands for.
        page: number of the page that a group opens; None: it is a node.
        is_outside: whether the node is drawn on another page.
    """

    title: str
    nodes: tuple[str, ...]
    page: int | None = None
    is_outside: bool = False


@dataclass(frozen=True)
class Page:
    """A picture.

    Attributes:
        title: scope, or place in the order of its parent; empty: the whole graph.
        parent: number of the page it opens from; None: the first one.
        items: each behind what it reads.
        edges: (from, to, is it order only) between items, each pair once.
    """

    title: str
    parent: int | None
    items: tuple[Item, ...]
    edges: tuple[tuple[int, int, bool], ...]


@dataclass(frozen=True)
class _Group:
    """Nodes that belong together; ``depth`` counts the name parts they share."""

    title: str
    members: "tuple[_Group | str, ...]"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(_leaves(self))


def paged(graph: Graph, limit: int = LIMIT) -> tuple[Page, ...]:
    """The pages of a graph; the first shows the whole.

    Args:
        graph: what to draw; its names resolve.
        limit: boxes of a page, those at its rim aside.

    Raises:
        GraphError: the nodes form a cycle.
    """
    drawn = [name for name in graph.order if not is_folded_in(graph, graph[name])]
    return _Pager(graph, drawn, limit).pages()


def is_folded_in(graph: Graph, node: Node) -> bool:
    """Whether a node is not drawn: a constant that somebody reads."""
    return node.is_constant and node.name in graph.node_uses and node.name not in graph.output_names


class _Pager:
    """The pages of one graph, as they are made."""

    def __init__(self, graph: Graph, drawn: Sequence[str], limit: int) -> None:
        self.graph = graph
        self.limit = limit
        self.top = _Group("", self._members(drawn, 0))
        self.numbers: dict[int, int] = {}
        self.titles: list[tuple[str, int | None, _Group]] = []
        self._number(self.top, None)
        self.place = {name: number for number, name in enumerate(drawn)}

    def _number(self, group: _Group, parent: int | None) -> None:
        number = len(self.titles)
        self.numbers[id(group)] = number
        self.titles.append((group.title, parent, group))
        for member in group.members:
            if isinstance(member, _Group):
                self._number(member, number)

    def _members(self, names: Sequence[str], depth: int) -> tuple[_Group | str, ...]:
        """What a page shows of these nodes, which share ``depth`` name parts."""
        if len(names) <= self.limit:
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
        shown = self._unfolded(order, scopes)
        members: list[_Group | str] = []
        for key in order:
            if key in shown or len(scopes[key]) == 1:
                members.extend(scopes[key])
            else:
                members.append(_Group(key, self._members(scopes[key], depth + 1)))
        return self._in_runs(members)

    def _unfolded(self, order: Iterable[str], scopes: dict[str, list[str]]) -> set[str]:
        """The smallest scopes, as many as there is room for."""
        room = self.limit - len(scopes)
        shown: set[str] = set()
        for key in sorted(order, key=lambda key: len(scopes[key])):
            room -= len(scopes[key]) - 1
            if room < 0:
                break
            shown.add(key)
        return shown

    def _in_runs(self, members: Sequence[_Group | str]) -> tuple[_Group | str, ...]:
        """Members in execution order, cut into runs until they fit a page."""
        while len(members) > self.limit:
            runs = [members[at : at + self.limit] for at in range(0, len(members), self.limit)]
            members = [
                _Group(f"{_title(run[0])} ... {_title(run[-1])}", tuple(run)) if len(run) > 1 else run[0]
                for run in runs
            ]
        return tuple(members)

    def pages(self) -> tuple[Page, ...]:
        """All pages, parents first."""
        return tuple(self._page(title, parent, group) for title, parent, group in self.titles)

    def _page(self, title: str, parent: int | None, group: _Group) -> Page:
        items = [self._item(member) for member in group.members]
        items = self._in_order(items)
        home = {name: item for item in items for name in item.nodes}
        before, after = self._rim(home)
        items = [*(Item(name, (name,), None, True) for name in before), *items]
        items += [Item(name, (name,), None, True) for name in after]
        number = {name: at for at, item in enumerate(items) for name in item.nodes if not item.is_outside}
        outside = {name: at for at, name in enumerate(before)}
        outside_below = {name: len(items) - len(after) + at for at, name in enumerate(after)}
        edges: dict[tuple[int, int], bool] = {}
        for source, reader, is_order in self._edges(home):
            start = number.get(source, outside.get(source))
            end = number.get(reader, outside_below.get(reader))
            if start is not None and end is not None and start != end:
                edges[start, end] = edges.get((start, end), True) and is_order
        return Page(title, parent, tuple(items), tuple((*pair, is_order) for pair, is_order in edges.items()))

    def _in_order(self, items: Sequence[Item]) -> list[Item]:
        """Items behind what they read; where groups read one another, the one that reads the fewest others first."""
        home = {name: at for at, item in enumerate(items) for name in item.nodes}
        sources: list[set[int]] = [set() for _ in items]
        readers: list[set[int]] = [set() for _ in items]
        for name, at in home.items():
            for other in {home[source] for source in self.graph[name].sources if source in home} - {at}:
                sources[at].add(other)
                readers[other].add(at)
        places = [min(self.place[name] for name in item.nodes) for item in items]
        ready = [(places[at], at) for at in range(len(items)) if not sources[at]]
        heapify(ready)
        found: dict[int, None] = {}
        while len(found) < len(items):
            if ready:
                _, at = heappop(ready)
            else:
                left = (other for other in range(len(items)) if other not in found)
                at = min(left, key=lambda other: (len(sources[other]), places[other]))
            found[at] = None
            for reader in readers[at] - found.keys():
                sources[reader].discard(at)
                if not sources[reader]:
                    heappush(ready, (places[reader], reader))
        return [items[at] for at in found]

    def _item(self, member: _Group | str) -> Item:
        if isinstance(member, str):
            return Item(member, (member,))
        return Item(member.title, member.names, self.numbers[id(member)])

    def _edges(self, home: dict[str, Item]) -> Iterator[tuple[str, str, bool]]:
        """(source, reader, is it order only) of every edge that begins or ends on a page."""
        for name in home:
            node = self.graph[name]
            for place, source in enumerate(node.sources):
                yield source, name, place >= len(node.inputs)
            for use in self.graph.node_uses.get(name, ()):
                if use.node.name not in home:
                    yield name, use.node.name, use.slot < 0

    def _rim(self, home: dict[str, Item]) -> tuple[list[str], list[str]]:
        """The first nodes outside that a page reads, and the first that read it."""
        before: dict[str, None] = {}
        after: dict[str, None] = {}
        for source, reader, _ in self._edges(home):
            if source not in home and source in self.place:
                before[source] = None
            elif reader not in home and reader in self.place:
                after[reader] = None
        first, last = (sorted(names, key=self.place.__getitem__)[:RIM] for names in (before, after))
        return first, last


def _leaves(group: _Group) -> Iterator[str]:
    for member in group.members:
        if isinstance(member, str):
            yield member
        else:
            yield from _leaves(member)


def _title(member: _Group | str) -> str:
    return member if isinstance(member, str) else member.title.partition(" ... ")[0]
