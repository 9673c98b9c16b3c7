"""The original's removal of nodes that no graph output depends on."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from quantkit.compat.transforms.nodes import NodeDef, by_name, node_of
from quantkit.compat.transforms.table import ClassicContext, as_int64, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr
from quantkit.ir.tensor import DType, Shape

DTYPES = {dtype.value: dtype for dtype in DType}
DTYPE_EXAMPLE = "name=foo, type_for_name=float, name=bar, type_for_name=quint8"
SHAPE_EXAMPLE = 'name=foo, shape_for_name="2,2,1", name=bar, shape_for_name="1"'

Value = TypeVar("Value")


@classic_transform()
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
                "dtype": _read_options(context, node.name, "type", DTYPE_EXAMPLE, _parse_dtype, DType.FLOAT),
                "shape": _read_options(context, node.name, "shape", SHAPE_EXAMPLE, _parse_shape, Shape(())),
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


def _read_options(
    context: ClassicContext, name: str, option: str, example: str, parse: Callable[[str], Value], default: Value
) -> Value:
    """Return the value of an option for a node: that of ``<option>_for_name``, else that of ``<option>``."""
    value = default
    if texts := context.values(option):
        if len(texts) > 1:
            raise GraphError(f"You must pass no more than one default '{option}' to strip_unused_nodes")
        value = parse(texts[0])
    for node_name, text in _named_options(context, f"{option}_for_name", example):
        if node_name == name:
            value = parse(text)
    return value


def _parse_dtype(text: str) -> DType:
    if text not in DTYPES:
        raise GraphError(f"Couldn't understand type argument '{text}'")
    return DTYPES[text]


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
