"""The original's cut to what the outputs need."""

from collections.abc import Mapping, Sequence

from quantkit.compat.transforms.nodes import NodeDef, by_name, node_of
from quantkit.compat.transforms.table import ClassicContext, as_int64, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr
from quantkit.ir.tensor import DType, Shape

WORDS = {dtype.value: dtype for dtype in DType}


@classic_transform
def strip_unused_nodes(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """What the outputs do not need goes; inputs become placeholders, scalar ones unless a shape is given."""
    inputs = {node_of(name) for name in context.inputs}
    needed = inputs | needed_by(by_name(nodes), [node_of(name) for name in context.outputs], inputs)
    result = []
    for node in nodes:
        if node.name in inputs and node.op != "Placeholder":
            attrs: dict[str, Attr] = {
                "dtype": _dtype(context, node.name),
                "shape": _shape(context, node.name),
            }
            result.append(NodeDef(node.name, "Placeholder", attrs=attrs))
        elif node.name in needed:
            result.append(node)
    return result


def needed_by(nodes: Mapping[str, NodeDef], outputs: Sequence[str], stop: set[str]) -> set[str]:
    """Names of the nodes that outputs need, not looking behind those to stop at.

    Raises:
        GraphError: a name on the way is not in the graph.
    """
    needed: set[str] = set()
    level = sorted(outputs)
    while level:
        following: set[str] = set()
        for name in level:
            needed.add(name)
            if name in stop:
                continue
            if name not in nodes:
                raise GraphError(f"Input node {name} not found in graph")
            following.update(node_of(text) for text in nodes[name].inputs)
        level = sorted(following - needed)
    return needed


def _dtype(context: ClassicContext, name: str) -> DType:
    dtype = DType.FLOAT
    if words := context.values("type"):
        if len(words) > 1:
            raise GraphError("You must pass no more than one default 'type' to strip_unused_nodes")
        dtype = _read_dtype(words[0])
    for named, word in _pairs(
        context, "type_for_name", "name=foo, type_for_name=float, name=bar, type_for_name=quint8"
    ):
        if named == name:
            dtype = _read_dtype(word)
    return dtype


def _read_dtype(word: str) -> DType:
    if word not in WORDS:
        raise GraphError(f"Couldn't understand type argument '{word}'")
    return WORDS[word]


def _shape(context: ClassicContext, name: str) -> Shape:
    shape = Shape(())
    if words := context.values("shape"):
        if len(words) > 1:
            raise GraphError("You must pass no more than one default 'shape' to strip_unused_nodes")
        shape = _read_shape(words[0])
    example = 'name=foo, shape_for_name="2,2,1", name=bar, shape_for_name="1"'
    for named, word in _pairs(context, "shape_for_name", example):
        if named == name:
            shape = _read_shape(word)
    return shape


def _read_shape(word: str) -> Shape:
    if not word:
        raise GraphError("Specified shape is empty.")
    sizes = [as_int64(part) for part in word.split(",")]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        raise GraphError(f"Could parse as shape: '{word}'")
    if min(known) < 0:
        raise GraphError(
            f"the original crashes here: shape {word!r} has a negative size",
            hint="without --classic it is a size that is not known",
        )
    return Shape(tuple(known))


def _pairs(context: ClassicContext, option: str, example: str) -> list[tuple[str, str]]:
    names, words = context.values("name"), context.values(option)
    if len(names) != len(words):
        raise GraphError(
            f"You must pass a '{option}' arg for every 'name', e.g. strip_unused_nodes({example}"
        )
    return list(zip(names, words, strict=True))
