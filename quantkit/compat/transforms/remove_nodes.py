"""The original's removal of no-op nodes."""

from collections.abc import Sequence

from quantkit.compat.transforms.matching import (
    ANY,
    ClassicMatch,
    ClassicPattern,
    rename_inputs,
    replace_matches,
)
from quantkit.compat.transforms.nodes import NodeDef, node_of, split
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError


@classic_transform()
def remove_nodes(nodes: list[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Remove nodes of the given op types; consumers get the first input of a removed node.

    The producer of this input moves to the removed node's position in the file. Other inputs and
    control dependencies of the removed node are lost.
    """
    ops = context.values("op")
    if not ops:
        raise GraphError("remove_nodes expects at least one 'op'argument, e.g. remove_nodes(op=Identity)")
    max_inputs = context.int32("max_inputs", 1)
    endpoints = {node_of(name) for name in (*context.inputs, *context.outputs)}
    result = nodes
    for op in ops:
        for count in range(1, max_inputs + 1):
            is_done = False
            while not is_done:
                pattern = ClassicPattern(op, (ANY,) * count)
                result, is_done = _remove_matches(result, pattern, endpoints)
    return result


def _remove_matches(
    nodes: Sequence[NodeDef], pattern: ClassicPattern, endpoints: set[str]
) -> tuple[list[NodeDef], bool]:
    """Return the nodes without the matches, and True if no node was removed."""
    names: dict[str, str] = {}

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        node, source = match.node, match.inputs[0].node
        if node.name in endpoints:
            return match.nodes
        texts = (text for text in node.inputs if split(text)[:2] == ("", source.name))
        names[node.name] = next(texts, source.name)
        names[f"^{node.name}"] = f"^{source.name}"
        return [source]

    result = replace_matches(nodes, pattern, replace, allow_inconsistencies=True)
    return rename_inputs(result, names), not names
