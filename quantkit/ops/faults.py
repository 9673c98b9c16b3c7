"""What is wrong with a graph whose nodes are not what their ops ask for.

Transforms and engines take nodes as their ops declare them; where one fails on a graph, this finds the node that is
to blame.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from quantkit.ir.graph import Attr, Graph, Node, Opaque
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.tensorflow.signatures import OpDef, find_op, input_dtypes, num_outputs, output_dtypes

KINDS: Mapping[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (float, int),
    "bool": bool,
    "string": bytes,
    "type": DType,
    "shape": Shape,
    "tensor": Tensor,
}
# Attributes with one entry for each dimension of an image, and how many they list.
WINDOWS = frozenset({"strides", "ksize", "dilations"})
IMAGE_OPS = frozenset(
    {
        *("Conv2D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "MaxPool", "AvgPool"),
        *("QuantizedConv2D", "QuantizedMaxPool", "QuantizedAvgPool"),
    }
)
IMAGE_RANK = 4


def find_fault(graph: Graph) -> str:
    """The first node that is not what its op asks for, in a sentence; nothing where all are.

    Ops that are not in the table are not judged, nor are graphs of other dialects than TensorFlow's.
    """
    if graph.dialect != "tensorflow":
        return ""
    known = [(node, op) for node in graph.nodes.values() if (op := find_op(node.op)) is not None]
    attrs = ((node, _attr_fault(node, op)) for node, op in known)
    inputs = ((node, _input_fault(graph, node)) for node, _ in known)  # which trusts that all attributes are right
    found = next(((node, fault) for node, fault in chain(attrs, inputs) if fault), None)
    return "" if found is None else f"node {found[0].name!r} ({found[0].op}) {found[1]}"


def _attr_fault(node: Node, op: OpDef) -> str:
    for name, attr in op.attrs.items():
        if attr.default is None and name not in node.attrs and attr.kind != "type":
            return f"lacks the attribute {name!r}"
        value = node.attrs.get(name)
        if value is None:
            continue
        if not _is_of_kind(value, attr.kind):
            return f"has the attribute {name}={value!r}, which is no {attr.kind}"
        if name in WINDOWS and node.op in IMAGE_OPS and len(_listed(value)) != IMAGE_RANK:
            return f"has the attribute {name}={value!r}, which should list {IMAGE_RANK} sizes"
        if name == "explicit_paddings" and len(_listed(value)) not in (0, 2 * IMAGE_RANK):
            return f"has the attribute {name}={value!r}, which should list {2 * IMAGE_RANK} widths"
    return ""


def _listed(value: Attr) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _is_of_kind(value: Attr, kind: str) -> bool:
    if kind.startswith("list("):
        return isinstance(value, tuple) and all(_is_of_kind(item, kind[5:-1]) for item in value)
    wanted = KINDS.get(kind)
    if wanted is None or isinstance(value, Opaque):
        return wanted is None
    return isinstance(value, wanted) and (kind == "bool" or not isinstance(value, bool))


def _input_fault(graph: Graph, node: Node) -> str:
    wanted = input_dtypes(node)
    if len(node.inputs) != len(wanted):
        return f"reads {len(node.inputs)} tensors, and takes {len(wanted)}"
    for slot, (edge, dtype) in enumerate(zip(node.inputs, wanted, strict=True)):
        source = graph.nodes.get(edge.node)
        if source is None:
            return f"reads {edge.node!r}, which is not in the graph"
        count = num_outputs(source)
        if count is None:
            continue
        if edge.port >= count:
            return f"reads {str(edge)!r}, and {source.op} has {count} outputs"
        given = output_dtypes(source)[edge.port]
        if dtype is not None and given is not None and given is not dtype:
            return f"takes {dtype.value} as input {slot}, and {str(edge)!r} is {given.value}"
    return ""
