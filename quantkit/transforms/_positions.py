"""Where nodes belong: in a loop, and beside others.

In the loops of TensorFlow 1, what has no inputs belongs outside, unless it waits for something inside. A colocation
``loc:@name`` names a node that must exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.transforms._names import COLOCATED, FreeNames

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
    changed = _beside_nodes_that_are(after)
    beside = after.with_nodes(changed.get(name, node) for name, node in after.nodes.items()) if changed else after
    return _with_constants_in_loops(beside)


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


def _with_constants_in_loops(graph: Graph) -> Graph:
    """The graph where constants that are read in a loop wait for a Merge of it, which runs in each of its turns."""
    if ENTERS.isdisjoint(graph.op_counts):
        return graph
    frames = _frames(graph)
    floating = _floating(graph)
    merges = {frames[node.name]: node.name for node in graph.nodes.values() if _begins_turns(graph, node)}
    readers: dict[str, dict[_Frame, list[str]]] = {}
    stack = [
        (name, source, _read_in(node, frames))
        for name, node in graph.nodes.items()
        if name not in floating or name in graph.endpoint_names or name not in graph.node_uses
        for source in node.sources
        if source in floating
    ]
    seen: set[tuple[str, str, _Frame]] = set()
    while stack:
        reader, name, frame = entry = stack.pop()
        if entry in seen:
            continue
        seen.add(entry)
        if graph[name].is_constant and not graph[name].controls:
            readers.setdefault(name, {}).setdefault(frame, []).append(reader)
        stack.extend((name, source, frame) for source in graph[name].sources)
    inside = {name: frames for name, frames in readers.items() if not merges.keys().isdisjoint(frames)}
    return _each_in_its_loop(graph, inside, merges) if inside else graph


def _each_in_its_loop(
    graph: Graph, readers: Mapping[str, Mapping[_Frame, Sequence[str]]], merges: Mapping[_Frame, str]
) -> Graph:
    """The graph with a constant for each loop that it is read in; outside, it stays as it is."""
    names = FreeNames(graph)
    draft = Draft(graph)
    changed: dict[str, Node] = {}
    for name, frames in readers.items():
        inside = [frame for frame in frames if frame in merges]
        is_wanted = name in graph.endpoint_names or len(inside) < len(frames)
        for frame in inside:
            waiting = graph[name].with_(controls=(merges[frame],))
            if not is_wanted:
                draft.replace(name, waiting)
                is_wanted = True
                continue
            copy = names.free(f"{name}/in_loop")
            draft.before(name, waiting.with_(name=copy))
            for reader in frames[frame]:
                node = changed.get(reader, graph[reader])
                inputs = (Edge(copy, edge.port) if edge.node == name else edge for edge in node.inputs)
                changed[reader] = node.with_(inputs=tuple(inputs))
    made = draft.graph()
    return made.with_nodes(_reading(node, changed) for node in made.nodes.values())


def _reading(node: Node, changed: Mapping[str, Node]) -> Node:
    return node.with_(inputs=changed[node.name].inputs) if node.name in changed else node


def _begins_turns(graph: Graph, node: Node) -> bool:
    return node.op in MERGES and any(graph[edge.node].op in ENTERS for edge in node.inputs)


def _read_in(node: Node, frames: Mapping[str, _Frame]) -> _Frame:
    """The loop in which a node reads its inputs."""
    frame = frames[node.name]
    return (frame.parent or OUTSIDE) if node.op in ENTERS else frame


def _floating(graph: Graph) -> set[str]:
    """Constants that wait for nothing, and what is computed from such alone."""
    found: set[str] = set()
    for name in graph.order:
        node = graph[name]
        if found.issuperset(node.sources) and (node.sources or node.is_constant) and node.op not in ENTERS:
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
