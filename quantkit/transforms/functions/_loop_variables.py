"""Find the variables of a loop that are always equal.

Two variables are equal if their initial values are equal and each iteration computes the same value
for both. For example, a loop over a list has an iteration counter, and the list another one.
"""

from collections.abc import Hashable, Mapping, Sequence

from quantkit.ir.graph import Graph
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.functions._bodies import BodyGraph


def find_equal_variables(initial: Sequence[Hashable], body: BodyGraph, num_last: int) -> dict[int, int]:
    """Return the replacement of each variable that always equals another.

    The algorithm starts with classes of equal initial values, and splits them until each iteration
    computes equal values from equal arguments.

    Args:
        initial: keys of the initial values; equal values have equal keys.
        body: loop body.
        num_last: number of leading variables that replace others only as a last choice.
    """
    order = [*range(num_last, len(initial)), *range(num_last)]
    classes = _classify(order, initial)
    while len(set(classes.values())) < len(classes):
        graph = merge_duplicate_nodes(replace_variables(body.graph, _replacements(classes)))
        results = [graph[name] for name in body.results]
        keys = [(classes[index], result.inputs, result.controls) for index, result in enumerate(results)]
        finer = _classify(order, keys)
        if finer == classes:
            break
        classes = finer
    return _replacements(classes)


def replace_variables(graph: Graph, replacements: Mapping[int, int]) -> Graph:
    """Connect the consumers of arguments to equal arguments; outputs that forward their own argument stay."""
    edges = {graph.inputs[index]: graph.inputs[other] for index, other in replacements.items()}
    names = {old.node: new.node for old, new in edges.items()}
    pairs = zip(graph.inputs, graph.outputs, strict=False)
    outputs = [output if output == argument else edges.get(output, output) for argument, output in pairs]
    connected = graph.with_(outputs=(*outputs, *graph.outputs[len(outputs) :]))
    return connected.with_nodes(
        node.with_(
            inputs=tuple(edges.get(edge, edge) for edge in node.inputs),
            controls=tuple(dict.fromkeys(names.get(name, name) for name in node.controls)),
        )
        if any(name in names for name in node.sources)
        else node
        for node in graph.nodes.values()
    )


def _classify(order: Sequence[int], keys: Sequence[Hashable]) -> dict[int, int]:
    """Return for each index the first one in order with an equal key."""
    leaders: dict[Hashable, int] = {}
    return {index: leaders.setdefault(keys[index], index) for index in order}


def _replacements(classes: Mapping[int, int]) -> dict[int, int]:
    return {index: leader for index, leader in classes.items() if index != leader}
