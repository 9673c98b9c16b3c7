"""What TensorFlow's ops take and give, without TensorFlow.

The table `tensorflow_ops.json` is made by ``assets/generate_op_table.py`` from TensorFlow's registry;
its entries become `OpDef` values when they are first asked for.
"""

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

_WORDS = {dtype.value: dtype for dtype in DType}


@dataclass(frozen=True, slots=True)
class ArgDef:
    """One argument of an op: a tensor, or a run of tensors.

    Attributes:
        name: as TensorFlow documents it.
        dtype: element type where it is always the same.
        type_attr: the attribute that holds the element type.
        number_attr: the attribute that holds how many tensors there are, all of one type.
        type_list_attr: the attribute that holds one element type for each tensor.
        is_ref: whether it is a reference to a variable.
    """

    name: str
    dtype: DType | None = None
    type_attr: str = ""
    number_attr: str = ""
    type_list_attr: str = ""
    is_ref: bool = False


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute of an op.

    Attributes:
        name: as nodes write it.
        kind: TensorFlow's word: ``int``, ``type``, ``list(shape)`` ...
        default: its value when absent, or None where it must be given.
    """

    name: str
    kind: str
    default: Attr | None = None


@dataclass(frozen=True, slots=True)
class OpDef:
    """The signature of an op.

    Attributes:
        name: op type.
        inputs: data inputs, in order.
        outputs: in order of ports.
        attrs: by name, in TensorFlow's order.
        is_stateful: whether two equal nodes may give different results or do something.
        is_commutative: whether its two inputs may be swapped.
        deprecated: the GraphDef producer version from which it no longer loads; 0: never.
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
    return json.loads(Path(__file__).with_name("tensorflow_ops.json").read_text())  # type: ignore[no-any-return]


@cache
def find_op(name: str) -> OpDef | None:
    """The signature of an op, or None where TensorFlow has no such op.

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
    """All ops of the table, sorted."""
    return tuple(_table())


def attribute(node: Node, name: str) -> Any:
    """The value of an attribute: the node's, or else the op's default.

    Raises:
        GraphError: the node lacks it and the op has no default for it.
    """
    value = node.attrs.get(name)
    if value is not None:
        return value
    op = find_op(node.op)
    default = op.attrs[name].default if op is not None and name in op.attrs else None
    if default is None:
        raise GraphError(
            f"node {node.name!r} ({node.op}) lacks the attribute {name!r}",
            hint="the file is damaged, or was written by a tool that drops attributes",
        )
    return default


def input_dtypes(node: Node) -> tuple[DType | None, ...]:
    """Element types of the data inputs, None where unknown; empty for an op that is not in the table.

    Raises:
        GraphError: the attribute that says how many there are is missing.
    """
    op = find_op(node.op)
    return () if op is None else _dtypes(node, op.inputs)


def output_dtypes(node: Node) -> tuple[DType | None, ...]:
    """Element types of the outputs, None where unknown; empty for an op that is not in the table.

    Raises:
        GraphError: the attribute that says how many there are is missing.
    """
    op = find_op(node.op)
    return () if op is None else _dtypes(node, op.outputs)


def num_outputs(node: Node) -> int | None:
    """How many tensors a node makes, or None for an op that is not in the table.

    Raises:
        GraphError: the attribute that says so is missing.
    """
    return None if find_op(node.op) is None else len(output_dtypes(node))


def _dtypes(node: Node, args: tuple[ArgDef, ...]) -> tuple[DType | None, ...]:
    found: list[DType | None] = []
    for arg in args:
        if arg.type_list_attr:
            found.extend(_known(dtype) for dtype in attribute(node, arg.type_list_attr))
            continue
        dtype = arg.dtype or _known(node.attrs.get(arg.type_attr)) or _default_type(node, arg.type_attr)
        found.extend([dtype] * (attribute(node, arg.number_attr) if arg.number_attr else 1))
    return tuple(found)


def _known(value: Any) -> DType | None:
    return value if isinstance(value, DType) else None


def _default_type(node: Node, name: str) -> DType | None:
    op = find_op(node.op)
    return _known(op.attrs[name].default) if op is not None and name in op.attrs else None


def _arg_def(text: str, attrs: Mapping[str, AttrDef]) -> ArgDef:
    """An argument as the table writes it: ``name:TYPE``, ``&`` reference, ``N*T`` run, ``*T`` list."""
    name, _, kind = text.partition(":")
    is_ref, kind = kind.startswith("&"), kind.removeprefix("&")
    if kind.startswith("*"):
        return ArgDef(name, type_list_attr=kind[1:], is_ref=is_ref)
    number, _, kind = kind.rpartition("*")
    if kind in attrs:
        return ArgDef(name, type_attr=kind, number_attr=number, is_ref=is_ref)
    return ArgDef(name, _WORDS[kind], number_attr=number, is_ref=is_ref)


def _attr_def(name: str, value: Any) -> AttrDef:
    if isinstance(value, str):
        return AttrDef(name, value)
    kind, default = value
    if kind.startswith("list("):
        return AttrDef(name, kind, tuple(_READ[kind[5:-1]](item) for item in default))
    return AttrDef(name, kind, _READ[kind](default))


def _tensor(value: Any) -> Tensor:
    return Tensor.of(value["values"], _WORDS[value["dtype"]])


_READ: Mapping[str, Callable[[Any], Attr]] = {
    "type": _WORDS.__getitem__,
    "shape": Shape,
    "string": str.encode,
    "float": lambda value: float(np.float32(value)),
    "int": int,
    "bool": bool,
    "tensor": _tensor,
}
