"""Signatures of TensorFlow ops, without TensorFlow.

``assets/generate_op_table.py`` generates the table `tensorflow_ops.json.gz` from TensorFlow's registry.
An entry is parsed into an `OpDef` at its first use.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Node
from quantkit.ir.tensor import DType, Shape, Tensor

_DTYPES = {dtype.value: dtype for dtype in DType}
# Maximum number of tensors in a list of inputs or outputs.
MAX_LIST_LENGTH = 100_000


@dataclass(frozen=True, slots=True)
class ArgDef:
    """Input or output of an op: a tensor, or a list of tensors.

    Attributes:
        name: name in TensorFlow's documentation.
        dtype: element type if it is fixed.
        type_attr: name of the attribute with the element type.
        number_attr: name of the attribute with the number of tensors, which have one type.
        type_list_attr: name of the attribute with the element type of each tensor.
        is_ref: the argument is a reference to a variable.
    """

    name: str
    dtype: DType | None = None
    type_attr: str = ""
    number_attr: str = ""
    type_list_attr: str = ""
    is_ref: bool = False


@dataclass(frozen=True, slots=True)
class AttrDef:
    """Attribute of an op.

    Attributes:
        name: key in ``Node.attrs``.
        kind: type of the value in TensorFlow's notation: ``int``, ``type``, ``list(shape)`` ...
        default: value if the node has no such attribute; None if the attribute is required.
    """

    name: str
    kind: str
    default: Attr | None = None


@dataclass(frozen=True, slots=True)
class OpDef:
    """Signature of an op.

    Attributes:
        name: op type.
        inputs: data inputs, in order.
        outputs: outputs, in order of ports.
        attrs: attributes by name, in TensorFlow's order.
        is_stateful: two equal nodes can have different outputs, or the op has side effects.
        is_commutative: the two inputs can be swapped.
        deprecated: GraphDef producer version from which TensorFlow rejects the op; 0 if it is not deprecated.
    """

    name: str
    inputs: tuple[ArgDef, ...] = ()
    outputs: tuple[ArgDef, ...] = ()
    attrs: Mapping[str, AttrDef] = field(default_factory=dict)
    is_stateful: bool = False
    is_commutative: bool = False
    deprecated: int = 0


@cache
def _table() -> dict[str, Any]:
    packed = Path(__file__).with_name("tensorflow_ops.json.gz").read_bytes()
    return json.loads(gzip.decompress(packed))  # type: ignore[no-any-return]


@cache
def find_op(name: str) -> OpDef | None:
    """Return the signature of an op; None if TensorFlow has no such op.

    >>> find_op("Conv2D").attrs["data_format"].default
    b'NHWC'
    >>> find_op("Conv2E") is None
    True
    """
    fields = _table().get(name)
    if fields is None:
        return None
    attrs = {key: _attr_def(key, value) for key, value in fields.get("attrs", {}).items()}
    return OpDef(
        name,
        tuple(_arg_def(text, attrs) for text in fields.get("inputs", ())),
        tuple(_arg_def(text, attrs) for text in fields.get("outputs", ())),
        attrs,
        fields.get("is_stateful", False),
        fields.get("is_commutative", False),
        fields.get("deprecated", 0),
    )


def op_names() -> tuple[str, ...]:
    """Return all op types of the table, sorted."""
    return tuple(_table())


def attribute(node: Node, name: str) -> Any:
    """Return the value of an attribute: the node's value, else the op's default.

    Raises:
        GraphError: the node has no such attribute, and it has no default.
    """
    value = node.attrs.get(name)
    if value is not None:
        return value
    op = find_op(node.op)
    default = op.attrs[name].default if op is not None and name in op.attrs else None
    if default is None:
        raise GraphError(
            f"node {node.name!r} ({node.op}) has no attribute {name!r}",
            hint="export the model again: the file is damaged, or a tool removed attributes",
        )
    return default


def input_dtypes(node: Node) -> tuple[DType | None, ...]:
    """Return the element types of the data inputs, None for an unknown type; empty for an unknown op.

    Raises:
        GraphError: the attribute with the number of inputs is missing.
    """
    op = find_op(node.op)
    return () if op is None else _dtypes(node, op.inputs)


def output_dtypes(node: Node) -> tuple[DType | None, ...]:
    """Return the element types of the outputs, None for an unknown type; empty for an unknown op.

    Raises:
        GraphError: the attribute with the number or the types of the outputs is missing or is not a list.
    """
    op = find_op(node.op)
    return () if op is None else _dtypes(node, op.outputs)


def output_dtype(node: Node, port: int = 0) -> DType | None:
    """Return the element type of an output; None if the op, the type or the output is unknown."""
    try:
        return next(iter(output_dtypes(node)[port : port + 1]), None)
    except GraphError:  # an attribute is missing: the runtime reports that with more detail
        return None


def num_outputs(node: Node) -> int | None:
    """Return the number of outputs of a node; None for an unknown op.

    Raises:
        GraphError: the attribute with the number of outputs is missing.
    """
    return None if find_op(node.op) is None else len(output_dtypes(node))


def _dtypes(node: Node, args: tuple[ArgDef, ...]) -> tuple[DType | None, ...]:
    dtypes: list[DType | None] = []
    for arg in args:
        if arg.type_list_attr:
            types = attribute(node, arg.type_list_attr)
            if not isinstance(types, tuple):
                raise GraphError(
                    f"attribute {arg.type_list_attr!r} of node {node.name!r} ({node.op}) is not a list of types",
                    hint="the file is damaged: export the graph again",
                )
            dtypes.extend(map(_dtype_or_none, types))
            continue
        dtype = arg.dtype or _dtype_or_none(node.attrs.get(arg.type_attr)) or _default_type(node, arg.type_attr)
        dtypes.extend([dtype] * (_list_length(node, arg.number_attr) if arg.number_attr else 1))
    return tuple(dtypes)


def _list_length(node: Node, name: str) -> int:
    """Return the number of inputs or outputs that an attribute states.

    Raises:
        GraphError: the attribute is missing, or is not a number up to `MAX_LIST_LENGTH`.
    """
    length = attribute(node, name)
    if not isinstance(length, int) or not 0 <= length <= MAX_LIST_LENGTH:
        raise GraphError(
            f"node {node.name!r} ({node.op}) has the attribute {name}={length!r}; the limit is {MAX_LIST_LENGTH:,}",
            hint="export the model again: the file is damaged",
        )
    return length


def _dtype_or_none(value: Any) -> DType | None:
    return value if isinstance(value, DType) else None


def _default_type(node: Node, name: str) -> DType | None:
    op = find_op(node.op)
    return _dtype_or_none(op.attrs[name].default) if op is not None and name in op.attrs else None


def _arg_def(text: str, attrs: Mapping[str, AttrDef]) -> ArgDef:
    """Parse an argument of the table: ``name:TYPE``.

    ``&T`` is a reference, ``N*T`` a list of one type, ``*T`` a list of types.
    """
    name, _, kind = text.partition(":")
    is_ref, kind = kind.startswith("&"), kind.removeprefix("&")
    if kind.startswith("*"):
        return ArgDef(name, type_list_attr=kind[1:], is_ref=is_ref)
    number, _, kind = kind.rpartition("*")
    if kind in attrs:
        return ArgDef(name, type_attr=kind, number_attr=number, is_ref=is_ref)
    return ArgDef(name, _DTYPES[kind], number_attr=number, is_ref=is_ref)


def _attr_def(name: str, value: Any) -> AttrDef:
    if isinstance(value, str):
        return AttrDef(name, value)
    kind, default = value
    if kind.startswith("list("):
        return AttrDef(name, kind, tuple(_PARSERS[kind[5:-1]](item) for item in default))
    return AttrDef(name, kind, _PARSERS[kind](default))


def _tensor(value: Any) -> Tensor:
    return Tensor.of(value["values"], _DTYPES[value["dtype"]])


_PARSERS: Mapping[str, Callable[[Any], Attr]] = {
    "type": _DTYPES.__getitem__,
    "shape": Shape,
    "string": str.encode,
    "float": lambda value: float(np.float32(value)),
    "int": int,
    "bool": bool,
    "tensor": _tensor,
}
