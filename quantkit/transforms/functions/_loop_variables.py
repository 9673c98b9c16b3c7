"""Variables of a loop that are always equal: they begin so, and each turn computes them alike.

Loops count their turns twice where both the loop and what it runs over keep a number.
"""

from collections.abc import Hashable, Mapping, Sequence

from quantkit.ir.graph import Graph
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.functions._bodies import Opened


def equal_variables(first: Sequence[Hashable], body: Opened, num_last: int) -> dict[int, int]:
    """For each variable that always equals another, which that is: the first of those that are equal.

    Args:
        first: equal for variables that are equal before the first turn.
        body: what computes them anew, from the arguments in their order.
        num_last: so many at the beginning are read only where no other is equal.
    """
    order = [*range(num_last, len(first)), *range(num_last)]
    classes = _numbered(order, first)
    while len(set(classes.values())) < len(classes):
        graph = merge_duplicate_nodes(reading(body.graph, _leaders(classes)))
        ends = [graph[name] for name in body.results]
        finer = _numbered(order, [(classes[place], end.inputs, end.controls) for place, end in enumerate(ends)])
        if finer == classes:
            break
        classes = finer
    return _leaders(classes)


def reading(graph: Graph, leaders: Mapping[int, int]) -> Graph:
    """The graph where the first of equal arguments is read in the place of the others, but by what hands these on."""
    edges = {graph.inputs[place]: graph.inputs[leader] for place, leader in leaders.items()}
    names = {old.node: new.node for old, new in edges.items()}
    handed_on = zip(graph.inputs, graph.outputs, strict=False)
    outputs = [new if new == old else edges.get(new, new) for old, new in handed_on]
    made = graph.with_(outputs=(*outputs, *graph.outputs[len(outputs) :]))
    return made.with_nodes(
        node.with_(
            inputs=tuple(edges.get(edge, edge) for edge in node.inputs),
            controls=tuple(dict.fromkeys(names.get(name, name) for name in node.controls)),
        )
        if any(name in names for name in node.sources)
        else node
        for node in graph.nodes.values()
    )


def _numbered(order: Sequence[int], keys: Sequence[Hashable]) -> dict[int, int]:
    """For each place the first one whose key is equal."""
    places: dict[Hashable, int] = {}
    return {place: places.setdefault(keys[place], place) for place in order}


def _leaders(classes: Mapping[int, int]) -> dict[int, int]:
    return {place: leader for place, leader in classes.items() if place != leader}
