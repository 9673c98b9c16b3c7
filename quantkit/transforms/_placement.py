"""Loop frames and colocations of the nodes that a transform has changed.

In a loop of TensorFlow 1, a node without inputs runs outside the loop unless it has a control
dependency on a node inside. A colocation ``loc:@name`` must name an existing node.
"""

from collections.abc import Mapping, Sequence

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ops.tensorflow.frames import ENTERS, OUTSIDE, Frame, find_frames
from quantkit.transforms._names import COLOCATION_PREFIX, FreeNames

MERGES = frozenset({"Merge", "RefMerge"})


def restore_placement(before: Graph, after: Graph) -> Graph:
    """Return a rewritten graph with constants in the loops of their consumers and valid colocations.

    Args:
        before: graph before the transform.
        after: graph that the transform returned.
    """
    if after is before or after.dialect != "tensorflow":
        return after
    changed = _drop_dangling_colocations(after)
    valid = after.with_nodes(changed.get(name, node) for name, node in after.nodes.items()) if changed else after
    return _place_constants_in_loops(valid)


def _drop_dangling_colocations(graph: Graph) -> dict[str, Node]:
    """Return the nodes that change when colocations with missing nodes are dropped."""
    changed: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        classes = node.attrs.get("_class")
        if isinstance(classes, tuple):
            valid = tuple(entry for entry in classes if not _is_dangling(entry, graph.nodes))
            if len(valid) < len(classes):
                changed[name] = node.with_attrs(_class=valid or None)
    return changed


def _is_dangling(entry: object, nodes: Mapping[str, Node]) -> bool:
    if not isinstance(entry, bytes) or not entry.startswith(COLOCATION_PREFIX):
        return False
    return entry.removeprefix(COLOCATION_PREFIX).decode(errors="surrogateescape") not in nodes


def _place_constants_in_loops(graph: Graph) -> Graph:
    """Give constants used in a loop a control dependency on a Merge of it.

    The Merge runs in each iteration, so the constant does too.
    """
    if ENTERS.isdisjoint(graph.op_counts):
        return graph
    frames = find_frames(graph)
    floating = _find_floating(graph)
    merges = {frames[node.name]: node.name for node in graph.nodes.values() if _is_loop_merge(graph, node)}
    consumers: dict[str, dict[Frame, list[str]]] = {}
    stack = [
        (name, source, _frame_of_inputs(node, frames))
        for name, node in graph.nodes.items()
        if name not in floating or name in graph.endpoint_names or name not in graph.node_uses
        for source in node.sources
        if source in floating
    ]
    visited: set[tuple[str, str, Frame]] = set()
    while stack:
        consumer, name, frame = entry = stack.pop()
        if entry in visited:
            continue
        visited.add(entry)
        if graph[name].is_constant and not graph[name].controls:
            consumers.setdefault(name, {}).setdefault(frame, []).append(consumer)
        stack.extend((name, source, frame) for source in graph[name].sources)
    in_loops = {name: frames for name, frames in consumers.items() if not merges.keys().isdisjoint(frames)}
    return _copy_into_loops(graph, in_loops, merges) if in_loops else graph


def _copy_into_loops(
    graph: Graph, consumers: Mapping[str, Mapping[Frame, Sequence[str]]], merges: Mapping[Frame, str]
) -> Graph:
    """Return the graph with one copy of each constant per loop that uses it.

    The original stays unchanged if it is also used outside all loops.

    Args:
        graph: graph that contains the constants.
        consumers: consumers of each constant, by frame.
        merges: one Merge of each loop frame.
    """
    names = FreeNames(graph)
    draft = Draft(graph)
    changed: dict[str, Node] = {}
    for name, frames in consumers.items():
        loops = [frame for frame in frames if frame in merges]
        is_used = name in graph.endpoint_names or len(loops) < len(frames)
        for frame in loops:
            in_loop = graph[name].with_(controls=(merges[frame],))
            if not is_used:
                draft.replace(name, in_loop)
                is_used = True
                continue
            copy = names.free(f"{name}/in_loop")
            draft.before(name, in_loop.with_(name=copy))
            for consumer in frames[frame]:
                node = changed.get(consumer, graph[consumer])
                inputs = (Edge(copy, edge.port) if edge.node == name else edge for edge in node.inputs)
                changed[consumer] = node.with_(inputs=tuple(inputs))
    copied = draft.graph()
    return copied.with_nodes(
        node.with_(inputs=changed[node.name].inputs) if node.name in changed else node for node in copied.nodes.values()
    )


def _is_loop_merge(graph: Graph, node: Node) -> bool:
    return node.op in MERGES and any(graph[edge.node].op in ENTERS for edge in node.inputs)


def _frame_of_inputs(node: Node, frames: Mapping[str, Frame]) -> Frame:
    """Return the frame from which a node takes its inputs."""
    frame = frames[node.name]
    return (frame.parent or OUTSIDE) if node.op in ENTERS else frame


def _find_floating(graph: Graph) -> set[str]:
    """Return constants without control dependencies, and nodes computed from such constants alone."""
    floating: set[str] = set()
    for name in graph.order:
        node = graph[name]
        if floating.issuperset(node.sources) and (node.sources or node.is_constant) and node.op not in ENTERS:
            floating.add(name)
    return floating
