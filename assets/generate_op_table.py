"""Write quantkit/ops/tensorflow/tensorflow_ops.json.gz from the op registry of the installed TensorFlow.

    python assets/generate_op_table.py

One line per op. Arguments are ``name:TYPE``, where TYPE is an element type (``float``), the attribute
that holds it (``T``), ``N*T`` for a run of N tensors, or ``*T`` for a list with one type each; ``&`` in
front means a reference to a variable. An attribute is its kind, or [kind, default]. The file is compressed
to an eighth for the size of the base installation.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent.parent / "quantkit" / "ops" / "tensorflow" / "tensorflow_ops.json.gz"
SHORT_NAMES = {"float32": "float", "float64": "double", "float16": "half"}


def registry() -> list[Any]:
    """Return the OpDefs of TensorFlow sorted by name, without those that its oneDNN graph pass inserts at run time."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    ops = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return sorted((op for op in ops.op if not op.name.lstrip("_").startswith("Mkl")), key=lambda op: op.name)


def short_name(number: int) -> str:
    """Return the name of a DataType number in recipes."""
    from tensorflow import dtypes

    name = dtypes.as_dtype(number).name
    return SHORT_NAMES.get(name, name)


def argument(arg: Any) -> str:
    """Return ``name:TYPE`` of an ArgDef."""
    kind = arg.type_attr or (f"*{arg.type_list_attr}" if arg.type_list_attr else short_name(arg.type))
    many = f"{arg.number_attr}*" if arg.number_attr else ""
    return f"{arg.name}:{'&' if arg.is_ref else ''}{many}{kind}"


def shape(proto: Any) -> list[int | None] | None:
    """Return the sizes of a shape, None for an unknown size, or None for an unknown rank."""
    return None if proto.unknown_rank else [None if dim.size < 0 else dim.size for dim in proto.dim]


def single(kind: str, value: Any) -> Any:
    """Return a default value of one kind as JSON."""
    if kind == "type":
        return short_name(value)
    if kind == "shape":
        return shape(value)
    if kind == "string":
        return value.decode()
    if kind == "float":
        return float(f"{value:.9g}")  # nine digits identify a float32
    if kind == "tensor":
        from tensorflow import make_ndarray

        return {"dtype": short_name(value.dtype), "values": make_ndarray(value).tolist()}
    return value


FIELDS = {
    "type": "type",
    "shape": "shape",
    "string": "s",
    "float": "f",
    "int": "i",
    "bool": "b",
    "tensor": "tensor",
    "func": "func",
}


def attribute(attr: Any) -> Any:
    """Return the kind of an AttrDef, or [kind, default]."""
    if not attr.HasField("default_value"):
        return attr.type
    kind = attr.type.removeprefix("list(").removesuffix(")")
    if kind == attr.type:
        return [kind, single(kind, getattr(attr.default_value, FIELDS[kind]))]
    values = getattr(attr.default_value.list, FIELDS[kind])
    if kind == "func" and values:
        raise ValueError(f"attribute {attr.name!r} has functions as default, which the table does not support")
    return [attr.type, [single(kind, value) for value in values]]


def entry(op: Any) -> dict[str, Any]:
    """Return one op as JSON without empty fields."""
    flags = {"is_stateful": op.is_stateful, "is_commutative": op.is_commutative}
    fields: dict[str, Any] = {
        "inputs": [argument(arg) for arg in op.input_arg],
        "outputs": [argument(arg) for arg in op.output_arg],
        "attrs": {attr.name: attribute(attr) for attr in op.attr},
        **flags,
        "deprecated": op.deprecation.version,
    }
    return {name: value for name, value in fields.items() if value}


def table() -> dict[str, Any]:
    """Return all ops as JSON."""
    return {op.name: entry(op) for op in registry()}


def main() -> None:
    """Write the table."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(fields, separators=(',', ':'), sort_keys=False)}"
        for name, fields in table().items()
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    TABLE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
