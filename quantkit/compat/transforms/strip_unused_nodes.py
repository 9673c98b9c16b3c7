"""The original's removal of nodes that no graph output depends on."""

from collections.abc import Mapping, Sequence

from quantkit.compat.transforms.nodes import NodeDef, by_name, node_of
from quantkit.compat.transforms.table import ClassicContext, as_int64, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr
from quantkit.ir.tensor import DType, Shape

DTYPES = {dtype.value: dtype for dtype in DType}


@classic_transform
def strip_unused_nodes(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Remove nodes that no graph output depends on, and replace graph inputs by placeholders.

    The default shape of a placeholder is scalar.
    """
    inputs = {node_of(name) for name in context.inputs}
    outputs = [node_of(name) for name in context.outputs]
    required = inputs | required_names(by_name(nodes), outputs, inputs)
    result = []
    for node in nodes:
        if node.name in inputs and node.op != "Placeholder":
            attrs: dict[str, Attr] = {
                "dtype": _parse_dtype_options(context, node.name),
                "shape": _parse_shape_options(context, node.name),
            }
            result.append(NodeDef(node.name, "Placeholder", attrs=attrs))
        elif node.name in required:
            result.append(node)
    return result


def required_names(nodes: Mapping[str, NodeDef], outputs: Sequence[str], stop: set[str]) -> set[str]:
    """Return the names of the nodes that outputs depend on; nodes of `stop` are not expanded.

    Raises:
        GraphError: the graph lacks a name.
    """
    required: set[str] = set()
    level = sorted(outputs)
    while level:
        producers: set[str] = set()
        for name in level:
            required.add(name)
            if name in stop:
                continue
            if name not in nodes:
                raise GraphError(f"Input node {name} not found in graph")
            producers.update(node_of(text) for text in nodes[name].inputs)
        level = sorted(producers - required)
    return required


def _parse_dtype_options(context: ClassicContext, name: str) -> DType:
    dtype = DType.FLOAT
    if texts := context.values("type"):
        if len(texts) > 1:
            raise GraphError("You must pass no more than one default 'type' to strip_unused_nodes")
        dtype = _parse_dtype(texts[0])
    example = "name=foo, type_for_name=float, name=bar, type_for_name=quint8"
    for node_name, text in _named_options(context, "type_for_name", example):
        if node_name == name:
            dtype = _parse_dtype(text)
    return dtype


def _parse_dtype(text: str) -> DType:
    if text not in DTYPES:
        raise GraphError(f"Couldn't understand type argument '{text}'")
    return DTYPES[text]


def _parse_shape_options(context: ClassicContext, name: str) -> Shape:
    shape = Shape(())
    if texts := context.values("shape"):
        if len(texts) > 1:
            raise GraphError("You must pass no more than one default 'shape' to strip_unused_nodes")
        shape = _parse_shape(texts[0])
    example = 'name=foo, shape_for_name="2,2,1", name=bar, shape_for_name="1"'
    for node_name, text in _named_options(context, "shape_for_name", example):
        if node_name == name:
            shape = _parse_shape(text)
    return shape


def _parse_shape(text: str) -> Shape:
    if not text:
        raise GraphError("Specified shape is empty.")
    parsed = [as_int64(part) for part in text.split(",")]
    sizes = [size for size in parsed if size is not None]
    if len(sizes) < len(parsed):
        raise GraphError(f"Could parse as shape: '{text}'")
    if min(sizes) < 0:
        raise GraphError(
            f"the original crashes here: shape {text!r} has a negative size",
            hint="run without --classic, where a negative size is an unknown size",
        )
    return Shape(tuple(sizes))


def _named_options(context: ClassicContext, option: str, example: str) -> list[tuple[str, str]]:
    names, texts = context.values("name"), context.values(option)
    if len(names) != len(texts):
        raise GraphError(f"You must pass a '{option}' arg for every 'name', e.g. strip_unused_nodes({example}")
    return list(zip(names, texts, strict=True))
