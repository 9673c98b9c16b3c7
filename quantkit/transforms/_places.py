"""Where nodes belong: in a loop, and beside others.

In the loops of TensorFlow 1, what has no inputs belongs outside, unless it waits for something inside. A colocation
``loc:@name`` names a node that must exist.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quantkit.ir.graph import Graph, Node
from quantkit.transforms._names import COLOCATED

ENTERS = frozenset({"Enter", "RefEnter"})
EXITS = frozenset({"Exit", "RefExit"})
MERGES = frozenset({"Merge", "RefMerge"})


@dataclass(frozen=True, eq=False)
class _Frame:
    """One loop.

    Attributes:
        name: of the loop; empty: outside of all.
        depth: how many loops it is in.
        parent: the loop that it is in.
    """

    name: object = b""
    depth: int = 0
    parent: "_Frame | None" = None


OUTSIDE = _Frame()


def settled(before: Graph, after: Graph) -> Graph:
    """The graph after a transform: new constants are in the loops of their readers, no node beside one that is gone."""
    if after is before or after.dialect != "tensorflow":
        return after
    changed = {**_waiting_in_loops(before, after), **_beside_nodes_that_are(after)}
    return after.with_nodes(changed.get(name, node) for name, node in after.nodes.items()) if changed else after


def _beside_nodes_that_are(graph: Graph) -> dict[str, Node]:
    """Nodes without the colocations whose nodes are gone."""
    changed: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        classes = node.attrs.get("_class")
        if isinstance(classes, tuple):
            kept = tuple(one for one in classes if not _is_of_no_node(one, graph.nodes))
            if len(kept) < len(classes):
                changed[name] = node.with_attrs(_class=kept or None)
    return changed


def _is_of_no_node(text: object, nodes: Mapping[str, Node]) -> bool:
    if not isinstance(text, bytes) or not text.startswith(COLOCATED):
        return False
    return text.removeprefix(COLOCATED).decode(errors="surrogateescape") not in nodes


def _waiting_in_loops(before: Graph, after: Graph) -> dict[str, Node]:
    """New constants that are read in a loop, waiting for a Merge of it, which runs in each of its turns."""
    if ENTERS.isdisjoint(after.op_counts):
        return {}
    fresh = {name for name, node in after.nodes.items() if not node.sources and before.nodes.get(name) is not node}
    if not fresh:
        return {}
    frames = _frames(after)
    merges = {frames[node.name]: node.name for node in after.nodes.values() if _begins_turns(after, node)}
    changed: dict[str, Node] = {}
    stack = [
        (source, frame)
        for name, node in after.nodes.items()
        if (frame := _read_in(node, frames)) is not OUTSIDE and frame in merges
        for source in node.sources
    ]
    floating = _floating(after)
    while stack:
        name, frame = stack.pop()
        if name not in floating or name in changed:
            continue
        node = after[name]
        stack.extend((source, frame) for source in node.sources)
        if name in fresh:
            changed[name] = node.with_(controls=(merges[frame],))
    return changed


def _begins_turns(graph: Graph, node: Node) -> bool:
    return node.op in MERGES and any(graph[edge.node].op in ENTERS for edge in node.inputs)


def _read_in(node: Node, frames: Mapping[str, _Frame]) -> _Frame:
    """The loop in which a node reads its inputs."""
    frame = frames[node.name]
    return (frame.parent or OUTSIDE) if node.op in ENTERS else frame


def _floating(graph: Graph) -> set[str]:
    """Nodes that are computed from nodes without inputs alone."""
    found: set[str] = set()
    for name in graph.order:
        node = graph[name]
        if found.issuperset(node.sources) and node.op not in ENTERS:
            found.add(name)
    return found


def _frames(graph: Graph) -> dict[str, _Frame]:
    """The loop that what a node makes is in."""
    frames: dict[str, _Frame] = {}
    made: dict[tuple[object, _Frame], _Frame] = {}
    for name in graph.order:
        node = graph[name]
        frame = _deepest(frames.get(source, OUTSIDE) for source in node.sources)
        if node.op in ENTERS:
            key = (node.attrs.get("frame_name"), frame)
            frame = made.setdefault(key, _Frame(key[0], frame.depth + 1, frame))
        elif node.op in EXITS:
            frame = frame.parent or OUTSIDE
        frames[name] = frame
    return frames


def _deepest(frames: Iterable[_Frame]) -> _Frame:
    return max(frames, key=lambda frame: frame.depth, default=OUTSIDE)
