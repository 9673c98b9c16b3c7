"""Validation of nodes against the signatures of their op types.

Transforms and runtimes expect valid nodes. If one of them fails on a graph, this module finds the invalid node.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

from quantkit.ir.graph import Attr, Graph, Node, Opaque
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.tensorflow.signatures import OpDef, find_op, input_dtypes, num_outputs, output_dtypes

VALUE_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (float, int),
    "bool": bool,
    "string": bytes,
    "type": DType,
    "shape": Shape,
    "tensor": Tensor,
}
# Attributes with one entry per dimension of an image tensor.
WINDOW_ATTRS = frozenset({"strides", "ksize", "dilations"})
IMAGE_OPS = frozenset(
    {
        *("Conv2D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "MaxPool", "AvgPool"),
        *("QuantizedConv2D", "QuantizedMaxPool", "QuantizedAvgPool"),
    }
)
IMAGE_RANK = 4


DAMAGED = "the file is damaged, was written by a tool that supports other ops, or an earlier transform broke the node"


class InvalidNode(NamedTuple):
    """Description of an invalid node: a sentence that names it, and a hint."""

    message: str
    hint: str


def find_invalid_node(graph: Graph) -> InvalidNode | None:
    """Return the first invalid node; None if all nodes are valid.

    Nodes of unknown op types and graphs of other dialects than ``tensorflow`` are not checked.
    """
    if graph.dialect != "tensorflow":
        return None
    nodes = [(node, op) for node in graph.nodes.values() if (op := find_op(node.op)) is not None]
    attr_problems = ((node, _check_attrs(node, op), DAMAGED) for node, op in nodes)
    input_problems = ((node, *_check_inputs(graph, node)) for node, _ in nodes)  # requires valid attributes
    return next(
        (
            InvalidNode(f"node {node.name!r} ({node.op}) {problem}", hint)
            for node, problem, hint in chain(attr_problems, input_problems)
            if problem
        ),
        None,
    )


def _check_attrs(node: Node, op: OpDef) -> str:
    """Return a clause about the first invalid attribute; empty if all are valid."""
    for name, attr in op.attrs.items():
        if attr.default is None and name not in node.attrs and attr.kind != "type":
            return f"has no attribute {name!r}"
        value = node.attrs.get(name)
        if value is None:
            continue
        if not _is_of_kind(value, attr.kind):
            return f"has the attribute {name}={value!r}, which is not of type {attr.kind}"
        if name in WINDOW_ATTRS and node.op in IMAGE_OPS and len(_as_tuple(value)) != IMAGE_RANK:
            return f"has the attribute {name}={value!r}, which must have {IMAGE_RANK} entries"
        if name == "explicit_paddings" and len(_as_tuple(value)) not in (0, 2 * IMAGE_RANK):
            return f"has the attribute {name}={value!r}, which must have {2 * IMAGE_RANK} entries"
    return ""


def _as_tuple(value: Attr) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _is_of_kind(value: Attr, kind: str) -> bool:
    if kind.startswith("list("):
        return isinstance(value, tuple) and all(_is_of_kind(item, kind[5:-1]) for item in value)
    types = VALUE_TYPES.get(kind)
    if types is None or isinstance(value, Opaque):
        return types is None
    return isinstance(value, types) and (kind == "bool" or not isinstance(value, bool))


def _check_inputs(graph: Graph, node: Node) -> tuple[str, str]:
    """Return a clause about the first invalid input, empty if all are valid, and a hint."""
    dtypes = input_dtypes(node)
    if len(node.inputs) != len(dtypes):
        return f"has {len(node.inputs)} inputs instead of {len(dtypes)}", DAMAGED
    for slot, (edge, dtype) in enumerate(zip(node.inputs, dtypes, strict=True)):
        producer = graph.nodes.get(edge.node)
        if producer is None:
            return f"has input {edge.node!r}, which is not in the graph", DAMAGED
        count = num_outputs(producer)
        if count is None:
            continue
        if edge.port >= count:
            return f"has input {str(edge)!r}, but {producer.op} has {count} outputs", DAMAGED
        actual = output_dtypes(producer)[edge.port]
        if dtype is not None and actual is not None and actual is not dtype:
            hint = f"write the constant as {edge} = Const[{dtype.value}](...)" if producer.op == "Const" else DAMAGED
            return f"requires {dtype.value} as input {slot}, but {str(edge)!r} is {actual.value}", hint
    return "", ""
