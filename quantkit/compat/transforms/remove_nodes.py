"""The original's removal of nodes that hand on their input."""

from collections.abc import Sequence

from quantkit.compat.transforms.matching import (
    ANY,
    ClassicMatch,
    ClassicPattern,
    rename_inputs,
    replace_matches,
)
from quantkit.compat.transforms.nodes import NodeDef, node_of
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError


@classic_transform
def remove_nodes(nodes: list[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Readers of a removed node read its first input; what it waited for is forgotten.

    The node that it read moves to its place in the file; other inputs that it had are removed with it.
    """
    ops = context.values("op")
    if not ops:
        raise GraphError(
            "remove_nodes expects at least one 'op'argument, e.g. remove_nodes(op=Identity)"
        )
    max_inputs = context.int32("max_inputs", 1)
    kept = {node_of(name) for name in (*context.inputs, *context.outputs)}
    result = nodes
    for op in ops:
        for count in range(1, max_inputs + 1):
            is_done = False
            while not is_done:
                result, is_done = _removed(result, ClassicPattern(op, (ANY,) * count), kept)
    return result


def _removed(
    nodes: Sequence[NodeDef], wanted: ClassicPattern, kept: set[str]
) -> tuple[list[NodeDef], bool]:
    names: dict[str, str] = {}

    def make(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        node, source = match.node, match.inputs[0].node
        if node.name in kept:
            return match.nodes
        names[node.name] = next(
            (
                text
                for text in node.inputs
                if text == source.name or text.startswith(f"{source.name}:")
            ),
            source.name,
        )
        names[f"^{node.name}"] = f"^{source.name}"
        return [source]

    result = replace_matches(nodes, wanted, make, allow_inconsistencies=True)
    return rename_inputs(result, names), not names
