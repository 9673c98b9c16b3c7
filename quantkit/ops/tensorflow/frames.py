"""Frames of the while loops of TensorFlow 1.

An Enter takes a value into the frame of a loop, an Exit takes it out. All nodes between them run once for each
iteration.
"""

from dataclasses import dataclass

from quantkit.ir.graph import LOOP_MERGES, Graph

ENTERS = frozenset({"Enter", "RefEnter"})
EXITS = frozenset({"Exit", "RefExit"})
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})


@dataclass(frozen=True, eq=False)
class Frame:
    """One loop frame.

    Attributes:
        name: value of `frame_name`; empty for the graph outside all loops.
        depth: number of enclosing loops.
        parent: enclosing frame.
    """

    name: object = b""
    depth: int = 0
    parent: "Frame | None" = None


OUTSIDE = Frame()


def find_frames(graph: Graph) -> dict[str, Frame]:
    """Return the frame of each node's outputs."""
    frames: dict[str, Frame] = {}
    entered: dict[tuple[object, Frame], Frame] = {}
    for name in graph.order:
        node = graph[name]
        sources = (frames.get(source, OUTSIDE) for source in node.sources)
        frame = max(sources, key=lambda frame: frame.depth, default=OUTSIDE)
        if node.op in ENTERS:
            key = (node.attrs.get("frame_name"), frame)
            frame = entered.setdefault(key, Frame(key[0], frame.depth + 1, frame))
        elif node.op in EXITS:
            frame = frame.parent or OUTSIDE
        frames[name] = frame
    return frames


def find_loop_nodes(graph: Graph) -> frozenset[str]:
    """Return the nodes of all while loops of TensorFlow 1, from Enter to Exit."""
    if ENTERS.isdisjoint(graph.op_counts):
        return frozenset()
    frames = find_frames(graph)
    return frozenset(name for name, frame in frames.items() if frame is not OUTSIDE or graph[name].op in EXITS)


def without_back_edges(graph: Graph) -> Graph:
    """Return a graph without cycles, for analyses of dependencies, not for execution.

    A Merge loses its inputs from the iteration before, and is an IdentityN of its other inputs: all of them precede
    it in the topological order.
    """
    if LOOP_MERGES.isdisjoint(graph.op_counts):
        return graph
    return graph.with_nodes(
        node.with_(
            op="IdentityN", inputs=tuple(edge for edge in node.inputs if graph[edge.node].op not in NEXT_ITERATIONS)
        )
        if node.op in LOOP_MERGES
        else node
        for node in graph.nodes.values()
    )
