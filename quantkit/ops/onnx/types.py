"""Element types of ONNX values: their numbers in the format, and the types of all edges of a graph."""

from collections.abc import Mapping, Sequence
from typing import Any

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.table import CONTROL_FLOW, Fact, find_ops

# Element types by their number in `TensorProto.DataType`.
DTYPES = {
    1: DType.FLOAT,
    2: DType.UINT8,
    3: DType.INT8,
    4: DType.UINT16,
    5: DType.INT16,
    6: DType.INT32,
    7: DType.INT64,
    8: DType.STRING,
    9: DType.BOOL,
    10: DType.HALF,
    11: DType.DOUBLE,
    12: DType.UINT32,
    13: DType.UINT64,
    14: DType.COMPLEX64,
    15: DType.COMPLEX128,
    16: DType.BFLOAT16,
    17: DType.FLOAT8_E4M3FN,
    19: DType.FLOAT8_E5M2,
    21: DType.UINT4,
    22: DType.INT4,
}
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}

_BOOLEAN = find_ops(Fact.BOOLEAN, "onnx") | {"RegexFullMatch"}
_INT64 = find_ops(Fact.INDEX, "onnx")
# Ops whose first output has the element type of a later input.
_TYPE_INPUT = {"CastLike": 1, "DequantizeLinear": 1, "OneHot": 2, "QLinearConv": 7, "QLinearMatMul": 7, "Where": 1}
# Ops with an attribute that gives the element type as a number, and the type if the attribute is absent.
TYPE_ATTRS = {
    "Bernoulli": ("dtype", None),
    "BitCast": ("to", None),
    "BlackmanWindow": ("output_datatype", DType.FLOAT),
    "Cast": ("to", None),
    "EyeLike": ("dtype", None),
    "HammingWindow": ("output_datatype", DType.FLOAT),
    "HannWindow": ("output_datatype", DType.FLOAT),
    "MelWeightMatrix": ("output_datatype", DType.FLOAT),
    "Multinomial": ("dtype", DType.INT32),
    "RandomNormal": ("dtype", DType.FLOAT),
    "RandomNormalLike": ("dtype", None),
    "RandomUniform": ("dtype", DType.FLOAT),
    "RandomUniformLike": ("dtype", None),
}
# Element types of the later outputs, where they differ from the first.
_LATER = {
    "Dropout": (DType.BOOL,),
    "DynamicQuantizeLinear": (DType.FLOAT, DType.UINT8),
    "MaxPool": (DType.INT64,),
    "TopK": (DType.INT64,),
    "Unique": (DType.INT64, DType.INT64, DType.INT64),
}
# Ops of the standard domain whose element types depend on subgraphs, or that have no tensor type.
_UNTYPED = find_ops(CONTROL_FLOW, "onnx") | {"Optional", "OptionalGetElement", "StringSplit", "TfIdfVectorizer"}


def infer_types(graph: Graph, known_types: Mapping[Edge, DType] | None = None) -> Mapping[Edge, DType]:
    """Infer the element types of the edges of a graph of dialect ``onnx``.

    Args:
        graph: graph to analyse.
        known_types: element types by edge as stated by the file, for ops without a rule.

    Returns:
        Element types by edge; edges of unknown type are missing.

    Raises:
        GraphError: the nodes form a cycle.
    """
    types: dict[Edge, DType] = dict(known_types or {})
    for name in graph.order:
        node = graph[name]
        for port, dtype in enumerate(_output_types(node, [types.get(edge) for edge in node.inputs])):
            if dtype is not None:
                types[Edge(name, port)] = dtype
    return types


def _output_types(node: Node, inputs: Sequence[DType | None]) -> list[DType | None]:
    names = node.attrs.get("_outputs")
    count = len(names) if isinstance(names, tuple) else 1
    first = _first_type(node, inputs)
    return [first, *_LATER.get(node.op, (first,) * (count - 1))][:count]


def _first_type(node: Node, inputs: Sequence[DType | None]) -> DType | None:
    if node.op == "Placeholder":
        dtype = node.attrs.get("dtype")
        return dtype if isinstance(dtype, DType) else None
    if node.op == "Constant":
        return _constant_type(node.attrs)
    if "." in node.op or node.op in _UNTYPED or "Sequence" in node.op:
        return None
    if node.op in _BOOLEAN:
        return DType.BOOL
    if node.op in _INT64:
        return DType.INT64
    if node.op in ("ConvInteger", "MatMulInteger"):
        return DType.INT32
    if node.op == "ConstantOfShape":
        return node.attrs["value"].dtype if isinstance(node.attrs.get("value"), Tensor) else DType.FLOAT
    if node.op in ("QuantizeLinear", "DynamicQuantizeLinear"):
        zero_point = inputs[2] if len(inputs) > 2 else None
        return zero_point or DTYPES.get(node.attrs.get("output_dtype", 0)) or DType.UINT8
    slot = _TYPE_INPUT.get(node.op, 0)
    same = inputs[slot] if slot < len(inputs) else None
    if node.op in TYPE_ATTRS:
        name, default = TYPE_ATTRS[node.op]
        number = node.attrs.get(name)
        return DTYPES.get(number) if isinstance(number, int) else default or same
    return same


def _constant_type(attrs: Mapping[str, Any]) -> DType | None:
    if isinstance(attrs.get("value"), Tensor):
        value: Tensor = attrs["value"]
        return value.dtype
    kinds = {"value_float": DType.FLOAT, "value_int": DType.INT64, "value_string": DType.STRING}
    return next((dtype for name, dtype in kinds.items() if name in attrs or f"{name}s" in attrs), None)
